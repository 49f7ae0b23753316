"""Makes the report of one counted launch, with what NVRTC reports of the kernel."""

import re

from cupyops.compile.compiler import binary_for, target_for
from cupyops.errors import CompileError, MissingDependencyError
from cupyops.simulator import Counted

from .advice import advise, bounds_of
from .gpus import Gpu, occupancy
from .launch_report import KernelReport, Resources

__all__ = ["explained"]


def explained(launch: Counted, gpu: Gpu, flops: float | None) -> KernelReport:
    """Returns the report of one counted launch.

    Args:
        launch: the launch.
        gpu: the GPU whose peaks and limits are used.
        flops: floating-point operations of the launch; None for those that the simulation counts.
    """
    kernel, counts = launch.kernel, launch.counts
    block = kernel.geometry.threads
    threads = block[0] * block[1] * block[2]
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    resources, missing = _resources(launch, gpu)
    shared = kernel.hardware.shared
    resident = occupancy(gpu, threads, resources.registers, resources.shared + shared) if resources else None
    flops = counts.flops if flops is None else flops
    bounds = bounds_of(gpu, counts.lines, counts.arrays, flops)
    return KernelReport(
        kernel.describe(launch.types).removesuffix("<>"),
        launch.grid,
        block,
        gpu,
        counts.lines,
        counts.sources,
        counts.arrays,
        shared,
        resources,
        missing,
        resident,
        bounds,
        advise(gpu, counts.lines, counts.arrays, blocks, bounds, resources, resident, threads * blocks),
        flops,
        counts.note,
    )


def _resources(launch: Counted, gpu: Gpu) -> tuple[Resources | None, str]:
    """Returns what NVRTC reports of a kernel, or None and the reason."""
    kernel, types = launch.kernel, launch.types
    what = kernel.describe(types)
    if not kernel.runs_on(gpu.capability):
        return None, f"the kernel needs {kernel.hardware}, and {gpu.name} is sm_{gpu.capability}"
    try:
        target = target_for(gpu.capability)
        if target.startswith("compute_"):
            return None, f"the installed NVRTC does not compile for {gpu.name} (sm_{gpu.capability})"
        binary = binary_for(kernel.final_text(types), what, target, kernel.options)
    except (CompileError, MissingDependencyError) as error:
        return None, f"not compiled for {gpu.name}: {str(error).splitlines()[0]}"
    name = kernel.source.named(binary)
    if name not in binary.resources:
        return None, "the compiler's log has no report of the kernel"
    registers, spills = binary.resources[name]
    report = binary.log.split(f"Compiling entry function '{name}'")[1]
    shared = re.search(r"(\d+) bytes smem", report.partition("Compiling entry function")[0])
    return Resources(target, registers, spills, int(shared[1]) if shared else 0), ""
