"""RMS norm with ATen's contract: the forward returns 1/√(mean x² + eps) for the backward.

The operator ``cupyops::rms_norm`` computes this value again in its backward. ATen's backward has no eps, so it cannot.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from cupyops.arrays import check_devices
from cupyops.launch.memo import memo
from cupyops.ops.checks import check_floating, check_like
from cupyops.ops.layer_norm.checks import check_normalized_shape, stats_shape
from cupyops.programs.expressions import parse
from cupyops.programs.row_config import kernel_of
from cupyops.programs.row_source import text_of
from cupyops.programs.rows import RowProgram
from cupyops.torch.core.tensors import DTYPE_NAMES
from cupyops.torch.programs.row_reduce import body_of

__all__ = ["backward", "check", "check_backward", "forward"]

_EPS, _EPS_FLOAT64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


def _forward_program(weight: bool) -> RowProgram:
    columns = ("weight",) if weight else ()
    formula = f"rstd = rsqrt(sum(x * x) / N + eps); y = x * rstd{' * weight' if weight else ''}"
    name = "fused_rms_norm" if weight else "fused_rms_norm_without_weight"
    return RowProgram(name, tuple(parse(formula, name)), ("x",), (), (), columns, ("eps",), ("y", "rstd"), ("rstd",))


def _backward_program(weight: bool) -> RowProgram:
    columns = ("weight",) if weight else ()
    g = "grad_y * weight" if weight else "grad_y"
    # fma fixes which of two products is fused with the difference, as in cupyops::rms_norm, so both operators give the
    # same bits.
    formula = f"d = sum({g} * x) / N * rstd * rstd; grad_x = rstd * fma(-x, d, {g})"
    formula += "; grad_weight = column_sum(grad_y * x * rstd)" if weight else ""
    name = "fused_rms_norm_backward" if weight else "fused_rms_norm_without_weight_backward"
    results = ("grad_x", "grad_weight") if weight else ("grad_x",)
    like = (("grad_x", "x"), ("grad_weight", "weight"))
    rows = ("rstd",)
    return RowProgram(name, tuple(parse(formula, name)), ("grad_y", "x"), rows, (), columns, (), results, like=like)


def _body(program: RowProgram, kinds: Sequence[str]) -> Callable[..., Any]:
    """Returns the function of the program's tensors and numbers, and of a bool for each of several gradients."""
    text = text_of(program)
    wants = program.results == ("grad_x", "grad_weight")
    return body_of(program, cache(partial(kernel_of, program, text)), kinds, wants=wants)


# By whether there is a weight.
_FORWARD = {weight: _body(_forward_program(weight), ("element", "row")) for weight in (True, False)}
_BACKWARD = {
    True: _body(_backward_program(True), ("element", "column")),
    False: _body(_backward_program(False), ("element",)),
}


def forward(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """Returns y = x·rstd·weight in x's dtype, and rstd = 1/√(mean x² + eps) in float32 (float64 for float64).

    Args:
        x: the operand.
        shape: the shape of a row.
        weight: of shape ``shape`` and x's dtype, or None.
        eps: the number added to the mean; None is the machine epsilon of rstd's dtype.

    Raises:
        RuntimeError, TypeError, ValueError: as :func:`check`.
    """
    aside, rows, n = _checked(x, weight, tuple(shape))
    if eps is None:
        eps = _EPS_FLOAT64 if x.dtype is torch.float64 else _EPS
    columns = () if weight is None else (weight.reshape(n),)
    y, rstd = _FORWARD[weight is not None](x.reshape(rows), *columns, eps)
    return y.view(x.shape), rstd.view(aside)


@memo("x", "weight?")
def _checked(
    x: Tensor, weight: Tensor | None, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Returns the shape of the statistics, the shape of x with rows of one dimension, and the shape of a row then."""
    check(x, shape, weight)
    n = math.prod(shape)
    return stats_shape(x, shape, 1)[1:], (*x.shape[: x.dim() - len(shape)], n), (n,)


def backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor | None, want_x: bool, want_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Returns the gradients of x and of the weight. An unwanted gradient is None.

    With g = grad·weight, the gradient of x is rstd·(g - x·rstd²·mean(g·x)). The gradient of the weight is the sum of
    grad·x·rstd over the rows, in a fixed order.

    Args:
        grad: the gradient of y, in x's shape and dtype.
        x, shape, weight: the arguments of :func:`forward`.
        rstd: the second result of :func:`forward`.
        want_x, want_weight: which gradients are wanted.

    Raises:
        RuntimeError, TypeError, ValueError: as :func:`check_backward`.
    """
    want_weight = want_weight and weight is not None
    rows, n = _checked_backward(grad, x, rstd, weight, tuple(shape))
    if not (want_x or want_weight):
        return None, None
    tensors = grad.reshape(rows), x.reshape(rows), rstd.reshape(rows[:-1])
    if weight is None:
        return _BACKWARD[False](*tensors).view(x.shape), None
    grad_x, grad_weight = _BACKWARD[True](*tensors, weight.reshape(n), want_x, want_weight)
    return grad_x.view(x.shape) if want_x else None, grad_weight.view(weight.shape) if want_weight else None


@memo("grad", "x", "rstd", "weight?")
def _checked_backward(
    grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor | None, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    check_backward(grad, x, shape, rstd, weight)
    n = math.prod(shape)
    return (*x.shape[: x.dim() - len(shape)], n), (n,)


def check(x: Tensor, shape: Sequence[int], weight: Tensor | None) -> None:
    """Raises unless the kernels take the operands.

    Raises:
        RuntimeError: ``shape`` is not the shape of x's last dimensions and of the weight.
        TypeError: x is not floating, or the weight has another dtype.
        ValueError: a row has no elements or more than 2^31 - 2^16, or the tensors are on different devices.
    """
    check_normalized_shape("rms_norm", x, shape, weight=weight)
    check_floating("rms_norm", "x", DTYPE_NAMES[x.dtype])
    check_like("rms_norm", x, weight=(weight, tuple(shape)))
    check_devices("rms_norm", x=x, weight=weight)
    if math.prod(shape) == 0:
        raise ValueError(f"rms_norm: a row must have elements, got normalized_shape = {list(shape)}")


def check_backward(grad: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor | None) -> None:
    """Raises unless the kernels take the operands of a backward.

    Raises:
        ValueError: grad has another shape than x, or rstd does not have the shape of x's statistics; or as
            :func:`check`.
        TypeError: grad has another dtype than x, or rstd is not floating; or as :func:`check`.
        RuntimeError: as :func:`check`.
    """
    check(x, shape, weight)
    check_like("rms_norm", x, grad=(grad, x.shape))
    check_like("rms_norm", rstd, rstd=(rstd, stats_shape(x, shape, 1)[1:]))
    check_floating("rms_norm", "rstd", DTYPE_NAMES[rstd.dtype])
    check_devices("rms_norm", x=x, grad=grad, rstd=rstd)
