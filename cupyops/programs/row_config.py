"""Configs of row programs: how the rows are distributed among threads, blocks and clusters.

The rule has no table of lengths. It counts the registers that a thread needs for an access to a row, and chooses:

1. **accesses of a thread**, as many as registers hold, so that few of them lie beyond the end of the row;
2. **threads of a row**: a part of a warp, a warp, a block, or a cluster of blocks;
3. **resident threads** of a multiprocessor, as many as the registers allow.

A row that does not fit the registers of a cluster is read again in each pass. A program with sums over the rows has
persistent blocks, which load the next row while they compute a row. The length of the rows, the dtypes and the GPU
decide the config, and with it the order of every sum. The number of rows decides only how many rows a block has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from cupyops.dtypes import DTYPES, FLOATS
from cupyops.launch.geometry import MAX_BLOCK, PORTABLE_CLUSTER
from cupyops.launch.kernel import Kernel
from cupyops.tiling.config import CLUSTERS_SINCE, THREADS_AT_ONCE, vector_width_for
from cupyops.tiling.rows import RowsConfig

from .expressions import kernel_name
from .rows import EXPS, REDUCTIONS, RowProgram

__all__ = ["FEW_ROWS", "ProgramConfig", "Work", "config_of", "kernel_of", "work_of"]

ROW_REGISTERS = 32  # registers of a thread for its part of a row
ELEMENTWISE_REGISTERS = 12  # the same for a program that reduces no row
PERSISTENT_REGISTERS = 80  # the same in persistent blocks, with the next row, the arrays (N) and the sums over the rows
OTHER_REGISTERS = {2: 36, 4: 36, 8: 64}  # registers for addresses and arithmetic, by bytes of an element
PERSISTENT_OTHERS = {2: 44, 4: 44, 8: 80}  # the same in persistent blocks
# Bytes that the resident threads of a multiprocessor load at once. Threads that load, compute and store in turn need more
# of them than threads that load their next row meanwhile.
IN_FLIGHT, PREFETCHED = 64 * 1024, 32 * 1024
MOST_VECTORS = 16  # accesses of a thread; the loops over them are unrolled
WHOLE_LINE = 8  # neighbouring threads whose accesses of 16 bytes fill a line of the cache
SMALL_BLOCK = 128  # threads of a block with several rows
# Threads of a block that has a row alone, and of a block of a cluster: several blocks are then resident on a
# multiprocessor, and one block loads while another one computes.
ROW_BLOCK, CLUSTER_BLOCK = 512, 256
FEW_ROWS = 1024  # with up to this many rows, each block has one row, so that more multiprocessors have one
THREADS = (2048, 1536, 1280, 1024, 768, 640, 512, 384, 256)  # candidates for the resident threads of a multiprocessor
REGISTERS = 65536  # registers of a multiprocessor


@dataclass(frozen=True)
class ProgramConfig(RowsConfig):
    """The config of a row program's kernel.

    Attributes:
        stream: a row does not fit registers, so each pass reads the row from memory.
        prefetch: persistent blocks load the next row while they compute a row.
        columns_held: a thread keeps its columns of the arrays (N) in registers.
    """

    # Without defaults, so that each compilation defines the three macros.
    min_blocks: int = field(kw_only=True)
    full: bool = field(kw_only=True)
    stream: bool = field(kw_only=True)
    prefetch: bool = False
    columns_held: bool = False


@dataclass(frozen=True)
class Work:
    """What a thread holds of a row.

    Attributes:
        elements: bytes of an element of each array (M, N) that the program reads.
        columns: bytes of an element of each array (N) that the program reads.
        kept: values of an element that several passes read, in the dtype of the arithmetic.
        sums: sums over the rows.
        reduces: the program reduces rows. Without a reduction, nothing is gained by holding a row.
    """

    elements: tuple[int, ...]
    columns: tuple[int, ...] = ()
    kept: int = 0
    sums: int = 0
    reduces: bool = True

    def row(self, width: int, acc: int) -> int:
        """Returns the registers of an access of ``width`` elements to a row, with ``acc`` bytes a kept value."""
        return _words(self.elements, width) + self.kept * width * acc // 4

    def persistent(self, width: int, acc: int) -> int:
        """Returns the registers for the columns of an access: the arrays (N) and the sums over the rows."""
        return _words(self.columns, width) + self.sums * width * acc // 4


def _words(sizes: tuple[int, ...], width: int) -> int:
    return sum(max(1, size * width // 4) for size in sizes)


def work_of(program: RowProgram, sizes: Mapping[str, int]) -> Work:
    """Returns what a thread holds of a row.

    Args:
        program: the program.
        sizes: bytes of an element of each input.
    """
    sums = list(program.kinds().values()).count("column")
    of = (tuple(sizes[x] for x in names) for names in (program.elements, program.columns))
    return Work(*of, len(program.kept), sums, any(s.over in (*REDUCTIONS, EXPS) for s in program.steps))


@cache
def config_of(n: int, dtype: str, work: Work, capability: int) -> ProgramConfig:
    """Returns the config for rows of n elements.

    Args:
        n: elements of a row.
        dtype: the dtype of the rows.
        work: what a thread holds of a row.
        capability: compute capability of the GPU, 90 for sm_90.
    """
    itemsize, acc = DTYPES[dtype].itemsize, DTYPES[DTYPES[dtype].acc].itemsize
    width = vector_width_for(n, itemsize)
    cluster = PORTABLE_CLUSTER if capability >= CLUSTERS_SINCE and (work.reduces or work.sums) else 1
    row, columns = work.row(width, acc), work.persistent(width, acc)
    others = (PERSISTENT_OTHERS if work.sums else OTHER_REGISTERS)[itemsize] + (0 if work.reduces else 12)
    nbytes = sum(work.elements) * width
    # The compiler widens some 16-bit elements long before their use, more of them if an access has several arrays.
    halves = sum(size == 2 for size in work.elements)
    unpacked = width // 4 + width // 2 * (halves - 1) if halves else 0
    if not work.sums:
        budget = ROW_REGISTERS if work.reduces else ELEMENTWISE_REGISTERS
        plans = [_Plan(row, budget, others, nbytes, IN_FLIGHT, unpacked)]
    else:
        ahead = row + columns + _words(work.elements, width)
        plans = [
            _Plan(ahead, PERSISTENT_REGISTERS, others, nbytes, PREFETCHED, prefetch=True, columns_held=True),
            _Plan(row + columns, PERSISTENT_REGISTERS, others, nbytes, IN_FLIGHT, unpacked, columns_held=True),
        ]
    for plan in plans:
        if (config := _held(n, width, plan, cluster, capability)) is not None:
            return config
    plan = _Plan(row, ROW_REGISTERS, others, nbytes, IN_FLIGHT, unpacked)
    vectors = min(plan.most, 4)
    min_blocks = plan.resident(vectors, ROW_BLOCK, capability)
    return ProgramConfig(
        ROW_BLOCK, ROW_BLOCK, width, vectors, cluster=cluster, min_blocks=min_blocks, full=False, stream=True
    )


@dataclass(frozen=True)
class _Plan:
    """The needs of a kernel that holds a row in registers.

    Attributes:
        registers: registers for each access of a thread.
        budget: registers for all accesses of a thread.
        others: registers for everything else.
        nbytes: bytes that an access loads from all arrays (M, N).
        wanted: bytes that a multiprocessor loads at once.
        unpacked: further registers for each access that are needed for a while.
        prefetch, columns_held: the fields of the config.
    """

    registers: int
    budget: int
    others: int
    nbytes: int
    wanted: int
    unpacked: int = 0
    prefetch: bool = False
    columns_held: bool = False

    @property
    def most(self) -> int:
        """The most accesses of a thread."""
        return max(1, min(MOST_VECTORS, self.budget // max(1, self.registers)))

    def resident(self, vectors: int, block: int, capability: int) -> int:
        """Returns how many blocks the registers of a multiprocessor hold, or 0."""
        needed = vectors * (self.registers + self.unpacked) + self.others
        threads = next((t for t in THREADS if REGISTERS // t // 8 * 8 >= needed), THREADS[-1])
        return min(threads, THREADS_AT_ONCE.get(capability, 2048)) // block


def _held(n: int, width: int, plan: _Plan, most_blocks: int, capability: int) -> ProgramConfig | None:
    """Returns the config that holds a row in registers, or None if no block and no cluster does.

    A row has a block, if ``ROW_BLOCK`` threads hold it (``CLUSTER_BLOCK`` threads, if a block is persistent), else the
    smallest cluster of blocks of ``CLUSTER_BLOCK`` threads, or the next larger blocks.
    """
    clusters = [c for c in (2, 4, 8) if c <= most_blocks]
    tiers = [(1, CLUSTER_BLOCK if plan.columns_held else ROW_BLOCK)]
    tiers += [(c, block) for block in (CLUSTER_BLOCK, ROW_BLOCK, MAX_BLOCK) for c in (1, *clusters)]

    def config_for(vectors: int, cluster: int) -> ProgramConfig:
        config = ProgramConfig.of(
            n, width, vectors, block=SMALL_BLOCK if cluster == 1 else 1, cluster=cluster, min_blocks=0, stream=False
        )
        min_blocks = plan.resident(vectors, config.block, capability)
        return replace(config, min_blocks=min_blocks, prefetch=plan.prefetch, columns_held=plan.columns_held)

    def cost(config: ProgramConfig) -> tuple[int, bool, int, bool, int]:
        part = config.slice * config.cluster / max(n, 1)  # the elements of all accesses, in units of the row
        flight = config.min_blocks * config.block * config.vectors * plan.nbytes / part
        missing = max(0, 8 - int(8 * flight / plan.wanted))  # in eighths
        threads = config.row_threads
        return missing, threads > 32, int(16 * part), threads < WHOLE_LINE, config.vectors

    for cluster, most_threads in tiers:
        configs = (config_for(v, cluster) for v in range(1, plan.most + 1))
        fitting = [
            c for c in configs if c.row_threads <= most_threads and c.min_blocks and (cluster == 1 or c.row_threads > 32)
        ]
        if fitting:
            return min(fitting, key=cost)
    return None


def kernel_of(program: RowProgram, text: str, config: ProgramConfig, dtype: str) -> Kernel:
    """Returns the kernel of a config for rows of ``dtype``."""
    types = {program.type_of(x) for x in (*program.inputs, *program.results)} - {"acc_t", "long long"}
    choice = dict.fromkeys(sorted(types), dtype)
    return config.kernel(text, kernel_name(program.name), choice, geometry=config.persistent("blocks__"), dtypes=FLOATS)
