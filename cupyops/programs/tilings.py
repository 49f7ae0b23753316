"""Tilings of the rows of a program: all that are possible, and what each one costs.

A tiling has the row in the registers of a group of threads, in the shared memory of a block, or in no memory of its own: a program with
one pass reads each element once. Blocks of a cluster and of a program with sums over the rows stay, and load the next row ahead. If
accesses of 16 bytes do not divide a row, several rows may be in a tile of shared memory (``kernels_cu/shared/row_tiles.cuh``).
The cost of a tiling is a sum of named parts: constants of the machine times counts of the program's text. There is no condition on a
dtype, a length or an operator.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from cupyops.launch.geometry import PORTABLE_CLUSTER
from cupyops.tiling.config import CLUSTERS_SINCE, THREADS_AT_ONCE
from cupyops.tiling.rows import SHARED_MEMORY_OF

from .program_config import REGISTERS, ROW_BLOCK, ProgramConfig, Work, bytes_of_tile, unit_of, words

__all__ = ["cost", "tilings"]

# Constants of an H200. CUDA's programming guide has ISSUED. The others were fitted to half of some 18,000 times of 1,820 cases: layer_norm,
# add_layer_norm, rms_norm, add_rms_norm, softmax and cross_entropy, forward and backward, and seven other programs, in bfloat16, float16
# and float32, of every second of 129 lengths from 96 to 262144, of which 54 are not divided by accesses of 16 bytes. At the other lengths,
# the tiling with the lowest cost takes 1.008 times the time of the fastest one that was measured (median of 915 cases; 95th percentile
# 1.12, most 1.46), if the cost counts the blocks that the compiler's registers allow; of rows with tiles, 1.012 times (321 cases; 1.14,
# most 1.30).
BANDWIDTH = 15.3  # bytes a cycle that a multiprocessor moves from and to memory
ISSUED = 4.0  # instructions of a warp a cycle
# Instructions of a thread for an exponential, an access to an array, a reduction, and a row beside these. An operation on an element is one.
EXPONENTIAL, ACCESS, REDUCTION, ROW = 8.9, 2.0, 69.5, 101.0
JOIN = 8.0  # exponentials whose time it takes to join two sums of exponentials of different maxima
WAITS = 2.77  # cycles that a thread waits for an instruction of its own
# Cycles of the loads of a row: by blocks that load it a row ahead, by others, by copies into shared memory, and by a copy of a tile where
# no other tile is loaded meanwhile; and of the exchange of a value, for each doubling of the blocks of a cluster.
AHEAD, LOAD, COPY, ALONE, CLUSTER = 1610.0, 2880.0, 35600.0, 9600.0, 995.0
TILE = 706.0  # instructions of a thread for a tile beside its rows
REQUEST = 11.2  # cycles of a multiprocessor for an access of a warp to global memory
# Bytes that a multiprocessor loads at once at no cost, and the share of time that e times as many cost.
IN_FLIGHT, BEYOND = 24.2 * 1024, 0.034
LINE, PARTS = 8, 0.06  # threads that read a line of the cache at once, and the share of time that fewer of them cost
OVERLAP = 3.0  # the norm by which the parts of a cost that overlap are joined

# What a first guess of the registers of a thread adds to the elements that it holds, in general and for sums over the rows. The compiler
# is asked after it.
OTHERS, OF_SUMS, OF_TILE, STREAMING = 26, 10, 10, 24

THREADS = (4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 768, 1024)  # threads of a block on a row
CLUSTERS = (1, 2, 4, 8, 16)
SCHEDULED = 128  # threads of four warps, one for each scheduler of a multiprocessor
SMALL_BLOCK = 128  # threads of a block with several rows
MOST_REGISTERS = 255  # of a thread
MOST_VECTORS = 16  # accesses of a thread; the loops over them are unrolled
MOST_BEYOND = 1.5  # elements of all threads, as a multiple of the row's
MOST_TURNS = 32  # accesses of a thread to a row that is read once
# Bytes of shared memory that the blocks of a multiprocessor fill, those of a block for exchanges, and the fewest of a row.
SHARED_ROOM, SHARED_OTHER, SHARED_LEAST = 220 * 1024, 2 * 1024, 8 * 1024

# Bytes of shared memory that the tiles of a multiprocessor fill, and those of a block for the system, exchanges and barriers.
TILE_ROOM, TILE_OTHER = 227 * 1024, 3 * 1024
MOST_ELEMENTS = 64  # accesses of a thread to a row in a tile; the loops over them are unrolled
RESIDENT = (2048, 1536, 1024, 768, 512, 256)  # threads of a multiprocessor
# The fewest threads of a row that each pass reads in its tile, and the accesses of a thread at once.
LEAST_STREAMED, AT_ONCE = 256, 8


def tilings(n: int, width: int, work: Work, acc: int, capability: int) -> Iterator[ProgramConfig]:
    """Yields the tilings of rows, and where nothing holds a row, one that reads it from memory in each pass.

    Args:
        n: elements of a row.
        width: elements of the widest access that divides a row.
        work: the program's numbers.
        acc: bytes of an element in the arithmetic.
        capability: compute capability of the GPU.
    """
    clusters = CLUSTERS if capability >= CLUSTERS_SINCE else CLUSTERS[:1]
    found = False
    for config in (
        *_held(n, width, work, acc, capability, clusters),
        *_read_once(n, width, work, capability, clusters),
        *_shared(n, width, work, capability, clusters),
        *_tiled(n, width, work, acc, capability),
    ):
        found = True
        yield config
    if not found:
        yield _from_memory(n, width, work, acc, capability, clusters)


def _resident(registers: float, block: int, capability: int) -> int:
    """Returns how many blocks a multiprocessor has at once, by the registers of a thread; 0 if there are too many."""
    registers = -(-registers // 8) * 8
    if registers > MOST_REGISTERS:
        return 0
    threads = THREADS_AT_ONCE.get(capability, 2048)
    return min(int(REGISTERS // (registers * -(-block // 32) * 32)), threads // block, 32 if threads == 2048 else 16)


def _held(
    n: int, width: int, work: Work, acc: int, capability: int, clusters: tuple[int, ...]
) -> Iterator[ProgramConfig]:
    """Yields the tilings that hold a row in registers, and with sums over the rows the sums, too.

    Blocks of sums stay, and so do clusters: their threads hold the next row as well. A block that is alone on a multiprocessor may do so.
    """
    sums = work.sums > 0
    for of_access in {width, max(1, width // 2)} if sums else {width}:
        for cluster in clusters if work.passes > 1 or sums else (1,):
            for threads in THREADS:
                vectors = max(1, -(-n // (threads * cluster * of_access)))
                held = vectors * of_access
                if vectors > MOST_VECTORS or (cluster > 1 and threads % SCHEDULED):
                    continue
                if threads * cluster * held > MOST_BEYOND * n and threads > THREADS[0]:
                    continue
                block = threads if cluster > 1 else max(1, SMALL_BLOCK // threads) * threads
                stays = sums or cluster > 1
                blocks = _resident(_registers(held, work, acc, stays), block, capability)
                alone = not stays and blocks == 1 and _resident(_registers(held, work, acc, True), block, capability)
                for persistent in (stays, True) if alone else (stays,) if blocks else ():
                    config = ProgramConfig(
                        block,
                        threads,
                        of_access,
                        vectors,
                        cluster=cluster,
                        min_blocks=blocks,
                        full=n == threads * cluster * held,
                        stream=False,
                        prefetch=persistent,
                        columns_held=sums,
                    )
                    yield config
                    # Bounds checks keep the compiler from loading the arrays (N) of all accesses at once.
                    if config.full and work.columns and vectors > 1:
                        yield replace(config, full=False)
                    if work.exponentials and not sums and (vectors == 2 or (vectors > 1 and work.passes == 1)):
                        yield replace(config, unit=unit_of(threads, vectors), late=2)


def _registers(held: int, work: Work, acc: int, ahead: bool) -> float:
    """Returns a guess of the registers of a thread that holds some elements of each array of a row."""
    element = sum(work.elements) / 4 * (1 + ahead) + (work.kept + work.sums) * acc / 4
    element += sum(work.columns) / 4 if work.sums else 0
    return held * element + (OTHERS + (work.sums > 0) * OF_SUMS) * acc / 4


def _read_once(n: int, width: int, work: Work, capability: int, clusters: tuple[int, ...]) -> Iterator[ProgramConfig]:
    """Yields the tilings of a program with one pass that reads a row in turns of a few accesses."""
    if work.passes > 1 or work.sums:
        return
    for cluster in clusters:
        for threads in (4, 8, 16, 32, 64, 128, 256, 512):
            accesses = -(-n // (threads * cluster * width))
            longest = threads == ROW_BLOCK and cluster == clusters[-1]
            if (cluster > 1 and threads < 256) or (accesses > MOST_TURNS and not longest):
                continue
            for vectors in (1, 2, 3, 4, 5, 6, 8):
                slice_ = threads * cluster * vectors * width
                if slice_ > n and (vectors > 1 or threads > THREADS[0]):
                    continue
                block = threads if cluster > 1 else max(SMALL_BLOCK, threads)
                registers = vectors * width * (sum(work.elements) / 4 + 0.5) + STREAMING * max(4, *work.elements) / 4
                if resident := _resident(registers, block, capability):
                    yield ProgramConfig(
                        block,
                        threads,
                        width,
                        vectors,
                        cluster=cluster,
                        min_blocks=resident,
                        full=n % slice_ == 0,
                        stream=True,
                        unit=vectors if work.reductions and vectors > 1 else 0,
                    )


def _shared(n: int, width: int, work: Work, capability: int, clusters: tuple[int, ...]) -> Iterator[ProgramConfig]:
    """Yields the tilings that have a row in shared memory, to which bulk copies of multiples of 16 bytes bring it."""
    whole = all(size * width % 16 == 0 for size in work.elements)
    if (
        work.sums
        or work.passes == 1
        or capability < CLUSTERS_SINCE
        or not whole
        or n * sum(work.elements) < SHARED_LEAST
    ):
        return
    room = min(SHARED_ROOM, SHARED_MEMORY_OF.get(capability, SHARED_ROOM))
    for cluster in clusters:
        for threads in (128, 256, 512, 1024):
            for vectors in (1, 2, 4):
                if threads * vectors * width * cluster > MOST_BEYOND * n:
                    continue
                config = ProgramConfig(
                    threads, threads, width, vectors, cluster=cluster, min_blocks=1, full=False, stream=True
                ).with_shared_row(n, work)
                held = vectors * words(work.elements, width)
                resident = min(room // (config.shared + SHARED_OTHER), _resident(held + OTHERS, threads, capability))
                if resident:
                    unit = vectors if work.exponentials and vectors > 1 else 0
                    yield replace(config, min_blocks=min(resident, max(1, 1024 // threads)), unit=unit)


def _tiled(n: int, width: int, work: Work, acc: int, capability: int) -> Iterator[ProgramConfig]:
    """Yields the tilings that have tiles of rows in shared memory, where accesses of 16 bytes do not divide a row.

    A thread holds its part of the row in registers, or each pass reads the row in its tile.
    """
    if capability < CLUSTERS_SINCE or max(work.elements) * width >= 16:
        return
    room = min(TILE_ROOM, SHARED_MEMORY_OF.get(capability, TILE_ROOM))
    threads_at_once = THREADS_AT_ONCE.get(capability, 2048)
    row = n * sum(work.slots)
    for threads in THREADS:
        vectors = -(-n // (threads * width))
        fits = vectors <= MOST_ELEMENTS and (threads == THREADS[0] or threads * vectors * width <= MOST_BEYOND * n)
        streamed = threads >= LEAST_STREAMED and vectors > AT_ONCE and not work.sums
        team = max(32, threads)
        # The threads of a row in several warps meet at a barrier of the block, so the block has no other team.
        block = SMALL_BLOCK if team == 32 else team
        for stream in (*((False,) if fits else ()), *((True,) if streamed else ())):
            accesses = AT_ONCE if stream else vectors
            # An element that is loaded alone has a register of its own.
            columns = 0 if stream else words(work.columns, width)
            held = accesses * (work.row(width, acc) + columns + work.sums * width * acc // 4)
            most = _resident(held + OF_TILE + (work.sums > 0) * OF_SUMS, block, capability)
            for blocks in dict.fromkeys(min(most, of // block) for of in RESIDENT if of <= threads_at_once):
                if blocks == 0:
                    continue
                own = (room // blocks - TILE_OTHER) // (block // team)  # shared memory of a team
                for stages in (3, 2, 1):
                    fit = (own // stages // 16 * 16 - 48 * len(work.slots)) // row
                    # Two stages of fewer rows are better. A streamed row with one stage would wait for its copy.
                    if stages == 1 and (fit > 1 or stream):
                        continue
                    for rows in sorted({min(fit, 1 << i) for i in range(7)}) if fit > 0 else ():
                        yield ProgramConfig(
                            block,
                            threads,
                            width,
                            accesses,
                            rows_each=rows,
                            stages=stages,
                            min_blocks=blocks,
                            full=False,
                            stream=stream,
                            columns_held=bool(work.columns) and not stream,
                            unit=accesses if stream else unit_of(threads, accesses),
                            late=1 if stream else 2,
                            inside=0 if stream else n // (threads * width),
                            shared=block // team * stages * bytes_of_tile(rows * n, work.slots),
                        )


def _from_memory(n: int, width: int, work: Work, acc: int, capability: int, clusters: tuple[int, ...]) -> ProgramConfig:
    """Returns the tiling of a row that nothing holds: each pass reads it from memory."""
    cluster, vectors = min(clusters[-1], PORTABLE_CLUSTER), 2
    held = vectors * work.row(width, acc) + (OTHERS + (work.sums > 0) * OF_SUMS) * acc / 4
    resident = max(1, _resident(held, ROW_BLOCK, capability))
    config = ProgramConfig(
        ROW_BLOCK, ROW_BLOCK, width, vectors, cluster=cluster, min_blocks=resident, full=False, stream=True
    )
    config = replace(config, full=n % (config.slice * cluster) == 0)
    return config.with_shared_sums(n, work.sums, acc, capability)


def cost(config: ProgramConfig, n: int, work: Work, resident: float | None = None) -> float:
    """Returns the cycles of a multiprocessor for a row.

    Args:
        config: the tiling.
        n: elements of a row.
        work: the program's numbers.
        resident: the blocks that a multiprocessor has at once; by default those that the tiling wishes for.
    """
    blocks = config.min_blocks if resident is None else resident
    threads = config.row_threads * config.cluster
    warps = threads / 32
    turns = -(-n // (config.slice * config.cluster)) if config.stream else 1
    accesses, operations = config.vectors * turns, work.operations
    if config.row_shared or (config.stages and config.stream):
        operations += len(work.elements) * (work.passes - 1)
    arrays = len(work.elements) + len(work.columns) + (work.stored > 0)
    # The exponentials of an access, or of a unit of accesses, follow a maximum of their own.
    exponentials = accesses * config.vector_width + JOIN * (turns if config.unit else accesses)
    of_thread = accesses * (config.vector_width * operations + ACCESS * arrays) + REDUCTION * work.reductions + ROW
    of_thread += EXPONENTIAL * exponentials * work.exponentials
    memory = n * (sum(work.elements) + work.written) / BANDWIDTH
    requests = 0 if config.columns_held else len(work.columns)
    latency = (WAITS + config.row_threads / 32 / ISSUED) * of_thread
    latency += CLUSTER * math.log2(config.cluster) * max(1, work.reductions)
    if config.stages:
        # A warp computes several short rows at once. With stores, a stage is loaded again one turn later.
        times, rows = -(-config.rows_each // max(1, 32 // threads)), blocks * config.teams * config.rows_each
        of_thread = (times * of_thread + TILE) / config.rows_each
        latency = times * latency + ALONE * (config.stages - (work.stored > 0) < 2)
        loaded, team = blocks * config.teams * config.stages * config.rows_each, max(1, warps)
    else:
        requests += work.stored + (0 if config.row_shared else len(work.elements))
        loaded = rows = blocks * config.groups / config.cluster
        latency, team = latency + (AHEAD if config.prefetch else COPY if config.row_shared else LOAD), warps
    parts = memory, REQUEST * warps * accesses * requests, team * of_thread / ISSUED, latency / rows
    more = BEYOND * math.log(max(1.0, loaded * n * sum(work.elements) / IN_FLIGHT))
    return math.pow(sum(part**OVERLAP for part in parts), 1 / OVERLAP) * (1 + more + PARTS * (threads < LINE))
