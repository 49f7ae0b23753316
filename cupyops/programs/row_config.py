"""Configs of row programs: how the rows are distributed among threads, blocks and clusters.

Of the tilings that :mod:`.tilings` knows, the one with the lowest cost is taken. The cost depends on how many blocks
a multiprocessor has at once, and so on the registers that the compiler gives a thread. The compiler is asked about the cheapest tilings,
and about the next one in the order of the costs only if it could be cheaper than those that are known.

The length of the rows, the dtypes, the compiler and the GPU decide the config, and with it the order of every sum. The number of rows
decides only how many rows a block has.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

from cupyops.arrays import Device
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.errors import LaunchError, MissingDependencyError
from cupyops.launch import driver
from cupyops.launch.kernel import Kernel
from cupyops.tiling.config import CLUSTERS_SINCE, vector_width_for

from .expressions import kernel_name
from .names import ProgramKernel
from .program_config import ProgramConfig, Work
from .row_source import text_of
from .rows import EXPS, REDUCED, RowProgram
from .samples import RowsOfSamples
from .tilings import cost, tilings

__all__ = ["FEW_ROWS", "ProgramConfig", "RowKernels", "Work", "config_of", "kernel_of", "work_of"]

ASKED = 3  # the most tilings whose registers the compiler is asked for
_OPTIONS = (
    "-default-device",
)  # without it, NVRTC refuses the generic lambdas of row_passes.cuh as functions of the host
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
        work: the program's numbers that decide the config.
        capability: compute capability of the GPU, 90 for sm_90.
        resident: returns how many blocks of a config's kernel a multiprocessor has at once, or 0. Without it, a guess decides.
    """
    return _cheapest(_configs_of(n, dtype, work, capability), n, work, resident)


def _cheapest(
    configs: Sequence[ProgramConfig], n: int, work: Work, resident: Callable[[ProgramConfig], float] | None
) -> ProgramConfig:
    """Returns the config with the lowest cost of those in the order of a guess, as :func:`config_of` does."""
    if resident is None or len(configs) == 1:
        return configs[0]
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
    """Returns the configs for rows of n elements in the order of their costs by a guess of the registers."""
    width, acc = vector_width_for(n, DTYPES[dtype].itemsize), DTYPES[DTYPES[dtype].acc].itemsize
    return sorted(tilings(n, width, work, acc, capability), key=lambda config: cost(config, n, work))


class RowKernels:
    """The kernels of a row program.

    Attributes:
        program: the program.
        text: its CUDA C++ text.
        kernel: returns the kernel for a config and the dtype of the rows.
        like: the kernels of a program with further results, or None. Rows have the config of those kernels, and so the same bits.
    """

    def __init__(self, program: RowProgram, like: "RowKernels | None" = None) -> None:
        self.program, self.text, self.like = program, text_of(program), like
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
            whole, same, configs = self._choices(n, types, driver.capability(device))
            # The registers in the simulator are those of a CPU.
            ask = partial(whole._resident, same, device) if isinstance(device, int) else None
            config = _cheapest(configs, n, whole.work(same), ask)
            self._configs[key] = config.with_tiles(n, self.work(types).slots) if config.stages else config
        return self._configs[key]

    def _choices(
        self, n: int, types: Mapping[str, str], capability: int
    ) -> "tuple[RowKernels, Mapping[str, str], Sequence[ProgramConfig]]":
        """Returns the configs for rows of n elements in the order of a guess, and the kernels and dtypes that decide among them."""
        dtype = types[self.program.lead]
        # A result of another dtype does not count: the result in the rows' dtype is that result, rounded.
        whole = self.like or self
        same = {x: types[x] for x in (*whole.program.inputs, whole.program.lead) if x in types}
        same |= dict.fromkeys(whole.program.typed, dtype)
        return whole, same, _configs_of(n, dtype, whole.work(same), capability)

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
            types = dict.fromkeys((*self.program.inputs, *self.program.typed), dtype)
            for config in self._choices(n, types, capability)[2][:ASKED]:
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
    kernel = config.kernel(text, name, choice, geometry=geometry, dtypes=FLOATS, made=ProgramKernel, options=_OPTIONS)
    kernel.assumed = (
        *config.assumed,
        *(["parts__ == blocks__"] if "column" in program.kinds().values() else []),
        *(["samples__ >= 1"] if program.samples else []),
    )
    return kernel
