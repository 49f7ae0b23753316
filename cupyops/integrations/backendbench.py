"""The shipped operators as a folder of BackendBench: ``python -m cupyops.integrations.backendbench FOLDER`` writes it.

BackendBench judges a folder by its own tool, with ``--backend directory --ops-directory FOLDER``. A function here has the
arguments of an operator of ATen.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autograd_bridge import add2, linear
from autograd_bridge import gelu as our_gelu
from autograd_bridge import gelu_backward as our_gelu_backward
from autograd_bridge import log_softmax as our_log_softmax
from autograd_bridge import softmax as our_softmax
from cupyops.torch.ops.layer_norm import _layer_norm  # with the statistics, which layer_norm does not return

__all__ = ["OPERATORS", "write"]

MODULE = "cupyops.integrations.backendbench"  # this module, also where it runs as __main__


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return our_gelu(x, approximate)


def gelu_backward(grad_y: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    return our_gelu_backward(grad_y, x, approximate)


def add(x: Tensor, other: Any, *, alpha: complex = 1) -> Tensor:
    return add2(x, other, alpha=alpha)


def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return our_softmax(x, dim, torch.float32 if half_to_float else None)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return our_log_softmax(x, dim, torch.float32 if half_to_float else None)


def native_layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    y, stats = _layer_norm(x, weight, bias, normalized_shape, eps)
    mean, rstd = (stats if x.is_cuda else stats.to(x.dtype)).unbind()  # PyTorch rounds them on a CPU
    return y, mean, rstd


def mm(a: Tensor, b: Tensor) -> Tensor:
    return linear(a, b.t())


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: complex = 1, alpha: complex = 1) -> Tensor:
    if beta == alpha == 1 and bias.shape == (b.shape[1],):
        return linear(a, b.t(), bias)
    return torch.addmm(bias, a, b, beta=beta, alpha=alpha)  # not a linear layer


OPERATORS: dict[str, Callable[..., Any]] = {
    "gelu.default": gelu,
    "gelu_backward.default": gelu_backward,
    "add.Tensor": add,
    "_softmax.default": softmax,
    "_log_softmax.default": log_softmax,
    "native_layer_norm.default": native_layer_norm,
    "mm.default": mm,
    "addmm.default": addmm,
}
"""The function for each overload of ATen's operators."""


def write(folder: Path) -> None:
    """Writes a file for each of :data:`OPERATORS`, which imports the function from here."""
    for overload, function in OPERATORS.items():
        name = overload.replace(".", "__")
        path = folder / name / f"{name}_implementation_v1.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"from {MODULE} import {function.__name__} as {name}_kernel_impl\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
