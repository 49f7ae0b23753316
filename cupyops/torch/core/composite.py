"""The operators that stand for a call in a graph that Dynamo traces.

Dynamo guards each Python object that it reads while it traces: globals, attributes, cells, code. A compiled step checks all
guards before it runs, which takes the host's time. While Dynamo traces, the generated dispatch of an operator therefore makes
one call of another operator, with the same arguments, and reads nothing else. That operator is composite
(``CompositeImplicitAutograd`` in PyTorch's dispatcher): its implementation is the general dispatch. It runs when AOTAutograd
traces Dynamo's graph, and AOTAutograd's graph has the operations that it calls.
"""

from collections.abc import Callable
from typing import Any

import torch

from .gradients import Schema
from .implementations import completed

__all__ = ["define", "node_of"]


def define(schema: Schema, name: str, count: int, call: Callable[..., Any]) -> tuple[torch.library.Library, Any]:
    """Defines a composite operator with the arguments of another operator.

    Args:
        schema: the schema of the other operator.
        name: the name of the composite operator, without a namespace.
        count: how many of the results the composite operator returns; the first ones.
        call: takes the arguments and returns these results. The library holds it, so it must hold no reference to an
            Operator.

    Returns:
        The library that holds the definition, and the ``OpOverload``.
    """
    library = torch.library.Library(schema.namespace, "FRAGMENT")
    arguments = schema.text[schema.text.index("(") : schema.text.rindex("->")]
    results = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    library.define(f"{name}{arguments}-> {results}", tags=(torch.Tag.pt2_compliant_tag,))
    implementation = completed(call, schema)
    # torch.func has no rule for operators of torch.library. The second key intercepts a call while a transform is active.
    for key in ("CompositeImplicitAutograd", "FuncTorchDynamicLayerFrontMode"):
        library.impl(name, implementation, key)
    return library, getattr(getattr(torch.ops, schema.namespace), name).default


def node_of(call: Callable[..., Any]) -> Any:
    """Returns the composite operator of a generated dispatch. Other code that Dynamo traces calls it where
    :func:`.dispatch.in_graph` is true, and leaves the dispatch out."""
    return call.__globals__["composite"]
