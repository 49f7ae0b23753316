"""The command lines of the examples: answers before PyTorch is imported, one-line errors, exit codes, progress, files."""

import importlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cupyops.errors import ExportError, MissingDependencyError
from cupyops.installing import pip_install
from examples import command
from examples.command import (
    Diverged,
    Progress,
    UserError,
    describe_device,
    pick_device,
    run_command,
    write_whole,
)
from tests.examples.example_support import CONTEXT, TEXT, status

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ("add_model", "char_gpt", "lenet5", "linear_regression", "llama", "lltm_benchmark", "own_op", "sequence")
OPTIONS = {
    "add_model": ("--device auto|cpu|cuda", "--seed", "--backend {kernels,torch}", "--n", "runs/add_model.png"),
    "char_gpt": (
        *(
            "--text",
            "--amp, --no-amp",
            "--compile",
            "--plain-loss",
            "--compare",
            "--resume",
            "--out",
            "--backend",
            "--seed",
            "--prompt",
        ),
        "(default: 800 on a CPU, 2000 on a GPU)",
    ),
    "faster": ("MODEL", "--batch", "--length", "--dtype {bfloat16,float32,float16}", "--compile", "--steps", "--plot"),
    "lenet5": (
        *("--dataset {digits,mnist}", "--data-dir", "--mirror", "--fast", "--resume", "--out", "--backend", "--seed"),
        *("--device", "--export", "(default: 20 for digits, 10 for mnist)"),
    ),
    "linear_regression": ("--export", "--custom-domain", "--plot"),
    "llama": ("--text", "--kv-heads", "--tied", "--amp", "--plot", "(default: 600 on a CPU, 2000 on a GPU)"),
    "lltm_benchmark": ("--batch", "--features", "--state", "--steps", "--runs", "--no-build", "--plot"),
    "own_op": ("An operator of one's own",),
    "sequence": ("--task {adding,digits}", "--models", "--iterations", "--plot"),
}


def without_torch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where importing torch, numpy or cupyops ends with an error."""
    for name in ("torch", "numpy", "cupyops"):
        (folder / f"{name}.py").write_text("1 / 0\n")
    path = os.pathsep.join([str(folder), str(ROOT)])
    command = [sys.executable, "-m", *arguments]
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("example", EXAMPLES)
def test_help_is_answered_before_torch_is_imported(example: str, tmp_path: Path) -> None:
    done = without_torch(tmp_path, f"examples.{example}", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    shown = " ".join(done.stdout.split())
    assert f"python -m examples.{example}" in shown
    for option in OPTIONS[example]:
        assert option.lower() in shown.lower()


@pytest.mark.parametrize("example", EXAMPLES)
def test_wrong_arguments_are_answered_before_torch_is_imported(example: str, tmp_path: Path) -> None:
    done = without_torch(tmp_path, f"examples.{example}", "--nonsense")
    error = f"python -m examples.{example}: error: unrecognized arguments: --nonsense\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", error)


@pytest.mark.parametrize(
    ("example", "arguments", "words"),
    [
        ("add_model", "--n 0", "--n: must be at least 1, got 0"),
        ("add_model", "--seed -1", "--seed: must lie in 0 .. 2**63 - 1, got -1"),
        ("add_model", "--device tpu", "--device: must be auto, cpu, cuda or cuda:N, got tpu"),
        ("add_model", "--backend numpy", "--backend: invalid choice: 'numpy'"),
        ("add_model", "--n many", "--n: invalid int value: 'many'"),
        ("linear_regression", "--custom-domain", "--custom-domain has no meaning without --export FILE"),
        ("lltm_benchmark", "-b 0", "--batch: must be at least 1, got 0"),
        ("lltm_benchmark", "-t 0", "--steps: must be at least 1, got 0"),
        ("sequence", "--steps 1", "--steps: must be at least 2, got 1"),
        ("sequence", "--lr 0", "--lr: must be a positive number, got 0"),
        ("lenet5", "--epochs 0", "--epochs: must be at least 1, got 0"),
        ("lenet5", "--batch-size 0", "--batch-size: must be at least 1, got 0"),
        ("lenet5", "--lr nan", "--lr: must be a positive number, got nan"),
        ("lenet5", "--resume", "--resume: there is no runs/lenet5/checkpoint.pt; leave out --resume to begin"),
        ("lenet5", "--export absent/x.onnx", "--export: there is no folder absent; make it, or name another file"),
        ("lenet5", "--device cpu --fast", "--fast replays CUDA graphs and needs a GPU, got --device cpu"),
        ("lenet5", "--dataset mnist --data-dir absent --mirror http://127.0.0.1:9/", "Without a network"),
        ("char_gpt", "--steps 0", "--steps: must be at least 1, got 0"),
        ("char_gpt", "--eval-every 0", "--eval-every: must be at least 1, got 0"),
        ("char_gpt", "--sample-length 0", "--sample-length: must be at least 1, got 0"),
        ("char_gpt", "--lr inf", "--lr: must be a positive number, got inf"),
        ("char_gpt", "--heads 5 --width 16", "--width must be a multiple of --heads, got 16 and 5"),
        ("char_gpt", "--device cpu --heads 5", "--width must be a multiple of --heads, got 128 and 5"),
        ("char_gpt", "--text absent.txt", "--text: must name a file that exists, got absent.txt"),
        ("char_gpt", "--device cpu --text words.txt --context 9999", "validation with --context 9999 need 20,000"),
        ("char_gpt", "--device cpu --text words.txt --context 16 --prompt red!", "--prompt: '!' does not occur in"),
        ("char_gpt", "--resume", "--resume: there is no runs/char_gpt/checkpoint.pt"),
        ("llama", "--kv-heads 0", "--kv-heads: must be at least 1, got 0"),
        ("llama", "--device cpu --heads 3", "--width must be a multiple of twice --heads, got 128 and 3"),
        ("llama", "--device cpu --kv-heads 3", "--heads must be a multiple of --kv-heads, got 4 and 3"),
        ("llama", "--text absent.txt", "--text: must name a file that exists, got absent.txt"),
    ],
)
def test_mistakes_end_with_one_line_and_status_2(
    example: str,
    arguments: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert CONTEXT == 16
    (tmp_path / "words.txt").write_text(TEXT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert status(importlib.import_module(f"examples.{example}").main, *arguments.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"python -m examples.{example}: error: ")
    assert words in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] in (
        ["words.txt"],
        ["words.txt", "absent"],
        ["absent", "words.txt"],
    )


def test_devices_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    assert describe_device(torch.device("cpu")).startswith("cpu (")
    for name in ("cuda:99", "cuda:9999"):
        with pytest.raises(UserError, match=rf"^--device {name}: PyTorch .+; use --device cpu$"):
            pick_device(name)


@pytest.mark.gpu
def test_the_current_gpu_is_taken() -> None:
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda", torch.cuda.current_device())


# Exit codes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (None, 0, ""),
        ([1, 2], 0, ""),
        (1, 1, ""),
        (UserError("no such\nthing"), 2, "python -m examples.x: error: no such thing\n"),
        (ExportError("cannot"), 2, "python -m examples.x: error: cannot\n"),
        (MissingDependencyError("pip install"), 2, "python -m examples.x: error: pip install\n"),
        (OSError("disk"), 2, "python -m examples.x: error: disk\n"),
        (
            ModuleNotFoundError("No a"),
            2,
            f"python -m examples.x: error: No a; install what the examples need: {pip_install('examples')}\n",
        ),
        (Diverged("the loss became nan"), 1, "Stopped: the loss became nan.\n"),
        (KeyboardInterrupt(), 130, "\nInterrupted.\n"),
    ],
)
def test_every_end_has_its_code_and_its_line(
    outcome: object, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def action() -> object:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    assert run_command("x", action, tmp_path / "absent") == code
    assert capsys.readouterr().err == words


def test_errors_of_the_program_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command("x", lambda: 1 // 0)


def test_a_reader_who_leaves_ends_the_program_quietly() -> None:
    code = (
        "from examples.command import run_command\n"
        "raise SystemExit(run_command('x', lambda: [print('line', flush=True) for _ in range(10**6)] and None))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.wait() == 141
    assert process.stderr.read() == ""
    process.stderr.close()


# Progress and files --------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_progress_is_a_bar_on_a_terminal_and_rare_lines_elsewhere(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(command.time, "monotonic", lambda: now)
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("Training", 4, "batches") as bar:
        for moment in (5.0, 12.0, 13.0):
            now = moment
            bar.update(1)
    lines = [line.strip() for line in stream.getvalue().split("\r") if line.strip()]
    if stream.isatty():
        assert lines == [
            "Training: [=====               ] 1 of 4 batches, 00:15 left",
            "Training: [==========          ] 2 of 4 batches, 00:12 left",
            "Training: [===============     ] 3 of 4 batches, 00:04 left",
        ]
    else:
        assert lines == ["Training: 2 of 4 batches, 00:12 left"]


def test_the_time_left_of_a_resumed_run_leaves_out_what_was_done_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(command.time, "monotonic", lambda: now)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with Progress("Training", 10_000, "steps", 9_000) as bar:
        now = 1000.0
        bar.update(100)
    assert stream.getvalue() == "Training: 9,100 of 10,000 steps, 2:30:00 left\n"


def test_a_download_of_unknown_size_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = Progress("Downloading x", None, "B")
    bar.update(2_500_000)
    assert bar.text(20) == "Downloading x: 2.5 MB"


def test_a_line_beside_a_bar_is_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is cleared before the line is printed, and drawn again after the line."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Progress("Epoch 1", 4, "batches") as bar:
        bar.draw()
        bar.say("told", lambda line: terminal.write(f"{line}\n"))
        written = terminal.getvalue()
    before, after = written.split("told\n")
    assert before.endswith("\r")
    assert "Epoch 1" in before
    assert "Epoch 1" in after
    assert terminal.getvalue().endswith(" \r")


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    write_whole(target, b"old")

    def half(path: Path, contents: bytes) -> None:
        with path.open("wb") as file:
            file.write(contents[:10])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_bytes", half)
        write_whole(target, b"new" * 100)
    assert (target.read_bytes(), [path.name for path in tmp_path.iterdir()]) == (b"old", ["file"])
    write_whole(target, b"new")
    assert (target.read_bytes(), [path.name for path in tmp_path.iterdir()]) == (b"new", ["file"])


# The list and the wheel's name ---------------------------------------------------------------------------------------


def test_the_list_has_every_example_and_imports_none(tmp_path: Path) -> None:
    done = without_torch(tmp_path, "examples")
    assert (done.returncode, done.stderr) == (0, "")
    names = re.findall(r"^  ([\w.]+)  +\S", done.stdout, re.MULTILINE)
    assert {*EXAMPLES, "faster", "own_ops.softmax", "own_ops.dropout"} <= set(names)
    assert not {"command", "data", "run", "fast", "pictures", "gpt.model", "own_ops"} & set(names)
    assert "Run one with: python -m examples.NAME" in done.stdout


def test_under_the_wheels_name_an_example_says_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    add_model = importlib.import_module("cupyops.examples.add_model")
    assert add_model.__name__ == "cupyops.examples.add_model"
    assert status(add_model.main, "--n", 0) == 2
    assert capsys.readouterr().err.startswith("python -m cupyops.examples.add_model: error: argument --n: must be")
    listing = importlib.import_module("cupyops.examples.__main__")
    assert listing.main([]) == 0
    assert "python -m cupyops.examples.NAME" in capsys.readouterr().out
