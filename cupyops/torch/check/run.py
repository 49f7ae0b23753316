"""Runs every check on an operator and reports the results.

Each check is a function with a name (:data:`CHECKS`). A backend runs the operator: ``reference`` runs its
PyTorch reference on the CPU, ``simulator`` its kernels on the CPU under sanitizers, ``cuda`` its kernels on a GPU. A
check declares the backends on which it runs. ``docs/checking.md`` describes the checks.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    layouts as check_layouts,
)
from . import (
    machinery as check_machinery,
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
from .randomness import randomness
from .registry import BACKENDS, Check, Fault, Skip
from .repeats import declares_repeats
from .repro import Checked
from .subject import MEND_THE_TEXT, Subject, does_not_compile, first_words

__all__ = ["CHECKS", "CheckFailed", "Report", "Row", "check_op", "checks_for", "operator_of"]

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
        check_machinery.compile_static,
        check_machinery.compile_dynamic,
        check_machinery.export,
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


@dataclass(frozen=True)
class Row:
    """The result of one check on one backend.

    Attributes:
        outcome: ``"passed"``, ``"failed"`` or ``"skipped"``.
        words: what a passed check tried, the fault that a failed check found, or the reason why a check was skipped.
        change: how to repair the operator; empty unless the check failed.
        seconds: run time of the check.
        error: the exception by which the check failed.
    """

    check: str
    backend: str
    outcome: str
    words: str
    change: str = ""
    seconds: float = 0.0
    error: BaseException | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Report:
    """The results of all checks; ``str(report)`` is a table."""

    op: str
    rows: tuple[Row, ...]
    _cupyops_repro: Checked | None = field(default=None, repr=False, compare=False)

    def of(self, outcome: str) -> list[Row]:
        """Returns the rows with this outcome."""
        return [row for row in self.rows if row.outcome == outcome]

    @property
    def passed(self) -> list[Row]:
        return self.of("passed")

    @property
    def failed(self) -> list[Row]:
        return self.of("failed")

    @property
    def skipped(self) -> list[Row]:
        return self.of("skipped")

    @property
    def seconds(self) -> float:
        """Returns the run time of all checks, in seconds."""
        return sum(row.seconds for row in self.rows)

    def __str__(self) -> str:
        backends = [backend for backend in BACKENDS if any(row.backend == backend for row in self.rows)]
        found = {(row.check, row.backend): row for row in self.rows}
        names = [name for name in CHECKS if any(row.check == name for row in self.rows)]
        wide = max([len(name) for name in names] + [5]) + 2
        lines = [f"{self.op}", "check".ljust(wide) + "".join(backend.ljust(18) for backend in backends).rstrip()]
        for name in names:
            cells = [_cell(found.get((name, backend))).ljust(18) for backend in backends]
            lines.append((name.ljust(wide) + "".join(cells)).rstrip())
        for row in self.failed:
            lines += [f"{row.check} ({row.backend}) failed: {row.words}", f"    What to change: {row.change}"]
        reasons: dict[tuple[str, str], list[str]] = {}
        for row in self.skipped:
            reasons.setdefault((row.backend, row.words), []).append(row.check)
        lines += [f"{', '.join(checks)} ({backend}) skipped: {words}" for (backend, words), checks in reasons.items()]
        counts = [f"{len(self.of(outcome))} {outcome}" for outcome in ("passed", "failed", "skipped")]
        return "\n".join([*lines, f"{', '.join(counts)} in {self.seconds:.1f} s"])


def _cell(row: Row | None) -> str:
    return "-" if row is None else f"{row.outcome} {row.seconds:.1f} s" if row.outcome != "skipped" else "skipped"


class CheckFailed(AssertionError):
    """Raised when a check of an operator failed; the message is the report as text.

    Attributes:
        report: the report as an object.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report
        self._cupyops_repro = report._cupyops_repro


def operator_of(op: Any, where: str = "check_op") -> Operator:
    """Returns `op` if `op` is an operator, else the operator in its attribute ``op``, which public functions have.

    Raises:
        TypeError: `op` is no operator, and its attribute ``op`` is none.
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
        ValueError: there is no sample, or a sample has no tensor, or its number of arguments does not fit the schema.
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
    samples = [(*args, *(a.default_value for a in arguments[len(args) :])) for args in samples]
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
) -> Report:
    """Runs the checks on an operator; prints and returns the report, or raises :class:`CheckFailed` with the report.

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

    Raises:
        CheckFailed: a check failed; the message is the report, with each fault and how to repair it.
        TypeError: ``op`` is no operator; ``sample_inputs`` is neither a tuple nor a list of tuples.
        ValueError: a check, backend or dtype has an unknown name; samples do not fit the schema, or are on different
            kinds of devices.
    """
    operator = operator_of(op)
    samples = samples_of(operator, sample_inputs)
    wanted = _chosen(checks)
    names = None if dtypes is None else dtype_names("check_op", dtypes)
    rows: list[Row] = []
    for backend in _backends(samples, backends):
        if reason := _missing(operator, backend):
            rows += [Row(c.name, backend, "skipped", reason) for c in wanted if backend in c.backends]
            continue
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if backend == "cuda" else []):
            torch.manual_seed(0)
            rows += _run(Subject(operator, samples, backend, tolerance=tolerance, dtypes=names), wanted)
    count = f"{len(samples)} sample{'s' if len(samples) != 1 else ''}"
    failed = [row for row in rows if row.outcome == "failed"]
    checked = Checked(operator, samples, tolerance, names, failed) if failed else None
    report = Report(f"{operator.op._schema}: {count}", tuple(rows), checked)
    if report.failed and raises:
        error = CheckFailed(report)  # the message is the report: printing it as well would show it twice
        noted(error, operator.name)
        raise error
    print(report)
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


def _chosen(checks: str | Sequence[str] | None) -> list[Check]:
    names = list(CHECKS) if checks is None else [checks] if isinstance(checks, str) else list(checks)
    for name in names:
        if name not in CHECKS:
            raise ValueError(
                f"check_op: there is no check {name!r}{nearest(name, CHECKS)}; there are {', '.join(CHECKS)}"
            )
    return [c for name, c in CHECKS.items() if name in names]


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


def _run(subject: Subject, checks: Sequence[Check]) -> list[Row]:
    rows: list[Row] = []
    failed: set[str] = set()
    lost = ""
    for c in checks:
        if subject.backend not in c.backends:
            continue
        # A check whose `needs` failed would report the same fault again.
        ground = next((name for name in c.needs if name in failed), "")
        if reason := lost or (ground and f"not run, since `{ground}` failed"):
            rows.append(Row(c.name, subject.backend, "skipped", reason))
            failed |= {c.name} if ground else set()
            continue
        began = time.perf_counter()
        outcome, words, change, error = _attempt(subject, c)
        rows.append(Row(c.name, subject.backend, outcome, words, change, time.perf_counter() - began, error))
        if outcome == "failed":
            failed.add(c.name)
            # If a kernel does not compile, every later check on the backend would report the same compile error.
            ends = c.ground or change == MEND_THE_TEXT
            lost = _lost(subject) or (f"not run, since `{c.name}` failed" if ends else "")
    return rows


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
