"""What one operator computes together: the table that :func:`cupyops.torch.optimize`, which rewrites methods, and
:class:`cupyops.torch.Fusions`, which rewrites graphs, share.

A row has the operations, as messages and pages name them, and the condition on their operands. The condition takes tensors of a
call, or the fake tensors of a graph.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["FUSED", "Fused"]


class Fused(NamedTuple):
    """Operations that one operator computes together.

    Attributes:
        operations: what they are.
        refusal: returns why the operator does not compute the operands, or ``""``.
    """

    operations: str
    refusal: Callable[..., str]


def _not_together(*tensors: Tensor) -> str:
    for t in tensors:
        if not t.is_floating_point():
            return f"a tensor is {t.dtype}"
        if t.device != tensors[0].device:
            return f"the tensors are on {tensors[0].device} and on {t.device}"
    return ""


def _product(gate: Tensor, up: Tensor) -> str:
    """For ``act(gate) * up``."""
    return "the product broadcasts" if gate.shape != up.shape else _not_together(gate, up)


def _sum_and_norm(x: Tensor, residual: Tensor, dtype: torch.dtype, parameters: Sequence[Tensor | None]) -> str:
    """For a norm of ``x + residual``, which has a dtype. Parameters of one dtype, that of the sum or float32, are taken."""
    if x.shape != residual.shape:
        return "the addition broadcasts"
    if refusal := _not_together(x, residual):
        return refusal
    dtypes = {p.dtype for p in parameters if p is not None}
    if len(dtypes) > 1 or not dtypes <= {dtype, torch.float32 if dtype.itemsize == 2 else dtype}:
        return f"its parameters are {', '.join(sorted(map(str, dtypes)))}, and the sum is {dtype}"
    return ""


def _product_and_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> str:
    """For ``gelu(linear(x, weight, bias))``."""
    if x.dim() == 0 or weight.dim() not in (1, 2) or (bias is not None and bias.dim() not in (1, 2)):
        return "the product has a dimension that the operator does not take"
    if weight.dim() != 2:
        return "its weight is a vector"
    return "it adds a matrix, and not a bias" if bias is not None and bias.dim() != 1 else ""


def _is_of_samples(t: Tensor, x: Tensor) -> bool:
    """Returns whether each row of a sample of x (B, ..., T, N) has the same row of t (B or 1, ..., 1, N)."""
    if x.dim() < 3 or t.dim() != x.dim() or t.shape[-2] != 1 or t.shape[-1] != x.shape[-1]:
        return False
    return all(t.shape[d] in (1, x.shape[d]) for d in range(x.dim() - 2))


def _gated_sum(residual: Tensor, x: Tensor, gate: Tensor, wide: bool = False) -> str:
    """For ``residual + gate * x``.

    Args:
        wide: whether it is computed in float32 and cast to the dtype of the residual.
    """
    if x.shape != residual.shape or not _is_of_samples(gate, x):
        return "the gate has no row for each sample"
    if refusal := _not_together(residual, x, gate):
        return refusal
    if wide:
        fits = gate.dtype is torch.float32 and x.dtype is residual.dtype
    else:
        fits = gate.dtype is x.dtype or gate.dtype is residual.dtype
    return "" if fits else f"the gate is {gate.dtype}, and the sum of {residual.dtype} and {x.dtype}"


def _modulation(x: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype) -> str:
    """For ``norm(x) * (1 + scale) + shift``, where the norm is computed and returned in a dtype."""
    if scale.shape != shift.shape or not _is_of_samples(scale, x):
        return "scale and shift have no row for each sample"
    if refusal := _not_together(x, scale, shift):
        return refusal
    for t in (scale, shift):
        # 1 + scale in 16 bits is rounded, and the operator rounds once.
        if not (t.dtype is dtype or (dtype is torch.float32 and t.dtype.itemsize == 2)):
            return f"scale or shift is {t.dtype}, and the norm {dtype}"
    return ""


def _gated_sum_and_modulation(residual: Tensor, x: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> str:
    """For the modulation of ``s = residual + gate * x``, whose dtype is the residual's."""
    if not (x.dtype is residual.dtype or (residual.dtype is torch.float32 and x.dtype.itemsize == 2)):
        return f"the sum has another dtype than the residual, {residual.dtype}"
    return _gated_sum(residual, x, gate) or _modulation(residual, scale, shift, residual.dtype)


_GATED = "{} of a tensor, and the product with a tensor of the same shape"
FUSED: dict[str, Fused] = {
    "swiglu": Fused(_GATED.format("SiLU"), _product),
    "geglu": Fused(_GATED.format("GELU"), _product),
    "reglu": Fused(_GATED.format("ReLU"), _product),
    "add_adaptive_layer_norm": Fused(
        "a sum with a gated tensor, and a layer norm of the sum with a scale and a shift for each sample",
        _gated_sum_and_modulation,
    ),
    "adaptive_layer_norm": Fused("a layer norm without weight, and a scale and a shift for each sample", _modulation),
    "gated_add": Fused("the product of a tensor with a gate for each sample, and a sum", _gated_sum),
    "add_layer_norm": Fused("a sum of two tensors, and a layer norm of it", _sum_and_norm),
    "add_rms_norm": Fused("a sum of two tensors, and an RMS norm of it", _sum_and_norm),
    "linear_gelu": Fused("a linear layer, and GELU of its result", _product_and_gelu),
}
