"""Checks of an operator in graphs: torch.compile and torch.export."""

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops import simulator

from .compare import assert_close
from .failures import first_words, quiet
from .inputs import Arguments, fresh, lead_of, tensors_in
from .registry import Fault, Skip, check
from .subject import Subject

__all__ = ["compile_dynamic", "compile_static", "compiled_around", "export", "fails"]


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


def compiled_around(
    subject: Subject, args: Arguments, dynamic: bool, compiler: str
) -> tuple[Callable[..., Any], list[int]]:
    """Returns the compiled function, and a list that gets one entry per compilation."""
    from torch._dynamo.backends.registry import lookup_backend

    compiled: list[int] = []
    behind = lookup_backend(compiler)

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        compiled.append(len(inputs))
        return behind(graph, inputs)

    return torch.compile(_around(subject, args), fullgraph=True, dynamic=dynamic, backend=counting), compiled


def fails(attempt: Callable[[], Any], subject: Subject) -> bool:
    """Returns whether an attempt with the reference fails; False without a reference.

    If PyTorch cannot do it with the reference either, the operator is not at fault.
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
        if fails(lambda: _compiled_reference(subject, args, dynamic), subject):
            raise Skip(f"torch.compile does not take the reference, either: {first_words(error)}") from None
        raise Fault(f"{what}: {first_words(error)}") from error
    right = subject.results(fresh(args), wanted=wanted)
    assert_close(what, got, right, than="eager mode gives")


def _compilers(subject: Subject) -> list[str]:
    """Returns the compilers to test: Inductor only on a GPU, since it takes a minute and a C++ compiler on the CPU."""
    return ["aot_eager", "inductor"] if subject.backend == "cuda" else ["aot_eager"]


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
            function, _ = compiled_around(subject, args, False, compiler)
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
    function, compiled = compiled_around(subject, args, True, "aot_eager")
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
    """Exports with a dynamic number of rows, and runs the program with another number; returns a description of the
    run."""
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
