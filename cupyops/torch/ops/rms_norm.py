"""The PyTorch operator rms_norm: root mean square normalisation, made by :func:`cupyops.torch.row_reduce`."""

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.errors import expected
from cupyops.ops.checks import check_floating
from cupyops.ops.layer_norm.checks import as_shape, check_normalized_shape
from cupyops.programs.program_config import MOST_COLUMNS
from cupyops.torch.core.tensors import DTYPE_NAMES, symbolic_call, wide_dtype
from cupyops.torch.programs.row_reduce import row_reduce

from .onnx_values import cast, in_float32

__all__ = ["RMSNorm", "rms_norm"]


def _reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm_reference("rms_norm", x, weight, eps)


def _reference_without_weight(x: Tensor, eps: float) -> Tensor:
    return rms_norm_reference("rms_norm", x, None, eps)


def rms_norm_reference(where: str, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Returns x·weight/√(mean x² + eps) by rows. ``where`` is the operator's name, for messages."""
    check_floating(where, "x", DTYPE_NAMES[x.dtype])
    if not isinstance(eps, Real):
        raise TypeError(expected(where, "eps", "be a number or None", repr(eps)))
    wide = x.to(wide_dtype(x.dtype))
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        check_floating(where, "weight", DTYPE_NAMES[weight.dtype])
        check_normalized_shape(where, x, x.shape[-1:], weight=weight)
        y = y * weight.to(wide.dtype)
    return y.to(x.dtype)


def rms_norm_onnx(op: Any, x: Any, weight: Any, eps: float) -> Any:
    """Returns the ONNX form of x·weight/√(mean x² + eps) by rows. ONNX's RMSNormalization needs opset 23; the export
    uses 20."""
    wide = in_float32(op, x)
    y = op.Div(wide, op.Sqrt(op.Add(op.ReduceMean(op.Mul(wide, wide), [-1], keepdims=1), eps)))
    return cast(op, y if weight is None else op.Mul(y, cast(op, weight, wide.dtype)), x.dtype)


def _onnx_without_weight(op: Any, x: Any, eps: float) -> Any:
    return rms_norm_onnx(op, x, None, eps)


# With r = 1/√(mean x² + eps) and g = grad_y·weight, the gradients are grad_x = r·(g - x·r²·mean(g·x)), and grad_weight,
# the sum of grad_y·x·r over the rows.

# Row lengths whose kernels are compiled ahead: a row in a warp, in a block, and in a cluster of blocks.
AHEAD = (1024, 8192, 65536)
# Autocast converts the tensors of PyTorch's rms_norm to float32 on a GPU, from PyTorch 2.12 on, and never on a CPU.
_IN_FLOAT32 = torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA")
_AUTOCAST = {"cuda": "float32"} if _IN_FLOAT32 else None
_rms_norm = row_reduce(
    "r = rsqrt(sum(x * x) / N + eps); y = x * r * weight",
    backward="""
        r = rsqrt(sum(x * x) / N + eps)
        d = sum(grad_y * weight * x) / N * r * r
        grad_x = r * fma(-x, d, grad_y * weight)
        grad_weight = column_sum(grad_y * x * r)
    """,
    name="cupyops::rms_norm",
    columns=["weight"],
    scalars=["eps"],
    reference=_reference,
    compiled="auto",
    autocast=_AUTOCAST,
    onnx=rms_norm_onnx,
    recompute=_reference,
    ahead=AHEAD,
)
_rms_norm_without_weight = row_reduce(
    "r = rsqrt(sum(x * x) / N + eps); y = x * r",
    backward="""
        r = rsqrt(sum(x * x) / N + eps)
        grad_x = r * (grad_y - x * (sum(grad_y * x) / N * r * r))
    """,
    name="cupyops::rms_norm_without_weight",
    scalars=["eps"],
    reference=_reference_without_weight,
    compiled="auto",
    autocast=_AUTOCAST,
    onnx=_onnx_without_weight,
    recompute=_reference_without_weight,
    ahead=AHEAD,
)

_EPS, _EPS_FLOAT64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


def default_eps(dtype: torch.dtype | None) -> float:
    """Returns the default of ``eps``, the number added to the mean: the machine epsilon of the arithmetic."""
    return _EPS_FLOAT64 if dtype is torch.float64 else _EPS


def rms_norm(
    x: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Applies root mean square normalisation; a drop-in for ``torch.nn.functional.rms_norm``.

    y = x/√(mean(x²) + eps)·weight, with the mean over the last dimensions of x.

    On a GPU, the gradient of the weight is summed over the rows in a fixed order. The bits of a row do not depend on
    the other rows. Under autocast on a GPU the operation runs in float32 with PyTorch 2.12 or later, as PyTorch's own
    does.

    Args:
        x: float16, bfloat16, float32 or float64, any strides. PyTorch's function computes complex x.
        normalized_shape: the last dimensions of x.
        weight: of shape ``normalized_shape``, float16, bfloat16, float32 or float64; or None.
        eps: the number added to the mean. The default is ``torch.finfo(torch.float64).eps`` for float64, and
            ``torch.finfo(torch.float32).eps`` for all other dtypes.

    Returns:
        A new tensor of x's shape and dtype. The result is rounded once.

    Raises:
        TypeError: x or weight is not a floating tensor, or eps is not a number.
        RuntimeError: ``normalized_shape`` does not match x or weight. The message is PyTorch's.
        ValueError: the tensors are on different devices.
        MissingDependencyError: the tensors are on a GPU, and CuPy or a library that CuPy needs is missing. The message
            ends with the command that installs it.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

    >>> rms_norm(torch.tensor([[3.0, 4.0], [1.0, 1.0]]), 2)
    tensor([[0.8485, 1.1314],
            [1.0000, 1.0000]])
    """
    shape, given = normalized_shape, eps
    if type(shape) is not tuple or len(shape) != 1 or type(shape[0]) is not int:
        shape = as_shape(shape)
    if eps is None:
        eps = default_eps(getattr(x, "dtype", None))
    elif isinstance(eps, Tensor) and eps.dim() == 0 and not eps.requires_grad:
        eps = float(eps)
    if not isinstance(x, Tensor) or not (weight is None or isinstance(weight, Tensor)):
        if (proxy := symbolic_call(rms_norm, (x, normalized_shape, weight, eps))) is not None:
            return proxy
        name, other = ("weight", weight) if isinstance(x, Tensor) else ("x", x)
        raise TypeError(expected("rms_norm", name, "be a Tensor", type(other).__name__))
    if x.is_complex():  # no kernel has complex rows
        return F.rms_norm(x, shape, weight, given)
    # The check takes a microsecond, and raises for none of the usual operands.
    usual = len(shape) == 1 and shape[0] <= MOST_COLUMNS and x.dim() and x.size(-1) == shape[0]
    if not (usual and (weight is None or weight.shape == shape)):
        check_normalized_shape("rms_norm", x, shape, weight=weight)
    rows = x if len(shape) == 1 else x.flatten(-len(shape))
    y: Tensor
    if weight is None:
        y = _rms_norm_without_weight.call(rows, eps)
    else:
        y = _rms_norm.call(rows, weight if rows is x else weight.flatten(), eps)
    return y if rows is x else y.view(x.shape)


class RMSNorm(nn.RMSNorm):
    """A ``torch.nn.RMSNorm`` that calls :func:`rms_norm`, with the same arguments and ``state_dict``."""

    def forward(self, x: Tensor) -> Tensor:
        try:  # as in weight_and_bias
            weight = self._parameters["weight"]
        except KeyError:
            weight = self.weight
        return rms_norm(x, self.normalized_shape, weight, self.eps)
