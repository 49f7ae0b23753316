"""The counts of a counted launch: executions and memory requests by source line, and the bytes of each array.

``counting/counter.cpp`` counts by code address. This module maps the addresses to the lines of the text. A request is
one execution of a memory instruction by one warp; :class:`Requests` names the counter of Nsight Compute that counts the
same on a GPU.
"""

import ctypes
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from ctypes import c_size_t, c_uint, c_ulonglong
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cupyops.arrays import Info

from . import host
from .lines import functions, section
from .machine_code import calls_of, library_functions, operations
from .memory import Memory
from .report import Locator

__all__ = ["SECTOR", "ArrayCounts", "Counts", "Line", "Requests", "base_of", "counters", "read_counts"]

_KINDS = ("block", "load", "store", "atomic", "bulk load", "bulk store")
SECTOR = 32  # bytes
_SPACES = ("global", "shared", "remote")
_CLANG = "clang splits a structure such as float4 into words before the counting; install g++ for the counts of a GPU"
# Accesses in these headers stand for bulk copies, their barriers and tensor cores, which make no requests of a warp.
_HARDWARE = ("bulk.cuh", "tensor_cores.cuh", "wgmma.cuh")


@dataclass
class Requests:
    """The requests of one kind to one memory space, summed.

    Attributes:
        requests: executions by a warp; ``l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum`` for global loads, with
            ``op_st``, ``op_atom`` and ``op_red`` for the others.
        lanes: lanes that took part.
        sectors: distinct aligned 32 bytes of each request; ``l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum``.
        ideal: the fewest sectors that hold the distinct bytes of each request.
        wavefronts: passes over the banks of shared memory; ``l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum``.
        conflicts: wavefronts beyond those that the width of the access needs;
            ``l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum``.
        collisions: for atomic operations, the most lanes of each request that name one address.
    """

    requests: int = 0
    lanes: int = 0
    sectors: int = 0
    ideal: int = 0
    wavefronts: int = 0
    conflicts: int = 0
    collisions: int = 0

    def __add__(self, other: "Requests") -> "Requests":
        return Requests(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def per_request(self) -> float:
        """Sectors of a request."""
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def conflicts_per_request(self) -> float:
        """Wavefronts of a request beyond those that its width needs."""
        return self.conflicts / self.requests if self.requests else 0.0


@dataclass
class Line:
    """One line of the kernel's text.

    Attributes:
        file, number: the file and the line's number.
        text: the line.
        executions: how often a warp executed the line.
        lanes: lanes of these executions, summed; 32 for each execution without divergence in whole warps.
        accesses: the memory requests by space (``"global"``, ``"shared"``, ``"remote"`` for shared memory of another
            block) and kind (``"load"``, ``"store"``, ``"atomic"``). Plain accesses of ``__device__`` and
            ``__constant__`` variables are not counted.
    """

    file: str
    number: int
    text: str
    executions: int = 0
    lanes: int = 0
    accesses: dict[tuple[str, str], Requests] = field(default_factory=dict)

    @property
    def active(self) -> float:
        """Lanes of an execution."""
        return self.lanes / self.executions if self.executions else 0.0

    def of(self, space: str, *kinds: str) -> Requests:
        """Returns the requests to a memory space, of the given kinds or of all."""
        return sum((r for (s, k), r in self.accesses.items() if s == space and (not kinds or k in kinds)), Requests())


@dataclass(frozen=True)
class ArrayCounts:
    """The accesses to one array.

    Attributes:
        name: the parameter.
        info: the array's dtype and shape.
        loaded_bytes, stored_bytes: distinct bytes that the kernel loads and stores.
        loaded_sectors, stored_sectors: sectors of all requests of the warps; an atomic operation counts as a store.
        loaded_bulk, stored_bulk: bytes of bulk copies.
    """

    name: str
    info: Info
    loaded_bytes: int
    stored_bytes: int
    loaded_sectors: int
    stored_sectors: int
    loaded_bulk: int
    stored_bulk: int

    @property
    def loaded(self) -> int:
        """The bytes that loads move: the sectors of all requests, and the bulk copies."""
        return SECTOR * self.loaded_sectors + self.loaded_bulk

    @property
    def stored(self) -> int:
        """The bytes that stores move."""
        return SECTOR * self.stored_sectors + self.stored_bulk


@dataclass(frozen=True)
class Counts:
    """The counts of one launch.

    Attributes:
        lines: the lines with an execution or an access, by file and number.
        sources: the texts by file name.
        arrays: the arrays of the launch.
    """

    lines: tuple[Line, ...]
    sources: Mapping[str, str]
    arrays: tuple[ArrayCounts, ...]
    flops: int
    note: str


class _Requests(ctypes.Structure):
    """``CupyopsRequests``"""

    _fields_ = tuple((f.name, c_ulonglong) for f in fields(Requests))


class _Site(ctypes.Structure):
    """``CupyopsSite``"""

    _fields_ = (
        ("kind", c_uint),
        ("bytes", c_uint),
        ("executions", c_ulonglong),
        ("lanes", c_ulonglong),
        ("spaces", _Requests * len(_SPACES)),
        ("frame_count", c_uint),
        ("frames", c_size_t * 24),
    )


class _Touched(ctypes.Structure):
    """``CupyopsTouched``"""

    _fields_ = tuple((f.name, c_ulonglong) for f in fields(ArrayCounts)[2:])


def counters(library: Any) -> Any:
    """Declares the functions of the counters' library, and returns the library."""
    library.cupyops_count_site.restype = ctypes.POINTER(_Site)
    library.cupyops_count_touched.restype = ctypes.POINTER(_Touched)
    return library


def base_of(array: Any, info: Info) -> int:
    """Returns the address at which an array's memory was allocated, by PyTorch or NumPy.

    The memory of another library's array counts as allocated where the array begins.
    """
    if hasattr(array, "untyped_storage"):
        try:
            return int(array.untyped_storage().data_ptr())
        except NotImplementedError:  # a tensor that torch.func wraps
            return info.pointer
    while hasattr(getattr(array, "base", None), "__array_interface__"):
        array = array.base
    found = getattr(array, "__array_interface__", None)
    return int(found["data"][0]) if found else info.pointer


def read_counts(library: Any, path: Path, files: Mapping[str, str], locator: Locator, memory: Memory) -> Counts:
    """Ends the counting of a launch and returns its counts.

    Args:
        library: the counters.
        path: the compiled kernel.
        files: the texts of the sources by file name.
        locator: finds the lines of the compiled kernel.
        memory: the arrays of the launch.
    """
    library.cupyops_count_end()
    sites = [library.cupyops_count_site(i).contents for i in range(library.cupyops_count_sites())]
    lines = _Lines(files)
    for site in sites:
        if site.kind:
            _count_access(site, locator, lines)
    flops = _count_blocks([s for s in sites if s.kind == 0], path, locator, lines)
    touched = library.cupyops_count_touched()
    places = sorted(memory.places, key=lambda p: not p.writable)  # the order of Memory.ranges
    order = [p.name for p in memory.places]
    arrays = [
        ArrayCounts(p.name, p.info, *(int(getattr(touched[i], f.name)) for f in fields(ArrayCounts)[2:]))
        for i, p in enumerate(places)
    ]
    note = _CLANG if host.compiler().family == "clang" else ""
    return Counts(lines.all(), files, tuple(sorted(arrays, key=lambda a: order.index(a.name))), flops, note)


class _Lines:
    """The lines of the sources, made when they are first counted."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._texts = {name: text.split("\n") for name, text in files.items()}
        self._lines: dict[tuple[str, int], Line] = {}

    def at(self, file: str, number: int) -> Line:
        texts = self._texts.get(file, [])
        text = texts[number - 1] if 0 < number <= len(texts) else ""
        return self._lines.setdefault((file, number), Line(file, number, text))

    def accessed(self) -> set[tuple[str, int]]:
        return {key for key, line in self._lines.items() if line.accesses}

    def all(self) -> tuple[Line, ...]:
        order = list(self._texts)
        return tuple(self._lines[k] for k in sorted(self._lines, key=lambda k: (order.index(k[0]), k[1])))


def _count_access(site: _Site, locator: Locator, lines: _Lines) -> None:
    way = locator.way(site.frames[: site.frame_count])
    if not way:
        return
    file, _, number = way[0].rpartition(":")
    if file in _HARDWARE:
        return
    line = lines.at(file, int(number))
    for space, counted in zip(_SPACES, site.spaces, strict=True):
        if counted.requests:
            key = space, _KINDS[site.kind]
            found = Requests(*(int(getattr(counted, f.name)) for f in fields(Requests)))
            line.accesses[key] = line.accesses.get(key, Requests()) + found


def _count_blocks(blocks: Sequence[_Site], path: Path, locator: Locator, lines: _Lines) -> int:
    """Counts the executions of lines by the executions of basic blocks.

    A line has several statements, such as the three of a ``for``, and a statement may have several copies in the code,
    since functions are inlined. The executions of the copies of a statement add up. The statement that was executed
    most often stands for its line. The compiler marks no statement in some lines
    with an access; their instructions are counted.

    Returns:
        The floating-point operations of all lanes.
    """
    if not blocks:
        return 0
    executions: dict[int, int] = defaultdict(int)
    lanes: dict[int, int] = defaultdict(int)
    for site in blocks:
        address = site.frames[0] - locator.base
        executions[address] += int(site.executions)
        lanes[address] += int(site.lanes)
    elf = path.read_bytes()
    text_at, text = section(elf, b".text")
    starts, length = calls_of(text, text_at, next(iter(executions)))
    ends = sorted({*starts, *functions(elf)})
    called = library_functions(elf)
    flops = 0
    for address in executions:
        end = ends[i] if (i := bisect_right(ends, address)) < len(ends) else text_at + len(text)
        for instruction, of_lane in operations(text[address - text_at : end - text_at], address, called):
            found = locator.place(instruction + 1 + locator.base)
            if found and found.rpartition(":")[0] not in _HARDWARE:
                flops += lanes[address] * of_lane
    counted: dict[tuple[str, int, int], list[int]] = defaultdict(lambda: [0, 0])
    for rows in (locator.table.statements, locator.table.instructions):
        addresses = [row[0] for row in rows]
        wanted = lines.accessed() - {(file, number) for file, number, _ in counted} if counted else None
        for address, count in executions.items():
            start = address - length
            end = ends[i] if (i := bisect_right(ends, start)) < len(ends) else text_at + len(text)
            inside = rows[bisect_left(addresses, start) : bisect_left(addresses, end)]
            for place in {(locator.file(source), number, column) for _, source, number, column in inside}:
                if place[0] and (wanted is None or place[:2] in wanted):
                    counted[place][0] += count
                    counted[place][1] += lanes[address]
    for (file, number, _), (count, of) in counted.items():
        line = lines.at(file, number)
        if count > line.executions:
            line.executions, line.lanes = count, of
    return flops
