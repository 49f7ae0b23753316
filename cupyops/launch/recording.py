"""Records the kernels that a block of code launches. Operator checks and benchmarks report the recorded launches."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cupyops.arrays import Device
from cupyops.sharing import Setting

from .geometry import Grid
from .hooks import close_generated_launches

__all__ = ["Launch", "note", "recorded", "recording"]


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


_records: Setting[list[Launch]] = Setting([])


def recording() -> bool:
    """Returns whether a :func:`recorded` block is running."""
    return bool(_records.active)


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
