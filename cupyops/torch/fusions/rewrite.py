"""Rewrites the graph that Dynamo traces: an addition and a norm, a linear layer and GELU, or an activation and a product of
elements become one call.

The graph contains the calls of PyTorch's functions, without their gradients. The gradient of a call is therefore the gradient of the operator, and
the backward needs no rewriting.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import getitem, itemgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from cupyops.torch.core.composite import shipped
from cupyops.torch.ops.fused_operations import FUSED

from .fused import (
    add_gated_then_modulation,
    add_then_layer_norm,
    add_then_rms_norm,
    addmm_then_gelu,
    gelu_then_product,
    linear_then_gelu,
    norm_then_modulation,
    relu_then_product,
    silu_then_product,
    sum_then_layer_norm,
    sum_then_rms_norm,
)
from .spelled import ADDITIONS, find_gate, find_gelu, is_operation

__all__ = ["FUSIONS", "Site", "fuse_own_norms", "rewrite"]

_16_BIT = (torch.float16, torch.bfloat16)
_FLOATS = (*_16_BIT, torch.float32, torch.float64)
_LAYER_NORMS, _RMS_NORMS = (F.layer_norm, torch.layer_norm), (F.rms_norm, torch.rms_norm)
_VIEWS = ("view", "reshape", torch.reshape)


@dataclass(frozen=True)
class Site:
    """A place in a model with operations that one operator can compute together.

    Attributes:
        fusion: a key of :data:`FUSIONS`. Two norms of one sum are two places.
        where: the module that has the last of the operations, or the name of the graph's node.
        refusal: the reason why the operations are not fused; empty if they are one call.
    """

    fusion: str
    where: str
    refusal: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.fusion}" + (f", left alone: {self.refusal}" if self.refusal else "")


class _Refused(Exception):
    """The operations must stay apart. The argument is the reason."""


def rewrite(module: GraphModule, fusions: Collection[str], devices: Collection[str]) -> list[Site]:
    """Rewrites the graphs of a module in place, and returns the places found, in the order of the graph.

    Args:
        module: the graph, with the fake result of each node in ``meta["example_value"]``, as Dynamo traces it.
        fusions: keys of :data:`FUSIONS`.
        devices: the types of the devices on which tensors are fused.
    """
    sites: list[Site] = []
    for part in (m for m in module.modules() if isinstance(m, GraphModule)):
        nodes, found = list(part.graph.nodes), list[tuple[int, Site]]()
        # One fusion after the other, because two fusions may match a gate and the linear layer before it.
        for name in (n for n in FUSIONS if n in fusions):
            for i, node in enumerate(nodes):
                if node._erased:
                    continue
                try:
                    if FUSIONS[name](node, devices):
                        found.append((i, Site(name, _place(node))))
                except _Refused as refusal:
                    found.append((i, Site(name, _place(node), str(refusal))))
        if any(not site.refusal for _, site in found):
            part.graph.lint()
            part.recompile()
        sites += (site for _, site in sorted(found, key=itemgetter(0)))
    return sites


def _add_layer_norm(norm: Node, devices: Collection[str]) -> bool:
    """Replaces ``s = x + residual; y = layer_norm(s)``. Other uses of s read the second result of the call.

    A layer norm of the sum that an earlier norm has been fused with becomes a call of ``layer_norm``: for PyTorch's norm of a
    result of an operator, AOTAutograd saves float32 rows.

    Returns:
        Whether the node is the layer norm of an addition.

    Raises:
        _Refused: the operations must stay apart.
    """
    if norm.op != "call_function" or norm.target not in _LAYER_NORMS:
        return _own_norm(norm, ("layer_norm",), devices)
    s, shape, weight, bias, eps = _arguments(norm, input=None, normalized_shape=None, weight=None, bias=None, eps=1e-5)
    if (added := _added(s)) is None and not _is_fused_sum(s):
        return False
    of_s, of_y = _checked_norm(norm, s, added or (s, s), (weight, bias), devices)
    rest = shape, weight, bias, eps, None if of_y.dtype == of_s.dtype else of_y.dtype
    if added is None:
        _replace_norm(norm, sum_then_layer_norm, (s, *rest))
    else:
        _replace_both(norm, s, add_then_layer_norm, (*added, *rest), (of_y, of_s))
    return True


def _add_rms_norm(norm: Node, devices: Collection[str]) -> bool:
    """Replaces ``s = x + residual; y = rms_norm(s)``, and further RMS norms of s, as :func:`_add_layer_norm` does.

    Returns:
        Whether the node is the RMS norm of an addition.

    Raises:
        _Refused: the operations must stay apart.
    """
    if norm.op != "call_function" or norm.target not in _RMS_NORMS:
        return _own_norm(norm, ("rms_norm", "rms_norm_without_weight"), devices)
    s, shape, weight, eps = _arguments(norm, input=None, normalized_shape=None, weight=None, eps=None)
    if (added := _added(s)) is None and not _is_fused_sum(s):
        return False
    of_s, of_y = _checked_norm(norm, s, added or (s, s), (weight,), devices)
    if of_y.dtype != of_s.dtype:
        raise _Refused(f"its result is {of_y.dtype}, and the sum is {of_s.dtype}")
    if added is None:
        _replace_norm(norm, sum_then_rms_norm, (s, shape, weight, eps))
    else:
        _replace_both(norm, s, add_then_rms_norm, (*added, shape, weight, eps), (of_y, of_s))
    return True


# By name: the composite operators of a norm, and of an addition and the norm.
_OWN_NORMS = {
    "layer_norm": ("_layer_norm_call_of_y", "_add_layer_norm_call_of_y_s"),
    "rms_norm": ("_rms_norm_call", "_add_rms_norm_call"),
    "rms_norm_without_weight": ("_rms_norm_without_weight_call", "_add_rms_norm_without_weight_call"),
}


def fuse_own_norms(module: GraphModule, devices: Collection[str] = ("cuda",)) -> None:
    """Replaces additions and this project's norms of their results by one operator, in the graphs of a module.

    `optimize` replaces a norm in one module, and the addition before it may be in another module or after a branch.
    """
    for part in (m for m in module.modules() if isinstance(m, GraphModule)):
        found = False
        for node in list(part.graph.nodes):
            with suppress(_Refused):
                found |= _own_norm(node, _OWN_NORMS, devices)
        if found:
            part.graph.lint()
            part.recompile()


def _own_norm(norm: Node, names: Collection[str], devices: Collection[str]) -> bool:
    """Replaces ``s = x + residual`` and an operator of this project that normalises s, as :func:`_add_layer_norm` does.

    The operator of an addition and a norm has the arguments of the norm after x and residual, and the results y and s.

    Args:
        norm: the node.
        names: the names of the norms that are replaced.
        devices: as for :func:`rewrite`.

    Returns:
        Whether the node is such a norm of an addition.

    Raises:
        _Refused: the operations must stay apart.
    """

    name = next((n for n in names if norm.op == "call_function" and norm.target is shipped(_OWN_NORMS[n][0])), None)
    if name is None or norm.kwargs:
        return False
    s, *rest = norm.args
    added = _added(s)
    if added is None or not isinstance(s, Node):
        return False
    if not all(x.is_contiguous() for x in _fakes(added, devices)):
        raise _Refused("a term is not contiguous, and the operator would copy it")
    of_s, of_y = _checked_norm(norm, s, added, [p for p in rest if isinstance(p, Node)], devices)
    if of_y.dtype != of_s.dtype:
        if name != "layer_norm":
            raise _Refused(f"its result is {of_y.dtype}, and the sum is {of_s.dtype}")
        rest[-1] = str(of_y.dtype).removeprefix("torch.")
    _replace_both(norm, s, shipped(_OWN_NORMS[name][1]), (*added, *rest), (of_y, of_s))
    return True


def _added(s: Any) -> tuple[Node, Node] | None:
    """Returns the two tensors of an addition, or None for another node."""
    if not (isinstance(s, Node) and s.target in ADDITIONS and len(s.args) == 2 and not s.kwargs):
        return None
    x, residual = s.args
    return (x, residual) if isinstance(x, Node) and isinstance(residual, Node) else None


def _is_fused_sum(s: Any) -> bool:
    """Returns whether a node is the second result of a call that computes an addition and a norm."""
    call = s.args[0] if isinstance(s, Node) and s.target is getitem and s.args[1] == 1 else None
    return isinstance(call, Node) and call.target in (add_then_layer_norm, add_then_rms_norm)


def _checked_norm(
    norm: Node, s: Node, added: tuple[Node, Node], parameters: Sequence[Any], devices: Collection[str]
) -> tuple[Any, Any]:
    """Returns the fake tensors of the sum and of the norm.

    Raises:
        _Refused: the addition broadcasts, or the parameters have other dtypes than the operator takes.
    """
    of_x, of_residual, of_s, of_y = _fakes((*added, s, norm), devices)
    known = _fakes([p for p in parameters if p is not None], devices)
    _ask("add_layer_norm", of_x, of_residual, of_s.dtype, known)
    return of_s, of_y


def _replace_norm(norm: Node, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
    """Replaces a norm of a fused sum by a call of a function."""
    with norm.graph.inserting_before(norm):
        y = norm.graph.call_function(function, operands)
    y.meta = dict(norm.meta)
    _replace(norm, y, ())


def _replace_both(
    norm: Node,
    s: Node,
    function: Callable[..., Any],
    operands: tuple[Any, ...],
    fakes: tuple[Any, ...],
    inner: Sequence[Node] = (),
) -> None:
    """Replaces an addition and the norm of its result by one call, whose first results are the norm and the sum.

    Args:
        norm: the call of the norm, or the last of its operations.
        s: the addition.
        function, operands: the call.
        fakes: the fake results of the call.
        inner: the operations between the two, from the last to the first.

    Raises:
        _Refused: the call would have to be before one of its operands.
    """
    graph = norm.graph
    # The call is inserted where all operands are known, and before each use of the sum.
    place = {node: i for i, node in enumerate(graph.nodes)}
    at = min([norm, *(user for user in s.users if user not in inner)], key=place.__getitem__)
    if any(place[operand] >= place[at] for operand in operands if isinstance(operand, Node)):
        raise _Refused("its parameters are computed after another use of the sum")
    with graph.inserting_before(at):
        both = graph.call_function(function, operands)
        normed, total = (graph.call_function(getitem, (both, i)) for i in (0, 1))
    both.meta = {**norm.meta, "example_value": fakes}
    normed.meta, total.meta = dict(norm.meta), dict(s.meta)
    _replace(norm, normed, ())
    _erase(inner)
    _replace(s, total, ())


def _linear_gelu(gelu: Node, devices: Collection[str]) -> bool:
    """Replaces ``gelu(x·Wᵀ + b)``, where the product is ``linear``, or ``addmm`` with a view of its result.

    Returns:
        Whether the node is GELU of a product.

    The result keeps its dtype: under autocast on a GPU, a form of GELU with ``torch.pow`` has a float32 result for a
    product in 16 bits.

    Raises:
        _Refused: the operations must stay apart.
    """
    found = find_gelu(gelu)
    if found is None:
        return False
    view = found.z if found.z.target in _VIEWS else None
    product = found.z if view is None else view.args[0]
    if not (isinstance(product, Node) and product.op == "call_function" and _is_product(product.target)):
        return False
    if product.target is not torch.addmm:
        call: Callable[..., Any] = linear_then_gelu
        operands = _arguments(product, input=None, weight=None, bias=None)
    elif len(product.args) == 3 and not product.kwargs:
        call, operands = addmm_then_gelu, list(product.args)
    else:
        return False  # addmm that scales its terms
    *of_operands, of_z, of_y = _fakes((*(x for x in operands if x is not None), product, gelu), devices)
    named = dict(zip([i for i, x in enumerate(operands) if x is not None], of_operands, strict=True))
    first, *others = (named.get(i) for i in ((1, 2, 0) if call is addmm_then_gelu else (0, 1, 2)))
    if of_z.dim() == 0:
        raise _Refused("the product has a dimension that the operator does not take")
    _ask("linear_gelu", first, *others)
    if set(product.users) - {view, gelu} - found.inner or (view and set(view.users) - {gelu} - found.inner):
        raise _Refused("the product is used again")
    graph = gelu.graph
    with graph.inserting_before(gelu):
        y = graph.call_function(call, (*operands, found.approximate))
        y.meta = {**gelu.meta, "example_value": of_z}
        if view is not None:
            y = graph.create_node(view.op, view.target, (y, *view.args[1:]), view.kwargs)
            y.meta = dict(gelu.meta)
        if of_y.dtype != of_z.dtype:
            y.meta = {**y.meta, "example_value": of_y.to(of_z.dtype)}
            y = graph.call_method("to", (y, of_y.dtype))
            y.meta = dict(gelu.meta)
    rest = sorted(found.inner, key=list(graph.nodes).index, reverse=True)
    _replace(gelu, y, (*rest, *(() if view is None else (view,)), product))
    return True


def _gated(product: Node, devices: Collection[str], unit: str) -> bool:
    """Replaces ``act(gate) * up``.

    Args:
        product: the node.
        devices: as for :func:`rewrite`.
        unit: the name of the gated unit.

    Returns:
        Whether the node is a product of this activation.

    Raises:
        _Refused: the operations must stay apart.
    """
    if not is_operation(product, "mul") or len(product.args) != 2:
        return False
    for act, up in (product.args, product.args[::-1]):
        if not (isinstance(act, Node) and isinstance(up, Node)) or act is up:
            continue
        if (found := find_gate(act)) is None or found.unit != unit or up in found.inner:
            continue
        of_gate, of_up, of_y = _fakes((found.z, up, product), devices)
        _ask(unit, of_gate, of_up)
        if of_y.dtype != torch.promote_types(of_gate.dtype, of_up.dtype):
            raise _Refused(f"its result is {of_y.dtype}, and its operands are {of_gate.dtype} and {of_up.dtype}")
        if len(act.users) > 1:
            raise _Refused("the activation is used again")
        nodes = list(product.graph.nodes)
        if any(map(_writes, nodes[nodes.index(act) : nodes.index(product)])):
            raise _Refused("something is changed in place between the activation and the product")
        with product.graph.inserting_before(product):
            operands = (found.z, up, found.approximate) if found.approximate else (found.z, up)
            y = product.graph.call_function(_PRODUCTS[unit], operands)
        y.meta = dict(product.meta)
        _replace(product, y, (act, *sorted(found.inner, key=nodes.index, reverse=True)))
        return True
    return False


class _Modulation:
    """``n * (1 + scale) + shift`` of a layer norm n of x without weight, in a graph.

    Attributes:
        x, scale, shift, eps: the operands.
        norm: the node of n.
        inner: the nodes between x and the sum, from the last to the first.
    """

    def __init__(self, norm: Node, scale: Node, shift: Node, inner: tuple[Node, ...]) -> None:
        self.norm, self.scale, self.shift, self.inner = norm, scale, shift, inner
        self.x, self.shape, *self.parameters, self.eps = _arguments(
            norm, input=None, normalized_shape=None, weight=None, bias=None, eps=1e-5
        )


def _nodes_of(node: Any, operation: str) -> list[tuple[Any, Any]]:
    """Returns the operands of an addition or a product in both orders; none for another node."""
    if not is_operation(node, operation) or len(node.args) != 2:
        return []
    return [node.args, node.args[::-1]]


def _find_modulation(y: Node) -> _Modulation | None:
    for product, shift in _nodes_of(y, "add"):
        for norm, more in _nodes_of(product, "mul"):
            for one, scale in _nodes_of(more, "add"):
                if not (isinstance(norm, Node) and norm.op == "call_function" and norm.target in _LAYER_NORMS):
                    continue
                if one == 1 and isinstance(scale, Node) and isinstance(shift, Node):
                    return _Modulation(norm, scale, shift, (product, norm, more))
    return None


def _modulated(y: Node, devices: Collection[str]) -> tuple[_Modulation, Any, Any] | None:
    """Returns the modulation whose result is a node, and the fake tensors of x and of the result; None for another node.

    Raises:
        _Refused: the operations must stay apart.
    """
    found = _find_modulation(y)
    if found is None or any(p is not None for p in found.parameters):
        return None
    of_x, of_n, of_scale, of_shift, of_y = _fakes((found.x, found.norm, found.scale, found.shift, y), devices)
    if tuple(found.shape) != (of_x.shape[-1],) or of_n.dtype != of_x.dtype:
        raise _Refused(f"its norm is of {found.shape} and {of_n.dtype}")
    if len(found.norm.users) > 1 or len(found.inner[0].users) > 1:
        raise _Refused("the norm or the product is used again")
    _ask("adaptive_layer_norm", of_x, of_scale, of_shift, of_n.dtype)
    return found, of_x, of_y


def _adaptive_layer_norm(y: Node, devices: Collection[str]) -> bool:
    """Replaces ``layer_norm(x) * (1 + scale) + shift``. Returns and raises as the other functions do."""
    if (known := _modulated(y, devices)) is None:
        return False
    found, _, of_y = known
    with y.graph.inserting_before(y):
        new = y.graph.call_function(norm_then_modulation, (found.x, found.scale, found.shift, found.eps))
    new.meta = {**y.meta, "example_value": of_y}
    _replace(y, new, ())
    _erase(found.inner)
    return True


def _add_adaptive_layer_norm(y: Node, devices: Collection[str]) -> bool:
    """Replaces ``s = residual + gate * x`` and the modulation of s. Other uses of s read the second result of the call."""
    found = _find_modulation(y)
    if found is None or (parts := _find_gated_sum(found.x, devices)) is None or _modulated(y, devices) is None:
        return False
    residual, x, gate, product = parts
    of_each = _fakes((residual, x, gate, found.scale, found.shift), devices)
    _ask("add_adaptive_layer_norm", *of_each)
    s: Any = found.x
    of_s, of_y = _fakes((s, y), devices)
    operands = residual, x, gate, found.scale, found.shift, found.eps
    _replace_both(y, s, add_gated_then_modulation, operands, (of_y, of_s), found.inner)
    _erase((product,))
    return True


def _find_gated_sum(s: Any, devices: Collection[str]) -> tuple[Node, Node, Node, Node] | None:
    """Returns the residual, x and gate of ``residual + gate * x``, and the product; None for another node."""
    for residual, product in _nodes_of(s, "add"):
        for x, gate in _nodes_of(product, "mul"):
            nodes = residual, x, gate
            if not all(isinstance(n, Node) for n in nodes) or len(product.users) > 1:
                continue
            with suppress(_Refused):
                of_residual, of_x, of_gate = _fakes(nodes, devices)
                _ask("gated_add", of_residual, of_x, of_gate)
                return residual, x, gate, product
    return None


def _ask(name: str, *operands: Any) -> None:
    """Asks the table whether an operator computes fake tensors.

    Raises:
        _Refused: it does not.
    """
    if refusal := FUSED[name].refusal(*operands):
        raise _Refused(refusal)


def _erase(nodes: Iterable[Node]) -> None:
    """Removes the nodes that nothing uses, in this order."""
    for node in nodes:
        if not node.users:
            node.graph.erase_node(node)


def _writes(node: Node) -> bool:
    """Returns whether an operation may change a tensor that it gets."""
    if (schema := getattr(node.target, "_schema", None)) is not None:
        return bool(schema.is_mutable)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return (
        in_place or node.target in _IN_PLACE or bool(node.kwargs.get("inplace")) or node.kwargs.get("out") is not None
    )


_IN_PLACE = {getattr(operator, name) for name in dir(operator) if name.startswith("i") and hasattr(operator, name[1:])}
_IN_PLACE |= {operator.setitem}
_PRODUCTS: dict[str, Callable[..., Any]] = {
    "swiglu": silu_then_product,
    "geglu": gelu_then_product,
    "reglu": relu_then_product,
}
# The functions that look at one node each, and replace it if they find the last of the operations, in the order of the table.
# A gated sum alone is not one of them: Inductor fuses its elementwise operations with those beside them.
_FINDERS: dict[str, Callable[[Node, Collection[str]], bool]] = {
    **{unit: partial(_gated, unit=unit) for unit in _PRODUCTS},
    "add_adaptive_layer_norm": _add_adaptive_layer_norm,
    "adaptive_layer_norm": _adaptive_layer_norm,
    "add_layer_norm": _add_layer_norm,
    "add_rms_norm": _add_rms_norm,
    "linear_gelu": _linear_gelu,
}
FUSIONS = {name: _FINDERS[name] for name in FUSED if name in _FINDERS}


def _is_product(target: Any) -> bool:
    return target in (F.linear, torch.addmm) or target is shipped("_linear_call")


def _arguments(node: Node, **defaults: Any) -> list[Any]:
    """Returns the arguments of a call in the order of the function's parameters, with the omitted ones filled in."""
    given = dict(zip(defaults, node.args, strict=False)) | dict(node.kwargs)
    return [given.get(name, default) for name, default in defaults.items()]


def _fakes(nodes: Iterable[Any], devices: Collection[str]) -> list[Any]:
    """Returns the fake tensors of nodes.

    Raises:
        _Refused: an operator of this package does not accept these tensors.
    """
    found = [node.meta.get("example_value") if isinstance(node, Node) else None for node in nodes]
    for x in found:
        if type(x) is not FakeTensor:
            raise _Refused("an operand is not a plain tensor")
        if x.device.type not in devices:
            raise _Refused(f"a tensor is on {x.device}")
        if x.dtype not in _FLOATS:
            raise _Refused(f"a tensor is {x.dtype}")
    return found


def _replace(node: Node, by: Node, dead: Iterable[Node]) -> None:
    """Replaces a node, and removes it and the nodes that only it used."""
    node.replace_all_uses_with(by)
    for n in (node, *dead):
        n.graph.erase_node(n)


def _place(node: Node) -> str:
    """Returns the name of the module that computes a node, as ``named_modules`` has it."""
    stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    path = stack[-1] if stack else ""
    path = re.sub(r"\._modules\['(\w+)'\]", r".\1", path)  # the paths of PyTorch 2.9
    while (shorter := re.sub(r"getattr\((.*), '(\w+)'\)", r"\1.\2", path)) != path:
        path = shorter
    return re.sub(r"^L\['\w+'\]\.?", "", path) or node.name
