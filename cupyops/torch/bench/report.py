"""What a benchmark of an operator found: rows, the kernels behind them, and how they are shown."""

from dataclasses import dataclass
from pathlib import Path

from .roofline import Point, attainable, draw_roofline
from .timing import Spread, gigabytes_per_second

__all__ = ["BenchReport", "BenchRow", "KernelFacts"]


@dataclass(frozen=True)
class BenchRow:
    """One implementation in one direction on one tuple of arguments.

    Attributes:
        inputs: dtypes and shapes of the tensors, for the table.
        direction: ``"forward"`` or ``"backward"``.
        microseconds: of a call.
        nbytes: what it has to move: each tensor argument read once, each output written once; backward, the arguments and
            the outputs' gradients read, the arguments' gradients written. A kernel that needs less has a share above 1.
        share_of_copy: of the bandwidth of a copy in the same run.
        timer: ``"graph"``: kernels behind one another, without the host; ``"events"``: eager calls, with the host's time
            where the kernels are short.
        sets: of inputs, taken in turn, so that nothing is left in the cache at its next turn.
    """

    inputs: str
    direction: str
    implementation: str
    microseconds: Spread
    nbytes: int
    share_of_copy: float
    timer: str
    sets: int

    @property
    def gb_per_s(self) -> float:
        return gigabytes_per_second(self.nbytes, self.microseconds.median)


@dataclass(frozen=True)
class KernelFacts:
    """A kernel that the operator launched.

    Attributes:
        what: kernel and dtypes.
        launches: of one forward and one backward.
        grid, block: of the last launch.
        registers: of a thread.
        spilled: bytes that a thread stores to memory for want of registers; None where the driver compiled and does not
            tell.
        occupancy: threads that run at once, as a share of those that a multiprocessor has room for.
    """

    what: str
    launches: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int | None
    spilled: int | None
    occupancy: float


@dataclass(frozen=True)
class BenchReport:
    """What was measured; printed, a table.

    Attributes:
        copy_gb_per_s: of a copy of gigabytes, in the same run: 100 %.
        launch_microseconds: of a kernel over one element, in a CUDA graph.
        skipped: (implementation, reason) of what was not timed.
    """

    op: str
    machine: str
    copy_gb_per_s: float
    launch_microseconds: float
    rows: tuple[BenchRow, ...]
    kernels: tuple[KernelFacts, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if not self.rows:
            return "\n".join([self.op, *self._missing()])
        head = ("inputs", "direction", "implementation", "µs (10 to 90 %)", "MB", "GB/s", "of copy", "of roof", "timer")
        table = [head, *map(self._cells, self.rows)]
        widths = [max(len(line[i]) for line in table) for i in range(len(head))]
        lines = [
            self.op,
            f"{self.machine}: a copy {self.copy_gb_per_s:.0f} GB/s (100 %), a launch {self.launch_microseconds:.2f} µs",
            *(
                "  ".join(
                    c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
                )
                for line in table
            ),
        ]
        for k in self.kernels:
            registers = "registers unknown" if k.registers is None else f"{k.registers} registers"
            spilled = "spills unknown" if k.spilled is None else f"{k.spilled} bytes spilled"
            lines.append(
                f"{k.what}: {k.launches} × grid {k.grid}, block {k.block}: {registers}, {spilled}, "
                f"occupancy {k.occupancy:.0%}"
            )
        return "\n".join([*lines, *self._missing()])

    def _missing(self) -> list[str]:
        return [f"not timed: {name}: {reason}" for name, reason in self.skipped]

    def _cells(self, row: BenchRow) -> tuple[str, ...]:
        us = row.microseconds
        roof = attainable(row.nbytes, self.copy_gb_per_s, self.launch_microseconds)
        return (
            row.inputs,
            row.direction,
            row.implementation,
            f"{us.median:.2f} ({us.p10:.2f} to {us.p90:.2f})",
            f"{row.nbytes / 1e6:.2f}",
            f"{row.gb_per_s:.0f}",
            f"{row.share_of_copy:.1%}",
            f"{row.gb_per_s / roof:.1%}",
            row.timer,
        )

    def roofline(self, path: str | Path) -> Path:
        """Draws GB/s over bytes under the bounds of this machine, as SVG, and returns where it is.

        Raises:
            ValueError: nothing was timed.
            MissingDependencyError: matplotlib is not installed.
        """
        if not self.rows:
            raise ValueError(f"roofline: {'; '.join(self._missing()) or 'nothing was timed'}")
        path = Path(path)
        points = [Point(r.implementation, r.direction, r.nbytes, r.gb_per_s) for r in self.rows]
        title = f"{self.op.partition('(')[0]}, {self.machine}"
        draw_roofline(path, title, points, self.copy_gb_per_s, self.launch_microseconds)
        return path
