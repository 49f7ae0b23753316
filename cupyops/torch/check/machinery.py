"""Checks of an operator in PyTorch: fake tensors, torch.func, autocast, opcheck."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops.torch.core.results import WrongResults

from .compare import assert_close
from .failures import first_cause, first_words, quiet
from .graphs import compiled_around, fails
from .inputs import Arguments, fresh, moved_on, tensors_in
from .registry import Fault, Skip, check
from .subject import Subject
from .values import target

__all__ = [
    *("autocast", "defaults", "differentiable", "fakes", "opcheck", "returned", "torch_func", "vmap"),
]

_ON_FAKES = (
    "The body also runs on tensors without memory: no data_ptr(), and no branch on values without a reference or fake=. "
    "Derive the shapes and dtypes that the body allocates from the shapes and dtypes of its arguments."
)


@check(
    "Count what body and backward return: one tensor for each result of the schema, at every return.",
    ground=True,
    compares="",
)
def returned(subject: Subject) -> str:
    """Body and backward return as many tensors as their schemas declare."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    for args in subject.samples:
        # Fake tensors launch no kernel, so a faulty kernel cannot crash the process in this check.
        mode = FakeTensorMode()
        wanted = subject.wanted(args)
        given = [mode.from_tensor(x.detach()) if isinstance(x, Tensor) else x for x in fresh(args)]
        try:
            with mode, quiet(), torch.enable_grad():
                leaves = [x if subject.mutated or i not in wanted else x.requires_grad_() for i, x in enumerate(given)]
                ready = [y for y in subject.call(leaves) if y.requires_grad]
                if ready:
                    seeds = [torch.ones_like(y) for y in ready]
                    torch.autograd.grad(ready, [leaves[i] for i in wanted], seeds, allow_unused=True)
        except Exception as error:
            if isinstance(wrong := first_cause(error), WrongResults):
                raise Fault(str(wrong)) from None
            # The check `fakes` reports other errors on fake tensors.
    count = len(subject.samples)
    return f"{count} sample{'s' if count != 1 else ''} on fake tensors"


@check(
    _ON_FAKES,
    compares="",
)
def fakes(subject: Subject) -> str:
    """On fake tensors the operator gives the same shapes, dtypes and strides as on real tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    for dtype, args in subject.variants:
        real = subject.outputs(fresh(args))
        mode = FakeTensorMode()
        fake = tuple(mode.from_tensor(x.detach()) if isinstance(x, Tensor) else x for x in fresh(args))
        with mode:
            try:
                got = subject.outputs(fake)
            except Exception as error:
                if fails(lambda: subject.outputs(fake, subject.op.reference), subject):  # noqa: B023
                    raise Skip(f"the reference fails on fake tensors, too: {first_words(error)}") from None
                raise Fault(f"{dtype}, on fake tensors: {first_words(error)}") from error
        if list(got) != list(real):
            raise Fault(f"{dtype}: {len(got)} outputs on fake tensors, {len(real)} on real ones")
        for name, y in real.items():
            for what in ("dtype", "shape", "device", "stride"):
                values = [v() if callable(v) else v for v in (getattr(x, what) for x in (got[name], y))]
                if values[0] != values[1] and not (what == "stride" and y.numel() < 2):
                    raise Fault(
                        f"{dtype}: {name} has {what} {_plain(values[0])} on fake tensors (of the body), "
                        f"and {_plain(values[1])} "
                        f"on real ones ({'of the reference' if not subject.kernels else 'of the body'})",
                        "" if subject.kernels else "Have the reference return what the body allocates.",
                    )
    return subject.told(len(subject.variants), "samples")


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, tuple) else value


def _left_out(subject: Subject, args: Arguments) -> Arguments:
    """Returns the arguments without the trailing ones that equal their defaults."""
    count = len(args)
    while count and _at_default(subject.schema[count - 1], args[count - 1]):
        count -= 1
    return args[:count]


def _at_default(argument: Any, value: Any) -> bool:
    return argument.has_default_value() and not isinstance(value, Tensor) and value == argument.default_value


@check(
    "PyTorch's dispatcher leaves out trailing arguments that equal their defaults: let the Function accept fewer "
    "arguments, and return as many gradients as ctx.needs_input_grad has entries.",
    needs=("fakes", "gradients", "differentiable"),
)
def defaults(subject: Subject) -> str:
    """Trailing arguments at their defaults may be left out: of the operator, of torch.ops, in a compiled program."""
    tried = 0
    for dtype, args in subject.each:
        short = _left_out(subject, args)
        if len(short) == len(args):
            continue
        ways: dict[str, tuple[Arguments, Any]] = {
            "torch.ops, all arguments given": (args, subject.op.op),
            "torch.ops": (short, subject.op.op),
            "the operator": (short, subject.op.call),
        }
        if not tried:
            ways["compiled by aot_eager"] = short, compiled_around(subject, short, False, "aot_eager")[0]
        right = subject.results(fresh(args))
        for what, (given, function) in ways.items():
            words = f"{dtype}, {what}, with the default of {', '.join(a.name for a in subject.schema[len(short) :])}"
            try:
                with quiet():
                    got = subject.results(fresh(given), function)
            except Exception as error:
                raise Fault(f"{words}: {first_words(error)}") from error
            assert_close(words, got, right, than="the operator with all arguments gives")
            tried += 1
    if not tried:
        raise Skip("no sample has its last argument at a default")
    return subject.told(tried, "calls")


@check(
    "Reference and Function must agree: detach in the reference the results that ctx.mark_non_differentiable names, "
    "and accept in the backward the gradient of every other result.",
    needs=("gradients",),
    compares="",
)
def differentiable(subject: Subject) -> str:
    """The same outputs require gradients, whether the operator or torch.ops is called."""
    subject.need_gradients(subject.samples[0])
    for args in subject.samples:
        leaves = [
            x.detach().clone().requires_grad_(i in subject.wanted(args)) if isinstance(x, Tensor) else x
            for i, x in enumerate(args)
        ]
        with torch.enable_grad():
            # Outputs without elements are skipped: an operator may return an empty tensor for an output not requested.
            plainly, through = (
                [y.requires_grad and y.numel() > 0 for y in subject.call(leaves, function)]
                for function in (None, subject.op.op)
            )
        for k, (one, other) in enumerate(zip(plainly, through, strict=True)):
            if one != other:
                name = subject.op.op._schema.returns[k].name
                raise Fault(
                    f"output {k}{f', `{name}`,' if name else ''} takes {'a' if one else 'no'} gradient "
                    f"where the operator is called plainly, and "
                    f"{'one' if other else 'none'} through torch.ops"
                )
    return f"{len(subject.samples)} samples"


@check(
    "Look at setup_context and backward: a transform calls them with every output of the forward.",
    needs=("gradgradcheck", "differentiable"),
)
def torch_func(subject: Subject) -> str:
    """torch.func.grad gives the gradients that autograd gives."""
    for dtype, args in subject.each:
        ready = subject.need_gradients(args)
        wanted = tuple(subject.wanted(args))
        seeds = subject.seeds(ready)
        plain = tuple(x.detach().clone() if isinstance(x, Tensor) else x for x in args)

        def loss(*full: Any, seeds: dict[str, Tensor] = seeds) -> Tensor:
            outputs = subject.call(full)
            named = {"output": outputs[0]} if len(outputs) == 1 else {f"output {i}": y for i, y in enumerate(outputs)}
            total = torch.zeros((), dtype=torch.float64, device=subject.device)
            for name, g in seeds.items():
                total = total + (named[name] * g).sum().double()
            return total

        found = torch.func.grad(loss, wanted)(*plain)
        right = subject.results(fresh(args), seeds=seeds)
        named = {f"gradient of {subject.schema[i].name}": g for i, g in zip(wanted, found, strict=True)}
        right = {n: x for n, x in right.items() if n in named}
        assert_close(f"{dtype}, torch.func.grad", named, right, than="autograd gives")
    return subject.told(len(subject.each), "samples")


def _batched_reference(subject: Subject, args: Arguments) -> None:
    positions, second = tensors_in(args), moved_on(args, 1)

    def run(*tensors: Tensor) -> Any:
        full = list(args)
        for i, x in zip(positions, tensors, strict=True):
            full[i] = x
        return tuple(subject.call(full, subject.reference))

    torch.func.vmap(run)(*(torch.stack((args[i], second[i])).detach() for i in positions))


@check(
    "Declare `elementwise=True` only where each element of the result depends only on the inputs' elements at the same "
    "index. Otherwise give a reference that torch.func.vmap can batch.",
    needs=("values",),
)
def vmap(subject: Subject) -> str:
    """torch.func.vmap over stacked samples gives the results of separate calls."""
    if subject.mutated:
        raise Skip("the operator writes into its arguments")
    for dtype, args in subject.each:
        positions = tensors_in(args)
        second = moved_on(args, 1)

        def run(*tensors: Tensor, args: Arguments = args, positions: Sequence[int] = positions) -> Any:
            full = list(args)
            for i, x in zip(positions, tensors, strict=True):
                full[i] = x
            return tuple(subject.call(full))

        with torch.no_grad():
            batched = (torch.stack((args[i], second[i])).detach() for i in positions)
            try:
                found = torch.func.vmap(run)(*batched)
            except Exception as error:
                if subject.op.reference is None and not subject.op.elementwise:
                    raise Skip(f"vmap needs a reference or `elementwise=True`: {first_words(error)}") from None
                if not subject.op.elementwise and fails(lambda: _batched_reference(subject, args), subject):  # noqa: B023
                    raise Skip(f"torch.func.vmap does not take the reference: {first_words(error)}") from None
                raise
        for k, one in enumerate((args, second)):
            # The vmap rule may run the reference, so the results are compared by their error, not by the kernel's bits.
            got = dict(zip(subject.outputs(fresh(one)), (y[k] for y in found), strict=True))
            right = target(subject, one, got, {})
            assert_close(f"{dtype}, batched, number {k}", got, right.exact, right.allowed, right.than)
    return subject.told(len(subject.each), "samples")


@check(
    "The declared policy converts the tensors before the body, which runs with autocast off: the dtypes of its arguments "
    "alone decide the dtypes of its results."
)
def autocast(subject: Subject) -> str:
    """Under autocast the operator follows its declared policy, and the gradients have the inputs' dtypes."""
    kind = subject.device.type
    taken = [name for name, _ in subject.each]
    lower = next((getattr(torch, name) for name in ("bfloat16", "float16") if name in taken), torch.bfloat16)
    policy = subject.op._autocast.get(kind)
    tried = 0
    for dtype, args in subject.each:
        if policy == "lower" and str(lower).removeprefix("torch.") not in taken:
            raise Skip("the policy is `lower`, and the operator takes no 16-bit dtype")

        def cast(x: Any) -> Any:
            floating = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
            if not floating or policy is None:
                return x
            return x.detach().to(torch.float32 if policy == "float32" else lower)

        right = subject.results(tuple(cast(x) for x in fresh(args)), wanted=subject.wanted(args))
        try:
            under = torch.autocast(kind, dtype=lower)
            got = subject.results(fresh(args), wanted=subject.wanted(args), forward=under)
        except Exception as error:
            raise Fault(f"{dtype}, under autocast: {first_words(error)}") from error
        words = f"{dtype}, under autocast with the policy {policy!r}"
        inputs = {f"gradient of {a.name}": x for a, x in zip(subject.schema, args, strict=False)}
        for name, x in right.items():
            like = inputs.get(name, x)
            if name in got and got[name].dtype != like.dtype:
                raise Fault(f"{words}: {name} has dtype {got[name].dtype}, and should have {like.dtype}")
        assert_close(words, got, right, than="a call with converted tensors gives")
        tried += 1
    return f"{subject.told(tried, 'samples')}, policy {policy!r}"


@check(
    "The message names the test that failed: see the documentation of torch.library.opcheck.",
    needs=("strides", "gradient_strides", "fakes", "compile_static", "compile_dynamic"),
)
def opcheck(subject: Subject) -> str:
    """The operator passes torch.library.opcheck: schema, autograd registration, fake tensors, and dynamic shapes."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    # PyTorch caches results on fake tensors, and uses a result of a trace without gradients for one with gradients.
    FakeTensorMode.cache_clear()
    dtype = subject.one_each[0][0]
    for args in subject.of_dtype(dtype):
        floating = subject.wanted(args)
        for grad in (False, True) if floating and not (subject.mutated or subject.refusal) else (False,):
            given = tuple(
                x.detach().clone().requires_grad_(grad and i in floating) if isinstance(x, Tensor) else x
                for i, x in enumerate(args)
            )
            try:
                with quiet():
                    torch.library.opcheck(subject.op.op, given)
            except Exception as error:
                raise Fault(
                    f"{dtype}{', with gradients' if grad else ''}: {' '.join(str(error).split())[:1000]}"
                ) from error
    return f"{len(subject.of_dtype(dtype))} samples of {dtype}"
