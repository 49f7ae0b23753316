"""Configs of row programs with one pass. The row is not held: a thread reads its part in turns of a few accesses."""

from dataclasses import replace

from cupyops.dtypes import DTYPES
from cupyops.tiling.config import CLUSTERS_SINCE, threads_for

from .program_config import ROW_BLOCK, ProgramConfig, Work
from .row_needs import CLUSTER_BLOCK, SMALL_BLOCK, WHOLE_LINE, Needs, from_memory

__all__ = ["one_pass"]

# For a program that reads one array in one pass: with up to two reductions, and without. float16 takes LIGHT_HALF more.
LIGHT_REGISTERS, LIGHT_STORED, LIGHT_HALF = 22, 38, 4
# More registers for accesses beyond the end of a row, for such a program, without and with float16.
BEYOND_REGISTERS = 12, 20
# A row of a program with one pass is not held. A thread has up to ONCE accesses to the row, so that the reductions among
# threads take little of its time. Without reductions a thread has up to ONCE_STORED, and ONCE_APART of them if a row has a
# power of two of accesses: the threads that share a row then store neighbouring elements at the same time.
ONCE, ONCE_STORED, ONCE_APART = 25, 16, 4
ONCE_AT_ONCE = 64  # bytes that a thread of such a program loads at once
# A bfloat16 row that no turns of ONCE_FEW accesses divide has turns of ONCE_MORE, if these do; or each thread holds ONCE_HELD
# accesses to the row.
ONCE_FEW, ONCE_MORE, ONCE_HELD = (3, 4), (5, 6), 9


def one_pass(
    n: int, width: int, dtype: str, work: Work, plain: Needs, row: int, most_blocks: int, capability: int
) -> ProgramConfig:
    """Returns the config of a program with one pass.

    Args:
        n: elements of a row.
        width: elements of an access.
        dtype: the dtype of the rows.
        work: the program's numbers that decide the registers of a thread.
        plain: the needs of the kernel by a generous estimate.
        row: registers of an access to the row.
        most_blocks: the most blocks of a cluster.
        capability: compute capability of the GPU.
    """
    itemsize = DTYPES[dtype].itemsize
    light = len(work.elements) == 1 and not work.columns and work.reductions <= 2 and itemsize < 8
    fewer = plain
    if light and capability >= CLUSTERS_SINCE:  # earlier GPUs would spill a few registers
        tight = (LIGHT_REGISTERS if work.reductions else LIGHT_STORED) + LIGHT_HALF * (dtype == "float16")
        beyond = BEYOND_REGISTERS[dtype == "float16"]
        fewer = replace(plain, registers=row + bool(work.reductions), others=tight, light=True, beyond=beyond)
    once = _once(n, width, itemsize, plain, fewer, most_blocks, capability, work)
    if fewer is not plain and dtype == "bfloat16" and work.reductions:
        once = _other_turns(n, once, fewer, row, capability)
    # Without reductions there is nothing to join.
    return replace(once, unit=once.vectors) if work.reductions and once.vectors > 1 else once


def _once(
    n: int,
    width: int,
    itemsize: int,
    needs: Needs,
    fewer: Needs,
    most_blocks: int,
    capability: int,
    work: Work,
) -> ProgramConfig:
    """Returns the config of a program with one pass: several rows in a block, a row in a block, or in a cluster.

    Args:
        needs, fewer: the needs by a generous estimate of the registers, and by a tight one, with more resident threads.
            Without reductions, the tight one is faster for 16-bit rows of few accesses, and where a thread has
            ONCE_APART accesses.
    """
    accesses = -(-n // width)
    most = min(needs.most, max(1, ONCE_AT_ONCE // needs.nbytes))
    # Turns of two accesses of float32 take longer than turns of four with some of them beyond the end.
    fewest = 3 if itemsize == 4 else 2

    def turns(threads: int) -> list[int]:
        """Returns the accesses of a turn for which no thread has an access beyond the end of the row."""
        own = n / (threads * width)
        return [v for v in range(fewest, most + 1) if own % v == 0]

    # Lines of the cache read in parts cost less than the reductions among the threads of a short row.
    short = accesses <= 5 * WHOLE_LINE
    least = 4 if accesses <= 2 * WHOLE_LINE or (short and work.reductions) else WHOLE_LINE
    threads = min(max(threads_for(accesses, ONCE if work.reductions else ONCE_STORED), least), CLUSTER_BLOCK)
    if not turns(threads):
        below = 1 << (threads.bit_length() - 1)
        threads = next(
            (t for t in (below, 2 * below) if t <= CLUSTER_BLOCK and accesses <= 32 * t and turns(t)), threads
        )
    cluster = 1
    while 2 * cluster <= most_blocks and threads == CLUSTER_BLOCK and accesses > ONCE * threads * cluster:
        cluster *= 2
    if work.reductions or (short and itemsize == 2):
        needs = fewer
    apart = min(accesses // ONCE_APART, ROW_BLOCK)
    even = accesses & (accesses - 1) == 0 and least * ONCE_APART <= accesses <= 2 * ONCE_APART * apart
    if not work.reductions and fewer.light and even:
        threads, cluster, needs = apart, 1, fewer
    own = -(-accesses // (threads * cluster))  # accesses of a thread to the row, in turns of `vectors`
    fitting = turns(threads * cluster)
    if not fitting and work.exponentials and itemsize == 4:  # accesses beyond the end take registers
        most = min(most, 3)
    vectors = fitting[-1] if fitting else max(1, -(-own // max(1, -(-own // most))))
    return from_memory(n, width, threads, vectors, needs, cluster, capability)


def _other_turns(n: int, once: ProgramConfig, needs: Needs, row: int, capability: int) -> ProgramConfig:
    """Returns the config of a bfloat16 row that no turns of three or four accesses divide, or ``once`` for other rows.

    Args:
        once: the config with turns of few accesses.
        needs: the needs of the kernel.
        row: registers of an access to the row.
    """
    width, (few, most) = once.vector_width, ONCE_FEW
    own = n / (once.row_threads * width)
    if once.cluster > 1 or n % width or own < most or own % most == 0:
        return once
    more = [v for v in ONCE_MORE if own % v == 0]
    if more and own % few:
        return from_memory(n, width, once.row_threads, more[0], needs, 1, capability)
    threads = n // (width * ONCE_HELD)
    whole = threads & (threads - 1) == 0 and n == threads * width * ONCE_HELD
    if whole and WHOLE_LINE < threads <= SMALL_BLOCK:
        min_blocks = replace(needs, registers=row).resident(ONCE_HELD, SMALL_BLOCK, capability)
        return replace(once, row_threads=threads, vectors=ONCE_HELD, min_blocks=min_blocks, full=True, stream=False)
    return once
