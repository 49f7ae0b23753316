"""The operators that represent a call in a graph that Dynamo traces.

Dynamo guards each Python object that it reads while it traces: globals, attributes, cells, code. A compiled step checks all
guards before it runs, which takes the host's time. While Dynamo traces, the generated dispatch of an operator therefore makes
one call of another operator, with the same arguments, and reads nothing else. That operator is composite
(``CompositeImplicitAutograd`` in PyTorch's dispatcher): its implementation is the general dispatch. It runs when AOTAutograd
traces Dynamo's graph, and AOTAutograd's graph has the operations that it calls.

AOTAutograd caches traced graphs on disk, with Dynamo's graph as the key. That graph does not contain the implementation, so the name
of the overload identifies it. For a shipped operator it is a hash of this package's code. An operator of other code has
a new name in each process, since no hash covers the functions that its reference or its backward calls: AOTAutograd
traces its gradient again in another process, unless its author gives it a version. If its reference may be in the
graph, by ``compiled=``, Dynamo traces the general dispatch itself, and the graph has the operator or the reference (for
their keys see :mod:`cupyops.torch.compiled.keys`).
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from cupyops.torch.compiled.rules import Rule

from .dispatch import write_call
from .gradients import Schema
from .implementations import completed

__all__ = ["Composites", "node_of", "shipped"]


# The libraries that hold the definitions. A definition stays: torch.export keeps composite operators in dictionaries, whose keys
# would change if a definition ended during an export. It calls the newest Operator of the name.
_LIBRARIES: list[torch.library.Library] = []
_DEFINED: dict[tuple[str, str, str], Any] = {}


class Composites:
    """The composite operators of an Operator, each with the generated dispatch that calls it while Dynamo traces.

    Args:
        schema: the Operator's schema.
        rule: the form of the Operator in a graph (:mod:`cupyops.torch.compiled.rules`).
        policies: the policies of autocast, by the type of device.
        code: a key for the Operator's code (:func:`cupyops.torch.compiled.keys.code_of`).
        find: returns the Composites of the newest Operator of the name, or None.

    Attributes:
        used: whether there are composite operators; if not, Dynamo traces the general dispatch.
    """

    def __init__(
        self,
        schema: Schema,
        rule: str | Rule,
        policies: Mapping[str, str],
        code: str,
        find: Callable[[], "Composites | None"],
    ) -> None:
        self._schema, self._find = schema, find
        self.used = (rule in ("kernel", "auto") or schema.namespace == "cupyops") and not schema.mutated
        text = f"{code} {schema.text} {getattr(rule, '__qualname__', rule)} {sorted(policies.items())}"
        self._overload = f"of_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self._all: list[Callable[[tuple[Any, ...]], Any]] = []  # the implementations
        self._scopes: list[dict[str, Any]] = []  # the globals of the generated dispatches

    def write(
        self, text: str, parts: dict[str, Any], count: int, first: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        """Compiles the text of a generated dispatch, and defines the composite operator that it calls, if it is to call one.

        Args:
            text: the text (:func:`.dispatch.call_source`).
            parts: the functions that the text calls. ``dispatch`` is also the implementation of the composite operator.
            count: how many results ``dispatch`` returns.
            first: called in place of ``body`` until one call of it has returned.
        """
        schema, find, number = self._schema, self._find, len(self._all)
        names = schema.name, [*schema.types]
        if not self.used:
            plain: Callable[..., Any] = write_call(text, parts, *names, first)
            return plain
        shown = "" if count == len(schema.results) else "_".join(("_of", *schema.results[:count]))
        name = f"_{schema.name}_call{shown}"

        def composite(*args: Any) -> Any:
            if (newest := find()) is None:
                whole = f"{schema.namespace}::{schema.name}"
                raise RuntimeError(
                    f"{whole} is not declared any more: its Operator has been garbage collected; keep it alive"
                )
            return newest._all[number](args)

        self._all.append(parts["dispatch"])
        key = schema.namespace, name, self._overload
        op = _DEFINED.get(key) or _DEFINED.setdefault(key, _define(schema, name, self._overload, count, composite))
        written: Callable[..., Any] = write_call(text, {**parts, "composite": op}, *names, first)
        self._scopes.append(written.__globals__)
        return written

    def withdraw(self, call: Callable[..., Any]) -> None:
        """Makes the generated dispatches call another function in place of the composite operators."""
        for scope in self._scopes:
            scope["composite"] = call


def _define(schema: Schema, name: str, overload: str, count: int, call: Callable[..., Any]) -> Any:
    """Defines a composite operator with the arguments of another operator.

    Args:
        schema: the schema of the other operator.
        name, overload: the name of the composite operator, without a namespace, and of its overload.
        count: the composite operator returns this many of the first results.
        call: takes the arguments and returns these results. It must hold no reference to an Operator.

    Returns:
        The ``OpOverload``.
    """
    library = torch.library.Library(schema.namespace, "FRAGMENT")
    text = schema.registered
    arguments = text[text.index("(") : text.rindex("->")]
    results = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    library.define(f"{name}.{overload}{arguments}-> {results}", tags=(torch.Tag.pt2_compliant_tag,))
    implementation = completed(call, schema)
    # torch.func has no rule for operators of torch.library. The second key intercepts a call while a transform is active.
    for key in ("CompositeImplicitAutograd", "FuncTorchDynamicLayerFrontMode"):
        library.impl(f"{name}.{overload}", implementation, key)
    _LIBRARIES.append(library)
    return getattr(getattr(getattr(torch.ops, schema.namespace), name), overload)


@cache
def shipped(name: str) -> Any:
    """Returns the composite operator of this package with a name, such as ``"_gelu_call"``."""
    packet = getattr(torch.ops.cupyops, name)
    (overload,) = packet.overloads()
    return getattr(packet, overload)


def node_of(call: Callable[..., Any]) -> Any:
    """Returns the composite operator of a generated dispatch. Other code that Dynamo traces calls it where
    :func:`.conditions.in_graph` is true, and leaves the dispatch out."""
    return call.__globals__["composite"]
