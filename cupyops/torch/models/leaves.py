"""Modules whose whole ``forward`` is one shipped operator: normalisations, GELU and linear layers.

:func:`leaf_of` returns the class that a module gets. The new ``forward`` calls the operator for plain tensors, and the
module's own ``forward`` for everything else: other tensor subclasses than ``DTensor``, proxies of ``torch.fx``, and
dtypes for which the results would differ. PyTorch's own function computes calls on few elements (:mod:`.small`). An
operator computes a DTensor of any size: it takes less of the host's time there than DTensor's dispatch
(:mod:`cupyops.torch.core.dtensors`). A module that a style of tensor parallelism has sharded gets a ``__call__``, too, which
computes local tensors (:mod:`.parallel`). While Dynamo traces, the module's own ``forward`` takes DTensors.

A linear layer gets another class only if its product is padded (:mod:`cupyops.ops.linear.odd`), or if its weight is a
DTensor. PyTorch computes most other products of the operator, and the operator's Python code would add to the host's
time. A fused operator reads the operands of a linear layer by :func:`product_of`.

SiLU and ReLU keep their class, too: :func:`unit_of` returns the gated unit that computes such an activation with the
product after it.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from cupyops.codegen import write
from cupyops.ops.linear.odd import has_odd_rows
from cupyops.torch.compiled.frames import inlined_only
from cupyops.torch.core.conditions import in_graph
from cupyops.torch.ops.gated import GATES
from cupyops.torch.ops.gelu import gelu, gelu_node
from cupyops.torch.ops.layer_norm import layer_norm, layer_norm_node
from cupyops.torch.ops.linear import linear
from cupyops.torch.ops.rms_norm import rms_norm
from cupyops.torch.scale.distributed import is_dtensor

from .classes import is_optimised, made_class, original_class
from .parallel import IN_PIECES, split_of
from .recognise import (
    RMS_NORM_KEEPS_DTYPE,
    Norm,
    gate_form,
    gelu_candidate,
    gelu_form,
    is_conv1d,
    norm_candidate,
    norm_of,
)
from .small import PLAIN, is_small, is_small_padded

__all__ = ["FORWARDS", "TRAITS", "Leaf", "by_operator", "leaf_of", "product_of", "unfit", "unit_of"]

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Leaf(NamedTuple):
    """What a module becomes.

    Attributes:
        operator: the operator that the module calls.
        make: returns the module's new class; None for a module that keeps its class. A fused operator may take the
            place of such a module, too.
    """

    operator: str
    make: Callable[[], type[nn.Module]] | None


_OWN = "original(self, {x})"


class _Kind(NamedTuple):
    """A kind of modules with one generated ``forward``.

    Attributes:
        operator: the operator.
        condition: an expression of the argument ``x``; if False, the module's own ``forward`` runs.
        call: the call of the operator, an expression of ``self`` and ``x``.
        trait: the operands of the operator, as the fused operators read them: an expression of ``self`` and ``x``.
        small: what is computed for few elements (:mod:`.small`), an expression of ``self`` and ``x``; if empty, all
            calls are calls of the operator.
        few: whether the elements are few, an expression of ``self`` and ``x``.
        node: the call while Dynamo traces (:func:`cupyops.torch.core.conditions.in_graph`), an expression of ``self`` and
            ``x``; if empty, that of the operator.
        plain: whether the operator computes plain tensors, and not DTensors alone.
        in_pieces: whether the class gets a ``__call__``, which computes a sharded module (:mod:`.parallel`).
    """

    operator: str
    condition: str
    call: str
    trait: str
    small: str = _OWN
    few: str = "is_small({x})"
    node: str = ""
    plain: bool = True
    in_pieces: bool = False


# The modules of torch.nn.
_LAYER_NORM = _Kind(
    "layer_norm",
    "",
    "layer_norm({x}, self.normalized_shape, self.weight, self.bias, self.eps)",
    "(self.normalized_shape, self.weight, self.bias, self.eps)",
    node="layer_norm_node({x}, self.weight, self.bias, self.normalized_shape, self.eps, None)",
)
_RMS_NORM = _Kind(
    "rms_norm",
    "" if RMS_NORM_KEEPS_DTYPE else "(self.weight is None or self.weight.dtype is {x}.dtype)",
    "rms_norm({x}, self.normalized_shape, self.weight, self.eps)",
    "(self.normalized_shape, self.weight, self.eps)",
)
_GELU = _Kind("gelu", "", "gelu({x}, self.approximate)", "self.approximate", node="gelu_node({x}, self.approximate)")
_LINEAR = _Kind(
    "linear", "", "linear({x}, self.weight, self.bias)", "", few="is_small_padded({x}, self.weight.size(0))"
)
_CONV1D = _LINEAR._replace(
    call="linear({x}, self.weight.t(), self.bias)", few="is_small_padded({x}, self.weight.size(1))"
)

FORWARDS: dict[Any, _Kind] = {
    nn.LayerNorm.forward: _LAYER_NORM,
    nn.RMSNorm.forward: _RMS_NORM,
    nn.GELU.forward: _GELU,
    nn.Linear.forward: _LINEAR,
}
_KIND = "_cupyops_kind"  # the attribute of a class that holds its kind
# The attribute of a class that holds the trait of its kind, by operator.
TRAITS = {"layer_norm": "_cupyops_norm", "rms_norm": "_cupyops_rms_norm", "gelu": "_cupyops_gelu"}
_ARE_CONV1D: WeakKeyDictionary[type, bool] = WeakKeyDictionary()

Product = Callable[[Any], tuple[Tensor, Tensor | None]]
# The functions that return the weight (N, K) and the bias of a linear layer, by the ``forward`` of its class: a
# subclass with another ``forward`` is not a linear layer.
_PRODUCTS: dict[Any, Product] = {nn.Linear.forward: lambda module: (module.weight, module.bias)}


def product_of(module: nn.Module) -> Product | None:
    """Returns the function that returns the weight (N, K) and the bias of a linear layer, or None for every other
    module."""
    return _PRODUCTS.get(type(module).forward)


def _conv1d_operands(module: Any) -> tuple[Tensor, Tensor | None]:
    return module.weight.t(), module.bias


_ARE_GATES: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
# The gated units of activations that have no operator, by PyTorch's function, and by the ``forward`` of a class.
_UNITS: dict[Any, Callable[..., Tensor]] = {f: unit for f, unit in GATES.items() if f is not F.gelu}


def unit_of(activation: Any) -> Callable[..., Tensor] | None:
    """Returns the gated unit act(gate)·up of a function or a module that computes SiLU or ReLU, or None."""
    if isinstance(activation, nn.Module):
        return None if getattr(activation, "inplace", False) else _UNITS.get(type(activation).forward)
    try:
        return _UNITS.get(activation)
    except TypeError:  # an object that has no hash
        return None


def _is_gate(module: nn.Module) -> bool:
    """Returns whether a module computes SiLU or ReLU, for which :func:`unit_of` then returns a gated unit."""
    cls = type(module)
    if cls not in _ARE_GATES and not getattr(module, "inplace", False):
        function = gate_form(module)
        _ARE_GATES[cls] = function is not None
        if function is not None:
            _UNITS[cls.forward] = GATES[function]
    return unit_of(module) is not None


def leaf_of(module: nn.Module, by_functions: Callable[[type[nn.Module]], Callable[..., Any]]) -> Leaf | str | None:
    """Returns the replacement of a module, or the reason why it is left alone, or None for a module of another kind.

    Args:
        module: the module.
        by_functions: returns the ``forward`` of a class that is not of ``torch.nn`` with operators in place of PyTorch's
            functions. It computes the calls for which the operator in place of the module might return another dtype:
            under autocast, ``F.layer_norm`` returns float32, and a formula returns the dtype of its argument.
    """
    cls, sharded = type(module), is_dtensor(getattr(module, "weight", None))
    if is_optimised(cls):
        known, original = vars(cls).get(_KIND), original_class(cls)
        if not sharded or known is None or original is None or not _may_be_in_pieces(known):
            return "it is optimised already"
        kind, cls = known, original  # the module has been sharded since
    else:
        kind = FORWARDS.get(cls.forward) or _look_alike(module)
    forward: Any = cls.forward
    if kind is None and _is_gate(module):
        return unfit(module) or Leaf("gate", None)
    if kind is None or isinstance(kind, str):
        return kind
    if (reason := unfit(module)) is not None:
        return reason
    names = forward.__code__.co_varnames[: forward.__code__.co_argcount]
    if len(names) != 2 or forward.__code__.co_kwonlyargcount or forward.__code__.co_flags & 0x0C:
        return "its forward has other arguments than one tensor"
    if sharded and _may_be_in_pieces(kind):
        kind = kind._replace(in_pieces=True, plain=kind.operator != "linear" or _is_odd(module))
    if kind.operator == "linear":
        makes = kind.in_pieces or _is_odd(module)
        return Leaf(kind.operator, (lambda: made_class(cls, kind, lambda: _product(forward, kind))) if makes else None)
    return Leaf(kind.operator, lambda: made_class(cls, kind, lambda: members(by_functions(cls), kind, names[1])))


def unfit(module: nn.Module) -> str | None:
    """Returns why the class of a module must stay, or None."""
    if "forward" in vars(module):
        return "its forward has been replaced on the instance"
    if is_parametrized(module):
        return "it has parametrizations, which change its class themselves"
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "it is lazy and has no parameters yet: call the model once first"
    for name, p in module._parameters.items():
        if p is None:
            continue
        if type(p.data) not in (Tensor, nn.Parameter) and type(p.data).__name__ not in ("DTensor", "FakeTensor"):
            return f"its {name} is a {type(p.data).__name__}"
        if p.dtype not in _FLOATING:
            return f"its {name} has dtype {p.dtype}"
    return None


def _look_alike(module: nn.Module) -> _Kind | str | None:
    """Returns the kind of a module that is not a module of ``torch.nn``, found by what it computes."""
    cls = type(module)
    if isinstance(module, nn.Linear):
        return "its class has its own forward"
    if cls.__name__ == "Conv1D":
        known = _ARE_CONV1D.get(cls)
        if known is None:
            known = _ARE_CONV1D[cls] = is_conv1d(module)
            if known:
                _PRODUCTS[cls.forward] = _conv1d_operands
        return _CONV1D if known else "it does not compute x·W + b"
    if gelu_candidate(module):
        form, apart = gelu_form(lambda x: cls.forward(module, x))
        if form is None:
            return f"it differs from GELU by up to {apart:.1g}·max(1, |x|)" if "gelu" in cls.__name__.lower() else None
        # Constants of ten digits are equal within the rounding of float32, and not of float64.
        condition = "" if form.exact else "{x}.dtype is not float64"
        text = repr(form.approximate)
        trait = text if form.exact else f"None if {{x}}.dtype is float64 else {text}"
        call, small = f"gelu({{x}}, {text})", f"F.gelu({{x}}, approximate={text})"
        return _Kind("gelu", condition, call, trait, small, node=f"gelu_node({{x}}, {text})")
    if norm_candidate(module):
        norm = norm_of(module)
        if norm is None:
            named = re.search(r"layer_?norm|rms_?norm", cls.__name__, re.IGNORECASE)
            # A subclass of nn.LayerNorm calls one of PyTorch's functions, which a change of its method replaces.
            ours = isinstance(module, nn.LayerNorm | nn.RMSNorm) or named is None
            return None if ours else "it computes neither layer_norm nor rms_norm by rows"
        return _norm_kind(norm, module)
    return None


def _norm_kind(norm: Norm, module: nn.Module) -> _Kind:
    operator, eps = norm.operator, f"self.{norm.eps}" if isinstance(norm.eps, str) else repr(norm.eps)
    weight, bias = (f"self.{p}" if module._parameters.get(p) is not None else "None" for p in ("weight", "bias"))
    # A module written in elementary operations has, under autocast, the dtype of its argument.
    condition = "({x}.dtype is float32 or {x}.dtype is float64 or not is_autocast_enabled('cuda'))"
    if weight != "None":
        condition += " and self.weight.dtype is {x}.dtype"
    shape = "{x}.shape[-1:]" if weight == "None" else "self.weight.shape"
    if norm.one_more:
        weight = "1 + self.weight.to(float32)"  # in float32, as in the modules: 1 + weight in 16 bits would lose bits
    if operator == "rms_norm":
        call = f"rms_norm({{x}}, {shape}, {weight}, {eps})"
        # PyTorch has no kernel for 16-bit rows with a float32 weight.
        operands = f"({shape}, {weight}, {eps})"
        return _Kind(operator, condition, call, operands, "" if norm.one_more else f"F.{call}")
    operands = f"{shape}, {weight}, {bias}, {eps}"
    call = f"layer_norm({{x}}, {operands})"
    node = f"layer_norm_node({{x}}, {weight}, {bias}, {shape}, {eps}, None)"
    return _Kind(operator, condition, call, f"({operands})", f"F.{call}", node=node)


def _is_odd(module: Any) -> bool:
    """Returns whether the product of a linear layer in 16 bits is padded.

    A wrapper that shards parameters may hold a weight as a vector, or take the weight out of the module.
    """
    shape = getattr(getattr(module, "weight", None), "shape", ())
    return len(shape) == 2 and has_odd_rows(*shape)  # has_odd_rows(k, n), for a Conv1D, is has_odd_rows(n, k)


@cache
def _product(forward: Any, kind: _Kind) -> Mapping[str, Any]:
    """Returns the members of a linear layer that calls the operator. Classes with the same ``forward`` share the
    function, because ``_PRODUCTS`` keeps the function alive."""
    made = members(forward, kind, forward.__code__.co_varnames[1])
    _PRODUCTS[made["forward"]] = _PRODUCTS[forward]
    return made


def members(forward: Any, kind: _Kind, x: str) -> Mapping[str, Any]:
    """Returns the attributes of a class with a generated ``forward``: the method, and the trait of the kind.

    Args:
        forward: what computes the calls that the operator does not, mostly the ``forward`` of the module's own class.
        kind: the kind of the module.
        x: the name of the argument of ``forward``, which callers may pass by name.
    """
    condition = f" and {kind.condition.format(x=x)}" if kind.condition else ""
    choices = {"in_graph()": kind.node, kind.few.format(x=x): kind.small}
    plain = [
        f"    if type({x}) in PLAIN{condition}:",
        *(
            line
            for case, found in choices.items()
            if found
            for line in (f"        if {case}:", f"            return {found.format(x=x)}")
        ),
        f"        return {kind.call.format(x=x)}",
    ]
    text = [
        f"def forward(self, {x}):",
        *(plain if kind.plain else []),
        f"    if is_dtensor({x}){condition}:",
        f"        return {kind.call.format(x=x)}",
        f"    return original(self, {x})",
    ]
    scope = {
        "F": F,
        "PLAIN": PLAIN,
        "is_dtensor": is_dtensor,
        "is_small": is_small,
        "is_small_padded": is_small_padded,
        "in_graph": in_graph,
        "float32": torch.float32,
        "float64": torch.float64,
        "is_autocast_enabled": torch.is_autocast_enabled,
        "original": forward,
        "gelu_node": gelu_node,
        "layer_norm_node": layer_norm_node,
        **{f.__name__: f for f in (layer_norm, rms_norm, gelu, linear)},
    }
    found: dict[str, Any] = {"forward": inlined_only(write(f"forward of {kind.operator}", "forward", text, scope))}
    if kind.in_pieces:
        found["__call__"] = _call_in_pieces(kind)
    found[_KIND] = kind
    if kind.trait:
        lines = ["def operands(self, x):", f"    return {kind.trait.format(x='x')}"]
        found[TRAITS[kind.operator]] = write(f"operands of {kind.operator}", "operands", lines, scope)
    return found


def _may_be_in_pieces(kind: _Kind) -> bool:
    """Returns whether a class of this kind could have a ``__call__`` that computes sharded modules, and has none."""
    return kind.operator in IN_PIECES and kind is not _CONV1D and not kind.in_pieces


def _call_in_pieces(kind: _Kind) -> Any:
    """Returns the ``__call__`` of a sharded module, with its hooks and without them."""
    condition = f" and {kind.condition.format(x='args[0]')}" if kind.condition else ""
    text = [
        "def __call__(self, *args, **kwargs):",
        f"    if len(args) == 1 and not kwargs and (split := split_of(self, args[0])) is not None{condition}:",
        f"        return in_pieces(self, split, args[0], {bool(kind.small)})",
        "    return Module.__call__(self, *args, **kwargs)",
    ]
    scope = {
        "split_of": split_of,
        "in_pieces": IN_PIECES[kind.operator],
        "Module": nn.Module,
        "float32": torch.float32,
        "float64": torch.float64,
        "is_autocast_enabled": torch.is_autocast_enabled,
    }
    return inlined_only(write(f"call of {kind.operator} in pieces", "__call__", text, scope))


@cache
def by_operator(forward: Any) -> Callable[..., Any]:
    """Returns a function that takes the place of the ``forward`` of a module of ``torch.nn``, and calls the operator."""
    made: Callable[..., Any] = members(forward, FORWARDS[forward], forward.__code__.co_varnames[1])["forward"]
    return made
