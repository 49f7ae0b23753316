"""Sums of the columns of matrices, by kernels that include ``scalar.cuh`` and ``columns.cuh``: how they are cut, and their launches.

A kernel reads one matrix (M, N) or several, adds up something of them column by column, and may write what it finds on the
way. Its parameters are the matrices, and behind them::

    sum_t* __restrict__ sums,  // (groups, N)
    long long M, long long N, long long groups, long long tiles

It calls ``sum_columns``, which gives each block a strip of columns. How wide the strip is, how many blocks share its rows,
and whether they meet in a cluster or leave their sums to a second launch, is chosen here by sizes, dtype and GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

from cupyops.arrays import device_of
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.launch import driver
from cupyops.launch.geometry import Rows
from cupyops.launch.kernel import Kernel

from .config import CLUSTERS_SINCE, Config, vector_width_for

__all__ = ["SUMS", "ColumnSums", "ColumnsConfig", "ColumnsLaunch", "Work", "columns_launch", "strip_width"]

MOST_BLOCKS = 8  # of a cluster


@dataclass(frozen=True)
class ColumnsConfig(Config):
    """How a block goes about its strip: the macros of ``columns.cuh``.

    Attributes:
        block: threads of a block.
        vector_width: columns of a thread.
        width: threads of a block side by side.
        rows_each: rows that a thread has in flight.
        min_blocks: blocks that are to fit a multiprocessor, which bounds the registers.
        cluster: blocks that add up their sums among themselves.
    """

    launch_only = frozenset({"block", "cluster"})

    block: int
    vector_width: int
    width: int
    rows_each: int
    min_blocks: int = 1
    cluster: int = 1

    @property
    def geometry(self) -> Rows:
        return Rows("tiles", self.block, blocks_per_row=self.cluster)


class ColumnsLaunch(NamedTuple):
    """A matrix, cut.

    Attributes:
        config: of each block.
        groups: clusters on one strip of columns; of several, another launch adds up the sums.
        tiles: clusters in all.
    """

    config: ColumnsConfig
    groups: int
    tiles: int


@dataclass(frozen=True)
class Work:
    """What is known of a kernel that sums columns, by measuring it.

    Attributes:
        enough: threads of a multiprocessor that keep its memory busy.
        capacity: threads that run at once on a multiprocessor.
        groups: blocks of a multiprocessor where several groups share a strip.
        passes: times that the matrix is read or written.
        rows_each: rows of a thread in flight.
        min_blocks: blocks that are to fit a multiprocessor.
        blocks: threads of a block that it may have.
        widths: bytes of a row that a block may read at once.
    """

    enough: int
    capacity: int = 640
    groups: int = 2
    passes: int = 1
    rows_each: int = 8
    min_blocks: int = 1
    blocks: tuple[int, ...] = (128, 256, 512)
    widths: tuple[int, ...] = (128, 256)


# Of a kernel that reads one matrix and does nothing else, by bytes of an element. Measured on 16384 x 3072, 16384 x 768,
# 8192 x 8192 and 4096 x 4096 in bfloat16 and float32: within 1 % of the best of some 100 ways to cut each, and 0.8 to 2.3 µs
# behind a kernel that reads as much and sums nothing. Where a wave of blocks is not full, or the next one has just begun, it
# takes up to 1.5 times as long.
SUMS = {2: Work(enough=384), 4: Work(enough=176), 8: Work(enough=176)}
# Microseconds of another launch, and bytes that a multiprocessor moves in one of them.
_LAUNCH, _BYTES = 2.0, 4.28e6 / 132
_STRIPS = 128  # that keep a GPU busy


def columns_launch(
    m: int,
    n: int,
    itemsize: int,
    capability: int,
    multiprocessors: int,
    works: Mapping[int, Work] = SUMS,
    *,
    one_group: bool = False,
) -> ColumnsLaunch:
    """The way to sum the columns of m rows of n.

    Args:
        itemsize: of an element that is read.
        capability: of the GPU, 90 for sm_90.
        multiprocessors: of the GPU.
        works: what is known of the kernel, by ``itemsize``.
        one_group: the result must be one row, since it is the sums of several groups that are summed.
    """
    work = works[itemsize]
    vector_width = vector_width_for(n, itemsize)
    # Each with its time; of the quickest ways the one with the smallest blocks, the widest strips, the smallest clusters.
    ways: list[tuple[tuple[float, int, int, int], ColumnsLaunch]] = []
    for block in work.blocks:
        for width in {_width(n, vector_width, itemsize, nbytes) for nbytes in work.widths}:
            strips = -(-n // (width * vector_width))
            most = max(1, -(-m * width // block))  # blocks on a strip that have a row at least
            for cluster in (1, 2, 4, MOST_BLOCKS) if capability >= CLUSTERS_SINCE else (1,):
                blocks = strips * cluster
                if cluster > 1 and (cluster >= 2 * most or blocks > 0.85 * multiprocessors * (work.capacity // block)):
                    continue
                config = ColumnsConfig(block, vector_width, width, work.rows_each, work.min_blocks, cluster)
                time = _time(work, m * n * itemsize, blocks * block, multiprocessors)
                ways.append(((time, block, -width, cluster), ColumnsLaunch(config, 1, strips)))
            groups = min(work.groups * multiprocessors * 256 // block // max(strips, 1), most)
            if groups > 1 and not one_group and block == 256:
                config = ColumnsConfig(block, vector_width, width, min(work.rows_each, 4), work.min_blocks)
                time = _LAUNCH + _time(work, m * n * itemsize, groups * strips * block, multiprocessors)
                ways.append(((time, block, -width, 1), ColumnsLaunch(config, groups, groups * strips)))
    return min(ways, key=lambda way: way[0])[1]


def strip_width(n: int, vector_width: int, block: int) -> int:
    """Threads side by side where each block has all rows of its strip, and rows are few: a power of 2, up to 32.

    Of a large block, wide strips, or most of its threads have no row; and of many columns, or there are more strips than keep
    a GPU busy.
    """
    width = block // 32 if block > 256 else 4
    while width & (width - 1) or (width < 32 and n > width * vector_width * _STRIPS):
        width += 1
    return width


def _width(n: int, vector_width: int, itemsize: int, nbytes: int) -> int:
    """Threads side by side that read so many bytes of a row of n at once, or all of it."""
    width = 1
    while width * vector_width < n and width * vector_width * itemsize < nbytes:
        width *= 2
    return width


def _time(work: Work, nbytes: int, threads: int, multiprocessors: int) -> float:
    """Microseconds that so many threads take for a matrix of so many bytes."""
    busy = min(1.0, max(threads, 1) / (work.enough * multiprocessors))
    return work.passes * nbytes / (_BYTES * multiprocessors * busy)


class ColumnSums:
    """A kernel that sums columns, in all the ways that it is cut.

    Args:
        text, name: of the kernel.
        read, found: the types of what it reads and of its sums, as the text calls them. The sums have the dtype of what is
            read where they are the result, else the type of the arithmetic.
        works: what is known of it, by bytes of an element that is read; by default, that it reads one matrix.
        constants: further macros.
        rest: what adds up the sums of several groups; by default the kernel itself, which reads one matrix then.
        ahead: compiled for ``warmup()`` and the compile command, the ways of some matrices of 4096 columns: their rows and
            the GPU's compute capability.
    """

    def __init__(
        self,
        text: str,
        name: str,
        read: str,
        found: str,
        works: Mapping[int, Work] = SUMS,
        *,
        constants: Mapping[str, int] | None = None,
        rest: "ColumnSums | None" = None,
        ahead: Sequence[tuple[int, int]] = ((2**14, 0), (2**14, CLUSTERS_SINCE)),
    ) -> None:
        self.text, self.name, self.read, self.found = text, name, read, found
        self.works, self.constants, self.rest = works, constants, rest
        for dtype in FLOATS:
            for m, capability in ahead:
                config, _, _ = columns_launch(m, 4096, DTYPES[dtype].itemsize, capability, 132, works)
                _kernel(self, config, dtype)

    def __call__(self, library: Any, *arrays: Any) -> Any:
        """The sums of each column, (N), in the dtype of the first array.

        Args:
            library: the arrays'.
            arrays: what the kernel is given before the sums, contiguous; the first is a matrix that is read.
        """
        first = arrays[0]
        m, n = first.shape
        dtype = library.dtype_name(first)
        sums = library.empty((n,), dtype, first)
        if library.is_fake(first):
            return sums
        device = device_of(library, first)
        gpu = driver.capability(device), driver.multiprocessors(device)
        kernel, groups, tiles, rest, rest_tiles = _launches(self, m, n, dtype, *gpu)
        # Every such kernel takes, behind its arrays, sums, M, N, groups and tiles.
        if rest is None:
            kernel.launch_vouched(*arrays, sums, m, n, 1, tiles)
            return sums
        parts = library.empty((groups, n), DTYPES[dtype].acc, first)
        kernel.launch_vouched(*arrays, parts, m, n, groups, tiles)
        rest.launch_vouched(parts, sums, groups, n, 1, rest_tiles)
        return sums


@cache
def _kernel(sums: ColumnSums, config: ColumnsConfig, dtype: str) -> Kernel:
    """The kernel whose result is of ``dtype``."""
    acc = DTYPES[dtype].acc
    # A cluster has the result, or makes it of several groups' sums; else there are such groups, most often.
    kinds = [(dtype, dtype if config.cluster > 1 else acc)]
    if sums.rest is None and config.cluster > 1:
        kinds.append((acc, dtype))
    choices = ({sums.read: read, sums.found: found} for read, found in dict.fromkeys(kinds))
    return config.kernel(sums.text, sums.name, *choices, dtypes=FLOATS, constants=sums.constants)


@lru_cache(1024)
def _launches(
    sums: ColumnSums, m: int, n: int, dtype: str, capability: int, multiprocessors: int
) -> tuple[Kernel, int, int, Kernel | None, int]:
    """The kernel, its groups and tiles; for several groups, the kernel and tiles for theirs."""
    gpu, rest = (capability, multiprocessors), sums.rest or sums
    config, groups, tiles = columns_launch(m, n, DTYPES[dtype].itemsize, *gpu, sums.works)
    kernel = _kernel(sums, config, dtype)
    if groups == 1:
        return kernel, 1, tiles, None, 0
    last = columns_launch(groups, n, DTYPES[DTYPES[dtype].acc].itemsize, *gpu, rest.works, one_group=True)
    return kernel, groups, tiles, _kernel(rest, last.config, dtype), last.tiles
