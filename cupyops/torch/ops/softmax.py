"""The PyTorch operator softmax, made by :func:`cupyops.torch.row_reduce`."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cupyops.errors import expected
from cupyops.torch.core.tensors import symbolic_call
from cupyops.torch.programs.row_reduce import row_reduce

__all__ = ["softmax"]

# Row lengths whose kernels are compiled ahead: a row in a warp, in a block, and in a cluster of blocks.
AHEAD = (1024, 8192, 65536)
# Autocast converts the tensor of PyTorch's softmax to float32 on a GPU, and never on a CPU.
AUTOCAST = {"cuda": "float32"}


def _reference(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _onnx(op: Any, x: Any) -> Any:
    return op.Softmax(x, axis=-1)


# The sum of e is computed in one pass with the maximum. The backward reads y in place of x, as PyTorch's does.
_softmax = row_reduce(
    "m = max(x); e = exp(x - m); r = 1 / sum(e); y = e * r",
    backward="d = sum(grad_y * y); grad_x = y * (grad_y - d)",
    name="cupyops::softmax",
    reference=_reference,
    compiled="auto",
    autocast=AUTOCAST,
    onnx=_onnx,
    ahead=AHEAD,
)


def softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Computes softmax along a dimension; a drop-in for ``torch.softmax``.

    y = e^(x - max x)/Σ e^(x - max x), with maximum and sum along ``dim``.

    The kernel reads x once. If ``dim`` is not the last dimension, x is copied to a tensor in which it is the last, and
    the result is copied back. The bits of a row do not depend on the other rows. Under autocast on a GPU the operation
    runs in float32, as PyTorch's own does.

    Args:
        x: float16, bfloat16, float32 or float64, any strides.
        dim: the dimension; a negative one counts from the last.
        dtype: the dtype to which x is converted first, and which the result has; by default that of x.

    Returns:
        A new tensor of x's shape. For float16 and bfloat16 the arithmetic is float32, and the result is rounded once.
        A slice whose maximum is infinite or NaN is NaN.

    Raises:
        TypeError: x is not a floating tensor, or ``dim`` is not an integer.
        IndexError: x has no dimension ``dim``. The message is PyTorch's.
        MissingDependencyError: the tensor is on a GPU, and CuPy or a library that CuPy needs is missing. The message
            ends with the command that installs it.

    >>> softmax(torch.tensor([[0.0, 0.0], [0.0, 1.0]]), 1)
    tensor([[0.5000, 0.5000],
            [0.2689, 0.7311]])
    """
    if not isinstance(x, Tensor):
        return not_a_tensor(softmax, x, dim, dtype)
    return along("softmax", _softmax.call, x, dim, dtype)


def not_a_tensor(function: Callable[..., Tensor], x: Any, dim: int, dtype: torch.dtype | None) -> Any:
    """Returns the proxy of a symbolic trace.

    Raises:
        TypeError: x is not a proxy.
    """
    if (proxy := symbolic_call(function, (x, dim, dtype))) is not None:
        return proxy
    raise TypeError(expected(function.__name__, "x", "be a Tensor", type(x).__name__))


def along(name: str, call: Callable[[Tensor], Tensor], x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    """Returns the result of an operator on rows along a dimension of x.

    Args:
        name: the operator's name, for messages.
        call: the operator on the last dimension.
        x, dim, dtype: the arguments of :func:`softmax`.

    Raises:
        TypeError, IndexError: as :func:`softmax`; TypeError also if ``dim`` is not an integer.
    """
    if type(dim) is not int:
        # PyTorch decides which other types can be a dimension.
        getattr(torch, name)(torch.empty((1,) * x.dim()), dim)
        dim = operator.index(dim)
    most = max(x.dim(), 1)
    if not -most <= dim < most:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-most}, {most - 1}], but got {dim})")
    if dtype is not None:
        x = x.to(dtype)
    if not x.is_floating_point():
        raise TypeError(expected(name, "x", "be a floating tensor", x.dtype))
    if x.dim() == 0:
        y = call(x.view(1)).view(())
    elif dim in (-1, x.dim() - 1):
        y = call(x)
    else:
        y = call(x.movedim(dim, -1)).movedim(-1, dim).contiguous()
    return y if dtype is None else y.to(dtype)
