"""Finds the steps of a diffusion transformer in a graph: a layer norm with a scale and a shift for each sample, alone or after
a sum with a gate for each sample."""

from collections.abc import Collection
from contextlib import suppress
from typing import Any

from torch.fx import Node

from cupyops.torch.ops.adaptive import adaptive_layer_norm, add_adaptive_layer_norm

from .nodes import LAYER_NORMS, Refused, arguments, ask, erase, fakes_of, operands_of, replace, replace_both

__all__ = ["fuse_adaptive_layer_norm", "fuse_add_adaptive_layer_norm"]


class _Modulation:
    """``n * (1 + scale) + shift`` of a layer norm n of x without weight, in a graph.

    Attributes:
        x, scale, shift, eps: the operands.
        norm: the node of n.
        inner: the nodes between x and the sum, from the last to the first.
    """

    def __init__(self, norm: Node, scale: Node, shift: Node, inner: tuple[Node, ...]) -> None:
        self.norm, self.scale, self.shift, self.inner = norm, scale, shift, inner
        self.x, self.shape, *self.parameters, self.eps = arguments(
            norm, input=None, normalized_shape=None, weight=None, bias=None, eps=1e-5
        )


def _find_modulation(y: Node) -> _Modulation | None:
    for product, shift in operands_of(y, "add"):
        for norm, more in operands_of(product, "mul"):
            for one, scale in operands_of(more, "add"):
                if not (isinstance(norm, Node) and norm.op == "call_function" and norm.target in LAYER_NORMS):
                    continue
                if one == 1 and isinstance(scale, Node) and isinstance(shift, Node):
                    return _Modulation(norm, scale, shift, (product, norm, more))
    return None


def _modulated(y: Node, devices: Collection[str]) -> tuple[_Modulation, Any, Any] | None:
    """Returns the modulation whose result is a node, and the fake tensors of x and of the result; None for another node.

    Raises:
        Refused: the operations must stay apart.
    """
    found = _find_modulation(y)
    if found is None or any(p is not None for p in found.parameters):
        return None
    of_x, of_n, of_scale, of_shift, of_y = fakes_of((found.x, found.norm, found.scale, found.shift, y), devices)
    if tuple(found.shape) != (of_x.shape[-1],) or of_n.dtype != of_x.dtype:
        raise Refused(f"its norm is of {found.shape} and {of_n.dtype}")
    if len(found.norm.users) > 1 or len(found.inner[0].users) > 1:
        raise Refused("the norm or the product is used again")
    ask("adaptive_layer_norm", of_x, of_scale, of_shift, of_n.dtype)
    return found, of_x, of_y


def fuse_adaptive_layer_norm(y: Node, devices: Collection[str]) -> bool:
    """Replaces ``layer_norm(x) * (1 + scale) + shift``. Returns and raises as the other functions do."""
    if (known := _modulated(y, devices)) is None:
        return False
    found, _, of_y = known
    with y.graph.inserting_before(y):
        new = y.graph.call_function(adaptive_layer_norm, (found.x, found.scale, found.shift, found.eps))
    new.meta = {**y.meta, "example_value": of_y}
    replace(y, new, ())
    erase(found.inner)
    return True


def fuse_add_adaptive_layer_norm(y: Node, devices: Collection[str]) -> bool:
    """Replaces ``s = residual + gate * x`` and the modulation of s. Other uses of s read the second result of the call."""
    found = _find_modulation(y)
    if found is None or (parts := _find_gated_sum(found.x, devices)) is None or _modulated(y, devices) is None:
        return False
    residual, x, gate, product = parts
    of_each = fakes_of((residual, x, gate, found.scale, found.shift), devices)
    ask("add_adaptive_layer_norm", *of_each)
    s: Any = found.x
    of_s, of_y = fakes_of((s, y), devices)
    operands = residual, x, gate, found.scale, found.shift, found.eps
    replace_both(y, s, add_adaptive_layer_norm, operands, (of_y, of_s), found.inner)
    erase((product,))
    return True


def _find_gated_sum(s: Any, devices: Collection[str]) -> tuple[Node, Node, Node, Node] | None:
    """Returns the residual, x and gate of ``residual + gate * x``, and the product; None for another node."""
    for residual, product in operands_of(s, "add"):
        for x, gate in operands_of(product, "mul"):
            nodes = residual, x, gate
            if not all(isinstance(n, Node) for n in nodes) or len(product.users) > 1:
                continue
            with suppress(Refused):
                of_residual, of_x, of_gate = fakes_of(nodes, devices)
                ask("gated_add", of_residual, of_x, of_gate)
                return residual, x, gate, product
    return None
