"""The functions that autograd calls for an operator: its body, and a gradient from a backward, an ``autograd.Function``
or the reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .conditions import in_plain_backward
from .declared import declared, recorded
from .dispatch import fast_function, function_of, once
from .gradients import Gradient, Schema, of_reference, refused, without_autocast
from .implementations import counted, simulated

__all__ = ["Derivatives", "counting", "derivatives_of"]


@dataclass(frozen=True)
class Derivatives:
    """The functions that autograd calls for an operator.

    Attributes:
        schema: the operator's schema.
        body: computes the results. If the operator writes to its arguments, the body increments their version counters.
        gradient: ``setup_context`` and ``backward``, or None if the operator writes to its arguments.
        recording, declared: the ``recording`` and the ``backward`` of a declared ``autograd.Function``, or None.
        backward: the operator of the gradient, or None if the gradient is declared in another form.
        arguments: the names of the arguments of ``backward``.
        wrt: the inputs whose gradients ``backward`` returns, in order.
        fixed: positions of results that are not differentiable.
        constant: positions of tensors that get no gradient.
        by_reference: whether the gradient is that of the reference.
    """

    schema: Schema
    body: Callable[..., Any]
    gradient: Gradient | None
    recording: Callable[..., Any] | None = None
    declared: Callable[..., Any] | None = None
    backward: Any = None
    arguments: Sequence[str] = field(default=())
    wrt: Sequence[str] = field(default=())
    fixed: tuple[int, ...] = ()
    constant: tuple[int, ...] = ()
    by_reference: bool = False

    def function(self, eager: Callable[..., Any], held: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the method ``apply`` of the Function on plain tensors, in the form with the least host time.

        Args:
            eager: the body for plain tensors.
            held: the body for the first call. It checks the results against the schema.
        """
        assert self.gradient is not None
        if self.backward is None or self.backward._autocast:
            setup_context, backward = self.gradient
            if self.declared is not None:
                backward = simulated(self.declared, always=True)
            return fast_function(self.schema.name, eager, setup_context, backward, self.recording, first=held)
        scope = {"body_": eager, "gradient_": self.backward.eager, "call_": self.backward.call}
        once(scope, "body_", held)
        once(scope, "gradient_", self.backward._held)
        scope["plain_"] = in_plain_backward
        shared = self.backward._shared
        return function_of(self.schema.name, *recorded(self.schema, self.arguments, self.wrt, shared, scope))


def counting(schema: Schema, body: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a body that increments the version counters of the arguments to which the operator writes, or ``body`` if there are none."""
    mutated = [i for i, name in enumerate(schema.tensors) if name in schema.mutated]
    return counted(body, mutated=mutated) if mutated else body


def derivatives_of(
    schema: Schema,
    implementation: Any,
    backward: Any,
    wrt: str | Sequence[str] | None,
    plain: Callable[..., Any] | None,
    operator_for: Callable[[Any, Sequence[str]], Any],
    mend: str = "",
) -> Derivatives:
    """Returns the functions that autograd calls for an operator.

    Args:
        schema: the operator's schema.
        implementation, backward, wrt: as for the operator.
        plain: the reference without autocast, or None.
        operator_for: returns the operator of ``backward``, given the inputs whose gradients it returns.
        mend: how to declare a gradient, for the error of an operator without one; by default that of :func:`refused`.

    Raises:
        ValueError: the backward has an unknown name.
    """
    if schema.mutated:
        return Derivatives(schema, counting(schema, implementation), None)
    if isinstance(implementation, type):
        function: Any = implementation
        of_function = without_autocast(function.backward)
        gradient = function.setup_context, simulated(of_function, always=plain is None)
        return Derivatives(schema, function.forward, gradient, getattr(function, "recording", None), of_function)
    if backward is None:
        if plain is not None:
            setup_context, of_plain = of_reference(plain)
            gradient = setup_context, without_autocast(of_plain)
            return Derivatives(schema, implementation, gradient, by_reference=True)
        return Derivatives(schema, implementation, refused(schema.name, mend) if mend else refused(schema.name))
    names = tuple(schema.tensors if wrt is None else [wrt] if isinstance(wrt, str) else wrt)
    backward = operator_for(backward, names)
    arguments = [*Schema.parse(backward.schema).types]
    return Derivatives(
        schema,
        implementation,
        declared(schema, arguments, backward.call, names, backward._shared),
        backward=backward,
        arguments=arguments,
        wrt=names,
        fixed=tuple(i for i, result in enumerate(schema.results) if f"grad_{result}" not in arguments),
        constant=tuple(i for i, name in enumerate(schema.tensors) if name not in names),
    )
