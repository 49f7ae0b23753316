"""Configs of row programs that have tiles of rows in shared memory, for rows that accesses of 16 bytes do not divide.

``kernels_cu/shared/row_tiles.cuh`` describes a tile. The rule compares tilings by the cycles of a multiprocessor for a row,
from constants of the machine and counts of the program's text. The tiling decides the order of the sums of a row. The
number of rows does not: few rows have a kernel without tiles, by :meth:`ProgramConfig.untiled`.
"""

from collections.abc import Iterator

from cupyops.tiling.config import CLUSTERS_SINCE, THREADS_AT_ONCE
from cupyops.tiling.rows import SHARED_MEMORY_OF

from .program_config import REGISTERS, ProgramConfig, Work

__all__ = ["in_tiles", "pays"]

# Constants of an H200. Its data sheet and CUDA's programming guide have the first three. BANDWIDTH to OVERLAP were fitted to the times
# of softmax, rms_norm and cross_entropy, forward and backward, in bfloat16 and float32, of rows of 99, 257, 577, 1026, 2049 and 12289
# elements, of up to 18 tilings each. At 197, 333, 1025, 3333 and 6145 elements, which were left out of the fit, the tiling with the
# lowest cost takes 1.015 times the time of the fastest one of its case (median of 60 cases; mean 1.030, 95th percentile 1.115, most
# 1.184). Other tilings were not compared.
ROOM = 227 * 1024  # bytes of shared memory of a multiprocessor
RESERVED = 3 * 1024  # bytes of it for each block, for the system, exchanges and barriers
ISSUED = 4.0  # instructions of a warp a cycle
BANDWIDTH = 15.3  # bytes a cycle that a multiprocessor moves from and to memory, all of them at once
ROW, TILE = 52.0, 96.0  # instructions of a warp for a row beside its elements, and for a tile
REDUCTION = 52.0  # instructions of a warp for each reduction of a row
ELEMENT_CYCLES, TILE_CYCLES, BARRIER_CYCLES = (
    45.0,
    787.0,
    48.0,
)  # latency of an element of a thread, of a tile, and of a barrier
ALONE = 0.3  # the share of the transfer of a tile that a team without a further stage waits for
OVERLAP = 4.0  # the norm by which the parts of a cost that overlap are joined
OTHERS, OF_ARITHMETIC = 10, 6  # registers of a thread beside its elements: in all, and for each byte of the arithmetic
MOST_VECTORS = 32  # accesses of a thread; the loops over them are unrolled
# The fewest threads of a row that each pass reads in its tile, and the accesses of a thread at once.
STREAMING, AT_ONCE = 256, 8
FIT = 0.7
TURNS = 2  # tiles of a team from which on loading ahead pays

THREADS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # threads of a row
RESIDENT = (1024, 768, 512)  # threads of a multiprocessor
SMALL_BLOCK = 128  # threads of a block of several teams


def in_tiles(n: int, work: Work, acc: int, width: int, capability: int) -> ProgramConfig | None:
    """Returns the config of a kernel with tiles of rows, or None if a row needs none, or fits none.

    Args:
        n: elements of a row.
        work: the program's numbers.
        acc: bytes of an element in the arithmetic.
        width: elements of the widest access that divides a row.
        capability: compute capability of the GPU.
    """
    room = min(ROOM, SHARED_MEMORY_OF.get(capability, ROOM))
    if capability < CLUSTERS_SINCE or max(work.elements) * width >= 16:
        return None
    # Accesses of 8 bytes need few instructions without tiles. A program that computes little and adds no columns gains nothing:
    # rms_norm of float32 rows of 1026 elements reached 96 % of a copy without, and 87 % with tiles.
    if max(work.elements) * width >= 8 and not (work.sums or work.exponentials):
        return None
    found = _tilings(n, width, work, acc, room, THREADS_AT_ONCE.get(capability, 2048))
    return min(found, key=lambda config: cost(config, n, work), default=None)


def pays(config: ProgramConfig, rows: int, blocks: int) -> bool:
    """Returns whether the kernel with tiles is faster than the one without: if the teams of ``blocks`` blocks have so many tiles of ``rows``
    rows that loading ahead pays, or if a bulk copy brings a row for several passes."""
    return config.stream or rows >= TURNS * config.rows_each * config.teams * blocks


def _tilings(n: int, width: int, work: Work, acc: int, room: int, most: int) -> Iterator[ProgramConfig]:
    row = n * sum(work.slots)
    # The compiler widens the elements of an access, and of the arrays beside it, long before their use.
    each = len(work.elements) + len(work.columns) + work.sums + work.kept + work.exponentials
    each_access = width * (each * acc // 4 + 1)
    for threads, vectors, stream in _of_a_row(n, width, work):
        team = max(32, threads)
        # The threads of a row in several warps meet at a barrier of the block, so the block has no other team.
        block = SMALL_BLOCK if team == 32 else team
        registers = -(-(OTHERS + OF_ARITHMETIC * acc + vectors * each_access) * FIT // 8) * 8
        for resident in RESIDENT:
            blocks = min(resident, most) // block
            # The accesses of a streamed row are few. If they do not fit, the compiler is asked for fewer blocks.
            if blocks == 0 or (registers > REGISTERS // (blocks * block) and not stream):
                continue
            own = (room // blocks - RESERVED) // (block // team)  # shared memory of a team
            for stages in (3, 2, 1):
                fit = (own // stages // 16 * 16 - 48 * len(work.slots)) // row
                # Two stages of fewer rows are better. A streamed row with one stage would wait for its copy: each pass reads it from memory.
                if stages == 1 and (fit > 1 or stream):
                    continue
                for rows in {min(fit, 1 << i) for i in range(7)} if fit > 0 else ():
                    slot = sum((rows * n * size + 30) // 16 * 16 for size in work.slots)
                    yield ProgramConfig(
                        block,
                        threads,
                        width,
                        vectors,
                        rows_each=rows,
                        stages=stages,
                        min_blocks=blocks,
                        full=False,
                        stream=stream,
                        columns_held=bool(work.columns) and not stream,
                        unit=vectors,
                        late=True,
                        inside=0 if stream else n // (threads * width),
                        shared=block // team * stages * slot,
                    )


def _of_a_row(n: int, width: int, work: Work) -> Iterator[tuple[int, int, bool]]:
    """Yields the threads of a row, the accesses of a thread at once, and whether each pass reads the row in its tile."""
    for threads in THREADS:
        vectors = -(-n // (threads * width))
        if vectors <= MOST_VECTORS and (threads == THREADS[0] or n > threads // 2 * width):
            yield threads, vectors, False
        if threads >= STREAMING and vectors > AT_ONCE and not work.sums:
            yield threads, AT_ONCE, True


def cost(config: ProgramConfig, n: int, work: Work) -> float:
    """Returns the cycles of a multiprocessor for a row."""
    teams = config.min_blocks * config.teams
    turns = -(-config.rows_each * config.row_threads // max(32, config.row_threads))
    elements = -(-n // config.slice) * config.vectors * config.vector_width * (work.passes if config.stream else 1)
    of_turn = elements * work.operations + ROW + REDUCTION * work.reductions
    warps = max(32, config.row_threads) / 32
    issue = warps * (turns * of_turn + TILE) / config.rows_each / ISSUED
    barrier = BARRIER_CYCLES * (config.row_threads > 32)
    latency = turns * (barrier * work.reductions + elements * ELEMENT_CYCLES) + barrier + TILE_CYCLES
    memory = n * (sum(work.elements) + work.written) / BANDWIDTH
    # With stores, a stage is loaded again one turn later.
    alone = config.stages - (work.stored > 0) < 2
    waits = (latency / config.rows_each + alone * ALONE * memory) / teams
    return (memory**OVERLAP + issue**OVERLAP + waits**OVERLAP) ** (1 / OVERLAP)
