"""Configs of layer normalisation by the length of a row, the dtype and the GPU: the limits of few rows, and the tables of the
forward. ``backward_tables.py`` has the tables of the backward.

The order of a row's sums is the same for any number of rows, so the number of rows does not change the bits of a row.
The tables hold the fastest configs on an H200, measured on 2^28 elements with rows of 64 to 262144 elements.
"""

from dataclasses import replace
from functools import cache

from cupyops.dtypes import DTYPES
from cupyops.launch.geometry import PORTABLE_CLUSTER
from cupyops.tiling.config import CLUSTERS_SINCE, vector_width_for
from cupyops.tiling.rows import RowsChoice, choice_of

from .backward_tables import backward_columns, backward_config, backward_rows
from .cut import APART, LayerNormConfig, even_cut, fitting, resident, uneven_cut

__all__ = ["LayerNormConfig", "backward_columns", "backward_config", "backward_rows", "forward_config"]

# The most rows, and the most elements of all rows, for which the configs for few rows are faster. Microseconds on an
# H200. Backward in bfloat16, one launch that reads the rows twice, and two launches: 64 x 4096 3.0, 8.0; 512 x 1024
# 3.9, 7.1; 2048 x 1024 9.2, 11.4; 4096 x 1024 15.8, 14.4. Forward, one row a block with the weights loaded along with
# the row, and the config for many rows: 1 x 8192 in float32 3.6, 6.3; 512 x 4096 in bfloat16 5.2, 5.9; 512 x 8192 8.8,
# 7.6.
FEW_BACKWARD, FEW_FORWARD = (2048, 2**22), (1024, 2**21)
# The cuts that even_cut tries, as (elements of an access, accesses of a thread), in the order of preference.
_EVEN_FORWARD = ((8, 3), (8, 4), (8, 5), (8, 6), (4, 9), (4, 11), (4, 13))

# The configs of forwards by the accesses of a row. The first lines have small blocks with one row or several, many of
# which fit a multiprocessor. The lines after them have larger blocks. In the last lines a cluster shares a row: a block
# holds up to 64 KiB of the row in registers, and the next `stages` rows and the weights in shared memory.
_FORWARD_16 = (
    *(
        RowsChoice(8, 2, 64, 16, rows_each=2, **APART),
        RowsChoice(16, 1, 64, 12, rows_each=4),
        RowsChoice(32, 1, 64, 16, rows_each=4),
    ),
    *(
        RowsChoice(48, 3, 64, 21, **APART),
        RowsChoice(64, 2, 64, 16, rows_each=2, **APART),
        RowsChoice(80, 5, 64, 16, **APART),
    ),
    *(
        RowsChoice(96, 3, 64, 21, **APART),
        RowsChoice(112, 7, 64, 12, **APART),
        RowsChoice(127, 2, 64, 12, rows_each=4, **APART),
    ),
    *(RowsChoice(128, 2, 64, 16, rows_each=2, **APART), RowsChoice(160, 5, 64, 16, **APART)),
    *(
        RowsChoice(192, 3, 64, 12, rows_each=2, **APART),
        RowsChoice(256, 4, 64, 16, **APART),
        RowsChoice(384, 4, 64, 12, **APART),
    ),
    *(
        RowsChoice(512, 4, 256, 5),
        RowsChoice(640, 4, 160, 8, **APART),
        RowsChoice(768, 4, 192, 6, **APART),
        RowsChoice(1024, 4, 256, 5),
    ),
    *(RowsChoice(1280, 4, 320, 4, **APART), RowsChoice(1536, 8, 256, 4), RowsChoice(2048, 6, 352, 3, **APART)),
    *(RowsChoice(2560, 8, 256, 3), RowsChoice(4096, 8, 256, 2)),
    *(RowsChoice(6144, 8, 1, 5, cluster=8, stages=1), RowsChoice(8192, 8, 1, 2, cluster=8, stages=3)),
    *(RowsChoice(16384, 8, 1, 2, cluster=8, stages=1), RowsChoice(32768, 8, 1, 1, cluster=8, stages=1)),
)
_FORWARD_32 = (
    *(
        RowsChoice(16, 1, 64, 12, rows_each=2),
        RowsChoice(32, 1, 64, 12, rows_each=2),
        RowsChoice(64, 2, 64, 12),
        RowsChoice(96, 3, 64, 12),
    ),
    *(RowsChoice(128, 2, 128, 6, **APART), RowsChoice(160, 5, 64, 16, **APART), RowsChoice(192, 3, 64, 12)),
    *(
        RowsChoice(224, 1, 224, 4, rows_each=4, **APART),
        RowsChoice(255, 2, 128, 16, **APART),
        RowsChoice(256, 2, 128, 10, **APART),
    ),
    *(
        RowsChoice(320, 2, 160, 12),
        RowsChoice(384, 2, 192, 5, **APART),
        RowsChoice(512, 4, 256, 3),
        RowsChoice(768, 3, 256, 5),
    ),
    *(
        RowsChoice(1024, 4, 256, 3),
        RowsChoice(1280, 4, 320, 3, **APART),
        RowsChoice(1536, 4, 384, 3),
        RowsChoice(2048, 4, 512, 3, **APART),
    ),
    *(
        RowsChoice(2560, 4, 640, 2),
        RowsChoice(3072, 3, 1024, 2, **APART),
        RowsChoice(4096, 8, 512),
        RowsChoice(5120, 10, 512, 2),
    ),
    *(RowsChoice(6144, 4, cluster=4, stages=3), RowsChoice(8192, 4, cluster=4, stages=2)),
    *(
        RowsChoice(16384, 4, cluster=8, stages=2),
        RowsChoice(32768, 8, cluster=8, stages=1),
        RowsChoice(65536, 8, cluster=16, stages=1),
    ),
)
# The configs of forwards of 16-bit rows that leave few registers: with a residual from _AHEAD_SINCE elements on, and with float32
# weights from _WIDER_SINCE accesses on. Registers keep the weight, and shared memory keeps the bias. Rows that are summed ahead
# have both in shared memory.
_FORWARD_ADDED = (
    *(RowsChoice(4096, 4, 1, 4, cluster=8, stages=4), RowsChoice(8192, 4, 1, 1, cluster=4, stages=4)),
    *(RowsChoice(16384, 4, cluster=8, stages=4), RowsChoice(32768, 4, cluster=16, stages=4)),
)
_FORWARD_WIDER = (
    *(RowsChoice(2560, 4, cluster=4, stages=1), RowsChoice(3584, 4, cluster=2, stages=2)),
    *(RowsChoice(4096, 4, cluster=2, stages=1), RowsChoice(8192, 4, cluster=4, stages=4)),
    *(RowsChoice(16384, 4, cluster=8, stages=4), RowsChoice(26624, 4, cluster=16, stages=4)),
    RowsChoice(32768, 8, cluster=16, stages=2),
)
_WIDER_SINCE = 2049  # accesses of the shortest row for _FORWARD_WIDER
# Elements of the shortest row whose persistent blocks sum their next row ahead. Measured on an H200, in percent of a
# copy's bandwidth, summed in turn and summed ahead: float32 262144 85.7, 92.5; float32 131072 92.8, 93.4.
# Blocks of 16-bit rows with float32 weights also sum their next row ahead up to _AHEAD_UP_TO elements.
_AHEAD_SINCE, _AHEAD_UP_TO = 65537, 32768
# 16-bit rows of more than 32768 and fewer than 65536 elements with weights of their own dtype have the threads of this line, and sum
# their next row ahead. Measured on an H200, in microseconds for 2^28 elements of bfloat16, before with clusters of 8 blocks, and
# now: 36864 327, 291; 40960 324, 286; 45056 288, 285; 49152 283, 283; 53248 412, 289; 57344 388, 313; 61440 360, 302.
_FORWARD_LONG, _LONG_SINCE = RowsChoice(8191, 8, cluster=4, stages=1), 4097
_SHORT_WIDER = 160  # accesses of the longest row without a residual that has a nearly even cut beside wider weights
# Accesses of the longest row with wider weights that has the blocks of rows with weights of their own dtype. Rows of
# more than the second number, up to _WIDER_SINCE, have accesses of half the width.
_NARROW_UP_TO, _NARROW_AGAIN = 1024, 1536
# The tables for rows of an element size in bytes, in the order in which they are tried. The second table is used if the
# config of the first table does not fit the GPU. The clusters of the second table hold the row in registers, prefetch
# no rows, and load the weights from memory. A float64 element takes two registers.
_FORWARD = {
    2: (_FORWARD_16, (RowsChoice(32768, 8, 1, 2, cluster=8), RowsChoice(65536, 16, cluster=8))),
    4: (_FORWARD_32, (RowsChoice(65536, 16, cluster=8),)),
    8: ((RowsChoice(64, 2, 128), RowsChoice(2048, 4, 128), RowsChoice(4096, 8, 512)),),
}


def _kept_forward(
    n: int, vector_width: int, input_bytes: int, weight_bytes: int, capability: int, most_blocks: int
) -> LayerNormConfig | None:
    """Returns the config of a forward of 16-bit rows by ``_FORWARD_ADDED`` or ``_FORWARD_WIDER``, or None if the GPU has no room
    for it. The arguments are those of :func:`forward_config`; a cluster has up to ``most_blocks`` blocks."""
    if capability < CLUSTERS_SINCE or vector_width < 8:
        return None
    residual = input_bytes > 2
    cut = choice_of(_FORWARD_ADDED if residual else _FORWARD_WIDER, n // vector_width)
    if cut is None or cut.cluster > most_blocks:
        return None
    config = LayerNormConfig.cut(n, vector_width, cut, kind="wide", pieces_apart=weight_bytes * vector_width > 16)
    if n >= _AHEAD_SINCE or (not residual and n <= _AHEAD_UP_TO):
        if cut.vectors == 8:  # 256 threads have registers for the weight beside both rows
            both = replace(config, sum_ahead=True, affine_registers=1)
            return both.staged(input_bytes, weight_bytes, capability)
        return _ahead_forward(config, input_bytes, weight_bytes, capability)
    return replace(config, affine_registers=1).staged(input_bytes, weight_bytes, capability)


def _ahead_forward(
    config: LayerNormConfig, input_bytes: int, weight_bytes: int, capability: int
) -> LayerNormConfig | None:
    """Returns the config with persistent blocks that sum their next row before they store this row, or None if the GPU has no
    room for it.

    Registers hold both rows, and shared memory keeps weight and bias. If shared memory has no room for both beside a stage,
    registers keep the weight instead of the next row.
    """
    ahead = replace(config, sum_ahead=True).staged(input_bytes, 2 * weight_bytes, capability)
    return ahead or replace(config, affine_registers=1).staged(input_bytes, weight_bytes, capability)


def _narrow_forward(n: int, vector_width: int, vectors: int, capability: int) -> LayerNormConfig:
    """Returns the config of a forward of 16-bit rows with float32 weights whose accesses have half the width of
    ``vector_width``, and whose blocks have two rows. ``vectors`` is the number of a thread's accesses if they have the
    whole width.

    The registers do not hold 8 elements of float32 weights beside the row. Accesses of half the width hold half of the
    weights at once, and use each weight for two rows.
    """
    config = LayerNormConfig.of(n, vector_width // 2, 2 * vectors, rows_each=2, aligned_apart=True)
    return replace(config, min_blocks=fitting(resident(64, config.block), config.block, capability))


def _uneven_forward(
    n: int, config: LayerNormConfig, wider: bool, residual: bool, capability: int, result_bytes: int
) -> LayerNormConfig | None:
    """Returns the config of a forward of 16-bit rows that leave accesses of ``config`` idle, or None if ``config`` should stay.

    A cut without idle accesses is used if there is one; beside wider weights, a short row may leave a twentieth of them idle.
    The arguments are those of :func:`forward_config`.
    """
    used = 0.95 if wider and not residual and n <= _SHORT_WIDER * config.vector_width else 1.0
    even = even_cut(n, _EVEN_FORWARD, config, 64, used=used, enough=used - 0.05, most_threads=128)
    if even is None:
        found = uneven_cut(
            n, config.vector_width, capability, wider=wider, wide_result=result_bytes > 2, residual=residual
        )
    else:
        # Beside its part of the row, in 32-bit registers, a thread has 30 registers, and 4 more for wider weights.
        registers = 30 + 4 * wider + even.vectors * even.vector_width // 2
        blocks = fitting(resident(registers, even.block), even.block, capability)
        found = replace(even, aligned_apart=True, min_blocks=blocks)
    if found is None or result_bytes <= 4:
        return found
    return replace(found, min_blocks=max(1, found.min_blocks * 3 // 4))  # a float64 result takes more registers


@cache
def forward_config(
    n: int, dtype: str, input_bytes: int, weight_bytes: int, capability: int, result_bytes: int, portable: bool = False
) -> LayerNormConfig:
    """Returns the config of a forward.

    Args:
        n: elements of a row.
        dtype: the dtype of x, or of the sum x + residual.
        input_bytes: bytes of an element of x, plus those of an element of the residual if there is one.
        weight_bytes: bytes of an element of weight or bias.
        capability: compute capability of the GPU, 90 for sm_90.
        result_bytes: bytes of an element of y.
        portable: considers only clusters of up to 8 blocks, which every GPU with clusters supports.
    """
    itemsize = DTYPES[dtype].itemsize
    vector_width = vector_width_for(n, itemsize)
    most_blocks = (
        1 if capability < CLUSTERS_SINCE or vector_width * itemsize < 16 else PORTABLE_CLUSTER if portable else 16
    )
    wider, residual = weight_bytes > itemsize, input_bytes > itemsize
    if (wider and n // vector_width >= _WIDER_SINCE) or (residual and n >= _AHEAD_SINCE):
        kept = _kept_forward(n, vector_width, input_bytes, weight_bytes, capability, most_blocks)
        if kept is not None:
            return kept
    if not (wider or residual) and vector_width == 8 and _LONG_SINCE <= n // vector_width <= _FORWARD_LONG.most:
        config = LayerNormConfig.cut(n, vector_width, _FORWARD_LONG, kind="wide")
        long = _ahead_forward(config, input_bytes, weight_bytes, capability) if most_blocks > 1 else None
        if long is not None:
            return long
    if wider and vector_width == 8 and _NARROW_AGAIN < n // vector_width < _WIDER_SINCE:
        return _narrow_forward(n, vector_width, 4, capability)
    for table in _FORWARD[itemsize]:
        cut = choice_of(table, n // vector_width)
        if cut is None or cut.cluster > most_blocks:
            continue
        config = LayerNormConfig.cut(n, vector_width, cut)
        if cut.stages:
            if itemsize == 4 and n >= _AHEAD_SINCE:
                staged = _ahead_forward(config, input_bytes, weight_bytes, capability)
            else:
                staged = config.staged(input_bytes, 2 * weight_bytes, capability)
            if staged is None:
                continue
            return replace(staged, kind="wide", min_blocks=1 if wider else staged.min_blocks)
        if vector_width == 8 and cut.cluster == 1 and not config.full:
            uneven = _uneven_forward(n, config, wider, residual, capability, result_bytes)
            if uneven is not None:
                return uneven
        if wider and cut.cluster == 1 and n // vector_width <= _NARROW_UP_TO:
            if vector_width == 8 and cut.vectors > 2 and not cut.aligned_apart:
                return _narrow_forward(n, vector_width, cut.vectors, capability)
            wider = False  # the registers hold the weights of an access
        # Weights wider than the row take more registers. A float64 result of a 16-bit row takes more registers if one
        # block holds the row.
        wider = wider or (cut.cluster == 1 and result_bytes > 2 * itemsize)
        wanted = cut.min_blocks * 3 // 4 if wider else cut.min_blocks
        # The registers of three blocks of 512 threads hold no second array and no wider result, and on other GPUs no bounds. float32
        # rows of 7000, 7400 and 8000 elements, 512 MiB of each, took 260, 262 and 276 µs on an H200 with three, and 285, 281 and 273
        # with two.
        if cut.block >= 512 and (residual or result_bytes > itemsize or not (config.full or capability == 90)):
            wanted = min(wanted, 2)
        # In float32, the path for aligned rows with accesses beyond the end takes longer: rows of 4544 and 6400 elements
        # reached 90 and 73 percent of a copy's bandwidth, and 98 and 98 percent without it.
        apart = config.aligned_apart and (config.full or residual or itemsize != 4)
        return replace(config, aligned_apart=apart, min_blocks=fitting(wanted, config.block, capability))
    return LayerNormConfig(512, 512, vector_width, 4, kind="streaming")
