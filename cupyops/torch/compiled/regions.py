"""The parts of a graph that Inductor may compute in one kernel, and the operators in each.

A region is connected, and all its operations have the same number of other operations before them on the longest way, matrix
products for instance. No way therefore leaves a region and comes back. With ``max-autotune``, a product begins a region.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree
from torch.utils.flop_counter import flop_registry

from .common import arguments_of

__all__ = ["Region", "regions"]

_PRODUCTS = {getattr(torch.ops.aten, name) for name in ("addmm", "baddbmm", "bmm", "convolution", "mm")}


@dataclass(frozen=True)
class Region:
    """A part of a graph.

    Attributes:
        nodes: the operations, in the graph's order.
        operators: the operators among them.
        inputs: the values that the operations read from elsewhere.
        results: the operations that others read.
    """

    nodes: tuple[Node, ...]
    operators: tuple[Node, ...]
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]

    def run(self, values: Sequence[Any], references: Mapping[Node, Callable[..., Any]]) -> tuple[Any, ...]:
        """Computes the results.

        Args:
            values: those of the inputs.
            references: for operators, what computes them instead.
        """
        env = dict(zip(self.inputs, values, strict=True))
        for node in self.nodes:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), env.__getitem__)
            target: Any = node.target
            if node in references:
                args, kwargs = torch.fx.map_arg((*arguments_of(node).values(),), env.__getitem__), {}
                target = references[node]
            env[node] = target(*args, **kwargs)
        return tuple(env[node] for node in self.results)


def regions(graph: Graph, operators: Collection[Node]) -> list[Region]:
    """Returns the regions with operators.

    Args:
        graph: the graph that Inductor is about to compile.
        operators: the calls of operators that may become operations of Inductor's.
    """
    before: dict[Node, int] = {}
    leader: dict[Node, Node] = {}

    def first(node: Node) -> Node:
        while leader[node] is not node:
            leader[node] = node = leader[leader[node]]
        return node

    for node in graph.nodes:
        given = node.all_input_nodes
        begins = _is_tuned_product(node)
        before[node] = (
            max((before[x] + (x.op == "call_function" and x not in leader) for x in given), default=0) + begins
        )
        if begins or _is_fused(node, operators, leader):
            leader[node] = node
            for x in given:
                if x in leader and before[x] == before[node]:
                    leader[first(x)] = first(node)
    found: dict[Node, list[Node]] = {}
    for node in leader:
        found.setdefault(first(node), []).append(node)
    return [_region(nodes, operators) for nodes in found.values() if not operators.isdisjoint(nodes)]  # type: ignore[attr-defined]


def _is_fused(node: Node, operators: Collection[Node], leader: Collection[Node]) -> bool:
    """Returns whether Inductor computes an operation in a kernel of its own, with others."""
    from torch._inductor import lowering

    if node in operators:
        return True
    if node.target is getitem:
        return node.args[0] in leader
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
        return False
    if not any(isinstance(x, torch.Tensor) for x in _pytree.tree_leaves(node.meta.get("val"))):
        return False  # a size
    # Inductor calls a library for a fallback, and for a product it calls one or has a kernel of its own.
    return (
        node.target in lowering.lowerings
        and node.target not in lowering.fallbacks
        and node.target.overloadpacket not in flop_registry
    )


def _is_tuned_product(node: Node) -> bool:
    """Returns whether Inductor may compute a matrix product in a kernel of its own, with the operations that follow."""
    from torch._inductor import config

    tuned = config.max_autotune or config.max_autotune_gemm
    return tuned and isinstance(node.target, torch._ops.OpOverload) and node.target.overloadpacket in _PRODUCTS


def _region(nodes: Sequence[Node], operators: Collection[Node]) -> Region:
    inside = set(nodes)
    inputs = dict.fromkeys(x for node in nodes for x in node.all_input_nodes if x not in inside)
    results = (node for node in nodes if not inside.issuperset(node.users))
    return Region(tuple(nodes), tuple(n for n in nodes if n in operators), tuple(inputs), tuple(results))
