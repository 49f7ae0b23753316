"""The report of one launch: its numbers as attributes, and as a plain table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cupyops.simulator.counts import ArrayCounts, Line, Requests

from .gpus import Gpu, Occupancy

__all__ = ["HEADINGS", "Advice", "Bound", "KernelReport", "Resources", "amount", "cells", "facts", "total"]


@dataclass(frozen=True)
class Resources:
    """The compiler's report on a kernel.

    Attributes:
        target: the architecture of the compilation, such as ``sm_90``.
        registers: of a thread.
        spills: bytes of spill stores and loads of a thread.
        shared: bytes of static shared memory of a block.
    """

    target: str
    registers: int
    spills: int
    shared: int


@dataclass(frozen=True)
class Bound:
    """A lower bound of the kernel's time.

    Attributes:
        name: what bounds the time.
        microseconds: the bound.
        words: how the bound follows from the counts.
    """

    name: str
    microseconds: float
    words: str


@dataclass(frozen=True)
class Advice:
    """One thing to change.

    Attributes:
        words: the finding, and the change.
        microseconds: the estimated gain of the change, by which the advice is sorted.
        line: the line of the text, as ``file:number``; empty for the whole kernel.
    """

    words: str
    microseconds: float
    line: str = ""


@dataclass(frozen=True)
class KernelReport:
    """The report of one launch.

    Attributes:
        name: the kernel and its dtypes.
        grid: blocks in x, y and z.
        block: threads of a block in x, y and z.
        gpu: the GPU of the bounds and of the occupancy.
        lines: the lines that were executed.
        sources: the texts of the kernel and of its headers by file name.
        arrays: the arrays, with the bytes needed and the sectors moved.
        shared: bytes of dynamic shared memory of a block.
        resources: the compiler's report; None if there is no compiler.
        missing: why `resources` is None.
        occupancy: the resident blocks of a multiprocessor; None without `resources`.
        bounds: lower bounds of the time, the largest first.
        advice: what to change, the most valuable first.
        flops: floating-point operations of the launch, as the caller gave them or as the simulation counts them.
        note: why the counts may differ from those of a GPU, or an empty string.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    gpu: Gpu
    lines: tuple[Line, ...]
    sources: Mapping[str, str]
    arrays: tuple[ArrayCounts, ...]
    shared: int
    resources: Resources | None
    missing: str
    occupancy: Occupancy | None
    bounds: tuple[Bound, ...]
    advice: tuple[Advice, ...]
    flops: float
    note: str

    @property
    def needed_bytes(self) -> int:
        """The distinct bytes of the arrays that the launch loads, and those that it stores."""
        return sum(a.loaded_bytes + a.stored_bytes for a in self.arrays)

    @property
    def moved_bytes(self) -> int:
        """The bytes in the sectors of all requests to the arrays, and in bulk copies. Caches serve a part of them."""
        return sum(a.loaded + a.stored for a in self.arrays)

    def total(self, space: str, *kinds: str) -> Requests:
        """Returns the requests of all lines to a memory space: ``total("global", "load")``."""
        return total(self.lines, space, *kinds)

    def __str__(self) -> str:
        return "\n".join([*_head(self), "", *_table(self.lines), *_advice(self)])


def total(lines: Iterable[Line], space: str, *kinds: str) -> Requests:
    """Returns the requests of lines to a memory space, of the given kinds or of all."""
    return sum((line.of(space, *kinds) for line in lines), Requests())


def amount(count: float) -> str:
    """Returns bytes with a unit: ``"16.0 KiB"``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def facts(kernel: KernelReport, bounds: bool = True) -> list[tuple[str, str]]:
    """Returns the facts of a kernel as names and values, with or without the lower bounds of its time."""
    threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
    loads, stores = kernel.total("global", "load"), kernel.total("global", "store")
    needed, moved = kernel.needed_bytes, kernel.moved_bytes
    found = [
        ("launch", f"grid {kernel.grid}, block {kernel.block}: {threads} threads a block"),
        (
            "bytes",
            f"{amount(moved)} moved, {amount(needed)} needed" + (f" ({moved / needed:.2f} times)" if needed else ""),
        ),
    ]
    kinds = [
        f"{r.per_request:.2f} sectors a {k} request" for k, r in (("load", loads), ("store", stores)) if r.requests
    ]
    if kinds:
        found.append(("global", ", ".join(kinds)))
    shared = kernel.total("shared", "load", "store")
    if shared.requests:
        found.append(("shared", f"{shared.conflicts} bank conflicts in {shared.requests} requests"))
    if kernel.resources and kernel.occupancy:
        r, o = kernel.resources, kernel.occupancy
        found.append(
            (
                "compiler",
                f"{r.registers} registers, {r.spills} bytes spilled, {amount(r.shared)} static shared memory ({r.target})",
            )
        )
        found.append(
            (
                "occupancy",
                f"{o.share:.0%} on {kernel.gpu.name}: {o.blocks} blocks of a multiprocessor, limited by {o.limit}",
            )
        )
    else:
        found.append(("compiler", kernel.missing))
    if kernel.note:
        found.append(("note", kernel.note))
    if bounds:
        found += [(f"≥ {b.microseconds:.3g} µs", f"{b.name}: {b.words}") for b in kernel.bounds]
    return found


def _head(kernel: KernelReport) -> list[str]:
    rows = facts(kernel)
    width = max(len(name) for name, _ in rows)
    return [kernel.name, *(f"  {name.ljust(width)}  {value}" for name, value in rows)]


HEADINGS = ("line", "runs", "lanes", "load", "store", "shared", "atomic", "source")


def cells(line: Line) -> tuple[str, ...]:
    """Returns the texts of a line's row: the numbers that :data:`HEADINGS` names, without file and source."""
    load, store = line.of("global", "load"), line.of("global", "store")
    shared = line.of("shared", "load", "store")
    atomic = line.of("global", "atomic") + line.of("shared", "atomic") + line.of("remote", "atomic")
    return (
        str(line.executions) if line.executions else "",
        f"{line.active:.1f}" if line.executions else "",
        f"{load.per_request:.1f}" if load.requests else "",
        f"{store.per_request:.1f}" if store.requests else "",
        f"{shared.conflicts_per_request:.1f}" if shared.requests else "",
        f"{atomic.collisions / atomic.requests:.1f}" if atomic.requests else "",
    )


def _table(lines: Sequence[Line]) -> list[str]:
    rows = [(f"{line.file}:{line.number}", *cells(line), line.text.strip()[:70]) for line in lines]
    widths = [max(len(row[i]) for row in [HEADINGS, *rows]) for i in range(len(HEADINGS))]

    def text(row: Sequence[str]) -> str:
        first, last = row[0].ljust(widths[0]), row[-1]
        return "  ".join([first, *(c.rjust(w) for c, w in zip(row[1:-1], widths[1:-1], strict=True)), last]).rstrip()

    legend = (
        "runs: executions by a warp; lanes: of an execution; load, store: sectors of a request to global memory; "
        "shared: bank conflicts of a request; atomic: lanes at one address"
    )
    return [text(HEADINGS), *map(text, rows), legend]


def _advice(kernel: KernelReport) -> list[str]:
    if not kernel.advice:
        return ["", "Nothing to change was found in these counts."]
    found = [f"  {n}. {a.line + ': ' if a.line else ''}{a.words}" for n, a in enumerate(kernel.advice, 1)]
    return ["", "What to change, the most valuable first:", *found]
