"""Calls CuPy and the CUDA driver: loads kernels, launches them, and queries devices and occupancy."""

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from cupyops.arrays import Device
from cupyops.compile import toolchain
from cupyops.compile.cache import Binary
from cupyops.dtypes import FLOATS, DType, bfloat16_bits
from cupyops.errors import LaunchError, expected

from .geometry import is_integer

__all__ = [
    "ArgumentBuffer",
    "argument_buffer",
    "capability",
    "check_scalar",
    "ensure_context",
    "handle",
    "load",
    "name",
    "resident_blocks",
    "submit",
]


class ArgumentBuffer(NamedTuple):
    """Memory for the values of one launch's arguments.

    Attributes:
        memory: the values, packed one after another.
        addresses: address of `table`, which the driver takes.
        table: the addresses of the values. This reference keeps the table alive.
    """

    memory: Any
    addresses: int
    table: Any


def argument_buffer(size: int, offsets: Sequence[int]) -> ArgumentBuffer:
    """Returns a buffer of `size` bytes for values at the given offsets."""
    memory = ctypes.create_string_buffer(max(size, 1))
    base = ctypes.addressof(memory)
    table = (ctypes.c_void_p * max(len(offsets), 1))(*(base + o for o in offsets))
    return ArgumentBuffer(memory, ctypes.addressof(table), table)


@cache
def launch_kernel() -> Callable[..., None]:
    """Returns CuPy's binding of cuLaunchKernel.

    The binding takes the packed argument values. A call of ``RawKernel`` would widen every int to 8 bytes.
    """
    toolchain.cupy()
    from cupy.cuda import driver

    call: Callable[..., None] = driver.launchKernel
    return call


@cache
def launch_cooperative_kernel() -> Callable[..., None]:
    """Returns CuPy's binding of cuLaunchCooperativeKernel, with the parameters of cuLaunchKernel.

    All blocks of a cooperative grid run at once, or the driver refuses the launch. Two cooperative grids on two streams
    run one after the other if the GPU cannot hold both. They cannot deadlock.
    """
    toolchain.cupy()
    from cupy.cuda import driver

    call: Callable[..., None] = driver.launchCooperativeKernel

    def launch(*arguments: int) -> None:
        call(*arguments[:-1])  # cuLaunchCooperativeKernel has no parameter `extra`

    return launch


def submit(
    function: int,
    grid: Sequence[int],
    block: Sequence[int],
    shared: int,
    stream: int,
    buffer: ArgumentBuffer,
    *,
    cooperative: bool = False,
) -> None:
    """Launches a kernel on the current device. If the thread has no CUDA context, the context is made current first."""
    launch = launch_cooperative_kernel() if cooperative else launch_kernel()
    try:
        launch(function, *grid, *block, shared, stream, buffer.addresses, 0)
    except Exception as error:
        if "INVALID_CONTEXT" not in str(error):
            raise
        ensure_context()
        launch(function, *grid, *block, shared, stream, buffer.addresses, 0)


# After a kernel has failed during its run, every later call of the driver or of the runtime returns one of these errors.
_FATAL = (
    *("ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC"),
    *("HARDWARE_STACK_ERROR", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ERROR_ASSERT"),
    *("ErrorIllegalAddress", "ErrorIllegalInstruction", "ErrorMisalignedAddress", "ErrorInvalidAddressSpace"),
    *("ErrorInvalidPc", "ErrorHardwareStackError", "ErrorLaunchFailure", "ErrorLaunchTimeout", "ErrorAssert"),
)


def refusal(error: Exception) -> str:
    """Returns the part of an error message that says why the driver refused a launch."""
    words = str(error)
    if ended(error):
        return f"did not run, since an earlier kernel failed on this GPU: {words}{ended(error)}. CUPYOPS_DEBUG=1 names the kernel"
    if "OUT_OF_RESOURCES" in words:
        return (
            f"was refused: {words}. A block needs more registers than a multiprocessor has: use smaller blocks, or "
            f"declare __launch_bounds__(threads) in the text"
        )
    return f"was refused: {words}"


def ended(error: Exception) -> str:
    """Returns what an error message adds if the error has ended the GPU's context, else ``""``."""
    words = str(error)
    if not any(name in words for name in _FATAL):
        return ""
    printed = ". The GPU has printed the failed assert to stderr" if "ASSERT" in words.upper() else ""
    return f"{printed}. The process has lost the GPU: restart the process"


def ensure_context() -> None:
    """Makes the current device's context current in this thread."""
    runtime = toolchain.cupy().cuda.runtime
    runtime.setDevice(runtime.getDevice())
    runtime.free(0)


def load(binary: Binary, name: str) -> Any:
    """Loads a kernel of a binary on the current device.

    Returns a :class:`cupy.RawKernel` if the cache holds the binary's file, else a function of a module loaded from
    memory.
    """
    cupy = toolchain.cupy()
    name = binary.named(name)
    if binary.path is not None:
        return cupy.RawModule(path=str(binary.path)).get_function(name)
    module = cupy.cuda.function.Module()
    module.load(binary.code)
    return module.get_function(name)


def handle(raw: Any) -> int:
    """Returns the driver's function handle of a kernel that :func:`load` returned, on the current device."""
    return int(getattr(raw, "kernel", raw).ptr)


def allow_shared_memory(raw: Any, size: int) -> None:
    """Sets a kernel's limit of dynamic shared memory, which is 48 KiB by default."""
    max_dynamic_shared_size_bytes = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    toolchain.cupy().cuda.driver.funcSetAttribute(handle(raw), max_dynamic_shared_size_bytes, size)


def local_bytes(function: int) -> int:
    """Returns the bytes of local memory of a thread: those of its arrays, and of registers that the compiler spilled."""
    local_size_bytes = 3  # CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
    return int(toolchain.cupy().cuda.driver.funcGetAttribute(local_size_bytes, function))


def allow_large_clusters(raw: Any) -> None:
    """Allows clusters of more than 8 blocks for a kernel, up to 16 on GPUs that support such clusters.

    :func:`resident_blocks` raises if no cluster of the given size fits the GPU.
    """
    non_portable_cluster_size_allowed = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    toolchain.cupy().cuda.driver.funcSetAttribute(handle(raw), non_portable_cluster_size_allowed, 1)


@cache
def capability(device: Device) -> int:
    """Returns the compute capability of a device, 90 for 9.0."""
    if not isinstance(device, int):
        return device.capability
    return int(toolchain.cupy().cuda.Device(device).compute_capability)


@cache
def name(device: int) -> str:
    """Returns the name of a GPU, "NVIDIA H200"."""
    found = toolchain.cupy().cuda.runtime.getDeviceProperties(device)["name"]
    return found.decode() if isinstance(found, bytes) else str(found)


@cache
def multiprocessors(device: Device) -> int:
    """Returns the number of multiprocessors of a device."""
    if not isinstance(device, int):
        return device.multiprocessors
    return int(toolchain.cupy().cuda.Device(device).attributes["MultiProcessorCount"])


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


def resident_blocks(function: int, threads: int, shared: int, cluster: int) -> int:
    """Returns how many blocks of a kernel run at once on the current GPU, by the driver's occupancy functions.

    Only whole clusters count.

    Raises:
        LaunchError: a block or a cluster needs more resources than the GPU has.
    """
    driver = toolchain.cupy().cuda.driver
    multiprocessors = int(toolchain.cupy().cuda.Device().attributes["MultiProcessorCount"])
    if cluster == 1:
        blocks = int(driver.occupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared)) * multiprocessors
    else:
        cluster_dimension = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute = _LaunchAttribute(cluster_dimension, 0, (ctypes.c_uint * 16)(cluster, 1, 1))
        config = _LaunchConfig(
            cluster * multiprocessors, 1, 1, threads, 1, 1, shared, None, ctypes.pointer(attribute), 1
        )
        clusters = ctypes.c_int()
        status = libcuda().cuOccupancyMaxActiveClusters(
            ctypes.byref(clusters), ctypes.c_void_p(function), ctypes.byref(config)
        )
        blocks = 0 if status else clusters.value * cluster
    if blocks == 0:
        raise LaunchError(
            f"no block of {threads} threads with {shared} bytes of shared memory (in clusters of {cluster}) fits this GPU"
        )
    return blocks


@cache
def libcuda() -> Any:
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


@cache
def _packing(dtype: DType) -> Callable[[Any], bytes]:
    pack = struct.Struct(f"={dtype.code}").pack
    return (lambda number: pack(bfloat16_bits(number))) if dtype.name == "bfloat16" else pack


def check_scalar(kernel: str, parameter: str, dtype: DType, number: Any) -> None:
    """Raises unless a number can be packed as the dtype.

    Raises:
        TypeError: `number` is not a number (float dtypes), not an integer (integer dtypes) or not a bool (bool).
        ValueError: `number` is outside the range of the dtype.
    """
    if dtype.name == "bool" and not _is_bool(number):
        raise TypeError(expected(kernel, parameter, "be True or False", repr(number)))
    try:
        _packing(dtype)(number)
    except OverflowError as error:
        raise ValueError(expected(kernel, parameter, f"fit {dtype.name}", f"{number} ({error})")) from None
    except Exception as error:
        if is_integer(number):
            raise ValueError(expected(kernel, parameter, f"fit {dtype.name}", number)) from None
        kind = "a number" if dtype.name in FLOATS else "an integer"
        raise TypeError(expected(kernel, parameter, f"be {kind} ({dtype.name})", repr(number))) from error


def _is_bool(value: Any) -> bool:
    """Returns whether the value is a bool of Python or NumPy.

    ``struct`` would accept any object for its truth value.
    """
    import numpy

    return isinstance(value, (bool, numpy.bool_))
