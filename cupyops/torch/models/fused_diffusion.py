"""The functions that a rewritten method calls in place of the steps of a diffusion transformer: a layer norm with a scale and a
shift for each sample, and a sum with a gate for each sample.

Each calls one operator as those of :mod:`.fused` do.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, is_autocast_enabled

from cupyops.torch.compiled.frames import inlined_only
from cupyops.torch.core.conditions import in_graph
from cupyops.torch.ops.adaptive import adaptive_layer_norm, add_adaptive_layer_norm, gated_add
from cupyops.torch.ops.fused_operations import FUSED

from .single_calls import is_hooked
from .small import PLAIN, is_small, is_traced

__all__ = [
    "gated_plus",
    "modulation_by",
    "norm_then_modulation",
    "norm_then_modulation_as",
    "plus_gated",
    "plus_gated_as",
    "plus_gated_then_modulation",
    "plus_gated_then_modulation_by",
]

# The conditions on operands, which Fusions asks in graphs. They return why the operator does not compute them.
_no_modulation, _no_gate = FUSED["adaptive_layer_norm"].refusal, FUSED["gated_add"].refusal
_no_gate_and_modulation = FUSED["add_adaptive_layer_norm"].refusal
_16_BIT = (torch.float16, torch.bfloat16)


@inlined_only
def norm_then_modulation(norm: Any, x: Any, scale: Any, shift: Any) -> Any:
    """Returns ``norm(x) * (1 + scale) + shift``, by one operator if ``norm`` is an optimised layer norm without weight."""
    operands = _modulation(norm, x, scale, shift)
    return norm(x) * (1 + scale) + shift if operands is None else adaptive_layer_norm(x, *operands)


@inlined_only
def norm_then_modulation_as(norm: Any, h: Any, scale: Any, shift: Any) -> Any:
    """Returns ``(norm(h.float()) * (1 + scale) + shift).type_as(h)``, as :func:`norm_then_modulation` does: the operator
    computes in float32, whatever the dtype of h."""
    if (
        type(h) in PLAIN
        and type(scale) in PLAIN
        and type(shift) in PLAIN
        and scale.dtype is shift.dtype is torch.float32
    ):
        operands = _modulation(norm, h, scale, shift, torch.float32)
        if operands is not None:
            return adaptive_layer_norm(h, *operands)
    return (norm(h.float()) * (1 + scale) + shift).type_as(h)


def modulation_by(function: Callable[..., Any], first_is_scale: bool, dims: Collection[int]) -> Callable[..., Any]:
    """Returns a function (norm, x, a, b) that returns ``function(norm(x), a, b)``, by one operator as
    :func:`norm_then_modulation` does.

    Args:
        function, first_is_scale, dims: the function and its :func:`.recognise.modulation_form`.
    """

    @inlined_only
    def call(norm: Any, x: Any, a: Any, b: Any) -> Any:
        if (pair := _pair(x, a, b, first_is_scale, dims)) is not None:
            operands = _modulation(norm, x, *pair)
            if operands is not None:
                scale, shift = (a, b) if first_is_scale else (b, a)
                return adaptive_layer_norm(x, scale, shift, operands[2])
        return function(norm(x), a, b)

    return call


@inlined_only
def _pair(x: Any, a: Any, b: Any, first_is_scale: bool, dims: Collection[int]) -> tuple[Tensor, Tensor] | None:
    """Returns scale and shift of rows x (B, T, N) as tensors with three dimensions, or None for other operands."""
    if type(a) not in PLAIN or type(b) not in PLAIN or type(x) not in PLAIN:
        return None
    if x.dim() != 3 or a.dim() != b.dim() or a.dim() not in dims:
        return None
    scale, shift = (a, b) if first_is_scale else (b, a)
    return (scale.unsqueeze(1), shift.unsqueeze(1)) if scale.dim() == 2 else (scale, shift)


@inlined_only
def _modulation(
    norm: Any, x: Any, scale: Any, shift: Any, wide: torch.dtype | None = None
) -> tuple[Tensor, Tensor, float] | None:
    """Returns the operands of the adaptive layer norm of x after x, or None if the operator does not compute it.

    Args:
        wide: the dtype that the model casts rows x to, before the norm, and the result from.
    """
    traced = in_graph()
    if type(x) not in PLAIN or type(scale) not in PLAIN or type(shift) not in PLAIN or (not traced and is_small(x)):
        return None
    operands = getattr(norm, "_cupyops_norm", None)
    if (
        operands is None
        or is_hooked(norm, traced)
        or _no_modulation(x, scale, shift, x.dtype if wide is None else wide)
    ):
        return None
    shape, weight, bias, eps = operands(x)
    if weight is not None or bias is not None or tuple(shape) != (x.size(-1),):
        return None
    if wide is None and is_autocast_enabled("cuda") and x.dtype in _16_BIT:
        return None
    return scale, shift, eps


@inlined_only
def plus_gated(residual: Any, a: Any, b: Any) -> Any:
    """Returns ``residual + a * b``, by one operator if one of the factors has a row for each sample."""
    operands = _gated(residual, a, b)
    return residual + a * b if operands is None else gated_add(residual, *operands)


@inlined_only
def gated_plus(a: Any, b: Any, residual: Any) -> Any:
    """Returns ``a * b + residual``, as :func:`plus_gated` does."""
    operands = _gated(residual, a, b)
    return a * b + residual if operands is None else gated_add(residual, *operands)


@inlined_only
def plus_gated_as(h: Any, a: Any, b: Any, a_is_cast: bool, b_is_cast: bool) -> Any:
    """Returns ``(h.float() + a * b).type_as(h)``, as :func:`plus_gated` does.

    Args:
        a_is_cast, b_is_cast: whether the factor is ``a.float()``, or ``b.float()``.
    """
    operands = _gated(h, a, b, wide=True)
    if operands is not None:
        return gated_add(h, *operands)
    return (h.float() + (a.float() if a_is_cast else a) * (b.float() if b_is_cast else b)).type_as(h)


@inlined_only
def _gated(residual: Any, a: Any, b: Any, wide: bool = False) -> tuple[Tensor, Tensor] | None:
    """Returns x and gate of ``residual + gate * x``, or None if the operator does not compute the sum.

    Args:
        wide: whether the model computes in float32, and casts the result to the dtype of the residual.
    """
    if type(residual) not in PLAIN or type(a) not in PLAIN or type(b) not in PLAIN:
        return None
    # In a graph, Inductor fuses these operations with those before and after.
    if is_traced() or is_small(residual):
        return None
    x, gate = (a, b) if a.shape == residual.shape else (b, a)
    return None if _no_gate(residual, x, gate, wide) else (x, gate)


@inlined_only
def plus_gated_then_modulation(
    norm: Any, residual: Any, a: Any, b: Any, scale: Any, shift: Any
) -> tuple[list[Any], Any]:
    """Returns ``[norm(s) * (1 + scale) + shift]`` and ``s = residual + a * b``, by one operator if ``norm`` is an optimised
    layer norm without weight, and one of the factors has a row for each sample."""
    found = _gated_then_modulation(norm, residual, a, b, (scale, shift))
    if found is not None:
        return [found[0]], found[1]
    s = plus_gated(residual, a, b)
    return [norm_then_modulation(norm, s, scale, shift)], s


def plus_gated_then_modulation_by(
    function: Callable[..., Any], first_is_scale: bool, dims: Collection[int]
) -> Callable[..., Any]:
    """Returns a function (norm, residual, a, b, p, q) that returns ``[function(norm(s), p, q)]`` and ``s = residual + a * b``, as
    :func:`plus_gated_then_modulation` does. The arguments are those of :func:`modulation_by`."""
    modulated = modulation_by(function, first_is_scale, dims)

    @inlined_only
    def call(norm: Any, residual: Any, a: Any, b: Any, p: Any, q: Any) -> tuple[list[Any], Any]:
        found = _gated_then_modulation(norm, residual, a, b, _pair(residual, p, q, first_is_scale, dims))
        if found is not None:
            return [found[0]], found[1]
        s = plus_gated(residual, a, b)
        return [modulated(norm, s, p, q)], s

    return call


@inlined_only
def _gated_then_modulation(
    norm: Any, residual: Any, a: Any, b: Any, pair: tuple[Any, Any] | None
) -> tuple[Tensor, Tensor] | None:
    """Returns the adaptive layer norm of ``s = residual + a * b``, and s, or None if the operator does not compute them."""
    if pair is None or (operands := _gated(residual, a, b)) is None:
        return None
    more = _modulation(norm, residual, *pair)
    x, gate = operands
    if more is None or _no_gate_and_modulation(residual, x, gate, *pair):
        return None
    scale, shift, eps = more
    return add_adaptive_layer_norm(residual, x, gate, scale, shift, eps)
