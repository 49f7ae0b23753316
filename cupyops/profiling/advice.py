"""Derives lower bounds of a kernel's time, and what to change, from its counts."""

from collections.abc import Iterator, Sequence

from cupyops.simulator.counts import SECTOR, ArrayCounts, Line, Requests

from .gpus import Gpu, Occupancy
from .launch_report import Advice, Bound, Resources, amount, total

__all__ = ["advise", "bounds_of"]

_FEW = 0.02  # a change worth less than this share of the largest bound is not advised
_WIDEST = 16  # bytes that one access of a lane moves at most


def bounds_of(gpu: Gpu, lines: Sequence[Line], arrays: Sequence[ArrayCounts], flops: float) -> tuple[Bound, ...]:
    """Returns lower bounds of the time on a GPU, the largest first.

    Each bound is an amount divided by a peak rate: the needed bytes by the bandwidth of the memory, the wavefronts of
    shared memory by one wavefront for each clock cycle of a multiprocessor, the operations by the float32 peak. The
    bound of the memory holds if no cache has the arrays before the launch.
    """
    needed = sum(a.loaded_bytes + a.stored_bytes for a in arrays)
    found = [Bound("memory", needed / gpu.bandwidth / 1e3, f"{amount(needed)} at {gpu.bandwidth} GB/s ({gpu.name})")]
    wavefronts = total(lines, "shared").wavefronts
    if wavefronts:
        words = f"{wavefronts} wavefronts, one a cycle on each of {gpu.multiprocessors} multiprocessors"
        found.append(Bound("shared memory", wavefronts / gpu.cycles * 1e6, words))
    if flops:
        words = f"{flops:.4g} operations at {gpu.flops / 1e12:.1f} Tflop/s (float32, without tensor cores)"
        found.append(Bound("arithmetic", flops / gpu.flops * 1e6, words))
    return tuple(sorted(found, key=lambda b: -b.microseconds))


def advise(
    gpu: Gpu,
    lines: Sequence[Line],
    arrays: Sequence[ArrayCounts],
    blocks: int,
    bounds: Sequence[Bound],
    resources: Resources | None,
    occupancy: Occupancy | None,
    threads: int,
) -> tuple[Advice, ...]:
    """Returns what to change, the most valuable first.

    The worth of a change is an estimate that orders the advice. It is the time of the wasted work at the GPU's peak
    rate: wasted sectors at the bandwidth of the memory, wasted wavefronts and lanes at the clock.

    Args:
        gpu: the GPU.
        lines, arrays: the counts.
        blocks: blocks of the grid.
        bounds: the result of :func:`bounds_of`.
        resources, occupancy: of the compiled kernel, or None.
        threads: all threads of the launch.
    """
    found = [advice for line in lines for advice in _of_line(gpu, line)]
    found += _of_arrays(gpu, arrays)
    bound = bounds[0].microseconds
    if blocks < gpu.multiprocessors:
        idle = bound * (gpu.multiprocessors / blocks - 1)
        words = (
            f"{gpu.name} has {gpu.multiprocessors} multiprocessors, and blocks of the grid for {blocks} of them. Smaller "
            f"blocks, or more work, would occupy the others."
        )
        found.append(Advice(words, idle))
    if resources and resources.spills:
        words = (
            f"The compiler spills {resources.spills} bytes of a thread to local memory. Keep fewer values alive, or lower "
            f"the threads in __launch_bounds__."
        )
        found.append(Advice(words, resources.spills * threads / gpu.bandwidth / 1e3))
    if occupancy and not occupancy.blocks:
        found.append(Advice(f"No block fits a multiprocessor of {gpu.name}: too many {occupancy.limit}.", float("inf")))
    elif occupancy and occupancy.share < 0.5 and occupancy.limit in ("registers", "shared memory"):
        words = (
            f"{occupancy.limit.capitalize()} of a block allow {occupancy.share:.0%} of the warps that a multiprocessor "
            f"holds. More warps hide more latency, unless each thread has several loads in flight."
        )
        found.append(Advice(words, bound * (0.5 - occupancy.share)))
    least = _FEW * bound
    return tuple(sorted((a for a in found if a.microseconds > least), key=lambda a: -a.microseconds))


def _of_line(gpu: Gpu, line: Line) -> Iterator[Advice]:
    place = f"{line.file}:{line.number}"
    for kind, verb in (("load", "loads"), ("store", "stores")):
        r = line.of("global", kind)
        if r.sectors > r.ideal:
            words = (
                f"A warp {verb} {r.per_request:.1f} sectors of 32 bytes where {r.ideal / r.requests:.1f} hold the bytes. "
                f"Let neighbouring threads access neighbouring addresses that begin at a multiple of 32 bytes."
            )
            yield Advice(words, _moved(gpu, r.sectors - r.ideal), place)
        narrow = _narrow(r)
        if narrow:
            words = (
                f"A thread {verb} {narrow:.0f} bytes at a time. Accesses of 16 bytes (float4, or Vector<T, N> of vector.cuh) "
                f"need {_WIDEST / narrow:.0f} times fewer instructions."
            )
            yield Advice(words, r.requests * (1 - narrow / _WIDEST) / (gpu.cycles * 4) * 1e6, place)
    shared = line.of("shared", "load", "store")
    if shared.conflicts:
        words = (
            f"A request to shared memory has {shared.conflicts_per_request:.1f} bank conflicts. Lanes access different words "
            f"of one bank: pad the rows by one element, or permute the columns."
        )
        yield Advice(words, shared.conflicts / gpu.cycles * 1e6, place)
    for space in ("global", "shared"):
        atomic = line.of(space, "atomic")
        if atomic.collisions > atomic.requests:
            words = (
                f"An atomic operation has {atomic.collisions / atomic.requests:.1f} lanes at one address, which take turns. "
                f"Reduce within the warp or the block first, and let one thread make the atomic operation."
            )
            yield Advice(words, (atomic.collisions - atomic.requests) / (gpu.clock * 1e6) * 1e6, place)
    if line.executions and line.active < 24:
        words = (
            f"{line.active:.1f} of 32 lanes execute the line. Give the lanes of a warp the same branch and the same number "
            f"of iterations."
        )
        wasted = line.executions * (1 - line.active / 32)
        yield Advice(words, wasted / (gpu.cycles * 4) * 1e6, place)


def _narrow(r: Requests) -> float:
    """Returns the bytes of a lane in coalesced requests of less than 16 bytes, or 0 for other requests."""
    if not r.lanes or r.sectors > r.ideal or r.lanes < 24 * r.requests:
        return 0
    each = r.sectors * SECTOR / r.lanes
    return each if each in (2, 4, 8) else 0


def _moved(gpu: Gpu, sectors: int) -> float:
    return sectors * SECTOR / gpu.bandwidth / 1e3


def _of_arrays(gpu: Gpu, arrays: Sequence[ArrayCounts]) -> Iterator[Advice]:
    for a in arrays:
        again = a.loaded / a.loaded_bytes if a.loaded_bytes else 0
        # The L1 cache has the size of shared memory. It serves the repeated loads of a small array.
        if again >= 1.9 and a.loaded_bytes > gpu.limits.shared:
            words = (
                f"`{a.name}` is loaded {again:.1f} times over: {amount(a.loaded)} for "
                f"{amount(a.loaded_bytes)}. Caches may serve the repetitions; registers or shared memory surely do."
            )
            # Half of the time: the L2 cache serves a part of the repeated loads.
            yield Advice(words, (a.loaded - a.loaded_bytes) / gpu.bandwidth / 2e3)
