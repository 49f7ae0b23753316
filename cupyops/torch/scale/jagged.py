"""Operators on jagged nested tensors, ``torch.nested.nested_tensor(..., layout=torch.jagged)``.

A jagged tensor holds the rows of all sequences in one dense tensor. An operator that can be split along the dimension of
these rows (:mod:`.sharding`) is called on the dense tensor. A result that is split along the same dimension is a jagged
tensor with the same offsets. Every other result, such as the gradient of a weight, is a dense tensor.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nested._internal.nested_tensor import NestedTensor

from .sharding import Place, Rule

__all__ = ["NestedTensor", "dispatch_rule"]


def dispatch_rule(name: str, rule: Rule, defaults: Sequence[Any], tensors: int) -> Callable[..., Any]:
    """Returns the operator's rule for ``torch.library.register_torch_dispatch`` and jagged tensors.

    Args:
        name: the operator's name, for messages.
        rule: the operator's sharding rule.
        defaults: a default of each argument of the operator, or None.
        tensors: the number of the operator's tensor arguments.

    Raises:
        RuntimeError: raised by the returned function if jagged tensors have different offsets, or the operator cannot
            be split along the jagged dimension with these arguments.
    """

    def nested(cls: Any, op: Any, types: Any, args: Sequence[Any], kwargs: Any) -> Any:
        jagged = [x for x in args if isinstance(x, NestedTensor)]
        first = jagged[0]
        if not all(_alike(x, first) for x in jagged):
            raise RuntimeError(
                f"{name}: jagged tensors must share their offsets: make them by operations on one jagged tensor"
            )
        values = [x._values if isinstance(x, NestedTensor) else x for x in args]
        found = op(*values)
        places = _places(rule, args, (*values, *defaults[len(args) :]), tensors)
        if places is None:
            shapes = ", ".join(str(tuple(x.shape)) for x in args[:tensors] if x is not None)
            raise RuntimeError(
                f"{name}: jagged tensors of shapes {shapes} are not supported: the result is not computed sequence by sequence"
            )
        rows = first._values.shape[first._ragged_idx - 1]

        def wrapped(y: torch.Tensor, place: Place) -> Any:
            # A gradient that was not requested is an empty tensor.
            if not isinstance(place, int) or y.ndim <= place or y.shape[place] != rows:
                return y
            cache = first._metadata_cache
            return NestedTensor(
                y, first.offsets(), lengths=first.lengths(), _ragged_idx=place + 1, _metadata_cache=cache
            )

        if isinstance(found, torch.Tensor):
            return wrapped(found, places[0])
        return tuple(wrapped(y, place) for y, place in zip(found, places, strict=True))

    return nested


def _alike(x: Any, other: Any) -> bool:
    """Returns whether two jagged tensors have the same sequences in the same places.

    PyTorch gives the jagged dimension a symbolic size for each tensor of offsets, or of lengths if the tensor has these.
    While a graph is traced, two tensors with one symbolic size may have two fake tensors of offsets.
    """
    if x is other:
        return True
    by_lengths = x.lengths() is not None or other.lengths() is not None
    return bool(x.shape[x._ragged_idx] == other.shape[other._ragged_idx]) and (
        not by_lengths or x.offsets() is other.offsets()
    )


def _places(rule: Rule, args: Sequence[Any], values: Sequence[Any], tensors: int) -> Sequence[Place] | None:
    """Returns the places of the results in the split along the jagged dimension, or None if there is none."""
    wanted = [x._ragged_idx - 1 if isinstance(x, NestedTensor) else None for x in args[:tensors]]
    rank = max(x.ndim for x, at in zip(values, wanted, strict=False) if at is not None)
    if any(x is not None and at is None and x.ndim > rank for x, at in zip(values, wanted, strict=False)):
        return None  # a dense tensor with a dimension for the batch
    for results, given in rule(*values):
        if all(x is None or place == at for x, place, at in zip(values, given, wanted, strict=False)):
            return results
    return None
