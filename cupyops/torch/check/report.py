"""The results of :func:`cupyops.torch.check_op`: a row for each check, the lines that are printed, and a table in notebooks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cupyops.profiling.tables import cell, table

from .registry import BACKENDS
from .repro import Checked

__all__ = ["CheckFailed", "Report", "Row"]

_COLOURS = {"passed": "#d7f0dc", "failed": "#f8d0ce", "skipped": "#eeeeee"}


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
    """The results of all checks; ``str(report)`` is what ``check_op`` prints. In a notebook the report is a table.

    Attributes:
        op: the operator's schema, and the number of samples.
        verbose: whether the text has a line for each skipped check.
    """

    op: str
    rows: tuple[Row, ...]
    _cupyops_repro: Checked | None = field(default=None, repr=False, compare=False)
    verbose: bool = False

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

    @property
    def verdict(self) -> str:
        """The failed checks with what to change, one line on the skipped checks, and one line with the counts."""
        lines = []
        for row in self.failed:
            lines += [f"{row.check} ({row.backend}) failed: {row.words}", f"    What to change: {row.change}"]
        if self.skipped and not self.verbose:
            lines.append(f"skipped: {_reasons(self.rows)}")
        counts = [f"{len(self.of(outcome))} {outcome}" for outcome in ("passed", "failed", "skipped")]
        return "\n".join([*lines, f"{', '.join(counts)} in {self.seconds:.1f} s"])

    def __str__(self) -> str:
        lines = [line(row, n, len(self.rows), self.verbose) for n, row in enumerate(self.rows, 1)]
        return "\n".join([self.op, *filter(None, lines), self.verdict])

    def _repr_html_(self) -> str:
        backends = [backend for backend in BACKENDS if any(row.backend == backend for row in self.rows)]
        found = {(row.check, row.backend): row for row in self.rows}
        rows = [
            [cell(check), *(_cell(found.get((check, backend))) for backend in backends)]
            for check in dict.fromkeys(row.check for row in self.rows)
        ]
        return table(self.op, ["check", *backends], rows, self.verdict)


class CheckFailed(AssertionError):
    """Raised when a check of an operator failed. The message names the operator, each fault and how to repair it.

    Attributes:
        report: the report as an object.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(f"{report.op}\n{report.verdict}")
        self.report = report
        self._cupyops_repro = report._cupyops_repro


def line(row: Row, number: int, count: int, verbose: bool = False) -> str:
    """Returns the line of one check, the `number`-th of `count`: empty for a skipped check, unless `verbose`."""
    if row.outcome == "skipped" and not verbose:
        return ""
    end = f": {row.words}" if row.outcome == "skipped" else f" {row.seconds:.1f} s"
    place = f"{number:>{len(str(count))}}/{count}"
    return f"{place}  {row.check:<16}  {row.backend:<9}  {row.outcome}{end}"


def _reasons(rows: Sequence[Row]) -> str:
    """Returns one line on the skipped checks: the reason of each backend that ran no check, and a count of the others."""
    skipped = [row for row in rows if row.outcome == "skipped"]
    parts, others = [], []
    for backend in dict.fromkeys(row.backend for row in skipped):
        mine = [row for row in skipped if row.backend == backend]
        reasons = dict.fromkeys(row.words for row in mine)
        if len(reasons) == 1 and len(mine) == sum(row.backend == backend for row in rows):
            parts.append(f"every check on {backend}: {mine[0].words}")
        else:
            others += mine
    if reasons := dict.fromkeys(row.words for row in others):
        names = ", ".join(dict.fromkeys(row.check for row in others))
        why = next(iter(reasons)) if len(reasons) == 1 else "verbose=True says why"
        parts.append(f"{names}: {why}")
    return "; ".join(parts)


def _cell(row: Row | None) -> str:
    if row is None:
        return cell("")
    words = row.outcome if row.outcome == "skipped" else f"{row.outcome} {row.seconds:.1f} s"
    return cell(words, f"background:{_COLOURS[row.outcome]};color:#000", row.words)
