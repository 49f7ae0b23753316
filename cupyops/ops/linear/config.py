"""How the kernels of a linear layer are cut, and where the library takes over: the tables behind :mod:`cupyops.linear`
and :mod:`cupyops.linear_gelu`, measured on an H200."""

from dataclasses import dataclass
from functools import cache

from cupyops.launch.geometry import Rows
from cupyops.tiling.columns import Work
from cupyops.tiling.config import Config, vector_width_for

from .products import Apart

__all__ = ["FORMS", "GELU_SUMS", "NarrowConfig", "Sm90Config", "narrow_config", "sm90_config"]

FORMS = {"none": {}, "tanh": {"TANH": 1}}  # of GELU, as macros
# GELU's gradient with the sums of its columns, by bytes of an element; measured as cupyops.tiling.columns.SUMS: 2 to 5 % behind the
# best of all ways.
GELU_SUMS = {
    2: Work(enough=1024, capacity=1024, groups=4, passes=3, rows_each=1, min_blocks=4, blocks=(256,), widths=(256,)),
    4: Work(enough=768, capacity=768, groups=3, passes=3, rows_each=2, min_blocks=3, blocks=(256,), widths=(256,)),
    8: Work(enough=768, capacity=768, groups=3, passes=3, rows_each=2, min_blocks=1, blocks=(256,), widths=(256,)),
}


@dataclass(frozen=True)
class NarrowConfig(Config):
    """The macros of ``linear_narrow``, the product of a large matrix and a matrix of few rows.

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
MOST_FEW = 16
# Bytes of the large matrix below which a product takes about as long as its launch; the launch of ours costs the host less.
LEAST_NARROW = 2**22
_MOST_SMALL_K = 1024  # as far as small products were measured
# The few rows, the columns of x and the elements of the large matrix up to which rows of a small product may be no multiple of
# 16 bytes. Measured on an H200, in microseconds, ours and the library's: 1 x 1 x 2 1.5 and 4.7; 8 x 64 x 127 2.2 and 4.1; but
# 16 x 64 x 127 in bfloat16 3.0 and 2.7.
MOST_ODD_FEW, MOST_ODD_K, MOST_ODD = 8, 128, 2**14
_NARROW_SINCE = 90  # the compute capability on which it was measured; on others the library multiplies
# By bytes of an element, lines of (most few rows, below so many rows of the large matrix, rows of a warp, warps of a row). A
# product that is in no line is the library's.
_ANY = 2**63
_NARROW_WAYS = {
    2: ((2, 8192, 2, 4), (4, 8192, 4, 2), (4, _ANY, 2, 1)),
    4: ((8, 8192, 2, 2), (8, _ANY, 2, 1)),
}
# The same for small products, with elements of the large matrix in place of its rows.
_SMALL_WAYS = {
    2: ((8, 2**18, 1, 1), (8, _ANY, 2, 4), (16, 2**18 + 1, 1, 1)),
    4: ((8, 2**18, 1, 1), (8, _ANY, 2, 4), (16, _ANY, 1, 1)),
}


@cache
def narrow_config(
    few_is_x: bool, few: int, rows: int, k: int, itemsize: int, capability: int, *, small: bool = False
) -> NarrowConfig | None:
    """The macros with which a matrix (rows, k) is multiplied by a matrix of few rows, or None where the library is as fast.

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
        few_is_x: the matrix of few rows is x, not W.
        itemsize: of an element.
        capability: of the GPU.
        small: both matrices are small, and the matrix of few rows is x.
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
    """The macros of ``linear_gelu_sm90``, which share out the memory of a block.

    Attributes:
        stages: slices of 64 columns of x and W that a block has room for.
        pieces: pieces of 64 x 64 elements of z and of y, for each of two groups of threads.
        pairs_m: pairs of tiles along M that are made one after the other.
    """

    stages: int
    pieces: int
    pairs_m: int
    geometry = Rows("clusters", 384, blocks_per_row=2)

    @property
    def shared(self) -> int:  # type: ignore[override]
        """Bytes of dynamic shared memory of a block, with 1024 bytes to align the slices."""
        slices, pieces = self.stages * (TILE_M + TILE_N) * 64, 2 * self.pieces * 2 * 64 * 64
        return 1024 + 2 * (slices + pieces)


TILE_M, TILE_N = 128, 256
# With many tiles and a small K the epilogue dominates: SHORT has more room for the epilogue, LONG for slices.
SHORT, LONG = Sm90Config(3, 2, 4), Sm90Config(4, 1, 8)
SM90 = 90  # the one compute capability that has the instructions
LEAST_LARGE = 2**18  # elements of x below which the kernel is not considered
# The least part of the tiles of all rounds of clusters that belongs to the matrix.
LEAST_USE = 0.94


@cache
def sm90_config(m: int, n: int, k: int, capability: int, multiprocessors: int) -> Sm90Config | None:
    """The macros with which one kernel multiplies and applies GELU, or None where the library and a pass of GELU are as fast.

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
    if capability != SM90 or not 128 <= k <= 4096 or not m * n:
        return None
    pairs = -(-m // (2 * TILE_M)) * -(-n // TILE_N)
    clusters = multiprocessors // 2
    rounds = -(-pairs // clusters)
    if m * n < LEAST_USE * rounds * clusters * 2 * TILE_M * TILE_N:
        return None
    return SHORT if k < 2048 <= n else LONG


# Products in float32 to which a pass adds the bias, by whether the library may multiply in TF32: with a bias in the epilogue the
# library takes longer than its product without a bias and the pass. The library has faster kernels without an epilogue for some
# large products in TF32, and shares K among blocks for small products without an epilogue. Microseconds on an H200 with GELU
# behind the product, the bias in the pass and in the epilogue, M x N x K:
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
HELD = {"ROWS_EACH": 2}  # rows that a thread of that pass has in flight

# Elements of grad_y (M, N) from which our sums of its columns save more time on the GPU than an autograd node in Python costs the
# host. At 16384 x 768 in bfloat16 they save 18 µs on the GPU; a node in Python costs the host some 30 µs more than PyTorch's own.
LEAST_GRADIENT = 2**23
