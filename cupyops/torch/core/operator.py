"""The class :class:`Operator`, which makes a PyTorch operator from a body.

The body is a function that allocates the results and launches kernels. An operator may also have a reference, which is
the same operation in plain PyTorch. The gradient may be a backward body (:mod:`cupyops.torch.core.gradients`), or a
:class:`torch.autograd.Function` with ``forward`` (without ctx), ``setup_context`` and ``backward``. This table shows
what Operator derives from these parts:

=========================  ==========================================================================================
CUDA, no gradient          the body, called directly
CUDA, gradient             an autograd Function around body and backward, in the form with the least host time
CPU                        the reference, which autograd differentiates. Inside ``cupyops.simulate()``, or without a
                           reference: the body, whose kernels run in the simulator
tracing, modes,            a ``torch.library`` operator of the same parts, whose fake kernel is the body on fake tensors
tensor subclasses
torch.func                 an autograd Function of the same parts, with a separate ``setup_context``
forward mode               the declared jvp, an operator; else the reference on tensors with tangents
second derivatives         the gradients of the operators that the backward calls: each has a declared backward, or the
                           gradient of its reference
vmap                       the declared rule; else one call on the batched tensors, for elementwise operators; else vmap
                           of the reference; else one call for each index of the batch
autocast                   the declared policy: no cast, float32, or the lower-precision dtype of autocast
Inductor                   a direct call of the body in the generated code (:mod:`cupyops.torch.compiled`), or the
                           operations of the reference
ONNX                       the declared translation to standard operators (:mod:`cupyops.torch.onnx.export`)
DTensor                    the operator on the local tensors, if these are placed as the declared rule says
                           (:mod:`.dtensors`)
DTensor, jagged tensors    calls on parts of the tensors, by the declared rule (:mod:`cupyops.torch.scale.sharding`)
selective checkpointing    the declared parts, which the checkpoint's policy decides about; else the operator
symbolic tracing           ``torch.fx`` records a call of the ``torch.library`` operator
=========================  ==========================================================================================

An operator that writes to its arguments, ``Tensor(a!) x``, has no gradient, and raises an error for tensors that
require grad. Declaring a name again replaces the earlier operator, so that a notebook cell can be run twice. A copy of
an operator is the operator itself, and a pickled operator is its name.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from cupyops import simulator
from cupyops.errors import expected
from cupyops.torch.compiled import calls
from cupyops.torch.compiled.common import Common
from cupyops.torch.compiled.keys import code_of
from cupyops.torch.compiled.recompute import Recomputation
from cupyops.torch.compiled.rules import Rule, decomposes, in_16_bits, of_gradient, rule_of
from cupyops.torch.scale import sharding as scale
from cupyops.torch.scale.declared import Scale
from cupyops.torch.scale.distributed import correct_dtypes

from .autocast import cast_all, policies_of
from .checkpoints import checkpointed, of_plain_tensors
from .composite import Composites
from .conditions import (
    any_autocast,
    dispatch_modes,
    forward_mode,
    grad_enabled,
    has_nested,
    is_compiling,
    is_scripted,
    is_traced,
    no_autocast,
    selective,
    transforms_active,
)
from .derivatives import counting, derivatives_of
from .dispatch import call_source, casts_source, function_of, write_call
from .dtensors import on_dtensors
from .gradients import Backward, Schema, without_autocast
from .implementations import completed, detaching, on_cpu, transformable
from .in_place import in_place_options
from .registration import ending_with, register
from .repeated import repeated
from .results import held_to_schema
from .tangents import Tangents, options_of_jvp, with_tangents
from .tensors import PLAIN_TENSORS, NoStorageError, is_batched, symbolic_call
from .vmap import vmap_by_loop, vmap_of_elementwise, vmap_of_reference

__all__ = ["Operator", "declared", "operator_of"]

# All operators by qualified name. The dictionary does not keep an operator alive.
_DECLARED: WeakValueDictionary[str, "Operator"] = WeakValueDictionary()


def operator_of(target: Any) -> "Operator | None":
    """Returns the :class:`Operator` of the target of a node of a traced graph, or None if there is none."""
    return _DECLARED.get(target.name()) if isinstance(target, torch._ops.OpOverload) else None


def declared(name: str, declare: Callable[[], "Operator"] | None = None) -> "Operator":
    """Returns the operator of a qualified name. Pickled operators call this function when they are loaded.

    Args:
        name: the qualified name.
        declare: declares the operator if none has the name; None for an operator that its own module must declare.

    Raises:
        RuntimeError: no operator has the name.
    """
    if (found := _DECLARED.get(name)) is not None:
        return found
    if declare is None:
        raise RuntimeError(
            f"a pickled object calls the operator {name}, which is not declared: import the module that declares it first"
        )
    return declare()


class Operator:
    """A PyTorch operator. Call it with the schema's arguments, in order or by name.

    Args:
        schema: ``"mylib::scale(Tensor x, float factor) -> Tensor y"``. Tensors come first. ``Tensor?`` may be None, also as a result.
            ``Tensor(a!)`` is an argument that the body writes to. It may have no result, ``-> ()``, or several, ``->
            (Tensor y, Tensor z)``. An argument that is a keyword of Python, ``Tensor lambda``, is given in order or as
            ``**{"lambda": x}``; in ``torch.ops``, its name is ``lambda_``.
        implementation: the body, or an ``autograd.Function`` with ``setup_context`` and ``backward`` whose
            ``forward(*args)`` is the body. ``backward`` receives None for an undefined gradient. The Function may also
            have ``recording(ctx, *args)``, which runs instead of ``forward`` and ``setup_context`` on plain tensors,
            and may save tensors that are not results.
        backward: a function that computes the gradients, or an :class:`Operator`. The names of its parameters select
            its arguments: ``grad_y`` is the gradient of the result y (``grad_out`` if the schema does not name the
            result); the name of an input or result is its value; ``want_x`` is whether the gradient of x is needed. If
            ``want_x`` is False, the function may return None for that gradient. Tensors come first.
        wrt: names of the inputs whose gradients ``backward`` returns, in order; by default all tensors.
        jvp: a function that computes the tangents of the differentiable results in forward mode, or an
            :class:`Operator`. The names of its parameters select its arguments: ``tangent_x`` is the tangent of the
            input x, or zeros (None, if the parameter has the default None); the name of an input or result is its
            value. Tensors come first. By default, and on CPU tensors, forward mode differentiates the reference.
        reference: the same operation in plain PyTorch. The reference runs on CPU tensors. The gradient of the reference
            is the operator's gradient if no other is declared, and gives the second derivative. The reference must not
            return an input or a view of an input. Without a reference, CPU tensors run the kernels in the simulator.
        elementwise: whether each element of a result depends only on the inputs' elements at the same index. vmap is
            then one call on the batched tensors.
        autocast: ``None`` for no cast, ``"float32"``, or ``"lower"`` for the dtype of the active autocast; or one of
            these for each type of device, ``{"cuda": "float32"}``.
        onnx: the operation in ONNX's standard operators, ``lambda op, x, factor: op.Mul(op.Sin(x), factor)``. Without
            this form, a model that calls the operator cannot be exported to ONNX.
        record: ``record(apply, *args)``, called on plain tensors that require grad, where ``apply`` is the method of
            the ``autograd.Function``. ``record`` may call PyTorch's own differentiable operators instead, if these take
            less time. Under autocast, ``apply`` converts the tensors, and PyTorch's operators do.
        vmap: a rule ``(info, in_dims, *args) -> (results, out_dims)``, in the form of ``torch.library.register_vmap``.
        compiled: what the operator is in a graph of ``torch.compile``. ``"kernel"``: one node, which calls the body.
            ``"decompose"``: the operations of the reference, which Inductor fuses with the operations beside them.
            ``"auto"``: one node with its own gradient, which Inductor compiles as the kernel or as the operations of the
            reference, whichever is faster beside the operations around it (:mod:`cupyops.torch.compiled.choices`); the
            gradient, too, unless it is an Operator. An elementwise operator has the choice for 16-bit tensors alone. A
            function of the operator's arguments that returns one of these. ``torch.export`` and ``cupyops.simulate()``
            always keep the operator.
        recompute: a function that computes the first result by pointwise operations of PyTorch. The names of its
            parameters select its arguments: inputs, and the other results, at least one of these or all inputs. In the
            backward of a compiled graph, the function replaces a saved result if that saves fewer bytes.
        common: the values from which results follow, ``{"mean": ("row mean", "x")}``: for the name of one of several
            results, a computation, and the inputs and other results that it reads. A compiled graph shares results that
            follow from equal values by the same computation, also between operators of the same namespace.
        inplace: a body that writes the first result over the first argument, and returns the other results. The argument is
            contiguous. A compiled graph calls it if no other operation reads the argument later.
        repeats: whether the steps of the body, and of a backward that is declared as a function, depend on the shapes,
            strides, dtypes and numbers of the arguments alone. The steps are allocations, launches and calls of
            PyTorch's functions. Later calls then repeat the steps of one call, in compiled graphs with fixed shapes and
            in eager mode. Must be False for a body that draws random numbers in Python, for instance.
        sharding: along which dimensions the operator can be split, for DTensor and jagged nested tensors.
            ``"elementwise"``: along every dimension; the default if ``elementwise`` is True. ``"rows"``: along every
            dimension except the last. Or a rule (:mod:`cupyops.torch.scale.sharding`). A backward that is declared as a
            function gets the rule that follows. Without a rule, DTensor and jagged tensors raise NotImplementedError.
        flops: ``flops(*args)`` returns the floating point operations of a call, for
            ``torch.utils.flop_counter.FlopCounterMode``. The function takes the shapes of the tensors in place of the
            tensors. The default counts 0.
        fake: ``fake(*args)`` returns new tensors like the results, for tensors without values. torch.compile, torch.export
            and others call it. The default calls the body, whose launches do nothing then; if the body's steps depend on a
            value of a tensor (``x.item()``), it calls the reference.
        parts: ``parts(*args)`` computes the results by other differentiable operators. Selective activation
            checkpointing calls ``parts``, so that its policy decides about each of these operators.
        version: a text that you change whenever you change what the operator computes, or these arguments. Compiled graphs
            on disk are then used in other processes. Without it, AOTAutograd traces the operator again in each process.

    Attributes:
        op: the registered ``torch.ops.mylib.scale.default``.
        call: the operator as a plain function, which takes slightly less host time than calling the Operator.
        backward, jvp: the operators that compute the gradient and the tangents, or None if not declared.
        inplace: the operator ``mylib::scale_``, which writes the first result over the first argument, or None.
        parts: the declared function, or None.

    Raises:
        ValueError: ``autocast``, ``compiled`` or ``sharding`` is none of the values above; ``compiled="decompose"`` is
            declared without a reference; the schema has no namespace, or has a tensor after other arguments; the backward or
            ``common`` has an unknown name; a gradient is declared for an operator that writes to its arguments; or ``inplace``
            for one without a result, or whose first argument may be None.
    """

    def __init__(
        self,
        schema: str,
        implementation: type[torch.autograd.Function] | Callable[..., Any],
        *,
        backward: "Operator | Callable[..., Any] | None" = None,
        wrt: Sequence[str] | None = None,
        jvp: "Operator | Callable[..., Any] | None" = None,
        reference: Callable[..., Any] | None = None,
        elementwise: bool = False,
        autocast: str | Mapping[str, str | None] | None = None,
        onnx: Callable[..., Any] | None = None,
        record: Callable[..., Any] | None = None,
        vmap: Callable[..., Any] | None = None,
        compiled: str | Rule = "kernel",
        recompute: Callable[..., Any] | None = None,
        common: Mapping[str, Sequence[str]] | None = None,
        inplace: Callable[..., Any] | None = None,
        repeats: bool = False,
        sharding: "str | scale.Rule | None" = None,
        flops: Callable[..., int] | None = None,
        fake: Callable[..., Any] | None = None,
        parts: Callable[..., Any] | None = None,
        version: str | None = None,
        _mend: str = "",
        _by_parts: bool = False,
        _general: Callable[[Callable[..., Any], tuple[Any, ...]], Any] | None = None,
    ) -> None:
        self._autocast = policies_of(autocast)
        self._compiled = rule_of(compiled, elementwise, reference is not None)
        parsed = Schema.parse(schema)
        rule = scale.rule_of(sharding, elementwise, len(parsed.tensors), len(parsed.results), bool(parsed.mutated))
        self.name = parsed.name
        names = [*parsed.types], parsed.results
        self._recomputation = recompute and Recomputation(self.name, recompute, *names)
        self._common = None if common is None else Common(parsed.namespace, self.name, common, *names)
        code = code_of(parsed.namespace, self.name, version)
        in_place: Any = None if inplace is None else in_place_options(parsed, inplace, reference, fake)
        self.qualified_name = f"{parsed.namespace}::{self.name}"
        self.schema, self.reference = schema, reference
        plain = None if reference is None else without_autocast(reference)
        self.onnx, self.elementwise = onnx, elementwise
        self._tensors = tuple(enumerate(parsed.tensors))
        self._optional = frozenset(name for name, optional in parsed.tensors.items() if optional)
        self._mutated, self._withdrawn = parsed.mutated, False
        self._shared: Mapping[str, str] = {}  # by inputs: the input with the same gradient. Programs set it.
        if parsed.mutated and (backward is not None or jvp is not None or isinstance(implementation, type)):
            raise ValueError(f"{self.name} writes to {', '.join(parsed.mutated)}, so it can have no gradient")

        def operator_for(backward: Any, wrt: Sequence[str]) -> Operator:
            if isinstance(backward, Operator):
                return backward
            found = Backward(parsed, backward, wrt, plain)
            broadcasts = elementwise or sharding == "elementwise"
            divided = rule and scale.of_gradient(rule, parsed, found.arguments, wrt, broadcasts=broadcasts)
            options: Any = {"reference": found.reference, "repeats": repeats, "sharding": divided}
            if found.reference is not None:
                options["compiled"] = of_gradient(self._compiled)
            return Operator(found.schema, found.body, **options, _mend=found.refusal)

        derivatives = derivatives_of(parsed, implementation, backward, wrt, plain, operator_for, _mend)
        gradient, fixed = derivatives.gradient, derivatives.fixed
        self.body: Callable[..., Any] = derivatives.body
        self.backward: Operator | None = derivatives.backward
        self._by_reference = derivatives.by_reference
        self.jvp: Operator | None = None
        self._tangents: Tangents | None = None
        if jvp is not None:
            moving = [name for name in parsed.tensors if name in (derivatives.wrt or wrt or parsed.tensors)]
            if not isinstance(jvp, Operator):
                options = options_of_jvp(parsed, jvp, moving, fixed, plain)
                jvp = Operator(**options, elementwise=elementwise, repeats=repeats)
            self.jvp, self._tangents = jvp, Tangents(parsed, jvp, moving, fixed)
        constant = derivatives.constant
        self._plain = plain if plain is None or not (fixed or constant) else detaching(plain, constant, fixed)
        # The body for every call but those of the generated code, which asks about autocast itself.
        body = without_autocast(self.body)
        # Forward mode differentiates this function. cupyops.torch.programs sets it if a program has no reference.
        self._with_derivatives = self._plain
        self.inplace: Operator | None = in_place and Operator(**in_place, repeats=repeats, version=version)
        # Traced code calls the reference itself: there, tensors have no memory to compare.
        self._checked = self._plain and held_to_schema(self._plain, parsed, "reference")
        bodies = body, on_cpu(body, self._plain, fake), repeats, bool(parsed.mutated)
        in_graphs = code, self._plain, self._compiled
        self._bodies = calls.declare(self.qualified_name, *bodies, self.inplace and self.inplace.op, *in_graphs)
        self._held = held_to_schema(body, parsed)
        # The body for plain tensors on a GPU, called without autocast.
        self.eager: Callable[..., Any] = self.body
        if repeats:  # the function that repeats steps counts no versions
            self.eager = counting(parsed, repeated(parsed, implementation if parsed.mutated else self.body))
        self._apply: Callable[..., Any] = self._refuse
        if gradient is not None:
            self._apply = derivatives.function(self.eager, self._held)
        casts = self._autocast.get("cuda")
        if record is not None:
            text = casts_source(self.name, parsed.tensors, parsed.others, casts)
            self._apply = partial(record, write_call(text, {"apply": self._apply}, self.name, [*parsed.types]))
        if (earlier := _DECLARED.get(self.qualified_name)) is not None:
            earlier._withdraw()
        find = partial(_DECLARED.get, self.qualified_name)
        if vmap is None and not parsed.mutated:
            if elementwise:
                vmap = vmap_of_elementwise(find)
            else:
                vmap = vmap_by_loop(find) if plain is None else vmap_of_reference(completed(plain, parsed))
        self._scale = Scale(parsed, rule, flops, elementwise)
        eager = held_to_schema(without_autocast(self.eager), parsed)
        again = elementwise or self._compiled is in_16_bits  # also elementwise, of parts of a tensor
        declared_once = self._scale, again, self._recomputation, self._common, find
        library = register(parsed, self._held, eager, self._checked, fake, gradient, vmap, *declared_once)
        self.op: Any = getattr(getattr(torch.ops, parsed.namespace), self.name).default
        self._unregister = ending_with(self, library, self.op, lambda: (newest := find()) and newest.op)
        # The Functions that _by_transforms applies, for calls of the Operator and for calls through torch.ops.
        rest = self.name, self._registered, vmap, len(parsed.types), self._tangents
        self._transformed = None if gradient is None else transformable(gradient, *rest)
        self._checkpointed = None if gradient is None else checkpointed(self.name, self.op, parts, gradient, _by_parts)
        self._alone = of_plain_tensors(self._checkpointed, self._tensors, self._optional, self._autocast)
        self.parts = parts
        kinds = parsed.tensors, parsed.others, parsed.defaults
        in_graph = self._compiled if self._plain else "kernel", self._autocast, code
        self._composites = Composites(parsed, *in_graph, lambda: getattr(find(), "_composites", None))
        options = {"casts": casts, "late": record is not None, "traced": self._composites.used}
        text = call_source(self.name, *kinds, spread=parsed.spread, **options)
        general = self._dispatch if _general is None else partial(_general, self._dispatch)
        called = {"body": self.eager, "apply": self._apply, "dispatch": general}
        self.call: Callable[..., Any] = self._composites.write(text, called, len(parsed.results), self._held)
        of_scale = rule, self._scale.prepare, gradient, len(parsed.tensors), self._autocast
        self._on_dtensors = on_dtensors(self.name, self.op, self.call, *of_scale)
        _DECLARED[self.qualified_name] = self

    def __repr__(self) -> str:
        return f"<Operator {self.op._schema}>"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Returns the operator's result.

        Raises:
            TypeError: the schema declares an argument as a tensor, and the argument is not one.
            RuntimeError: the operator writes to a tensor, and one of its tensors requires grad; or the body or the
                backward returned something other than the schema's tensors.
            Exception: any error that the body or the reference raises.
        """
        return self.call(*args, **kwargs)

    def __copy__(self) -> "Operator":
        return self

    def __deepcopy__(self, memo: Any) -> "Operator":
        return self

    def __reduce__(self) -> Any:
        return declared, (self.qualified_name,)

    def shown(
        self,
        count: int,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        body: Callable[..., Any],
        general: Callable[[Callable[..., Any], tuple[Any, ...]], Any] | None = None,
    ) -> Callable[..., Any]:
        """Returns a call of the operator that returns only the results which the operator's user sees.

        The other results are tensors that the backward reads. A Function on plain tensors saves them without returning
        them, which takes less host time than a result.

        Args:
            count: the number of the results that the user sees, which come first.
            forward: ``forward(ctx, *tensors, others)`` of the Function, where ``others`` is a tuple of the arguments
                that are not tensors. It sets the attributes of ctx itself.
            backward: the backward of the Function.
            body: computes the results that the user sees, for plain tensors without a gradient.
            general: ``general(call, args)`` computes the results for all other arguments; by default ``call(args)``,
                which calls the operator and drops the other results.
        """
        schema = Schema.parse(self.schema)
        casts, tensors = self._autocast.get("cuda"), len(schema.tensors)
        kinds = schema.tensors, schema.others
        options: Any = {"casts": casts, "packed": True, "traced": self._composites.used}
        text = call_source(self.name, *kinds, schema.defaults, spread=schema.spread, **options)
        apply = function_of(self.name, forward, backward)

        def call(args: tuple[Any, ...]) -> Any:
            recorded: list[Any] = []
            found = self._dispatch(args, lambda *args: recorded.append(apply(*args[:tensors], args[tensors:])))
            return recorded[0] if recorded else found[0] if count == 1 else found[:count]

        parts = {"body": body, "apply": apply, "dispatch": call if general is None else partial(general, call)}
        return self._composites.write(text, parts, count)

    def _dispatch(self, args: tuple[Any, ...], apply: Callable[..., Any] | None = None) -> Any:
        """Runs a call that the generated dispatch does not handle, such as one on CPU tensors or tensor subclasses.

        Args:
            args: the arguments.
            apply: records a call on plain tensors; by default the Function of the operator.
        """
        if not (is_traced() or self._withdrawn):
            direct = self._alone if args[0] is None or type(args[0]) in PLAIN_TENSORS else self._on_dtensors
            if (found := direct(args)) is not None:
                return found
        for i, name in self._tensors:
            if not isinstance(args[i], Tensor) and not (args[i] is None and name in self._optional):
                if (proxy := symbolic_call(self.op, args)) is not None:
                    return proxy
                wanted = "be a Tensor or None" if name in self._optional else "be a Tensor"
                raise TypeError(expected(self.name, name, wanted, type(args[i]).__name__))
        if is_traced():
            args = cast_all(args, self._tensors, self._autocast)
        elif any_autocast():
            args = cast_all(args, self._tensors, self._autocast)
            with no_autocast():
                return self._dispatch(args, apply)
        tensors = [args[i] for i, _ in self._tensors if args[i] is not None]
        if self._mutated and grad_enabled() and any(x.requires_grad for x in tensors):
            self._refuse()
        if forward_mode() and (found := with_tangents(self, args)) is not None:
            return found
        if is_compiling():
            plain = self._plain
            if plain is not None and decomposes(self.name, self._compiled, args):
                return plain(*args)
            return self._registered(args)
        if transforms_active():
            return self._by_transforms(args)
        are_plain = PLAIN_TENSORS.issuperset(map(type, tensors))
        if dispatch_modes() or not are_plain:
            if not are_plain:
                correct_dtypes(tensors)
            taken = self._checkpointed if are_plain or self.parts else None  # subclasses of Tensor need autograd's keys
            if taken is None or self._withdrawn or not selective():
                return self._registered(args)
            return taken(args, are_plain and grad_enabled() and any(x.requires_grad for x in tensors))
        if has_nested(tensors):
            return self._on_nested(args)
        if all(x.is_cpu for x in tensors) and not (simulator.in_call() and simulator.enabled()):
            if self._checked is not None and not simulator.enabled():
                return self._checked(*args)
            with simulator.call():  # another thread may change the setting meanwhile
                return self._dispatch(args, apply)
        if is_scripted():
            return self._registered(args)
        if any(x.is_neg() for x in tensors):
            # A negative view (the imaginary part of a conjugate, for instance) has the negated values in memory. A
            # kernel needs a tensor whose memory holds the values themselves.
            resolved = tuple(x.resolve_neg() if isinstance(x, Tensor) else x for x in args)
            results = self._dispatch(resolved, apply)
            for i, name in self._tensors:
                if name in self._mutated and resolved[i] is not args[i]:
                    args[i].copy_(resolved[i])
            return results
        if not all(x.is_cuda or x.is_cpu for x in tensors):
            return self._registered(args)
        try:
            if grad_enabled() and any(x.requires_grad for x in tensors):
                return (apply or self._apply)(*args)
            return self._held(*args)
        except NoStorageError:
            if any(x._is_zerotensor() for x in tensors):
                # PyTorch's tangents of zero have no memory. The sum has, and autograd records it.
                with_memory = (
                    torch.zeros_like(x) + x if isinstance(x, Tensor) and x._is_zerotensor() else x for x in args
                )
                return self._dispatch(tuple(with_memory), apply)
            if not any(is_batched(x) for x in tensors):
                raise
        return self._registered(args)  # is_grads_batched=True: the dispatcher calls the operator for each gradient

    def _on_nested(self, args: tuple[Any, ...]) -> Any:
        """Returns the results of the reference for nested tensors of the layout ``torch.strided`` on a CPU.

        Raises:
            RuntimeError: kernels would run, or PyTorch cannot compute the reference of nested tensors.
        """
        cause = None
        if (
            self._plain is not None
            and not simulator.enabled()
            and all(args[i].is_cpu for i, _ in self._tensors if args[i] is not None)
        ):
            try:
                return self._plain(*args)
            except RuntimeError as error:
                cause = error
        raise RuntimeError(
            f"{self.name}: nested tensors of the layout torch.strided are not supported: make them with layout=torch.jagged, or pad them by "
            "x.to_padded_tensor(0.0)"
        ) from cause

    def _by_transforms(self, args: tuple[Any, ...]) -> Any:
        if forward_mode() and (found := with_tangents(self, args)) is not None:
            return found
        return self._registered(args) if self._transformed is None else self._transformed.apply(*args)

    def _registered(self, args: tuple[Any, ...]) -> Any:
        if self._withdrawn:
            raise RuntimeError(
                f"{self.qualified_name} has been declared again since; this earlier object still takes plain tensors, "
                "but tracing, modes and transforms use the newest declaration: call the newest object"
            )
        return self.op(*args)

    def _withdraw(self) -> None:
        """Removes the registration with PyTorch, so that another operator can take the name. Calls on plain tensors
        still work, since they need no registration."""
        self._withdrawn = True
        self._composites.withdraw(lambda *args: self._registered(args))
        self._unregister()

    def _refuse(self, *args: Any) -> Any:
        raise RuntimeError(
            f"{self.name} writes to {', '.join(f'`{name}`' for name in self._mutated)}, and one of its tensors "
            "requires grad: it has no gradient, so call it under torch.no_grad()"
        )
