"""Plans the launches of a traced call, for code that launches without Python.

A launch on fake arrays does nothing. While a plan is made, it is handed to the planner instead: with the sizes of the arrays as
symbols, so that the plan holds for all sizes.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from cupyops.sharing import Setting

__all__ = ["note", "planning", "while_planning"]

# ``planner(kernel, arguments, threads)`` with the checked arguments of the launch, and the threads of a kernel without a policy.
Planner = Callable[[Any, Any, Any], None]
_PLANNER: Setting[Planner | None] = Setting(None)


def planning() -> bool:
    """Returns whether a plan is being made."""
    return _PLANNER.now is not None


def while_planning(planner: Planner) -> AbstractContextManager[None]:
    """Hands the launches on fake arrays to a planner while a block of code runs."""
    return _PLANNER.during(planner)


def note(kernel: Any, arguments: Any, threads: Any) -> None:
    """Hands a launch on fake arrays to the planner, if a plan is being made."""
    if (planner := _PLANNER.now) is not None:
        planner(kernel, arguments, threads)
