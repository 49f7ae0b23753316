"""examples/lenet5.py: however a run ends, its checkpoint is whole, and going on from it changes no number."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.console import UserError
from examples.training import LoaderTrainer, epoch_order
from torch import Tensor

from examples import lenet5, reporting, run
from examples.lenet5 import main, train
from tests.examples.example_support import numbers, quiet, saved
from tests.examples.lenet5_support import TEST_SET, TRAIN_COUNT, TRAIN_SET, command, config, make_recipe


@pytest.fixture(autouse=True)
def _small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lenet5, "load_digits", lambda: (TRAIN_SET, TEST_SET))


def stop_at(monkeypatch: pytest.MonkeyPatch, epoch: int, error: type[BaseException]) -> None:
    """Raise in the middle of `epoch`, when some of its batches have been trained."""
    whole = LoaderTrainer.train_epoch
    calls = iter(range(1, 100))

    def stopping(self: LoaderTrainer, order: Tensor, advance: Callable[[int], object]) -> Tensor:
        def break_off(_: int) -> None:
            raise error

        return whole(self, order, break_off if next(calls) == epoch else advance)

    monkeypatch.setattr(LoaderTrainer, "train_epoch", stopping)


@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_resumed_run_equals_an_uninterrupted_one(backend: str, tmp_path: Path) -> None:
    train(config(tmp_path / "straight", backend=backend), quiet)
    train(config(tmp_path / "broken", backend=backend, epochs=1), quiet)
    train(config(tmp_path / "broken", backend=backend, resume=True), quiet)
    assert numbers(saved(tmp_path / "broken")) == numbers(saved(tmp_path / "straight"))
    assert saved(tmp_path / "broken")["epoch"] == 3


def test_ctrl_c_keeps_the_checkpoint_and_closes_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = []
    leave = reporting.EventLog.__exit__

    def note(self: reporting.EventLog, *error: Any) -> None:
        leave(self, *error)
        closed.append(error[0])

    monkeypatch.setattr(reporting.EventLog, "__exit__", note)
    stop_at(monkeypatch, 2, KeyboardInterrupt)
    assert main(command(tmp_path / "broken", "--epochs", "3")) == 130
    assert closed == [KeyboardInterrupt]
    assert "checkpoint.pt is kept; the same command with --resume" in capsys.readouterr().err
    assert saved(tmp_path / "broken")["epoch"] == 1
    assert main(command(tmp_path / "broken", "--epochs", "3", "--resume")) == 0
    assert main(command(tmp_path / "straight", "--epochs", "3")) == 0
    assert numbers(saved(tmp_path / "broken")) == numbers(saved(tmp_path / "straight"))


def test_interruption_of_the_first_epoch_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 1, KeyboardInterrupt)
        assert main(command(tmp_path, "--epochs", "1")) == 130
    assert saved(tmp_path)["epoch"] == 0
    assert main(command(tmp_path, "--epochs", "1", "--resume")) == 0
    assert saved(tmp_path)["epoch"] == 1


def test_interrupted_save_keeps_the_former_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(config(tmp_path, epochs=1), quiet)
    before = (tmp_path / "checkpoint.pt").read_bytes()

    def half(path: Path, contents: bytes) -> None:
        with path.open("wb") as file:
            file.write(contents[:1000])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path, epochs=2, resume=True), quiet)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob(".*.part"))


def test_finished_run_resumes_to_nothing_and_further_on_request(tmp_path: Path) -> None:
    train(config(tmp_path, epochs=1), quiet)
    lines: list[str] = []
    assert len(train(config(tmp_path, epochs=1, resume=True), lines.append).history) == 1
    assert "Nothing to train: 1 epochs are done; a higher --epochs goes on" in lines
    assert len(train(config(tmp_path, epochs=2, resume=True), quiet).history) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 9}, "--seed was 0, is 9"),
        ({"lr": 0.1}, "--lr was 0.003, is 0.1"),
        ({"batch_size": 7}, "--batch-size was 32, is 7"),
        ({"backend": "torch"}, "--backend was kernels, is torch"),
    ],
)
def test_resume_with_other_settings_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    train(config(tmp_path, epochs=1), quiet)
    with pytest.raises(UserError, match="must repeat the settings") as caught:
        train(config(tmp_path, resume=True, **change), quiet)
    assert words in str(caught.value)


@pytest.mark.parametrize("fault", ["flipped byte", "cut", "empty", "text", "pickle", "other checkpoint", "folder"])
def test_damaged_or_foreign_checkpoint_is_refused(fault: str, tmp_path: Path) -> None:
    train(config(tmp_path, epochs=1), quiet)
    path = tmp_path / "checkpoint.pt"
    whole = path.read_bytes()
    flipped = whole[:50_000] + bytes([whole[50_000] ^ 1]) + whole[50_001:]
    if fault == "folder":
        path.unlink()
        path.mkdir()
    elif fault == "other checkpoint":
        torch.save({"model": {}}, path)
    elif fault == "pickle":
        torch.save(Path("x"), path)
    else:
        path.write_bytes({"flipped byte": flipped, "cut": whole[:5000], "empty": b"", "text": b"hello"}[fault])
    words = {"folder": "there is no", "other checkpoint": "is no checkpoint of this example"}.get(
        fault, "is damaged or"
    )
    with pytest.raises(UserError, match="is damaged: the checksum" if fault == "flipped byte" else words) as caught:
        train(config(tmp_path, resume=True), quiet)
    assert str(path) in str(caught.value)


def test_diverging_run_stops_with_a_message_and_keeps_the_last_good_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path, "--lr", "1e30")) == 1
    error = capsys.readouterr().err
    assert re.search(r"Stopped: the loss became (nan|inf) in batch [2-5] of epoch 1; a lower --lr may help", error)
    assert saved(tmp_path)["epoch"] == 0
    assert all(value.isfinite().all() for value in saved(tmp_path)["model"].values())


def test_last_step_that_ruins_the_parameters_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LoaderTrainer.train_epoch

    def ruin(self: LoaderTrainer, order: Tensor, advance: Callable[[int], object]) -> Tensor:
        losses = whole(self, order, advance)
        with torch.no_grad():
            next(self.model.parameters()).fill_(math.nan)
        return losses

    monkeypatch.setattr(LoaderTrainer, "train_epoch", ruin)
    with pytest.raises(run.Diverged, match="parameters are not finite after epoch 1"):
        train(config(tmp_path), quiet)
    assert saved(tmp_path)["epoch"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("fast", [False, True])
def test_resumed_run_equals_an_uninterrupted_one_on_the_gpu(fast: bool, tmp_path: Path) -> None:
    train(config(tmp_path / "straight", device="cuda", fast=fast), quiet)
    train(config(tmp_path / "broken", device="cuda", fast=fast, epochs=1), quiet)
    train(config(tmp_path / "broken", device="cuda", fast=fast, resume=True), quiet)
    assert numbers(saved(tmp_path / "broken")) == numbers(saved(tmp_path / "straight"))


@pytest.mark.gpu
def test_resumed_nadam_keeps_its_numbers_on_the_cpu() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    trainer = make_recipe(device)
    trainer.train_epoch(epoch_order(0, 1, TRAIN_COUNT), lambda _: None)
    trainer.load_optimizer_state(trainer.optimizer_state())
    for values in trainer.optimizer.state.values():
        assert (values["mu_product"].device.type, values["step"].device.type) == ("cpu", "cpu")
