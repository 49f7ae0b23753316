"""Forward mode: the tangents of an operator's results, by a declared ``jvp`` or by the operator's reference.

A tangent is a directional derivative. In forward mode (``torch.func.jvp``, ``torch.autograd.forward_ad``) a tensor
carries its tangent from operator to operator. The tangents of a declared ``jvp`` come from an operator, which can be
differentiated and batched itself, so that transforms nest. Forward mode within forward mode runs the reference.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

from cupyops import simulator
from cupyops.errors import nearest

from .conditions import dispatch_modes, forward_mode, has_tangent, is_compiling, transforms_active
from .gradients import Schema, named_for_its_arguments, of_the_first, pullback, type_of
from .tensors import PLAIN_TENSORS

__all__ = ["Tangents", "jvp_of_reference", "options_of_jvp", "with_tangents"]


def options_of_jvp(
    schema: Schema,
    function: Callable[..., Any],
    wrt: Sequence[str],
    fixed: Collection[int],
    reference: Callable[..., Any] | None,
) -> dict[str, Any]:
    """Returns the arguments of the :class:`Operator` that computes tangents, for a ``jvp`` that was declared as a function.

    The reference of this operator computes the tangents of the given reference, if the function takes all inputs.

    Args:
        schema: the schema of the operator.
        function: the declared function. The names of its parameters select its arguments; tensors come first.
        wrt: the inputs that have a derivative.
        fixed: positions of the results that are not differentiable.
        reference: the operator in plain PyTorch, or None.
    """
    parameters = inspect.signature(function).parameters
    names, body = list(parameters), function
    lacking = [x for x in schema.types if x not in names]
    if reference is not None and lacking and not any(x in schema.tensors for x in lacking):
        # The derivative of the tangents differentiates the reference, which needs all numbers.
        body, names = of_the_first(function, len(names)), [*names, *lacking]
    may_be_none = {name for name, parameter in parameters.items() if parameter.default is None}
    types = [_type_of(schema, name, name in may_be_none) for name in names]
    taken = [i for i in range(len(schema.results)) if i not in fixed]
    arguments = ", ".join(f"{kind} {name}" for kind, name in zip(types, names, strict=True))
    results = ", ".join(f"Tensor tangent_{schema.results[i]}" for i in taken)
    tangents, mend = None, "give the operator a reference, or an Operator with a gradient as its jvp"
    # A function without a tangent_x is refused by Tangents.
    if reference is not None and {*schema.types, *(f"tangent_{x}" for x in wrt)} <= set(names):
        tangents = jvp_of_reference(reference, schema, names, wrt, taken)
    elif reference is not None:
        words = ", ".join(f"`{x}`" for x in lacking)
        mend = f"have the jvp take {words}, too, since the reference's derivative needs all inputs"
    return {
        "schema": named_for_its_arguments(f"{schema.namespace}::{schema.name}_jvp", f"({arguments}) -> ({results})"),
        "implementation": body,
        "reference": tangents,
        "_mend": mend,
    }


class Tangents:
    """Computes the tangents of an operator's results by the operator's ``jvp``.

    Args:
        schema: the schema of the operator.
        jvp: the operator that computes the tangents.
        wrt: the inputs that have a derivative.
        fixed: positions of the results that are not differentiable.

    Raises:
        ValueError: the name of an argument of ``jvp`` is none of these: an input, a result, ``tangent_`` and an input;
            or the tangent of an input that has a derivative is not among the arguments.
    """

    def __init__(self, schema: Schema, jvp: Any, wrt: Sequence[str], fixed: Collection[int]) -> None:
        found = Schema.parse(jvp.schema)
        for name in found.types:
            _type_of(schema, name, False)
        if lacking := [x for x in wrt if f"tangent_{x}" not in found.types]:
            words = ", ".join(f"`tangent_{x}`" for x in lacking)
            raise ValueError(f"{schema.name}: its jvp must take {words}; it takes {', '.join(found.types)}")
        self._schema, self._jvp, self._fixed = schema, jvp, fixed
        self._names = tuple(found.types)
        self._needed = [x for x in schema.tensors if not found.tensors.get(f"tangent_{x}", True)]

    def of(self, call: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Tensor | None]) -> Any:
        """Returns the results of a call with their tangents.

        Args:
            call: the operator as a function.
            primals: the arguments, without tangents.
            tangents: the tangent of each argument, or None.
        """
        found = call(*primals)
        results = (found,) if isinstance(found, Tensor) else tuple(found)
        moved = self.moved(primals, results, tangents)
        duals = tuple(y if t is None else forward_ad.make_dual(y, t) for y, t in zip(results, moved, strict=True))
        return duals[0] if isinstance(found, Tensor) else duals

    def moved(
        self, primals: Sequence[Any], results: Sequence[Tensor], tangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Returns the tangent of each result, or None for a result that is not differentiable."""
        schema = self._schema
        given = dict(zip((*schema.types, *schema.results), (*primals, *results), strict=True))
        moved = dict(zip(schema.types, tangents, strict=True))
        for x in self._needed:
            if moved[x] is None:
                moved[x] = torch.zeros_like(given[x])
        given |= {f"tangent_{x}": tangent for x, tangent in moved.items()}
        computed = self._jvp.call(*(given[name] for name in self._names))
        # The tangents are those of the first differentiable results.
        left = iter((computed,) if isinstance(computed, Tensor) else computed)
        return [None if i in self._fixed else next(left, None) for i in range(len(results))]

    def function_parts(self, setup_context: Callable[..., None]) -> tuple[Callable[..., None], Callable[..., Any]]:
        """Returns ``setup_context`` and ``jvp`` of an ``autograd.Function``.

        Args:
            setup_context: the function of this name that the backward needs.
        """

        def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            setup_context(ctx, inputs, output)
            if forward_mode():
                results = (output,) if isinstance(output, Tensor) else tuple(output)
                ctx.save_for_forward(*(x for x in (*inputs, *results) if isinstance(x, Tensor)))
                ctx.primals = [None if isinstance(x, Tensor) else (x,) for x in inputs], len(results)

        def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
            # A compiler calls torch.ops on tensors whose tangents Python cannot see.
            if not hasattr(ctx, "primals"):
                name = self._schema.name
                raise RuntimeError(f"torch.ops has no forward-mode derivative of {name}: call the operator itself")
            others, count = ctx.primals
            saved = iter(ctx.saved_tensors)
            primals = [next(saved) if other is None else other[0] for other in others]
            found = self.moved(primals, list(saved), tangents)
            return found[0] if count == 1 else tuple(found)

        return setup, jvp


def _type_of(schema: Schema, name: str, may_be_none: bool) -> str:
    tangents = [f"tangent_{x}" for x in schema.tensors]
    if name in tangents:
        optional = may_be_none or schema.tensors[name.removeprefix("tangent_")]
        return "Tensor?" if optional else "Tensor"
    if name in schema.types or name in schema.results:
        return type_of(schema, name)
    known = [*tangents, *schema.types, *schema.results]
    raise ValueError(f"{schema.name}: its jvp asks for `{name}`{nearest(name, known)}; there are {', '.join(known)}")


def jvp_of_reference(
    reference: Callable[..., Any], schema: Schema, names: Sequence[str], wrt: Sequence[str], taken: Sequence[int]
) -> Callable[..., Any]:
    """Returns the tangents of the reference, as a function of the arguments of the tangents' operator.

    The function uses reverse mode alone, since PyTorch has no forward mode within forward mode: the gradient v ↦ Jᵀv is
    linear in v, and the gradient of this gradient, applied to the tangents t, is J·t.

    Args:
        reference: the operator in plain PyTorch.
        schema: the schema of the operator.
        names: the names of the arguments of the tangents' operator.
        wrt: the inputs that have a derivative.
        taken: positions of the results whose tangents are returned.
    """

    def jvp(*args: Any) -> Any:
        given = dict(zip(names, args, strict=True))
        moved = [x for x in wrt if given[x] is not None and given[f"tangent_{x}"] is not None]
        primals = [given[x] for x in moved]

        def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = {**given, **dict(zip(moved, tensors, strict=True))}
            found = reference(*(values[x] for x in schema.types))
            found = (found,) if isinstance(found, Tensor) else found
            return tuple(found[i] for i in taken)

        def transposed(*cotangents: Tensor) -> tuple[Tensor, ...]:
            found = pullback(forward, primals, cotangents)
            return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(primals, found, strict=True))

        zeros = [torch.zeros_like(y) for y in forward(*primals)]
        tangents = [given[f"tangent_{x}"] for x in moved]
        found = pullback(transposed, zeros, tangents) if moved else [None] * len(zeros)
        results = tuple(zero if t is None else t.clone() for zero, t in zip(zeros, found, strict=True))
        return results if len(results) > 1 else results[0]

    return jvp


def with_tangents(operator: Any, args: tuple[Any, ...]) -> Any:
    """Returns the results of an operator with their tangents, in forward mode.

    Returns None if a call without special handling gives the tangents, or if no tensor carries one.

    Args:
        operator: the :class:`cupyops.torch.Operator`.
        args: all arguments of the schema.

    Raises:
        RuntimeError: a tensor carries a tangent, and the operator has neither a jvp nor a reference; or it has a jvp and
            no reference, and autograd records the call, or the tangents are batched.
    """
    reference = None if operator._mutated else operator._with_derivatives
    if _runs_kernels(args, reference):
        if eager_transforms.JVP_NESTING:
            if _usual_call(operator, reference):
                return None
        elif not transforms_active():
            try:
                duals = [forward_ad.unpack_dual(x) if isinstance(x, Tensor) else (x, None) for x in args]
            except RuntimeError as error:  # a batch of tangents, torch.autograd.functional.jacobian(vectorize=True)
                if reference is None:
                    raise RuntimeError(
                        f"{operator.name} has no forward mode for a batch of tangents: give it a reference, or use "
                        "torch.func.jacfwd"
                    ) from error
                return reference(*args)
            if not any(tangent is not None for _, tangent in duals) or not torch._C._is_fwd_grad_enabled():
                return None
            if operator.jvp is not None:
                # Autograd would save the tensors without their tangents, which a gradient's own tangents depend on.
                if not torch.is_grad_enabled() or not any(isinstance(x, Tensor) and x.requires_grad for x in args):
                    return operator._tangents.of(operator.call, *zip(*duals, strict=True))
                if reference is None:
                    raise RuntimeError(
                        f"{operator.name} has no forward mode for tensors that require grad: give it a reference, or "
                        "call it under torch.no_grad()"
                    )
    if reference is not None:
        return reference(*args)
    if has_tangent(args):
        raise RuntimeError(f"{operator.name} has no forward-mode derivative: give it a reference, or a jvp")
    return None


def _usual_call(operator: Any, reference: Callable[..., Any] | None) -> bool:
    """Returns whether a call without special handling gives the right tangents within ``torch.func.jvp``.

    Raises:
        RuntimeError: the operator has a jvp and no reference, and one jvp is within another.
    """
    levels = sum(level.key() == TransformType.Jvp for level in get_interpreter_stack() or ())
    # A transform of forward mode calls operators of the levels below, whose tensors carry no tangents, and the jvp of a
    # Function, whose operators must not compute tangents.
    if levels == 0 or (levels == 1 and not torch._C._is_fwd_grad_enabled()):
        return True
    if operator.jvp is None:
        return False
    if levels > 1:
        # PyTorch switches the forward mode of all levels off while it calls the jvp of a Function, and so loses the
        # tangents of the other levels. The reference keeps them.
        if reference is None:
            raise RuntimeError(f"{operator.name} has no forward mode within forward mode: give it a reference")
        return False
    # The Function of the operator (implementations.transformable) computes the tangents. A level above may differentiate
    # the backward, so that the backward must have a derivative.
    backward = operator.backward
    return reference is None or backward is None or backward._with_derivatives is not None


def _runs_kernels(args: Sequence[Any], reference: Callable[..., Any] | None) -> bool:
    """Returns whether the operator's body runs on the tensors, and not its reference. While a graph is traced, PyTorch
    shows no tangents, and the reference runs."""
    tensors = [x for x in args if isinstance(x, Tensor)]
    if is_compiling() or dispatch_modes():
        return False
    if reference is None:
        return True
    return PLAIN_TENSORS.issuperset(map(type, tensors)) and (simulator.enabled() or all(x.is_cuda for x in tensors))
