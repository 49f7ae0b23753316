"""Ctrl-C before a program's own try, during imports that take seconds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The interrupt comes when a module is looked for, so at the same moment in every run.
INTERRUPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        worker = "--multiprocessing-fork" in sys.orig_argv
        if name == os.environ["INTERRUPT_AT"] and worker == (os.environ.get("INTERRUPT_WHOM") == "workers"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""
EXAMPLES = ["add_model", "char_gpt", "lenet5", "linear_regression", "llama", "lltm_benchmark", "own_op", "sequence"]


def run(
    arguments: list[str], at: str, folder: Path, *, python: tuple[str, ...] = ("-m",)
) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(INTERRUPT)
    path = os.pathsep.join([str(folder), str(ROOT), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, *python, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "INTERRUPT_AT": at},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("example", "at"), [*((example, "torch") for example in EXAMPLES), ("lenet5", "cupyops"), ("char_gpt", "numpy")]
)
def test_an_example_that_is_importing(example: str, at: str, tmp_path: Path) -> None:
    done = run([f"examples.{example}"], at, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("example", "at"), [("lenet5", "sklearn"), ("sequence", "sklearn"), ("lenet5", "examples.fast")]
)
def test_an_example_that_loads_its_data(example: str, at: str, tmp_path: Path) -> None:
    if at == "sklearn":
        pytest.importorskip("sklearn")
    options = ["--task", "digits"] if example == "sequence" else []
    done = run([f"examples.{example}", "--device", "cpu", *options], at, tmp_path)
    assert done.returncode == 130
    said = done.stdout + done.stderr
    assert said.count("Interrupted.") == 1
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("at", "python"),
    [
        ("cupyops.ops.add2", ("-X", "utf8", "-m")),
        *((at, ("-m",)) for at in ("cupyops.launch.kernel", "argparse", "cupyops.commands.doctor")),
    ],
)
def test_a_command(at: str, python: tuple[str, ...], tmp_path: Path) -> None:
    done = run(["cupyops", "doctor"], at, tmp_path, python=python)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_command_at_work(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    done = run(["cupyops", "compile", "--arch", "80", "--jobs", "2"], "cupy", tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_processes_that_are_starting_leave_ctrl_c_to_their_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cupy")
    monkeypatch.setenv("INTERRUPT_WHOM", "workers")
    options = ["--arch", "80", "--kernels", "add2", "--dtypes", "float32", "--jobs", "2"]
    done = run(["cupyops", "compile", *options], "cupyops", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_other_errors_and_other_programs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import cupyops\n")
    (tmp_path / "mine" / "program.py").write_text("import sys\nassert sys.excepthook is sys.__excepthook__\n1 / 0\n")
    done = run(["mine.program"], "nothing", tmp_path)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    (tmp_path / "torch.py").write_text("1 / 0\n")
    done = run(["examples.lenet5"], "nothing", tmp_path)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "Traceback" in done.stderr
