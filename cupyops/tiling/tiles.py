"""Kernels over the rows of a matrix in two-dimensional blocks of threads.

A block has 256 threads: ``DOWN = 256 / ABREAST`` rows of ``ABREAST`` threads. A thread makes one access of
``VECTOR_WIDTH`` elements to each row that it takes. The rows of a thread are ``gridDim.y * DOWN`` rows apart. The CUDA
source includes ``tiles.cuh``, whose ``Place`` is the first row and the column of a thread::

    const Place place;
    if (place.column >= n) return;
    for (long long row = place.row; row < count; row += gridDim.y * DOWN) ...

The kernel's last parameters are ``long long columns, long long rows``: the threads of a launch in x and in y.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cupyops.arrays import Device
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.launch.geometry import MAX_GRID_YZ, Threads
from cupyops.launch.kernel import Kernel

from .config import Config, vector_width_for

__all__ = ["THREADS", "TiledKernel", "Tiles"]

THREADS = 256  # threads of a block
NARROW = 4  # threads side by side of a block that takes all rows of its columns


@dataclass(frozen=True)
class Tiles(Config):
    """The macros of ``tiles.cuh``.

    Attributes:
        vector_width: elements of an access; a divisor of the length of a row.
        abreast: threads of a block side by side.
    """

    vector_width: int
    abreast: int

    @classmethod
    def over(cls, n: int, vector_width: int) -> "Tiles":
        """Returns the tiles for rows of n elements.

        A block has 8, 16 or 32 threads side by side: the number that leaves the fewest threads idle at the end of a
        row. A row with fewer than 8 accesses has fewer threads side by side.

        >>> Tiles.over(128, 4), Tiles.over(40, 1), Tiles.over(5, 1)
        (Tiles(vector_width=4, abreast=32), Tiles(vector_width=1, abreast=8), Tiles(vector_width=1, abreast=8))
        """
        columns = -(-n // vector_width)
        if columns < 8:
            return cls(vector_width, 1 << (columns - 1).bit_length())
        return cls(vector_width, min((32, 16, 8), key=lambda abreast: -columns % abreast))

    @property
    def down(self) -> int:
        """Rows of a block at once."""
        return THREADS // self.abreast

    @property
    def geometry(self) -> Threads:
        return Threads("columns", "rows", block=(self.abreast, self.down, 1))

    def sizes(self, n: int, rows: int) -> tuple[int, int]:
        """Returns ``columns`` and ``rows`` of a launch over ``rows`` rows of n elements.

        A thread takes one row, unless the rows exceed the largest grid.

        >>> Tiles(4, 16).sizes(128, 1000), Tiles(4, 16).sizes(128, 2_000_000)
        ((32, 1000), (32, 1048560))
        """
        return -(-n // self.vector_width), min(rows, self.down * MAX_GRID_YZ)

    def persistent(self, n: int, rows: int, at_once: int) -> tuple[int, int, int]:
        """Returns a launch of persistent blocks, which keep a value such as a sum from row to row.

        Args:
            n: elements of a row.
            rows: rows of the matrix.
            at_once: blocks that run at once on the GPU: an upper bound of the launch's blocks.

        Returns:
            The parts among which the rows are divided, and ``columns`` and ``rows`` of the launch.

        >>> Tiles(4, 16).persistent(128, 1000, 132)
        (63, 32, 1008)
        """
        columns, _ = self.sizes(n, rows)
        parts = max(1, min(at_once // -(-columns // self.abreast), -(-rows // self.down), MAX_GRID_YZ))
        return parts, columns, parts * self.down

    def alone(self) -> "Tiles":
        """Returns tiles with the same accesses in blocks of fewer columns and more rows.

        A block of these tiles takes all rows of a small matrix in a few steps, so the block's sums are sums over all
        rows.

        >>> Tiles(4, 32).alone().down
        64
        """
        return replace(self, abreast=min(self.abreast, NARROW))


class TiledKernel:
    """A kernel that is compiled once for each :class:`Tiles` that a launch needs.

    The constructor declares one compilation of each dtype, which :func:`cupyops.warmup` and the compile command
    compile.

    Args:
        text: the CUDA source.
        name: the kernel's name in the source.
        widest_vector: the most elements of an access, by the bytes of an element.
        dtypes: the dtypes of ``scalar_t``.
        declared: the dtypes that the constructor declares; all by default.
        constants: further macros.
        alone: declares a second compilation of each dtype, for :meth:`alone`.
    """

    def __init__(
        self,
        text: str,
        name: str,
        widest_vector: Mapping[int, int],
        *,
        dtypes: Sequence[str] = FLOATS,
        declared: Sequence[str] | None = None,
        constants: Mapping[str, int] | None = None,
        alone: bool = False,
    ) -> None:
        self._widest_vector = widest_vector

        @lru_cache(None)
        def kernel(tiles: Tiles, dtype: str) -> Kernel:
            return tiles.kernel(text, name, {"scalar_t": dtype}, dtypes=dtypes, constants=constants)

        @lru_cache(4096)
        def launch(dtype: str, rows: int, *widths: int) -> tuple[Kernel, tuple[int, int]]:
            tiles = self.tiles(dtype, *widths)
            return kernel(tiles, dtype), tiles.sizes(sum(widths), rows)

        @lru_cache(4096)
        def persistent(dtype: str, rows: int, n: int, device: Device) -> tuple[Kernel, tuple[int, int, int]]:
            tiles = self.tiles(dtype, n)
            at_once = kernel(tiles, dtype).resident_blocks({"scalar_t": dtype}, device)
            return kernel(tiles, dtype), tiles.persistent(n, rows, at_once)

        @lru_cache(4096)
        def whole(dtype: str, rows: int, n: int) -> tuple[Kernel, tuple[int, int, int]]:
            tiles = self.tiles(dtype, n).alone()
            return kernel(tiles, dtype), tiles.persistent(n, rows, 1)

        self._kernel, self._launch, self._persistent, self._whole = kernel, launch, persistent, whole
        for dtype in dtypes if declared is None else declared:
            self.kernel(dtype, 1024)
            if alone:
                self.alone(dtype, 1, 1024)

    def tiles(self, dtype: str, *widths: int) -> Tiles:
        """Returns the tiles for rows that consist of parts of the given widths: the widest access divides every
        part."""
        itemsize = DTYPES[dtype].itemsize
        return Tiles.over(
            sum(widths), min(self._widest_vector[itemsize], *(vector_width_for(n, itemsize) for n in widths))
        )

    def kernel(self, dtype: str, *widths: int) -> Kernel:
        """Returns the kernel for rows that consist of parts of the given widths."""
        return self._kernel(self.tiles(dtype, *widths), dtype)

    def launch(self, dtype: str, rows: int, *widths: int) -> tuple[Kernel, tuple[int, int]]:
        """Returns the kernel for rows that consist of parts of the given widths, and the launch's
        :meth:`Tiles.sizes`."""
        return self._launch(dtype, rows, *widths)

    def persistent(
        self, dtype: str, rows: int, n: int, device: Device, few: int = 0
    ) -> tuple[Kernel, tuple[int, int, int]]:
        """Returns the kernel for ``rows`` rows of n elements on a GPU, and the launch's :meth:`Tiles.persistent`.

        Up to ``few`` rows are one part, as in :meth:`alone`, so a block's sums are sums over all rows.
        """
        return self.alone(dtype, rows, n) if rows <= few else self._persistent(dtype, rows, n, device)

    def alone(self, dtype: str, rows: int, n: int) -> tuple[Kernel, tuple[int, int, int]]:
        """Returns the kernel with the blocks of :meth:`Tiles.alone`, and a launch in which all rows are one part."""
        return self._whole(dtype, rows, n)
