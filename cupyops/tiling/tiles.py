"""Kernels over rows of elements in two-dimensional blocks of threads, whose blocks take turns down the rows.

A thread has one access of ``VECTOR_WIDTH`` elements in each of its rows; ``ABREAST`` threads of a block are side by side, and the
others below them, in as many rows as make 256 threads. A text written for it finds a thread's elements so::

    constexpr long long DOWN = 256 / ABREAST;
    const long long column = (blockIdx.x * (long long)ABREAST + threadIdx.x) * VECTOR_WIDTH;
    if (column >= n) return;
    for (long long row = blockIdx.y * DOWN + threadIdx.y; row < count; row += gridDim.y * DOWN) ...

Its last parameters are ``long long columns, long long rows``, the threads of a launch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cupyops.arrays import Device
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.launch.geometry import MAX_GRID_YZ, Threads
from cupyops.launch.kernel import Kernel

from .config import Plan, vector_width_for

__all__ = ["THREADS", "TiledKernel", "Tiles"]

THREADS = 256  # of a block
NARROW = 4  # threads side by side where a block has all rows of its columns


@dataclass(frozen=True)
class Tiles(Plan):
    """One way to cut rows.

    Attributes:
        vector_width: elements of an access, which must divide a row.
        abreast: threads of a block side by side.
    """

    vector_width: int
    abreast: int

    @classmethod
    def over(cls, n: int, vector_width: int) -> "Tiles":
        """For rows of n elements: threads side by side are a power of 2, of 8 to 32 the one that leaves the fewest idle at
        the end of a row.

        >>> Tiles.over(128, 4), Tiles.over(40, 1), Tiles.over(5, 1)
        (Tiles(vector_width=4, abreast=32), Tiles(vector_width=1, abreast=8), Tiles(vector_width=1, abreast=8))
        """
        columns = -(-n // vector_width)
        if columns < 8:
            return cls(vector_width, 1 << (columns - 1).bit_length())
        return cls(vector_width, min((32, 16, 8), key=lambda abreast: -columns % abreast))

    @property
    def down(self) -> int:
        """Rows that a block has at once."""
        return THREADS // self.abreast

    @property
    def geometry(self) -> Threads:
        return Threads("columns", "rows", block=(self.abreast, self.down, 1))

    def sizes(self, n: int, rows: int) -> tuple[int, int]:
        """``columns`` and ``rows`` of a launch over so many rows of n elements; blocks take turns only where there are more
        rows than a grid has room for.

        >>> Tiles(4, 16).sizes(128, 1000), Tiles(4, 16).sizes(128, 2_000_000)
        ((32, 1000), (32, 1048560))
        """
        return -(-n // self.vector_width), min(rows, self.down * MAX_GRID_YZ)

    def staying(self, n: int, rows: int, at_once: int) -> tuple[int, int, int]:
        """A launch of no more blocks than run at once, so that each keeps something from row to row, such as a sum.

        Returns:
            How many parts the rows are dealt out in, and ``columns`` and ``rows`` of the launch.

        >>> Tiles(4, 16).staying(128, 1000, 132)
        (63, 32, 1008)
        """
        columns, _ = self.sizes(n, rows)
        parts = max(1, min(at_once // -(-columns // self.abreast), -(-rows // self.down), MAX_GRID_YZ))
        return parts, columns, parts * self.down

    def alone(self) -> "Tiles":
        """The same accesses in blocks of few columns, each of which has more rows at once: where rows are few, a block is done
        with all of them in a few turns, and its sums are whole.

        >>> Tiles(4, 32).alone().down
        64
        """
        return replace(self, abreast=min(self.abreast, NARROW))


class TiledKernel:
    """One function of a text, cut for the rows of each launch. It is compiled for each way to cut that is met; one of each
    dtype is declared at once, so that :func:`cupyops.warmup` and the compile command find it.

    Args:
        text, name: CUDA C++, and the function.
        widest_vector: elements of an access, at most, by the bytes of one.
        dtypes: that ``scalar_t`` may be.
        declared: those declared at once, by default all.
        constants: macros.
        alone: whether :meth:`alone` is asked for, and so one kernel more of each dtype declared.
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
        def staying(dtype: str, rows: int, n: int, device: Device) -> tuple[Kernel, tuple[int, int, int]]:
            tiles = self.tiles(dtype, n)
            at_once = kernel(tiles, dtype).resident_blocks({"scalar_t": dtype}, device)
            return kernel(tiles, dtype), tiles.staying(n, rows, at_once)

        @lru_cache(4096)
        def whole(dtype: str, rows: int, n: int) -> tuple[Kernel, tuple[int, int, int]]:
            tiles = self.tiles(dtype, n).alone()
            return kernel(tiles, dtype), tiles.staying(n, rows, 1)

        self._kernel, self._launch, self._staying, self._whole = kernel, launch, staying, whole
        for dtype in dtypes if declared is None else declared:
            self.kernel(dtype, 1024)
            if alone:
                self.alone(dtype, 1, 1024)

    def tiles(self, dtype: str, *widths: int) -> Tiles:
        """How rows are cut that consist of parts of so many elements side by side: by the widest access that divides each."""
        itemsize = DTYPES[dtype].itemsize
        return Tiles.over(
            sum(widths), min(self._widest_vector[itemsize], *(vector_width_for(n, itemsize) for n in widths))
        )

    def kernel(self, dtype: str, *widths: int) -> Kernel:
        """The kernel for such rows."""
        return self._kernel(self.tiles(dtype, *widths), dtype)

    def launch(self, dtype: str, rows: int, *widths: int) -> tuple[Kernel, tuple[int, int]]:
        """The kernel for so many such rows, and ``columns`` and ``rows`` of the launch: :meth:`Tiles.sizes`."""
        return self._launch(dtype, rows, *widths)

    def staying(
        self, dtype: str, rows: int, n: int, device: Device, few: int = 0
    ) -> tuple[Kernel, tuple[int, int, int]]:
        """The kernel for so many rows of n elements on a GPU, and the launch in which its blocks stay:
        :meth:`Tiles.staying`. Up to ``few`` rows are one part, as :meth:`alone` cuts them: sums over them are whole."""
        return self.alone(dtype, rows, n) if rows <= few else self._staying(dtype, rows, n, device)

    def alone(self, dtype: str, rows: int, n: int) -> tuple[Kernel, tuple[int, int, int]]:
        """The same for a few rows, whose blocks are cut by :meth:`Tiles.alone`: the rows are one part."""
        return self._whole(dtype, rows, n)
