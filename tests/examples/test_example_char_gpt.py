"""examples/char_gpt.py: what a run learns, prints and writes, and how its backends are compared."""

import functools
import json
import math
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import command
from examples.char_gpt import SIZES, Trainer, complete, main, parse, train
from examples.command import Diverged
from examples.gpt.compare import ROUNDS, UNTIMED_STEPS, compare
from examples.gpt.text import Windows
from tests.examples.example_support import TEXT, gpt_arguments, gpt_options, interrupt, quiet, saved

pytestmark = pytest.mark.usefixtures("one_thread")


def test_words_are_learned_and_written(tmp_path: Path) -> None:
    counts = torch.tensor([TEXT.count(c) for c in sorted(set(TEXT))], dtype=torch.float64)
    shares = counts / counts.sum()
    entropy = -(shares * shares.log()).sum().item()  # the least loss of a model that ignores the preceding characters
    size = ("--steps", 250, "--eval-every", 125, "--batch-size", 8, "--width", 32, "--sample-length", 150)
    history, sample = train(gpt_options(tmp_path / "out", *size), quiet)
    assert history[0]["validation_loss"] < entropy
    assert history[1]["validation_loss"] < 0.6 * entropy
    written = sample.split()[:-1]
    known = sum(word in ("red", "green", "blue", "yellow", "größe") for word in written)
    assert known > 0.7 * len(written) > 7


def test_model_that_cannot_be_compiled_is_told_before_any_file_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("no compiler is here")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=refuse))
    assert main(gpt_arguments(tmp_path / "out", "--compile")) == 2
    error = capsys.readouterr().err
    *logged, last = error.splitlines()
    assert "error: --compile: PyTorch could not compile the model: " in last
    assert "no compiler is here" in last
    assert all("torch/_dynamo" in line for line in logged)  # PyTorch 2.15's own log
    assert not (tmp_path / "out").exists()


def test_run_prints_its_lines_and_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(gpt_arguments(out, "--eval-every", 5)) == 0
    output = capsys.readouterr().out
    assert re.findall(r"^step +(\d+): training loss \d\.\d{4}, validation loss \d", output, re.M) == ["5", "10", "12"]
    assert re.findall(r"^sample after step (\d+):$", output, re.M) == ["5", "10", "12"]
    for said in (
        "device:  cpu",
        ", float32",
        "backend: PyTorch's operations: on a CPU",
        "words.txt: ",
        "held out",
        "eager",
    ):
        assert said in output
    speed, loss = output.splitlines()[-2:]
    assert re.fullmatch(r"tokens per second: [\d,]+", speed)
    metrics = json.loads((out / "metrics.json").read_text())
    last = metrics["evaluations"][-1]["validation_loss"]
    assert loss == f"validation loss: {last:.4f} nats = {last / math.log(2):.4f} bits per character"
    assert metrics["text"]["characters"] == len(TEXT)
    assert (metrics["config"]["steps"], metrics["tokens_per_step"]) == (12, 64)


def test_speed_is_that_of_each_stretch(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    history, _ = train(gpt_options(tmp_path, "--eval-every", 8), quiet)
    assert [record["tokens"] for record in history] == [8 * 64, 4 * 64]
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    speeds = [(record["step"], pytest.approx(record["tokens"] / record["seconds"])) for record in history]
    assert [(event.step, event.value) for event in events.Scalars("Speed/TokensPerSecond")] == speeds


def test_evaluating_more_often_changes_no_number_of_the_training(tmp_path: Path) -> None:
    found = []
    for every in (12, 5):
        train(gpt_options(tmp_path / str(every), "--eval-every", every), quiet)
        checkpoint = saved(tmp_path / str(every))
        found.append([*checkpoint["model"].values(), checkpoint["generator"]])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_resumed_run_writes_the_last_sample_again(tmp_path: Path) -> None:
    _, first = train(gpt_options(tmp_path / "out"), quiet)
    _, again = train(gpt_options(tmp_path / "out", "--resume"), quiet)
    assert first == again


def test_validation_loss_that_is_not_finite_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Windows, "validation_loss", lambda *_: math.inf)
    with pytest.raises(Diverged, match="the validation loss became inf after step 4"):
        train(gpt_options(tmp_path / "out"), quiet)


@pytest.mark.thorough
def test_defaults_of_the_cpu_train_on_the_standard_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--steps", "2", "--eval-batches", "1", "--sample-length", "5", "--batch-size", "2"]
    assert main(["--device", "cpu", "--out", str(tmp_path), *small]) == 0
    output = capsys.readouterr().out
    assert "files of Python's standard library in " in output
    assert "3 layers, 128 wide, 4 heads, context 64" in output
    assert saved(tmp_path)["settings"]["device"] == "cpu"


def test_options_left_out_are_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(*arguments: str) -> Namespace:
        return complete(parse(arguments))

    made = vars(completed("--device", "cpu", "--steps", "7"))
    assert {name: made[name] for name in SIZES} == {name: size[1] for name, size in SIZES.items()} | {"steps": 7}
    assert not made["amp"]
    assert completed("--device", "cpu", "--amp").amp
    monkeypatch.setattr(command, "pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    made = vars(completed("--device", "cuda:0"))
    assert {name: made[name] for name in SIZES} == {name: size[2] for name, size in SIZES.items()}
    assert not made["amp"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert completed("--device", "cuda:0").amp
    assert not completed("--device", "cuda:0", "--no-amp").amp


# Comparing -----------------------------------------------------------------------------------------------------------


def test_comparison_measures_both_backends_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(gpt_arguments(out, "--compare", "--steps", 7)) == 0
    output = capsys.readouterr().out
    assert f"the loss of step {UNTIMED_STEPS + 2 * ROUNDS}:" in output
    assert re.search(r"^  eager: kernels at \d+\.\d{3} times the speed of torch$", output, re.M)
    figures = json.loads(output.splitlines()[-1])
    ours, theirs = figures["kernels, eager"], figures["torch, eager"]
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert min(ours["tokens_per_second"], theirs["tokens_per_second"]) > 0
    assert not out.exists()


def test_comparison_of_compiled_ones_has_four_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    lines: list[str] = []
    options = gpt_options(tmp_path / "out", "--compile", "--steps", 5, "--layers", 1)
    names = [f"{backend}, {mode}" for mode in ("eager", "compiled") for backend in ("kernels", "torch")]
    assert list(compare(Trainer, options, lines.append)) == names
    assert [line.split("  ")[1] for line in lines if ", loss " in line] == names
    assert {"device", "amp", *names} == set(json.loads(lines[-1]))


def test_comparison_of_numbers_that_are_not_finite_ends(tmp_path: Path) -> None:
    with pytest.raises(
        Diverged, match=r"in step \d+ of kernels, eager; a lower --lr may help|after step 10 of kernels"
    ):
        compare(Trainer, gpt_options(tmp_path / "out", "--lr", "1e38"), quiet)


def test_interrupted_comparison_speaks_of_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint.pt").write_text("an earlier run's")
    monkeypatch.setattr(Trainer, "step", lambda *_: interrupt(None))
    assert main(gpt_arguments(tmp_path / "out", "--compare")) == 130
    assert capsys.readouterr().err.endswith("\nInterrupted.\n")
