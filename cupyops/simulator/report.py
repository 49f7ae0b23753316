"""Writes the error message of a fault from the runtime's fault record."""

import ctypes
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from cupyops.sharing import computed_once

from .abi import Fault, Kind, Module, Origin
from .lines import LineTable, line_program, line_table
from .memory import Memory

__all__ = ["Locator", "describe"]


class Locator:
    """Finds the source line of a code address.

    Args:
        library: the compiled kernel's file.
        symbol: the address of any symbol of the loaded library.
        files: the names of the ``.cu`` and ``.cuh`` sources, as ``#line`` directives give them.

    Attributes:
        base: the address at which the library is loaded.
    """

    def __init__(self, library: Path, symbol: int, files: Collection[str]) -> None:
        # The cache may remove the library's file before a fault asks for a line.
        self._program = line_program(library)
        self._files = set(files)
        found = Origin()
        ctypes.CDLL(None).dladdr(ctypes.c_void_p(symbol), ctypes.byref(found))
        self.base = found.base

    @computed_once
    def table(self) -> LineTable:
        """The line table of the library. To make it takes as long as to translate a text, and few launches have a fault."""
        return line_table(self._program)

    def place(self, address: int) -> str:
        """Returns the source line of a return address, like ``gelu.cu:12``, or an empty string outside the sources."""
        found = self.table.at(address - 1 - self.base) if address > self.base else None
        if found is None:
            return ""
        name = self.file(found[0])
        return f"{name}:{found[1]}" if name else ""

    def file(self, path: str) -> str:
        """Returns the name of the source at a path of the line table, or an empty string for another file."""
        return next((f for f in (path, os.path.basename(path)) if f in self._files), "")

    def way(self, addresses: Sequence[int]) -> list[str]:
        """Returns the source lines of a call stack, innermost first; frames outside the sources are left out."""
        places = [place for address in addresses if (place := self.place(address))]
        return [p for i, p in enumerate(places) if i == 0 or p != places[i - 1]]


def _triple(numbers: Sequence[int]) -> str:
    return f"({numbers[0]}, {numbers[1]}, {numbers[2]})"


def describe(what: str, fault: Fault, module: Module, memory: Memory, locator: Locator, launch: str) -> str:
    """Returns the error message of a fault: kernel, fault, source line, block and thread.

    Args:
        what: the kernel's name and dtypes.
        fault: the runtime's fault record.
        module: the compiled kernel's module.
        memory: the arrays of the launch.
        locator: finds the source line of an address.
        launch: the grid and block sizes, as text.
    """
    way = locator.way(fault.frames[: fault.frame_count])
    if fault.file:
        told = f"{fault.file.decode(errors='replace')}:{fault.line}"
        told = told if told.partition(":")[0] in {w.partition(":")[0] for w in way} or not way else way[0]
        way = [told, *(w for w in way if w != told)]
    text = re.sub(
        r"\{at:([\d,]*)\}",
        lambda m: next(iter(locator.way([int(a) for a in m[1].split(",") if a])), "unknown line"),
        fault.text.decode(errors="replace"),
    )
    sentence = _sentence(fault, text, module, memory, locator)
    where = f" at {way[0]}" if way else ""
    called = f" (called from {', '.join(way[1:])})" if len(way) > 1 else ""
    return f"{what}: {sentence}{where}{called}, by block {_triple(fault.block)}, thread {_triple(fault.thread)} of {launch}"


def _sentence(fault: Fault, text: str, module: Module, memory: Memory, locator: Locator) -> str:
    verb = "writes" if fault.write else "reads"
    kind = fault.kind
    if kind == Kind.GLOBAL_BOUNDS:
        target = memory.name(fault.address) or "memory that belongs to no array of the launch"
        return f"out of bounds: {verb} {fault.bytes} bytes at {target}"
    if kind == Kind.CONST_WRITE:
        return f"writes to an array that is const: {memory.name(fault.address)}"
    if kind == Kind.SHARED_BOUNDS:
        return f"out of bounds in shared memory: {verb} {fault.bytes} bytes at {_shared(fault, module)}"
    if kind == Kind.UNINITIALISED:
        return f"reads shared memory that nobody has written: {_shared(fault, module)}"
    if kind == Kind.REMOTE_ENDED:
        return f"{verb} {_shared(fault, module)} of block {_triple(fault.other_block)} of its cluster, which {text}"
    if kind == Kind.NOT_SHOWN:
        return (
            f"the hardware {verb} {_shared(fault, module)}, which thread {_triple(fault.other_thread)} wrote and has not "
            f"shown to it (fence.proxy.async)"
        )
    if kind == Kind.SHARED_RACE:
        other = "wrote" if fault.other_write else "read"
        place = locator.place(fault.other_pc)
        block = "" if list(fault.other_block) == list(fault.block) else f" of block {_triple(fault.other_block)}"
        return (
            f"a race in shared memory: {verb} {_shared(fault, module)}, which thread {_triple(fault.other_thread)}{block} "
            f"{other}{f' at {place}' if place else ''} with no barrier between"
        )
    if kind == Kind.GLOBAL_RACE:
        other = "wrote" if fault.other_write else "read"
        # Atomic operations and loads with a cache hint are CUDA functions; the source line is in their caller.
        place = locator.place(fault.other_pc) or locator.place(fault.other_caller)
        block = "" if list(fault.other_block) == list(fault.block) else f" of block {_triple(fault.other_block)}"
        same = " (both write the same value now)" if fault.same_value else ""
        return (
            f"a race in global memory: {verb} {memory.name(fault.address)}, which thread {_triple(fault.other_thread)}{block} "
            f"{other}{f' at {place}' if place else ''} with nothing that orders the two{same}"
        )
    return text


def _shared(fault: Fault, module: Module) -> str:
    if fault.shared_variable < 0:
        return f"byte {fault.shared_offset} of dynamic shared memory"
    variable = module.shared[fault.shared_variable]
    size = max(variable.element_bytes, 1)
    name = variable.name.decode(errors="replace")
    return f"element {fault.shared_offset // size} of `{name}`, which has {variable.bytes // size}"
