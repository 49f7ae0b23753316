"""examples/char_gpt.py: what a run learns, prints and writes, how it is compared, and what it refuses."""

import functools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.console import UserError
from examples.gpt.config import SIZES, Config
from examples.gpt.run import Evaluation, Result
from examples.gpt.speed import ROUNDS
from examples.gpt.trainer import WARMUP_STEPS

from examples.char_gpt import main, measure, train
from tests.examples.char_gpt_support import CPU, TEXT, command, config
from tests.examples.example_support import quiet

pytestmark = pytest.mark.usefixtures("one_thread")

# Training ------------------------------------------------------------------------------------------------------------


def test_words_are_learned_and_written(tmp_path: Path) -> None:
    counts = torch.tensor([TEXT.count(c) for c in sorted(set(TEXT))], dtype=torch.float64)
    shares = counts / counts.sum()
    entropy = -(shares * shares.log()).sum().item()  # the least that is to be had without looking at what came before
    options = config(tmp_path, steps=250, eval_every=125, batch_size=8, width=32, sample_length=150)
    result = train(options, quiet)
    assert result.history[0].validation_loss < entropy
    assert result.history[1].validation_loss < 0.6 * entropy
    written = result.sample.split()[:-1]
    known = sum(word in ("red", "green", "blue", "yellow", "größe") for word in written)
    assert known > 0.7 * len(written) > 7


def test_model_that_cannot_be_compiled_is_told_before_any_file_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("no compiler is here")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=refuse))
    assert main(command(tmp_path, tmp_path / "out", "--compile")) == 2
    error = capsys.readouterr().err
    assert "error: --compile: PyTorch could not compile the model: " in error
    assert "no compiler is here" in error
    assert not (tmp_path / "out").exists()


# What a run prints and writes ----------------------------------------------------------------------------------------


def test_run_prints_its_lines_and_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(command(tmp_path, out)) == 0
    output = capsys.readouterr().out
    assert re.findall(r"^step +(\d+): training loss \d\.\d{4}, validation loss \d", output, re.M) == ["8", "16", "24"]
    assert re.findall(r"^sample after step (\d+):$", output, re.M) == ["8", "16", "24"]
    for words in ("device:  cpu", ", float32", "backend: kernels", "words.txt: ", "held out", "eager"):
        assert words in output
    speed, loss = output.splitlines()[-2:]
    assert re.fullmatch(r"tokens per second: [\d,]+", speed)
    metrics = json.loads((out / "metrics.json").read_text())
    last = metrics["evaluations"][-1]["validation_loss"]
    assert loss == f"validation loss: {last:.4f} nats = {last / math.log(2):.4f} bits per character"
    assert metrics["text"]["characters"] == len(TEXT)
    assert metrics["config"]["steps"] == 24


def test_speed_is_reckoned_without_the_first_steps(tmp_path: Path) -> None:
    history = train(config(tmp_path), quiet).history
    assert [entry.tokens for entry in history] == [0, (16 - WARMUP_STEPS) * 4 * 16, 8 * 4 * 16]
    assert [entry.seconds > 0 for entry in history] == [False, True, True]
    made = Result([Evaluation(8, 1, 1, 0, 0.0, None), *(Evaluation(9, 1, 1, 30, s, None) for s in (1.0, 2.0))], "")
    assert made.tokens_per_second == 20


def test_run_too_short_to_measure_says_so(tmp_path: Path) -> None:
    lines: list[str] = []
    train(config(tmp_path, steps=4), lines.append)
    assert "tokens per second: not measured in 10 steps or fewer" in lines


def test_events_hold_each_step_and_each_evaluation_once(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "out"
    history = train(config(tmp_path, out), quiet).history
    events = accumulator.EventAccumulator(str(out / "tensorboard")).Reload()
    losses = events.Scalars("Loss/Train")
    assert [event.step for event in losses] == list(range(1, 25))
    assert sum(event.value for event in losses[8:16]) / 8 == pytest.approx(history[1].train_loss, rel=1e-5)
    found = [(event.step, event.value) for event in events.Scalars("Loss/Validation")]
    assert found == [(entry.step, pytest.approx(entry.validation_loss)) for entry in history]
    in_bits = events.Scalars("BitsPerCharacter/Validation")[-1].value
    assert in_bits == pytest.approx(history[-1].validation_loss / math.log(2))
    assert [event.step for event in events.Scalars("Speed/TokensPerSecond")] == [16, 24]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = config(tmp_path, steps=2)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert train(options, quiet).history[-1].step == 2
    assert list((tmp_path / "here").iterdir()) == []


def test_comparison_measures_both_backends_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(command(tmp_path, out, "--compare", "--steps", "7")) == 0
    output = capsys.readouterr().out
    assert f"the loss of step {WARMUP_STEPS + 2 * ROUNDS}:" in output
    assert re.search(r"^  eager: kernels at \d+\.\d{3} times the speed of torch$", output, re.M)
    figures = json.loads(output.splitlines()[-1])
    ours, theirs = figures["kernels, eager"], figures["torch, eager"]
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert min(ours["tokens_per_second"], theirs["tokens_per_second"]) > 0
    assert not out.exists()


def test_comparison_of_compiled_ones_has_four_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    found = measure(config(tmp_path, compile=True, steps=5, layers=1), quiet)
    assert [(c.mode, c.backend) for c in found] == [
        (mode, backend) for mode in ("eager", "compiled") for backend in ("kernels", "torch")
    ]
    assert [len(c.speeds) for c in found] == [ROUNDS] * 4


# The command line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--batch-size", "-3"], "--batch-size must be at least 1, got -3"),
        (["--eval-every", "0"], "--eval-every must be at least 1, got 0"),
        (["--sample-length", "0"], "--sample-length must be at least 1, got 0"),
        (["--heads", "5"], "--width must be a multiple of --heads, got 16 and 5"),
        (["--lr", "nan"], "--lr must be a positive number, got nan"),
        (["--seed", "-1"], "--seed must lie in"),
        (["--device", "tpu"], "--device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        (["--text", "absent.txt"], "--text: there is no file absent.txt"),
        (["--context", "9999"], "training and validation with --context 9999 need 20,000"),
        (["--prompt", "red!"], "--prompt: '!' does not occur in"),
        (["--resume"], "--resume: there is no"),
    ],
)
def test_mistakes_end_with_one_line_and_status_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path, tmp_path / "out", *arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith("python -m examples.char_gpt: error: ")
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [["--steps", "many"], ["--backend", "numpy"], ["--nonsense"]])
def test_arguments_that_do_not_parse_end_with_usage(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(command(tmp_path, tmp_path / "out", *arguments))
    assert capsys.readouterr().err.startswith("usage: python -m examples.char_gpt")


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    output = capsys.readouterr().out
    for option in (
        "--text",
        "--amp, --no-amp",
        "--compile",
        "--compare",
        "--resume",
        "--backend",
        "--seed",
        "--prompt",
    ):
        assert option in output
    assert "(default: 800 on a CPU, 2000 on a GPU)" in " ".join(output.split())


def test_options_left_out_are_the_devices() -> None:
    made = Config.for_device(CPU, {"steps": 7, "lr": None, "text": None, "amp": None})
    assert made == Config(**{**SIZES["cpu"], "steps": 7}, amp=False)
    assert Config.for_device(CPU, {"amp": True}).amp


def test_resume_without_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--resume needs the folder of the run: --out DIR"):
        config(tmp_path, resume=True)
