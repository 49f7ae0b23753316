"""Finds activations in a graph of torch.fx: as one operation, and GELU also spelled out in elementary operations."""

import itertools
import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from cupyops.torch.core.composite import shipped
from cupyops.torch.ops.gated import GATES

__all__ = ["ADDITIONS", "Gate", "find_gate", "find_gelu", "is_operation"]

ADDITIONS = (operator.add, torch.add, "add")
_TARGETS: dict[str, tuple[Any, ...]] = {
    "add": ADDITIONS,
    "mul": (operator.mul, torch.mul, "mul"),
    "div": (operator.truediv, torch.div, torch.true_divide, "div"),
    "pow": (operator.pow, torch.pow, "pow"),
    "tanh": (torch.tanh, F.tanh, "tanh"),
    "erf": (torch.erf, torch.special.erf, "erf"),
}
_COMMUTE = ("add", "mul")
_Z = "z"  # the operand of GELU in a form below

_CUBE = ("mul", 0.044715, ("pow", _Z, 3.0))
# The forms that models write, by the value of `approximate` that computes the same. In a formula, z is the operand, and
# a tuple is an operation with its operands.
_FORMS: dict[Any, str] = {
    # ½·z·(1 + tanh(√(2/π)·(z + 0.044715·z³)))
    ("mul", ("mul", 0.5, _Z), ("add", 1.0, ("tanh", ("mul", math.sqrt(2 / math.pi), ("add", _Z, _CUBE))))): "tanh",
    # ½·z·(1 + tanh(z·√(2/π)·(1 + 0.044715·z·z)))
    (
        *("mul", ("mul", 0.5, _Z)),
        (
            *("add", 1.0),
            (
                "tanh",
                (
                    *("mul", ("mul", _Z, math.sqrt(2 / math.pi))),
                    ("add", 1.0, ("mul", ("mul", 0.044715, _Z), _Z)),
                ),
            ),
        ),
    ): "tanh",
    # ½·z·(1 + erf(z/√2))
    ("mul", ("mul", 0.5, _Z), ("add", 1.0, ("erf", ("div", _Z, math.sqrt(2))))): "none",
}


class Gate:
    """An activation in a graph.

    Attributes:
        z: the node of the operand.
        unit: the name of the activation's gated unit (:data:`cupyops.torch.ops.gated.GATES`).
        approximate: ``"none"`` or ``"tanh"`` for GELU, and ``""`` for another activation.
        inner: the nodes of a form that is spelled out, without the last. Nothing outside the form uses them.
    """

    def __init__(self, z: Node, unit: str, approximate: str = "", inner: frozenset[Node] = frozenset()) -> None:
        self.z, self.unit, self.approximate, self.inner = z, unit, approximate, inner


def find_gelu(node: Node) -> Gate | None:
    """Returns the GELU whose result is the result of a node, or None."""
    if node.op == "call_function" and (node.target is F.gelu or node.target is shipped("_gelu_call")):
        approximate = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none")
        z = node.args[0] if node.args else node.kwargs.get("input")
        return Gate(z, "geglu", str(approximate)) if isinstance(z, Node) else None
    if not is_operation(node, "mul"):
        return None
    for form, approximate in _FORMS.items():
        for nodes in _matches(node, form, {}):
            z, inner = nodes.pop(_Z), frozenset(n for n in nodes.values() if n is not node)
            if all(user is node or user in inner for n in inner for user in n.users):
                return Gate(z, "geglu", approximate, inner)
    return None


def find_gate(node: Node) -> Gate | None:
    """Returns the activation whose result is the result of a node, or None. An activation in place is not a gate."""
    if (found := find_gelu(node)) is not None:
        return found
    if node.op != "call_function" or node.target not in GATES or any(node.args[1:]):
        return None
    z, *rest = (*node.args[:1], *node.kwargs.values())
    return Gate(z, GATES[node.target].__name__) if isinstance(z, Node) and not any(rest) else None


def is_operation(node: Any, operation: str) -> bool:
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return False
    return node.target in _TARGETS[operation] and not node.kwargs


def _matches(given: Any, form: Any, found: dict[Any, Node]) -> Iterator[dict[Any, Node]]:
    """Yields, for each way in which an operand of the graph matches a form, the matched nodes: the node of z under the
    key of z, every other node under itself."""
    if form == _Z:
        if isinstance(given, Node) and found.get(_Z, given) is given:
            yield {**found, _Z: given}
    elif isinstance(form, float):
        if isinstance(given, (int, float)) and math.isclose(given, form, rel_tol=1e-6):
            yield dict(found)
    elif is_operation(given, form[0]) and len(given.args) == len(form) - 1:
        orders = itertools.permutations(given.args) if form[0] in _COMMUTE else [given.args]
        for args in orders:
            ways: list[dict[Any, Node]] = [{**found, given: given}]
            for operand, part in zip(args, form[1:], strict=True):
                ways = [way for before in ways for way in _matches(operand, part, before)]
            yield from ways
