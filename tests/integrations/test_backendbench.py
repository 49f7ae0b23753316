"""The folder of the shipped operators for BackendBench: each file has a function that gives what ATen's operator gives."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cupyops.integrations import backendbench

X, W = torch.randn(5, 7), torch.randn(7)
ARGUMENTS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "gelu.default": [((X,), {}), ((X,), {"approximate": "tanh"})],
    "gelu_backward.default": [((X, 2 * X), {}), ((X, 2 * X), {"approximate": "tanh"})],
    "add.Tensor": [((X, W), {}), ((X, W), {"alpha": 3})],
    "_softmax.default": [((X, -1, False), {}), ((X, 0, False), {})],
    "_log_softmax.default": [((X, -1, False), {})],
    "native_layer_norm.default": [((X, [7], W, None, 1e-5), {}), ((X.bfloat16(), [7], None, None, 0.5), {})],
    "mm.default": [((X, X.t()), {})],
    "addmm.default": [((W, X, torch.randn(7, 7)), {}), ((W, X, torch.randn(7, 7)), {"beta": 2, "alpha": 0.5})],
}


@pytest.mark.parametrize("overload", backendbench.OPERATORS)
def test_a_function_gives_what_aten_gives(overload: str) -> None:
    name, kind = overload.split(".")
    theirs = getattr(getattr(torch.ops.aten, name), kind)
    for args, kwargs in ARGUMENTS[overload]:
        torch.testing.assert_close(backendbench.OPERATORS[overload](*args, **kwargs), theirs(*args, **kwargs))


def test_each_file_has_the_function_by_the_name_that_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["backendbench", str(tmp_path)])
    with pytest.warns(RuntimeWarning, match="found in sys.modules"):
        runpy.run_module("cupyops.integrations.backendbench", run_name="__main__")
    found = {
        path.parent.name: runpy.run_path(str(path))[f"{path.parent.name}_kernel_impl"]
        for path in tmp_path.glob("*/*_implementation_v1.py")
    }
    assert {name.replace("__", "."): function for name, function in found.items()} == backendbench.OPERATORS


def test_backendbench_loads_the_folder_and_its_suite_is_passed(tmp_path: Path) -> None:
    pytest.importorskip("BackendBench")
    from BackendBench.backends.directory import DirectoryBackend
    from BackendBench.eval import eval_one_op

    backendbench.write(tmp_path)
    backend = DirectoryBackend(str(tmp_path))
    assert len(backend.compiled_kernels) == len(backendbench.OPERATORS)

    class Test:
        def __init__(self, args: Any, kwargs: Any) -> None:
            self.args, self.kwargs = args, kwargs

    for overload, arguments in ARGUMENTS.items():
        name, kind = overload.split(".")
        op = getattr(getattr(torch.ops.aten, name), kind)
        right, *_ = eval_one_op(op, backend[op], [Test(*given) for given in arguments], [])
        assert right == 1, overload
