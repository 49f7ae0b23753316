"""Calls under selective activation checkpointing, ``torch.utils.checkpoint.create_selective_checkpoint_contexts``.

A policy of the user decides for each operator that PyTorch dispatches whether its results are saved. A policy could
only save both results of an operator that computes a product and GELU, or recompute both. An operator with ``parts``
is therefore called in parts: the policy decides about each part, and a policy for PyTorch's own operators finds them.

An ``autograd.Function`` encloses the call. The registered operator's own Python layer of autograd takes more host time.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from .autocast import cast_all
from .conditions import alone, grad_enabled, transforms_active
from .dispatch import fast_function
from .gradients import Gradient, without_autocast
from .tensors import PLAIN_TENSORS

__all__ = ["checkpointed", "of_plain_tensors"]


def checkpointed(
    name: str, op: Any, parts: Callable[..., Any] | None, gradient: Gradient, by_parts: bool = False
) -> Callable[[tuple[Any, ...], bool], Any]:
    """Returns the call of an operator under selective checkpointing, ``call(args, recorded)``.

    Args:
        name: the operator's name.
        op: the registered operator.
        parts: computes the operator's results by other differentiable operators; None to call ``op``.
        gradient: ``setup_context`` and ``backward`` of the operator, for the Function that encloses a recorded call.
        by_parts: whether autograd records the parts, without the Function.
    """

    def whole(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args)

    function = without_autocast(parts or whole)
    apply = function if by_parts else fast_function(f"{name}_checkpointed", function, *gradient)

    def call(args: tuple[Any, ...], recorded: bool) -> Any:
        return apply(*args) if recorded else function(*args)

    return call


def of_plain_tensors(
    call: Callable[[tuple[Any, ...], bool], Any] | None,
    tensors: Sequence[tuple[int, str]],
    optional: Container[str],
    policies: Mapping[str, str],
) -> Callable[[tuple[Any, ...]], Any]:
    """Returns a function of an operator's arguments that returns the results of a call on plain tensors in a selective
    checkpoint, and None for every other call.

    The general dispatch would reach the same call after conditions that take some microseconds, in the forward and again
    in the backward.

    Args:
        call: what :func:`checkpointed` returned; None for an operator that is never called so.
        tensors: positions and names of the tensors, which come first.
        optional: the names of the tensors that may be None.
        policies: the policies of autocast by the type of device.
    """
    count = len(tensors)
    required = [i for i, name in tensors if name not in optional]

    def found(args: tuple[Any, ...]) -> Any:
        if call is None or not alone():
            return None
        given = [x for x in args[:count] if x is not None]
        if (
            not PLAIN_TENSORS.issuperset(map(type, given))
            or (len(given) < count and any(args[i] is None for i in required))
            or forward_ad._current_level >= 0
            or transforms_active()
        ):
            return None
        recorded = grad_enabled() and any(x.requires_grad for x in given)
        return call(cast_all(args, tensors, policies) if policies else args, recorded)

    return found
