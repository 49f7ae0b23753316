"""What stands between a kernel and its launches: the debug mode registers itself here, and a kernel does not know it."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["KERNELS", "Guard", "close_generated_launches", "guard", "register_guard"]

# Every kernel of the process, for as long as somebody holds it.
KERNELS: "weakref.WeakSet[Any]" = weakref.WeakSet()


@dataclass(frozen=True)
class Guard:
    """What launches in place of the driver.

    Attributes:
        enabled: whether it does now.
        submit: launches; it takes the kernel's variant, its signature, the checked arguments, the grid and the stream.
    """

    enabled: Callable[[], bool]
    submit: Callable[..., None]


_GUARDS: list[Guard] = []


def register_guard(guard: Guard) -> None:
    """Has all launches made by ``guard`` while it is enabled."""
    _GUARDS.append(guard)


def guard() -> Guard | None:
    """What launches in place of the driver now, if anything does."""
    return next((g for g in _GUARDS if g.enabled()), None)


def close_generated_launches() -> None:
    """Sends the next call of every kernel through the checked launch, which asks for guards and notes what it launches."""
    for kernel in list(KERNELS):
        kernel.close_generated_launch()
