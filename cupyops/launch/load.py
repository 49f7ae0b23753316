"""Compiles a kernel for a choice of types and loads it on a GPU: a :class:`Variant`, with the properties that a launch uses."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupyops.compile import bundle, toolchain
from cupyops.compile.cache import Binary
from cupyops.compile.compiler import binary_for, target_for
from cupyops.compile.file_scope import variables
from cupyops.compile.linking import parts
from cupyops.dtypes import DTYPES
from cupyops.errors import CompileError, LaunchError, MissingDependencyError, expected

from . import driver
from .geometry import PORTABLE_CLUSTER, Geometry, Target, at_least

__all__ = ["Hardware", "Variant", "compiled", "load", "target_of"]

_OLDEST = 30  # the least compute capability that `since` accepts


@dataclass(frozen=True)
class Hardware:
    """The hardware that a kernel's text needs.

    Attributes:
        since: the least compute capability, 90 for clusters of blocks and bulk copies; 0 for any GPU.
        exactly: the kernel runs on the compute capability `since` only, and on no later one.
        cooperative: all blocks of a launch must run at once.
        shared: bytes of dynamic shared memory per block.
    """

    since: int = 0
    exactly: bool = False
    cooperative: bool = False
    shared: int = 0

    @classmethod
    def checked(cls, kernel: str, since: Any, exactly: bool, cooperative: bool, shared: Any) -> "Hardware":
        """Returns the hardware that a kernel needs.

        Raises:
            ValueError: `since` is not a compute capability, or `shared` is negative.
            TypeError: `since` or `shared` is not an integer.
        """
        capability = at_least(kernel, "since", since, 0)
        if not (capability == 0 or _OLDEST <= capability < 1000) or (exactly and not capability):
            raise ValueError(expected(kernel, "since", "be a compute capability, such as 90", capability))
        return cls(capability, exactly, cooperative, at_least(kernel, "shared", shared, 0))

    def __str__(self) -> str:
        return f"sm_{self.since}{' and no other' if self.exactly else ' or later'}"

    @property
    def options(self) -> tuple[str, ...]:
        """The NVRTC options for this hardware."""
        return (f"-arch=sm_{self.since}a",) if self.exactly else ()

    def met_by(self, capability: int) -> bool:
        """Returns whether GPUs of a compute capability can run the kernel."""
        return capability == self.since if self.exactly else capability >= self.since


class Variant:
    """A kernel compiled for one choice of types and loaded on one GPU.

    Attributes:
        what: kernel and dtypes, for messages.
        raw: the :class:`cupy.RawKernel`, or a function loaded from memory if the cache folder cannot be written.
        function: the driver's handle of the kernel.
        grid: function from the values of the size parameters to the grid.
        unit: the value of the name `unit` in the geometry's expressions, see :meth:`Geometry.unit`.
        threads: threads of a block in x, y, z.
        shared: bytes of dynamic shared memory per block.
        limit: the largest number of these bytes that the driver allows so far, shared by the copies of :meth:`configured`.
        cluster: blocks of a cluster.
        cooperative: all blocks of a launch must run at once.
        code: the loaded code with the variables of the text, a :class:`.variables.GpuCode`; None without variables.
        pack_into: writes all argument values into a buffer, each with the width declared in the kernel.
        buffers: free argument buffers. Each launch takes a buffer and returns it, so that two threads never share a
            buffer.
    """

    __slots__ = (
        *("_packing", "_resident", "buffers", "cluster", "code", "cooperative", "function"),
        *("grid", "limit", "pack_into", "raw", "shared", "threads", "unit", "what"),
    )

    def __init__(
        self,
        what: str,
        raw: Any,
        packing: tuple[Any, list[tuple[int, int]]],
        geometry: Geometry,
        target: Target,
        hardware: Hardware = Hardware(),
        code: Any = None,
    ) -> None:
        self.what = what
        self.raw = raw
        self.function = driver.handle(raw)
        self.grid = geometry.grid_for(target)
        self.unit = geometry.unit(target)
        self.threads = geometry.threads
        self.shared = hardware.shared
        self.limit = [hardware.shared]
        self.cluster = geometry.cluster
        self.cooperative = hardware.cooperative
        self.code = code
        self._resident: int | None = None
        self._packing = packing
        self.pack_into = packing[0].pack_into
        self.buffers: list[driver.ArgumentBuffer] = []

    def configured(self, geometry: Geometry, hardware: Hardware) -> "Variant":
        """Returns the same loaded code for another block and other bytes of shared memory."""
        found = copy.copy(self)
        found.shared, found._resident = hardware.shared, None
        if geometry.per_call:  # else the grid is that of the kernel's own policy
            found.grid, found.threads = geometry.grid_for(Target(1, 1)), geometry.threads
        return found

    def new_buffer(self) -> driver.ArgumentBuffer:
        """Returns a new buffer for the arguments of one launch. A launch calls this when no free buffer is left."""
        return driver.argument_buffer(self._packing[0].size, [offset for offset, _ in self._packing[1]])

    def resident_blocks(self, device: int) -> int:
        """Returns how many blocks of the kernel run on the GPU at once."""
        if self._resident is None:
            with toolchain.cupy().cuda.Device(device):
                threads = self.threads[0] * self.threads[1] * self.threads[2]
                self._resident = driver.resident_blocks(self.function, threads, self.shared, self.cluster)
        return self._resident

    def packed(self, arguments: Sequence[Any]) -> driver.ArgumentBuffer:
        """Returns a new buffer with the packed arguments.

        Each argument is an address, a number or a tuple of numbers.
        """
        buffer = self.new_buffer()
        self.pack_into(buffer.memory, 0, *(n for a in arguments for n in (a if isinstance(a, tuple) else (a,))))
        return buffer


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
