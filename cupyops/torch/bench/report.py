"""Defines the report of a benchmark: its timings, its kernels, its table and its roofline plot."""

from dataclasses import dataclass
from pathlib import Path

from cupyops.profiling.tables import bar, cell, table

from .roofline import Point, attainable, draw_roofline
from .timing import Spread, gigabytes_per_second

__all__ = ["BenchReport", "BenchRow", "KernelFacts"]

_HEADS = ("inputs", "direction", "implementation", "µs (10 to 90 %)", "MB", "GB/s", "of copy", "of roof", "timer")


@dataclass(frozen=True)
class BenchRow:
    """The time of one implementation in one direction on one tuple of arguments.

    Attributes:
        inputs: dtypes and shapes of the tensors, as text.
        direction: ``"forward"`` or ``"backward"``.
        microseconds: time of a call.
        nbytes: bytes that a call must move. A forward reads each tensor argument once and writes each output once. A
            backward reads the arguments and the outputs' gradients, and writes the arguments' gradients. A kernel that
            moves fewer bytes can have a `share_of_copy` above 1.
        share_of_copy: bandwidth as a share of the bandwidth of a copy in the same run.
        timer: ``"graph"``: replays of a CUDA graph, without host time. ``"events"``: eager calls between two CUDA
            events, which include host time if the kernels are short.
        sets: number of input sets. Calls rotate through the sets, so that no input is in the L2 cache when it is used.
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
        what: kernel and dtypes, as text.
        launches: number of launches in one forward and one backward.
        grid, block: grid and block of the last launch.
        registers: registers per thread; None if the driver compiled the kernel, which reports no registers.
        spilled: bytes of spilled registers per thread; None if the driver compiled the kernel.
        occupancy: resident threads as a share of the maximum that the multiprocessors can hold.
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
    """The results of a benchmark; ``str(report)`` is a table. In a notebook the table has a bar for each time.

    Attributes:
        op: the operator's schema, as text.
        machine: name of the GPU.
        copy_gb_per_s: bandwidth of a copy of gigabytes in the same run, which counts as 100 %.
        launch_microseconds: time of a kernel over one element, in a CUDA graph.
        rows: one timing per inputs, direction and implementation.
        kernels: the kernels that the operator launched.
        skipped: (implementation, reason) of each implementation that was not timed.
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
        table = [_HEADS, *map(self._cells, self.rows)]
        widths = [max(len(line[i]) for line in table) for i in range(len(_HEADS))]
        lines = [
            "  ".join(c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
            for line in table
        ]
        return "\n".join([self.op, self._scale(), *lines, *self._kernels(), *self._missing()])

    def _repr_html_(self) -> str:
        most: dict[tuple[str, str], float] = {}
        for row in self.rows:
            key = row.inputs, row.direction
            most[key] = max(most.get(key, 0.0), row.microseconds.median)
        rows = []
        for row in self.rows:
            texts = self._cells(row)
            share = row.microseconds.median / most[row.inputs, row.direction]
            rows.append([*map(cell, texts[:3]), bar(texts[3], share), *map(cell, texts[4:])])
        below = "\n".join([*([self._scale()] if rows else []), *self._kernels(), *self._missing()])
        return table(self.op, _HEADS if rows else (), rows, below)

    def _scale(self) -> str:
        return (
            f"{self.machine}: a copy {self.copy_gb_per_s:.0f} GB/s (100 %), a launch {self.launch_microseconds:.2f} µs"
        )

    def _kernels(self) -> list[str]:
        lines = []
        for k in self.kernels:
            registers = "registers unknown" if k.registers is None else f"{k.registers} registers"
            spilled = "spills unknown" if k.spilled is None else f"{k.spilled} bytes spilled"
            lines.append(
                f"{k.what}: {k.launches} × grid {k.grid}, block {k.block}: {registers}, {spilled}, "
                f"occupancy {k.occupancy:.0%}"
            )
        return lines

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
        """Writes a plot of GB/s over bytes, with the roofline of this GPU, as SVG; returns the path.

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
