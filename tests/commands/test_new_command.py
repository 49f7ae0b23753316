"""python -m cupyops new NAME: what it writes passes as it is, and nothing is written over."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cupyops.__main__ import main
from cupyops.commands.new import starter
from cupyops.torch import CHECKS
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


@pytest.fixture(scope="module")
def swish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    said = run(folder, "-m", "cupyops", "new", "swish")
    assert said == "swish.py: next, python -m pytest swish.py, and on a GPU python swish.py\n"
    assert [p.name for p in folder.iterdir()] == ["swish.py"]
    return folder


def test_the_file_passes_its_tests_as_it_is(swish: Path) -> None:
    """Every check runs, or is skipped by name."""
    said = run(swish, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "swish.py")
    match = re.search(r"(\d+) passed(?:, (\d+) skipped)?", said)
    assert match, said
    assert int(match[1]) + int(match[2] or 0) == 2 * len(CHECKS), said
    assert int(match[1]) >= len(CHECKS) // 2, said


# Pieces of the starter file, what breaks each, and the test that notices.
BROKEN = [
    ("convert<scalar_t>(x * sigmoid(x))", "convert<scalar_t>(x * sigmoid(-x))", "values"),
    ("(acc_t(1) + x * (acc_t(1) - s))", "(acc_t(1) - x * (acc_t(1) - s))", "gradients"),
    ("FORWARD(x, y, x.numel())", "FORWARD(x, y, x.numel() // 2 * 2)", "values"),
    ("x = x.contiguous()\n    y", "y", "strides"),
]


@pytest.mark.simulator
def test_its_tests_can_fail(tmp_path: Path) -> None:
    """In one process, for files of operators of their own: each takes longer to import PyTorch than to run its test."""
    asked = []
    for i, (right, wrong, check) in enumerate(BROKEN):
        text = starter(f"broken{i}")
        assert text.count(right) == 1
        (tmp_path / f"broken{i}.py").write_text(text.replace(right, wrong), encoding="utf-8")
        asked.append(f"broken{i}.py::test_broken{i}[{check}-cpu]")
    said = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *asked, status=1)
    assert [test for test in asked if f"FAILED {test}" not in said] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_benchmark_asks_for_a_gpu(swish: Path) -> None:
    assert run(swish, "swish.py", status=1) == "the benchmark needs a GPU\n"


@pytest.mark.gpu
def test_the_benchmark_prints_a_line_for_each(swish: Path) -> None:
    rows = [re.split(r"  +", line) for line in run(swish, "swish.py").splitlines()]
    timed = {(row[1], row[2]) for row in rows if len(row) > 5 and re.match(r"[\d.]+ \(", row[3])}
    assert timed == {(d, name) for d in ("forward", "backward") for name in ("this operator", "torch.compile")}


def test_nothing_of_the_placeholder_is_left() -> None:
    assert "NAME" not in starter("swish")


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
