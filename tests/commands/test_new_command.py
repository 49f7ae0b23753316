"""python -m cupyops new NAME: the written files pass their checks, and no file is overwritten."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cupyops.__main__ import main
from cupyops.commands.new import starter
from cupyops.commands.starters import KINDS
from cupyops.torch import CHECKS, CheckFailed, check_op
from tests import preloaded
from tests.conftest import NO_COMPILER
from tests.support import HANG

ROOT = Path(__file__).parents[2]


def run(folder: Path, *arguments: str, status: int = 0) -> str:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


def module_of(path: Path) -> Any:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_says_what_it_wrote_and_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, what in (
        ("elementwise", "y = x * sigmoid(x)"),
        ("tile", "y = the transpose of x, by tiles in shared memory"),
    ):
        path = tmp_path / f"my_{kind}.py"
        assert main(["new", path.stem, "--kind", kind, "--into", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"{path}: the operator my_{kind}, {what}, with its gradient, a check and a benchmark.\n")
        assert f"Next: python {path} checks the operator" in said
        assert f'"""my_{kind}: {what}, and its gradient, as a PyTorch operator.' in path.read_text(encoding="utf-8")


# PyTorch's forward mode imports a module that PyTorch has deprecated.
WITHOUT_A_WARNING = """
import runpy, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "`torch.jit.")
runpy.run_path("swish.py", run_name="__main__")
"""


@pytest.mark.thorough
def test_the_file_passes_its_check_as_it_is(tmp_path: Path) -> None:
    """The check does not need pytest."""
    (tmp_path / "pytest.py").write_text("1 / 0\n")
    (tmp_path / "swish.py").write_text(starter("swish"), encoding="utf-8")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = preloaded.run(["-c", WITHOUT_A_WARNING], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    match = re.search(r"(\d+) passed, 0 failed, (\d+) skipped", said)
    assert match, said
    backends = 1 + (not NO_COMPILER)
    assert int(match[1]) + int(match[2]) > backends * len(CHECKS) // 2, said
    if not torch.cuda.is_available():
        assert said.endswith("Checked. The benchmark needs a GPU.\n")


FEW = ["sanitizer", "values", "gradients", "strides", "empties"]


@pytest.mark.simulator
@pytest.mark.parametrize("kind", ["rows", "tile"])
def test_the_kernels_of_the_other_kinds_are_right(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"right_{kind}.py"
    path.write_text(starter(path.stem, kind), encoding="utf-8")
    module = module_of(path)
    report = check_op(
        getattr(module, path.stem), module.samples("cpu"), checks=FEW, backends=["simulator"], dtypes=["float32"]
    )
    assert len(report.passed) == len(FEW)


# Pieces of the starter files, a fault for each, and the check that finds it.
BROKEN = [
    ("elementwise", "convert<scalar_t>(x * sigmoid(x))", "convert<scalar_t>(x * sigmoid(-x))", "values"),
    ("elementwise", "(acc_t(1) + x * (acc_t(1) - s))", "(acc_t(1) - x * (acc_t(1) - s))", "gradients"),
    ("elementwise", "FORWARD(x, y, x.numel())", "FORWARD(x, y, x.numel() // 2 * 2)", "values"),
    ("elementwise", "def NAME(x):\n    x = x.contiguous()\n", "def NAME(x):\n", "strides"),
    ("rows", "r * r * mean))", "r * mean))", "gradients"),
    ("tile", " && row + threadIdx.x < M", "", "sanitizer"),
]


@pytest.mark.simulator
@pytest.mark.parametrize(("kind", "right", "wrong", "check"), BROKEN)
def test_its_check_can_fail(kind: str, right: str, wrong: str, check: str, tmp_path: Path) -> None:
    name = f"broken{[piece[1] for piece in BROKEN].index(right)}"
    right, wrong = (piece.replace("NAME", name) for piece in (right, wrong))
    text = starter(name, kind)
    assert text.count(right) == 1
    (tmp_path / f"{name}.py").write_text(text.replace(right, wrong), encoding="utf-8")
    module = module_of(tmp_path / f"{name}.py")
    with pytest.raises(CheckFailed) as failed:
        check_op(getattr(module, name), module.samples("cpu"), checks=check, backends=["simulator"], dtypes=["float32"])
    assert [row.check for row in failed.value.report.failed] == [check]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_benchmark_prints_a_line_for_each(kind: str, tmp_path: Path) -> None:
    (tmp_path / "swish.py").write_text(starter("swish", kind), encoding="utf-8")
    printed = run(tmp_path, "swish.py")
    rows = [re.split(r"  +", line) for line in printed.splitlines()]
    timed = {(row[1], row[2]) for row in rows if len(row) > 5 and re.match(r"[\d.]+ \(", row[3])}
    assert timed == {(d, n) for d in ("forward", "backward") for n in ("this operator", "torch.compile")}, printed


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_placeholders_is_left(kind: str) -> None:
    text = starter("swish", kind)
    assert not re.search(r"NAME|WHAT|USES|SAMPLE|LARGE", text)
    assert all(len(line) <= 120 for line in text.splitlines())
    imported = re.findall(r"^(?:import|from) ([\w.]+)", text, re.MULTILINE)
    assert imported == ["torch", "cupyops", "cupyops.torch"], "the file needs another package"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: NAME"),
        (["Swish"], "NAME must be a lower-case identifier and no keyword, got 'Swish'"),
        (["my-op"], "NAME must be a lower-case identifier"),
        (["2x"], "NAME must be a lower-case identifier"),
        (["lambda"], "NAME must be a lower-case identifier"),
        (["../swish"], "NAME must be a lower-case identifier"),
        (["sigmoid"], "NAME 'sigmoid' is already used"),
        (["json"], "NAME 'json' is already used"),
        (["there"], "there.py: it is there already"),
        (["swish", "--kind", "tiles"], "argument --kind: invalid choice: 'tiles'"),
        (["swish", "--into", "absent"], "absent/swish.py: No such file or directory"),
    ],
)
def test_mistakes_end_with_one_line_and_status_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("mine")
    with pytest.raises(SystemExit) as status:
        main(["new", *arguments])
    assert status.value.code == 2
    output = capsys.readouterr()
    assert output.err.startswith("python -m cupyops new: error: ")
    assert words in output.err
    assert output.err.count("\n") == 1
    assert [p.read_text() for p in tmp_path.iterdir()] == ["mine"]


def test_it_goes_into_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "swish", "--into", str(tmp_path)]) == 0
    assert (tmp_path / "swish.py").read_text(encoding="utf-8") == starter("swish")
    assert str(tmp_path / "swish.py") in capsys.readouterr().out
