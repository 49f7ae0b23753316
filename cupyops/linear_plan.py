"""How the kernels of a linear layer are cut, and where the library takes over: the tables behind :mod:`cupyops.linear`
and :mod:`cupyops.linear_gelu`, measured on an H200."""

from dataclasses import dataclass, replace
from functools import cache

from .geometry import Rows
from .layer_norm_plan import CLUSTERS_SINCE, lanes_for

__all__ = ["ColumnPlan", "NarrowPlan", "bias_gradient_pays", "column_plan", "narrow_plan"]

MOST_BLOCKS = 8  # of a cluster


@dataclass(frozen=True)
class ColumnPlan:
    """How the columns of a matrix are summed: the macros of ``columns.cuh``, and how many blocks there are.

    Attributes:
        block: threads of a block.
        lanes: columns of a thread.
        width: threads of a block side by side.
        rows_each: rows that a thread has on their way.
        min_blocks: blocks that are to fit a multiprocessor, which bounds the registers.
        cluster: blocks that add up their sums among themselves.
        groups: such clusters on one strip of columns; of several, another launch adds up the sums.
        tiles: clusters in all.
    """

    block: int
    lanes: int
    width: int
    rows_each: int
    min_blocks: int
    cluster: int
    groups: int = 0
    tiles: int = 0

    @property
    def text(self) -> "ColumnPlan":
        """The plan without what the compilation does not depend on."""
        return replace(self, groups=0, tiles=0)

    @property
    def geometry(self) -> Rows:
        return Rows("tiles", self.block, blocks_per_row=self.cluster)

    @property
    def constants(self) -> dict[str, int]:
        named = {"LANES": self.lanes, "WIDTH": self.width, "ROWS_EACH": self.rows_each}
        return {**named, **({"MIN_BLOCKS": self.min_blocks} if self.min_blocks > 1 else {})}

    @property
    def since(self) -> int:
        return CLUSTERS_SINCE if self.cluster > 1 else 0


@dataclass(frozen=True)
class _Work:
    """What is known of a kernel that sums columns.

    Attributes:
        blocks: threads of a block that it may have.
        widths: bytes of a row that a block may read at once.
        capacity: threads that run at once on a multiprocessor.
        enough: threads of a multiprocessor that keep its memory busy.
        passes: times that the matrix is read or written.
        groups: blocks of a multiprocessor where several groups share a strip.
    """

    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    capacity: int
    enough: int
    passes: int
    groups: int


# Measured on 16384 x 3072, 16384 x 768, 8192 x 8192 and 4096 x 4096 in bfloat16 and float32. The sums are within 1 % of the
# best of some 100 ways to cut each, and 0.8 to 2.3 µs behind a kernel that reads as much and does nothing else; GELU's
# gradient is 2 to 5 % behind the best. Where a wave of blocks is not full, or the next one has just begun, it takes up to
# 1.5 times as long.
_SUMS_16 = _Work((128, 256, 512), (128, 256), capacity=640, enough=384, passes=1, groups=2)
_SUMS = _Work((128, 256, 512), (128, 256), capacity=640, enough=176, passes=1, groups=2)
_GELU_16 = _Work((256,), (256,), capacity=1024, enough=1024, passes=3, groups=4)
_GELU = _Work((256,), (256,), capacity=768, enough=768, passes=3, groups=3)
# Microseconds of another launch, and bytes that a multiprocessor moves in one of them.
_LAUNCH, _BYTES = 2.0, 4.28e6 / 132


def column_plan(
    m: int, n: int, itemsize: int, capability: int, multiprocessors: int, *, gelu: bool = False, last: bool = False
) -> ColumnPlan:
    """The way to sum the columns of m rows of n.

    Args:
        itemsize: of an element that is read.
        capability: of the GPU, 90 for sm_90.
        multiprocessors: of the GPU.
        gelu: GELU's gradient is made on the way.
        last: the result must be one row, since it is the sums of several groups that are summed.
    """
    if itemsize == 2:
        work = _GELU_16 if gelu else _SUMS_16
    else:
        work = _GELU if gelu else _SUMS
    lanes = lanes_for(n, itemsize)
    best: tuple[tuple[float, int, int, int], ColumnPlan] | None = None
    for block in work.blocks:
        for width in {_width(n, lanes, itemsize, nbytes) for nbytes in work.widths}:
            rows_each, min_blocks = _held(block, itemsize, gelu)
            strips = -(-n // (width * lanes))
            most = max(1, -(-m * width // block))  # blocks on a strip that have a row at least
            for cluster in (1, 2, 4, MOST_BLOCKS) if capability >= CLUSTERS_SINCE else (1,):
                blocks = strips * cluster
                if cluster > 1 and (cluster >= 2 * most or blocks > 0.85 * multiprocessors * (work.capacity // block)):
                    continue
                plan = ColumnPlan(block, lanes, width, rows_each, min_blocks, cluster, 1, strips)
                time = _time(work, m * n * itemsize, blocks * block, multiprocessors)
                best = min(
                    best or ((time + 1, 0, 0, 0), plan), ((time, block, -width, cluster), plan), key=lambda b: b[0]
                )
            groups = min(work.groups * multiprocessors * 256 // block // max(strips, 1), most)
            if groups > 1 and not last and block == 256:
                time = _LAUNCH + _time(work, m * n * itemsize, groups * strips * block, multiprocessors)
                plan = ColumnPlan(block, lanes, width, min(rows_each, 4), min_blocks, 1, groups, groups * strips)
                best = min(best or ((time + 1, 0, 0, 0), plan), ((time, block, -width, 1), plan), key=lambda b: b[0])
    assert best is not None
    return best[1]


def _width(n: int, lanes: int, itemsize: int, nbytes: int) -> int:
    """Threads side by side that read so many bytes of a row of n at once, or all of it."""
    width = 1
    while width * lanes < n and width * lanes * itemsize < nbytes:
        width *= 2
    return width


def _held(block: int, itemsize: int, gelu: bool) -> tuple[int, int]:
    """Rows of a thread on their way, and blocks that are to fit a multiprocessor."""
    if gelu:
        return (1, 4) if itemsize == 2 else (2, 3 if itemsize == 4 else 1)
    return 8, 1


def _time(work: _Work, nbytes: int, threads: int, multiprocessors: int) -> float:
    """Microseconds that so many threads take for a matrix of so many bytes."""
    busy = min(1.0, max(threads, 1) / (work.enough * multiprocessors))
    return work.passes * nbytes / (_BYTES * multiprocessors * busy)


@dataclass(frozen=True)
class NarrowPlan:
    """How a matrix is read that is multiplied by one of few rows: the macros of ``linear_narrow``.

    Attributes:
        few: rows of the other.
        lanes: elements of an access.
        rows_each: rows that a warp works on at once.
        split: warps on a row.
    """

    few: int
    lanes: int
    rows_each: int
    split: int

    @property
    def geometry(self) -> Rows:
        return Rows("R", NARROW_BLOCK, each=NARROW_BLOCK // 32 // self.split * self.rows_each)

    @property
    def constants(self) -> dict[str, int]:
        return {"FEW": self.few, "LANES": self.lanes, "ROWS_EACH": self.rows_each, "SPLIT": self.split}


NARROW_BLOCK = 128
MOST_FEW = 16
# Bytes of the other matrix below which a product is about a launch, and ours costs the host less.
LEAST_NARROW = 2**22
_MOST_SMALL_K = 1024  # as far as small products were measured
_NARROW_SINCE = 90  # where it was measured; elsewhere the library multiplies


@cache
def narrow_plan(
    few: int, rows: int, k: int, itemsize: int, capability: int, *, small: bool = False
) -> NarrowPlan | None:
    """The way to multiply a matrix (rows, k) by one of few rows, or None where the library is as fast.

    Measured on an H200, the time of PyTorch's linear over ours, for 4096 x 4096 and few rows of x, and for few rows of
    weight with 16384 x 768 and 16384 x 4096:

    ========  ================  ========================  ========================
    few       x, bfloat16       weight, bfloat16          float32: x; weight
    ========  ================  ========================  ========================
    1         1.15              1.19, 1.05                1.26; 1.22, 1.27
    2         1.13              1.81, 1.53                1.41; 2.21, 2.42
    4         1.07              1.26, 1.31                1.48; 2.14, 2.41
    8         0.72: library     library                   1.84
    ========  ================  ========================  ========================

    Small products, few rows of x and a square weight: microseconds of the GPU, PyTorch's and ours. On the host a call is
    11 to 14 and 8.

    ========  ======================  ======================  ======================  ==========================
    few       64                      256                     512                     1024
    ========  ======================  ======================  ======================  ==========================
    1         2.1, 1.7; bf16 2.5 1.7  2.5, 1.9; bf16 2.8 1.8  3.3, 2.0; bf16 3.3 2.0  3.0, 2.4; bf16 7.6 2.2
    4         2.1, 1.7; bf16 2.5 1.8  2.3, 2.0; bf16 2.8 1.9  3.2, 2.2; bf16 3.3 2.2  4.8, 2.9; bf16 7.6 2.7
    8         2.2, 1.8; bf16 2.4 1.8  2.9, 2.2; bf16 2.8 2.0  4.2, 2.6; bf16 3.3 2.4  6.8, 3.8; bf16 4.0 3.4
    16        2.2, 2.1; bf16 2.4 2.2  3.0, 2.4; bf16 2.9 2.4  4.3, 3.2; bf16 3.2 3.0  7.6, 5.4; bf16 3.9 5.0: library
    ========  ======================  ======================  ======================  ==========================

    Args:
        itemsize: of an element.
        capability: of the GPU.
        small: both matrices are, and the few rows are x's.
    """
    lanes = lanes_for(k, itemsize)
    if capability != _NARROW_SINCE or itemsize == 8 or lanes * itemsize < 16 or not 1 <= few <= MOST_FEW:
        return None
    if small:
        if k > _MOST_SMALL_K or (few > 8 and itemsize == 2 and rows * k > 2**18):
            return None
        return NarrowPlan(few, lanes, 2, 4) if rows * k >= 2**18 and few <= 8 else NarrowPlan(few, lanes, 1, 1)
    if few > 8:
        return None
    many = rows >= 8192
    if itemsize == 4:
        return NarrowPlan(few, lanes, 2, 1 if many else 2)
    if few <= 2:
        return NarrowPlan(few, lanes, 2, 1 if many else 4)
    if few <= 4:
        return NarrowPlan(few, lanes, 2, 1) if many else NarrowPlan(few, lanes, 4, 2)
    return None


@dataclass(frozen=True)
class MatrixPlan:
    """How ``hopper_linear`` shares out the memory of a block: the macros of its text.

    Attributes:
        stages: slices of 64 columns of x and W.
        pieces: of 64 x 64 elements of z and of y, for each of two groups of threads.
        pairs_m: pairs of tiles along M that are made one after the other.
    """

    stages: int
    pieces: int
    pairs_m: int

    @property
    def constants(self) -> dict[str, int]:
        return {"STAGES": self.stages, "PIECES": self.pieces, "PAIRS_M": self.pairs_m}

    @property
    def shared(self) -> int:
        """Bytes of a block; they begin at a multiple of 1024."""
        slices, pieces = self.stages * (TILE_M + TILE_N) * 64, 2 * self.pieces * 2 * 64 * 64
        return 1024 + 2 * (slices + pieces)


TILE_M, TILE_N = 128, 256
# Where many tiles have short products, there is more to gain in their ends.
SHORT, LONG = MatrixPlan(3, 2, 4), MatrixPlan(4, 1, 8)
MATRIX_UNITS = 90  # the one generation that has the instructions
LEAST_FOR_MATRIX_UNITS = 2**18  # elements of x, below which nobody looks further
# Of the products that clusters have time for, until the last is done, the part that is wanted.
LEAST_USE = 0.94


@cache
def matrix_plan(m: int, n: int, k: int, capability: int, multiprocessors: int) -> MatrixPlan | None:
    """The way to multiply and apply GELU in one kernel, or None where the library and a pass of GELU are as fast.

    Measured on an H200 in bfloat16, replayed from CUDA graphs, microseconds:

    ====================  ====================  ==========================  ==========
    M x N x K             PyTorch's two         the library, and our pass   one kernel
    ====================  ====================  ==========================  ==========
    16384 x 3072 x 768    182.6                 175.4                       158.0
    16384 x 768 x 3072    138.4                 130.4                       125.9
    4096 x 4096 x 4096    221.0                 211.6                       206.9
    8192 x 8192 x 8192    1707.6                1637.6: library             1657.6
    4096 x 4096 x 1536    102.4                 88.7                        88.8
    4096 x 3072 x 768     50.6                  45.7                        40.8
    1024 x 4096 x 1024    20.7                  18.5                        17.5
    65536 x 256 x 1024    93.2                  82.4                        73.0
    16384 x 4096 x 128    139.1                 116.2                       89.3
    16384 x 1000 x 1000   96.0                  86.2                        77.8
    4096 x 768 x 768      14.5                  13.4: library (use 0.73)    14.3
    2048 x 1024 x 1024    12.0                  11.2: library (0.48)        16.3
    65536 x 128 x 1024    62.1                  58.6: library (0.48)        87.1
    ====================  ====================  ==========================  ==========

    Args:
        m, n, k: of the product.
        capability, multiprocessors: of the GPU.
    """
    if capability != MATRIX_UNITS or not 128 <= k <= 4096 or not m * n:
        return None
    pairs = -(-m // (2 * TILE_M)) * -(-n // TILE_N)
    clusters = multiprocessors // 2
    rounds = -(-pairs // clusters)
    if m * n < LEAST_USE * rounds * clusters * 2 * TILE_M * TILE_N:
        return None
    return SHORT if k < 2048 <= n else LONG


def bias_gradient_pays(m: int, n: int) -> bool:
    """Whether summing the columns of grad_y (m, n) by our kernel saves more than a node of ours costs the host."""
    return m * n >= LEAST_GRADIENT


# Elements of grad_y. At 16384 x 768 in bfloat16 our sums save 18 µs of the GPU's time; a node in Python costs the host some
# 30 µs more than one of PyTorch's own.
LEAST_GRADIENT = 2**23
