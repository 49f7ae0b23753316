"""Builds the gradient of an operator, from a declared backward or from the operator's reference.

The parameter names of a declared backward select its arguments. ``grad_y`` is the gradient of the result ``y``. The
name of an input or of a result is its value. ``want_x`` is whether the gradient of x is needed. The forward saves only
the values that the backward names. A result y is not differentiable if the backward has no parameter ``grad_y``.
"""

import hashlib
import inspect
import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cupyops.codegen import free_names
from cupyops.errors import expected, nearest

from .conditions import any_autocast, is_traced, no_autocast
from .tensors import alive

__all__ = [
    "Backward",
    "Context",
    "Gradient",
    "Schema",
    "gradient_of",
    "named_for_its_arguments",
    "of_reference",
    "of_the_first",
    "refused",
    "type_of",
    "without_autocast",
]

_FREE = object()
_QUOTED = r"""\"[^"]*"|'[^']*'"""
_MAYBE_TENSOR = torch.OptionalType(torch.TensorType.get())


@dataclass(frozen=True)
class Schema:
    """The parsed schema of an operator.

    Attributes:
        text: the text of the schema, unchanged.
        namespace, name: ``"mylib"`` and ``"scale"``, for instance.
        types: the type of each argument as the schema spells it: ``{"x": "Tensor", "eps": "float"}``.
        defaults: the default values, by the names of the arguments.
        tensors: names of the tensor arguments, which come first, and whether each may be None.
        mutated: names of the tensors that the operator writes to, ``Tensor(a!) x``.
        results: names of the results. An unnamed result is ``out``; several are ``out0``, ``out1`` and so on.
        absent: names of the results that may be None, ``Tensor?``.
    """

    text: str
    namespace: str
    name: str
    types: dict[str, str]
    defaults: dict[str, Any]
    tensors: dict[str, bool]
    mutated: tuple[str, ...]
    results: tuple[str, ...]
    absent: frozenset[str]

    @property
    def others(self) -> list[str]:
        return [name for name in self.types if name not in self.tensors]

    @property
    def spread(self) -> dict[str, tuple[str, int]]:
        """The arguments for which a number stands for a list of equal numbers, ``int[2] k``: Python's type, and how many."""
        kinds = {name: re.fullmatch(r"(int|float)\[(\d+)\]\??", kind) for name, kind in self.types.items()}
        return {name: (m[1], int(m[2])) for name, m in kinds.items() if m}

    @property
    def registered(self) -> str:
        """The schema for PyTorch, with an underscore after each argument that is a keyword of Python: Inductor reads
        the arguments as a Python function's."""
        pieces = re.split(f"({_QUOTED})", self.text)
        keywords = [name for name in self.types if keyword.iskeyword(name)]
        for word, other in free_names(keywords, {*self.types}).items():
            pieces[::2] = [re.sub(rf" {word}(?=\s*[=,)])", f" {other}", piece) for piece in pieces[::2]]
        return "".join(pieces)

    @classmethod
    def parse(cls, text: str) -> "Schema":
        """Parses the text of a schema.

        Raises:
            ValueError: the schema has no namespace, no tensor argument, a tensor after other arguments, a keyword-only
                argument, or a result that is a view of an argument.
            RuntimeError: PyTorch rejects the schema.
        """
        namespace, separator, _ = text.partition("::")
        if not separator:
            raise ValueError(expected("Operator", "schema", "begin with a namespace, 'mylib::name(...)'", repr(text)))
        try:
            parsed = torch._C.parse_schema(text)
        except UnicodeDecodeError:  # PyTorch's message holds a part of a letter
            raise ValueError(expected("Operator", "schema", "have names of ASCII letters", repr(text))) from None
        _check_place(parsed, text)
        written = text[text.index("(") + 1 : text.rindex("->")].rpartition(")")[0]
        written = re.sub(_QUOTED, "", written)  # a default value may have a comma
        pieces = [piece.partition("=")[0].strip() for piece in re.split(r",(?![^(\[]*[)\]])", written)]
        types = {name: kind for kind, _, name in (piece.rpartition(" ") for piece in pieces)}
        arguments = parsed.arguments
        kinds = [a.type.isSubtypeOf(_MAYBE_TENSOR) for a in arguments]
        if listed := [a.name for a in arguments if "Tensor" in str(a.type) and not a.type.isSubtypeOf(_MAYBE_TENSOR)]:
            wanted = "take each tensor as an argument of its own, not in a list"
            raise ValueError(expected("Operator", "schema", wanted, f"`{listed[0]}` in {text!r}"))
        if not all(r.type.isSubtypeOf(_MAYBE_TENSOR) for r in parsed.returns):
            wanted = "return tensors, each as a result of its own"
            raise ValueError(expected("Operator", "schema", wanted, repr(text)))
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
        absent = frozenset(
            name for name, r in zip(results, parsed.returns, strict=True) if isinstance(r.type, torch.OptionalType)
        )
        name = parsed.name.partition("::")[2]
        return cls(text, namespace, name, types, defaults, tensors, mutated, results, absent)


def _check_place(parsed: Any, text: str) -> None:
    """Raises ValueError if ``torch.ops`` has something else in the place of the operator, ``torch.ops.mylib.scale``."""
    namespace, _, name = parsed.name.partition("::")
    if parsed.overload_name:
        raise ValueError(expected("Operator", "schema", "name an operator without an overload", repr(text)))
    for owner, word, kind in (
        (torch.ops, namespace, torch._ops._OpNamespace),
        (getattr(torch.ops, namespace), name, torch._ops.OpOverloadPacket),
    ):
        found = inspect.getattr_static(owner, word, _FREE)
        if (found is not _FREE and not isinstance(found, kind)) or (word.startswith("__") and word.endswith("__")):
            wanted = "have a namespace and a name that are free in torch.ops"
            raise ValueError(expected("Operator", "schema", wanted, f"`{word}` in {text!r}"))


Gradient = tuple[Callable[..., None], Callable[..., Any]]


class Backward:
    """The parts of the operator that computes a gradient, made from a backward that was declared as a function.

    Args:
        schema: the schema of the forward operator.
        function: the declared backward. The names of its parameters select its arguments; tensors come first.
        wrt: the inputs whose gradients the function returns, in order.
        reference: the reference of the forward operator.

    Attributes:
        schema: the schema of the gradient's operator.
        arguments: the names of the arguments in this schema.
        body: the function, with each None among its results replaced by an empty tensor.
        reference: the gradient of the forward's reference, or None if the function does not take all inputs.
        refusal: the end of the error message for a second derivative, used if the gradient's operator has no gradient.
    """

    def __init__(
        self, schema: Schema, function: Callable[..., Any], wrt: Sequence[str], reference: Callable[..., Any] | None
    ) -> None:
        names = list(inspect.signature(function).parameters)
        lacking = [x for x in schema.types if x not in names]
        if reference is not None and lacking and not any(x in schema.tensors for x in lacking):
            # The second derivative differentiates the forward's reference, which needs all non-tensor arguments of the
            # forward. The gradient's operator therefore takes these arguments, although the function does not.
            function, names = of_the_first(function, len(names)), [*names, *lacking]
        types = [type_of(schema, name) for name in names]
        results = ", ".join(f"Tensor grad_{name}" for name in wrt)
        arguments = ", ".join(f"{kind} {name}" for kind, name in zip(types, names, strict=True))
        self.arguments = names
        self.schema = named_for_its_arguments(
            f"{schema.namespace}::{schema.name}_backward", f"({arguments}) -> ({results})"
        )
        may_be_none = any(name.startswith("want_") for name in names) or any(schema.tensors[name] for name in wrt)
        self.body = _without_none(function, len(wrt)) if may_be_none else function
        self.reference = gradient_of(reference, schema, names, wrt)
        self.refusal = "give the operator a reference, or an Operator with a gradient as its backward"
        if reference is not None and self.reference is None:
            words = ", ".join(f"`{x}`" for x in lacking)
            self.refusal = f"have the backward take {words}, too, since the reference's derivative needs all inputs"


def of_the_first(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Returns the function with further arguments, which are ignored."""

    def body(*args: Any) -> Any:
        return function(*args[:count])

    return body


def named_for_its_arguments(name: str, signature: str) -> str:
    """Returns the schema of a backward. The name in the schema ends in a hash of the signature.

    PyTorch's compiler caches graphs on disk by the names of operators. A backward with another signature (y in place of
    x, for instance) must therefore have another name.
    """
    return f"{name}_{hashlib.sha256(signature.encode()).hexdigest()[:8]}{signature}"


def type_of(schema: Schema, name: str) -> str:
    """Returns the schema type of a backward's argument.

    Raises:
        ValueError: the name is none of these: an input, a result, ``grad_`` and a result, ``want_`` and an input; or it is an
            input and a result.
    """
    if name in schema.types and name in schema.results:
        raise ValueError(f"{schema.name}: `{name}` is an input and a result: give the result another name")
    if name in schema.types:
        return re.sub(r"\(.*?\)", "", schema.types[name])
    if name in schema.results or name in (f"grad_{r}" for r in schema.results):
        return "Tensor?" if name.removeprefix("grad_") in schema.absent or name in schema.absent else "Tensor"
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
            return given  # results.held_to_schema raises an error for the wrong number of results
        filled = tuple(args[0].new_empty(0) if g is None else g for g in found)
        return filled if count > 1 else filled[0]

    return body


def gradient_of(
    reference: Callable[..., Any] | None, schema: Schema, names: Sequence[str], wrt: Sequence[str]
) -> Callable[..., Any] | None:
    """Returns the gradient of the forward's reference, as a function of the backward's arguments, in plain PyTorch.

    Returns None if there is no reference, or if the backward does not take all arguments of the forward.

    Args:
        reference: the reference of the forward operator.
        schema: the schema of the forward operator.
        names: the names of the backward's arguments.
        wrt: the inputs whose gradients the backward returns, in order.
    """
    if reference is None or not schema.types.keys() <= set(names):
        return None

    def gradient(*args: Any) -> Any:
        given = dict(zip(names, args, strict=True))
        wanted = [x for x in wrt if given[x] is not None and given.get(f"want_{x}", True)]
        taken = [i for i, r in enumerate(schema.results) if given.get(f"grad_{r}") is not None]

        def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = {**given, **dict(zip(wanted, tensors, strict=True))}
            found = reference(*(values[x] for x in schema.types))
            found = (found,) if isinstance(found, Tensor) else found
            return tuple(found[i] for i in taken)

        primals = [given[x] for x in wanted]
        # In forward mode, recording the gradient's own graph would make the tangents require grad.
        differentiated = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)
        with torch.set_grad_enabled(differentiated):
            found = pullback(forward, primals, [given[f"grad_{schema.results[i]}"] for i in taken]) if wanted else ()
        filled = [torch.zeros_like(x) if g is None else g for x, g in zip(primals, found, strict=True)]
        grads = dict(zip(wanted, filled, strict=True))
        # A gradient may be the incoming gradient itself. An operator must not return one of its arguments.
        results = tuple(grads[x].clone() if x in grads else args[0].new_empty(0) for x in wrt)
        return results if len(results) > 1 else results[0]

    return gradient


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls a body, a backward or a reference with autocast disabled.

    The operator's own autocast policy has already converted the tensors, and nothing inside the operator casts further.
    """

    def plain(*args: Any) -> Any:
        if is_traced():
            # Dynamo traces nested calls, and does not trace a contextlib.ExitStack of autocast.
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    with torch.autocast(kind, enabled=False):
                        return plain(*args)
        elif any_autocast():
            with no_autocast():
                return function(*args)
        return function(*args)

    return plain


def pullback(
    function: Callable[..., Sequence[Tensor]], primals: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Returns the vector-Jacobian product of a function in plain PyTorch.

    The product is differentiable if grad mode is on.
    Each gradient is a partial derivative with respect to one primal, even if a primal or a cotangent was computed from
    another primal. The function is therefore evaluated on views of the primals, and differentiated with respect to
    these views.

    Returns:
        A gradient for each primal; None for a primal that no result depends on.
    """
    if torch._C._are_functorch_transforms_active() or torch.is_inference_mode_enabled():
        # requires_grad_() is not available here, so torch.autograd.grad cannot be used.
        with torch.enable_grad():
            by_transform: Sequence[Tensor] = torch.func.vjp(function, *primals)[1](tuple(cotangents))
        return by_transform
    again = torch.is_grad_enabled()  # the gradient itself must be differentiable
    # PyTorch's dispatcher excludes autograd inside an operator's implementation. The guard includes autograd again.
    autograd = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
    with autograd, torch.enable_grad():
        variables = [x.view_as(x) if again and x.requires_grad else _leaf(x) for x in primals]
        pairs = [(y, g) for y, g in zip(function(*variables), cotangents, strict=True) if y.requires_grad]
        if not pairs:
            return [None] * len(primals)
        found: Sequence[Tensor | None] = torch.autograd.grad(
            [y for y, _ in pairs], variables, [g for _, g in pairs], create_graph=again, allow_unused=True
        )
    return found


def _leaf(x: Tensor) -> Tensor:
    """Returns a tensor of x's memory that requires a gradient, and has x's tangent in forward mode, which ``detach()`` drops."""
    with torch.no_grad():
        return x.view_as(x).requires_grad_()


class Context:
    """A wrapper around ``ctx`` of an ``autograd.Function`` that ``torch.func`` or PyTorch's dispatcher calls.

    The wrapper corrects two attributes. ``saved_tensors``: the pullback of ``torch.func.vjp`` may be called after its
    transform has ended. The saved tensors are then wrapper tensors without memory, and the attribute returns the
    tensors inside them. ``needs_input_grad``: the dispatcher omits arguments that equal their default, and the
    attribute is False for them.

    Args:
        ctx: the ``ctx`` of the Function.
        count: the number of the operator's arguments.
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


def refused(name: str, mend: str = "declare it with backward=, or with a reference that is differentiated") -> Gradient:
    """Returns ``setup_context`` and ``backward`` of an operator without a gradient. ``backward`` raises RuntimeError.

    Args:
        name: the operator's name, for the message.
        mend: the end of the message, which tells the user how to give the operator a gradient.
    """

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(f"{name} has no gradient: {mend}")

    return setup_context, backward


def of_reference(reference: Callable[..., Any]) -> Gradient:
    """Returns ``setup_context`` and ``backward`` of an operator whose gradient is the gradient of its reference."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)))
        ctx.others = [None if isinstance(x, Tensor) else (x,) for x in inputs]

    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if other is None else other[0] for other in ctx.others]
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad) if needed]
        # torch.func passes a gradient of zeros for an integer result, too.
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
