"""Functions written as text: one place writes them, a traceback shows their lines, and they can be printed."""

import ast
import inspect
import linecache
import traceback
from pathlib import Path
from typing import Any

import numpy
import pytest

import cupyops
from cupyops import Kernel, Threads
from cupyops.codegen import source_of, write
from cupyops.launch.generated import TensorAccess, write_launch
from cupyops.launch.memo import memo

TEXT = """
extern "C" __global__ void scale(
    const float* x,  // (n)
    float* y,        // (n)
    float factor, long long n) {}
"""


def failing() -> Any:
    return write("failing", "failing", ["def failing(x):", "    y = 1 + x", "    return y / 0"], {})


def test_a_traceback_shows_the_line_that_fails() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        failing()(1)
    shown = "".join(traceback.format_exception(caught.value))
    assert 'File "<cupyops generated: failing>", line 3, in failing' in shown
    assert "return y / 0" in shown


def test_the_text_outlives_a_check_of_all_files() -> None:
    function = failing()
    linecache.checkcache()
    assert (
        inspect.getsource(function)
        == source_of(function) + "\n"
        == "def failing(x):\n    y = 1 + x\n    return y / 0\n"
    )


def test_other_functions_of_one_name_keep_their_own_text() -> None:
    functions = [write("constant", "constant", [f"def constant(): return {i}"], {}) for i in (1, 2, 1)]
    assert [source_of(f) for f in functions] == [f"def constant(): return {i}" for i in (1, 2, 1)]
    names = [f.__code__.co_filename for f in functions]
    assert names[0] == names[2] != names[1], "equal texts share an entry, and other texts do not"


def test_a_function_of_a_file_is_refused() -> None:
    for other in (failing, len):
        with pytest.raises(ValueError, match="was not written by cupyops"):
            source_of(other)


def test_what_is_written_can_be_printed() -> None:
    kernel = Kernel(TEXT, "scale", Threads("n"))
    tensors = TensorAccess(frozenset(), lambda: 0, lambda device: 0, lambda: 1)
    checked, vouched, _ = write_launch(kernel.signature, kernel.geometry, {}, tensors, lambda *a: None)
    assert source_of(checked).startswith("def launch(x, y, factor, n):")
    assert "is_contiguous" in source_of(checked)
    assert "is_contiguous" not in source_of(vouched)
    assert source_of(memo("x")(planned)).startswith("def planned(x):")


def planned(x: Any) -> Any:
    raise ValueError(x)


def test_a_launch_takes_its_arguments_by_name_and_falls_back_with_all_of_them() -> None:
    kernel = Kernel(TEXT, "scale", Threads("n"))
    tensors = TensorAccess(frozenset(), lambda: 0, lambda device: 0, lambda: 1)
    fallen: list[tuple[Any, ...]] = []
    checked, vouched, _ = write_launch(kernel.signature, kernel.geometry, {}, tensors, lambda *a: fallen.append(a))
    for launch in (checked, vouched):
        launch(n=4, y="y", x="x", factor=2.0)
    assert fallen == [("x", "y", 2.0, 4)] * 2


@pytest.mark.simulator
def test_the_checked_launches_take_names_too() -> None:
    text = TEXT.replace(
        "{}", "{ long long i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = factor * x[i]; }"
    )
    kernel, x = Kernel(text, "scale", Threads("n")), numpy.ones(4, "float32")
    tuned = cupyops.Tuned([kernel])
    with cupyops.simulate():
        for launch in (kernel.launch, kernel.launch_vouched, tuned.launch, tuned.launch_vouched):
            y = numpy.zeros(4, "float32")
            launch(n=4, y=y, x=x, factor=2.0)
            assert (y == 2).all()


def test_nothing_else_compiles_python() -> None:
    """Text that is compiled elsewhere has no lines in a traceback."""
    package = Path(cupyops.__file__).parent
    found = set()
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("exec", "eval", "compile")
            ):
                found.add(path.relative_to(package).as_posix())
    assert found == {"codegen.py"}
