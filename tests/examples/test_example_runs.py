"""The training examples, however a run ends: going on from its checkpoint changes no number."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from examples import lenet5
from examples.run import set_aside
from tests.examples.example_support import TEXT, Example, interrupt, numbers, saved

pytestmark = pytest.mark.usefixtures("one_thread", "small_digits")


@pytest.fixture
def straight(example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of an uninterrupted run."""
    assert example.run(tmp_path / "straight") == 0
    capsys.readouterr()
    return tmp_path / "straight"


def ruin(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)


# Going on ------------------------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("stretch", [1, 2, 3])
def test_interrupted_run_resumes_to_the_numbers_of_an_uninterrupted_one(
    example: Example,
    straight: Path,
    stretch: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "broken"
    with monkeypatch.context() as patch:
        example.within(patch, stretch, interrupt)
        assert example.run(out) == 130
    kept = f"Interrupted. {out / 'checkpoint.pt'} is kept; the same command with --resume goes on from it."
    assert kept in capsys.readouterr().err
    done = (stretch - 1) * example.stretch
    assert saved(out)[example.unit] == done
    assert example.run(out, "--resume") == 0
    assert f"output:  {out}, going on after {example.unit} {done}" in capsys.readouterr().out
    assert numbers(saved(out)) == numbers(saved(straight))
    assert json.loads((out / "metrics.json").read_text())["parameters"] > 0


@pytest.mark.parametrize("option", [("--backend", "torch"), ("--amp",)])
def test_other_backends_and_types_resume_to_the_same_numbers(
    option: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("char_gpt",) if option == ("--amp",) else ("char_gpt", "lenet5"):
        example, straight, broken = Example(name), tmp_path / name, tmp_path / f"{name}-broken"
        assert example.run(straight, *option) == 0
        with monkeypatch.context() as patch:
            example.within(patch, 2, interrupt)
            assert example.run(broken, *option) == 130
        assert example.run(broken, *option, "--resume") == 0
        assert numbers(saved(broken)) == numbers(saved(straight))


def test_finished_run_resumes_to_nothing(example: Example, straight: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = saved(straight)
    assert example.run(straight, "--resume") == 0
    output = capsys.readouterr().out
    more = "; a higher --epochs goes on" if example.name == "lenet5" else ""
    assert f"\nNothing to train: {example.end} {example.unit}s are done{more}\n" in output
    assert numbers(saved(straight)) == numbers(before)


def test_more_epochs_go_on(tmp_path: Path) -> None:
    example = Example("lenet5")
    assert example.run(tmp_path / "a", "--epochs", 1) == 0
    assert example.run(tmp_path / "a", "--epochs", 2, "--resume") == 0
    assert example.run(tmp_path / "b", "--epochs", 2) == 0
    assert numbers(saved(tmp_path / "a")) == numbers(saved(tmp_path / "b"))


def test_events_hold_each_loss_and_each_evaluation_once(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with monkeypatch.context() as patch:
        example.within(patch, 2, interrupt)
        assert example.run(tmp_path / "out") == 130
    assert example.run(tmp_path / "out", "--resume") == 0
    events = accumulator.EventAccumulator(str(tmp_path / "out" / "tensorboard")).Reload()
    history, losses = saved(tmp_path / "out")["history"], events.Scalars("Loss/Train")
    if example.name == "lenet5":
        assert [event.step for event in losses] == list(range(9))
        assert sum(event.value for event in losses[3:6]) / 3 == pytest.approx(history[1]["loss"], rel=1e-5)
        curves = {"Accuracy/Test": [record["accuracy"] for record in history]}
    else:
        assert [event.step for event in losses] == list(range(1, 13))
        assert sum(event.value for event in losses[4:8]) / 4 == pytest.approx(history[1]["train_loss"], rel=1e-5)
        validation = [record["validation_loss"] for record in history]
        bits = [loss / math.log(2) for loss in validation]
        curves = {"Loss/Validation": validation, "BitsPerCharacter/Validation": bits}
    for name, values in curves.items():
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(record[example.unit], pytest.approx(v)) for record, v in zip(history, values, strict=True)]


# What a resume refuses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("lenet5", ("--seed", 9), "--seed was 0, is 9"),
        ("lenet5", ("--lr", 0.1), "--lr was 0.003, is 0.1"),
        ("lenet5", ("--batch-size", 7), "--batch-size was 32, is 7"),
        ("lenet5", ("--backend", "torch"), "--backend was kernels, is torch"),
        ("char_gpt", ("--steps", 30), "--steps was 12, is 30"),
        ("char_gpt", ("--amp",), "--amp was False, is True"),
    ],
)
def test_resume_with_other_settings_is_refused(
    name: str, change: tuple[object, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Example(name)
    once = ("--epochs", 1) if name == "lenet5" else ()
    assert example.run(tmp_path / "out", *once) == 0
    capsys.readouterr()
    assert example.run(tmp_path / "out", *once, *change, "--resume") == 2
    err = capsys.readouterr().err
    assert "--resume must repeat the settings" in err
    assert words in err
    assert err.count("\n") == 1


def test_resume_with_another_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Example("char_gpt")
    assert example.run(tmp_path / "out") == 0
    (tmp_path / "other.txt").write_text(TEXT + "red\n", encoding="utf-8")
    assert example.run(tmp_path / "out", "--resume", "--text", tmp_path / "other.txt") == 2
    assert re.search(r"must repeat the settings .*: --text was \w{12}, is \w{12};", capsys.readouterr().err)


@pytest.mark.parametrize("fault", ["flipped byte", "cut", "empty", "text", "pickle", "other checkpoint", "folder"])
def test_damaged_or_foreign_checkpoint_is_refused(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example, path = Example("lenet5"), tmp_path / "checkpoint.pt"
    assert example.run(tmp_path, "--epochs", 1) == 0
    whole = path.read_bytes()
    flipped = whole[:50_000] + bytes([whole[50_000] ^ 1]) + whole[50_001:]
    if fault == "folder":
        path.unlink()
        path.mkdir()
    elif fault == "other checkpoint":
        torch.save({"format": "examples.char_gpt/2", "settings": {}}, path)
    elif fault == "pickle":
        torch.save(Path("x"), path)
    else:
        path.write_bytes({"flipped byte": flipped, "cut": whole[:5000], "empty": b"", "text": b"hello"}[fault])
    capsys.readouterr()
    assert example.run(tmp_path, "--resume") == 2
    err = capsys.readouterr().err
    words = {
        "folder": "there is no",
        "other checkpoint": "expected format 'examples.lenet5/1', found 'examples.char_gpt/2'",
        "flipped byte": "is damaged or is no checkpoint (the checksum of its part",
    }.get(fault, "is damaged or is no checkpoint")
    assert words in err
    assert str(path) in err
    assert err.count("\n") == 1


# An earlier run ------------------------------------------------------------------------------------------------------


def test_earlier_run_is_moved_and_can_still_be_resumed(
    example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for seed in (1, 2, 3):
        assert example.run(out, "--seed", seed) == 0
    assert f"(an earlier run's files moved to {out / 'earlier-2'})" in capsys.readouterr().out
    assert [saved(out / f)["settings"]["seed"] for f in ("earlier-1", "earlier-2", ".")] == [1, 2, 3]
    assert (out / "earlier-1" / "tensorboard").is_dir()
    assert example.run(out / "earlier-1", "--seed", 1, "--resume") == 0


def test_only_the_examples_files_are_moved(tmp_path: Path) -> None:
    assert set_aside(tmp_path) is None
    for name in ("notes.txt", "metrics.json"):
        (tmp_path / name).touch()
    assert set_aside(tmp_path) == tmp_path / "earlier-1"
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.*")) == [
        "earlier-1/metrics.json",
        "notes.txt",
    ]


# Divergence ----------------------------------------------------------------------------------------------------------


def test_diverging_run_stops_with_a_message_and_keeps_the_last_good_state(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    example.within(monkeypatch, 2, ruin)
    assert example.run(out) == 1
    where, rate = {"lenet5": ("batch 2 of epoch 2", "0.003"), "char_gpt": ("step 7", "0.01")}[example.name]
    message = f"Stopped: the loss became nan in {where}; a lower --lr may help, this run had {rate}."
    assert f"{message} {out / 'checkpoint.pt'} holds the last good state." in capsys.readouterr().err
    assert saved(out)[example.unit] == example.stretch
    assert all(value.isfinite().all() for value in saved(out)["model"].values())


def test_rate_that_is_far_too_high_is_noticed(
    example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example.run(tmp_path / "out", "--lr", "1e38") == 1
    assert "a lower --lr may help" in capsys.readouterr().err


def test_last_step_that_ruins_the_parameters_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = lenet5.train_epoch

    def training(fabric: Any, model: nn.Module, *rest: Any) -> torch.Tensor:
        losses = whole(fabric, model, *rest)
        ruin(model)
        return losses

    monkeypatch.setattr(lenet5, "train_epoch", training)
    assert Example("lenet5").run(tmp_path) == 1
    assert "the parameters are not finite after epoch 1" in capsys.readouterr().err
    assert saved(tmp_path)["epoch"] == 0


# On a GPU ------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("fast", [(), ("--fast",)])
def test_resumed_run_equals_an_uninterrupted_one_on_the_gpu(fast: tuple[str, ...], tmp_path: Path) -> None:
    example, gpu = Example("lenet5"), ("--device", "cuda", *fast)
    assert example.run(tmp_path / "straight", *gpu) == 0
    assert example.run(tmp_path / "broken", *gpu, "--epochs", 1) == 0
    assert example.run(tmp_path / "broken", *gpu, "--resume") == 0
    assert numbers(saved(tmp_path / "broken")) == numbers(saved(tmp_path / "straight"))


@pytest.mark.gpu
def test_resumed_transformer_is_near_an_uninterrupted_one_on_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, gpu = Example("char_gpt"), ("--device", "cuda", "--amp", "--width", 64, "--lr", 3e-3)
    assert example.run(tmp_path / "straight", *gpu) == 0
    with monkeypatch.context() as patch:
        example.within(patch, 2, interrupt)
        assert example.run(tmp_path / "broken", *gpu) == 130
    assert example.run(tmp_path / "broken", *gpu, "--resume") == 0
    ours, theirs = saved(tmp_path / "broken"), saved(tmp_path / "straight")
    assert torch.equal(ours["generator"], theirs["generator"])
    # Attention's backward may add in another order each time: the losses are near one another, not the same.
    for mine, other in zip(ours["history"], theirs["history"], strict=True):
        assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-2)
        assert mine["validation_loss"] == pytest.approx(other["validation_loss"], rel=1e-2)
