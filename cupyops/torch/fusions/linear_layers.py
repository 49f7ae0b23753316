"""Finds a linear layer and GELU of its result in a graph."""

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from cupyops.torch.core.composite import shipped
from cupyops.torch.ops.linear_gelu import linear_gelu

from .nodes import Refused, arguments, ask, fakes_of, replace
from .spelled import find_gelu

__all__ = ["fuse_linear_gelu"]

_VIEWS = ("view", "reshape", torch.reshape)


def fuse_linear_gelu(gelu: Node, devices: Collection[str]) -> bool:
    """Replaces ``gelu(x·Wᵀ + b)``, where the product is ``linear``, or ``addmm`` with a view of its result.

    Returns:
        Whether the node is GELU of a product.

    The result keeps its dtype: under autocast on a GPU, a form of GELU with ``torch.pow`` has a float32 result for a
    product in 16 bits.

    Raises:
        Refused: the operations must stay apart.
    """
    found = find_gelu(gelu)
    if found is None:
        return False
    view = found.z if found.z.target in _VIEWS else None
    product = found.z if view is None else view.args[0]
    if not (isinstance(product, Node) and product.op == "call_function" and _is_product(product.target)):
        return False
    is_addmm = product.target is torch.addmm
    if not is_addmm:
        x, weight, bias = arguments(product, input=None, weight=None, bias=None)
    elif len(product.args) == 3 and not product.kwargs:
        bias, x, weight = product.args  # a weight (K, N)
    else:
        return False  # addmm that scales its terms
    of_z, of_y, of_x, of_weight, *of_bias = fakes_of(
        (product, gelu, x, weight, *(() if bias is None else (bias,))), devices
    )
    if of_z.dim() == 0:
        raise Refused("the product has a dimension that the operator does not take")
    ask("linear_gelu", of_x, of_weight, *(of_bias or (None,)))
    if set(product.users) - {view, gelu} - found.inner or (view and set(view.users) - {gelu} - found.inner):
        raise Refused("the product is used again")
    graph = gelu.graph
    with graph.inserting_before(gelu):
        if is_addmm:
            weight = graph.call_method("t", (weight,))
            weight.meta = {**product.meta, "example_value": of_weight.t()}
        y = graph.call_function(linear_gelu, (x, weight, bias, found.approximate))
        y.meta = {**gelu.meta, "example_value": of_z}
        if view is not None:
            y = graph.create_node(view.op, view.target, (y, *view.args[1:]), view.kwargs)
            y.meta = dict(gelu.meta)
        if of_y.dtype != of_z.dtype:
            y.meta = {**y.meta, "example_value": of_y.to(of_z.dtype)}
            y = graph.call_method("to", (y, of_y.dtype))
            y.meta = dict(gelu.meta)
    rest = sorted(found.inner, key=list(graph.nodes).index, reverse=True)
    replace(gelu, y, (*rest, *(() if view is None else (view,)), product))
    return True


def _is_product(target: Any) -> bool:
    return target in (F.linear, torch.addmm) or target is shipped("_linear_call")
