"""A disk that is full, or a folder that cannot be written, under what the examples write: one line that names the file, and
what was there before is still there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from examples.reporting import EpochRecord, EventLog
from torch import nn

from examples import char_gpt, exporting, lenet5, linear_regression, lltm_benchmark, reporting
from tests.examples import char_gpt_support, lenet5_support
from tests.examples.example_support import saved

resource = pytest.importorskip("resource")
Command = Callable[..., int]


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow beyond so many bytes: a write of more is cut short, and the next is refused, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(params=["lenet5", "char_gpt"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """A short run of an example into a folder, first half, or on its whole length."""
    monkeypatch.setattr(lenet5, "load_digits", lambda: (lenet5_support.TRAIN_SET, lenet5_support.TEST_SET))

    def command(out: Path, *more: str, longer: bool = False) -> int:
        if request.param == "lenet5":
            epochs = ("--epochs", "2" if longer else "1")
            return lenet5.main(lenet5_support.command(out, *epochs, *more))
        return char_gpt.main(char_gpt_support.command(tmp_path, out, *more))

    return command


def one_line(capsys: pytest.CaptureFixture[str], file: Path) -> str:
    """What stands on stderr, which names the file."""
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert f"{file} cannot be written: File too large" in err
    return err


def test_a_disk_that_fills_during_a_run(run: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(out) == 0
    capsys.readouterr()
    before = {name: (out / name).read_bytes() for name in ("checkpoint.pt", "metrics.json")}
    with room_for(4096):
        assert run(out, longer=True) == 2
    one_line(capsys, out / "checkpoint.pt")
    assert {name: (out / "earlier-1" / name).read_bytes() for name in before} == before
    assert not list(out.glob(".*")), "half a file is left behind"


def test_a_resumed_run_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lenet5, "load_digits", lambda: (lenet5_support.TRAIN_SET, lenet5_support.TEST_SET))
    assert lenet5.main(lenet5_support.command(tmp_path, "--epochs", "1")) == 0
    before = (tmp_path / "checkpoint.pt").read_bytes()
    capsys.readouterr()
    with room_for(4096):
        assert lenet5.main(lenet5_support.command(tmp_path, "--epochs", "2", "--resume")) == 2
    one_line(capsys, tmp_path / "checkpoint.pt")
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert not list(tmp_path.glob(".*"))
    assert lenet5.main(lenet5_support.command(tmp_path, "--epochs", "2", "--resume")) == 0
    assert saved(tmp_path)["epoch"] == 2


def test_a_folder_that_cannot_be_written(run: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(tmp_path / "file" / "out") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"cannot write to {tmp_path / 'file' / 'out'}: " in err


def test_events_that_find_no_room_are_told_of_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are written by a thread, whose error Python would print whole."""
    pytest.importorskip("tensorboard")
    from torch.utils import tensorboard

    monkeypatch.setattr(tensorboard, "SummaryWriter", partial(tensorboard.SummaryWriter, flush_secs=0))
    with (
        pytest.raises(OSError, match=f"{tmp_path} cannot be written: File too large"),
        EventLog(tmp_path) as log,
        room_for(1000),
    ):
        for epoch in range(1, 100):
            log.write(EpochRecord(epoch, 1.0, 50.0, 1.0, 1.0, None), [0.5] * 100)
    assert capsys.readouterr().err == ""


def test_an_error_of_the_run_is_not_hidden_by_one_of_the_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with room_for(1000), pytest.raises(KeyboardInterrupt), EventLog(tmp_path) as log:
        log.add_series("Loss/Train", [0.5] * 100, 0)
        raise KeyboardInterrupt


def test_metrics_that_find_no_room_leave_the_old_ones(tmp_path: Path) -> None:
    reporting.write_metrics(tmp_path / "metrics.json", {"loss": 1})
    with room_for(100), pytest.raises(OSError, match=r"metrics.json cannot be written: File too large"):
        reporting.write_metrics(tmp_path / "metrics.json", {"loss": [1] * 1000})
    assert (tmp_path / "metrics.json").read_text() == '{\n  "loss": 1\n}\n'


def test_curves_that_find_no_room_leave_the_old_ones(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    history = [EpochRecord(1, 1.0, 50.0, 1.0, 1.0, None)]
    reporting.plot_curves(tmp_path / "curves.png", history, "title")
    before = (tmp_path / "curves.png").read_bytes()
    assert before.startswith(b"\x89PNG")
    with room_for(1000), pytest.raises(OSError, match=r"curves.png cannot be written: File too large"):
        reporting.plot_curves(tmp_path / "curves.png", history, "title")
    assert (tmp_path / "curves.png").read_bytes() == before


def test_bars_that_find_no_room_leave_the_old_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "bars.svg"
    arguments = ["-b", "1", "-f", "1", "-s", "1", "-r", "3", "--no-build", "--plot", str(file)]
    assert lltm_benchmark.main(arguments) == 0
    before = file.read_bytes()
    assert b"<svg" in before
    capsys.readouterr()
    with room_for(1000):
        assert lltm_benchmark.main(arguments) == 2
    assert f"error: {file} cannot be written: File too large\n" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_an_exported_model_that_finds_no_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    file = tmp_path / "line.onnx"
    with room_for(100):
        assert linear_regression.main(["--device", "cpu", "--backend", "torch", "--export", str(file)]) == 2
    one_line(capsys, file)
    assert not file.exists()
    with room_for(100), pytest.raises(OSError, match="model.onnx cannot be written: File too large"):
        data = lenet5_support.TEST_SET
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).eval()
        exporting.export_classifier(model, tmp_path / "model.onnx", data, 50.0, 8, print)
    assert torch.is_grad_enabled()
    assert not list(tmp_path.iterdir())
