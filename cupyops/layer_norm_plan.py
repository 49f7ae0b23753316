"""Which way a row is normalised, by its length, dtype and the GPU's generation: the tables behind :mod:`cupyops.layer_norm`.

A row's way never depends on how many rows there are, so neither do its bits. The tables were made on an H200, by timing
on 2^28 elements how rows of 64 to 262144 may be cut.
"""

from dataclasses import dataclass, replace
from functools import cache

from .dtypes import DTYPES
from .geometry import PORTABLE_CLUSTER, Rows

__all__ = ["Plan", "backward_columns", "backward_plan", "forward_plan"]

CLUSTERS_SINCE = 90  # compute capability that has clusters of blocks and bulk copies
SHARED_MEMORY = 200 * 1024  # bytes of a multiprocessor's shared memory that stages may fill, of 227 KiB on sm_90
SHARED_MEMORY_OF = {120: 84 * 1024, 121: 84 * 1024}  # of generations that have less
MOST_THREADS = 1024
# Of a multiprocessor, by compute capability, where not 2048.
THREADS_AT_ONCE = {75: 1024, 86: 1536, 87: 1536, 88: 1536, 89: 1536, 110: 1536, 120: 1536, 121: 1536}


@dataclass(frozen=True)
class Plan:
    """One way.

    Attributes:
        kind: ``"registers"``, ``"wide"`` or ``"streaming"``: the kernel's name begins so, see the texts.
        block: threads of a block.
        row_threads: threads of a block on one row.
        lanes: elements of an access.
        vectors: accesses of a thread to a row.
        rows_each: rows that a group of threads takes at once.
        cluster: blocks on one row.
        min_blocks: blocks that are to fit a multiprocessor, which bounds the registers.
        stages: rows on their way, for ``"wide"``.
        affine_shared: weight and bias stay in shared memory, for ``"wide"``.
        full: a row fills every access of its threads.
        shared: bytes of dynamic shared memory.
    """

    kind: str
    block: int
    row_threads: int
    lanes: int
    vectors: int
    rows_each: int = 1
    cluster: int = 1
    min_blocks: int = 1
    stages: int = 0
    affine_shared: bool = False
    full: bool = False
    shared: int = 0

    @property
    def slice(self) -> int:
        """Elements of a row that a block holds at once."""
        return self.row_threads * self.vectors * self.lanes

    @property
    def groups(self) -> int:
        """Rows that a block works on at once, apart from ``rows_each``."""
        return self.block // self.row_threads

    @property
    def constants(self) -> dict[str, int]:
        """Macros of the text, those that are not 1 or 0 anyway."""
        named = {
            "ROW_THREADS": self.row_threads,
            "LANES": self.lanes,
            "VECTORS": self.vectors,
            "ROWS_EACH": self.rows_each,
            "MIN_BLOCKS": self.min_blocks,
            "STAGES": self.stages,
            "AFFINE_SHARED": int(self.affine_shared),
            "FULL": int(self.full),
        }
        plain = {"ROWS_EACH": 1, "MIN_BLOCKS": 1, "STAGES": 0, "AFFINE_SHARED": 0, "FULL": 0}
        return {name: value for name, value in named.items() if plain.get(name) != value}

    def rows(self, size: str) -> Rows:
        """The geometry of one group a row, ``size`` counting the rows."""
        return Rows(size, self.block, each=self.groups * self.rows_each, blocks_per_row=self.cluster)

    def stay(self, size: str) -> Rows:
        """The geometry of blocks that stay, ``size`` counting blocks or clusters of them."""
        return Rows(size, self.block, blocks_per_row=self.cluster)

    @property
    def since(self) -> int:
        """The compute capability that it needs."""
        return CLUSTERS_SINCE if self.cluster > 1 or self.kind == "wide" else 0


def lanes_for(n: int, itemsize: int) -> int:
    """Elements of the widest access that divides a row, up to 16 bytes."""
    lanes = 16 // itemsize
    while n % lanes:
        lanes //= 2
    return lanes


def threads_for(accesses: int, vectors: int) -> int:
    """Threads that make so many accesses at so many each: a power of 2, or whole warps."""
    threads = -(-accesses // vectors)
    return max(4, 1 << (threads - 1).bit_length()) if threads <= 32 else -(-threads // 32) * 32


# Rows of at most so many accesses: accesses a thread, rows at once, threads of a block (at least), blocks that are to fit
# a multiprocessor.
_FORWARD_32 = (
    (16, 2, 4, 128, 1),
    (32, 2, 4, 256, 1),
    (64, 4, 2, 256, 1),
    (128, 2, 1, 128, 1),
    (192, 3, 1, 128, 1),
    (255, 3, 1, 192, 1),
    (256, 2, 1, 128, 8),
    (1024, 4, 1, 256, 3),
    (1280, 6, 1, 448, 1),
    (2048, 7, 1, 320, 1),
    (4096, 8, 1, 512, 1),
    (5120, 10, 1, 512, 2),
)
_FORWARD_16 = (
    (8, 2, 1, 128, 1),
    (16, 4, 1, 256, 1),
    (32, 8, 1, 128, 5),
    (64, 4, 2, 256, 3),
    (96, 3, 1, 128, 8),
    (128, 2, 2, 64, 8),
    (256, 2, 2, 128, 6),
    (512, 4, 1, 256, 5),
    (640, 5, 1, 256, 4),
    (1024, 4, 1, 256, 5),
    (2048, 8, 1, 256, 4),
    (2560, 8, 1, 256, 3),
    (4096, 8, 1, 256, 2),
)
# float64 has twice the registers to an element.
_FORWARD_64 = ((64, 2, 1, 128, 1), (2048, 4, 1, 128, 1), (4096, 8, 1, 512, 1))


@cache
def forward_plan(
    n: int,
    dtype: str,
    input_bytes: int,
    weight_bytes: int,
    capability: int,
    result_bytes: int | None = None,
    *,
    portable: bool = False,
) -> Plan:
    """The way of a forward.

    Args:
        n: elements of a row.
        dtype: of the sum.
        input_bytes: of one element of x and, where there is one, of the residual.
        weight_bytes: of one element of weight and bias.
        capability: of the GPU, 90 for sm_90.
        result_bytes: of an element of the result; as of the sum by default.
        portable: only clusters that every GPU of the generation has.
    """
    itemsize = DTYPES[dtype].itemsize
    lanes = lanes_for(n, itemsize)
    accesses = n // lanes
    table = {2: _FORWARD_16, 4: _FORWARD_32, 8: _FORWARD_64}[itemsize]
    if capability >= CLUSTERS_SINCE and accesses > table[-1][0]:
        wide = _wide_forward(n, lanes, itemsize, input_bytes, weight_bytes, capability, portable)
        if wide is not None:
            return wide
    for most, vectors, rows_each, block, min_blocks in table:
        if accesses <= most:
            threads = threads_for(accesses, vectors)
            block = max(block, threads) // threads * threads
            # Wider weights take registers, too, and so does a result of float64 beside 16 bits.
            wider = weight_bytes > itemsize or (result_bytes or itemsize) > 2 * itemsize
            wanted = min_blocks * 3 // 4 if wider else min_blocks
            return Plan(
                "registers",
                block,
                threads,
                lanes,
                vectors,
                rows_each,
                min_blocks=max(1, min(wanted, THREADS_AT_ONCE.get(capability, 2048) // block)),
                full=threads * vectors * lanes == n,
            )
    return Plan("streaming", 512, 512, lanes, 4)


# Longer rows where there are clusters, as above: accesses a thread, blocks on a row, rows on their way, blocks that are to fit
# a multiprocessor. A part of up to 64 KiB is in registers and the next on its way, beside it the weights.
_WIDE_16 = ((6144, 8, 8, 1, 5), (8192, 8, 8, 3, 2), (16384, 8, 8, 1, 2), (32768, 8, 8, 1, 1))
_WIDE_32 = ((6144, 4, 4, 3, 1), (8192, 4, 4, 2, 1), (16384, 4, 8, 2, 1), (32768, 8, 8, 1, 1), (65536, 8, 16, 1, 1))


def _wide_forward(
    n: int, lanes: int, itemsize: int, input_bytes: int, weight_bytes: int, capability: int, portable: bool
) -> Plan | None:
    """A cluster of blocks on a row; with ``portable``, one that every GPU of the generation has."""
    accesses = n // lanes
    if lanes * itemsize < 16 or itemsize == 8:
        return None
    room = SHARED_MEMORY_OF.get(capability, SHARED_MEMORY)
    for most, vectors, cluster, stages, min_blocks in _WIDE_16 if itemsize == 2 else _WIDE_32:
        if accesses > most:
            continue
        threads = threads_for(accesses, vectors * cluster)
        plan = Plan("wide", threads, threads, lanes, vectors, cluster=cluster, affine_shared=True)
        affine, stage = 2 * plan.slice * weight_bytes, plan.slice * input_bytes
        # Where arrays are wider, stages go first, and then blocks.
        min_blocks = min(min_blocks, max(1, room // (affine + stage)))
        stages = min(stages, (room // min_blocks - affine) // stage)
        if stages < 1 or (portable and cluster > PORTABLE_CLUSTER):
            break
        shared = stages * stage + affine
        return replace(
            plan,
            min_blocks=min_blocks if weight_bytes <= itemsize else 1,
            stages=stages,
            full=plan.slice * cluster == n,
            shared=shared,
        )
    # In registers, weights as they come.
    vectors, cluster = (8, 8) if itemsize == 2 and accesses <= 8 * 512 * 8 else (16, 8)
    if accesses > cluster * 512 * vectors:
        return None
    threads = threads_for(accesses, vectors * cluster)
    min_blocks = 2 if vectors == 8 and weight_bytes <= itemsize else 1
    full = threads * vectors * cluster == accesses
    return Plan("registers", threads, threads, lanes, vectors, cluster=cluster, min_blocks=min_blocks, full=full)


@cache
def backward_plan(
    n: int, dtype: str, weight_bytes: int, capability: int, grad_bytes: int | None = None, *, grad_sum: bool = False
) -> Plan:
    """The way of a backward that makes the gradient of x, and perhaps those of weight and bias.

    A thread has up to 20 columns of 16-bit rows and 4 of float32 rows: what its registers hold of the gradients of weight and
    bias beside two rows. Weights wider than x take more of them, so fewer threads share the rest; so do gradients of a result that
    is wider, and stages have no room for those.

    Args:
        n, dtype, weight_bytes, capability: as for :func:`forward_plan`.
        grad_bytes: of an element of the result's gradient; as x's by default.
        grad_sum: another gradient is added, which a thread holds beside its row.
    """
    itemsize = DTYPES[dtype].itemsize
    grad_bytes = grad_bytes or itemsize
    lanes = min(lanes_for(n, itemsize), 4)
    if itemsize == 2 and lanes == 4:
        plan = _backward_16(n // lanes, max(weight_bytes, grad_bytes), capability, grad_sum)
        return plan or Plan("streaming", 512, 512, lanes, 2)
    columns = 8 if itemsize == 2 else 4 if itemsize == 4 else 2
    vectors = max(1, columns // lanes)
    accesses = n // lanes
    clusters = (1, 2, 4, 8) if capability >= CLUSTERS_SINCE and lanes * itemsize >= 8 else (1,)
    if itemsize == 4 and lanes == 4 and accesses > 1280 and capability >= CLUSTERS_SINCE and grad_bytes <= itemsize:
        plan = _wide_backward(accesses, grad_bytes)
        if plan is not None:
            return plan
    if itemsize == 4 and lanes == 4 and 1024 < accesses <= 1280:
        vectors = 2
    wider = max(weight_bytes, grad_bytes) > itemsize
    at_once = MOST_THREADS if not wider and lanes * itemsize >= 8 else 768 if grad_bytes <= 2 * itemsize else 512
    if grad_sum and grad_bytes > itemsize:
        at_once = 512
    most = at_once if itemsize < 8 else 512
    for cluster in clusters:
        threads = threads_for(accesses, vectors * cluster)
        if threads <= most:
            block = (256 if threads < 128 else threads) // threads * threads
            full = threads * vectors * cluster * lanes == n
            min_blocks = max(1, at_once // block) if itemsize < 8 else 1
            return Plan("registers", block, threads, lanes, vectors, cluster=cluster, min_blocks=min_blocks, full=full)
    return Plan("streaming", 512, 512, lanes, 2)


# As above for backwards of 16-bit rows, in accesses of 4 elements: accesses a thread, blocks on a row, threads of a block (at
# least), blocks that are to fit a multiprocessor.
_BACKWARD_16 = (
    (64, 2, 1, 256, 4),
    (128, 4, 1, 128, 4),
    (192, 3, 1, 128, 5),
    (256, 4, 1, 256, 2),
    (512, 4, 1, 128, 4),
    (1024, 4, 2, 128, 4),
    (1280, 5, 1, 256, 2),
    (2048, 4, 2, 256, 2),
    (4096, 4, 8, 128, 4),
    (8192, 4, 8, 256, 2),
    (16384, 4, 8, 512, 1),
)


def _backward_16(accesses: int, widest: int, capability: int, grad_sum: bool) -> Plan | None:
    """``widest``: bytes of an element of the weights or of the result's gradient."""
    for most, vectors, cluster, block, min_blocks in _BACKWARD_16:
        if accesses > most or (grad_sum and vectors > 4):
            continue
        if block == 512 and widest == 8:
            break
        if capability < CLUSTERS_SINCE:
            if accesses > 2048:
                break
            if cluster > 1:
                cluster, block, min_blocks = (1, 256, 2) if accesses <= 1024 else (1, 512, 1)
        threads = threads_for(accesses, vectors * cluster)
        block = max(block, threads) // threads * threads
        if grad_sum:
            min_blocks = min(min_blocks, 768 // block)
        if widest > 2:
            min_blocks = max(1, min_blocks * 3 // 4 if widest == 4 else min_blocks // 2)
        full = threads * vectors * cluster == accesses
        return Plan("registers", block, threads, 4, vectors, cluster=cluster, min_blocks=min_blocks, full=full)
    return None


def _wide_backward(accesses: int, grad_bytes: int) -> Plan | None:
    """float32: accesses of a thread by the length of a row, blocks of a cluster, blocks on a multiprocessor, stages."""
    table = ((2048, 2, 8, 4, 3), (4096, 6, 4, 2, 3), (8192, 5, 8, 2, 3), (16384, 4, 8, 1, 2))
    for most, vectors, cluster, min_blocks, stages in table:
        if accesses <= most:
            threads = threads_for(accesses, vectors * cluster)
            plan = Plan("wide", threads, threads, 4, vectors, cluster=cluster, min_blocks=min_blocks, stages=stages)
            return replace(
                plan, full=plan.slice * cluster == accesses * 4, shared=stages * plan.slice * (4 + grad_bytes)
            )
    return None


@cache
def backward_columns(n: int, dtype: str) -> Plan:
    """The way of a backward that makes the gradients of weight and bias alone: slices of rows, each for itself."""
    itemsize = DTYPES[dtype].itemsize
    lanes = min(lanes_for(n, itemsize), 4)
    vectors = max(1, 4 // lanes) if itemsize < 8 else 1
    threads = min(threads_for(n // lanes, vectors), 64)
    return Plan("registers", max(256 // threads, 1) * threads, threads, lanes, vectors)
