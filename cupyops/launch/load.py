"""Compiles a kernel for a choice of types and loads it on a GPU."""

from collections.abc import Mapping
from typing import Any

from cupyops.compile import bundle, toolchain
from cupyops.compile.cache import Binary
from cupyops.compile.compiler import binary_for, target_for
from cupyops.compile.file_scope import variables
from cupyops.compile.linking import parts
from cupyops.dtypes import DTYPES
from cupyops.errors import CompileError, LaunchError, MissingDependencyError

from . import driver
from .geometry import PORTABLE_CLUSTER, Target
from .variant import Variant

__all__ = ["compiled", "load", "target_of"]


def load(kernel: Any, types: Mapping[str, str], device: int) -> Variant:
    """Returns a :class:`.kernel.Kernel` for a choice of types, loaded on a GPU.

    The binary comes from the bundle, the cache or NVRTC.

    Raises:
        LaunchError: the GPU cannot run the kernel, or has less shared memory than the kernel needs.
        CompileError: NVRTC refuses the text.
        MissingDependencyError: NVRTC or a header of CUDA is missing, and no bundle has the binary.
    """
    cupy = toolchain.cupy()
    what = kernel.describe(types)
    if kernel.base is not None:
        found: Variant = kernel.base.variant(types, device)
        # The copies have one function of the driver, which keeps the largest limit.
        if kernel.hardware.shared > found.limit[0]:
            with cupy.cuda.Device(device) as gpu:
                _allow_shared_memory(found.raw, kernel.hardware.shared, what, device, int(gpu.compute_capability))
            found.limit[0] = kernel.hardware.shared
        return found.configured(kernel.geometry, kernel.hardware)
    with cupy.cuda.Device(device) as gpu:
        capability = int(gpu.compute_capability)
        if not kernel.runs_on(capability):
            raise LaunchError(f"{what} needs a GPU of {kernel.hardware}, and GPU {device} is sm_{capability}")
        text, binary = compiled(kernel, types, capability)
        code = None
        if kernel.source.module or variables(parts(text)[0]):
            code = kernel.storage.on_gpu(kernel, types, text, binary, device)
        raw = (
            driver.load(binary, kernel.name) if code is None else code.module.get_function(kernel.source.named(binary))
        )
        packing = kernel.signature.packing(types, kernel.constants)
        if kernel.geometry.cluster > PORTABLE_CLUSTER:
            driver.allow_large_clusters(raw)
        _allow_shared_memory(raw, kernel.hardware.shared, what, device, capability)
        target = target_of(kernel, types, gpu.attributes["MultiProcessorCount"])
        # CuPy's kernel returns the handle for the current GPU, so the variant is created while this GPU is current.
        return Variant(what, raw, packing, kernel.geometry, target, kernel.hardware, code)


def compiled(kernel: Any, types: Mapping[str, str], capability: int) -> tuple[str, Binary]:
    """Returns the final text of a kernel and its binary for a compute capability, from the bundle, the cache or NVRTC.

    Raises:
        CompileError, MissingDependencyError: as :func:`load`.
    """
    text, what = kernel.final_text(types), kernel.describe(types)
    binary = bundle.find(text, capability, kernel.options)
    if binary is None:
        try:
            binary = binary_for(text, what, target_for(capability), kernel.options)
        except CompileError as error:
            raise kernel.source.located(error) from error.__cause__
        except MissingDependencyError as error:
            raise MissingDependencyError(f"{bundle.lacking(what, capability)}{error}") from error
    kernel.compare(binary.types, types)
    return text, binary


def target_of(kernel: Any, types: Mapping[str, str], multiprocessors: int) -> Target:
    """Returns what the kernel's launch policy asks about the arrays and the GPU."""
    itemsize = max((DTYPES[p.c_type(types)].itemsize for p in kernel.signature.parameters if p.pointer), default=4)
    return Target(itemsize, multiprocessors)


def _allow_shared_memory(raw: Any, shared: int, what: str, device: int, capability: int) -> None:
    """Allows a launch with that many bytes of dynamic shared memory.

    Raises:
        LaunchError: the GPU has less.
    """
    if not shared:
        return
    try:
        # Static shared memory counts against the limit of 48 KiB, too, so every amount sets the attribute.
        driver.allow_shared_memory(raw, shared)
    except Exception as error:  # CuPy's driver errors
        raise LaunchError(
            f"{what} needs {shared} bytes of dynamic shared memory per block, which GPU {device} "
            f"(sm_{capability}) does not have: {error}"
        ) from error
