"""Configs of row programs with sums over the rows: persistent blocks whose threads hold a row, the next row and the sums.

While a group of threads computes a row, its loads of the next row are in flight. The rule compares tilings by the cycles of a
multiprocessor for a row, from constants of the machine and counts of the program's text. Their order is that of an estimate of the
registers; ``row_config.py`` asks the compiler about the first ones.
"""

import math
from collections.abc import Iterator, Sequence

from cupyops.tiling.config import CLUSTERS_SINCE, THREADS_AT_ONCE

from .program_config import REGISTERS, ProgramConfig, Work

__all__ = ["cost", "held_with_sums"]

# Constants of an H200. BANDWIDTH and ISSUED are those of tiled_rows.py. The others were fitted to the times of up to 30 tilings of each
# of the backwards of layer_norm, add_layer_norm and rms_norm, in bfloat16 and float32, of every second of 23 lengths from 96 to 131072.
# At the other lengths the tiling with the lowest cost, by the estimate of registers, takes 1.013 times the time of the fastest one of
# its case (median of 76 cases; 95th percentile 1.09, most 1.30).
BANDWIDTH = 15.3  # bytes a cycle that a multiprocessor moves from and to memory
ISSUED = 4.0  # instructions of a warp a cycle
OPERATION, ROW = (
    1.33,
    60.0,
)  # instructions for an operation of the program on an element, and for a row beside its elements
# Cycles of a load, of an element of an array that a thread has, of each warp of a row at the exchange of sums, and of a cluster for each
# doubling of its blocks.
LOAD, ELEMENT, WARP, CLUSTER = 2360.0, 6.1, 1.9, 330.0
IN_FLIGHT, BEYOND = (
    15.5 * 1024,
    0.32,
)  # bytes that a multiprocessor loads ahead at no cost, and the share of time that e times as many cost
LINE, PARTS = 8, 0.04  # threads that read a line of the cache at once, and the share of time that fewer of them cost
ALONE = 0.024  # the share of time that a block costs that is alone on a multiprocessor
OVERLAP = 4.0  # the norm by which the parts of a cost that overlap are joined
# Registers of a thread: for addresses and arithmetic, for each access, and for each element: a word of an array in memory, a sum, and the
# widened elements of 16-bit arrays. Four of five estimates give the blocks that the compiler fits without a spill.
OTHERS, ACCESS, WORD, SUM, WIDENED = 4.7, 1.3, 3.8, 0.9, 1.9

THREADS = (4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 768, 1024)  # threads of a block on a row
SMALL_BLOCK = 128  # threads of a block with several rows
MOST_REGISTERS = 255  # of a thread
MOST_VECTORS = 16  # accesses of a thread; the loops over them are unrolled
MOST_BEYOND = 1.5  # elements of all threads, as a multiple of the row's


def held_with_sums(
    n: int, width: int, work: Work, acc: int, capability: int, most_cluster: int
) -> Sequence[ProgramConfig]:
    """Returns the configs of persistent blocks that hold a row, the next one and the sums, the one with the lowest cost first.

    Args:
        n: elements of a row.
        width: elements of the widest access that divides a row.
        work: the program's numbers.
        acc: bytes of an element in the arithmetic.
        capability: compute capability of the GPU.
        most_cluster: the most blocks of a cluster.
    """
    found = _tilings(n, width, work, acc, capability, most_cluster if capability >= CLUSTERS_SINCE else 1)
    return sorted(found, key=lambda config: cost(config, n, work))


def _tilings(n: int, width: int, work: Work, acc: int, capability: int, most_cluster: int) -> Iterator[ProgramConfig]:
    at_once = THREADS_AT_ONCE.get(capability, 2048)
    for of_access in {width, max(1, width // 2)}:
        for cluster in (1, 2, 4, 8, 16):
            for threads in THREADS:
                of_row = threads * cluster
                vectors = max(1, -(-n // (of_row * of_access)))
                if cluster > most_cluster or (cluster > 1 and threads < 32) or vectors > MOST_VECTORS:
                    continue
                held = vectors * of_access
                if of_row * held > MOST_BEYOND * n and threads > THREADS[0]:
                    continue
                block = threads if cluster > 1 else max(1, SMALL_BLOCK // threads) * threads
                registers = _registers(held, vectors, work, acc)
                resident = min(REGISTERS // (registers * -(-block // 32) * 32), at_once // block, 32)
                if resident and registers <= MOST_REGISTERS:
                    yield ProgramConfig(
                        block,
                        threads,
                        of_access,
                        vectors,
                        cluster=cluster,
                        min_blocks=resident,
                        full=n == of_row * held,
                        stream=False,
                        prefetch=True,
                        columns_held=True,
                    )


def _registers(held: int, vectors: int, work: Work, acc: int) -> int:
    """Returns the registers of a thread that holds ``held`` elements of each array."""
    element = WORD * sum(work.elements) / 4 + (SUM * work.sums + work.kept) * acc / 4
    element += WIDENED * any(size < 4 for size in work.elements)
    return -(-round(OTHERS * acc / 4 + ACCESS * vectors + held * element) // 8) * 8


def cost(config: ProgramConfig, n: int, work: Work, resident: float | None = None) -> float:
    """Returns the cycles of a multiprocessor for a row.

    Args:
        config: the tiling.
        n: elements of a row.
        work: the program's numbers.
        resident: the blocks that a multiprocessor has at once; by default those that the tiling wishes for.
    """
    blocks = config.min_blocks if resident is None else resident
    rows = blocks * config.groups / config.cluster
    warps = config.row_threads * config.cluster / 32
    held = config.vectors * config.vector_width
    memory = n * (sum(work.elements) + work.written) / BANDWIDTH
    issue = warps * (held * OPERATION * work.operations + ROW) / ISSUED
    latency = LOAD + held * len(work.elements) * ELEMENT + warps * WARP + CLUSTER * math.log2(config.cluster)
    overlapped = (memory**OVERLAP + issue**OVERLAP + (latency / rows) ** OVERLAP) ** (1 / OVERLAP)
    more = BEYOND * math.log(max(1.0, rows * n * sum(work.elements) / IN_FLIGHT))
    return overlapped * (1 + more + PARTS * (config.row_threads < LINE) + ALONE * (blocks <= 1))
