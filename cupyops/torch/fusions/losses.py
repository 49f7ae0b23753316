"""Finds the cross entropy of logits in 16 bits in a graph, also if the model converts them to float32 before."""

from collections.abc import Collection
from operator import getitem
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from cupyops.torch.ops.cross_entropy import cross_entropy

from .nodes import Refused, arguments, ask, fakes_of, replace, rewrite_each

__all__ = ["fuse_cross_entropy", "fuse_losses"]

# Methods that change no element, so that a conversion before them may be behind them as well.
_MOVES = ("view", "reshape", "flatten", "unflatten", "contiguous")


def fuse_losses(module: GraphModule, devices: Collection[str] = ("cuda",)) -> None:
    """Replaces the losses that :func:`fuse_cross_entropy` finds, in the graphs of a module that call an operator of this package.

    `optimize` changes modules, and the loss of a model is a function of transformers, which other models share.
    """
    parts = (m for m in module.modules() if isinstance(m, GraphModule))
    if any(getattr(node.target, "namespace", "") == "cupyops" for part in parts for node in part.graph.nodes):
        rewrite_each(module, lambda node: fuse_cross_entropy(node, devices))


def fuse_cross_entropy(loss: Node, devices: Collection[str]) -> bool:
    """Replaces ``cross_entropy(x.float(), target)`` for logits x (B, C) in 16 bits, as ``ForCausalLM`` models of transformers
    have it. The values of ``x.float()`` are those of x, and the operator computes in float32.

    Returns:
        Whether the node is the cross entropy of logits in 16 bits.

    Raises:
        Refused: the operator does not take the operands.
    """
    if loss.op != "call_function" or loss.target is not F.cross_entropy:
        return False
    wide, target, weight, average, ignored, reduced, reduction, smoothing = arguments(
        loss,
        input=None,
        target=None,
        weight=None,
        size_average=None,
        ignore_index=-100,
        reduce=None,
        reduction="mean",
        label_smoothing=0.0,
    )
    moves, x = _before_moves(wide)
    narrow = _before_conversion(x)
    if narrow is None or average is not None or reduced is not None:
        return False
    weights = [] if weight is None else [weight]
    of_loss, of_wide, of_x, *of_weights = fakes_of((loss, wide, narrow, *weights), devices)
    of_target = target.meta.get("example_value") if isinstance(target, Node) else None
    if of_x.dtype.itemsize != 2:
        return False
    if type(of_target) is not FakeTensor:
        raise Refused("its target is no plain tensor")
    ask("cross_entropy", of_wide, of_target, *(of_weights or (None,)))
    graph = loss.graph
    with graph.inserting_before(loss):
        for move in reversed(moves):
            narrow = graph.create_node(move.op, move.target, (narrow, *move.args[1:]), move.kwargs)
            narrow.meta = {**move.meta, "example_value": move.meta["example_value"].to(of_x.dtype)}
        options = {} if of_loss.dtype == of_x.dtype else {"dtype": of_loss.dtype}
        operands = narrow, target, weight, ignored, reduction, smoothing
        new = graph.call_function(cross_entropy, operands, options)
    new.meta = dict(loss.meta)
    replace(loss, new, ())
    return True


def _before_moves(x: Any) -> tuple[list[Node], Any]:
    """Returns the operations that only move elements, from the last to the first, and what they move."""
    moves: list[Node] = []
    while isinstance(x, Node) and (
        (x.op == "call_method" and x.target in _MOVES)
        or (x.op == "call_function" and (x.target is torch.reshape or (x.target is getitem and _is_slice(x.args[1]))))
    ):
        moves.append(x)
        x = x.args[0]
    return moves, x


def _is_slice(index: Any) -> bool:
    return all(i is Ellipsis or isinstance(i, slice) for i in (index if isinstance(index, tuple) else (index,)))


def _before_conversion(x: Any) -> Node | None:
    """Returns the tensor that a node converts to float32; the node itself if it is in 16 bits, and None otherwise."""
    if isinstance(x, Node) and x.op == "call_method" and (x.target, x.args[1:]) in _CONVERSIONS and not x.kwargs:
        x = x.args[0]
    return x if isinstance(x, Node) else None


_CONVERSIONS = (("float", ()), ("to", (torch.float32,)))
