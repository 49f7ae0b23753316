"""Which kernels a piece of code launches: the list that a check or a benchmark of an operator speaks of."""

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
    """One launch.

    Attributes:
        kernel: the :class:`cupyops.Kernel`.
        types: what the undeclared types of the text stood for.
        device: index of the GPU, or what stands in for one.
        grid: blocks in x, y, z.
    """

    kernel: Any
    types: Mapping[str, str]
    device: Device
    grid: Grid


_records: Setting[list[Launch]] = Setting([])


def recording() -> bool:
    """Whether some block of code wants its launches listed."""
    return bool(_records.active)


def note(launch: Launch) -> None:
    """Adds a launch to every list that is being written."""
    for record in _records.active:
        record.append(launch)


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """The launches of a block of code, in their order, of all threads, since gradients are computed in threads of their
    own. Those of nothing (no elements) and of fakes are none. Launches of a CUDA graph's replay are not seen."""
    record: list[Launch] = []
    with _records.during(record):
        close_generated_launches()  # only the checked launch notes what it launches
        yield record
