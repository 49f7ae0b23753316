"""The PyTorch operator add_rms_norm: root mean square normalisation of x + residual, made by
:func:`cupyops.torch.row_reduce`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cupyops.errors import expected
from cupyops.ops.checks import check_floating, check_shapes
from cupyops.ops.layer_norm.checks import as_shape, check_normalized_shape
from cupyops.torch.core.tensors import DTYPE_NAMES, symbolic_call
from cupyops.torch.programs.row_reduce import row_reduce

from .add2 import add2_onnx
from .rms_norm import AHEAD, default_eps, rms_norm_onnx, rms_norm_reference

__all__ = ["AddRMSNorm", "add_rms_norm"]


def _reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _sum_and_norm(x, residual, weight, eps)


def _reference_without_weight(x: Tensor, residual: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _sum_and_norm(x, residual, None, eps)


def _sum_and_norm(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    check_shapes("add_rms_norm", residual=(residual, x.shape))
    s = torch.add(x, residual).to(x.dtype).contiguous()  # as the kernel returns it
    return rms_norm_reference("add_rms_norm", s, weight, eps), s


def _onnx(op: Any, x: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    """Returns the ONNX form of rms_norm(s) and s = x + residual."""
    s = add2_onnx(op, x, residual, 1)
    return rms_norm_onnx(op, s, weight, eps), s


def _onnx_without_weight(op: Any, x: Any, residual: Any, eps: float) -> tuple[Any, Any]:
    return _onnx(op, x, residual, None, eps)


def _recomputed(s: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm_reference("add_rms_norm", s, weight, eps)


def _recomputed_without_weight(s: Tensor, eps: float) -> Tensor:
    return rms_norm_reference("add_rms_norm", s, None, eps)


# The kernels normalise s as memory holds it. The gradients are those of rms_norm, and the gradient of s is added.
_add_rms_norm = row_reduce(
    "s = rounded(x + residual); r = rsqrt(sum(s * s) / N + eps); y = s * r * weight",
    backward="""
        r = rsqrt(sum(s * s) / N + eps)
        d = sum(grad_y * weight * s) / N * r * r
        grad_x = grad_s + r * (grad_y * weight - s * d)
        grad_residual = grad_x
        grad_weight = column_sum(grad_y * s * r)
    """,
    name="cupyops::add_rms_norm",
    columns=["weight"],
    scalars=["eps"],
    results=["y", "s"],
    reference=_reference,
    compiled="auto",
    onnx=_onnx,
    recompute=_recomputed,
    ahead=AHEAD,
)
_add_rms_norm_without_weight = row_reduce(
    "s = rounded(x + residual); r = rsqrt(sum(s * s) / N + eps); y = s * r",
    backward="""
        r = rsqrt(sum(s * s) / N + eps)
        grad_x = grad_s + r * (grad_y - s * (sum(grad_y * s) / N * r * r))
        grad_residual = grad_x
    """,
    name="cupyops::add_rms_norm_without_weight",
    scalars=["eps"],
    results=["y", "s"],
    reference=_reference_without_weight,
    compiled="auto",
    onnx=_onnx_without_weight,
    recompute=_recomputed_without_weight,
    ahead=AHEAD,
)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes s = x + residual and rms_norm(s) in one pass over memory, the residual step of a transformer block.

    s is rounded to its dtype before it is normalised. The result therefore equals that of the two separate operations.
    Autocast does not change the dtypes. On a GPU, the gradient of the weight is summed over the rows in a fixed order,
    and x and residual share the memory of one gradient.

    Args:
        x, residual: tensors of equal shape, float16, bfloat16, float32 or float64, any strides; s has their promoted
            dtype.
        normalized_shape, weight, eps: the arguments of :func:`.rms_norm.rms_norm` for s.

    Returns:
        New tensors (rms_norm(s), s), both of the dtype of s.

    Raises:
        ValueError: the shapes of x and residual differ, or the tensors are on different devices.
        TypeError, RuntimeError, MissingDependencyError: as for :func:`.rms_norm.rms_norm`.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

    >>> y, s = add_rms_norm(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, -1.0]), 3)
    >>> y, s
    (tensor([1., 1., 1.]), tensor([2., 2., 2.]))
    """
    operands = {"x": x, "residual": residual, "weight": weight}
    for name, operand in operands.items():
        if not isinstance(operand, Tensor) and not (operand is None and name == "weight"):
            if (proxy := symbolic_call(add_rms_norm, (x, residual, normalized_shape, weight, eps))) is not None:
                return proxy
            raise TypeError(expected("add_rms_norm", name, "be a Tensor", type(operand).__name__))
    shape = normalized_shape if type(normalized_shape) is tuple else as_shape(normalized_shape)
    check_shapes("add_rms_norm", residual=(residual, x.shape))
    check_normalized_shape("add_rms_norm", x, shape, weight=weight)
    a, b = x, residual
    if x.dtype is not residual.dtype:
        # The first tensor has the dtype of the sum. The order of the terms does not change the sum.
        check_floating("add_rms_norm", "x", DTYPE_NAMES[x.dtype])
        check_floating("add_rms_norm", "residual", DTYPE_NAMES[residual.dtype])
        dtype = torch.promote_types(x.dtype, residual.dtype)
        a, b = (residual, x) if residual.dtype is dtype else (x.to(dtype), residual)
    if eps is None:
        eps = default_eps(a.dtype)
    if len(shape) > 1:
        a, b = a.flatten(-len(shape)), b.flatten(-len(shape))
        weight = None if weight is None else weight.flatten()
    if weight is None:
        y, s = _add_rms_norm_without_weight.call(a, b, eps)
    else:
        y, s = _add_rms_norm.call(a, b, weight, eps)
    return (y, s) if len(shape) == 1 else (y.view(x.shape), s.view(x.shape))


class AddRMSNorm(nn.RMSNorm):
    """:class:`.rms_norm.RMSNorm` of s = x + residual: ``forward(x, residual)`` returns (rms_norm(s), s)."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        try:  # as in weight_and_bias
            weight = self._parameters["weight"]
        except KeyError:
            weight = self.weight
        return add_rms_norm(x, residual, self.normalized_shape, weight, self.eps)
