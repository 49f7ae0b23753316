"""What an operator's body, reference and backward become before PyTorch calls them: functions around functions, one for each
thing that the dispatcher, a transform or autograd does not do by itself.

None of them knows its operator, which would then live as long as the library that holds the function.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cupyops import simulator

from .dispatch import forward_mode, has_tangent
from .gradients import Context, Schema

__all__ = ["completed", "counted", "detaching", "on_cpu", "under_transforms", "with_care", "without_tangents"]


def on_cpu(body: Callable[..., Any], reference: Callable[..., Any] | None) -> Callable[..., Any]:
    """What an operator is for CPU tensors."""

    def either(*args: Any) -> Any:
        if simulator.enabled():
            return body(*args)
        if reference is not None:
            return reference(*args)
        with simulator.simulate():
            return body(*args)

    return either


def under_transforms(find: Callable[[], Any], schema: Schema) -> Callable[..., Any]:
    """What the dispatcher calls while a transform of ``torch.func`` is active."""

    def transformed(*args: Any) -> Any:
        return find()._by_transforms(args)

    return completed(transformed, schema)


def without_tangents(name: str, implementation: Callable[..., Any]) -> Callable[..., Any]:
    """The implementation, which refuses tensors with tangents: below autograd it would drop them."""

    def checked(*args: Any) -> Any:
        if forward_mode() and has_tangent(args):
            raise RuntimeError(f"torch.ops has no forward-mode derivative of {name}: call the operator itself")
        return implementation(*args)

    return checked


def with_care(backward: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The backward of a Function of so many arguments, given a :class:`Context`."""

    def careful(ctx: Any, *grads: Any) -> Any:
        return backward(Context(ctx, count), *grads)

    return careful


def detaching(reference: Callable[..., Any], constant: Sequence[int], fixed: Sequence[int]) -> Callable[..., Any]:
    """The reference, of which some tensors get no gradient and some results take none, as of the body."""

    def plain(*args: Any) -> Any:
        found = reference(*(x.detach() if i in constant and x is not None else x for i, x in enumerate(args)))
        return tuple(y.detach() if i in fixed else y for i, y in enumerate(found)) if fixed else found

    return plain


def completed(function: Callable[..., Any], schema: Schema) -> Callable[..., Any]:
    """The function of all arguments, where the dispatcher leaves out those that have their default."""
    if not schema.defaults:
        return function
    rest = [schema.defaults.get(name) for name in schema.types]

    def complete(*args: Any) -> Any:
        return function(*args, *rest[len(args) :])

    return complete


def counted(body: Callable[..., Any], mutated: Sequence[int]) -> Callable[..., Any]:
    """The body of an operator that writes to arguments, which counts their versions up: autograd then knows that what it
    has saved of them is no more."""

    def counting(*args: Any) -> Any:
        results = body(*args)
        for i in mutated:
            if args[i] is not None and not args[i].is_inference():
                torch.autograd.graph.increment_version(args[i])
        return results

    return counting
