"""Converts the tensors of a call as autocast does."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from cupyops.errors import expected

from .conditions import alone, grad_enabled, is_traced
from .tensors import DTYPE_NAMES

__all__ = ["autocast_dtypes", "cast", "cast_all", "policies_of"]

# Autocast converts these dtypes.
_CONVERTED = frozenset(d for d in DTYPE_NAMES if d.is_floating_point and d is not torch.float64)
_einsum = torch._C._VariableFunctions.einsum  # type: ignore[attr-defined]


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a tensor on a GPU in the dtype that autocast requires.

    Autocast caches the copies of parameters: float32 leaves that require grad. An ATen operator that autocast converts
    has access to the cache, and a Python function has not. ``einsum`` of one operand is such an operator: it returns a
    view of its operand, here of the cached copy. If PyTorch does not convert the operand, this function does.

    A copy that was cached under ``no_grad`` has no gradient. The function returns another copy if autograd records.
    """
    given = x.dtype
    if given not in _CONVERTED:
        return x
    if given is torch.float32 and x.requires_grad and x.is_leaf:
        found: Tensor = _einsum("...->...", (x,))
        if found.dtype is dtype and (found.requires_grad or not grad_enabled()):
            return found
    return x.to(dtype)


def policies_of(autocast: str | Mapping[str, str | None] | None) -> dict[str, str]:
    """Returns the policies of autocast by the type of device, without those that convert nothing.

    Raises:
        ValueError: a policy is none of None, "float32" and "lower".
    """
    policies = autocast if isinstance(autocast, Mapping) else {"cuda": autocast, "cpu": autocast}
    if not {None, "float32", "lower"}.issuperset(policies.values()):
        raise ValueError(expected("Operator", "autocast", "be None, 'float32' or 'lower'", repr(autocast)))
    return {device: policy for device, policy in policies.items() if policy is not None}


def autocast_dtypes(policies: Mapping[str, str]) -> dict[str, torch.dtype]:
    """Returns the dtypes to which autocast converts tensors, by the type of device, where autocast is enabled.

    Args:
        policies: the policy, ``"float32"`` or ``"lower"``, by the type of device.
    """
    return {
        device: torch.float32 if policy == "float32" else torch.get_autocast_dtype(device)
        for device, policy in policies.items()
        if torch.is_autocast_enabled(device)
    }


def cast_all(args: tuple[Any, ...], tensors: Sequence[tuple[int, str]], policies: Mapping[str, str]) -> tuple[Any, ...]:
    """Returns the arguments of a call, with the tensors converted that autocast converts. The general dispatch calls
    this.

    Args:
        args: the arguments.
        tensors: positions and names of the tensors.
        policies: the policy, ``"float32"`` or ``"lower"``, by the type of device.
    """
    dtypes = autocast_dtypes(policies)
    if not dtypes:
        return args
    converted = list(args)
    hidden = not is_traced() and alone()  # Dynamo cannot trace the number of modes
    for i, _ in tensors:
        x = args[i]
        wanted = None if x is None else dtypes.get(x.device.type)
        # A call of `to` that converts nothing is left out: it takes host time.
        if wanted is None or x.dtype is wanted or not x.is_floating_point() or x.dtype is torch.float64:
            continue
        if hidden and type(x) is Parameter:
            with torch._C._DisableTorchDispatch():
                converted[i] = x.to(wanted)
        else:
            converted[i] = x.to(wanted)
    return tuple(converted)
