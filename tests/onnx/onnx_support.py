"""Helpers of the tests of ONNX: models from functions, files run by onnxruntime, and a text of a file's structure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("onnxscript", minversion="0.7")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


class Model(nn.Module):
    """A model whose forward is a function; tensors given by name are its parameters, which come first."""

    def __init__(self, function: Callable[..., Any], **parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            self.register_buffer(name, value)
        self.eval()

    def forward(self, *args: Any) -> Any:
        return self.function(*self.buffers(), *args)


def run(path: Path, *inputs: Tensor) -> list[Tensor]:
    """The file's results, as onnxruntime gives them."""
    from cupyops.torch.onnx.check import from_runtime, to_runtime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    found = session.run_with_ort_values(None, {n: to_runtime(x) for n, x in zip(names, inputs, strict=True)})
    return [from_runtime(value) for value in found]


def nodes(path: Path) -> list[str]:
    """The file's nodes in order: ``Gelu``, or ``cupyops::gelu`` in another domain than ONNX's own."""
    graph = onnx.load(path).graph
    return [f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in graph.node]


def functions(path: Path) -> dict[tuple[str, str, str], list[str]]:
    """The nodes of each function in the file, by domain, name and overload."""
    return {(f.domain, f.name, f.overload): [n.op_type for n in f.node] for f in onnx.load(path).functions}


def leftovers(folder: Path) -> list[str]:
    """The contents of a folder, hidden files included."""
    return sorted(p.name for p in folder.iterdir())


def free(name: str = "batch") -> dict[int, str]:
    """A first dimension that stays free."""
    return {0: name}


FLOATS = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
FORMS = pytest.mark.parametrize("custom_domain", [False, True], ids=["standard", "custom domain"])
