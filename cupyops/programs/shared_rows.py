"""Configs of row programs that have the row in shared memory."""

from dataclasses import replace

from cupyops.dtypes import DTYPES
from cupyops.launch.geometry import MAX_BLOCK, PORTABLE_CLUSTER
from cupyops.tiling.config import THREADS_AT_ONCE
from cupyops.tiling.rows import SHARED_MEMORY_OF

from .program_config import REGISTERS, ROW_BLOCK, ProgramConfig, Work

__all__ = ["HELD_ALONE", "MOST_CLUSTER", "SHARED_OTHER", "SHARED_ROOM", "SHARED_SLICE", "in_shared_memory"]

# A row in shared memory: the threads of the block, the accesses of a thread at once where two blocks and where three
# blocks are resident, and the registers of a thread for everything else. The most blocks of a cluster, the bytes of shared
# memory of a multiprocessor that blocks fill, and the bytes of each block for exchanges.
SHARED_BLOCK, SHARED_TWO, SHARED_THREE, SHARED_REGISTERS = 512, 4, 2, 32
MOST_CLUSTER, SHARED_ROOM, SHARED_OTHER = 16, 220 * 1024, 2048
SHARED_SLICE = SHARED_ROOM // 2 - SHARED_OTHER  # the most bytes of the row in a block of which two are resident
# One block holds a row of more than HELD_ALONE bytes in registers, if these hold it. One block has a row of up to SHARED_ALONE
# bytes in shared memory, in preference to a cluster.
HELD_ALONE, SHARED_ALONE = 64 * 1024, 128 * 1024
SHARED_LEAST = 32 * 1024  # bytes of a row beside wide arrays (N) that is in shared memory in preference to registers
L2_ROWS = 24 * 2**20  # bytes of rows that a later pass finds in the L2 cache
MULTIPROCESSORS = 132  # of a GPU with clusters


def in_shared_memory(
    n: int, dtype: str, work: Work, capability: int, width: int, config: ProgramConfig, most_cluster: int
) -> ProgramConfig | None:
    """Returns the config of a kernel that has the row in shared memory, or None if ``config`` should stay.

    The blocks are not persistent. While one block computes, the bulk copies of the others are in flight. The row then
    takes the place of the L1 cache, from which persistent blocks read the arrays (N). Measured on an H200, the row in
    shared memory is faster where one block has the row, for exponentials where a cluster of two has the row, and where
    registers do not hold the row.
    """
    row, itemsize, several = n * sum(work.elements), DTYPES[dtype].itemsize, len(work.elements) > 1
    accesses_of_16_bytes = all(size * width % 16 == 0 for size in work.elements)
    # Two blocks that have no more threads than one with the row in shared memory: while they compute exponentials, too few
    # loads are in flight.
    scarce = work.exponentials and config.min_blocks <= 2 and config.min_blocks * config.block <= SHARED_BLOCK
    # Two large blocks with their rows in registers wait for the wide arrays (N).
    wide = bool(work.columns) and max(work.columns) > itemsize
    waiting = wide and not several and not work.exponentials and config.block == ROW_BLOCK and row >= SHARED_LEAST
    if not (config.prefetch or config.stream or scarce or waiting) or not accesses_of_16_bytes:
        return None
    room = min(SHARED_ROOM, SHARED_MEMORY_OF.get(capability, SHARED_ROOM))
    cluster, most = 1, room // 2 - SHARED_OTHER
    while cluster < most_cluster and row > most * cluster:
        cluster *= 2
    if cluster > PORTABLE_CLUSTER and not config.stream:
        return None
    others = SHARED_REGISTERS + 6 * max(0, work.reductions - 2)
    # With one array, float16 needs no more registers than bfloat16: a thread has few elements at once.
    others += 4 * bool(work.columns) if dtype == "float32" else 0
    others += 10 * (len(work.elements) - 1) if dtype == "float16" else 0

    def block_of(threads: int, vectors: int, cluster: int, most: int) -> tuple[ProgramConfig, int]:
        """Returns a block, of which up to ``most`` are resident, and how many fit shared memory; 0 if registers do not
        hold one."""
        registers = -(-(vectors * work.row(width, 0) + others) // 8) * 8
        block = ProgramConfig(
            threads, threads, width, vectors, cluster=cluster, min_blocks=1, full=False, stream=True
        ).with_shared_row(n, work)
        fit = room // (block.shared + SHARED_OTHER)
        resident = min(fit, most, THREADS_AT_ONCE.get(capability, 2048) // threads, REGISTERS // (registers * threads))
        return replace(block, min_blocks=max(1, resident)), fit if resident else 0

    one = several or dtype == "float32"
    if one and cluster == 2 and config.prefetch and row <= SHARED_ALONE and not work.exponentials:
        # One block that fills a multiprocessor. Blocks of a cluster would wait for each other.
        plain = several and not work.columns
        whole, fit = block_of(SHARED_BLOCK, SHARED_THREE, 1, 1) if plain else block_of(MAX_BLOCK, 1, 1, 1)
        if fit:
            return whole
    # Two blocks of much of a row load more at once than three. Three are faster for 16-bit rows in clusters, for wide arrays
    # (N), which the blocks read from the L2 cache, and where the clusters are large.
    much = row >= HELD_ALONE * cluster
    three = several or wide or not much or (cluster > 1 and itemsize < 4) or cluster > PORTABLE_CLUSTER
    vectors, resident = (SHARED_THREE, 3) if three else (SHARED_TWO, 2)
    block, fit = block_of(SHARED_BLOCK, vectors, cluster, resident)
    while fit < 2 and vectors > 1:  # a row in shared memory is rounded up to whole accesses of all threads
        vectors //= 2
        block, fit = block_of(SHARED_BLOCK, vectors, cluster, resident)
    # With few operations for each element, persistent blocks are faster: they read the arrays (N) from the L1 cache.
    cached = not several and not work.exponentials and row > HELD_ALONE and bool(work.columns)
    if config.stream:
        read = MULTIPROCESSORS * config.min_blocks // config.cluster * row
        wanted = read > L2_ROWS or bool(work.columns)
    else:
        wanted = cluster <= 1 + work.exponentials and not cached
    if not wanted or fit < (1 if config.stream else 2):
        return None
    if cluster > PORTABLE_CLUSTER:  # few clusters are resident, more of them with one access at once
        less, _ = block_of(SHARED_BLOCK, 1, cluster, 3)
        return less if less.min_blocks > block.min_blocks else block
    return block
