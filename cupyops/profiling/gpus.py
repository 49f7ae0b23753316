"""The peaks of known GPUs, and the occupancy of a kernel on them."""

from dataclasses import dataclass

from cupyops.errors import expected

__all__ = ["GPUS", "Gpu", "Occupancy", "gpu_named", "occupancy"]

WARP = 32
REGISTERS = 65536  # registers of a multiprocessor, on every GPU since compute capability 7.0
_REGISTER_UNIT = 256  # a warp's registers are allocated in units of this size
_WARP_UNIT = 4  # the four schedulers of a multiprocessor have equal parts of the registers
_RESERVED = 1024  # bytes of shared memory that the driver takes from each block, from compute capability 8.0 on


@dataclass(frozen=True)
class Limits:
    """The limits of a multiprocessor of one compute capability (CUDA C++ programming guide, "compute capabilities").

    Attributes:
        threads, blocks: the most resident threads and blocks.
        shared: bytes of shared memory for all resident blocks.
        lanes: float32 operations that begin in a clock cycle.
    """

    threads: int
    blocks: int
    shared: int
    lanes: int


_LIMITS = {
    70: Limits(2048, 32, 96 * 1024, 64),
    75: Limits(1024, 16, 64 * 1024, 64),
    80: Limits(2048, 32, 164 * 1024, 64),
    86: Limits(1536, 16, 100 * 1024, 128),
    89: Limits(1536, 24, 100 * 1024, 128),
    90: Limits(2048, 32, 228 * 1024, 128),
    100: Limits(2048, 32, 228 * 1024, 128),
    120: Limits(1536, 24, 100 * 1024, 128),
}


@dataclass(frozen=True)
class Gpu:
    """A GPU by its data sheet.

    Attributes:
        name: the name that :func:`cupyops.explain` takes.
        capability: the compute capability, as major * 10 + minor.
        multiprocessors: their number.
        clock: the boost clock in MHz.
        bandwidth: of the memory, in GB/s.
    """

    name: str
    capability: int
    multiprocessors: int
    clock: int
    bandwidth: int

    @property
    def limits(self) -> Limits:
        """The limits of a multiprocessor."""
        return _LIMITS[self.capability]

    @property
    def flops(self) -> float:
        """The float32 operations of a second, without tensor cores; a fused multiply-add counts as two."""
        return 2e6 * self.multiprocessors * self.limits.lanes * self.clock

    @property
    def cycles(self) -> float:
        """The clock cycles of all multiprocessors in a second."""
        return 1e6 * self.multiprocessors * self.clock


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("V100", 70, 80, 1530, 900),
        Gpu("T4", 75, 40, 1590, 320),
        Gpu("A100", 80, 108, 1410, 2039),
        Gpu("A10", 86, 72, 1695, 600),
        Gpu("RTX 3090", 86, 82, 1695, 936),
        Gpu("L4", 89, 58, 2040, 300),
        Gpu("L40S", 89, 142, 2520, 864),
        Gpu("RTX 4090", 89, 128, 2520, 1008),
        Gpu("H100", 90, 132, 1980, 3350),
        Gpu("H200", 90, 132, 1980, 4800),
        Gpu("B200", 100, 148, 1965, 8000),
        Gpu("RTX 5090", 120, 170, 2407, 1792),
    )
}


def gpu_named(name: str) -> Gpu:
    """Returns a GPU by its name, in any case.

    Raises:
        ValueError: the name is not among :data:`GPUS`.
    """
    found = next((gpu for gpu in GPUS.values() if isinstance(name, str) and gpu.name.lower() == name.lower()), None)
    if found is None:
        raise ValueError(expected("explain", "gpu", f"be one of {', '.join(GPUS)}", name))
    return found


@dataclass(frozen=True)
class Occupancy:
    """The resident blocks of a kernel on a multiprocessor.

    Attributes:
        blocks: resident blocks.
        warps: their warps.
        share: `warps` as a share of the most that a multiprocessor holds.
        limit: what allows no more blocks: ``"threads"``, ``"blocks"``, ``"registers"`` or ``"shared memory"``.
    """

    blocks: int
    warps: int
    share: float
    limit: str


def occupancy(gpu: Gpu, threads: int, registers: int, shared: int) -> Occupancy:
    """Returns the occupancy by the rules of CUDA's occupancy calculator.

    Args:
        gpu: the GPU.
        threads: threads of a block.
        registers: of a thread.
        shared: bytes of static and dynamic shared memory of a block.
    """
    limits = gpu.limits
    warps = -(-threads // WARP)
    of_warp = -(-max(registers, 1) * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    by_registers = REGISTERS // of_warp // _WARP_UNIT * _WARP_UNIT // warps
    unit, reserved = (128, _RESERVED) if gpu.capability >= 80 else (256, 0)
    of_block = -(-(shared + reserved) // unit) * unit
    allowed = {
        "threads": limits.threads // WARP // warps,
        "blocks": limits.blocks,
        "registers": by_registers,
        "shared memory": limits.shared // of_block if of_block else limits.blocks,
    }
    limit = min(allowed, key=lambda name: allowed[name])
    blocks = allowed[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps * WARP / limits.threads, limit)
