"""Configs of row programs with much arithmetic, which have as many rows of a multiprocessor at once as they can.

While a row waits at the barrier of a reduction, the other resident rows load and compute. With much arithmetic for each byte a kernel
takes the more time, the fewer rows are resident; a copy's worth of loads is in flight in any case. So the rule asks only how many rows
1024 threads of a multiprocessor have, and compares two kinds of blocks:

- blocks that hold their rows in registers. The more accesses a thread has, the fewer threads a row has. The bound on the registers is
  64 for 1024 resident threads, and more for fewer;
- blocks that have their rows in shared memory, where a row takes no registers, and a kept value is computed again.
"""

from collections.abc import Iterator
from dataclasses import replace

from cupyops.dtypes import DTYPES
from cupyops.tiling.rows import SHARED_MEMORY_OF

from .program_config import REGISTERS, ROW_BLOCK, ProgramConfig, Work, words
from .row_needs import SMALL_BLOCK, WHOLE_LINE
from .shared_rows import SHARED_OTHER, SHARED_ROOM

__all__ = ["rows_at_once"]

RESIDENT = 1024  # threads of a multiprocessor. More of them have too few registers for the arithmetic.
ACCESSES = (2, 3, 4, 5, 6, 8)  # of a thread to the row that it holds
# Rows of fewer accesses than LEAST were not measured. Fewer than LINES threads read lines of the cache in parts.
LEAST, LINES = 32, 16
# Registers of a thread: for everything but the row, for an array (N) beside 16-bit rows, for an access beside its elements, and for an
# access to a float16 array, of which the compiler packs single elements late. And the most of them.
OTHERS, OF_COLUMNS, OF_ACCESS, OF_HALF, MOST = 22, 10, 2, 3, 128
# Threads of a block that has a row in shared memory, and blocks of its cluster; and the fewest bytes of a block of a cluster.
SHARED = (128, 1), (256, 1), (512, 1), (256, 2), (256, 4), (512, 2), (512, 4), (512, 8)
SHARED_SLICE_LEAST = 16 * 1024
# Beside arrays (N), rows of more bytes, each of a single array, are read faster by more threads, unless ENOUGH threads hold them.
BESIDE_COLUMNS, ENOUGH = 32 * 1024, 768
# What a config costs, as a share of the time: a single resident row in place of many; half of the resident threads; as many accesses
# beyond the end of the row as within; lines that are read in parts; the barriers of several warps, and of more than four; shared memory;
# an access of 32 bytes to arrays (N) from there; and kept values that are computed again, unless they are exponentials.
SINGLE, HALF, BEYOND, PARTS, WARPS, LARGE = 0.12, 0.1, 0.2, 0.01, 0.01, 0.015
COPIED, READ, AGAIN = 0.03, 0.1, 0.3
WIDE_CLUSTER = 4  # the most blocks of a cluster for elements of 4 bytes


def rows_at_once(n: int, dtype: str, work: Work, capability: int, most_cluster: int) -> ProgramConfig | None:
    """Returns the config of a program with much arithmetic, or None for rows that another rule cuts.

    The other rule cuts short rows, and rows that are not whole accesses of 16 bytes. It cuts rows of a single array beside arrays (N), if
    they are long or float16. And it cuts rows that need a cluster, whose blocks wait for each other: there this rule was faster only for
    sums of exponentials, in float16 or with further values.

    Args:
        n: elements of a row.
        dtype: the dtype of the rows.
        work: what a thread holds of a row.
        capability: compute capability of a GPU with clusters.
        most_cluster: the most blocks of a cluster.
    """
    itemsize = DTYPES[dtype].itemsize
    width = 16 // itemsize
    columns = bool(work.columns) and len(work.elements) == 1
    if (
        n % width
        or n < LEAST * width
        or any(size * width % 16 for size in work.elements)
        or (columns and dtype == "float16")
    ):
        return None
    found = [*_held(n, width, dtype, work), *_shared(n, width, work, capability, most_cluster)]
    best = min(found, key=lambda config: _cost(config, n, work), default=None)
    if best is None or best.cluster == 1:
        few = best is not None and (best.stream or best.min_blocks * best.block < ENOUGH)
        return None if few and columns and n * itemsize > BESIDE_COLUMNS else best
    several = work.exponentials and (work.reductions > 2 or dtype == "float16")
    return best if several and (itemsize == 2 or best.cluster <= WIDE_CLUSTER) else None


def _held(n: int, width: int, dtype: str, work: Work) -> Iterator[ProgramConfig]:
    """Yields the configs that hold a row in the registers of a block."""
    arrays = max(1, len(work.elements) - work.kept)  # a kept value takes the place of an array
    row = words(work.elements, width) * arrays // len(work.elements) + work.kept * width + OF_ACCESS
    row += OF_HALF * (arrays + work.kept) * (dtype == "float16") + work.counted * width // 2
    others = OTHERS + OF_COLUMNS * len(work.columns) * (width == 8)
    for vectors in ACCESSES:
        config = ProgramConfig.of(n, width, vectors, block=SMALL_BLOCK, min_blocks=0, stream=False)
        registers = max(REGISTERS // RESIDENT, -(-(vectors * row + others) // 8) * 8)
        resident = min(REGISTERS // (registers * -(-config.block // 32) * 32), RESIDENT // config.block)
        if resident and registers <= MOST and WHOLE_LINE <= config.row_threads <= ROW_BLOCK:
            yield replace(config, min_blocks=resident)


def _shared(n: int, width: int, work: Work, capability: int, most_cluster: int) -> Iterator[ProgramConfig]:
    """Yields the configs that have a row in the shared memory of a block or a cluster."""
    room = min(SHARED_ROOM, SHARED_MEMORY_OF.get(capability, SHARED_ROOM))
    for threads, cluster in SHARED:
        for vectors in (1, 2) if threads == ROW_BLOCK else (2,):
            config = ProgramConfig(
                threads, threads, width, vectors, cluster=cluster, min_blocks=1, full=False, stream=True
            ).with_shared_row(n, work)
            resident = min(room // (config.shared + SHARED_OTHER), RESIDENT // threads)
            if resident and cluster <= most_cluster and (cluster == 1 or config.shared >= SHARED_SLICE_LEAST):
                yield replace(config, min_blocks=resident)


def _cost(config: ProgramConfig, n: int, work: Work) -> float:
    """Returns what a config costs, as a share of the time of the kernel."""
    slices = config.slice * config.cluster
    rows = config.min_blocks * config.groups / config.cluster
    missing = RESIDENT / (config.min_blocks * config.block) - 1
    cost = SINGLE / rows + HALF * missing**2 + BEYOND * (-(-n // slices) * slices / n - 1)
    cost += (
        PARTS * (config.row_threads < LINES)
        + WARPS * (config.row_threads > 32)
        + LARGE * (config.row_threads > SMALL_BLOCK)
    )
    if config.stream:
        cost += COPIED + READ * words(work.columns, config.vector_width) / 8
        cost += AGAIN * (work.kept > 0 and not work.exponentials)
    return cost
