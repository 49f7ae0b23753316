"""Compiling ahead of the first call, so that no training step or graph capture waits for NVRTC."""

from collections.abc import Iterable
from typing import Any

from cupyops.compile import toolchain
from cupyops.dtypes import dtype_names

from . import driver
from .kernel import Kernel, all_kernels

__all__ = ["warmup"]


def warmup(
    dtypes: Any = ("float32", "float16", "bfloat16"),
    *,
    kernels: Iterable[Kernel] | None = None,
    device: int | None = None,
) -> int:
    """Compiles and loads kernels on a GPU, for all arrays of one dtype at a time.

    A kernel that meets other types later (mixed dtypes, say) is still compiled at that call; one that this GPU cannot run
    is left out.

    Args:
        dtypes: one or several, by name or as PyTorch's or NumPy's; kernels that do not take one of them leave it out.
        kernels: all that have been declared, by default.
        device: index of the GPU; CuPy's current one by default.

    Returns:
        How many kernels were made ready.

    Raises:
        ValueError: an unknown dtype.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing.
    """
    dtypes = dtype_names("warmup", dtypes)
    if device is None:
        device = int(toolchain.cupy().cuda.Device().id)
    ready = 0
    for kernel in all_kernels() if kernels is None else kernels:
        if kernel.hardware.since and not kernel.runs_on(driver.capability(device)):
            continue
        for types in kernel.type_choices():
            if set(types.values()) <= set(dtypes):
                kernel.variant(types, device)
                ready += 1
    return ready
