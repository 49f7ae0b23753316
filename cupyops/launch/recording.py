"""Which kernels a piece of code launches: the list that a check or a benchmark of an operator speaks of."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cupyops.sharing import Setting

from .geometry import Grid

if TYPE_CHECKING:
    from .kernel import Kernel

__all__ = ["Launch", "note", "recorded", "recording"]


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes:
        types: what the undeclared types of the text stood for.
        device: index of the GPU; -1 in the simulator.
        grid: blocks in x, y, z.
    """

    kernel: "Kernel"
    types: Mapping[str, str]
    device: int
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
    from .kernel import all_kernels

    record: list[Launch] = []
    with _records.during(record):
        for kernel in all_kernels():
            kernel.close_fast_lane()  # only the checked lane notes its launches
        yield record
