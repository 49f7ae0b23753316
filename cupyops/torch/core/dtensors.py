"""Calls of an operator on DTensors by the local tensors, without DTensor's own dispatch.

If the placements of the tensors are those of a declared split (:mod:`cupyops.torch.scale.sharding`), each rank computes
its piece of the results from its pieces of the tensors. DTensor dispatches each operation, such as a view or autocast's
conversion of a tensor, and a selective checkpoint asks its policy about each of them. Here, DTensor's sharding
propagation is asked once for each choice of placements, shapes, dtypes and other arguments. A call whose tensors have to
move is left to DTensor, except that a whole tensor may become the summand of each rank.

An ``autograd.Function`` encloses the call. Its backward is the operator's, and the operators in the backward are called
on DTensors in the same way. The Function saves DTensors, so that gradients can be differentiated.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from cupyops.torch.scale.distributed import dtensor, propagated, summands
from cupyops.torch.scale.sharding import Rule

from .autocast import autocast_dtypes
from .conditions import alone, dispatch_modes, grad_enabled, is_compiling, selective, transforms_active
from .dispatch import fast_function, function_of
from .gradients import Gradient

__all__ = ["on_dtensors"]

_MOST = 4096  # plans of an operator


class _Plan(NamedTuple):
    """How the calls with one key are computed.

    Attributes:
        dtypes: the dtypes to which autocast converts the tensors, by their positions.
        body: computes the results of DTensors by the local tensors.
        apply: records the call for autograd.
    """

    dtypes: Mapping[int, torch.dtype]
    body: Callable[..., Any]
    apply: Callable[..., Any]


def on_dtensors(
    name: str,
    op: Any,
    call: Callable[..., Any],
    rule: Rule | None,
    prepare: Callable[[], None],
    gradient: Gradient | None,
    count: int,
    policies: Mapping[str, str],
) -> Callable[[tuple[Any, ...]], Any]:
    """Returns a function of an operator's arguments that returns the results of a call on DTensors, and None for a call
    that DTensor computes, or that is not a call on DTensors.

    Args:
        name: the operator's name.
        op: the registered operator.
        call: the operator, called on local tensors.
        rule: the operator's sharding rule, or None.
        prepare: registers the operator's sharding strategy with DTensor.
        gradient: ``setup_context`` and ``backward`` of the operator, or None.
        count: the number of the operator's tensors, which come first.
        policies: the policies of autocast by the type of device.
    """
    plans: dict[Any, _Plan | None] = {}

    def plan_of(args: tuple[Any, ...], dtypes: Mapping[int, torch.dtype]) -> _Plan | None:
        # Modes, such as that of a checkpoint, must not see DTensor's computations with fake tensors.
        with _disable_current_modes(), torch.no_grad():
            prepare()
            given = (*(_with_dtype(x, dtypes.get(i)) for i, x in enumerate(args[:count])), *args[count:])
            try:
                asked = propagated(op, given)
            except Exception:  # DTensor's own call raises the error, and says which operator it was
                return None
            divided = None if rule is None or asked is None else summands(rule, given, count, *asked)
        if gradient is None or asked is None or divided is None:
            return None
        body = _body(call, count, divided, asked[1])
        return _Plan(dtypes, body, fast_function(f"{name}_on_dtensors", body, *gradient))

    def found(args: tuple[Any, ...]) -> Any:
        kind, first = dtensor(), args[0]
        if rule is None or type(first) is not kind:
            return None
        if forward_ad._current_level >= 0 or transforms_active() or not _modes_allow():
            return None
        mesh, tensors = first._spec.mesh, args[:count]
        key: list[Any] = []
        wanted = autocast_dtypes(policies).get(mesh.device_type) if policies else None
        for x in tensors:
            if x is None:
                key.append(None)
                continue
            if type(x) is not kind:
                return None
            spec = x._spec
            if spec.mesh is not mesh and spec.mesh != mesh:
                return None
            key.append((spec.placements, spec.tensor_meta, x._local_tensor.dtype))
        others = tuple(tuple(a) if isinstance(a, (list, tuple)) else a for a in args[count:])
        whole = mesh, wanted, *key, *others
        try:
            known = whole in plans
        except TypeError:  # a symbolic size has no hash
            return None
        if not known:
            if len(plans) >= _MOST:
                plans.clear()
            plans[whole] = plan_of(args, _conversions(tensors, wanted))
        plan = plans.get(whole)
        if plan is None:
            return None
        if plan.dtypes:
            args = tuple(_converted(x, plan.dtypes[i]) if i in plan.dtypes else x for i, x in enumerate(args))
        if grad_enabled() and any(x is not None and x.requires_grad for x in args[:count]):
            return plan.apply(*args)
        return plan.body(*args)

    return found


def _body(
    call: Callable[..., Any], count: int, divided: Sequence[tuple[int, int]], specs: Sequence[Any]
) -> Callable[..., Any]:
    """Returns a function that computes the results of DTensors by the local tensors.

    Args:
        call, count: as for :func:`on_dtensors`.
        divided: positions of whole tensors that become summands, and the numbers of summands.
        specs: the specification of each result as a DTensor.
    """

    def body(*args: Any) -> Any:
        local: list[Any] = [x if x is None else _local(x) for x in args[:count]]
        for i, parts in divided:
            with _hidden(local[i]):
                local[i] = local[i] / parts
        found, kind = call(*local, *args[count:]), type(args[0])
        if isinstance(found, torch.Tensor):
            return _wrapped(kind, found, specs[0])
        return tuple(y if y is None else _wrapped(kind, y, s) for y, s in zip(found, specs, strict=True))

    return body


def _local(x: Any) -> Any:
    """Returns the local tensor of a DTensor. A tensor that a collective has not yet computed is waited for."""
    local = x._local_tensor
    wait = None if type(local) is torch.Tensor else getattr(local, "trigger_wait", None)
    return local if wait is None else wait()


def _wrapped(kind: Any, local: Any, spec: Any) -> Any:
    """Returns a DTensor. ``DTensor.__init__`` does nothing, and takes the host some microseconds."""
    return kind.__new__(kind, local, spec, requires_grad=False)


def _hidden(local: Any) -> AbstractContextManager[Any]:
    """Hides operations on a plain local tensor from the policy of a checkpoint, as :func:`.conditions.alone` describes
    it."""
    plain = type(local) is torch.Tensor and dispatch_modes() and alone()
    return torch._C._DisableTorchDispatch() if plain else _NOTHING


_NOTHING: AbstractContextManager[Any] = nullcontext()


def _modes_allow() -> bool:
    """Returns whether no dispatch mode is to see the operator on DTensors.

    The modes of ``torch.distributed`` look at local tensors. A selective checkpoint is asked about local tensors, in the
    forward and again in the backward, whatever modes are beside it.
    """
    if not dispatch_modes():
        return True
    if is_compiling():
        return False
    if selective():
        return True
    modes = _get_current_dispatch_mode_stack()
    return all(type(mode).__module__.startswith("torch.distributed.") for mode in modes)


# Conversions under autocast ------------------------------------------------------------------------------------------


def _conversions(tensors: Sequence[Any], dtype: torch.dtype | None) -> dict[int, torch.dtype]:
    """Returns the dtypes of the tensors that autocast converts, by their positions."""
    if dtype is None:
        return {}
    given = enumerate(tensors)
    return {
        i: dtype for i, x in given if x is not None and x.is_floating_point() and x.dtype not in (dtype, torch.float64)
    }


def _with_dtype(x: Any, dtype: torch.dtype | None) -> Any:
    """Returns a DTensor in another dtype. The specification has the dtype of the tensor, which is not so for a parameter
    that both tensor parallelism and FSDP shard (:func:`cupyops.torch.scale.distributed.correct_dtypes`)."""
    if x is None:
        return None
    local, spec = x._local_tensor, x._spec
    dtype = local.dtype if dtype is None else dtype
    if local.dtype is not dtype:
        local = local.to(dtype)
    if local.requires_grad:  # PyTorch warns if a DTensor does not require grad and its local tensor does
        local = local.detach()
    if spec.tensor_meta.dtype is not dtype:
        key = spec.mesh, spec.placements, getattr(spec, "shard_order", None), spec.tensor_meta, dtype
        known = _SPECS.get(key)
        if known is None:
            if len(_SPECS) >= _MOST:
                _SPECS.clear()
            known = _SPECS[key] = replace(spec, tensor_meta=spec.tensor_meta._replace(dtype=dtype))
        spec = known
    return _wrapped(type(x), local, spec)


# Specifications with another dtype. Making one takes the host as long as a launch.
_SPECS: dict[Any, Any] = {}


def _to(ctx: Any, x: Any, dtype: torch.dtype) -> Any:
    ctx.materialize_grads = False  # zeros would be a plain tensor
    ctx.dtype = x.dtype
    return _with_dtype(x, dtype)


def _back(ctx: Any, grad: Any) -> Any:
    return None if grad is None else _converted(grad, ctx.dtype), None


_apply_to = function_of("to_on_dtensors", _to, _back)


def _converted(x: Any, dtype: torch.dtype) -> Any:
    """Returns a DTensor in another dtype, differentiably. Parameters are converted without the policy of a checkpoint,
    as plain parameters are."""
    if not (grad_enabled() and x.requires_grad):
        return _with_dtype(x, dtype)
    if not x.is_leaf:
        return _apply_to(x, dtype)
    with _hidden(x._local_tensor):
        return _apply_to(x, dtype)
