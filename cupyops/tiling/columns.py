"""Column sums of matrices, by kernels that include ``scalar.cuh`` and ``columns.cuh``: configs and launches.

A kernel reads one or more matrices (M, N) and sums a function of their elements column by column. The kernel may also
write an element-wise result. The kernel's parameters are the matrices, then::

    sum_t* __restrict__ sums,  // (groups, N)
    long long M, long long N, long long groups, long long tiles

The kernel calls ``sum_columns``, which gives each block a strip of columns. Sizes, dtype and GPU decide the width of a
strip and the number of blocks that share the rows of a strip. The blocks of a strip form a cluster and exchange their
sums, or a second launch adds up their sums.
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

MOST_BLOCKS = 8  # the most blocks of a cluster


@dataclass(frozen=True)
class ColumnsConfig(Config):
    """The macros of ``columns.cuh``: how the threads of a block share a strip.

    Attributes:
        block: threads of a block.
        vector_width: columns of a thread.
        width: threads of a block side by side.
        rows_each: rows that a thread has in flight.
        min_blocks: blocks resident on a multiprocessor; caps the registers of a thread.
        cluster: blocks of a cluster, which share the rows of a strip and exchange their sums.
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
    """The launch of a kernel that sums columns, for one size of matrix.

    Attributes:
        config: the config of the kernel.
        groups: clusters on one strip of columns. A second launch adds up the sums of several groups.
        tiles: clusters of the launch.
    """

    config: ColumnsConfig
    groups: int
    tiles: int


@dataclass(frozen=True)
class Work:
    """Measured properties of a kernel that sums columns.

    Attributes:
        enough: threads on a multiprocessor that saturate the memory bandwidth.
        capacity: the most threads that are resident on a multiprocessor.
        groups: blocks on a multiprocessor, in launches with several groups on a strip.
        passes: the number of matrices of the same size that the kernel reads or writes.
        rows_each: rows that a thread has in flight.
        min_blocks: blocks resident on a multiprocessor.
        blocks: the candidates for the threads of a block.
        widths: the candidates for the bytes of a row that a block reads at once.
    """

    enough: int
    capacity: int = 640
    groups: int = 2
    passes: int = 1
    rows_each: int = 8
    min_blocks: int = 1
    blocks: tuple[int, ...] = (128, 256, 512)
    widths: tuple[int, ...] = (128, 256)


# For a kernel that only sums the columns of one matrix, by bytes of an element. Measured on an H200 with 16384 x 3072,
# 16384 x 768, 8192 x 8192 and 4096 x 4096 in bfloat16 and float32: the chosen config is within 1 % of the fastest of
# some 100 configs. The kernel takes 0.8 to 2.3 µs longer than a kernel that only reads the matrix. A partly filled last
# wave of blocks makes a launch up to 1.5 times as long.
SUMS = {2: Work(enough=384), 4: Work(enough=176), 8: Work(enough=176)}
# Microseconds of a second launch, and bytes that a multiprocessor moves in a microsecond.
_LAUNCH, _BYTES = 2.0, 4.28e6 / 132
_STRIPS = 128  # strips that occupy a GPU


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
    """Returns the launch that sums the columns of an (m, n) matrix in the shortest estimated time.

    Args:
        m, n: rows and columns of the matrix.
        itemsize: bytes of an element of the matrix.
        capability: compute capability of the GPU, 90 for sm_90.
        multiprocessors: multiprocessors of the GPU.
        works: measured properties of the kernel, by ``itemsize``.
        one_group: considers launches with one group only, which need no second launch.
    """
    work = works[itemsize]
    vector_width = vector_width_for(n, itemsize)
    # Pairs of a sort key and a launch. Of launches with equal times, the smallest blocks win, then the widest strips,
    # then the smallest clusters.
    ways: list[tuple[tuple[float, int, int, int], ColumnsLaunch]] = []
    for block in work.blocks:
        for width in {_width(n, vector_width, itemsize, nbytes) for nbytes in work.widths}:
            strips = -(-n // (width * vector_width))
            most = max(1, -(-m * width // block))  # the most blocks on a strip that all have a row
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
    """Returns how many threads of a block lie side by side on a strip with few rows: a power of 2 up to 32.

    A block takes all rows of its strip. The strips of a large block are wide, since most of its threads would have no
    row in a narrow strip. The strips of a matrix with many columns are wide, since ``_STRIPS`` strips already occupy a
    GPU.
    """
    width = block // 32 if block > 256 else 4
    while width & (width - 1) or (width < 32 and n > width * vector_width * _STRIPS):
        width += 1
    return width


def _width(n: int, vector_width: int, itemsize: int, nbytes: int) -> int:
    """Returns the fewest threads side by side, a power of 2, that read ``nbytes`` bytes of a row at once, or the whole
    row."""
    width = 1
    while width * vector_width < n and width * vector_width * itemsize < nbytes:
        width *= 2
    return width


def _time(work: Work, nbytes: int, threads: int, multiprocessors: int) -> float:
    """Returns the estimated microseconds of a launch of ``threads`` threads on a matrix of ``nbytes`` bytes."""
    busy = min(1.0, max(threads, 1) / (work.enough * multiprocessors))
    return work.passes * nbytes / (_BYTES * multiprocessors * busy)


class ColumnSums:
    """A kernel that sums columns, compiled for each config that a launch needs.

    Args:
        text, name: the CUDA source, and the kernel's name in the source.
        read, found: the names in the source of the type of the elements and of the type of the sums. The sums of one
            group have the dtype of the elements. The sums of several groups have the accumulation dtype.
        works: measured properties of the kernel, by bytes of an element; by default those of a kernel that reads one
            matrix.
        constants: further macros.
        rest: the column sums that add up the sums of several groups; by default this kernel, which must then read one
            matrix.
        ahead: the compilations of ``warmup()`` and the compile command, each as the rows of a matrix with 4096 columns,
            and a compute capability.
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
        """Returns the sum of each column, (N), in the dtype of the first array.

        Args:
            library: the array library of ``arrays``.
            arrays: the kernel's arguments before ``sums``, contiguous; the first is a matrix (M, N) that the kernel
                reads.
        """
        first = arrays[0]
        m, n = first.shape
        dtype = library.dtype_name(first)
        sums = library.empty((n,), dtype, first)
        if library.skips(first):
            return sums
        device = device_of(library, first)
        gpu = driver.capability(device), driver.multiprocessors(device)
        kernel, groups, tiles, rest, rest_tiles = _launches(self, m, n, dtype, *gpu)
        # After its arrays, every kernel of this kind takes sums, M, N, groups and tiles.
        if rest is None:
            kernel.launch_vouched(*arrays, sums, m, n, 1, tiles)
            return sums
        parts = library.empty((groups, n), DTYPES[dtype].acc, first)
        kernel.launch_vouched(*arrays, parts, m, n, groups, tiles)
        rest.launch_vouched(parts, sums, groups, n, 1, rest_tiles)
        return sums


@cache
def _kernel(sums: ColumnSums, config: ColumnsConfig, dtype: str) -> Kernel:
    """Returns the kernel of a config for a result of ``dtype``."""
    acc = DTYPES[dtype].acc
    # A launch with clusters has one group, whose sums are the result. A launch without clusters mostly has several
    # groups. A kernel with clusters also adds up the sums of several groups.
    kinds = [(dtype, dtype if config.cluster > 1 else acc)]
    if sums.rest is None and config.cluster > 1:
        kinds.append((acc, dtype))
    choices = ({sums.read: read, sums.found: found} for read, found in dict.fromkeys(kinds))
    return config.kernel(sums.text, sums.name, *choices, dtypes=FLOATS, constants=sums.constants)


@lru_cache(1024)
def _launches(
    sums: ColumnSums, m: int, n: int, dtype: str, capability: int, multiprocessors: int
) -> tuple[Kernel, int, int, Kernel | None, int]:
    """Returns a kernel, its groups and its tiles; for several groups also the kernel and the tiles of the second
    launch."""
    gpu, rest = (capability, multiprocessors), sums.rest or sums
    config, groups, tiles = columns_launch(m, n, DTYPES[dtype].itemsize, *gpu, sums.works)
    kernel = _kernel(sums, config, dtype)
    if groups == 1:
        return kernel, 1, tiles, None, 0
    last = columns_launch(groups, n, DTYPES[DTYPES[dtype].acc].itemsize, *gpu, rest.works, one_group=True)
    return kernel, groups, tiles, _kernel(rest, last.config, dtype), last.tiles
