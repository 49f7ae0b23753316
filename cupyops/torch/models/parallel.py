"""Computes modules that ``parallelize_module`` has sharded by local tensors, without DTensors.

The styles ``ColwiseParallel``, ``RowwiseParallel`` and ``SequenceParallel`` give a module two hooks: one makes a DTensor of
the argument and moves its pieces between the ranks, and one makes a local tensor of the result. The hooks, DTensor's
dispatch between them, and their gradients take the host several times as long as the operators. A module that has the
hooks of one style and no others is computed by the operators on local tensors. One autograd node moves each tensor
between the ranks (:mod:`cupyops.torch.core.moves`). The functions that the hooks call determine what they do.

The collectives and their dtypes are those of the hooks: a program may add a hook or a profiler on one rank only.
Everything else is computed by the hooks: other styles, DTensors as arguments or results, meshes of several dimensions,
pieces of unequal size, graphs, dispatch modes, transforms.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as nn_module

from cupyops.torch.core.conditions import dispatch_modes, is_scripted, is_traced, transforms_active
from cupyops.torch.core.moves import Group, gathered, is_pending, local_parameter, scattered, shared, summed
from cupyops.torch.ops.layer_norm import layer_norm
from cupyops.torch.ops.linear import linear
from cupyops.torch.ops.rms_norm import rms_norm

from .small import is_small

__all__ = ["IN_PIECES", "Split", "is_changed", "split_of"]

_HOOKS = "torch.distributed.tensor._api"  # the module that makes the hooks of a style


class Split(NamedTuple):
    """How the ranks divide a module.

    Attributes:
        mesh: the mesh of the parameters, of one dimension.
        group: its process group.
        pieces: the dimension of which each rank has a piece of the argument, and needs the whole; None if nothing is
        communicated.
        alike: whether the argument is equal on all ranks, which add up its gradients.
        sums: whether each rank computes a summand of the result.
        cut: the dimension along which the ranks divide the sum; None if each rank needs the whole sum.
        weight, bias: the placements of the parameters.
        grads: the placements of the gradients of parameters that are whole.
    """

    mesh: Any
    group: Group
    pieces: int | None
    alike: bool
    sums: bool
    cut: int | None
    weight: tuple[Any, ...]
    bias: tuple[Any, ...]
    grads: tuple[Any, ...]

    def enter(self, x: Tensor) -> Tensor:
        """Returns the operand of a linear layer, for an argument of the module."""
        if self.pieces is not None:
            return gathered(x, self.group, self.pieces)
        return shared(x, self.group) if self.alike else x

    def leave(self, y: Tensor) -> Tensor:
        """Returns the module's result, for the result of a linear layer."""
        if not self.sums:
            return y
        return summed(y, self.group) if self.cut is None else scattered(y, self.group, self.cut)

    def local(self, parameter: Any) -> Any:
        """Returns the local tensor of a norm's parameter, or None for None."""
        return None if parameter is None else local_parameter(parameter, self.grads)

    def product(self, module: Any) -> tuple[Tensor, Tensor | None]:
        """Returns the local weight and bias of a linear layer. Each rank adds its part of the bias to a sum."""
        weight, bias = module.weight, module.bias
        parts = self.group.size if self.sums else 1
        of_bias = None if bias is None else local_parameter(bias, self.bias, parts)
        return local_parameter(weight, self.weight), of_bias


def split_of(module: Any, x: Any) -> Split | None:
    """Returns how the ranks divide a module, or None if the module's hooks have to compute its call.

    Args:
        module: a linear layer or a norm.
        x: its argument.
    """
    before, after = module._forward_pre_hooks, module._forward_hooks
    if len(before) != 1 or len(after) != 1 or is_traced():
        return None
    (of_argument,), (of_result,) = before.values(), after.values()
    known = _KNOWN.get(of_argument)
    if known is None or known[0] is not of_result:
        known = _KNOWN[of_argument] = of_result, _read(module, of_argument, of_result)
    split = known[1]
    if (
        split is None
        or is_changed(module)
        or "parametrizations" in module._modules  # each call computes the parameters
        or is_scripted()
        or transforms_active()
        or dispatch_modes()
        or forward_ad._current_level >= 0
        or not (type(x) is Tensor or (is_pending(x) and (split.alike or split.pieces is not None)))
        or not x.is_floating_point()
    ):
        return None
    for dim in (split.pieces, split.cut):
        if dim is not None and not dim < x.dim() - 1:
            return None
    if split.cut is not None and x.size(split.cut) % split.group.size:
        return None
    for name, placements in (("weight", split.weight), ("bias", split.bias)):
        parameter = module._parameters.get(name)
        if parameter is None:
            continue
        spec = getattr(parameter, "_spec", None)
        if spec is None or (spec.mesh is not split.mesh and spec.mesh != split.mesh) or spec.placements != placements:
            return None
    return split


def is_changed(module: Any, traced: bool = False) -> bool:
    """Returns whether a call of a module does more than its class's ``forward`` and the hooks of the forward.

    Args:
        module: the module.
        traced: whether Dynamo traces, which traces through a compiled module.
    """
    return not (
        not module._backward_hooks
        and not module._backward_pre_hooks
        and (traced or module._compiled_call_impl is None)
        and "forward" not in module.__dict__
        and not nn_module._global_forward_hooks
        and not nn_module._global_forward_pre_hooks
        and not nn_module._global_backward_hooks
        and not nn_module._global_backward_pre_hooks
    )


# By the hook of a module's argument: the hook of the result, and how the module is divided.
_KNOWN: WeakKeyDictionary[Any, tuple[Any, Split | None]] = WeakKeyDictionary()


def _read(module: nn.Module, before: Any, after: Any) -> Split | None:
    """Returns how the ranks divide a module with these hooks; None for hooks that do not come from a style."""
    of_argument, of_result = _called_by(before, "input_fn"), _called_by(after, "output_fn")
    if of_argument is None or of_result is None:
        return None
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    (to_dtensor, given, mesh), (to_local, (*placed, is_local), other) = of_argument, of_result
    if is_local is not True or mesh is not other or mesh.ndim != 1 or mesh.get_coordinate() is None:
        return None
    functions, group = (to_dtensor, to_local), Group(mesh.get_group().group_name, mesh.size())
    columns, rows, sequence = (
        (getattr(style, "_prepare_input_fn", None), getattr(style, "_prepare_output_fn", None))
        for style in (ColwiseParallel, RowwiseParallel, SequenceParallel)
    )
    whole, first, last = (Replicate(),), (Shard(0),), (Shard(-1),)
    is_linear, dims = isinstance(module, nn.Linear), [_dim_of(placements) for placements in (given[0], *placed[:1])]
    if is_linear and functions == columns and given[1] == whole and placed == [last]:
        if given[0] == whole or dims[0] is not None:
            return Split(mesh, group, dims[0], given[0] == whole, False, None, first, first, whole)
    elif is_linear and functions == rows and given == (last, last):
        if placed == [whole] or dims[1] is not None:
            return Split(mesh, group, None, False, True, dims[1], (Shard(1),), whole, whole)
    elif not is_linear and functions == sequence and dims[0] is not None:
        return Split(mesh, group, None, False, False, None, whole, whole, (Partial(),))
    return None


def _called_by(hook: Any, name: str) -> tuple[Any, tuple[Any, ...], Any] | None:
    """Returns the function that a hook of ``distribute_module`` calls, its first arguments, and the mesh, or None."""
    if getattr(hook, "__module__", "") != _HOOKS or not inspect.isfunction(hook):
        return None
    held = inspect.getclosurevars(hook).nonlocals
    function, mesh = held.get(name), held.get("device_mesh")
    return (function.func, function.args, mesh) if isinstance(function, partial) and mesh is not None else None


def _dim_of(placements: Any) -> int | None:
    """Returns the dimension of ``(Shard(dim),)``, counted from the first one; None for other placements."""
    from torch.distributed.tensor import Shard

    (placement,) = placements
    return placement.dim if type(placement) is Shard and placement.dim >= 0 else None


# Calls of sharded modules by the local tensors. `few` is whether PyTorch's function computes few elements -----------------


def _linear(module: Any, split: Split, x: Tensor, few: bool) -> Tensor:
    return split.leave(linear(split.enter(x), *split.product(module)))


def _layer_norm(module: Any, split: Split, x: Tensor, few: bool) -> Tensor:
    shape, weight, bias, eps = module._cupyops_norm(x)
    call = F.layer_norm if few and is_small(x) else layer_norm
    y: Tensor = call(x, shape, split.local(weight), split.local(bias), eps)
    return y


def _rms_norm(module: Any, split: Split, x: Tensor, few: bool) -> Tensor:
    shape, weight, eps = module._cupyops_rms_norm(x)
    call = F.rms_norm if few and is_small(x) else rms_norm
    return call(x, shape, split.local(weight), eps)


# By the operator.
IN_PIECES: dict[str, Callable[[Any, Split, Tensor, bool], Tensor]] = {
    "linear": _linear,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}
