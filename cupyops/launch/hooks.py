"""The registries of kernels, of objects that repeat their launches, and of memory that kernels reach by addresses in other memory."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

from cupyops.sharing import held_across_fork, once

__all__ = [
    "KERNELS",
    "all_kernels",
    "close_generated_kernels",
    "close_generated_launches",
    "declare_later",
    "hand_over",
    "handed_over",
    "on_close",
]

# All kernels of the process, by weak references.
KERNELS: "weakref.WeakSet[Any]" = weakref.WeakSet()
# By weak references to the operators: the functions that declare their kernels for other lengths than those of a call.
_LATER: "weakref.WeakKeyDictionary[Any, Callable[[], None]]" = weakref.WeakKeyDictionary()
# Weak references to the objects that repeat launches of kernels without calling the kernels.
_REPEATED: "weakref.WeakSet[Any]" = weakref.WeakSet()
_CHANGING = held_across_fork(threading.Lock())  # held while _REPEATED changes or is copied


def declare_later(operator: Any, declare: Callable[[], None]) -> None:
    """Makes :func:`all_kernels` call ``declare()`` once, if the operator is still alive. Kernels that only
    :func:`cupyops.warmup` and the commands use are therefore not made by the import."""
    _LATER[operator] = declare


def all_kernels() -> list[Any]:
    """Returns all kernels declared so far, sorted by file, name and constants."""
    once("kernels that are declared later", _declare)
    return sorted(KERNELS, key=lambda k: (k.filename, k.name, sorted(k.constants.items())))


def _declare() -> None:
    for operator, declare in list(_LATER.items()):
        declare()
        del _LATER[operator]


# By the first address: the owner, and the address behind the last byte, of memory whose address is a value in other memory.
_HANDED: dict[int, tuple["weakref.ref[Any]", int]] = {}


def hand_over(owner: Any, begin: int, end: int) -> None:
    """Says that host code writes the address of memory into other memory, from which kernels read it.

    A sanitizer knows the arrays of a launch by its arguments, and such memory by this call.

    Args:
        owner: an object that lives no longer than the memory.
        begin, end: the first address, and the one behind the last byte.
    """
    _HANDED[begin] = (weakref.ref(owner), end)


def handed_over() -> list[tuple[int, int]]:
    """Returns the memory of :func:`hand_over` whose owners live: the first address, and the one behind the last byte."""
    for begin in [begin for begin, (owner, _) in list(_HANDED.items()) if owner() is None]:
        _HANDED.pop(begin, None)
    return [(begin, end) for begin, (_, end) in list(_HANDED.items())]


def on_close(repeated: Any) -> None:
    """Makes :func:`close_generated_launches` call ``repeated.close_generated_launch()`` while the object is alive."""
    with _CHANGING:
        _REPEATED.add(repeated)


def close_generated_launches() -> None:
    """Sends the next call of every kernel through the checked launch, which consults guards and records launches."""
    close_generated_kernels()
    with _CHANGING:
        found = list(_REPEATED)
    for repeated in found:
        repeated.close_generated_launch()


def close_generated_kernels() -> None:
    """Sends calls of kernels through the checked launch, but not repeated launches."""
    for kernel in list(KERNELS):
        kernel.close_generated_launch()
