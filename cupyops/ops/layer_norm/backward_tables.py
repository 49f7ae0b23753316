"""Configs of the backward of layer normalisation by the length of a row, the dtypes and the GPU.

As in ``config.py``, the number of rows does not change the order of a row's sums, and the tables hold the fastest configs
on an H200.
"""

from dataclasses import replace
from functools import cache

from cupyops.dtypes import DTYPES
from cupyops.launch.geometry import PORTABLE_CLUSTER
from cupyops.tiling.config import CLUSTERS_SINCE, threads_for, vector_width_for
from cupyops.tiling.rows import SHARED_MEMORY_OF, RowsChoice, choice_of

from .cut import APART, LayerNormConfig, even_cut, resident

__all__ = ["backward_columns", "backward_config", "backward_rows"]

_EVEN_BACKWARD, _EVEN_SUM = ((4, 5), (4, 4), (4, 3)), ((4, 4), (4, 3), (4, 5))  # as _EVEN_FORWARD in config.py
# The configs of backwards of 16-bit rows, by the accesses of a row, of 4 elements each. A line with clusters is
# followed by a line without clusters for the same rows, for GPUs without clusters.
_BACKWARD_16 = (
    *(
        RowsChoice(64, 2, 256, 4),
        RowsChoice(128, 4, 256, 2),
        RowsChoice(191, 3, 128, 5),
        RowsChoice(192, 3, 256, 3),
        RowsChoice(256, 4, 128, 4),
    ),
    *(
        RowsChoice(384, 4, 128, 4),
        RowsChoice(448, 2, 224, 4),
        RowsChoice(512, 4, 128, 4),
        RowsChoice(1024, 4, 128, 4, cluster=2),
        RowsChoice(1024, 4, 256, 2),
        RowsChoice(1280, 5, 256, 2),
    ),
    *(RowsChoice(2048, 4, 256, 2, cluster=2), RowsChoice(2048, 4, 512, 1)),
    *(
        RowsChoice(4096, 4, 128, 5, cluster=8, **APART),
        RowsChoice(8192, 4, 256, 2, cluster=8),
        RowsChoice(16384, 4, 512, 1, cluster=8),
        RowsChoice(32768, 4, 512, 1, cluster=16),
    ),
)
# Accesses of the longest 16-bit row that always has the cut of its table, and the resident threads of longer rows.
_LONG_16, _LONG_THREADS = 1024, 512
# Weights in the count of rows: of rows whose threads have a fifth access, which leaves fewer other registers, and of rows of
# clusters of 16 blocks. Without the second weight, rows of 28672 elements had such clusters and took 467 µs in place of 453.
_FIFTH, _LARGE_CLUSTER = 0.9, 0.85
# The configs of backwards of float32 rows of which two fit a multiprocessor, and of rows that are too long for one block. The
# rows between keep an access of each thread, or two. Measured on an H200, in percent of a copy's bandwidth, an access of each
# thread, three, and three in persistent blocks with stages: 2304 elements 82, 98, 92; 2560 84, 98, 99; 3072 89, 94, 98. With
# grad_sum, three accesses without stages are faster: 2560 95, 100, 95.
_BACKWARD_32 = (
    *(RowsChoice(576, 3, 1, 2), RowsChoice(768, 3, 1, 2, stages=3)),
    *(RowsChoice(2048, 2, 1, 4, cluster=8, stages=3), RowsChoice(4096, 6, 1, 2, cluster=4, stages=3)),
    *(RowsChoice(8192, 5, 1, 2, cluster=8, stages=3), RowsChoice(16384, 4, 1, 1, cluster=8, stages=2)),
)
# Accesses of the rows with the first two lines, and of the shortest row with the others.
_PAIRED, _LONG_32 = range(513, 769), 1281


# Backwards of longer rows have a ring. A ring that has room for two rows holds whole rows. Measured on an H200: a ring is faster
# than rows in stages. A ring of three rows in a cluster of 8 blocks is faster than the registers of a cluster of 16, and slower with
# grad_sum. A ring of two rows is slower than these registers. With grad_sum, float32 rows are faster in a cluster of 16 whose ring
# holds three rows.
_RING_THREADS, _RING_COLUMNS = 512, 32  # the most threads of a block, and the columns of a thread
_RING_FULL = 384  # the most threads that have registers for all accesses to 16-bit rows at once
_RING_MEMORY = 227 * 1024  # bytes of shared memory of a block on sm_90
# Accesses of the longest 16-bit row that a cluster of 8 blocks holds in registers.
_HELD_BY_8 = max(c.most for c in _BACKWARD_16 if c.cluster <= PORTABLE_CLUSTER)


def _ring_backward(
    n: int, itemsize: int, weight_bytes: int, grad_bytes: int, capability: int, most_blocks: int, grad_sum: bool
) -> LayerNormConfig | None:
    """Returns the config of a backward with a ring, or None if no cluster holds the row, or the GPU has no room for it.

    A thread's registers hold the sums of 32 columns, and few other values. Shared memory keeps the weight, except for one
    access of a thread if the weight has the row's dtype. The remaining memory is the ring. A ring that holds two rows holds whole
    rows, and the next row is summed ahead. The cluster is the smallest, with grad_sum the smallest whose ring holds three
    rows, if there is one. The arguments are those of :func:`backward_config`; a cluster has up to ``most_blocks`` blocks.
    """
    vector_width = vector_width_for(n, itemsize)
    vectors = _RING_COLUMNS // vector_width
    if vector_width * itemsize < 16 or grad_bytes > itemsize:
        return None
    weight_bytes = weight_bytes or itemsize  # without a weight, the kernel stores ones in its place
    wider = weight_bytes > itemsize
    found = []
    for cluster in (c for c in (PORTABLE_CLUSTER, 16) if c <= most_blocks and n <= c * _RING_THREADS * _RING_COLUMNS):
        config = LayerNormConfig.of(n, vector_width, vectors, cluster=cluster, kind="ring", weight_shared=True)
        # Bounds checks keep the compiler from loading all accesses to 16-bit rows at once, for which registers would run short.
        full = config.full and (itemsize == 4 or (not wider and config.block <= _RING_FULL))
        config = replace(config, full=full, weight_registers=1 - wider, pieces_apart=wider)
        access, warps = config.row_threads * vector_width, config.row_threads // 32  # elements of an access of a block
        piece, kept = access * (itemsize + grad_bytes), access * weight_bytes * (vectors - config.weight_registers)
        # The static shared memory has four tables with two sums of each warp of the cluster, their counters, and a counter of each
        # warp for each piece.
        room = SHARED_MEMORY_OF.get(capability, _RING_MEMORY) - kept - 4 * (8 * cluster * warps + 8)
        ring = min(room // (piece + 8 * warps), 4 * vectors)
        ahead = ring >= 2 * vectors
        ring -= ring % vectors if ahead else 0
        if ring >= vectors:
            found.append(replace(config, ring=ring, sum_ahead=ahead, shared=ring * piece + kept))
    three = [c for c in found if c.ring >= 3 * vectors] if grad_sum else []
    return next(iter(three or found), None)


def _long_cut(n: int, now: LayerNormConfig, grad_sum: bool, most_blocks: int) -> LayerNormConfig:
    """Returns the cut of a long 16-bit row by which a multiprocessor holds the most rows, or ``now`` if no other holds more.

    A multiprocessor holds the registers of 512 threads, with 4 or 5 accesses of a thread to a row. The more rows it holds, the
    more loads are in flight. Measured on an H200 in bfloat16, in percent of a copy's bandwidth, by the tables and by this
    function: 6144 elements 84, 94; 9216 73, 93; 40960 72, 93.

    Args:
        n: elements of a row.
        now: the config that a table gives.
        grad_sum: a thread holds the elements of ``grad_sum``, too. Five accesses would take too many registers.
        most_blocks: the most blocks of a cluster.
    """
    clusters = [c for c in (2, 4, 8, 16) if c <= most_blocks]
    cuts = [LayerNormConfig.of(n, 4, v, cluster=c) for v in ((4,) if grad_sum else (4, 5)) for c in clusters]
    cuts = [replace(c, min_blocks=_LONG_THREADS // c.block) for c in cuts if c.block <= _LONG_THREADS]

    def held(cut: LayerNormConfig) -> tuple[float, bool]:
        rows = min(cut.min_blocks, _LONG_THREADS // cut.block) / cut.cluster
        worth = (1 if cut.vectors == 4 else _FIFTH) * (1 if cut.cluster <= PORTABLE_CLUSTER else _LARGE_CLUSTER)
        return rows * worth, cut.full

    best = max(cuts, key=held, default=now)
    return best if held(best) > held(now) else now


@cache
def backward_config(
    n: int,
    dtype: str,
    weight_bytes: int,
    capability: int,
    grad_bytes: int = 0,
    *,
    grad_sum: bool = False,
    portable: bool = False,
) -> LayerNormConfig:
    """Returns the config of a backward that computes the gradients of x, weight and bias.

    A thread has up to 20 columns of 16-bit rows, or 4 columns of float32 rows: the thread's registers hold two rows and
    the sums for weight and bias of these columns. A weight or a grad_y wider than x takes more registers, so fewer
    threads are resident on a multiprocessor. The strategies ``"wide"`` and ``"ring"`` have no room in shared memory for a
    grad_y wider than x.

    Args:
        n, dtype, capability: as for :func:`forward_config`.
        weight_bytes: bytes of an element of weight; 0 without a weight.
        grad_bytes: bytes of an element of grad_y; by default those of an element of x.
        grad_sum: a thread holds the elements of ``grad_sum`` beside those of its row.
        portable: as for :func:`forward_config`.
    """
    itemsize = DTYPES[dtype].itemsize
    grad_bytes = grad_bytes or itemsize
    widest = max(weight_bytes, grad_bytes)
    vector_width = min(vector_width_for(n, itemsize), 4)
    accesses = n // vector_width
    # Rows with 4 elements an access have many threads, each with one access. float64 needs more registers a thread.
    few = vector_width == 4 and itemsize < 8
    streaming = (
        LayerNormConfig(1024, 1024, vector_width, 1, kind="streaming")
        if few
        else LayerNormConfig(512, 512, vector_width, 2, kind="streaming")
    )
    most_blocks = 8 if capability >= CLUSTERS_SINCE and vector_width * itemsize >= 8 else 1
    # A cluster of 16 blocks holds 16-bit rows of up to 131072 elements in registers.
    largest = 16 if most_blocks > 1 and itemsize == 2 and not portable else most_blocks
    held = max(c.most for c in _BACKWARD_16 if c.cluster <= max(largest, PORTABLE_CLUSTER))
    if few and most_blocks > 1 and accesses > _HELD_BY_8:
        ring = _ring_backward(n, itemsize, weight_bytes, grad_bytes, capability, 8 if portable else 16, grad_sum)
        # Where a cluster of 16 blocks holds the row in registers, a ring is faster only if it holds three rows, without grad_sum.
        if ring is not None and (accesses > held or not (grad_sum or ring.ring < 3 * ring.vectors)):
            return ring
    if itemsize == 2 and vector_width == 4:
        wide_grad = grad_bytes > itemsize
        cuts = [c for c in _BACKWARD_16 if c.cluster <= largest and not (grad_sum and c.vectors > 4)]
        cut = choice_of(cuts, accesses)
        if cut is None or (accesses > 8192 and widest == 8) or (accesses > 16384 and wide_grad):
            return streaming
        config, blocks = LayerNormConfig.cut(n, vector_width, cut), cut.min_blocks
        evenly = _EVEN_SUM[: 2 if wide_grad else 3] if grad_sum else _EVEN_BACKWARD
        even = even_cut(n, evenly, config, 128, used=0.9, enough=0.9, most_threads=192)
        if even is not None:
            # The compiler needs 88 registers for 3 accesses of a thread, and 128 for 5. Each quarter of a multiprocessor
            # has its own registers, so it holds a whole number of warps. Rows without bounds checks
            # are an exception: 7 blocks of 96 threads spill 8 bytes, and take 390 µs for rows of 1152 elements. 6 blocks take 411 µs.
            config, registers = even, 28 + 20 * even.vectors
            warps = 4 * resident(registers, 4 * 32)
            blocks = resident(registers, even.block) if even.full else max(1, warps * 32 // even.block)
        elif most_blocks > 1 and accesses > _LONG_16 and not wide_grad:
            config = _long_cut(n, replace(config, min_blocks=blocks), grad_sum, largest)
            blocks = config.min_blocks
        if grad_sum:
            # Accesses of 16 bytes need half as many bounds checks.
            if config.vectors == 4 and not (config.full or wide_grad or n % 8):
                config = replace(config, vector_width=8, vectors=2)
            # The elements of grad_sum take as many registers as the row.
            columns = config.vectors * config.vector_width
            blocks = max(1, (896 if columns <= 8 else 1024 - 32 * columns) // config.block)
        if wide_grad:
            return replace(config, min_blocks=max(1, blocks * 3 // 4 if widest == 4 else blocks // 2))
        # float32 weights take the registers that rows of their own dtype leave free. If too few registers are left,
        # shared memory keeps the weights. The compiler needed 80 registers for 12 columns of a thread, and 128 for
        # 16 and for 20 columns.
        columns, registers = config.vectors * config.vector_width, 65536 // (blocks * config.block)
        shared = weight_bytes > itemsize and not grad_sum and registers < 6 * columns + 8
        return replace(config, min_blocks=blocks, weight_shared=shared)
    full = itemsize == 4 and vector_width == 4
    cut = choice_of(_BACKWARD_32, accesses) if full and most_blocks > 1 and grad_bytes <= itemsize else None
    if cut is not None and (accesses in _PAIRED or accesses >= _LONG_32):
        if grad_sum and accesses in _PAIRED:
            cut = cut._replace(stages=0)
        config = LayerNormConfig.cut(n, vector_width, cut, kind="wide" if cut.stages else "registers")
        return replace(config, shared=config.stages * config.slice * (itemsize + grad_bytes))
    vectors = 2 if full and 1024 < accesses <= 1280 else max(1, {2: 8, 4: 4, 8: 2}[itemsize] // vector_width)
    wider = grad_bytes > (itemsize if grad_sum else 2 * itemsize)
    at_once = 1024 if widest <= itemsize and vector_width * itemsize >= 8 else 512 if wider else 768
    for cluster in (c for c in (1, 2, 4, 8) if c <= most_blocks):
        block = 256 if accesses <= 96 * vectors * cluster else 1
        config = LayerNormConfig.of(n, vector_width, vectors, block=block, cluster=cluster)
        if config.row_threads <= (at_once if itemsize < 8 else 512):
            return replace(config, min_blocks=max(1, at_once // config.block) if itemsize < 8 else 1)
    return streaming


# The configs of backwards that compute the gradient of x alone, by the accesses of a row, of up to 16 bytes each. The
# blocks are not persistent: each group of threads takes one row.
_BACKWARD_ROWS = (
    *(
        RowsChoice(16, 2, 128, 8),
        RowsChoice(32, 2, 128, 8),
        RowsChoice(64, 2, 128, 8),
        RowsChoice(96, 3, 128, 8),
        RowsChoice(128, 4, 128, 8),
    ),
    *(
        RowsChoice(160, 5, 128, 6),
        RowsChoice(192, 3, 128, 8),
        RowsChoice(256, 4, 128, 8),
        RowsChoice(384, 3, 128, 8),
        RowsChoice(512, 4, 128, 8),
    ),
    *(
        RowsChoice(768, 3, 256, 4),
        RowsChoice(1024, 4, 256, 4),
        RowsChoice(2048, 4, 512, 2),
        RowsChoice(4096, 4, 1024, 1),
    ),
    *(
        RowsChoice(8192, 4, 1, 2, cluster=4),
        RowsChoice(16384, 4, 1, 2, cluster=8),
        RowsChoice(32768, 4, 1, 1, cluster=8),
    ),
)


@cache
def backward_rows(
    n: int, dtype: str, weight_bytes: int, capability: int, grad_bytes: int = 0, *, grad_sum: bool = False
) -> LayerNormConfig:
    """Returns the config of a backward that computes the gradient of x alone.

    No thread keeps sums of columns, so the accesses are as wide as the row allows and the blocks are not persistent.

    Args:
        n, dtype, weight_bytes, capability, grad_bytes, grad_sum: as for :func:`backward_config`.
    """
    itemsize, weighted = DTYPES[dtype].itemsize, weight_bytes > 0
    # A weight or a grad_y wider than x, and float64, take more registers an access.
    heavy = itemsize == 8 or max(weight_bytes, grad_bytes) > itemsize
    vector_width = vector_width_for(n, itemsize)
    most_blocks = PORTABLE_CLUSTER if capability >= CLUSTERS_SINCE else 1
    full_blocks = not (heavy or grad_sum or weighted)
    fitting = [c for c in _BACKWARD_ROWS if c.cluster <= most_blocks and (full_blocks or c.block < 1024)]
    cut = choice_of(fitting, n // vector_width * (2 if heavy else 1))
    if cut is None:
        return backward_config(n, dtype, weight_bytes, capability, grad_bytes, grad_sum=grad_sum)
    config = LayerNormConfig.cut(n, vector_width, cut, kind="apart", weighted=weighted)
    fit = cut.min_blocks if cut.cluster > 1 else cut.min_blocks * cut.block // config.block
    return replace(config, min_blocks=max(1, fit * (8 - 2 * grad_sum - 3 * weighted) // (16 if heavy else 8)))


@cache
def backward_columns(n: int, dtype: str) -> LayerNormConfig:
    """Returns the config of a backward that computes the gradients of weight and bias alone, on independent slices of
    rows."""
    itemsize = DTYPES[dtype].itemsize
    vector_width = vector_width_for(n, itemsize)
    vectors = max(1, 4 // vector_width) if itemsize < 8 else 1
    most = 128 if vector_width == 8 else 64
    threads = min(threads_for(n // vector_width, vectors), most)
    return LayerNormConfig(4 * most // threads * threads, threads, vector_width, vectors)
