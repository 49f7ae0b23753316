"""Records the kernels that a block of code launches. Operator checks and benchmarks report the recorded launches. The
code of compiled graphs repeats them.

A launch on fake arrays does nothing. While a plan is made, it is handed to the planner instead, for code that launches without Python:
with the sizes of the arrays as symbols, so that the plan holds for all sizes.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from cupyops.arrays import Device
from cupyops.sharing import Setting

from .geometry import Grid
from .hooks import close_generated_kernels, close_generated_launches

__all__ = [
    "Launch",
    "Submitted",
    "note",
    "plan",
    "planning",
    "recorded",
    "recording",
    "submitted",
    "watched",
    "while_planning",
]


@dataclass(frozen=True)
class Launch:
    """One recorded launch.

    Attributes:
        kernel: the :class:`cupyops.Kernel`.
        types: the dtype of each undeclared type of the text, ``{"scalar_t": "float16"}``.
        device: index of the GPU, or the :class:`cupyops.arrays.Host` that simulates one.
        grid: blocks in x, y, z.
    """

    kernel: Any
    types: Mapping[str, str]
    device: Device
    grid: Grid


@dataclass(frozen=True)
class Submitted:
    """One launch with its arguments.

    Attributes:
        variant: the loaded kernel, a :class:`.load.Variant`; in the simulator,
            :class:`cupyops.simulator.simulated.Simulated`.
        arguments: the checked arguments, a :class:`.arguments.Arguments`.
        grid: blocks in x, y, z.
    """

    variant: Any
    arguments: Any
    grid: Grid


_records: Setting[list[Launch]] = Setting([])
# Each list with the identifier of the thread whose launches it receives.
_watchers: Setting[tuple[int, list[Any]]] = Setting((0, []))


def recording() -> bool:
    """Returns whether a :func:`recorded` or :func:`watched` block is running."""
    return bool(_records.active or _watchers.active)


def submitted(variant: Any, arguments: Any, grid: Grid) -> None:
    """Adds a launch to the list of every :func:`watched` block that the calling thread runs."""
    for thread, launches in _watchers.active:
        if thread == threading.get_ident():
            launches.append(Submitted(variant, arguments, grid))


@contextmanager
def watched(launches: list[Any]) -> Iterator[None]:
    """Adds to the list the launches that the calling thread makes in a block of code, with their arguments.

    The list keeps the arguments alive.
    """
    with _watchers.during((threading.get_ident(), launches)):
        close_generated_kernels()  # only the checked launch reports its arguments
        yield


def note(launch: Launch) -> None:
    """Adds a launch to the list of every running :func:`recorded` block."""
    for record in _records.active:
        record.append(launch)


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Yields a list, and adds to it the launches of a block of code in their order.

    The list has the launches of all threads, because autograd computes gradients in threads of its own. A call on fake
    arrays or with an empty grid launches nothing and adds nothing. The launches of a CUDA graph's replay are not
    recorded.
    """
    record: list[Launch] = []
    with _records.during(record):
        close_generated_launches()  # only the checked launch records launches
        yield record


# ``planner(kernel, arguments, threads)`` with the checked arguments of the launch, and the threads of a kernel without a policy.
Planner = Callable[[Any, Any, Any], None]
# With the identifier of the thread whose launches it receives.
_PLANNER: Setting[tuple[int, Planner | None]] = Setting((0, None))


def planning() -> bool:
    """Returns whether the calling thread makes a plan."""
    return _PLANNER.now[0] == threading.get_ident()


def while_planning(planner: Planner) -> AbstractContextManager[None]:
    """Hands the calling thread's launches on fake arrays to a planner while a block of code runs."""
    return _PLANNER.during((threading.get_ident(), planner))


def plan(kernel: Any, arguments: Any, threads: Any) -> None:
    """Hands a launch on fake arrays to the planner of the calling thread, if there is one."""
    thread, planner = _PLANNER.now
    if planner is not None and thread == threading.get_ident():
        planner(kernel, arguments, threads)
