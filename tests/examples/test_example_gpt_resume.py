"""examples/char_gpt.py: however a run ends, its checkpoint is whole, and going on from it changes no number."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.console import UserError
from examples.endings import Diverged
from examples.gpt.config import SIZES
from examples.gpt.trainer import Trainer
from torch import Tensor

from examples.char_gpt import main, train
from tests.examples.char_gpt_support import CPU, TEXT, command, config, text_file
from tests.examples.example_support import numbers, quiet, saved

pytestmark = pytest.mark.usefixtures("one_thread")


def result_of(folder: Path) -> Any:
    """What a checkpoint holds, without what depends on when a process began: the times, and the steps that were timed."""
    found = numbers(saved(folder))
    for entry in found["history"]:
        del entry["tokens"]
    return found


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int, error: type[BaseException]) -> None:
    """Raise when `step`, counted from 0, has been taken."""
    whole = Trainer.step

    def stopping(self: Trainer, number: int) -> Tensor:
        loss = whole(self, number)
        if number == step:
            raise error
        return loss

    monkeypatch.setattr(Trainer, "step", stopping)


def change(monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Any], Any]) -> None:
    monkeypatch.setattr(Trainer, name, make(getattr(Trainer, name)))


@pytest.mark.parametrize("backend", ["kernels", "torch"])
@pytest.mark.parametrize("amp", [False, True])
def test_resumed_run_equals_an_uninterrupted_one(
    backend: str, amp: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    whole = train(config(tmp_path, straight, backend=backend, amp=amp), quiet)
    with monkeypatch.context() as patch:
        stop_at(patch, 11, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config(tmp_path, broken, backend=backend, amp=amp), quiet)
    assert saved(broken)["step"] == 8
    resumed = train(config(tmp_path, broken, backend=backend, amp=amp, resume=True), quiet)
    assert saved(broken)["step"] == 24
    assert result_of(broken) == result_of(straight)
    assert resumed.sample == whole.sample


def test_evaluating_more_often_changes_no_number_of_the_training(tmp_path: Path) -> None:
    for every in (24, 5):
        train(config(tmp_path, tmp_path / str(every), eval_every=every), quiet)
    for part in ("model", "optimizer", "generator"):
        assert numbers(saved(tmp_path / "24")[part]) == numbers(saved(tmp_path / "5")[part])
    assert [entry["step"] for entry in saved(tmp_path / "5")["history"]] == [5, 10, 15, 20, 24]


def test_ctrl_c_keeps_the_checkpoint_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop_at(patch, 20, KeyboardInterrupt)
        assert main(command(tmp_path, out)) == 130
    error = capsys.readouterr().err
    assert f"Interrupted. {out / 'checkpoint.pt'} is kept; the same command with --resume goes on from it." in error
    assert saved(out)["step"] == 16
    assert main(command(tmp_path, out, "--resume")) == 0
    assert f"output:  {out}, going on after step 16" in capsys.readouterr().out
    train(config(tmp_path, tmp_path / "straight"), quiet)
    assert result_of(out) == result_of(tmp_path / "straight")


def test_interrupted_comparison_speaks_of_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoint.pt").write_text("an earlier run's")
    stop_at(monkeypatch, 3, KeyboardInterrupt)
    assert main(command(tmp_path, tmp_path, "--compare")) == 130
    assert capsys.readouterr().err.endswith("\nInterrupted.\n")


def test_interruption_of_the_first_step_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop_at(patch, 0, KeyboardInterrupt)
        assert main(command(tmp_path, out)) == 130
    assert saved(out)["step"] == 0
    assert main(command(tmp_path, out, "--resume")) == 0
    assert saved(out)["step"] == 24


def test_finished_run_resumes_to_nothing_and_to_the_same_sample(tmp_path: Path) -> None:
    first = train(config(tmp_path, tmp_path / "out"), quiet)
    lines: list[str] = []
    again = train(config(tmp_path, tmp_path / "out", resume=True), lines.append)
    assert "Nothing to train: 24 steps are done" in lines
    assert again == first


def test_earlier_run_is_moved_and_can_still_be_resumed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for seed in (1, 2):
        train(config(tmp_path, out, seed=seed, steps=2), quiet)
    assert saved(out)["settings"]["seed"] == 2
    assert train(config(tmp_path, out / "earlier-1", seed=1, steps=2, resume=True), quiet).history[-1].step == 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 9}, "--seed was 0, is 9"),
        ({"steps": 30}, "--steps was 24, is 30"),
        ({"lr": 0.5}, "--lr was 0.01, is 0.5"),
        ({"batch_size": 7}, "--batch-size was 4, is 7"),
        ({"backend": "torch"}, "--backend was kernels, is torch"),
        ({"amp": True}, "--amp was False, is True"),
    ],
)
def test_resume_with_other_settings_is_refused(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    train(config(tmp_path, tmp_path / "out"), quiet)
    with pytest.raises(UserError, match="must repeat the settings") as caught:
        train(config(tmp_path, tmp_path / "out", resume=True, **changed), quiet)
    assert words in str(caught.value)


def test_resume_with_another_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    train(config(tmp_path, out, steps=2), quiet)
    other = text_file(tmp_path).rename(tmp_path / "other.txt")
    other.write_text(TEXT + "red\n", encoding="utf-8")
    assert main(command(tmp_path, out, "--steps", "2", "--resume", "--text", str(other))) == 2
    assert re.search(r"must repeat the settings .*: --text was \w{12}, is \w{12};", capsys.readouterr().err)


def test_checkpoint_of_another_example_is_refused(tmp_path: Path) -> None:
    torch.save({"format": "examples.lenet5/1", "settings": {}}, tmp_path / "checkpoint.pt")
    with pytest.raises(UserError, match=r"expected format 'examples.char_gpt/1', found 'examples.lenet5/1'"):
        train(config(tmp_path, tmp_path, resume=True), quiet)


# Divergence ----------------------------------------------------------------------------------------------------------


def test_diverging_run_stops_with_a_message_and_keeps_the_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(whole: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def step(self: Trainer, number: int) -> Tensor:
            if number == 18:
                with torch.no_grad():
                    self.parameters[0].fill_(math.nan)
            return whole(self, number)

        return step

    change(monkeypatch, "step", spoil)
    out = tmp_path / "out"
    assert main(command(tmp_path, out)) == 1
    error = capsys.readouterr().err
    assert "Stopped: the loss became nan in step 19; a lower --lr may help, this run had 0.01. " in error
    assert f"{out / 'checkpoint.pt'} holds the last good state." in error
    assert saved(out)["step"] == 16
    assert all(value.isfinite().all() for value in saved(out)["model"].values())


def test_rate_that_is_far_too_high_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"a lower --lr may help"):
        train(config(tmp_path, lr=1e38), quiet)


def test_last_step_that_ruins_the_parameters_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(whole: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def step(self: Trainer, number: int) -> Tensor:
            loss = whole(self, number)
            if number == 7:
                with torch.no_grad():
                    self.parameters[-1].fill_(math.inf)
            return loss

        return step

    change(monkeypatch, "step", spoil)
    with pytest.raises(Diverged, match="the parameters are not finite after step 8"):
        train(config(tmp_path, tmp_path / "out"), quiet)
    assert saved(tmp_path / "out")["step"] == 0


def test_validation_loss_that_is_not_finite_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, "validation_loss", lambda _: lambda self: math.inf)
    with pytest.raises(Diverged, match="the validation loss became inf after step 8"):
        train(config(tmp_path), quiet)


# Where it runs -------------------------------------------------------------------------------------------------------


def test_defaults_of_the_cpu_train_on_the_standard_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    small = ["--steps", "2", "--eval-batches", "1", "--sample-length", "5", "--batch-size", "2"]
    assert main(["--device", "cpu", "--out", str(out), *small]) == 0
    output = capsys.readouterr().out
    assert "files of Python's standard library in " in output
    assert f"{SIZES['cpu']['layers']} layers, {SIZES['cpu']['width']} wide" in output
    assert saved(out)["settings"]["device"] == CPU.type


@pytest.mark.gpu
def test_resumed_run_equals_an_uninterrupted_one_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    options = {"device": "cuda", "amp": True, "width": 64, "lr": 3e-3}
    train(config(tmp_path, straight, **options), quiet)
    with monkeypatch.context() as patch:
        stop_at(patch, 11, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config(tmp_path, broken, **options), quiet)
    train(config(tmp_path, broken, resume=True, **options), quiet)
    ours, theirs = saved(broken), saved(straight)
    assert torch.equal(ours["generator"], theirs["generator"])
    # Attention's backward may add in another order each time, so the losses are near one another and not the same.
    for mine, other in zip(ours["history"], theirs["history"], strict=True):
        assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-2)
        assert mine["validation_loss"] == pytest.approx(other["validation_loss"], rel=1e-2)
