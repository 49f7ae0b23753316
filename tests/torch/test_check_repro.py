"""save_repro writes a file for each fault that check_op finds, and in a new process the file fails in the same way."""

import json
import os
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import cupyops
from cupyops import LaunchError, save_repro
from cupyops.torch import CheckFailed, check_op
from tests import preloaded
from tests.support import without_python_file
from tests.torch import faulty_ops as faulty
from tests.torch import test_check_op as planted
from tests.torch.faulty_ops import Mix
from tests.torch.finding import samples

ROOT = Path(__file__).parents[2]
# The operator with a fault, as an attribute of this module: a file imports it.
WRONG = Mix(body=lambda x, w, factor: faulty.body(x, w, factor * 1.001)).operator()
WRONG_TWICE = Mix(
    body=lambda x, w, factor: faulty.in_autocast(x, w, factor * 1.001),
).operator()

# Runs files, and prints the type of the error of each and its words: those of the first failed check, or the message.
DRIVER = """
import json, runpy, sys
found = {}
for path in sys.argv[1:]:
    try:
        runpy.run_path(path)
    except Exception as error:
        report = getattr(error, "report", None)
        found[path] = [type(error).__name__, report.failed[0].words if report else str(error)]
print(json.dumps(found))
"""
# Faults that take little time: a launch and a check of each backend.
SAMPLE = ("a bound off by one", "returns nothing", "a wrong factor", "takes every tensor for contiguous, and is told")
CHOSEN = tuple(planted.PLANTED) if os.environ.get("CUPYOPS_TEST_REPRO") == "1" else SAMPLE


def alike(words: str) -> str:
    """The first line, without the parts that differ between processes: the number of an operator, the Python file of
    the text, and the values of threads."""
    first = re.sub(r"mix\d+", "mix", words.splitlines()[0])
    first = without_python_file(first)
    return re.sub(r"-?\d+(\.\d+)?", "number", first) if "in one of 4 threads" in first else first


@pytest.mark.simulator
def test_a_fault_that_is_found_fails_alike_in_a_fresh_process(tmp_path: Path) -> None:
    """CUPYOPS_TEST_REPRO=1 tries every planted fault, which takes minutes."""
    if any(planted.PLANTED[name][0] == "compiles" for name in CHOSEN):
        pytest.importorskip("cupy")
    wanted, paths = {}, {}
    for number, name in enumerate(CHOSEN):
        check, mix, _ = planted.PLANTED[name]
        with pytest.raises(CheckFailed) as caught:
            check_op(mix().operator(), samples(), checks=check, backends=["simulator"])
        path = tmp_path / f"{number}.py"
        row = caught.value.report.failed[0]
        at = f"tests.torch.test_check_op:PLANTED[{name!r}][1]().operator()"
        launch = isinstance(row.error.__cause__, LaunchError)
        paths[name] = str(save_repro(caught.value, path, operator=None if launch else at))
        error = row.error.__cause__ if launch else caught.value
        wanted[name] = [type(error).__name__, alike(str(error) if launch else row.words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = preloaded.run(["-c", DRIVER, *paths.values()], cwd=tmp_path, env=environment)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(paths.values()), done.stdout
    assert {name: [found[path][0], alike(found[path][1])] for name, path in paths.items()} == wanted


def failing(**options: Any) -> CheckFailed:
    with pytest.raises(CheckFailed) as caught:
        check_op(WRONG, samples(), **{"checks": "values", "backends": ["simulator"], **options})
    return caught.value


@pytest.mark.simulator
def test_the_file_of_a_check_imports_the_operator_and_has_the_samples(tmp_path: Path) -> None:
    error = failing(tolerance=1.5, dtypes=["float32"])
    path = save_repro(error, tmp_path / "repro.py")
    text = path.read_text()
    for piece in (
        "from tests.torch.test_check_repro import WRONG as operator",
        f"sys.path.append({str(ROOT)!r})",
        "checks=['values'], backends=['simulator'], tolerance=1.5, dtypes=['float32'])",
    ):
        assert piece in text
    with pytest.raises(CheckFailed) as caught:
        runpy.run_path(str(path))
    assert caught.value.report.failed[0].words == error.report.failed[0].words


@pytest.mark.simulator
def test_a_report_without_an_exception_is_written_too(tmp_path: Path) -> None:
    names = ["values", "autocast"]
    report = check_op(WRONG_TWICE, samples(), checks=names, backends=["simulator"], raises=False)
    assert [row.check for row in report.failed] == names
    path = save_repro(report, tmp_path / "repro.py", check="autocast")
    assert "checks=['autocast']" in path.read_text()
    with pytest.raises(
        ValueError, match=r"`check` must be a failed check, values or autocast; did you mean 'values'\?"
    ):
        save_repro(report, tmp_path / "repro.py", check="value")
    with pytest.raises(ValueError, match="`operator` must be 'module:expression', got 'WRONG'"):
        save_repro(report, tmp_path / "repro.py", operator="WRONG")


@pytest.mark.simulator
def test_an_operator_that_no_module_has_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed) as caught:
        check_op(Mix(body=lambda x, w, factor: None).operator(), samples(), checks="returned", backends=["simulator"])
    with pytest.raises(
        ValueError, match=r"no module has faulty::mix\d+ as an attribute, .* operator='module:expression'"
    ):
        save_repro(caught.value, tmp_path / "repro.py")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.simulator
def test_samples_that_require_gradients_and_have_the_negative_bit(tmp_path: Path) -> None:
    x, w = torch.randn(19, 7, dtype=torch.complex64).conj().imag, torch.randn(19, 7, requires_grad=True)
    assert x.is_neg()
    with pytest.raises(CheckFailed) as caught:
        check_op(WRONG, (x, w, 0.5), checks="values", backends=["simulator"])
    path = save_repro(caught.value, tmp_path / "repro.py")
    assert ".requires_grad_()" in path.read_text()
    with pytest.raises(CheckFailed) as again:
        runpy.run_path(str(path))
    assert again.value.report.failed[0].words == caught.value.report.failed[0].words


@pytest.mark.simulator
def test_the_folder_of_the_variable_gets_a_file_of_each_failed_check_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPYOPS_REPRO", str(tmp_path))
    error = failing()
    (path,) = tmp_path.iterdir()
    assert path.read_text().startswith('"""Repeats a failure: values (simulator) of faulty::mix')
    if hasattr(error, "__notes__"):
        assert error.__notes__ == [f"{path} repeats this failure."]


def test_a_report_still_goes_to_another_process() -> None:
    import pickle

    checked = cupyops.torch.check.repro.Checked(WRONG, samples(), 1.0, None, ())
    assert pickle.loads(pickle.dumps(checked)) is None
