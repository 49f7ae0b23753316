"""Saves only one of equal results of different operators for the backward of a compiled graph.

PyTorch computes a common subexpression of a graph once, so that its forward saves the value once. Two layer norms of the
same rows with other weights have the same statistics, but they are different calls, and the forward saved the statistics of
each. An operator therefore declares from which values a result follows. If two results that a graph saves follow from equal
values by the same computation, the backward reads the first one in place of the second.

Both may differ in the last bits, where two operators sum in another order.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from torch._ops import OpOverload
from torch.fx import Node

from cupyops.errors import expected

__all__ = ["Common", "arguments_of", "name_of", "share"]


class Common:
    """The values from which results of an operator follow.

    Args:
        namespace, name: those of the operator.
        declared: for the name of a result, the name of a computation, and the names of the inputs and results that the
            computation reads.
        inputs, results: the names of the operator's inputs and results.

    Raises:
        ValueError: a name is unknown, or the operator has one result.
    """

    def __init__(
        self,
        namespace: str,
        name: str,
        declared: Mapping[str, Sequence[str]],
        inputs: Sequence[str],
        results: Sequence[str],
    ) -> None:
        wanted = "name one of several results, a computation, and the inputs and other results that it reads"
        self.inputs, self.results = tuple(inputs), tuple(results)
        self.computations = dict[str, tuple[str, ...]]()
        if not isinstance(declared, Mapping):
            raise ValueError(expected(name, "common", wanted, repr(declared)))
        for result, words in declared.items():
            read = set(words[1:]) if isinstance(words, tuple | list) else set()
            if len(results) < 2 or result not in results or not read or not read <= {*inputs, *results} - {result}:
                raise ValueError(expected(name, "common", wanted, f"{result!r}: {words!r}"))
            # Another library may give the name to another computation.
            self.computations[result] = f"{namespace}::{words[0]}", *words[1:]

    def value(self, call: Node, i: int) -> tuple[Any, ...] | None:
        """Returns the values that determine the result ``i`` of a call of the operator, or None if nothing is declared
        for it."""
        computation = self.computations.get(self.results[i])
        if computation is None:
            return None
        results = {name: (call, i) for i, name in enumerate(self.results)}
        given = map(_key_of, arguments_of(call).values())  # PyTorch may have other names (Schema.registered)
        values = dict(zip(self.inputs, given, strict=True)) | results
        return computation[0], *(values[name] for name in computation[1:])


def share(saved: Sequence[Node], declarations: Mapping[str, Common], apart: Any) -> None:
    """Redirects the readers of equal results in a backward to the first of them. AOTAutograd then does not save the
    others.

    Args:
        saved: the nodes of the joint graph that the forward saves.
        declarations: by the qualified names of operators.
        apart: the target of nodes that read the results of their own operator.
    """
    firsts: dict[Any, Node] = {}
    places = {node: i for i, node in enumerate(saved[0].graph.nodes)} if saved else {}
    # A reader may be in the forward: its operands must come before it.
    for node in sorted(saved, key=places.__getitem__):
        call: Any = node.args[0] if node.target is operator.getitem else None
        found = declarations.get(name_of(call)) if isinstance(call, Node) else None
        value = found and found.value(call, node.args[1])  # type: ignore[arg-type]
        if not value:
            continue
        val = node.meta["val"]
        first = firsts.setdefault((*value, val.dtype, str(val.shape)), node)
        for reader in list(node.users) if first is not node else ():
            if reader.op != "output" and reader.target is not apart:
                reader.replace_input_with(node, first)


def _key_of(argument: Any) -> Any:
    """Returns an argument in a form that can be a key of a dictionary."""
    if isinstance(argument, Node) and argument.target is operator.getitem:
        return argument.args
    return tuple(argument) if isinstance(argument, list | tuple) else argument


def arguments_of(node: Node) -> dict[str, Any]:
    """Returns the arguments of a node of an operator by their names, with the defaults of those that it leaves out."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = [node.kwargs.get(a.name, a.default_value) for a in arguments]
    return dict(zip([a.name for a in arguments], [*node.args, *given[len(node.args) :]], strict=True))


def name_of(node: Node) -> str:
    """Returns the qualified name of the operator that a node calls, or an empty text."""
    return str(node.target.name()) if isinstance(node.target, OpOverload) else ""
