"""A kernel that is compiled and loaded: what a launch needs of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cupyops.compile import toolchain

from . import driver
from .geometry import Geometry, Target

__all__ = ["Hardware", "Variant"]


@dataclass(frozen=True)
class Hardware:
    """What a kernel's text needs of a GPU.

    Attributes:
        since: compute capability, 90 for clusters of blocks and bulk copies; 0 for any.
        exactly: that compute capability and no later one.
        cooperative: all blocks of a launch run at once.
        shared: bytes of dynamic shared memory of a block.
    """

    since: int = 0
    exactly: bool = False
    cooperative: bool = False
    shared: int = 0

    def __str__(self) -> str:
        return f"sm_{self.since}{' and no other' if self.exactly else ' or later'}"

    @property
    def options(self) -> tuple[str, ...]:
        """Options for NVRTC."""
        return (f"-arch=sm_{self.since}a",) if self.exactly else ()

    def met_by(self, capability: int) -> bool:
        """Whether GPUs of this compute capability have what is needed."""
        return capability == self.since if self.exactly else capability >= self.since


class Variant:
    """A kernel compiled for one choice of types, loaded on one GPU, ready to launch.

    Attributes:
        what: kernel and dtypes, for messages.
        raw: the :class:`cupy.RawKernel` (or its inner function, where the cache folder cannot be written).
        function: the driver's handle of it.
        grid: sizes to blocks.
        unit: elements a thread takes; the name `unit` in geometry expressions.
        threads: of a block.
        shared: bytes of dynamic shared memory.
        cluster: blocks of a cluster.
        cooperative: all blocks must run at once.
        pack_into: writes all argument values into a buffer, exactly as wide as the kernel declares them.
        buffers: free argument buffers; a launch takes one and gives it back, so that threads never share one.
    """

    __slots__ = (
        *("_packing", "_resident", "buffers", "cluster", "cooperative", "function"),
        *("grid", "pack_into", "raw", "shared", "threads", "unit", "what"),
    )

    def __init__(
        self,
        what: str,
        raw: Any,
        packing: tuple[Any, list[tuple[int, int]]],
        geometry: Geometry,
        target: Target,
        hardware: Hardware = Hardware(),
    ) -> None:
        self.what = what
        self.raw = raw
        self.function = driver.handle(raw)
        self.grid = geometry.grid_for(target)
        self.unit = geometry.unit(target)
        self.threads = geometry.threads
        self.shared = hardware.shared
        self.cluster = geometry.cluster
        self.cooperative = hardware.cooperative
        self._resident: int | None = None
        self._packing = packing
        self.pack_into = packing[0].pack_into
        self.buffers: list[driver.ArgumentBuffer] = []

    def new_buffer(self) -> driver.ArgumentBuffer:
        """A buffer for one launch's arguments, for when all others are in use."""
        return driver.argument_buffer(self._packing[0].size, [offset for offset, _ in self._packing[1]])

    def resident_blocks(self, device: int) -> int:
        """How many blocks run on the GPU at once."""
        if self._resident is None:
            with toolchain.cupy().cuda.Device(device):
                threads = self.threads[0] * self.threads[1] * self.threads[2]
                self._resident = driver.resident_blocks(self.function, threads, self.shared, self.cluster)
        return self._resident

    def packed(self, arguments: Sequence[Any]) -> driver.ArgumentBuffer:
        """A buffer of its own with these arguments, one a parameter: addresses, numbers, tuples of numbers."""
        buffer = self.new_buffer()
        self.pack_into(buffer.memory, 0, *(n for a in arguments for n in (a if isinstance(a, tuple) else (a,))))
        return buffer
