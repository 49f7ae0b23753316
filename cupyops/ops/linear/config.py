"""Configs of the kernels of a linear layer: the tables of :func:`cupyops.linear` and :func:`cupyops.linear_gelu`.

The tables also hold the sizes from which the library's products are faster. All figures were measured on an H200.
"""

from dataclasses import dataclass
from functools import cache

from cupyops.launch.geometry import Rows
from cupyops.tiling.columns import Work
from cupyops.tiling.config import Config, vector_width_for

from .products import Apart

__all__ = ["FORMS", "GELU_SUMS", "NarrowConfig", "Sm90Config", "narrow_config", "sm90_config"]

FORMS = {"none": {}, "tanh": {"TANH": 1}}  # the macros of each form of GELU
# Measured properties of the kernel that computes GELU's gradient and its column sums, by bytes of an element. Measured
# like cupyops.tiling.columns.SUMS: the chosen config takes 2 to 5 % longer than the fastest config.
GELU_SUMS = {
    2: Work(enough=1024, capacity=1024, groups=4, passes=3, rows_each=1, min_blocks=4, blocks=(256,), widths=(256,)),
    4: Work(enough=768, capacity=768, groups=3, passes=3, rows_each=2, min_blocks=3, blocks=(256,), widths=(256,)),
    8: Work(enough=768, capacity=768, groups=3, passes=3, rows_each=2, min_blocks=1, blocks=(256,), widths=(256,)),
}


@dataclass(frozen=True)
class NarrowConfig(Config):
    """The macros of the kernel ``linear_narrow``, the product of a large matrix and a matrix with few rows.

    Attributes:
        few_is_x: the small matrix is x, not W.
        few: rows of the small matrix.
        vector_width: elements of an access.
        rows_each: rows of the large matrix that a warp works on at once.
        split: warps that share a row.
    """

    few_is_x: bool
    few: int
    vector_width: int
    rows_each: int
    split: int

    @property
    def geometry(self) -> Rows:
        return Rows("R", NARROW_BLOCK, each=NARROW_BLOCK // 32 // self.split * self.rows_each)


NARROW_BLOCK = 128
MOST_FEW = 16  # the most rows of the small matrix
# Bytes of the large matrix below which a product is small: the product takes about as long as an empty launch.
# linear_narrow then takes less of the host's time than the library.
LEAST_NARROW = 2**22
_MOST_SMALL_K = 1024  # the largest K of small products that was measured
# A row of a small product may have any number of bytes up to these sizes: rows of the small matrix, columns of x, and
# elements of the large matrix. Larger products need rows of a multiple of 16 bytes. Microseconds of linear_narrow and
# of the library: 1 x 1 x 2 1.5 and 4.7; 8 x 64 x 127 2.2 and 4.1; but 16 x 64 x 127 in bfloat16 3.0 and 2.7.
MOST_ODD_FEW, MOST_ODD_K, MOST_ODD = 8, 128, 2**14
_NARROW_SINCE = 90  # the compute capability of the measured GPU; on other GPUs the library computes all products
# By bytes of an element, lines of (most rows of the small matrix, upper bound of the rows of the large matrix, rows of
# a warp, warps of a row). The library computes the products that are in no line.
_ANY = 2**63
_NARROW_WAYS = {
    2: ((2, 8192, 2, 4), (4, 8192, 4, 2), (4, _ANY, 2, 1)),
    4: ((8, 8192, 2, 2), (8, _ANY, 2, 1)),
}
# The ranges of small products. Their second number is the most elements of the large matrix, not its most rows.
_SMALL_WAYS = {
    2: ((8, 2**18, 1, 1), (8, _ANY, 2, 4), (16, 2**18 + 1, 1, 1)),
    4: ((8, 2**18, 1, 1), (8, _ANY, 2, 4), (16, _ANY, 1, 1)),
}


@cache
def narrow_config(
    few_is_x: bool, few: int, rows: int, k: int, itemsize: int, capability: int, *, small: bool = False
) -> NarrowConfig | None:
    """Returns the config for the product of a matrix (rows, k) and a matrix (few, k), or None if the library is as
    fast.

    Speedup over PyTorch's linear on an H200. The large matrix is a weight of 4096 x 4096, or an x of 16384 x 768 and of
    16384 x 4096:

    ========  ================  ========================  ========================
    few       x, bfloat16       weight, bfloat16          float32: x; weight
    ========  ================  ========================  ========================
    1         1.15              1.19, 1.05                1.26; 1.22, 1.27
    2         1.13              1.81, 1.53                1.41; 2.21, 2.42
    4         1.07              1.26, 1.31                1.48; 2.14, 2.41
    8         0.72: library     library                   1.84
    ========  ================  ========================  ========================

    Small products of few rows of x and a square weight: microseconds on the GPU, PyTorch's linear and linear_narrow. On
    the host, a call takes 11 to 14 µs with PyTorch's linear and 8 µs with linear_narrow.

    ========  ======================  ======================  ======================  ==========================
    few       64                      256                     512                     1024
    ========  ======================  ======================  ======================  ==========================
    1         2.1, 1.7; bf16 2.5 1.7  2.5, 1.9; bf16 2.8 1.8  3.3, 2.0; bf16 3.3 2.0  3.0, 2.4; bf16 7.6 2.2
    4         2.1, 1.7; bf16 2.5 1.8  2.3, 2.0; bf16 2.8 1.9  3.2, 2.2; bf16 3.3 2.2  4.8, 2.9; bf16 7.6 2.7
    8         2.2, 1.8; bf16 2.4 1.8  2.9, 2.2; bf16 2.8 2.0  4.2, 2.6; bf16 3.3 2.4  6.8, 3.8; bf16 4.0 3.4
    16        2.2, 2.1; bf16 2.4 2.2  3.0, 2.4; bf16 2.9 2.4  4.3, 3.2; bf16 3.2 3.0  7.6, 5.4; bf16 3.9 5.0: library
    ========  ======================  ======================  ======================  ==========================

    Args:
        few_is_x: the matrix of few rows is x, not W.
        few: rows of the small matrix.
        rows: rows of the large matrix.
        k: columns of both matrices.
        itemsize: bytes of an element.
        capability: compute capability of the GPU, 90 for sm_90.
        small: the large matrix has fewer than ``LEAST_NARROW`` bytes, and the matrix of few rows is x.
    """
    vector_width = vector_width_for(k, itemsize)
    odd = small and few <= MOST_ODD_FEW and k <= MOST_ODD_K and rows * k <= MOST_ODD
    whole = vector_width * itemsize == 16 or odd
    known = capability == _NARROW_SINCE and whole and few >= 1 and not (small and k > _MOST_SMALL_K)
    ways, size = (_SMALL_WAYS, rows * k) if small else (_NARROW_WAYS, rows)
    for most_few, below, rows_each, split in ways.get(itemsize, ()) if known else ():
        if few <= most_few and size < below:
            return NarrowConfig(few_is_x, few, vector_width, rows_each, split)
    return None


@dataclass(frozen=True)
class Sm90Config(Config):
    """The macros of the kernel ``linear_gelu_sm90``, which divide a block's shared memory.

    Attributes:
        stages: slices of 64 columns of x and W that shared memory holds.
        pieces: pieces of 64 x 64 elements that shared memory holds of z and of y, for each of two groups of threads.
        pairs_m: pairs of tiles along M that are computed one after the other.
    """

    stages: int
    pieces: int
    pairs_m: int
    geometry = Rows("clusters", 384, blocks_per_row=2)

    @property
    def shared(self) -> int:  # type: ignore[override]
        """Bytes of dynamic shared memory of a block, with 1024 bytes for the alignment of the slices."""
        slices, pieces = self.stages * (TILE_M + TILE_N) * 64, 2 * self.pieces * 2 * 64 * 64
        return 1024 + 2 * (slices + pieces)


TILE_M, TILE_N = 128, 256
# With many tiles and a small K the epilogue dominates. SHORT has more shared memory for the epilogue, LONG for slices
# of x and W.
SHORT, LONG = Sm90Config(3, 2, 4), Sm90Config(4, 1, 8)
SM90 = 90  # the one compute capability with the instructions of the kernel
LEAST_LARGE = 2**18  # elements of x below which the kernel is not considered
# The least use of the GPU: the elements of the product, divided by the elements of all tiles in full rounds of
# clusters.
LEAST_USE = 0.94


@cache
def sm90_config(m: int, n: int, k: int, capability: int, multiprocessors: int) -> Sm90Config | None:
    """Returns the config of the kernel that computes the product and GELU, or None if two kernels are as fast.

    The table holds microseconds on an H200 in bfloat16, replayed from CUDA graphs. The columns are PyTorch's linear and
    gelu, the library's product followed by this project's GELU kernel, and the one kernel. "library" marks the products
    for which the function returns None. "use" is the quotient that ``LEAST_USE`` bounds:

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
        m, n, k: the sizes of the product (m, k)·(k, n).
        capability: compute capability of the GPU, 90 for sm_90.
        multiprocessors: multiprocessors of the GPU.
    """
    if capability != SM90 or not 128 <= k <= 4096 or not m * n:
        return None
    pairs = -(-m // (2 * TILE_M)) * -(-n // TILE_N)
    clusters = multiprocessors // 2
    rounds = -(-pairs // clusters)
    if m * n < LEAST_USE * rounds * clusters * 2 * TILE_M * TILE_N:
        return None
    return SHORT if k < 2048 <= n else LONG


# Products in float32 to which a separate pass adds the bias, by whether the library may multiply in TF32. For these
# products the library's kernel with the bias in the epilogue takes longer than a kernel without an epilogue and the
# pass. For some large products in TF32, the library has faster kernels without an epilogue. For small products without
# an epilogue, the library splits K among blocks. Microseconds of the product and GELU on an H200, with the bias in the
# pass and in the epilogue, M x N x K:
#
#   TF32      8192 x 4096 x 4096   896, 957     8192 x 8192 x 8192   3332, 3537    4096 x 4096 x 4096   392, 375
#             128 x 256 x 4096    12.1, 28.2    32 x 1024 x 8192     18.0, 31.7    64 x 4096 x 8192    48.4, 42.6
#   float32   16 x 4096 x 4096    51.2, 97.4    256 x 1024 x 1024    25.0, 34.8    64 x 256 x 8192     19.6, 51.7
#             128 x 1024 x 4096   39.7, 95.9    256 x 4096 x 4096     183, 234    2048 x 1024 x 4096   366, 364
APART = {
    False: (Apart(least_k=4096, least=2**13, most=2**20), Apart(least_k=1024, least=2**15, most=2**19)),
    True: (
        *(Apart(least_k=4096, least=2**25, most=2**63), Apart(least_k=8192, least=2**12, most=2**17)),
        Apart(least_k=4096, least=2**12, most=2**15),
    ),
}

HELD = {"ROWS_EACH": 2}  # rows that a thread has in flight in the pass that adds the bias and applies GELU

# Elements of grad_y (M, N) from which the column sums of this project save more time on the GPU than their autograd
# node in Python costs on the host. At 16384 x 768 in bfloat16, the column sums save 18 µs on the GPU. A node in Python
# costs the host some 30 µs more than PyTorch's node.
LEAST_GRADIENT = 2**23
# For 16-bit results of more elements than this, and fewer than LEAST_GRADIENT, linear_gelu records PyTorch's linear and
# gelu. The host takes longer than the GPU for these sizes. At 512 x 768 x 768 in bfloat16, the host takes 58 and 219 µs
# for forward and backward with the node of linear_gelu, and 61 and 100 µs with PyTorch's two nodes. Smaller products
# have kernels of this project, which take less of the host's time than the library's.
LEAST_RECORDED = 2**16
