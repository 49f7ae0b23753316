"""RMS norm with ATen's contract: the forward returns 1/√(mean x² + eps) for the backward.

The operator ``cupyops::rms_norm`` computes this value again in its backward. ATen's backward has no eps, so it cannot.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from cupyops.arrays import check_devices, device_of
from cupyops.dtypes import DTYPES
from cupyops.launch.kernel import Kernel
from cupyops.launch.memo import memo
from cupyops.ops.checks import check_floating, check_like
from cupyops.ops.layer_norm.checks import check_normalized_shape, stats_shape
from cupyops.programs.expressions import parse
from cupyops.programs.rows import ProgramConfig, RowProgram, config_of, kernel_of, text_of
from cupyops.torch.core.tensors import DTYPE_NAMES, TorchLibrary

__all__ = ["backward", "check", "check_backward", "forward"]

_EPS, _EPS_FLOAT64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps
_library = TorchLibrary()


def _forward_program(weight: bool) -> RowProgram:
    columns = ("weight",) if weight else ()
    formula = f"rstd = rsqrt(sum(x * x) / N + eps); y = x * rstd{' * weight' if weight else ''}"
    name = "fused_rms_norm" if weight else "fused_rms_norm_without_weight"
    return RowProgram(name, tuple(parse(formula, name)), ("x",), (), (), columns, ("eps",), ("y", "rstd"), ("rstd",))


def _backward_program(weight: bool) -> RowProgram:
    columns = ("weight",) if weight else ()
    g = "grad_y * weight" if weight else "grad_y"
    formula = f"d = sum({g} * x) / N * rstd * rstd; grad_x = rstd * ({g} - x * d)"
    formula += "; grad_weight = column_sum(grad_y * x * rstd)" if weight else ""
    name = "fused_rms_norm_backward" if weight else "fused_rms_norm_without_weight_backward"
    results = ("grad_x", "grad_weight") if weight else ("grad_x",)
    return RowProgram(name, tuple(parse(formula, name)), ("grad_y", "x"), ("rstd",), (), columns, (), results)


# By whether there is a weight.
_FORWARD = {weight: _forward_program(weight) for weight in (True, False)}
_BACKWARD = {weight: _backward_program(weight) for weight in (True, False)}


@cache
def _forward_kernel(weight: bool, config: ProgramConfig, dtype: str) -> Kernel:
    return kernel_of(_FORWARD[weight], text_of(_FORWARD[weight]), config, dtype)


@cache
def _backward_kernel(weight: bool, config: ProgramConfig, dtype: str) -> Kernel:
    return kernel_of(_BACKWARD[weight], text_of(_BACKWARD[weight]), config, dtype)


class _Plan(NamedTuple):
    """The checked configuration of a forward.

    Attributes:
        kernel: the kernel; None if there are no rows.
        aside: the shape of the statistics.
        acc: the dtype of the statistics.
        sizes: the values of the kernel's size parameters.
    """

    kernel: Kernel | None
    aside: tuple[int, ...]
    acc: str
    sizes: tuple[int, ...]


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
    kernel, aside, acc, sizes = _forward_plan(x, weight, tuple(shape))
    if eps is None:
        eps = _EPS_FLOAT64 if acc == "float64" else _EPS
    x = x.contiguous()
    y, rstd = torch.empty_like(x), _library.empty(aside, acc, x)
    if kernel is not None:
        operands = (x,) if weight is None else (x, weight.contiguous())
        kernel.launch_vouched(*operands, y, rstd, eps, *sizes)
    return y, rstd


@memo("x", "weight?")
def _forward_plan(x: Tensor, weight: Tensor | None, shape: tuple[int, ...]) -> _Plan:
    check(x, shape, weight)
    dtype, aside = DTYPE_NAMES[x.dtype], stats_shape(x, shape, 1)[1:]
    rows, n, acc = math.prod(aside), math.prod(shape), DTYPES[dtype].acc
    if rows == 0:
        return _Plan(None, aside, acc, ())
    config = config_of(n, dtype, _FORWARD[weight is not None].held)
    kernel = _forward_kernel(weight is not None, config, dtype)
    return _Plan(kernel, aside, acc, (rows, n, min(-(-rows // config.groups), 2**31 - 1)))


class _BackwardPlan(NamedTuple):
    """The checked configuration of a backward.

    Attributes:
        kernel: the kernel; None if nothing is to be launched.
        acc: the dtype of the partial sums.
        zeroed: the kernel adds to the partial sums, which must start at zero.
        sizes: the values of the kernel's size parameters. With a weight, the last size is the number of partial sums.
    """

    kernel: Kernel | None
    acc: str = ""
    zeroed: bool = False
    sizes: tuple[int, ...] = ()


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
    kernel, acc, zeroed, sizes = _backward_plan(grad, x, rstd, weight, tuple(shape), want_x, want_weight)
    grad, x, rstd = grad.contiguous(), x.contiguous(), rstd.contiguous()
    grad_x = torch.empty_like(x) if want_x else None
    if kernel is None:
        return grad_x, torch.zeros_like(weight) if want_weight else None  # type: ignore[arg-type]
    if weight is None:
        kernel.launch_vouched(grad, x, rstd, grad_x, *sizes)
        return grad_x, None
    sums = _library.empty((sizes[-1], sizes[1]), acc, x) if want_weight else None
    if sums is not None and zeroed:
        sums.zero_()
    kernel.launch_vouched(grad, x, rstd, weight.contiguous(), grad_x, sums, *sizes)
    return grad_x, None if sums is None else sums.sum(0).to(weight.dtype).view(weight.shape)


@memo("grad", "x", "rstd", "weight?")
def _backward_plan(
    grad: Tensor,
    x: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    shape: tuple[int, ...],
    want_x: bool,
    want_weight: bool,
) -> _BackwardPlan:
    check_backward(grad, x, shape, rstd, weight)
    rows, n = rstd.numel(), math.prod(shape)
    if rows == 0 or not (want_x or want_weight):
        return _BackwardPlan(None)
    dtype, program = DTYPE_NAMES[x.dtype], _BACKWARD[weight is not None]
    config, acc = config_of(n, dtype, program.held), DTYPES[dtype].acc
    kernel = _backward_kernel(weight is not None, config, dtype)
    blocks = min(-(-rows // config.groups), 2**31 - 1)
    if weight is None:
        return _BackwardPlan(kernel, acc, False, (rows, n, blocks))
    dtypes = {"scalar_t": dtype, "rstd_t": DTYPE_NAMES[rstd.dtype], "weight_t": dtype}
    types = {kind: dtypes[kind] for kind in kernel.signature.bindings}
    blocks = min(blocks, kernel.resident_blocks(types, device_of(_library, x)))
    return _BackwardPlan(kernel, acc, config.stream, (rows, n, blocks, blocks * config.groups))


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
