"""The calls of an operator that Dynamo traces into one node of a graph.

Dynamo guards each Python object that it reads while it traces: globals, attributes, cells. A compiled step checks all
guards before it runs, which takes the host's time. Where the general dispatch would call the registered operator with the
arguments as they are, the generated dispatch therefore calls the registered operator itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import is_autocast_enabled, is_tensor
from torch.autograd import forward_ad

from cupyops.torch.compiled.rules import Rule, decomposes

__all__ = ["Nodes", "is_node"]


def is_node(devices: Sequence[str], required: Sequence[Any], optional: Sequence[Any]) -> bool:
    """Returns whether a call that Dynamo traces needs nothing but the registered operator.

    A call that autocast converts, a call in forward mode, and a call with a wrong argument need the general dispatch.

    Args:
        devices: the types of device for which the operator has an autocast policy.
        required: the arguments that must be tensors.
        optional: the arguments that may be None.
    """
    if forward_ad._current_level >= 0:
        return False
    for device in devices:
        if is_autocast_enabled(device):
            return False
    for x in required:
        if not is_tensor(x):
            return False
    for x in optional:  # noqa: SIM110 (Dynamo guards the generator of an expression)
        if x is not None and not is_tensor(x):
            return False
    return True


class Nodes:
    """Writes the part of an operator's generated dispatch that Dynamo traces.

    Args:
        op: the registered operator.
        policies: the policies of autocast, by the type of device.
        plain: the reference, or None.
        rule: what the operator is in a graph (:mod:`cupyops.torch.compiled.rules`).
    """

    def __init__(
        self, op: Any, policies: Mapping[str, str], plain: Callable[..., Any] | None, rule: str | Rule
    ) -> None:
        self._op, self._devices = op, tuple(policies)
        self._plain, self._rule = plain, "kernel" if plain is None else rule
        self._scopes: list[dict[str, Any]] = []

    def source(
        self, tensors: Mapping[str, bool], others: Sequence[str], results: str = "", condition: str = ""
    ) -> list[str]:
        """Returns the lines that call the operator, or the reference, if Dynamo traces the call.

        Args:
            tensors: the names of the tensor arguments, and whether each may be None.
            others: the names of the other arguments.
            results: which results the lines return, such as ``"[0]"``.
            condition: an expression of the arguments; if False, the general dispatch takes the call.
        """
        arguments = ", ".join([*tensors, *others])
        required, optional = (_tuple(t for t, may in tensors.items() if may is kind) for kind in (False, True))
        called = f"op({arguments})"
        if self._rule != "kernel":
            rule = repr(self._rule) if isinstance(self._rule, str) else "rule"
            called = f"(plain if decomposes(name, {rule}, ({arguments},)) else op)({arguments})"
        also = f" and {condition}" if condition else ""
        return [
            f"    if is_traced() and is_node({_tuple(map(repr, self._devices))}, {required}, {optional}){also}:",
            f"        return {called}{results}",
        ]

    def parts(self) -> dict[str, Any]:
        """Returns the globals that the lines need."""
        found = {"op": self._op, "plain": self._plain, "rule": self._rule, "name": self._op._opname}
        return {**found, "is_node": is_node, "decomposes": decomposes}

    def keep(self, scope: dict[str, Any]) -> dict[str, Any]:
        """Returns the globals of generated code, in which :meth:`replace` replaces the operator."""
        self._scopes.append(scope)
        return scope

    def replace(self, call: Callable[..., Any]) -> None:
        """Has the generated code call another function in place of the operator."""
        for scope in self._scopes:
            scope["op"] = call


def _tuple(expressions: Iterable[str]) -> str:
    """Returns the text of a tuple.

    >>> _tuple(["x"])
    '(x,)'
    """
    return f"({', '.join(expressions)},)".replace("(,)", "()")
