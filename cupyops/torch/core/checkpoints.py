"""Calls under selective activation checkpointing, ``torch.utils.checkpoint.create_selective_checkpoint_contexts``.

A policy of the user decides for each operator that PyTorch dispatches whether its results are saved. An operator that
computes a product and GELU would be saved whole, with both results, or computed again whole. An operator with ``parts``
is therefore called in parts: the policy decides about each part, and a policy for PyTorch's own operators finds them.

An ``autograd.Function`` encloses the call. The registered operator's own Python layer of autograd takes more host time.
"""

from collections.abc import Callable
from typing import Any

import torch

from .dispatch import fast_function
from .gradients import Gradient

__all__ = ["checkpointed"]


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

    function = parts or whole
    apply = function if by_parts else fast_function(f"{name}_checkpointed", function, *gradient)

    def call(args: tuple[Any, ...], recorded: bool) -> Any:
        return apply(*args) if recorded else function(*args)

    return call
