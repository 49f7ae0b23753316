"""The functions that a rewritten method calls in place of two consecutive modules.

Each function calls one operator if the modules are optimised and nothing observes the value between them, and the
modules themselves otherwise. A linear layer in front of an optimised GELU keeps its own class. The conditions are
checked in every call: a module may get a hook, another class, another ``forward`` or another weight at any time.
"""

from collections.abc import Callable, Collection
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, is_autocast_enabled, nn
from torch.nn import Linear, Parameter

from cupyops.torch.compiled.frames import inlined_only
from cupyops.torch.core.dispatch import in_graph
from cupyops.torch.ops.adaptive import adaptive_layer_norm, add_adaptive_layer_norm, gated_add
from cupyops.torch.ops.add_layer_norm import add_layer_norm, add_layer_norm_node
from cupyops.torch.ops.add_rms_norm import add_rms_norm
from cupyops.torch.ops.fused_operations import FUSED
from cupyops.torch.ops.gated import geglu
from cupyops.torch.ops.gelu import gelu, gelu_node
from cupyops.torch.ops.layer_norm import layer_norm
from cupyops.torch.ops.linear_gelu import linear_gelu, linear_gelu_node
from cupyops.torch.ops.rms_norm import rms_norm

from .leaves import by_operator, product_of, unit_of
from .parallel import is_changed, split_of
from .recognise import RMS_NORM_KEEPS_DTYPE, Form
from .small import PLAIN, is_small, is_small_product, is_traced

__all__ = [
    "FUNCTIONS",
    "GeluCall",
    "add_and_norm",
    "add_then_norm",
    "as_operator",
    "gated",
    "gated_after",
    "gated_halves",
    "gated_plus",
    "is_hooked",
    "known_function",
    "linear_then_gelu",
    "modulation_by",
    "norm_then_modulation",
    "norm_then_modulation_as",
    "operands_of",
    "plus_gated",
    "plus_gated_as",
    "plus_gated_then_modulation",
    "plus_gated_then_modulation_by",
    "sequential_forward",
]


# The conditions on operands, which Fusions asks in graphs. They return why the operator does not compute them.
_no_product, _no_sum = FUSED["swiglu"].refusal, FUSED["add_layer_norm"].refusal
_no_modulation, _no_gate = FUSED["adaptive_layer_norm"].refusal, FUSED["gated_add"].refusal
_no_gate_and_modulation = FUSED["add_adaptive_layer_norm"].refusal


class GeluCall:
    """Calls the operator GELU. Takes the place of a function that computes GELU, or of a module that computes GELU and
    is not part of the model.

    Attributes:
        form: the form that the function computes.
        function: the function, called for tensor subclasses.
    """

    __slots__ = ("form", "function")

    def __init__(self, form: Form, function: Callable[..., Any]) -> None:
        self.form = form
        self.function = function

    @inlined_only
    def __call__(self, x: Any) -> Any:
        if type(x) in PLAIN and (approximate := self._cupyops_gelu(x)) is not None and not _observed(self):
            if in_graph():
                return gelu_node(x, approximate)
            return F.gelu(x, approximate=approximate) if is_small(x) else gelu(x, approximate)
        return self.function(x)

    def _cupyops_gelu(self, x: Tensor) -> str | None:
        return self.form.approximate if self.form.exact or x.dtype is not torch.float64 else None


def _functional(operator: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a drop-in for a function of ``torch.nn.functional``."""

    @inlined_only
    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        if type(input) in PLAIN and not is_small(input):
            return operator(input, *args, **kwargs)
        return function(input, *args, **kwargs)

    return call


def _rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    if weight is None or weight.dtype is input.dtype or RMS_NORM_KEEPS_DTYPE:
        return rms_norm(input, normalized_shape, weight, eps)
    return F.rms_norm(input, normalized_shape, weight, eps)


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    return layer_norm(input, normalized_shape, weight, bias, eps)


# The functions of PyTorch that a rewritten method calls operators for: the operator's name and the drop-in.
FUNCTIONS: dict[Any, tuple[str, Callable[..., Any]]] = {
    F.gelu: ("gelu", _functional(gelu, F.gelu)),
    F.layer_norm: ("layer_norm", _functional(_layer_norm, F.layer_norm)),
    F.rms_norm: ("rms_norm", _functional(_rms_norm, F.rms_norm)),
    nn.LayerNorm.forward: ("layer_norm", by_operator(nn.LayerNorm.forward)),
    nn.RMSNorm.forward: ("rms_norm", by_operator(nn.RMSNorm.forward)),
}

_CALLS: dict[Any, GeluCall] = {F.gelu: GeluCall(Form("none", True), F.gelu)}


def known_function(function: Callable[..., Any], form: Form) -> GeluCall:
    """Returns the call of GELU for a function that computes GELU, which :func:`as_operator` finds from then on."""
    return _CALLS.setdefault(function, GeluCall(form, function))


def as_operator(function: Any) -> Any:
    """Returns the call of GELU for a function that is known to compute GELU, and every other object as it is."""
    try:
        return _CALLS.get(function, function)
    except TypeError:  # an object that has no hash
        return function


def _observed(module: Any, traced: bool = False) -> bool:
    """Returns whether a call of a module does more than its class's ``forward``.

    Args:
        module: the module, a function, or a :class:`GeluCall`.
        traced: whether Dynamo traces, which traces through a compiled module.
    """
    if isinstance(module, GeluCall):
        module = module.function
    return isinstance(module, nn.Module) and is_hooked(module, traced)


def is_hooked(module: Any, traced: bool) -> bool:
    """Returns whether a module has hooks, or a changed ``forward``, as :func:`_observed` does for modules."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or is_changed(module, traced)


@inlined_only
def linear_then_gelu(linear: Any, act: Any, x: Any) -> Any:
    """Returns ``act(linear(x))``, by one operator if ``linear`` is a linear layer and ``act`` an optimised GELU."""
    traced = in_graph()
    if not traced and type(x) in PLAIN and is_small_product(x):
        return act(linear(x))
    form = getattr(act, "_cupyops_gelu", None)
    if form is not None and type(x) in PLAIN and (approximate := form(x)) is not None:
        operands = operands_of(linear, traced)
        # A library for quantised weights exchanges the weight for a subclass of Tensor, and keeps the layer.
        if (
            operands is not None
            and not _observed(act, traced)
            and (type(operands[0]) is Parameter or type(operands[0]) in PLAIN)
        ):
            weight, bias = operands
            if traced:
                return linear_gelu_node(x, weight, bias, approximate)[0]
            return linear_gelu(x, weight, bias, approximate)
        if operands is None and product_of(linear) is not None and not _observed(act):
            split = split_of(linear, x)
            if split is not None and not split.sums:  # GELU of a sum is not a sum
                return linear_gelu(split.enter(x), *split.product(linear), approximate)
    return act(linear(x))


def operands_of(linear: Any, traced: bool) -> Any:
    """Returns the weight (N, K) and the bias of a linear layer, or None if the call of the layer does anything else."""
    if type(linear) is Linear:  # Dynamo guards less here than in product_of
        return None if is_hooked(linear, traced) else (linear.weight, linear.bias)
    product = product_of(linear)
    return None if product is None or is_hooked(linear, traced) else product(linear)


@inlined_only
def gated(act: Any, gate: Any, up: Any) -> Any:
    """Returns ``act(gate) * up``, by one operator if ``act`` is an optimised GELU, SiLU or ReLU."""
    unit = _unit(act, gate, up)
    return act(gate) * up if unit is None else unit(gate, up)


@inlined_only
def gated_after(up: Any, act: Any, gate: Any) -> Any:
    """Returns ``up * act(gate)``, as :func:`gated` does."""
    unit = _unit(act, gate, up)
    return up * act(gate) if unit is None else unit(gate, up)


@inlined_only
def gated_halves(act: Any, x: Any) -> Any:
    """Returns ``act(gate) * up`` for the halves ``gate, up = x.chunk(2, dim=-1)``, as :func:`gated` does."""
    if (unit := _unit(act, x, x)) is not None and x.dim() and x.size(-1) % 2 == 0:
        return unit(x)
    gate, up = x.chunk(2, dim=-1)
    return act(gate) * up


def _unit(act: Any, gate: Any, up: Any) -> Callable[..., Tensor] | None:
    """Returns the operator of ``act(gate) * up``, or None if there is none for the operands."""
    traced = in_graph()
    if type(gate) not in PLAIN or type(up) not in PLAIN or (not traced and is_small(gate)):
        return None
    if _no_product(gate, up) or _observed(act, traced):
        return None
    form = getattr(act, "_cupyops_gelu", None)
    if form is None:
        return unit_of(act)
    approximate = form(gate)
    return None if approximate is None else partial(geglu, approximate=approximate)


@inlined_only
def add_then_norm(norm: Any, a: Any, b: Any) -> Any:
    """Returns ``norm(a + b)``, by one operator if ``norm`` is an optimised layer norm or RMS norm."""
    found = _add_norm(norm, a, b)
    return norm(a + b) if found is None else found[0]


@inlined_only
def add_and_norm(norm: Any, a: Any, b: Any) -> tuple[list[Any], Any]:
    """Returns ``[norm(s)]`` and ``s = a + b``, by one operator if ``norm`` is an optimised layer norm or RMS norm.

    The list lets the caller take the result out, so that no variable of the caller keeps it alive.
    """
    found = _add_norm(norm, a, b)
    if found is not None:
        return [found[0]], found[1]
    s = a + b
    return [norm(s)], s


# PyTorch dispatches promote_types to the modes of a selective checkpoint, though it takes no tensor.
_promoted = cache(torch.promote_types)


@inlined_only
def _add_norm(norm: Any, a: Any, b: Any) -> tuple[Tensor, Tensor] | None:
    traced = in_graph()
    if type(a) not in PLAIN or type(b) not in PLAIN or (not traced and is_small(a)):
        return None
    operands = getattr(norm, "_cupyops_norm", None)
    is_rms_norm = operands is None
    if is_rms_norm:
        operands = getattr(norm, "_cupyops_rms_norm", None)
    if operands is None:
        return None
    split = None
    if is_hooked(norm, traced) and (split := split_of(norm, a)) is None:
        return None
    shape, *parameters, eps = operands(a)
    if a.dtype is b.dtype:
        dtype = a.dtype
    else:
        dtype = (torch.promote_types if is_traced() else _promoted)(a.dtype, b.dtype)
    if _no_sum(a, b, dtype, parameters):
        return None
    # Autocast converts the operands of the norms to float32, and does not convert the operands of the fused operators. With
    # parameters of another dtype, the norm's result has another one.
    cast = is_autocast_enabled("cuda") and dtype is not torch.float32
    if cast or not {p.dtype for p in parameters if p is not None} <= {dtype}:
        return None
    if split is not None:
        parameters = [split.local(p) for p in parameters]
    if is_rms_norm:
        return add_rms_norm(a, b, shape, parameters[0], eps)
    weight, bias = parameters
    if traced:
        found: tuple[Tensor, Tensor] = add_layer_norm_node(a, b, weight, bias, shape, eps, None)
        return found
    return add_layer_norm(a, b, shape, weight, bias, eps)


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


_16_BIT = (torch.float16, torch.bfloat16)


@cache
def sequential_forward(apart: frozenset[str]) -> Callable[[Any, Any], Any]:
    """Returns the ``forward`` of ``nn.Sequential``, with one operator for a linear layer and the GELU after it.

    Args:
        apart: the names of the linear layers that stay separate calls.
    """

    def forward(self: nn.Sequential, input: Any) -> Any:
        modules = list(self)
        alone = [self._modules.get(name) for name in apart]
        last = len(modules) - 1
        i = 0
        while i <= last:
            module = modules[i]
            if (
                i < last
                and product_of(module) is not None
                and hasattr(type(modules[i + 1]), "_cupyops_gelu")
                and not (alone and any(module is other for other in alone))
            ):
                input = linear_then_gelu(module, modules[i + 1], input)
                i += 1
            else:
                input = module(input)
            i += 1
        return input

    return forward
