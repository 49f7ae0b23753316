"""The mechanism that makes a PyTorch operator out of one body.

An operator has a body (allocate, launch), a reference in plain PyTorch, and, where it has a gradient of its own, a
:class:`torch.autograd.Function` in the documented form: ``forward`` without ctx, ``setup_context``, ``backward``. From
these follow:

=========================  ==========================================================================================
CUDA, no gradient          the body, called directly
CUDA, gradient             a Function around body and backward, in the form that costs least
CPU                        the reference; autograd differentiates it. While kernels are simulated, as CUDA
tracing, modes, wrappers   a ``torch.library`` operator of the same parts, whose fake kernel is the body on fake tensors
torch.func                 a Function of the same parts, in the form that transforms ask for
gradient of a gradient     the operators that the backward calls have gradients themselves: declared, or their
                           reference's
vmap                       one call on the batched tensors, for elementwise operators; else the reference's
autocast                   a policy: as they come, float32, or the lower type
=========================  ==========================================================================================
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .. import simulator
from ..errors import expected
from .arrays import PLAIN_TENSORS

__all__ = ["Operator"]

_is_compiling = torch.compiler.is_compiling
_transforms_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_grad_enabled = torch.is_grad_enabled


class Operator:
    """A PyTorch operator: call it with tensors and the schema's other arguments, in order.

    Args:
        schema: ``"mylib::scale(Tensor x, float factor) -> Tensor"``; tensors come first, ``Tensor?`` may be None, and
            there may be several results: ``-> (Tensor, Tensor)``.
        implementation: the body, or an ``autograd.Function`` whose ``forward(*args)`` is the body, with
            ``setup_context`` and ``backward``. Undefined gradients reach ``backward`` as None.
        reference: the same operation in plain PyTorch: what CPU tensors get, and the gradient where ``implementation``
            has none. It must not return an input or a view of one.
        elementwise: each element of the result depends on the elements at its place alone, so that vmap is one call on
            batched tensors.
        autocast: ``None`` as the tensors come, ``"float32"``, or ``"lower"`` for the type that autocast has been given; or
            one of these per kind of device, ``{"cuda": "float32"}``.

    Raises:
        ValueError: another word for ``autocast``, or a schema without a namespace, or with a tensor behind other
            arguments.
    """

    def __init__(
        self,
        schema: str,
        implementation: type[torch.autograd.Function] | Callable[..., Any],
        *,
        reference: Callable[..., Any],
        elementwise: bool = False,
        autocast: str | Mapping[str, str | None] | None = None,
    ) -> None:
        policies = autocast if isinstance(autocast, Mapping) else {"cuda": autocast, "cpu": autocast}
        if not {None, "float32", "lower"}.issuperset(policies.values()):
            raise ValueError(expected("Operator", "autocast", "be None, 'float32' or 'lower'", repr(autocast)))
        namespace, separator, rest = schema.partition("::")
        if not separator:
            raise ValueError(expected("Operator", "schema", "begin with a namespace, 'mylib::name(...)'", repr(schema)))
        self.name = rest.partition("(")[0]
        self.qualified_name = f"{namespace}::{self.name}"
        self.reference = reference
        self.elementwise = elementwise
        self._autocast = {device: policy for device, policy in policies.items() if policy is not None}
        if isinstance(implementation, type):
            function: Any = implementation
            self.body: Callable[..., Any] = function.forward
            setup_context, backward = function.setup_context, function.backward
        else:
            self.body = implementation
            setup_context, backward = _reference_gradient(reference)
        self._apply = _fast_function(self.name, self.body, setup_context, backward)
        self._library = torch.library.Library(namespace, "FRAGMENT")
        self._register(rest, setup_context, backward, elementwise)
        self.op = getattr(getattr(torch.ops, namespace), self.name).default
        self._transformed = self._transformed_function(setup_context, backward, elementwise)
        arguments = self.op._schema.arguments
        self._tensors = tuple((i, a.name) for i, a in enumerate(arguments) if a.type.isSubtypeOf(_MAYBE_TENSOR))
        optional = [a.name for a in arguments if isinstance(a.type, torch.OptionalType)]
        self._optional = frozenset(optional)
        if [i for i, _ in self._tensors] != list(range(len(self._tensors))) or not self._tensors:
            raise ValueError(expected("Operator", "schema", "name its tensors first", repr(schema)))
        # The operator as a plain function, which costs a call less than the instance.
        names = [a.name for a in arguments]
        tensors = {name: name in self._optional for name in names[: len(self._tensors)]}
        self.call: Callable[..., Any] = _write_call(
            _call_source(self.name, tensors, names[len(tensors) :], casts="cuda" in self._autocast),
            {"body": self.body, "apply": self._apply, "dispatch": self._dispatch},
        )

    def __repr__(self) -> str:
        return f"<Operator {self.op._schema}>"

    def __call__(self, *args: Any) -> Any:
        """The operator's result.

        Raises:
            TypeError: an argument that should be a tensor is none; else what body and reference raise.
        """
        return self.call(*args)

    def _dispatch(self, args: tuple[Any, ...]) -> Any:
        """All but the common case, which is plain tensors on a GPU."""
        for i, name in self._tensors:
            if not isinstance(args[i], Tensor) and not (args[i] is None and name in self._optional):
                wanted = "be a Tensor or None" if name in self._optional else "be a Tensor"
                raise TypeError(expected(self.name, name, wanted, type(args[i]).__name__))
        args = self._cast(args)
        tensors = [args[i] for i, _ in self._tensors if args[i] is not None]
        if _is_compiling():
            return self.op(*args)
        if _transforms_active():
            return self._transformed.apply(*args)
        if _dispatch_modes() or not PLAIN_TENSORS.issuperset(map(type, tensors)):
            return self.op(*args)
        if all(x.is_cpu for x in tensors) and not simulator.enabled():
            return self.reference(*args)
        if any(x.is_neg() for x in tensors):
            # A view whose memory holds the negated values (the imaginary part of a conjugate): a kernel must see its own.
            return self._dispatch(tuple(x.resolve_neg() if isinstance(x, Tensor) else x for x in args))
        if not all(x.is_cuda or x.is_cpu for x in tensors):
            return self.op(*args)
        if _grad_enabled() and any(x.requires_grad for x in tensors):
            return self._apply(*args)
        return self.body(*args)

    def _cast(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self._autocast:
            return args
        cast = list(args)
        for i, _ in self._tensors:
            x = args[i]
            if x is None:
                continue
            device = x.device.type
            policy = self._autocast.get(device)
            if policy is None or not x.is_floating_point() or x.dtype == torch.float64:
                continue
            if torch.is_autocast_enabled(device):
                cast[i] = x.to(torch.float32 if policy == "float32" else torch.get_autocast_dtype(device))
        return tuple(cast)

    def _register(self, rest: str, setup_context: Any, backward: Any, elementwise: bool) -> None:
        library, name = self._library, self.qualified_name
        library.define(rest, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(self.name, self.body, "CUDA")
        library.impl(self.name, _on_cpu(self.body, self.reference), "CPU")
        torch.library.register_fake(name, self.body, lib=library)

        def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.set_materialize_grads(False)
            setup_context(ctx, inputs, output)

        torch.library.register_autograd(name, backward, setup_context=setup, lib=library)
        rule = self._vmap if elementwise else _vmap_of_reference(self.reference)
        torch.library.register_vmap(name, rule, lib=library)

    def _transformed_function(self, setup_context: Any, backward: Any, elementwise: bool) -> Any:
        """The Function in the form that ``torch.func`` asks for; operators of ``torch.library`` do not take part in its
        ``grad``."""

        def forward(*args: Any) -> Any:
            return self.op(*args)

        members = {"forward": forward, "setup_context": setup_context, "backward": backward}
        members["vmap"] = self._vmap if elementwise else _vmap_of_reference(self.reference)
        static = {name: staticmethod(member) for name, member in members.items()}
        return type(f"{self.name}_transformed", (torch.autograd.Function,), static)

    def _vmap(self, info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, int]:
        """All tensors with the batch in front and the same rank behind it; the operator does the rest."""
        positions = [i for i, _ in self._tensors]
        rank = max(args[i].dim() - (in_dims[i] is not None) for i in positions)
        batched = list(args)
        for i in positions:
            x, dim = args[i], in_dims[i]
            x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
            batched[i] = x.reshape(x.shape[0], *(1,) * (rank + 1 - x.dim()), *x.shape[1:])
        for i, x in zip(positions, torch.broadcast_tensors(*(batched[i] for i in positions)), strict=True):
            batched[i] = x
        return self(*batched), 0


def _vmap_of_reference(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of an operator whose reference, in plain PyTorch, knows how to be batched. It does not know the operator,
    which would live as long as its library."""

    def rule(info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        batched = [i for i, x in enumerate(args) if isinstance(x, Tensor) and in_dims[i] is not None]

        def run(*tensors: Tensor) -> Any:
            full = list(args)
            for i, x in zip(batched, tensors, strict=True):
                full[i] = x
            return reference(*full)

        dims = tuple(in_dims[i] for i in batched)
        outputs = torch.func.vmap(run, in_dims=dims, randomness=info.randomness)(*(args[i] for i in batched))
        return outputs, (0 if isinstance(outputs, Tensor) else (0,) * len(outputs))

    return rule


def _on_cpu(body: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    """What an operator is for CPU tensors. It does not know the operator, which would live as long as its library."""

    def either(*args: Any) -> Any:
        return body(*args) if simulator.enabled() else reference(*args)

    return either


_MAYBE_TENSOR = torch.OptionalType(torch.TensorType.get())


def _call_source(name: str, tensors: Mapping[str, bool], others: Sequence[str], *, casts: bool = False) -> str:
    """The text of the way into an operator: plain tensors on a GPU straight on, anything else to ``dispatch``.

    It is written for each schema, as :mod:`cupyops.fast_lane` writes launches: a loop over the tensors takes half a
    microsecond, a tenth of what a launch costs altogether.

    Args:
        tensors: names, and whether each may be None.
        casts: autocast would convert the tensors.

    >>> print(_call_source("scale", {"x": False}, ["factor"]))
    def scale(x, factor):
        if (
            not (is_compiling() or transforms_active() or dispatch_modes())
            and (type(x) is Tensor or type(x) is Parameter)
            and x.is_cuda and not x.is_neg()
        ):
            if (x.requires_grad) and grad_enabled():
                return apply(x, factor)
            return body(x, factor)
        return dispatch((x, factor,))
    """
    arguments = ", ".join([*tensors, *others])
    plain, on_gpu, wants_grad = [], [], []
    for t, optional in tensors.items():
        may = f"{t} is None or " if optional else ""
        plain.append(f"        and ({may}type({t}) is Tensor or type({t}) is Parameter)")
        on_gpu.append(f"{t}.is_cuda and not {t}.is_neg()")
        on_gpu[-1] = f"        and ({may}{on_gpu[-1]})" if optional else f"        and {on_gpu[-1]}"
        wants_grad.append(f"({t} is not None and {t}.requires_grad)" if optional else f"{t}.requires_grad")
    return "\n".join(
        [
            f"def {name}({arguments}):",
            "    if (",
            "        not (is_compiling() or transforms_active() or dispatch_modes())",
            *(["        and not is_autocast_enabled('cuda')"] if casts else []),
            *plain,
            *on_gpu,
            "    ):",
            f"        if ({' or '.join(wants_grad)}) and grad_enabled():",
            f"            return apply({arguments})",
            f"        return body({arguments})",
            f"    return dispatch(({arguments},))",
        ]
    )


def _write_call(source: str, parts: Mapping[str, Any]) -> Any:
    """The function of :func:`_call_source`, over body, apply and dispatch."""
    scope: dict[str, Any] = {
        "is_autocast_enabled": torch.is_autocast_enabled,
        "is_compiling": _is_compiling,
        "transforms_active": _transforms_active,
        "dispatch_modes": _dispatch_modes,
        "grad_enabled": _grad_enabled,
        "Tensor": Tensor,
        "Parameter": Parameter,
        **parts,
    }
    name = source.partition("(")[0].removeprefix("def ")
    exec(compile(source, f"<way into {name}>", "exec"), scope)
    return scope[name]


def _fast_function(name: str, body: Any, setup_context: Any, backward: Any) -> Callable[..., Any]:
    """``apply`` of a Function that saves within forward: the form with ``setup_context`` costs about four times as much
    a call.

    The bound method is the one in C++. Function.apply, in Python, first looks for functorch's wrappers; an operator has
    done so before.
    """

    def forward(ctx: Any, *args: Any) -> Any:
        ctx.set_materialize_grads(False)
        output = body(*args)
        setup_context(ctx, args, output)
        return output

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type(f"{name}_function", (torch.autograd.Function,), members)
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def _reference_gradient(reference: Callable[..., Any]) -> tuple[Callable[..., None], Callable[..., Any]]:
    """``setup_context`` and ``backward`` of an operator whose gradient is its reference's."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)))
        ctx.others = [None if isinstance(x, Tensor) else (x,) for x in inputs]

    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        again = torch.is_grad_enabled()  # somebody will differentiate this gradient, too
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if other is None else other[0] for other in ctx.others]
        if not again:
            inputs = [
                x.detach().requires_grad_(needed) if isinstance(x, Tensor) else x
                for x, needed in zip(inputs, ctx.needs_input_grad, strict=True)
            ]
        with torch.enable_grad():
            outputs = reference(*inputs)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [(y, g) for y, g in zip(outputs, grads, strict=True) if g is not None and y.requires_grad]
        wanted = [x for x, needed in zip(inputs, ctx.needs_input_grad, strict=True) if needed]
        if not pairs or not wanted:
            return tuple(None for _ in inputs)
        found = iter(
            torch.autograd.grad(
                [y for y, _ in pairs], wanted, [g for _, g in pairs], create_graph=again, allow_unused=True
            )
        )
        return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)

    return setup_context, backward
