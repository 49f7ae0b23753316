"""What a row program's kernel needs of a multiprocessor, and the configs that its registers then allow."""

from dataclasses import dataclass, replace

from cupyops.launch.geometry import MAX_BLOCK
from cupyops.tiling.config import THREADS_AT_ONCE

from .program_config import REGISTERS, ROW_BLOCK, ProgramConfig

__all__ = ["CLUSTER_BLOCK", "MOST_VECTORS", "SMALL_BLOCK", "WHOLE_LINE", "Needs", "from_memory", "in_registers"]

MOST_VECTORS = 16  # accesses of a thread; the loops over them are unrolled
WHOLE_LINE = 8  # neighbouring threads whose accesses of 16 bytes fill a line of the cache
SMALL_BLOCK = 128  # threads of a block with several rows
# Threads of a block of a cluster: as with ROW_BLOCK, several blocks are then resident on a multiprocessor, and one block loads
# while another one computes.
CLUSTER_BLOCK = 256


@dataclass(frozen=True)
class Needs:
    """The needs of a kernel.

    Attributes:
        registers: registers for each access of a thread.
        accesses: the most accesses that the registers for a row hold.
        others: registers for everything else.
        nbytes: bytes that an access loads from all arrays (M, N).
        wanted: bytes that a multiprocessor loads at once.
        prefetch: the field of the config.
        light: the program reads one array in one pass.
        least: the fewest resident blocks that are enough.
        short: registers for everything else in a small block whose threads have up to two accesses; 0: as in others.
        beyond: registers for accesses beyond the end of the row.
        block: the threads of the smallest block of a cluster.
    """

    registers: int
    accesses: int
    others: int
    nbytes: int
    wanted: int
    prefetch: bool = False
    light: bool = False
    least: int = 0
    short: int = 0
    beyond: int = 0
    block: int = CLUSTER_BLOCK

    @property
    def most(self) -> int:
        """The most accesses of a thread."""
        return max(1, min(MOST_VECTORS, self.accesses))

    def resident(self, vectors: int, block: int, capability: int) -> int:
        """Returns how many blocks are resident on a multiprocessor, or 0."""
        others = self.short if self.short and vectors <= 2 and block <= SMALL_BLOCK else self.others
        registers = -(-(vectors * self.registers + others) // 8) * 8
        threads = THREADS_AT_ONCE.get(capability, 2048)
        blocks = REGISTERS // (registers * block)
        if self.light:  # the estimate is tight, and each of the four parts of a multiprocessor has whole warps
            blocks = REGISTERS // (4 * 32 * registers) * 4 // -(-block // 32)
        return min(blocks, threads // block, 32 if threads == 2048 else 16)


def in_registers(n: int, width: int, needs: Needs, most_blocks: int, capability: int) -> ProgramConfig | None:
    """Returns the config that holds a row in registers, or None if no block and no cluster does.

    A row has a block, if ``ROW_BLOCK`` threads hold it, else the smallest cluster of blocks of ``needs.block`` threads, or the next
    larger blocks.
    """
    clusters = [c for c in (2, 4, 8, 16) if c <= most_blocks]
    tiers = [(1, ROW_BLOCK)]
    tiers += [
        (c, block) for block in (CLUSTER_BLOCK, ROW_BLOCK, MAX_BLOCK) if block >= needs.block for c in (1, *clusters)
    ]

    def config_for(vectors: int, cluster: int) -> ProgramConfig:
        config = ProgramConfig.of(
            n, width, vectors, block=SMALL_BLOCK if cluster == 1 else 1, cluster=cluster, min_blocks=0, stream=False
        )
        own = needs if config.full or not needs.short else replace(needs, short=needs.short + 8)
        min_blocks = own.resident(vectors, config.block, capability)
        return replace(config, min_blocks=min_blocks, prefetch=needs.prefetch)

    def cost(config: ProgramConfig) -> float:
        all_accesses = config.slice * config.cluster / max(n, 1)  # in units of the row
        flight = config.min_blocks * config.block * config.vectors * needs.nbytes / all_accesses
        missing = max(0.0, 1 - flight / needs.wanted)
        threads = config.row_threads
        # Lines of the cache read in parts cost less than a fifth of the threads without work. Of equal cuts the one with
        # fewer accesses of a thread is faster, even with the barrier of a small block. A thread that loads, computes and
        # stores in turn needs two accesses.
        barrier = 0.004 if needs.prefetch or threads <= SMALL_BLOCK else 0.02
        return (
            missing
            + 0.5 * (all_accesses - 1)
            + barrier * (threads > 32)
            + 0.1 * (threads < WHOLE_LINE)
            + 0.02 * max(0, needs.least - config.min_blocks)
            + 0.05 * (config.vectors == 1 and not needs.prefetch)
            + config.vectors * needs.nbytes / 16 / 200
        )

    for cluster, most_threads in tiers:
        configs = (config_for(v, cluster) for v in range(1, needs.most + 1))
        fitting = [
            c
            for c in configs
            if c.row_threads <= most_threads and c.min_blocks and (cluster == 1 or c.row_threads > 32)
        ]
        if fitting:
            return min(fitting, key=cost)
    return None


def from_memory(
    n: int, width: int, threads: int, vectors: int, needs: Needs, cluster: int, capability: int
) -> ProgramConfig:
    """Returns the config of a kernel that reads the row in every pass."""
    block = threads if cluster > 1 else max(SMALL_BLOCK, threads) // threads * threads
    full = n > 0 and n % (threads * vectors * width * cluster) == 0
    if not full:
        needs = replace(needs, others=needs.others + needs.beyond)
    min_blocks = max(1, needs.resident(vectors, block, capability))
    return ProgramConfig(block, threads, width, vectors, cluster=cluster, min_blocks=min_blocks, full=full, stream=True)
