"""The files of the training examples: full disks, absent packages, and a GPU without readings."""

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.command import UserError
from examples.pictures import plot_curves
from examples.run import Run, writes_events
from tests.examples.example_support import Example, interrupt, lenet5_options, saved

pytestmark = pytest.mark.usefixtures("one_thread", "small_digits")

# Disks ---------------------------------------------------------------------------------------------------------------


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow beyond so many bytes: a write of more is cut short, and the next is refused, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_is_one_line_and_the_files_that_were_there_stay(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        example.within(patch, 2, interrupt)
        assert example.run(out) == 130
    files = ("checkpoint.pt", "metrics.json")
    before = {name: (out / name).read_bytes() for name in files}
    capsys.readouterr()
    for resume, folder in (("--resume",), out), ((), out / "earlier-1"):
        with room_for(4096):
            assert example.run(out, *resume) == 2
        err = capsys.readouterr().err
        assert f"{out / 'checkpoint.pt'} cannot be written: File too large" in err
        assert err.count("\n") == 1
        assert {name: (folder / name).read_bytes() for name in files} == before
        assert not list(out.glob(".*")), "half a file is left behind"
    assert example.run(out / "earlier-1", "--resume") == 0
    assert saved(out / "earlier-1")[example.unit] == example.end


def test_folder_that_cannot_be_written_is_named(
    example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    arguments = example.arguments(tmp_path / "x")
    assert example.module.main([*arguments, "--out", str(tmp_path / "file" / "out")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"Not a directory: '{tmp_path / 'file' / 'out'}'" in err


def events_of(out: Path) -> Run:
    return Run("lenet5/1", lenet5_options(out), {}, unit="epoch", records="epochs")


@pytest.mark.parametrize("ends", ["at once", "later"])
def test_events_that_find_no_room_are_told_of_in_one_line(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are written by a thread, whose error Python would print whole. The thread may end after the run has reported
    it."""
    files = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    from torch.utils import tensorboard

    run_of_thread = files._AsyncWriterThread.run

    def ending(thread: Any) -> None:
        try:
            run_of_thread(thread)
        finally:
            time.sleep(0.2 if ends == "later" else 0.0)

    monkeypatch.setattr(files._AsyncWriterThread, "run", ending)
    monkeypatch.setattr(tensorboard, "SummaryWriter", partial(tensorboard.SummaryWriter, flush_secs=0))
    words = f"{tmp_path / 'tensorboard'} cannot be written: File too large"
    with pytest.raises(UserError, match=words), events_of(tmp_path) as run, room_for(1000):
        for epoch in range(100):
            run.log("Loss/Train", [0.5] * 100, epoch * 100)
    assert not any(writes_events(thread) for thread in threading.enumerate())
    assert capsys.readouterr().err == ""


def test_an_error_of_the_run_is_not_hidden_by_one_of_the_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    # No room from the end of the log on: the thread that writes may otherwise find none, and say so, while more is logged.
    with ExitStack() as later, pytest.raises(KeyboardInterrupt), events_of(tmp_path) as run:
        run.log("Loss/Train", [0.5] * 100, 0)
        later.enter_context(room_for(1000))
        raise KeyboardInterrupt


@pytest.mark.usefixtures("pictures")
def test_curves_that_find_no_room_leave_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "curves.png"  # in a folder that is not there yet
    plot_curves(path, {"loss": [1.0]}, "title")
    before = path.read_bytes()
    assert before.startswith(b"\x89PNG\r\n\x1a\n")
    with room_for(1000), pytest.raises(UserError, match=r"curves.png cannot be written: File too large"):
        plot_curves(path, {"loss": [1.0]}, "title")
    assert path.read_bytes() == before


# Packages ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("pictures")
def test_missing_packages_are_named_and_do_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    loggers = pytest.importorskip("lightning_fabric.loggers.tensorboard")
    for name in ("_TENSORBOARD_AVAILABLE", "_TENSORBOARDX_AVAILABLE"):
        monkeypatch.setattr(loggers, name, False)
    assert Example("lenet5").run(tmp_path, "--epochs", 1) == 0
    output = capsys.readouterr().out
    assert re.search(r"^No curves: .*matplotlib", output, re.M)
    assert re.search(r"^No TensorBoard events: .*tensorboard", output, re.M)
    assert (tmp_path / "checkpoint.pt").exists()


def test_missing_fabric_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    assert Example("lenet5").run(tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert "lightning_fabric" in err
    assert "install what the examples need: pip install 'lightning-fabric>=" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


# The GPU -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_gpu_use_is_reported_or_the_reason_told(tmp_path: Path) -> None:
    lines: list[str] = []
    options = lenet5_options(tmp_path, "--device", "cuda")
    with Run("lenet5/1", options, {}, unit="epoch", records="epochs", echo=lines.append) as run:
        uses = [run.gpu_use(step) for step in (1, 2)]
    if uses[0] is None:
        assert [line.startswith("No GPU utilisation: ") for line in lines] == [True]
    else:
        assert 0 <= uses[0]["utilisation_percent"] <= 100
        assert uses[0]["memory_mib"] > 0


def test_gpu_use_that_cannot_be_had_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    lines: list[str] = []
    monkeypatch.setattr(torch.cuda, "utilization", fail)
    run = Run("lenet5/1", lenet5_options(tmp_path), {}, unit="epoch", records="epochs", echo=lines.append)
    assert run.gpu_use(1) is None, "a CPU has no such figures"
    run.device = torch.device("cuda", 0)
    assert [run.gpu_use(step) for step in (1, 2)] == [None, None]
    assert lines[1:] == ["No GPU utilisation: nvidia-ml-py does not seem to be installed"]
