"""Configs of row programs: how the rows are distributed among threads, blocks and clusters.

The rule has no table of lengths. It counts the registers that a thread needs for an access to a row, and chooses:

1. **accesses of a thread**, within its registers, so that few lie beyond the end of the row, and enough are in flight;
2. **threads of a row**: a part of a warp, a warp, a block, or a cluster of blocks;
3. **resident threads** of a multiprocessor, as many as the registers allow.

Each pass reads the row from memory if the row does not fit the registers of a cluster, or if the program has one pass.
A program with sums over the rows has persistent blocks, which load the next row while they compute a row. Rows of which
few fit a multiprocessor have persistent blocks, too.

How many blocks a multiprocessor has at once depends on the registers that the compiler gives a thread. For programs with sums it is asked
for those of the cheapest tilings. The next one in the order of the costs is asked about only if it could be cheaper than those that are
known. The length of the rows, the dtypes, the compiler and the GPU decide the config, and with it the order of every sum. The number
of rows decides only how many rows a block has.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

from cupyops.arrays import Device
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.errors import LaunchError, MissingDependencyError
from cupyops.launch import driver
from cupyops.launch.geometry import PORTABLE_CLUSTER
from cupyops.launch.kernel import Kernel
from cupyops.tiling.config import CLUSTERS_SINCE, vector_width_for

from .expressions import kernel_name
from .held_rows import cost, held_with_sums
from .names import ProgramKernel
from .one_pass import one_pass
from .program_config import ROW_BLOCK, ProgramConfig, Work, words
from .row_needs import CLUSTER_BLOCK, MOST_VECTORS, Needs, from_memory, in_registers
from .row_source import text_of
from .rows import EXPS, REDUCED, RowProgram
from .rows_at_once import rows_at_once
from .samples import RowsOfSamples
from .shared_rows import HELD_ALONE, MOST_CLUSTER, SHARED_SLICE, in_shared_memory
from .tiled_rows import in_tiles

__all__ = ["FEW_ROWS", "ProgramConfig", "RowKernels", "Work", "config_of", "kernel_of", "work_of"]

ROW_REGISTERS = 32  # registers of a thread for its part of a row
# The same, where a block has a multiprocessor alone; and the most accesses of a thread then, but for 16-bit rows beside an
# array (N).
ALONE_REGISTERS, ALONE_VECTORS = 64, 14
AHEAD_REGISTERS = 64  # registers of a thread for its parts of a row and of the next row
# The most of them if clusters of 8 blocks would not hold the row: of one array, and of several. The compiler then keeps
# MOST_AHEAD_LESS fewer registers for addresses and arithmetic.
MOST_AHEAD, MOST_AHEAD_LESS = (96, 80), 16
# Registers for addresses and arithmetic, by bytes of an element: in general, with sums over the rows, and without
# reductions.
OTHER_REGISTERS, SUMS_REGISTERS, PLAIN_REGISTERS = {2: 36, 4: 44, 8: 80}, {2: 44, 4: 44, 8: 80}, {2: 48, 4: 44, 8: 88}
BEYOND_HALF = 28  # more registers for accesses beyond the end of a float16 row that is read in one pass
# The compiler packs single elements of float16 late. A program with several passes needs HALF_SINGLES more registers
# for each access of 8 elements, and HALF_LESS fewer for addresses and arithmetic.
HALF_SINGLES, HALF_LESS = 9, 16
DOUBLE_EXPONENTIALS = 24  # more registers for sums of exponentials in float64
# Registers for addresses and arithmetic of a program with exponentials and no array (N), in a small block whose threads have
# up to two accesses.
SHORT_REGISTERS = {2: 24, 4: 32, 8: 80}
# Bytes that the threads of a multiprocessor load at once. Threads that load, compute and store in turn need more bytes
# than threads that load their next row while they compute. float16 takes more registers, so that fewer threads are
# resident.
IN_FLIGHT, HALF_IN_FLIGHT, AHEAD_IN_FLIGHT = 36 * 1024, 56 * 1024, 24 * 1024
EXPS_BLOCKS = 4  # resident blocks, so that some load while others compute exponentials
AT_ONCE_WORDS = 32  # registers for the arrays (N) of all accesses of a thread
MUCH = 3  # operations on an element of each array (M, N) from which on a program computes much. rms_norm has 2.5, softmax 10.
ASKED = 3  # the most tilings of a program with sums whose registers the compiler is asked for
FEW_ROWS = 1024  # with up to this many rows, each block has one row, so that more multiprocessors have one


def work_of(program: RowProgram, sizes: Mapping[str, int]) -> Work:
    """Returns the numbers of a row program that decide its config.

    Args:
        program: the program.
        sizes: bytes of an element of each input, of each result of a dtype that the call chooses, and of the lead.
    """
    types = {program.type_of(x): size for x, size in sizes.items()}
    lead = types["scalar_t"]
    stored = {y: types.get(program.type_of(y), max(4, lead)) for y in program.slots}
    written = len(stored)
    apart = tuple(size for y, size in stored.items() if program.slots[y] >= len(program.elements))
    return Work(
        tuple(sizes[x] for x in program.elements),
        tuple(sizes[x] for x in program.columns),
        kept=len(program.kept),
        sums=list(program.kinds().values()).count("column"),
        passes=program.passes,
        reductions=sum(s.over in REDUCED for s in program.steps),
        exponentials=any(s.over == EXPS for s in program.steps),
        much=len(program.elements) > 2 or program.operations >= MUCH * (len(program.elements) + written),
        counted=program.counted,
        apart=apart,
        stored=written,
        written=sum(stored.values()),
        operations=program.operations,
    )


def config_of(
    n: int,
    dtype: str,
    work: Work,
    capability: int,
    resident: Callable[[ProgramConfig], float] | None = None,
) -> ProgramConfig:
    """Returns the config for rows of n elements.

    Args:
        n: elements of a row.
        dtype: the dtype of the rows.
        work: the program's numbers that decide the registers of a thread.
        capability: compute capability of the GPU, 90 for sm_90.
        resident: returns how many blocks of a config's kernel a multiprocessor has at once, or 0. Without it, a guess decides.
    """
    configs = _configs_of(n, dtype, work, capability)
    if resident is None or len(configs) == 1:
        return configs[0]
    if not work.sums:  # the other config has clusters of up to 8 blocks
        return configs[0] if resident(configs[0]) else configs[1]
    best, least, asked = configs[0], math.inf, 0
    for config in configs:
        if asked == ASKED or least <= cost(config, n, work):
            break
        if blocks := resident(config):
            asked += 1
            if (found := cost(config, n, work, blocks)) < least:
                best, least = config, found
    return best


@cache
def _configs_of(n: int, dtype: str, work: Work, capability: int) -> Sequence[ProgramConfig]:
    """Returns the configs for rows of n elements in the order of their costs, as far as these can be told without the compiler."""
    config = _one_of(n, dtype, work, capability, MOST_CLUSTER)
    if work.sums and not config.stages:
        width, acc = vector_width_for(n, DTYPES[dtype].itemsize), DTYPES[DTYPES[dtype].acc].itemsize
        return held_with_sums(n, width, work, acc, capability, MOST_CLUSTER) or (config,)
    # A GPU may have no room for a cluster of more than 8 blocks.
    portable = [] if config.cluster <= PORTABLE_CLUSTER else [_one_of(n, dtype, work, capability, PORTABLE_CLUSTER)]
    return (config, *portable)


def _one_of(n: int, dtype: str, work: Work, capability: int, most_cluster: int) -> ProgramConfig:
    """Returns a config whose clusters have up to ``most_cluster`` blocks."""
    if capability >= CLUSTERS_SINCE and work.waits_for_arithmetic(dtype):
        config = rows_at_once(n, dtype, work, capability, most_cluster)
        if config is not None:
            return _with_checks(config, work)
    width, acc = vector_width_for(n, DTYPES[dtype].itemsize), DTYPES[DTYPES[dtype].acc].itemsize
    tiled = in_tiles(n, work, acc, width, capability)
    if tiled is not None:
        return tiled
    config = _config_of(n, dtype, work, capability, width, most_cluster)
    if work.sums or work.passes == 1 or capability < CLUSTERS_SINCE or DTYPES[dtype].itemsize > 4:
        return config
    return in_shared_memory(n, dtype, work, capability, width, config, most_cluster) or _with_checks(config, work)


def _with_checks(config: ProgramConfig, work: Work) -> ProgramConfig:
    """Returns the config with bounds checks where a thread has many accesses to arrays (N): without them the compiler loads all of these
    at once, for which registers run short. layer_norm of 8192 elements, in bfloat16 with a float32 weight, takes 168 registers by NVRTC
    12.9, so that three blocks are resident; with checks it takes 96, and five are."""
    at_once = config.vectors * words(work.columns, config.vector_width)
    several = config.full and not config.stream and config.min_blocks > 1
    return replace(config, full=False) if several and at_once > AT_ONCE_WORDS else config


def _config_of(n: int, dtype: str, work: Work, capability: int, width: int, most_cluster: int) -> ProgramConfig:
    """Returns the config for rows of n elements, with accesses of ``width`` elements, that has no row in shared memory."""
    itemsize, acc = DTYPES[dtype].itemsize, DTYPES[DTYPES[dtype].acc].itemsize
    blocks = PORTABLE_CLUSTER if capability >= CLUSTERS_SINCE else 1
    row = work.row(width, acc)
    ahead = row + words(work.elements, width)
    # The compiler widens some 16-bit elements long before their use, more of them if an access has several arrays.
    halves = sum(size == 2 for size in work.elements)
    unpacked = width // 4 + width // 2 * (halves - 1) if halves else 0
    nbytes = sum(work.elements) * width
    others = (SUMS_REGISTERS if work.sums else OTHER_REGISTERS if work.reductions else PLAIN_REGISTERS)[itemsize]
    # An array (N) is loaded at its use, ahead of the arithmetic. Several reductions have a value each.
    used = words(work.columns, width) // 8 if halves < 2 else 0
    others += DOUBLE_EXPONENTIALS if itemsize == 8 and work.exponentials else 0
    if dtype == "float16" and not work.sums and work.passes > 1:
        unpacked, others = HALF_SINGLES * width // 8 * halves, others - HALF_LESS + 6 * (halves - 1)
    others += 6 * max(0, work.reductions - 2) + (12 * len(work.columns) if work.passes == 1 else 0)
    beyond = BEYOND_HALF if work.passes == 1 and dtype == "float16" else 0
    flight = HALF_IN_FLIGHT if dtype == "float16" else IN_FLIGHT
    least = EXPS_BLOCKS if work.exponentials else 0
    plain = Needs(row + unpacked + used, ROW_REGISTERS // row, others, nbytes, flight, least=least, beyond=beyond)
    if work.exponentials and not work.columns and len(work.elements) == 1 and dtype != "float16":
        plain = replace(plain, short=SHORT_REGISTERS[itemsize])
    if work.sums:
        found = None  # no registers hold the row, the next one and the sums
    elif work.passes == 1:
        return one_pass(n, width, dtype, work, plain, row, blocks, capability)
    else:
        found = in_registers(n, width, plain, blocks, capability)
        if found is None or found.cluster > 1 or (found.groups == 1 and found.min_blocks == 1):
            # A multiprocessor holds only one row at a time, or the blocks of a cluster wait for each other: prefetching
            # hides the wait.
            needs = Needs(ahead + unpacked, AHEAD_REGISTERS // ahead, others, nbytes, AHEAD_IN_FLIGHT, prefetch=True)
            # Larger clusters of smaller blocks would leave more multiprocessors without a cluster. Measured without float16.
            needs = replace(needs, block=ROW_BLOCK if dtype in ("float32", "bfloat16") else CLUSTER_BLOCK)
            # The 16-bit elements of a single array are widened at their use.
            whole = row + width // 2 * max(0, halves - 1)
            most = MOST_VECTORS if itemsize == 2 and work.columns else ALONE_VECTORS
            alone = replace(plain, registers=whole, accesses=min(most, ALONE_REGISTERS // row), block=ROW_BLOCK)
            found = _long(n, width, work, alone, needs, found, most_cluster, capability)
    if found is not None:
        # Few rows of several warps are not spread if they sum exponentials, so a thread needs no smaller units. Measured on
        # an H200, units of two accesses were 2 percent faster, and units of four 2 percent slower.
        whole = work.exponentials and itemsize == 4 and found.full and not found.prefetch and found.row_threads > 32
        return replace(found, unit=found.vectors) if whole and found.vectors == 2 else found
    streamed = from_memory(n, width, ROW_BLOCK, min(4, plain.most), plain, blocks, capability)
    return streamed.with_shared_sums(n, work.sums, acc, capability)


def _long(
    n: int,
    width: int,
    work: Work,
    alone: Needs,
    ahead: Needs,
    found: ProgramConfig | None,
    most_cluster: int,
    capability: int,
) -> ProgramConfig | None:
    """Returns the config for a row that needs a multiprocessor or a cluster, or None if no registers hold the row.

    Args:
        alone: the needs of a kernel that holds a row, in a block that has a multiprocessor alone.
        ahead: the needs of a kernel with persistent blocks, which hold the next row, too.
        found: the config of a kernel that holds a row in smaller blocks, if there is one.
        most_cluster: the most blocks of a cluster that this GPU supports.
    """
    bytes_of_row, newer = n * sum(work.elements), capability >= CLUSTERS_SINCE
    blocks, wide = PORTABLE_CLUSTER if newer else 1, newer and ahead.block == ROW_BLOCK
    largest = most_cluster if newer and not work.exponentials else blocks

    def held(needs: Needs, most_blocks: int) -> ProgramConfig | None:
        return in_registers(n, width, needs, most_blocks, capability)

    if not wide:
        return held(ahead, blocks) or found or held(ahead, largest)
    if bytes_of_row > HELD_ALONE and not work.exponentials:
        config = held(alone, 1)
        if config is not None and config.block <= ROW_BLOCK:
            return config
    registers = MOST_AHEAD[len(work.elements) > 1]
    more = replace(ahead, accesses=ahead.accesses * registers // AHEAD_REGISTERS, others=ahead.others - MOST_AHEAD_LESS)
    config = held(ahead, blocks) or held(more, blocks) or held(ahead, largest) or found
    if config is None and not work.exponentials and bytes_of_row > SHARED_SLICE * largest:
        return held(alone, largest)
    return config


class RowKernels:
    """The kernels of a row program.

    Attributes:
        program: the program.
        text: its CUDA C++ text.
        kernel: returns the kernel for a config and the dtype of the rows.
    """

    def __init__(self, program: RowProgram) -> None:
        self.program, self.text = program, text_of(program)
        self.kernel: Callable[[ProgramConfig, str], Kernel] = cache(partial(kernel_of, program, self.text))
        self._configs: dict[Any, ProgramConfig] = {}

    def config(self, n: int, types: Mapping[str, str], device: Device) -> ProgramConfig:
        """Returns the config for rows of n elements on a device.

        Args:
            n: elements of a row.
            types: the dtype of each input, of each result of a dtype that the call chooses, and of the lead.
            device: the device.

        Raises:
            KeyError: the lead's dtype is not floating.
        """
        key = n, tuple(sorted(types.items())), device
        if key not in self._configs:
            dtype, work = types[self.program.lead], self.work(types)
            # The registers in the simulator are those of a CPU.
            ask = partial(self._resident, types, device) if isinstance(device, int) else None
            self._configs[key] = config_of(n, dtype, work, driver.capability(device), ask)
        return self._configs[key]

    def work(self, types: Mapping[str, str]) -> Work:
        """Returns the program's numbers for arrays of some dtypes."""
        return work_of(self.program, {name: DTYPES[of].itemsize for name, of in types.items()})

    def at_once(self, config: ProgramConfig, types: Mapping[str, str], device: Device) -> int:
        """Returns how many blocks of a config's kernel, or clusters of blocks, run at once on a device.

        Raises:
            LaunchError: the GPU has no room for a block or a cluster.
        """
        kernel = self.kernel(config, types[self.program.lead])
        return kernel.resident_blocks(self._types(kernel, types), device) // config.cluster

    def _types(self, kernel: Kernel, types: Mapping[str, str]) -> dict[str, str]:
        """Returns the dtypes of a kernel's types."""
        names = [p.name for p in kernel.signature.parameters]
        bindings = kernel.signature.bindings.items()
        found = {kind: next((types[names[i]] for i in places if names[i] in types), None) for kind, places in bindings}
        return {kind: dtype or types[self.program.lead] for kind, dtype in found.items()}

    def _resident(self, types: Mapping[str, str], device: int, config: ProgramConfig) -> float:
        """Returns how many blocks of a config's kernel a multiprocessor has at once, or 0 if it cannot have one or the compiler spills."""
        kernel = self.kernel(config, types[self.program.lead])
        try:
            if driver.local_bytes(kernel.variant(self._types(kernel, types), device).function):
                return 0
            return self.at_once(config, types, device) * config.cluster / driver.multiprocessors(device)
        # A GPU has no room for some clusters of more than 8 blocks. Without a compiler, a bundle has some of the kernels.
        except (LaunchError, MissingDependencyError):
            return 0

    def ahead(self, lengths: Iterable[int]) -> None:
        """Declares the kernels for rows of some lengths, for :func:`cupyops.warmup` and the compile command."""
        for n, dtype, capability in product(lengths, FLOATS, (CLUSTERS_SINCE, 0)):
            work = self.work(dict.fromkeys((*self.program.inputs, *self.program.typed), dtype))
            for config in _configs_of(n, dtype, work, capability)[:ASKED]:
                self.kernel(config, dtype)


def kernel_of(program: RowProgram, text: str, config: ProgramConfig, dtype: str) -> Kernel:
    """Returns the kernel of a config for rows of ``dtype``."""
    types = {program.type_of(x) for x in (*program.inputs, *program.results)} - {"acc_t", "long long"}
    choice = dict.fromkeys(sorted(types), dtype)
    geometry = config.persistent("blocks__")
    if program.samples:
        geometry = RowsOfSamples(geometry.rows, geometry.block, blocks_per_row=geometry.blocks_per_row)
    text = text_of(program, tiles=True) if config.stages else text
    name = kernel_name(program.name)
    kernel = config.kernel(text, name, choice, geometry=geometry, dtypes=FLOATS, made=ProgramKernel)
    kernel.assumed = (
        *config.assumed,
        *(["parts__ == blocks__"] if "column" in program.kinds().values() else []),
        *(["samples__ >= 1"] if program.samples else []),
    )
    return kernel
