"""Chooses how the objects of a kernel are linked into a library."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from cupyops.sharing import run_program

from .flags import libraries
from .host import Compiler, absolute_folders
from .lines import symbol_names

__all__ = ["linker_of"]


def linker_of(tool: Compiler, objects: Sequence[Path], *before: Path) -> tuple[Compiler, list[str]]:
    """Returns the program that links a kernel, and its last arguments: the libraries `before`, and those of C and C++ if the objects
    take a name from them.

    g++ would start three programs and read libraries for most of its time. Most kernels take names from the simulator's
    libraries alone, or from C's mathematical one, and are linked by g++'s linker itself.
    """
    if tool.family == "gcc":
        ld, mathematics = _of_driver(tool)
        of_objects = [symbol_names(path.read_bytes(), dynamic=False) for path in objects]
        there = {name for path in before for name in _exported(path)}.union(*(defined for defined, _ in of_objects))
        there.add("_GLOBAL_OFFSET_TABLE_")  # of the linker itself
        lacking = {name for _, taken in of_objects for name in taken} - there
        others = [mathematics] if lacking and mathematics else []
        if ld and lacking.issubset(name for path in others for name in _exported(path)):
            return replace(tool, command=(ld,)), ["--eh-frame-hdr", "-Bsymbolic", *map(str, (*before, *others))]
    return tool, [*map(str, before), *libraries(tool)]


@cache
def _of_driver(tool: Compiler) -> tuple[str | None, Path | None]:
    """Returns the paths of the linker that g++ starts and of C's mathematical library, each if it is found."""
    asked = ("-print-prog-name=ld", "-print-file-name=libm.so.6")
    program, library = (run_program([*tool.command, question]).stdout.strip() for question in asked)
    path = Path(library)  # a bare name if g++ finds none
    return shutil.which(program, path=absolute_folders()), path if path.is_absolute() and path.exists() else None


@cache
def _exported(path: Path) -> frozenset[str]:
    """Returns the names that a library defines."""
    return frozenset(symbol_names(path.read_bytes(), dynamic=True)[0])
