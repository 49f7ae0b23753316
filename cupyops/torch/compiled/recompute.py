"""Lets AOTAutograd recompute results of operators in the backward of a compiled graph, as it recomputes PyTorch's.

The partitioner of AOTAutograd splits a graph into forward and backward, and chooses which tensors the forward saves. It
finds the cut with the fewest bytes. A value is recomputed instead of saved only if each operation in between is in the
partitioner's list of cheap operations, which holds PyTorch's own pointwise operations. This module extends the list by
two kinds of operations:

- Elementwise operators. In ``gelu(a) * b``, for instance, the backward of the product reads ``gelu(a)``, and the backward
  of GELU reads ``a``. With GELU in the list, ``a`` and ``b`` are saved, and ``gelu(a)`` is not.
- The first result of an operator that declares a :class:`Recomputation`. ``layer_norm``, for instance, reduces rows, and
  is not in the list, as PyTorch's reductions are not. But its result y follows from x and the statistics, which its
  backward reads anyway, by pointwise operations. In ``layer_norm(x) * b``, y is not saved then, as PyTorch's is not.

For the second kind, the graph has a node :data:`recomputed` in place of the result while the partitioner chooses. After
the cut, the node is the operator's result in the forward, as before. In the backward, the operations of the recomputation
take its place, and Inductor fuses them with the operation that reads the result. The partitioner never recomputes a
tensor that the backward must write to memory, such as the operand of a matrix product. Such a result is saved. If a
kernel without matrix
products reads the result in the backward, such as that of a norm, the result is written to memory there: PyTorch's own norm would
fuse with the operations, and save the result neither. The same holds for PyTorch's own pointwise operations in front of such a kernel, if
the backward reads their operands anyway: those of ``silu(gate) * up`` in front of a norm.

The list has no public interface, and neither have the graphs before the cut and after it. If PyTorch lacks a function
that this module changes (:mod:`.private`), the forward saves more.
"""

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.fx import Graph, GraphModule, Node

from cupyops.errors import expected

from .common import Common, arguments_of, name_of, share
from .private import RECOMPUTED, has

__all__ = ["Recomputation", "allow"]

_MODULE = "torch._functorch.partitioners"
_FOLLOWS = "cupyops_follows"  # the key of a node's meta
_NAMES: set[str] = set()  # the qualified names of elementwise operators that have been traced
_READERS: set[str] = set()  # of operators without matrix products
_COMMON: dict[str, Common] = {}  # what operators declare about their results


class Recomputation:
    """How the first result of an operator is computed from the tensors that a compiled graph has saved.

    Args:
        where: the operator's name, for messages.
        function: computes the result. The names of its parameters select its arguments: inputs of the operator, and
            results other than the first.
        inputs, results: the names of the operator's inputs and results.

    Raises:
        ValueError: a parameter is not named for an input or a result; or the function reads neither another result nor all
            inputs: the graph may then have dropped an input that the operator needs.
    """

    def __init__(self, where: str, function: Callable[..., Any], inputs: Sequence[str], results: Sequence[str]) -> None:
        self.function, self.names = function, tuple(inspect.signature(function).parameters)
        self.inputs, self.results = tuple(inputs), tuple(results)
        others = results[1:]
        unknown = [name for name in self.names if name not in inputs and name not in others]
        if unknown or not (set(others) & set(self.names) or (not others and set(inputs) <= set(self.names))):
            wanted = "take inputs and results other than the first, and another result or all inputs"
            raise ValueError(expected(where, "recompute", wanted, f"({', '.join(self.names)})"))


# The recomputations of operators that have been traced. The dictionary does not keep an operator's functions alive.
_RECOMPUTATIONS: WeakValueDictionary[str, Recomputation] = WeakValueDictionary()


class _Recomputed:
    """The target of nodes ``recomputed(name, *args)``: the first result of an operator, from the arguments of the
    operator's recomputation. The partitioner compares the words of targets among processes, so they hold no address."""

    __name__ = __qualname__ = "recomputed"

    def __call__(self, name: str, *args: Any) -> Any:
        return _RECOMPUTATIONS[name].function(*args)

    def __repr__(self) -> str:
        return f"{__name__}.recomputed"


recomputed = _Recomputed()


class _Reading:
    """The target of nodes ``reading(name, *args)``: the operator of that name. While the partitioner chooses, it stands for a
    kernel that reads a recomputed result in the backward, and counts as an operation that fuses with the recomputation."""

    __name__ = __qualname__ = "reading"

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return _overload(name)(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{__name__}.reading"


reading = _Reading()


def allow(
    name: str,
    elementwise: bool,
    recomputation: Recomputation | None = None,
    common: Common | None = None,
    multiplies: bool = False,
) -> None:
    """Lets the partitioner recompute and share the results of an operator, if the partitioner is imported.

    Args:
        name: the qualified name of the operator, ``"mylib::scale"``.
        elementwise: whether the operator is elementwise.
        recomputation: how the first result follows from other tensors, or None.
        common: from which values results follow, or None.
        multiplies: whether the operator computes matrix products.
    """
    partitioners: Any = sys.modules.get(_MODULE)
    if not multiplies:
        _READERS.add(name)
    if common is None:
        _COMMON.pop(name, None)  # an earlier operator of this name may have declared it
    else:
        _COMMON[name] = common
    if not (elementwise or recomputation or common) or partitioners is None or not has(RECOMPUTED):
        return
    if elementwise:
        _NAMES.add(name)
    if recomputation is not None:
        _RECOMPUTATIONS[name] = recomputation
    for function, changed in _CHANGED.items():
        original = getattr(partitioners, function)
        if not hasattr(original, "cupyops"):
            setattr(partitioners, function, changed(original))
            getattr(partitioners, function).cupyops = True


def _extended(original: Any) -> Any:
    @functools.wraps(original)
    def get_default_op_list() -> Any:
        found = original()
        cheap = [recomputed]
        for name in _NAMES:
            namespace, _, short = name.partition("::")
            packet = getattr(getattr(torch.ops, namespace), short, None)  # None: the operator has been removed
            if packet is not None:
                cheap.append(packet)
        found.recomputable_ops.update(cheap)
        found.fusible_ops.update([*cheap, reading])
        return found

    return get_default_op_list


def _in_front(original: Any) -> Any:
    @functools.wraps(original)
    def classify_nodes(joint: GraphModule, *args: Any, **kwargs: Any) -> Any:
        for node in list(joint.graph.nodes):
            _replace_result(node)
        info = original(joint, *args, **kwargs)
        # An operation is not recomputed if it reads a tensor later than an operation that does not fuse. Here that is the
        # operator itself, which must precede the node because of its other results.
        for node in joint.graph.find_nodes(op="call_function", target=recomputed):
            own = _operator_of(node)
            if own in info.fw_order and node in info.fw_order:
                info.fw_order[node] = info.fw_order[own] - 0.5
        follow = _following(joint.graph, info.is_required_fw)
        for node in list(joint.graph.nodes):
            if node.target is recomputed or name_of(node) in _NAMES:
                _replace_readers(node, info.is_required_fw)
            elif node in follow:
                node.meta[_FOLLOWS] = True
                _replace_readers(node, info.is_required_fw)
        return info

    return classify_nodes


def _weighed(original: Any) -> Any:
    @functools.wraps(original)
    def solve_min_cut(joint: Graph, *args: Any, **kwargs: Any) -> Any:
        # The partitioner doubles the bytes of a tensor that only operations read which fuse, as if it were not written
        # otherwise. A kernel may write the operands of a recomputation, so that saving the result, too, would cost the
        # same.
        for reader in joint.find_nodes(op="call_function", target=reading):
            for node in reader.all_input_nodes:
                if node.target is recomputed or name_of(node) in _NAMES or _FOLLOWS in node.meta:
                    node.dist_from_bw += 1
        return original(joint, *args, **kwargs)

    return solve_min_cut


def _behind(original: Any) -> Any:
    @functools.wraps(original)
    def extract(joint: GraphModule, saved: list[Node], *args: Any, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
        share(saved, _COMMON, recomputed)
        forward, backward = original(joint, saved, *args, **kwargs)
        readers = backward.graph.find_nodes(op="call_function", target=reading)
        for node in readers:
            node.target, node.args = _overload(node.args[0]), node.args[1:]
        if readers:
            backward.recompile()
        for module, put in ((forward, _put_operator), (backward, _put_operations)):
            nodes = module.graph.find_nodes(op="call_function", target=recomputed)
            for node in nodes:
                put(module.graph, node)
            if nodes:
                module.recompile()
        return forward, backward

    return extract


_CHANGED: dict[str, Callable[[Any], Any]] = {
    "get_default_op_list": _extended,
    "classify_nodes": _in_front,  # the first step that reads the joint graph
    "solve_min_cut": _weighed,
    "_extract_fwd_bwd_modules": _behind,
}


def _replace_result(node: Node) -> None:
    """Redirects the readers of a node's first result to a node :data:`recomputed`, if the operator declares how to
    recompute it."""
    target: Any = node.target
    found = _RECOMPUTATIONS.get(target.name()) if isinstance(target, torch._ops.OpOverload) else None
    if found is None or "recompute" in node.meta:  # the policy of a checkpoint decides about this node
        return
    graph, values = node.graph, arguments_of(node)
    firsts, last = [node], node
    if len(found.results) > 1:
        readers = {user.args[1]: user for user in reversed(list(node.users))}
        firsts = [user for user in node.users if user.args[1] == 0]
        for i, name in enumerate(found.results):
            if name in found.names:
                if i not in readers:
                    with graph.inserting_after(last):
                        readers[i] = graph.call_function(operator.getitem, (node, i))
                    readers[i].meta = {**node.meta, "val": node.meta["val"][i]}
                last.append(readers[i])
                last = values[name] = readers[i]
    if not firsts:
        return
    with graph.inserting_after(last):
        again = graph.call_function(recomputed, (target.name(), *(values[name] for name in found.names)))
    again.meta = dict(firsts[0].meta)
    for first in firsts:
        first.replace_all_uses_with(again)
        graph.erase_node(first)


def _following(joint: Graph, is_required_fw: Callable[[Node], bool]) -> set[Node]:
    """Returns the nodes of the forward that PyTorch's cheap operations compute from inputs and from tensors that the backward
    reads anyway, as ``silu(gate) * up``. A sum is not one of them: the backward does not read its operands."""
    cheap = set(sys.modules[_MODULE].get_default_op_list().recomputable_ops)
    found: set[Node] = set()
    for node in joint.nodes:
        if getattr(node.target, "overloadpacket", None) not in cheap or not is_required_fw(node):
            continue
        operands = node.all_input_nodes
        known = (x.op == "placeholder" or x in found or not all(map(is_required_fw, x.users)) for x in operands)
        if operands and all(known):
            found.add(node)
    return found


def _replace_readers(node: Node, is_required_fw: Callable[[Node], bool]) -> None:
    """Inserts a node :data:`reading` for each kernel of the backward that reads a node, or a view of it."""
    for user in list(node.users):
        name = name_of(user)
        if getattr(user.target, "is_view", False):
            _replace_readers(user, is_required_fw)
        elif name in _READERS and name not in _NAMES and not is_required_fw(user):
            user.target, user.args = reading, (name, *user.args)


def _overload(name: Any) -> Any:
    namespace, _, short = str(name).partition("::")
    return getattr(getattr(torch.ops, namespace), short).default


def _operator_of(node: Node) -> Any:
    """Returns the operator's node, one of whose other results a node :data:`recomputed` reads; None if it reads none."""
    name, *given = node.args
    found = _RECOMPUTATIONS[str(name)]
    others: Any = (x for parameter, x in zip(found.names, given, strict=True) if parameter in found.results)
    return next((x.args[0] for x in others), None)


def _put_operator(graph: Graph, node: Node) -> None:
    """Puts the operator's own result in the place of a node of the forward."""
    name, *given = node.args
    assert isinstance(name, str)
    found = _RECOMPUTATIONS[name]
    values: dict[str, Any] = dict(zip(found.names, given, strict=True))
    own = _operator_of(node)
    with graph.inserting_before(node):
        if own is None:
            result = graph.call_function(_overload(name), tuple(values[x] for x in found.inputs))
        else:
            result = graph.call_function(operator.getitem, (own, 0))
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _put_operations(graph: Graph, node: Node) -> None:
    """Puts the operations of the recomputation in the place of a node of the backward."""
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.proxy_tensor import make_fx

    inductor = sys.modules.get("torch._inductor.decomposition")
    name, *rest = node.args
    operands, result = node.all_input_nodes, node.meta["val"]

    def function(*values: Any) -> Any:
        given = dict(zip(operands, values, strict=True))
        found = recomputed(str(name), *torch.fx.map_arg(rest, given.__getitem__))
        if found.dtype != result.dtype or found.shape != result.shape:
            wanted, got = (f"{x.dtype} of shape {tuple(x.shape)}" for x in (result, found))
            raise ValueError(expected(str(name), "recompute", f"return the first result, {wanted}", got))
        # Views in the graph rely on the strides of the result.
        return found.contiguous() if result.is_contiguous() else found

    values = [x.meta["val"] for x in operands]
    # Inductor expects the operations of its own decompositions.
    table = inductor.select_decomp_table() if inductor else None
    with torch.no_grad(), torch._C._DisableAutocast(), detect_fake_mode(values) or nullcontext():
        traced = make_fx(function, decomposition_table=table)(*values)
    copies: dict[Node, Any] = dict(zip(traced.graph.find_nodes(op="placeholder"), operands, strict=True))
    with graph.inserting_before(node):
        copied = graph.graph_copy(traced.graph, copies)
    for old, new in copies.items():
        if old.op != "placeholder":
            new.meta = {**node.meta, **old.meta}
    assert isinstance(copied, Node)
    node.replace_all_uses_with(copied)
    graph.erase_node(node)
