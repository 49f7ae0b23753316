"""Plans the launches of a traced call, for code that launches without Python.

A launch on fake arrays does nothing. While a plan is made, it is handed to the planner instead: with the sizes of the arrays as
symbols, so that the plan holds for all sizes.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from cupyops.sharing import Setting

__all__ = ["note", "planning", "while_planning"]

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


def note(kernel: Any, arguments: Any, threads: Any) -> None:
    """Hands a launch on fake arrays to the planner of the calling thread, if there is one."""
    thread, planner = _PLANNER.now
    if planner is not None and thread == threading.get_ident():
        planner(kernel, arguments, threads)
