"""How an operator comes by its gradient: declared as a function of named values, or as that of its reference.

A declared backward says by the names of its parameters what it needs, so that nothing else is kept: ``grad_y`` is the
gradient of the result ``y``; the name of an input or of a result is its value; ``want_x`` is whether the gradient of x
is asked for. A result whose gradient it does not take is not differentiable.
"""

import contextlib
import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cupyops.codegen import write
from cupyops.errors import expected, nearest

from .tensors import alive

__all__ = [
    "Backward",
    "Context",
    "Gradient",
    "Schema",
    "declared",
    "gradient_of",
    "named_for_its_arguments",
    "of_reference",
    "refused",
    "without_autocast",
]

_MAYBE_TENSOR = torch.OptionalType(torch.TensorType.get())


@dataclass(frozen=True)
class Schema:
    """An operator's schema, taken apart.

    Attributes:
        text: as given.
        namespace, name: ``"mylib"``, ``"scale"``.
        types: of each argument, as written: ``{"x": "Tensor", "weight": "Tensor?", "eps": "float"}``.
        defaults: of those arguments that have one.
        tensors: names of the arguments that are tensors, which come first, and whether each may be None.
        mutated: names of the tensors that are written to, ``Tensor(a!) x``.
        results: names; ``out``, or ``out0`` and so on, where the schema gives none.
    """

    text: str
    namespace: str
    name: str
    types: dict[str, str]
    defaults: dict[str, Any]
    tensors: dict[str, bool]
    mutated: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def others(self) -> list[str]:
        return [name for name in self.types if name not in self.tensors]

    @classmethod
    def parse(cls, text: str) -> "Schema":
        """Reads it.

        Raises:
            ValueError: it has no namespace, no tensor, or a tensor behind other arguments, or a result that is a view of
                an argument.
            RuntimeError: PyTorch does not take it.
        """
        namespace, separator, _ = text.partition("::")
        if not separator:
            raise ValueError(expected("Operator", "schema", "begin with a namespace, 'mylib::name(...)'", repr(text)))
        parsed = torch._C.parse_schema(text)
        written = text[text.index("(") + 1 : text.rindex("->")].rpartition(")")[0]
        pieces = [piece.partition("=")[0].strip() for piece in re.split(r",(?![^(\[]*[)\]])", written)]
        types = {name: kind for kind, _, name in (piece.rpartition(" ") for piece in pieces)}
        arguments = parsed.arguments
        kinds = [a.type.isSubtypeOf(_MAYBE_TENSOR) for a in arguments]
        if not any(kinds) or not all(kinds[: sum(kinds)]):
            raise ValueError(expected("Operator", "schema", "name its tensors first", repr(text)))
        if any(a.kwarg_only for a in arguments):
            raise ValueError(expected("Operator", "schema", "have no keyword-only arguments", repr(text)))
        if any(r.alias_info is not None for r in parsed.returns):
            raise ValueError(
                expected("Operator", "schema", "have results of their own, not views of arguments", repr(text))
            )
        tensors = {
            a.name: isinstance(a.type, torch.OptionalType)
            for a, is_tensor in zip(arguments, kinds, strict=True)
            if is_tensor
        }
        count = len(parsed.returns)
        results = tuple(r.name or ("out" if count == 1 else f"out{i}") for i, r in enumerate(parsed.returns))
        mutated = tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
        defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
        return cls(text, namespace, parsed.name.partition("::")[2], types, defaults, tensors, mutated, results)


Gradient = tuple[Callable[..., None], Callable[..., Any]]


class Backward:
    """A backward declared as a function, made ready to be an operator of its own.

    Args:
        schema: of the forward.
        function: its parameters say what it needs, tensors first.
        wrt: the inputs whose gradients it returns, in order.
        reference: of the forward.

    Attributes:
        schema: of the gradient's operator.
        body: the function; a gradient that it gives as None has no elements.
        reference: the gradient of the forward's reference, or None where the function does not take all inputs.
        refusal: why it has no gradient itself, where it has none.
    """

    def __init__(
        self, schema: Schema, function: Callable[..., Any], wrt: Sequence[str], reference: Callable[..., Any] | None
    ) -> None:
        names = list(inspect.signature(function).parameters)
        lacking = [x for x in schema.types if x not in names]
        if reference is not None and lacking and not any(x in schema.tensors for x in lacking):
            # The reference, of which derivatives are made, takes numbers that the function does not ask for.
            function, names = _of_the_first(function, len(names)), [*names, *lacking]
        types = [_type_of(schema, name) for name in names]
        results = ", ".join(f"Tensor grad_{name}" for name in wrt)
        arguments = ", ".join(f"{kind} {name}" for kind, name in zip(types, names, strict=True))
        self.schema = named_for_its_arguments(
            f"{schema.namespace}::{schema.name}_backward", f"({arguments}) -> ({results})"
        )
        may_be_none = any(name.startswith("want_") for name in names) or any(schema.tensors[name] for name in wrt)
        self.body = _without_none(function, len(wrt)) if may_be_none else function
        self.reference = gradient_of(reference, schema, names, wrt)
        self.refusal = "give the operator a reference, or an Operator with a gradient as its backward"
        if reference is not None and self.reference is None:
            words = ", ".join(f"`{x}`" for x in lacking)
            self.refusal = f"have the backward take {words}, too, which the derivative of the reference is made of"


def _of_the_first(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    def body(*args: Any) -> Any:
        return function(*args[:count])

    return body


def named_for_its_arguments(name: str, signature: str) -> str:
    """A backward's schema. Compilers keep graphs on disk under the names of operators, so one that takes other things (y
    in place of x, say) must have another name."""
    return f"{name}_{hashlib.sha256(signature.encode()).hexdigest()[:8]}{signature}"


def _type_of(schema: Schema, name: str) -> str:
    """What an argument of a backward is, by its name.

    Raises:
        ValueError: it is nothing that a backward can be given.
    """
    if name in schema.types:
        return re.sub(r"\(.*?\)", "", schema.types[name])
    if name in schema.results or name in (f"grad_{r}" for r in schema.results):
        return "Tensor"
    wants = [f"want_{x}" for x in schema.tensors]
    if name in wants:
        return "bool"
    known = [*(f"grad_{r}" for r in schema.results), *schema.types, *schema.results, *wants]
    raise ValueError(
        f"{schema.name}: its backward asks for `{name}`{nearest(name, known)}; there are {', '.join(known)}"
    )


def _without_none(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    def body(*args: Any) -> Any:
        given = function(*args)
        found = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        if len(found) != count:
            return given  # which is said to be wrong as any body's results are
        filled = tuple(args[0].new_empty(0) if g is None else g for g in found)
        return filled if count > 1 else filled[0]

    return body


def gradient_of(
    reference: Callable[..., Any] | None, schema: Schema, names: Sequence[str], wrt: Sequence[str]
) -> Callable[..., Any] | None:
    """A backward in plain PyTorch: the gradient of the forward's reference, by the arguments of the backward; None where
    it is not given all that the reference needs.
    """
    if reference is None or not schema.types.keys() <= set(names):
        return None

    def gradient(*args: Any) -> Any:
        given = dict(zip(names, args, strict=True))
        wanted = [x for x in wrt if given[x] is not None and given.get(f"want_{x}", True)]
        taken = [i for i, r in enumerate(schema.results) if f"grad_{r}" in given]

        def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = {**given, **dict(zip(wanted, tensors, strict=True))}
            found = reference(*(values[x] for x in schema.types))
            found = (found,) if isinstance(found, Tensor) else found
            return tuple(found[i] for i in taken)

        primals = [given[x] for x in wanted]
        found = pullback(forward, primals, [given[f"grad_{schema.results[i]}"] for i in taken]) if wanted else ()
        filled = [torch.zeros_like(x) if g is None else g for x, g in zip(primals, found, strict=True)]
        grads = dict(zip(wanted, filled, strict=True))
        # A gradient may be the very one that came in, which an operator must not give back.
        results = tuple(grads[x].clone() if x in grads else args[0].new_empty(0) for x in wrt)
        return results if len(results) > 1 else results[0]

    return gradient


def without_autocast(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A reference whose own operations autocast leaves alone: an operator's policy has converted its tensors, and a kernel
    computes in what it is given."""

    def plain(*args: Any) -> Any:
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        if not kinds:
            return reference(*args)
        with contextlib.ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            return reference(*args)

    return plain


def pullback(
    function: Callable[..., Sequence[Tensor]], primals: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """The vector-Jacobian product of a function in plain PyTorch, itself differentiable where gradients are recorded.

    The derivative by a primal is a partial one, although one primal, or a cotangent, may have been computed from another
    primal. So the function is evaluated on views of the primals, and differentiated by these views.

    Returns:
        A gradient for each primal; None where no result depends on it.
    """
    if torch._C._are_functorch_transforms_active() or torch.is_inference_mode_enabled():
        # Here tensors cannot be made to require gradients.
        with torch.enable_grad():
            by_transform: Sequence[Tensor] = torch.func.vjp(function, *primals)[1](tuple(cotangents))
        return by_transform
    again = torch.is_grad_enabled()  # somebody will differentiate this gradient, too
    # Within an operator's implementation autograd is left out.
    autograd = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
    with autograd, torch.enable_grad():
        variables = [x.view_as(x) if again and x.requires_grad else x.detach().requires_grad_() for x in primals]
        pairs = [(y, g) for y, g in zip(function(*variables), cotangents, strict=True) if y.requires_grad]
        if not pairs:
            return [None] * len(primals)
        found: Sequence[Tensor | None] = torch.autograd.grad(
            [y for y, _ in pairs], variables, [g for _, g in pairs], create_graph=again, allow_unused=True
        )
    return found


class Context:
    """``ctx`` of a Function that a transform or the dispatcher calls.

    ``saved_tensors``: a pullback of ``torch.func.vjp`` may be called after its transform has ended. The saved tensors are
    dead wrappers then, without memory; the tensors within them are given. ``needs_input_grad``: the dispatcher leaves out
    arguments that equal their default; they are filled with False.

    Args:
        ctx: of the Function.
        count: arguments of the operator.
    """

    __slots__ = ("_count", "_ctx")

    def __init__(self, ctx: Any, count: int) -> None:
        object.__setattr__(self, "_ctx", ctx)
        object.__setattr__(self, "_count", count)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(alive(x) if isinstance(x, Tensor) else x for x in self._ctx.saved_tensors)

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        needs = self._ctx.needs_input_grad
        return (*needs, *(False,) * (self._count - len(needs)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ctx, name, value)


def declared(schema: Schema, arguments: Sequence[str], call: Callable[..., Any], wrt: Sequence[str]) -> Gradient:
    """``setup_context`` and ``backward`` of an operator whose gradient is another operator, written for the two
    (:mod:`cupyops.codegen`): closures over tuples of positions take 1.4 µs longer, of both together.

    Args:
        schema: of the forward.
        arguments: names that the gradient's operator takes, see the module.
        call: that operator.
        wrt: the inputs whose gradients it returns, in order.

    Raises:
        ValueError: a name is unknown, or no gradient is taken.
    """
    for name in arguments:
        _type_of(schema, name)
    taken = [f"grad_{r}" for r in schema.results if f"grad_{r}" in arguments]
    if not taken:
        words = " or ".join(f"`grad_{r}`" for r in schema.results)
        raise ValueError(
            f"{schema.name}: its backward must take the gradient of a result, {words}; it takes {arguments}"
        )
    fixed = [r for r in schema.results if f"grad_{r}" not in arguments]
    saved = [a for a in arguments if a in schema.tensors or a in schema.results]
    kept = [a for a in arguments if a in schema.types and a not in schema.tensors]
    wants = [f"want_{name}" if name in wrt else "_" for name in schema.types]
    values = [f"ctx_.kept_{a}" if a in kept else a for a in arguments]
    # Among several results, one that was not used has a gradient of zeros; the only one leaves nothing to do.
    unused = f"if {taken[0]} is None: return {', '.join(['None'] * len(schema.types))},"
    gradients = [f"grad_{x} if want_{x} else None" if x in wrt else "None" for x in schema.types]
    lines = [
        "def setup_context(ctx_, inputs_, output_):",
        f"    {', '.join(schema.types)}, = inputs_",
        f"    {', '.join(schema.results)}, = {'output_,' if len(schema.results) == 1 else 'output_'}",
        f"    ctx_.set_materialize_grads({len(taken) > 1})",
        *([f"    ctx_.mark_non_differentiable({', '.join(fixed)})"] if fixed else []),
        f"    ctx_.save_for_backward({', '.join(saved)})",
        *(f"    ctx_.kept_{a} = {a}" for a in kept),
        f"def backward(ctx_, {', '.join(f'grad_{r}' for r in schema.results)}):",
        *([f"    {unused}"] if len(taken) == 1 else []),
        *([f"    {', '.join(saved)}, = ctx_.saved_tensors"] if saved else []),
        f"    {', '.join(wants)}, = ctx_.needs_input_grad",
        f"    {', '.join(f'grad_{x}' for x in wrt)}{',' if len(wrt) == 1 else ''} = "
        f"call_({', '.join(values)}){',' if len(wrt) == 1 else ''}",
        f"    return {', '.join(gradients)},",
    ]
    scope: dict[str, Any] = {"call_": call}
    backward = write(f"gradient of {schema.name}", "backward", lines, scope)
    return scope["setup_context"], backward


def refused(name: str, mend: str = "declare it with backward=, or with a reference that is differentiated") -> Gradient:
    """``setup_context`` and ``backward`` of an operator that has no gradient.

    Args:
        mend: what would give it one.
    """

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(f"{name} has no gradient: {mend}")

    return setup_context, backward


def of_reference(reference: Callable[..., Any]) -> Gradient:
    """``setup_context`` and ``backward`` of an operator whose gradient is its reference's."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)))
        ctx.others = [None if isinstance(x, Tensor) else (x,) for x in inputs]

    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if other is None else other[0] for other in ctx.others]
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad) if needed]
        # A transform gives zeros for results that are whole numbers, too.
        taken = {i: g for i, g in enumerate(grads) if g is not None and (g.is_floating_point() or g.is_complex())}
        if not (wanted and taken):
            return tuple(None for _ in inputs)

        def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = list(inputs)
            for i, x in zip(wanted, tensors, strict=True):
                values[i] = x
            outputs = reference(*values)
            outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
            return tuple(outputs[i] for i in taken)

        given: list[Any] = [None] * len(inputs)
        found = pullback(forward, [inputs[i] for i in wanted], list(taken.values()))
        for i, g in zip(wanted, found, strict=True):
            given[i] = g
        return tuple(given)

    return setup_context, backward
