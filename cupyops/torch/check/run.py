"""Runs every check on an operator and reports the results.

Each check is a function with a name (:data:`CHECKS`). A backend runs the operator: ``reference`` runs its
PyTorch reference on the CPU, ``simulator`` its kernels on the CPU under sanitizers, ``cuda`` its kernels on a GPU. A
check declares the backends on which it runs. ``docs/checking.md`` describes the checks.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops.dtypes import dtype_names
from cupyops.errors import expected, nearest
from cupyops.launch.repro import noted
from cupyops.simulator import host
from cupyops.torch.core.operator import Operator

from . import (
    derivatives as check_derivatives,
)
from . import (
    gradients as check_gradients,
)
from . import (
    graphs as check_graphs,
)
from . import (
    honest as check_honest,
)
from . import (
    layouts as check_layouts,
)
from . import (
    machinery as check_machinery,
)
from . import (
    proofs as check_proofs,
)
from . import (
    repeats as check_repeats,
)
from . import (
    running as check_running,
)
from . import (
    scale as check_scale,
)
from . import (
    sharded as check_sharded,
)
from . import (
    values as check_values,
)
from . import (
    varied as check_varied,
)
from .failures import MEND_THE_TEXT, does_not_compile, first_words
from .randomness import randomness
from .registry import BACKENDS, Check, Fault, Skip
from .repeats import declares_repeats
from .report import CheckFailed, Report, Row, line
from .repro import Checked
from .subject import Subject

__all__ = ["CHECKS", "CheckFailed", "Report", "Row", "check_op", "checks_for", "operator_of", "samples_of"]

# Checks run in this order. Checks for faults that can crash the process come first. A check comes after its `needs`.
CHECKS: dict[str, Check] = {
    c.name: c
    for c in (
        check_machinery.returned,
        check_running.sanitizer,
        check_running.guard_bands,
        check_layouts.inputs_kept,
        check_values.written,
        check_running.determinism,
        check_values.values,
        check_honest.storage,
        check_honest.side_effects,
        check_values.recompute,
        check_values.common,
        check_values.inplace,
        check_values.gradients,
        check_gradients.gradcheck,
        check_gradients.gradgradcheck,
        check_gradients.subsets,
        check_varied.special_values,
        check_layouts.strides,
        check_layouts.misaligned,
        check_layouts.gradient_strides,
        check_layouts.empties,
        check_layouts.sizes,
        check_layouts.dimensions,
        check_varied.numbers,
        check_varied.data,
        check_machinery.fakes,
        check_machinery.differentiable,
        check_machinery.defaults,
        check_derivatives.derivatives,
        check_graphs.compile_static,
        check_graphs.compile_dynamic,
        check_graphs.export,
        check_machinery.torch_func,
        check_machinery.vmap,
        check_derivatives.transforms,
        check_machinery.autocast,
        check_machinery.opcheck,
        check_scale.jvp,
        check_scale.flops,
        check_scale.checkpointing,
        check_sharded.sharding,
        check_scale.nested,
        check_sharded.tensor_parallel,
        check_sharded.fsdp,
        check_repeats.repeats,
        check_running.compiles,
        check_running.side_stream,
        check_running.threads,
        check_running.second_device,
        check_running.graph_replay,
    )
}
# The check that `prove=` adds: z3 can think for a minute about a kernel.
PROOFS: dict[str, Check] = {check_proofs.bounds.name: check_proofs.bounds}


def operator_of(op: Any, where: str = "check_op") -> Operator:
    """Returns `op` if `op` is an operator, else the operator in its attribute ``op``, which public functions have.

    Raises:
        TypeError: `op` is not an operator, and its attribute ``op`` is none.
    """
    found = op if isinstance(op, Operator) else getattr(op, "op", None)
    if not isinstance(found, Operator):
        wanted = "be a cupyops.torch.Operator, or a function whose attribute `op` is one"
        raise TypeError(expected(where, "op", wanted, getattr(op, "__name__", None) or type(op).__name__))
    return found


def samples_of(
    op: Operator, sample_inputs: Any, where: str = "check_op", argument: str = "sample_inputs"
) -> list[tuple[Any, ...]]:
    """Returns one argument tuple, or several, as a list of tuples with the schema's defaults filled in.

    Raises:
        TypeError: `sample_inputs` is neither a tuple nor a list of tuples.
        ValueError: there is no sample, or a sample has no tensor, or its arguments do not fit the schema.
    """
    samples = [sample_inputs] if isinstance(sample_inputs, tuple) else sample_inputs
    if not isinstance(samples, Sequence) or not all(isinstance(args, tuple) for args in samples):
        wanted = "be a tuple of arguments, or a list of such tuples"
        raise TypeError(expected(where, argument, wanted, type(sample_inputs).__name__))
    arguments = op.op._schema.arguments
    least = sum(not a.has_default_value() for a in arguments)
    for args in samples:
        if not least <= len(args) <= len(arguments):
            count = len(arguments) if least == len(arguments) else f"{least} to {len(arguments)}"
            wanted = f"hold the {count} arguments of {op.qualified_name} ({', '.join(a.name for a in arguments)})"
            raise ValueError(expected(where, argument, wanted, f"{len(args)}"))
        for x, a in zip(args, arguments, strict=False):
            if isinstance(x, Tensor) and x.dim() and "Tensor" not in str(a.type):
                raise ValueError(
                    expected(where, argument, f"hold a {a.type} as `{a.name}`, as the schema says", "a tensor")
                )
    samples = [(*args, *(a.default_value for a in arguments[len(args) :])) for args in samples]
    # A number stands for a list of equal numbers. References take the list.
    samples = [
        tuple([x] * a.N if a.N and isinstance(x, int | float) else x for x, a in zip(args, arguments, strict=True))
        for args in samples
    ]
    if not samples or not all(any(isinstance(x, Tensor) for x in args) for args in samples):
        raise ValueError(expected(where, argument, "hold at least one sample, each with a tensor", len(samples)))
    return samples


def check_op(
    op: Any,
    sample_inputs: Any,
    *,
    checks: str | Sequence[str] | None = None,
    raises: bool = True,
    backends: Sequence[str] | None = None,
    dtypes: Any = None,
    tolerance: float = 1.0,
    skip: Callable[[str], object] | None = None,
    verbose: bool = False,
    prove: bool | str | Sequence[str] = False,
) -> Report:
    """Runs the checks on an operator, and prints each when it ends. Returns the report, or raises :class:`CheckFailed`.

    ::

        check_op(swiglu, (torch.randn(37, 19), torch.randn(37, 19)))

        @pytest.mark.parametrize("check", checks_for(swiglu))
        def test_swiglu(check):
            check_op(swiglu, samples, checks=check, skip=pytest.skip)

    Samples should be small and typical: a few hundred elements, prime sizes, and one tuple for each code path of the
    operator. The checks convert the samples to other dtypes, layouts and numbers of rows. The checks differentiate by
    the tensors of a sample that require gradients; if none does, by all floating tensors. Samples on the CPU run on the
    backends ``reference`` and ``simulator``. Samples on a GPU run on the backend ``cuda``, where the check
    ``sanitizer`` also runs copies of the samples in the simulator.

    Args:
        op: a :class:`cupyops.torch.Operator`, or a function whose attribute ``op`` is one.
        sample_inputs: a tuple of the operator's arguments, in the order of its schema, or a list of such tuples.
        checks: names of :data:`CHECKS`; by default all checks.
        raises: whether to raise if a check failed; if False, the report is returned.
        backends: some of ``reference``, ``simulator``, ``cuda``; the default depends on the samples' device.
        dtypes: one dtype or several, or their names; the operator must accept each of them. By default the operator is
            checked in every floating dtype that it accepts, and the report names the floating dtypes that it refuses.
        tolerance: factor on the error that ``values``, ``gradients``, ``sizes`` and ``vmap`` allow, for a kernel that
            approximates on purpose.
        skip: called with the reasons, as one string, if no check could run; ``pytest.skip`` fits.
        verbose: whether each skipped check has a line with the reason; by default one line names all of them.
        prove: whether to add the check ``bounds``, in which :func:`cupyops.testing.prove_bounds` proves for each kernel that ran that it
            stays inside its arrays for all sizes; or what the body guarantees, as conditions on the kernels' parameters:
            ``"N % 4 == 0"``. A proof takes seconds, and needs NVRTC and z3.

    Raises:
        CheckFailed: a check failed; the message has each fault and how to repair it.
        TypeError: ``op`` is not an operator; ``sample_inputs`` is neither a tuple nor a list of tuples.
        ValueError: a check, backend or dtype has an unknown name; samples do not fit the schema, or are on different
            kinds of devices.
    """
    operator = operator_of(op)
    samples = samples_of(operator, sample_inputs)
    wanted = _chosen(checks, bool(prove))
    conditions = () if isinstance(prove, bool) else (prove,) if isinstance(prove, str) else tuple(prove)
    names = None if dtypes is None else dtype_names("check_op", dtypes)
    asked = [(backend, c) for backend in _backends(samples, backends) for c in wanted if backend in c.backends]
    title = f"{operator.op._schema}: {len(samples)} sample{'s' if len(samples) != 1 else ''}"
    print(title, flush=True)
    rows: list[Row] = []
    for backend in dict.fromkeys(backend for backend, _ in asked):
        chosen = [c for on, c in asked if on == backend]
        for row in _rows(operator, samples, backend, chosen, tolerance, names, conditions):
            rows.append(row)
            if words := line(row, len(rows), len(asked), verbose):
                print(words, flush=True)
    failed = [row for row in rows if row.outcome == "failed"]
    checked = Checked(operator, samples, tolerance, names, failed, conditions) if failed else None
    report = Report(title, tuple(rows), checked, verbose)
    if report.failed and raises:
        error = CheckFailed(report)  # the message is the verdict: printing it as well would show it twice
        noted(error, operator.name)
        raise error
    print(report.verdict)
    if skip is not None and not (report.passed or report.failed):
        skip("; ".join(dict.fromkeys(row.words for row in report.skipped)) or "no check runs on these backends")
    return report


def checks_for(op: Any) -> list[str]:
    """Returns the names of the checks that apply to an operator, for ``pytest.mark.parametrize``.

    The checks of gradients do not apply to an operator whose schema declares a written argument, ``Tensor(a!)``. The
    checks ``repeats``, ``recompute``, ``common`` and ``inplace`` apply to an operator that declares these.
    """
    operator = operator_of(op, "checks_for")
    arguments = operator.op._schema.arguments
    mutates = any(a.alias_info is not None and a.alias_info.is_write for a in arguments)
    of_gradients = {"gradients", "gradcheck", "gradgradcheck", "subsets", "gradient_strides", "differentiable"}
    of_gradients |= {"derivatives", "torch_func", "vmap", "transforms", "jvp", "flops", "checkpointing", "fsdp"}
    of_gradients |= {"sharding", "tensor_parallel", "nested"}
    others = (of_gradients if mutates else set()) | (set() if declares_repeats(operator) else {"repeats"})
    others |= {"recompute"} if operator._recomputation is None else set()
    others |= {"common"} if operator._common is None else set()
    others |= {"inplace"} if operator.inplace is None else set()
    return [name for name in CHECKS if name not in others]


def _chosen(checks: str | Sequence[str] | None, prove: bool) -> list[Check]:
    every = CHECKS | PROOFS
    names = list(CHECKS) if checks is None else [checks] if isinstance(checks, str) else list(checks)
    names += [*PROOFS] if prove else []
    for name in names:
        if name not in every:
            raise ValueError(
                f"check_op: there is no check {name!r}{nearest(name, every)}; there are {', '.join(every)}"
            )
    return [c for name, c in every.items() if name in names]


def _backends(samples: Sequence[tuple[Any, ...]], backends: Sequence[str] | None) -> list[str]:
    kinds = {x.device.type for args in samples for x in args if isinstance(x, Tensor)}
    if len(kinds) != 1 or not kinds <= {"cpu", "cuda"}:
        raise ValueError(
            expected("check_op", "sample_inputs", "be on the CPU or on a GPU", " and ".join(sorted(kinds)))
        )
    if backends is None:
        return ["cuda"] if kinds == {"cuda"} else ["reference", "simulator"]
    unknown = [backend for backend in backends if backend not in BACKENDS]
    if unknown or isinstance(backends, str):
        raise ValueError(expected("check_op", "backends", f"be names of {', '.join(BACKENDS)}", repr(backends)))
    return [backend for backend in BACKENDS if backend in backends]


def _missing(op: Operator, backend: str) -> str:
    """Returns why the backend cannot run on this machine, or an empty string."""
    if backend == "reference" and op.reference is None:
        return "the operator has no reference"
    if backend == "simulator":
        return host.missing()
    if backend == "cuda" and not torch.cuda.is_available():
        return "PyTorch sees no CUDA GPU"
    return ""


def _rows(
    op: Operator,
    samples: list[tuple[Any, ...]],
    backend: str,
    checks: Sequence[Check],
    tolerance: float,
    dtypes: tuple[str, ...] | None,
    prove: tuple[str, ...],
) -> Iterator[Row]:
    """Yields the result of each check on a backend when the check ends."""
    if reason := _missing(op, backend):
        yield from (Row(c.name, backend, "skipped", reason) for c in checks)
        return
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if backend == "cuda" else []):
        torch.manual_seed(0)
        yield from _run(Subject(op, samples, backend, tolerance=tolerance, dtypes=dtypes, prove=prove), checks)


def _run(subject: Subject, checks: Sequence[Check]) -> Iterator[Row]:
    failed: set[str] = set()
    lost = ""
    for c in checks:
        # A check whose `needs` failed would report the same fault again.
        ground = next((name for name in c.needs if name in failed), "")
        if reason := lost or (ground and f"not run, since `{ground}` failed"):
            yield Row(c.name, subject.backend, "skipped", reason)
            failed |= {c.name} if ground else set()
            continue
        began = time.perf_counter()
        outcome, words, change, error = _attempt(subject, c)
        yield Row(c.name, subject.backend, outcome, words, change, time.perf_counter() - began, error)
        if outcome == "failed":
            failed.add(c.name)
            # If a kernel does not compile, every later check on the backend would report the same compile error.
            ends = c.ground or change == MEND_THE_TEXT
            lost = _lost(subject) or (f"not run, since `{c.name}` failed" if ends else "")


def _attempt(subject: Subject, c: Check) -> tuple[str, str, str, Exception | None]:
    """Runs a check. Returns the outcome, the words, how to repair the operator, and the exception of a fault."""
    try:
        with subject.mode():
            return "passed", c.run(subject), "", None
    except Skip as reason:
        return "skipped", str(reason), "", None
    except Exception as error:
        if isinstance(error, Fault) and (drawn := randomness(subject, c.compares)):
            return "skipped", drawn, "", None
        words, change = (str(error), error.change) if isinstance(error, Fault) else (first_words(error), "")
        return "failed", words, MEND_THE_TEXT if does_not_compile(error) else change or c.change, error


def _lost(subject: Subject) -> str:
    """Returns why the GPU cannot run further checks in this process, or an empty string."""
    if subject.backend != "cuda":
        return ""
    try:
        torch.cuda.synchronize(subject.device)
    except Exception as error:
        return f"not run, since the GPU is lost to this process: {first_words(error)}"
    return ""
