"""Compiles kernels ahead of their first call, so that no training step or graph capture waits for NVRTC."""

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
    """Compiles and loads kernels on a GPU for the given dtypes, with one dtype for all arrays of a kernel.

    A kernel that gets arrays of other dtypes later, for example of mixed dtypes, is compiled at the call. Kernels that
    the GPU cannot run are skipped.

    Args:
        dtypes: one dtype or several, as names or as dtypes of PyTorch or NumPy. A kernel skips the dtypes that it does
            not take.
        kernels: the kernels to compile; all declared kernels by default.
        device: index of the GPU; CuPy's current GPU by default.

    Returns:
        The number of compiled variants: one for each kernel and choice of types.

    Raises:
        ValueError: a dtype is unknown.
        MissingDependencyError: CuPy, NVRTC or the CUDA headers are not installed.
    """
    dtypes = dtype_names("warmup", dtypes)
    if device is None:
        device = int(toolchain.cupy().cuda.Device().id)
    ready = 0
    for kernel in all_kernels() if kernels is None else kernels:
        if kernel.hardware.since and not kernel.runs_on(driver.capability(device)):
            continue
        for types in kernel.type_choices():
            if {*types.values()} - {""} <= {*dtypes}:
                kernel.variant(types, device)
                ready += 1
    return ready
