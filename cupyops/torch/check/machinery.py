"""Checks of an operator in PyTorch: fake tensors, torch.compile, export, torch.func, autocast, opcheck."""

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops import simulator
from cupyops.torch.core.results import WrongResults

from .compare import assert_close
from .inputs import Arguments, fresh, lead_of, moved_on, tensors_in
from .registry import Fault, Skip, check
from .subject import Subject, first_cause, first_words, quiet
from .values import target

__all__ = [
    *("autocast", "compile_dynamic", "compile_static", "defaults", "differentiable"),
    *("export", "fakes", "opcheck", "returned", "torch_func", "vmap"),
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
                if _fails(lambda: subject.outputs(fake, subject.op.reference), subject):  # noqa: B023
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


def _around(subject: Subject, args: Arguments) -> Callable[..., Any]:
    """Returns a new function that runs the operator between two multiplications by 1."""
    op, changed = subject.op, [i for i in subject.wanted(args) if i not in subject.mutated]

    def around(*given: Any) -> Any:
        out = op(*(x * 1 if i in changed else x for i, x in enumerate(given)))
        outputs = [] if out is None else [out] if isinstance(out, Tensor) else list(out)
        return [y * 1 for y in outputs]

    # Dynamo limits recompilations per code object, so each function gets a code object of its own.
    code = around.__code__.replace(co_name=f"around_{subject.op.name}")
    return types.FunctionType(code, around.__globals__, closure=around.__closure__)


def _compile(subject: Subject, args: Arguments, dynamic: bool, compiler: str) -> tuple[Callable[..., Any], list[int]]:
    """Returns the compiled function, and a list that gets one entry per compilation."""
    from torch._dynamo.backends.registry import lookup_backend

    compiled: list[int] = []
    behind = lookup_backend(compiler)

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        compiled.append(len(inputs))
        return behind(graph, inputs)

    return torch.compile(_around(subject, args), fullgraph=True, dynamic=dynamic, backend=counting), compiled


def _fails(attempt: Callable[[], Any], subject: Subject) -> bool:
    """Returns whether an attempt with the reference fails; False without a reference.

    What PyTorch cannot do with the reference alone is no fault of the operator.
    """
    if subject.op.reference is None:
        return False
    try:
        with quiet():
            attempt()
    except Exception:
        return True
    return False


def _compiled_reference(subject: Subject, args: Arguments, dynamic: bool) -> None:
    reference = subject.op.reference
    assert reference is not None
    function = torch.compile(lambda *given: reference(*given), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    with simulator.simulate(False):
        subject.results(fresh(args), function, wanted=subject.wanted(args))


def _run_compiled(
    subject: Subject, function: Callable[..., Any], what: str, args: Arguments, dynamic: bool = False
) -> None:
    """Raises unless results and gradients are close to those without compilation."""
    wanted = subject.wanted(args)
    try:
        with quiet():
            got = subject.results(fresh(args), function, wanted=wanted)
    except Exception as error:
        if _fails(lambda: _compiled_reference(subject, args, dynamic), subject):
            raise Skip(f"torch.compile does not take the reference, either: {first_words(error)}") from None
        raise Fault(f"{what}: {first_words(error)}") from error
    right = subject.results(fresh(args), wanted=wanted)
    assert_close(what, got, right, than="eager mode gives")


def _compilers(subject: Subject) -> list[str]:
    """Returns the compilers to test: Inductor only on a GPU, since it takes a minute and a C++ compiler on the CPU."""
    return ["aot_eager", "inductor"] if subject.backend == "cuda" else ["aot_eager"]


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
            ways["compiled by aot_eager"] = short, _compile(subject, short, False, "aot_eager")[0]
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
    "Let body and backward only allocate and call operators. A compiled program does not see state kept between calls, "
    "nor global variables.",
    needs=("fakes", "gradgradcheck", "differentiable"),
)
def compile_static(subject: Subject) -> str:
    """A call and its gradient compile under torch.compile(fullgraph=True) and give the results of eager mode."""
    # Every sample of one dtype, and one sample of each other dtype: a compilation takes as long as all other checks.
    first = subject.each[0][0]
    tried = [*((name, args) for name, args in subject.each if name == first), *subject.one_each[1:]]
    for compiler in _compilers(subject):
        for dtype, args in subject.one_each[:1] if compiler == "inductor" else tried:
            function, _ = _compile(subject, args, False, compiler)
            _run_compiled(subject, function, f"{dtype}, compiled by {compiler}", args)
    return f"{subject.told(len(tried), 'samples')}, by {' and '.join(_compilers(subject))}"


@check(
    "A size became a Python number during tracing: int(x.shape[0]), a lookup by a size, or a branch on a size. Pass "
    "sizes on unchanged, and branch on dtypes and constants.",
    needs=("fakes", "compile_static"),
)
def compile_dynamic(subject: Subject) -> str:
    """One compilation with dynamic shapes serves every number of rows."""
    dtype, args = subject.one_each[0]
    if not lead_of(args).dim():
        raise Skip("the samples have no dimension that could change")
    taken = {n for i in tensors_in(args) for n in args[i].shape}
    # torch.compile assumes that equal sizes stay equal, and specializes on the sizes 0 and 1.
    counts = [n for n in (5, 7, 11, 13, 17, 33) if n not in taken][:3]
    function, compiled = _compile(subject, args, True, "aot_eager")
    for count in counts:
        before = len(compiled)  # more than 1 if Dynamo restarted in the first call
        _run_compiled(subject, function, f"{dtype}, dynamic, {count} rows", subject.rows(args, count), dynamic=True)
        if 0 < before < len(compiled):
            raise Fault(f"compiled for {counts[0]} rows, and again for {count}")
    return f"{', '.join(map(str, counts))} rows of {dtype}"


@check(
    "torch.export runs the body on fake tensors, as torch.compile does: no branch on values without a reference or fake=.",
    needs=("fakes", "compile_static", "compile_dynamic"),
)
def export(subject: Subject) -> str:
    """torch.export, also with a dynamic number of rows, keeps the operator as one node, and gives its results."""
    op = subject.op
    dtype = subject.each[0][0]
    for args in subject.of_dtype(dtype):
        positions = tensors_in(args)

        class Model(torch.nn.Module):
            def forward(self, *tensors: Tensor, args: Arguments = args, positions: Sequence[int] = positions) -> Any:
                full = list(args)
                for i, x in zip(positions, tensors, strict=True):
                    full[i] = x
                return op(*full)

        given = fresh(args)
        with quiet(), torch.no_grad():
            program = torch.export.export(Model(), tuple(given[i].detach() for i in positions))
            if op.op not in [n.target for n in program.graph.nodes]:
                raise Fault(f"{dtype}: the exported program has no node of {op.qualified_name}")
            inputs = fresh(args)
            found = program.module()(*(inputs[i].detach() for i in positions))
        outputs = [found] if isinstance(found, Tensor) else list(found or ())
        outputs += [inputs[i] for i in subject.mutated if isinstance(inputs[i], Tensor)]
        wanted = subject.outputs(fresh(args))
        assert_close(dtype, dict(zip(wanted, outputs, strict=False)), wanted, than="the operator gives")
    count = f"{len(subject.of_dtype(dtype))} samples of {dtype}"
    return f"{count}, {_export_dynamic(subject, *subject.one_each[0])}"


def _export_dynamic(subject: Subject, dtype: str, args: Arguments) -> str:
    """Exports with a dynamic number of rows, and runs the program with another number; returns what was tried."""
    if not lead_of(args).dim() or subject.mutated:
        return "of one number of rows"
    try:
        few, more = subject.rows(args, 5), subject.rows(args, 11)
    except Skip:
        return "of one number of rows"
    positions = tensors_in(args)
    dim = torch.export.Dim("rows")
    dynamic = tuple({0: dim} if few[i].dim() and few[i].shape[0] != more[i].shape[0] else None for i in positions)

    def exported(function: Callable[..., Any]) -> Any:
        class Rows(torch.nn.Module):
            def forward(self, *tensors: Tensor) -> Any:
                full = list(few)
                for i, x in zip(positions, tensors, strict=True):
                    full[i] = x
                return function(*full)

        given = tuple(few[i].detach() for i in positions)
        with quiet(), torch.no_grad():
            return torch.export.export(Rows(), given, dynamic_shapes=(dynamic,))

    try:
        program = exported(subject.op)
    except Exception as error:
        if subject.op.reference is not None:
            try:
                exported(subject.op.reference)
            except Exception:
                return "and PyTorch exports the reference for one number of rows alone"
        words = " ".join(str(error).split())[:400]
        change = (
            "Branch on dtypes and constants, not on sizes, while PyTorch traces: keep size-dependent choices for calls."
        )
        raise Fault(f"{dtype}, with a dynamic number of rows: {type(error).__name__}: {words}", change) from error
    with quiet(), torch.no_grad():
        found = program.module()(*(more[i].detach() for i in positions))
    outputs = [found] if isinstance(found, Tensor) else list(found or ())
    wanted = subject.outputs(fresh(more))
    words = f"{dtype}, exported with a dynamic number of rows"
    assert_close(words, dict(zip(wanted, outputs, strict=False)), wanted, than="the operator gives")
    return "also with a dynamic number of rows"


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
                if not subject.op.elementwise and _fails(lambda: _batched_reference(subject, args), subject):  # noqa: B023
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

    # PyTorch keeps what its functions give for fake tensors, and takes a result of a trace without gradients for one with them.
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
