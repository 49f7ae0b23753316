"""Finds SiLU, GELU or ReLU of a tensor, and its product with another tensor, in a graph."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import Node

from cupyops.torch.ops.gated import geglu, reglu, swiglu

from .nodes import Refused, ask, fakes_of, replace, writes
from .spelled import find_gate, is_operation

__all__ = ["UNITS", "fuse_gated"]


UNITS: dict[str, Callable[..., Any]] = {
    "swiglu": swiglu,
    "geglu": geglu,
    "reglu": reglu,
}


def fuse_gated(product: Node, devices: Collection[str], unit: str) -> bool:
    """Replaces ``act(gate) * up``.

    Args:
        product: the node.
        devices: as for :func:`rewrite`.
        unit: the name of the gated unit.

    Returns:
        Whether the node is a product of this activation.

    Raises:
        Refused: the operations must stay apart.
    """
    if not is_operation(product, "mul") or len(product.args) != 2:
        return False
    for act, up in (product.args, product.args[::-1]):
        if not (isinstance(act, Node) and isinstance(up, Node)) or act is up:
            continue
        if (found := find_gate(act)) is None or found.unit != unit or up in found.inner:
            continue
        of_gate, of_up, of_y = fakes_of((found.z, up, product), devices)
        ask(unit, of_gate, of_up)
        if of_y.dtype != torch.promote_types(of_gate.dtype, of_up.dtype):
            raise Refused(f"its result is {of_y.dtype}, and its operands are {of_gate.dtype} and {of_up.dtype}")
        if len(act.users) > 1:
            raise Refused("the activation is used again")
        nodes = list(product.graph.nodes)
        if any(map(writes, nodes[nodes.index(act) : nodes.index(product)])):
            raise Refused("something is changed in place between the activation and the product")
        with product.graph.inserting_before(product):
            operands = (found.z, up, found.approximate) if found.approximate else (found.z, up)
            y = product.graph.call_function(UNITS[unit], operands)
        y.meta = dict(product.meta)
        replace(product, y, (act, *sorted(found.inner, key=nodes.index, reverse=True)))
        return True
    return False
