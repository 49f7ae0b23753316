"""Reads and replaces nodes of the graph that Dynamo traces, for the files that find one pattern each."""

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import getitem
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from cupyops.torch.ops.fused_operations import FUSED

from .spelled import is_operation

__all__ = [
    "LAYER_NORMS",
    "RMS_NORMS",
    "Refused",
    "arguments",
    "ask",
    "erase",
    "fakes_of",
    "operands_of",
    "replace",
    "replace_both",
    "writes",
]

LAYER_NORMS, RMS_NORMS = (F.layer_norm, torch.layer_norm), (F.rms_norm, torch.rms_norm)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Refused(Exception):
    """The operations must stay apart. The argument is the reason."""


def ask(name: str, *operands: Any) -> None:
    """Asks the table whether an operator computes fake tensors.

    Raises:
        Refused: it does not.
    """
    if refusal := FUSED[name].refusal(*operands):
        raise Refused(refusal)


def arguments(node: Node, **defaults: Any) -> list[Any]:
    """Returns the arguments of a call in the order of the function's parameters, with the omitted ones filled in."""
    given = dict(zip(defaults, node.args, strict=False)) | dict(node.kwargs)
    return [given.get(name, default) for name, default in defaults.items()]


def operands_of(node: Any, operation: str) -> list[tuple[Any, Any]]:
    """Returns the operands of an addition or a product in both orders; none for another node."""
    if not is_operation(node, operation) or len(node.args) != 2:
        return []
    return [node.args, node.args[::-1]]


def fakes_of(nodes: Iterable[Any], devices: Collection[str]) -> list[Any]:
    """Returns the fake tensors of nodes.

    Raises:
        Refused: an operator of this package does not accept these tensors.
    """
    found = [node.meta.get("example_value") if isinstance(node, Node) else None for node in nodes]
    for x in found:
        if type(x) is not FakeTensor:
            raise Refused("an operand is no plain tensor")
        if x.device.type not in devices:
            raise Refused(f"a tensor is on {x.device}")
        if x.dtype not in _FLOATS:
            raise Refused(f"a tensor is {x.dtype}")
    return found


def writes(node: Node) -> bool:
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


def replace(node: Node, by: Node, dead: Iterable[Node]) -> None:
    """Replaces a node, and removes it and the nodes that only it used."""
    node.replace_all_uses_with(by)
    for n in (node, *dead):
        n.graph.erase_node(n)


def erase(nodes: Iterable[Node]) -> None:
    """Removes the nodes that nothing uses, in this order."""
    for node in nodes:
        if not node.users:
            node.graph.erase_node(node)


def replace_both(
    norm: Node,
    s: Node,
    function: Callable[..., Any],
    operands: tuple[Any, ...],
    fakes: tuple[Any, ...],
    inner: Sequence[Node] = (),
    options: dict[str, Any] | None = None,
) -> None:
    """Replaces an addition and the norm of its result by one call, whose first results are the norm and the sum.

    Args:
        norm: the call of the norm, or the last of its operations.
        s: the addition.
        function, operands, options: the call.
        fakes: the fake results of the call.
        inner: the operations between the two, from the last to the first.

    Raises:
        Refused: the call would have to be before one of its operands.
    """
    graph = norm.graph
    # The call is inserted where all operands are known, and before each use of the sum.
    place = {node: i for i, node in enumerate(graph.nodes)}
    at = min([norm, *(user for user in s.users if user not in inner)], key=place.__getitem__)
    if any(place[operand] >= place[at] for operand in operands if isinstance(operand, Node)):
        raise Refused("its parameters are computed after another use of the sum")
    with graph.inserting_before(at):
        both = graph.call_function(function, operands, options)
        normed, total = (graph.call_function(getitem, (both, i)) for i in (0, 1))
    both.meta = {**norm.meta, "example_value": fakes}
    normed.meta, total.meta = dict(norm.meta), dict(s.meta)
    replace(norm, normed, ())
    erase(inner)
    replace(s, total, ())
