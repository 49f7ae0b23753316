"""Differentiable conversions between DTensors and local tensors: collectives, and the pieces of parameters.

DTensor computes the same by several autograd nodes for each tensor, whose Python takes the host longer than the kernels of
a layer take the GPU. Here a tensor that moves between the ranks is one node, and so is a parameter that becomes its local
tensor. Each node's backward is a node of the same kind, so that gradients can be differentiated.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cupyops.torch.scale.distributed import dtensor

from .conditions import grad_enabled
from .dispatch import function_of

__all__ = ["Group", "gathered", "is_pending", "local_parameter", "scattered", "shared", "summed"]


class Group(NamedTuple):
    """The ranks that tensors move between: the name of the process group, and the number of its ranks."""

    name: str
    size: int


def is_pending(x: Any) -> bool:
    """Returns whether x is a tensor that a collective may still compute (``AsyncCollectiveTensor``)."""
    return hasattr(type(x), "trigger_wait")


def _gather(x: Tensor, group: Group, dim: int) -> Tensor:
    found = _done(torch.ops._c10d_functional.all_gather_into_tensor.default(x.contiguous(), group.size, group.name))
    return found if dim == 0 else torch.cat(found.chunk(group.size), dim)


def _scatter(x: Tensor, group: Group, dim: int) -> Tensor:
    x = x.contiguous() if dim == 0 else torch.cat(x.chunk(group.size, dim))
    return _done(torch.ops._c10d_functional.reduce_scatter_tensor.default(x, "sum", group.size, group.name))


def _sum(x: Tensor, group: Group, dim: int) -> Tensor:
    return _done(torch.ops._c10d_functional.all_reduce.default(x.contiguous(), "sum", group.name))


def _same(x: Tensor, group: Group, dim: int) -> Tensor:
    return x.view_as(x)  # a Function must not return its argument


def _done(x: Tensor) -> Tensor:
    found: Tensor = torch.ops._c10d_functional.wait_tensor.default(x)
    return found


# The gradient of each collective is another collective.
_DUAL: dict[Callable[..., Tensor], Callable[..., Tensor]] = {
    _gather: _scatter,
    _scatter: _gather,
    _sum: _same,
    _same: _sum,
}


def _move(ctx: Any, x: Any, how: Callable[..., Tensor], group: Group, dim: int) -> Tensor:
    ctx.materialize_grads = False
    ctx.back = _DUAL[how], group, dim
    return how(x.trigger_wait() if is_pending(x) else x, group, dim)


def _move_back(ctx: Any, grad: Any) -> Any:
    return None if grad is None else _moved(grad, *ctx.back), None, None, None


_moved = function_of("moved_between_ranks", _move, _move_back)


def gathered(x: Tensor, group: Group, dim: int) -> Tensor:
    """Returns the pieces of all ranks along a dimension. The gradients of all ranks are added up."""
    found: Tensor = _moved(x, _gather, group, dim)
    return found


def scattered(x: Tensor, group: Group, dim: int) -> Tensor:
    """Returns this rank's piece, along a dimension, of the sum over the ranks. The gradient is gathered."""
    found: Tensor = _moved(x, _scatter, group, dim)
    return found


def summed(x: Tensor, group: Group) -> Tensor:
    """Returns the sum over the ranks, of which each rank knows the gradient."""
    found: Tensor = _moved(x, _sum, group, 0)
    return found


def shared(x: Tensor, group: Group) -> Tensor:
    """Returns x, a tensor that is equal on all ranks. The gradients of all ranks are added up."""
    found: Tensor = _moved(x, _same, group, 0)
    return found


# Parameters ------------------------------------------------------------------------------------------------------------


def _local(ctx: Any, x: Any, placements: tuple[Any, ...], parts: int) -> Tensor:
    ctx.materialize_grads = False
    ctx.kept = x._spec, placements, parts
    local: Tensor = x._local_tensor
    return local.view_as(local) if parts == 1 else local / parts


def _local_back(ctx: Any, grad: Any) -> Any:
    if grad is None:
        return None, None, None
    if is_pending(grad):
        grad = grad.trigger_wait()
    if grad_enabled() and grad.requires_grad:
        return _placed(grad, *ctx.kept), None, None
    spec, placements, _ = ctx.kept
    return _as_dtensor(grad, spec, placements), None, None


def _place(ctx: Any, x: Tensor, spec: Any, placements: tuple[Any, ...], parts: int) -> Any:
    ctx.materialize_grads = False
    ctx.kept = spec, placements, parts
    return _as_dtensor(x.view_as(x), spec, placements)


def _place_back(ctx: Any, grad: Any) -> Any:
    if grad is None:
        return None, None, None, None
    spec, placements, parts = ctx.kept
    return _of_parameter(grad.redistribute(placements=spec.placements), placements, parts), None, None, None


_of_parameter = function_of("local_parameter", _local, _local_back)
_placed = function_of("placed_as_parameter", _place, _place_back)


def local_parameter(x: Any, placements: tuple[Any, ...], parts: int = 1) -> Tensor:
    """Returns the local tensor of a DTensor.

    Args:
        x: the DTensor, whose local tensor is contiguous.
        placements: those of its gradient.
        parts: the number of summands into which a whole tensor is divided. Each summand has the gradient of the sum.
    """
    found: Tensor = _of_parameter(x, placements, parts)
    return found


def _as_dtensor(local: Tensor, spec: Any, placements: tuple[Any, ...]) -> Any:
    """Returns the DTensor of a local tensor, with the shape and the strides of a specification."""
    meta = spec.tensor_meta
    key = spec.mesh, spec.placements, meta, placements, local.dtype
    known = _SPECS.get(key)
    if known is None:
        if len(_SPECS) >= _MOST:
            _SPECS.clear()
        of_grad = meta if meta.dtype is local.dtype else meta._replace(dtype=local.dtype)
        known = _SPECS[key] = type(spec)(spec.mesh, placements, tensor_meta=of_grad)
    kind = dtensor()
    return kind.__new__(kind, local.contiguous(), known, requires_grad=False)


_SPECS: dict[Any, Any] = {}
_MOST = 4096  # specifications
