"""The functions that a rewritten method calls in place of two consecutive modules.

Each function calls one operator if the modules are optimised and nothing observes the value between them, and the
modules themselves otherwise. A linear layer in front of an optimised GELU keeps its own class. The conditions are
checked in every call: a module may get a hook, another class, another ``forward`` or another weight at any time.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, is_autocast_enabled, nn
from torch.nn import Linear, Parameter

from cupyops.torch.compiled.frames import inlined_only
from cupyops.torch.core.conditions import in_graph
from cupyops.torch.ops.add_layer_norm import add_layer_norm, add_layer_norm_node
from cupyops.torch.ops.add_rms_norm import add_rms_norm
from cupyops.torch.ops.fused_operations import FUSED
from cupyops.torch.ops.gated import geglu
from cupyops.torch.ops.linear_gelu import linear_gelu, linear_gelu_node

from .leaves import product_of, unit_of
from .parallel import split_of
from .single_calls import is_hooked, is_observed
from .small import PLAIN, is_small, is_small_product, is_traced

__all__ = [
    "add_and_norm",
    "add_then_norm",
    "gated",
    "gated_after",
    "gated_halves",
    "linear_then_gelu",
    "operands_of",
    "sequential_forward",
]

# The conditions on operands, which Fusions asks in graphs. They return why the operator does not compute them.
_no_product, _no_sum = FUSED["swiglu"].refusal, FUSED["add_layer_norm"].refusal


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
            and not is_observed(act, traced)
            and (type(operands[0]) is Parameter or type(operands[0]) in PLAIN)
        ):
            weight, bias = operands
            if traced:
                return linear_gelu_node(x, weight, bias, approximate)[0]
            return linear_gelu(x, weight, bias, approximate)
        if operands is None and product_of(linear) is not None and not is_observed(act):
            split = split_of(linear, x)
            if split is not None and not split.sums:  # GELU of a sum is not a sum
                return linear_gelu(split.enter(x), *split.product(linear), approximate)
    return act(linear(x))


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
    if _no_product(gate, up) or is_observed(act, traced):
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
