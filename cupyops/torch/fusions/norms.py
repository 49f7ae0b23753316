"""Finds an addition and a layer norm or an RMS norm of the sum in a graph."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from operator import getitem
from typing import Any

from torch.fx import GraphModule, Node

from cupyops.torch.core.composite import shipped
from cupyops.torch.ops.add_layer_norm import add_layer_norm
from cupyops.torch.ops.add_rms_norm import add_rms_norm
from cupyops.torch.ops.layer_norm import layer_norm
from cupyops.torch.ops.rms_norm import rms_norm

from .nodes import LAYER_NORMS, RMS_NORMS, Refused, arguments, ask, fakes_of, replace, replace_both
from .spelled import ADDITIONS

__all__ = ["fuse_add_layer_norm", "fuse_add_rms_norm", "fuse_own_norms"]


def fuse_add_layer_norm(norm: Node, devices: Collection[str]) -> bool:
    """Replaces ``s = x + residual; y = layer_norm(s)``. Other uses of s read the second result of the call.

    A layer norm of the sum that an earlier norm has been fused with becomes a call of ``layer_norm``: for PyTorch's norm of a
    result of an operator, AOTAutograd saves float32 rows.

    Returns:
        Whether the node is the layer norm of an addition.

    Raises:
        Refused: the operations must stay apart.
    """
    if norm.op != "call_function" or norm.target not in LAYER_NORMS:
        return _own_norm(norm, ("layer_norm",), devices)
    s, shape, weight, bias, eps = arguments(norm, input=None, normalized_shape=None, weight=None, bias=None, eps=1e-5)
    if (added := _added(s)) is None and not _is_fused_sum(s):
        return False
    of_s, of_y = _checked_norm(norm, s, added or (s, s), (weight, bias), devices)
    rest = shape, weight, bias, eps
    dtype = {} if of_y.dtype == of_s.dtype else {"dtype": of_y.dtype}
    if added is None:
        _replace_norm(norm, layer_norm, (s, *rest), dtype)
    else:
        replace_both(norm, s, add_layer_norm, (*added, *rest), (of_y, of_s), options=dtype)
    return True


def fuse_add_rms_norm(norm: Node, devices: Collection[str]) -> bool:
    """Replaces ``s = x + residual; y = rms_norm(s)``, and further RMS norms of s, as :func:`fuse_add_layer_norm` does.

    Returns:
        Whether the node is the RMS norm of an addition.

    Raises:
        Refused: the operations must stay apart.
    """
    if norm.op != "call_function" or norm.target not in RMS_NORMS:
        return _own_norm(norm, ("rms_norm", "rms_norm_without_weight"), devices)
    s, shape, weight, eps = arguments(norm, input=None, normalized_shape=None, weight=None, eps=None)
    if (added := _added(s)) is None and not _is_fused_sum(s):
        return False
    of_s, of_y = _checked_norm(norm, s, added or (s, s), (weight,), devices)
    if of_y.dtype != of_s.dtype:
        raise Refused(f"its result is {of_y.dtype}, and the sum is {of_s.dtype}")
    if added is None:
        _replace_norm(norm, rms_norm, (s, shape, weight, eps))
    else:
        replace_both(norm, s, add_rms_norm, (*added, shape, weight, eps), (of_y, of_s))
    return True


# By name: the composite operators of a norm, and of an addition and the norm.
_OWN_NORMS = {
    "layer_norm": ("_layer_norm_call_of_y", "_add_layer_norm_call_of_y_s"),
    "rms_norm": ("_rms_norm_call", "_add_rms_norm_call"),
    "rms_norm_without_weight": ("_rms_norm_without_weight_call", "_add_rms_norm_without_weight_call"),
}


def fuse_own_norms(module: GraphModule, devices: Collection[str] = ("cuda",)) -> None:
    """Replaces additions and this project's norms of their results by one operator, in the graphs of a module.

    `optimize` replaces a norm in one module, and the addition before it may be in another module or after a branch.
    """
    for part in (m for m in module.modules() if isinstance(m, GraphModule)):
        found = False
        for node in list(part.graph.nodes):
            with suppress(Refused):
                found |= _own_norm(node, _OWN_NORMS, devices)
        if found:
            part.graph.lint()
            part.recompile()


def _own_norm(norm: Node, names: Collection[str], devices: Collection[str]) -> bool:
    """Replaces ``s = x + residual`` and an operator of this project that normalises s, as :func:`fuse_add_layer_norm` does.

    The operator of an addition and a norm has the arguments of the norm after x and residual, and the results y and s.

    Args:
        norm: the node.
        names: the names of the norms that are replaced.
        devices: as for :func:`rewrite`.

    Returns:
        Whether the node is such a norm of an addition.

    Raises:
        Refused: the operations must stay apart.
    """

    name = next((n for n in names if norm.op == "call_function" and norm.target is shipped(_OWN_NORMS[n][0])), None)
    if name is None or norm.kwargs:
        return False
    s, *rest = norm.args
    added = _added(s)
    if added is None or not isinstance(s, Node):
        return False
    if not all(x.is_contiguous() for x in fakes_of(added, devices)):
        raise Refused("a term is not contiguous, and the operator would copy it")
    of_s, of_y = _checked_norm(norm, s, added, [p for p in rest if isinstance(p, Node)], devices)
    if of_y.dtype != of_s.dtype:
        if name != "layer_norm":
            raise Refused(f"its result is {of_y.dtype}, and the sum is {of_s.dtype}")
        rest[-1] = str(of_y.dtype).removeprefix("torch.")
    replace_both(norm, s, shipped(_OWN_NORMS[name][1]), (*added, *rest), (of_y, of_s))
    return True


def _added(s: Any) -> tuple[Node, Node] | None:
    """Returns the two tensors of an addition, or None for another node."""
    if not (isinstance(s, Node) and s.target in ADDITIONS and len(s.args) == 2 and not s.kwargs):
        return None
    x, residual = s.args
    return (x, residual) if isinstance(x, Node) and isinstance(residual, Node) else None


def _is_fused_sum(s: Any) -> bool:
    """Returns whether a node is the second result of a call that computes an addition and a norm."""
    call = s.args[0] if isinstance(s, Node) and s.target is getitem and s.args[1] == 1 else None
    return isinstance(call, Node) and call.target in (add_layer_norm, add_rms_norm)


def _checked_norm(
    norm: Node, s: Node, added: tuple[Node, Node], parameters: Sequence[Any], devices: Collection[str]
) -> tuple[Any, Any]:
    """Returns the fake tensors of the sum and of the norm.

    Raises:
        Refused: the addition broadcasts, or the parameters have other dtypes than the operator takes.
    """
    of_x, of_residual, of_s, of_y = fakes_of((*added, s, norm), devices)
    known = fakes_of([p for p in parameters if p is not None], devices)
    ask("add_layer_norm", of_x, of_residual, of_s.dtype, known)
    return of_s, of_y


def _replace_norm(
    norm: Node, function: Callable[..., Any], operands: tuple[Any, ...], options: dict[str, Any] | None = None
) -> None:
    """Replaces a norm of a fused sum by a call of a function."""
    with norm.graph.inserting_before(norm):
        y = norm.graph.call_function(function, operands, options)
    y.meta = dict(norm.meta)
    replace(norm, y, ())
