"""The PyTorch operator log_softmax, made by :func:`cupyops.torch.row_reduce`."""

from typing import Any

import torch
from torch import Tensor

from cupyops.torch.programs.row_reduce import row_reduce

from .softmax import AHEAD, AUTOCAST, along, not_a_tensor

__all__ = ["log_softmax"]


def _reference(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def _onnx(op: Any, x: Any) -> Any:
    return op.LogSoftmax(x, axis=-1)


# x - m comes first, since the subtraction is exact where digits cancel.
_log_softmax = row_reduce(
    "m = max(x); l = log(sum(exp(x - m))); y = x - m - l",
    backward="d = sum(grad_y); grad_x = grad_y - exp(y) * d",
    name="cupyops::log_softmax",
    reference=_reference,
    compiled="auto",
    autocast=AUTOCAST,
    onnx=_onnx,
    ahead=AHEAD,
)


def log_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Computes the logarithm of softmax along a dimension; a drop-in for ``torch.log_softmax``.

    y = x - max x - log Σ e^(x - max x), with maximum and sum along ``dim``.

    Memory traffic, layouts, autocast, arguments and errors are those of :func:`.softmax.softmax`.

    Args:
        x: float16, bfloat16, float32 or float64, any strides.
        dim: the dimension; a negative one counts from the last.
        dtype: the dtype to which x is converted first, and which the result has; by default that of x.

    Returns:
        A new tensor of x's shape. The result is rounded once.

    Raises:
        TypeError: x is not a floating tensor, or ``dim`` is not an integer.
        IndexError: x has no dimension ``dim``. The message is PyTorch's.

    >>> log_softmax(torch.tensor([[0.0, 0.0], [0.0, 1.0]]), 1)
    tensor([[-0.6931, -0.6931],
            [-1.3133, -0.3133]])
    """
    if not isinstance(x, Tensor):
        return not_a_tensor(log_softmax, x, dim, dtype)
    return along("log_softmax", _log_softmax.call, x, dim, dtype)
