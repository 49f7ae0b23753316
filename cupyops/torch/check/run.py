"""Whether an operator is done: one call that holds any operator to what holds for the shipped ones.

Each check is a small function with a name (:data:`CHECKS`), run in each lane that this machine has: the reference on the
CPU, the kernels on the CPU in the sanitized simulator, the kernels on a GPU. ``docs/checking.md`` is the page on it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cupyops.dtypes import dtype_names
from cupyops.errors import expected, nearest
from cupyops.simulator import host
from cupyops.torch.core.operator import Operator

from . import (
    layouts as check_layouts,
)
from . import (
    machinery as check_machinery,
)
from . import (
    roads as check_roads,
)
from . import (
    running as check_running,
)
from . import (
    values as check_values,
)
from .registry import LANES, Check, Fault, Skip
from .subject import MEND_THE_TEXT, Subject, does_not_compile, first_words

__all__ = ["CHECKS", "CheckFailed", "Report", "Row", "check_op", "checks_for", "operator_of"]

# In the order in which they run: what would end the process comes first, and a check behind those that it needs.
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
        check_values.special_values,
        check_values.gradients,
        check_values.gradcheck,
        check_values.gradgradcheck,
        check_values.subsets,
        check_layouts.strides,
        check_layouts.misaligned,
        check_layouts.gradient_strides,
        check_layouts.empties,
        check_layouts.sizes,
        check_machinery.fakes,
        check_machinery.differentiable,
        check_machinery.defaults,
        check_roads.derivatives,
        check_machinery.compile_static,
        check_machinery.compile_dynamic,
        check_machinery.export,
        check_machinery.torch_func,
        check_machinery.vmap,
        check_roads.transforms,
        check_machinery.autocast,
        check_machinery.opcheck,
        check_running.compiles,
        check_running.side_stream,
        check_running.threads,
        check_running.second_device,
        check_running.graph_replay,
    )
}


@dataclass(frozen=True)
class Row:
    """What became of a check in a lane.

    Attributes:
        outcome: ``"passed"``, ``"failed"`` or ``"skipped"``.
        words: how far it looked, what is wrong, or why it did not run.
        change: what to change, where it failed.
    """

    check: str
    lane: str
    outcome: str
    words: str
    change: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """What became of all checks; printed, a table."""

    op: str
    rows: tuple[Row, ...]

    def of(self, outcome: str) -> list[Row]:
        """The rows with this outcome."""
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
        """What all checks took."""
        return sum(row.seconds for row in self.rows)

    def __str__(self) -> str:
        lanes = [lane for lane in LANES if any(row.lane == lane for row in self.rows)]
        found = {(row.check, row.lane): row for row in self.rows}
        names = [name for name in CHECKS if any(row.check == name for row in self.rows)]
        wide = max([len(name) for name in names] + [5]) + 2
        lines = [f"{self.op}", "check".ljust(wide) + "".join(lane.ljust(18) for lane in lanes).rstrip()]
        for name in names:
            cells = [_cell(found.get((name, lane))).ljust(18) for lane in lanes]
            lines.append((name.ljust(wide) + "".join(cells)).rstrip())
        for row in self.failed:
            lines += [f"{row.check} ({row.lane}) failed: {row.words}", f"    What to change: {row.change}"]
        reasons: dict[tuple[str, str], list[str]] = {}
        for row in self.skipped:
            reasons.setdefault((row.lane, row.words), []).append(row.check)
        lines += [f"{', '.join(checks)} ({lane}) skipped: {words}" for (lane, words), checks in reasons.items()]
        counts = [f"{len(self.of(outcome))} {outcome}" for outcome in ("passed", "failed", "skipped")]
        return "\n".join([*lines, f"{', '.join(counts)} in {self.seconds:.1f} s"])


def _cell(row: Row | None) -> str:
    return "-" if row is None else f"{row.outcome} {row.seconds:.1f} s" if row.outcome != "skipped" else "skipped"


class CheckFailed(AssertionError):
    """Some check of an operator failed; the message is the report.

    Attributes:
        report: the same, to look into.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def operator_of(op: Any, where: str = "check_op") -> Operator:
    """The operator, or that of a public function which has it as its attribute ``op``.

    Raises:
        TypeError: it is neither.
    """
    found = op if isinstance(op, Operator) else getattr(op, "op", None)
    if not isinstance(found, Operator):
        wanted = "be a cupyops.torch.Operator, or a function whose attribute `op` is one"
        raise TypeError(expected(where, "op", wanted, getattr(op, "__name__", None) or type(op).__name__))
    return found


def samples_of(
    op: Operator, sample_inputs: Any, where: str = "check_op", argument: str = "sample_inputs"
) -> list[tuple[Any, ...]]:
    """One argument tuple, or several, as a list of them.

    Raises:
        TypeError: something else.
        ValueError: none at all, or one with another number of arguments than the schema's, or without a tensor.
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
    lanes: Sequence[str] | None = None,
    dtypes: Any = None,
    tolerance: float = 1.0,
    skip: Callable[[str], object] | None = None,
) -> Report:
    """Holds an operator to everything that makes one done, and prints and returns the report, or raises with it.

    ::

        check_op(swiglu, (torch.randn(37, 19), torch.randn(37, 19)))

        @pytest.mark.parametrize("check", checks_for(swiglu))
        def test_swiglu(check):
            check_op(swiglu, samples, checks=check, skip=pytest.skip)

    Samples are small and typical: a few hundred elements, sizes that nothing divides, one tuple for each way that the
    operator goes. The checks make of them other dtypes, layouts and numbers of rows. Where some tensors of a sample
    require gradients, gradients are taken by those; where none does, by all floating ones. Samples on a CPU are run by
    the reference and in the simulator; on a GPU by the kernels there, with the simulator as one of the checks.

    Args:
        op: a :class:`cupyops.torch.Operator`, or a function whose attribute ``op`` is one.
        sample_inputs: a tuple of the operator's arguments, in the order of its schema, or a list of such tuples.
        checks: names out of :data:`CHECKS`; by default all.
        raises: raise where a check failed; else the report tells.
        lanes: names out of ``reference``, ``simulator``, ``cuda``; by default as the samples' device says.
        dtypes: what the operator has to take, one or several, as dtypes or by name; by default it is checked in every
            floating dtype that it does not refuse, and the report names those that it does.
        tolerance: times what ``values``, ``gradients`` and ``sizes`` allow, for a kernel that approximates on purpose.
        skip: called with the reasons where no check could run, as ``pytest.skip`` wants it.

    Raises:
        CheckFailed: a check failed; the message is the report, with what is wrong and what to change.
        TypeError: ``op`` is no operator; ``sample_inputs`` are no tuples.
        ValueError: a check, a lane or a dtype of another name; samples that do not fit the schema, or are on several devices.
    """
    operator = operator_of(op)
    samples = samples_of(operator, sample_inputs)
    wanted = _chosen(checks)
    names = None if dtypes is None else dtype_names("check_op", dtypes)
    rows: list[Row] = []
    for lane in _lanes(samples, lanes):
        if reason := _missing(operator, lane):
            rows += [Row(c.name, lane, "skipped", reason) for c in wanted if lane in c.lanes]
            continue
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if lane == "cuda" else []):
            torch.manual_seed(0)
            rows += _run(Subject(operator, samples, lane, tolerance=tolerance, dtypes=names), wanted)
    count = f"{len(samples)} sample{'s' if len(samples) != 1 else ''}"
    report = Report(f"{operator.op._schema}: {count}", tuple(rows))
    if report.failed and raises:
        raise CheckFailed(report)  # its message is the report, which would else be seen twice
    print(report)
    if skip is not None and not (report.passed or report.failed):
        skip("; ".join(dict.fromkeys(row.words for row in report.skipped)) or "no check of these lanes")
    return report


def checks_for(op: Any) -> list[str]:
    """The names of the checks that mean something for an operator, for ``pytest.mark.parametrize``: all, but those of
    gradients where the schema has none to give."""
    arguments = operator_of(op, "checks_for").op._schema.arguments
    mutates = any(a.alias_info is not None and a.alias_info.is_write for a in arguments)
    of_gradients = {"gradients", "gradcheck", "gradgradcheck", "subsets", "gradient_strides", "differentiable"}
    of_gradients |= {"derivatives", "torch_func", "vmap", "transforms"}
    return [name for name in CHECKS if not (mutates and name in of_gradients)]


def _chosen(checks: str | Sequence[str] | None) -> list[Check]:
    names = list(CHECKS) if checks is None else [checks] if isinstance(checks, str) else list(checks)
    for name in names:
        if name not in CHECKS:
            raise ValueError(
                f"check_op: there is no check {name!r}{nearest(name, CHECKS)}; there are {', '.join(CHECKS)}"
            )
    return [c for name, c in CHECKS.items() if name in names]


def _lanes(samples: Sequence[tuple[Any, ...]], lanes: Sequence[str] | None) -> list[str]:
    kinds = {x.device.type for args in samples for x in args if isinstance(x, Tensor)}
    if len(kinds) != 1 or not kinds <= {"cpu", "cuda"}:
        raise ValueError(
            expected("check_op", "sample_inputs", "be on the CPU or on a GPU", " and ".join(sorted(kinds)))
        )
    if lanes is None:
        return ["cuda"] if kinds == {"cuda"} else ["reference", "simulator"]
    unknown = [lane for lane in lanes if lane not in LANES]
    if unknown or isinstance(lanes, str):
        raise ValueError(expected("check_op", "lanes", f"be names of {', '.join(LANES)}", repr(lanes)))
    return [lane for lane in LANES if lane in lanes]


def _missing(op: Operator, lane: str) -> str:
    """Why the lane cannot run here, or nothing."""
    if lane == "reference" and op.reference is None:
        return "the operator has no reference"
    if lane == "simulator":
        return host.missing()
    if lane == "cuda" and not torch.cuda.is_available():
        return "PyTorch sees no CUDA GPU"
    return ""


def _run(subject: Subject, checks: Sequence[Check]) -> list[Row]:
    rows: list[Row] = []
    failed: set[str] = set()
    lost = ""
    for c in checks:
        if subject.lane not in c.lanes:
            continue
        # What stands on a check that failed would fail with it, and say nothing of its own.
        ground = next((name for name in c.needs if name in failed), "")
        if reason := lost or (ground and f"not run, since `{ground}` failed"):
            rows.append(Row(c.name, subject.lane, "skipped", reason))
            failed |= {c.name} if ground else set()
            continue
        began = time.perf_counter()
        outcome, words, change = _attempt(subject, c)
        rows.append(Row(c.name, subject.lane, outcome, words, change, time.perf_counter() - began))
        if outcome == "failed":
            failed.add(c.name)
            # Without its kernels every check of the lane would say the compiler's words again.
            ends = c.ground or change == MEND_THE_TEXT
            lost = _lost(subject) or (f"not run, since `{c.name}` failed" if ends else "")
    return rows


def _attempt(subject: Subject, c: Check) -> tuple[str, str, str]:
    try:
        with subject.mode():
            return "passed", c.run(subject), ""
    except Skip as reason:
        return "skipped", str(reason), ""
    except Fault as fault:
        return "failed", str(fault), MEND_THE_TEXT if does_not_compile(fault) else fault.change or c.change
    except Exception as error:
        return "failed", first_words(error), MEND_THE_TEXT if does_not_compile(error) else c.change


def _lost(subject: Subject) -> str:
    """Why nothing more can run on the GPU, or nothing."""
    if subject.lane != "cuda":
        return ""
    try:
        torch.cuda.synchronize(subject.device)
    except Exception as error:
        return f"not run, since the GPU is lost to this process: {first_words(error)}"
    return ""
