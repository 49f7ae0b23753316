"""Wrappers around an operator's body, reference and backward, for registration with PyTorch. Each wrapper adds one step
that PyTorch's dispatcher, ``torch.func`` and autograd do not perform.

No wrapper holds a reference to its operator. The ``torch.library.Library`` holds the wrappers, and would keep the
operator alive.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from cupyops import simulator

from .conditions import forward_mode, has_tangent, is_compiling
from .gradients import Context, Gradient, Schema, without_autocast
from .layouts import on_fakes, with_strides_of
from .tangents import Tangents
from .tensors import PLAIN_TENSORS

__all__ = [
    "completed",
    "counted",
    "detaching",
    "on_cpu",
    "preparing",
    "shapes_of",
    "simulated",
    "transformable",
    "under_transforms",
    "with_care",
    "without_tangents",
]


def on_cpu(
    body: Callable[..., Any], reference: Callable[..., Any] | None, fake: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns the implementation for CPU tensors.

    The implementation is the reference, with results in the strides of ``fake``, by default the body. Inside
    ``cupyops.simulate()``, or if the operator has no reference, the implementation is the body, whose kernels run in the
    simulator.
    """
    plain = None if reference is None else with_strides_of(fake or body, reference)

    def either(*args: Any) -> Any:
        if plain is not None and not simulator.enabled():
            return plain(*args)
        with simulator.call():
            return body(*args)

    return either


def simulated(backward: Callable[..., Any], always: bool) -> Callable[..., Any]:
    """Returns the backward of a declared ``autograd.Function``, in which all launches on CPU tensors are simulated or none.

    Args:
        backward: the declared backward.
        always: whether the forward has run kernels. The program may have left ``cupyops.simulate()`` in the meantime,
        in this thread or another.
    """

    def either(ctx: Any, *grads: Any) -> Any:
        for grad in grads:
            if grad is not None:
                if grad.is_cpu and type(grad) in PLAIN_TENSORS and (always or simulator.enabled()):
                    with simulator.call():
                        return backward(ctx, *grads)
                break
        return backward(ctx, *grads)

    return either


def under_transforms(find: Callable[[], Any], schema: Schema) -> Callable[..., Any]:
    """Returns the implementation that the dispatcher calls while a transform of ``torch.func`` is active.

    Args:
        find: returns the operator.
        schema: the operator's schema.
    """

    def transformed(*args: Any) -> Any:
        return find()._by_transforms(args)

    return completed(without_autocast(transformed), schema)


def without_tangents(name: str, implementation: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the implementation with a check that raises RuntimeError if a tensor carries a tangent. Without the
    check, a call through ``torch.ops`` would silently drop the tangent."""

    def checked(*args: Any) -> Any:
        if forward_mode() and has_tangent(args):
            raise RuntimeError(f"torch.ops has no forward-mode derivative of {name}: call the operator itself")
        return implementation(*args)

    return checked


def with_care(backward: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Returns a function that calls the backward with ctx wrapped in a :class:`Context`.

    Args:
        backward: the backward of an ``autograd.Function``.
        count: the number of the operator's arguments.
    """

    def careful(ctx: Any, *grads: Any) -> Any:
        return backward(Context(ctx, count), *grads)

    return careful


def transformable(
    gradient: Gradient,
    name: str,
    forward: Callable[[tuple[Any, ...]], Any],
    vmap: Callable[..., Any] | None,
    count: int,
    tangents: Tangents | None = None,
) -> type[torch.autograd.Function]:
    """Returns an ``autograd.Function`` in the form that ``torch.func`` requires: with a separate ``setup_context``.

    Args:
        gradient: ``setup_context`` and ``backward``.
        name: the operator's name.
        forward: calls the registered operator with a tuple of all arguments.
        vmap: the rule of vmap, or None.
        count: the number of the operator's arguments.
        tangents: computes the tangents of the results, or None.
    """

    def packed(*args: Any) -> Any:
        return forward(args)

    setup_context, backward = gradient
    backward = with_care(backward, count)
    members: dict[str, Any] = {"forward": packed, "setup_context": setup_context, "backward": backward, "vmap": vmap}
    static = {name: staticmethod(member) for name, member in members.items()}
    if tangents is not None:
        static |= zip(("setup_context", "jvp"), map(staticmethod, tangents.function_parts(setup_context)), strict=True)
    return type(f"{name}_transformed", (torch.autograd.Function,), static)


def detaching(reference: Callable[..., Any], constant: Sequence[int], fixed: Sequence[int]) -> Callable[..., Any]:
    """Returns the reference with some arguments and results detached, so that autograd gives the declared gradients.

    Args:
        reference: the operator in plain PyTorch.
        constant: positions of the tensor arguments that get no gradient.
        fixed: positions of the results that are not differentiable.
    """

    def plain(*args: Any) -> Any:
        found = reference(*(x.detach() if i in constant and x is not None else x for i, x in enumerate(args)))
        return tuple(y.detach() if i in fixed else y for i, y in enumerate(found)) if fixed else found

    return plain


def completed(function: Callable[..., Any], schema: Schema) -> Callable[..., Any]:
    """Returns the function with omitted trailing arguments filled in. PyTorch's dispatcher omits arguments that equal
    their defaults."""
    if not schema.defaults:
        return function
    rest = [schema.defaults.get(name) for name in schema.types]

    def complete(*args: Any) -> Any:
        return function(*args, *rest[len(args) :])

    return complete


def preparing(steps: Sequence[Callable[[], None]], shapes: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the fake kernel: the function that computes fake results, before which the steps are called.

    A compiler traces the operator with fake tensors before it generates code, and DTensor computes the results' shapes
    with fake tensors before it looks for a strategy. The steps therefore run early enough to register a lowering and a sharding strategy.
    """

    def fake(*args: Any) -> Any:
        for step in steps:
            step()
        for x in args:
            if isinstance(x, torch.Tensor):
                _settle_strides(x)
        return shapes(*args)

    return fake


def shapes_of(name: str, body: Callable[..., Any], reference: Callable[..., Any] | None) -> Callable[..., Any]:
    """Returns a function of fake tensors that computes fake results: the body, or the reference if the body reads a value of
    a tensor, which a fake tensor does not have, and its steps depend on the value.

    Args:
        name: the operator's name, for the message.
        body: the body.
        reference: the operator in plain PyTorch, or None.

    Raises:
        RuntimeError: raised by the returned function if the steps of the body depend on a value, and there is no reference.
    """

    def fake(*args: Any) -> Any:
        # The numbers that the body reads become symbols. PyTorch expects each pending symbol in a result's shape.
        modes = (getattr(x, "fake_mode", None) for x in args if isinstance(x, torch.Tensor))
        env = next((mode.shape_env for mode in modes if mode is not None), None)
        pending = getattr(env, "pending_fresh_unbacked_symbols", [])
        before = len(pending)
        try:
            found = on_fakes(body, args)
        except Exception as error:
            if not _reads(error):
                raise
            del pending[before:]
            if reference is None:
                if is_compiling() and "DependentOutput" in type(error).__name__:
                    raise  # Dynamo breaks its graph here
                raise RuntimeError(
                    f"{name}: the steps of the body depend on a value of a tensor, which a traced call does not have: give "
                    "the Operator `fake=`, a function of the same arguments that returns new tensors like the results"
                ) from error
            return reference(*args)
        if len(pending) > before:
            from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols  # slow to import

            results = found if isinstance(found, (tuple, list)) else (found,)
            used = set().union(*(free_unbacked_symbols(y) for y in results if isinstance(y, torch.Tensor)))
            pending[before:] = [symbol for symbol in pending[before:] if symbol in used]
        return found

    return fake


def _reads(error: Exception) -> bool:
    """Returns whether an error on fake tensors says that they have no values."""
    kinds = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
    return type(error).__name__ in kinds or ".numpy() is not supported" in str(error)


def _settle_strides(x: torch.Tensor) -> None:
    """Guards the symbolic stride of a dimension of one element, so that the compiled graph has a constant in its place.

    If a tensor comes with other strides than in the call before, Dynamo compiles again with a symbol for each stride.
    A body asks whether the tensor is contiguous, and Dynamo then guards the strides, except those of dimensions of one
    element. A graph with a symbol left is slower: no launches are repeated, and CUDA graphs look up the symbol's value.
    A stride that a contiguous tensor would not have stays a symbol.
    """
    contiguous: Any = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if type(stride) is torch.SymInt and type(size) is int and size == 1:
            from torch.fx.experimental.symbolic_shapes import guard_or_false  # slow to import

            guard_or_false(stride == contiguous)
        contiguous = contiguous * size


def counted(body: Callable[..., Any], mutated: Sequence[int]) -> Callable[..., Any]:
    """Returns a function that calls the body and increments the version counters of the arguments that the body writes
    to. Autograd then detects that a saved tensor has been overwritten.

    Args:
        body: the operator's body.
        mutated: positions of the arguments that the body writes to.
    """

    @wraps(body)
    def counting(*args: Any) -> Any:
        results = body(*args)
        for i in mutated:
            if args[i] is not None and not args[i].is_inference():
                torch.autograd.graph.increment_version(args[i])
        return results

    return counting
