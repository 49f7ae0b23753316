"""The few calls into CuPy and the driver that a launch is made of."""

import ctypes
import operator
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from cupyops.arrays import Device
from cupyops.compile import toolchain
from cupyops.compile.cache import Binary
from cupyops.dtypes import DType
from cupyops.errors import LaunchError, expected

from .signature import Signature

__all__ = [
    "ArgumentBuffer",
    "argument_buffer",
    "capability",
    "check_parameters",
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
        memory: the values, one behind the other.
        addresses: address of the table of their addresses, which is what the driver is given.
        table: that table, kept alive.
    """

    memory: Any
    addresses: int
    table: Any


def argument_buffer(size: int, offsets: Sequence[int]) -> ArgumentBuffer:
    """A buffer for values at these offsets."""
    memory = ctypes.create_string_buffer(max(size, 1))
    base = ctypes.addressof(memory)
    table = (ctypes.c_void_p * max(len(offsets), 1))(*(base + o for o in offsets))
    return ArgumentBuffer(memory, ctypes.addressof(table), table)


@cache
def launch_kernel() -> Callable[..., None]:
    """CuPy's binding of cuLaunchKernel. It takes the argument values as they lie in memory, where RawKernel's call
    widens every int to 8 bytes."""
    toolchain.cupy()
    from cupy.cuda import driver

    call: Callable[..., None] = driver.launchKernel
    return call


@cache
def launch_cooperative_kernel() -> Callable[..., None]:
    """The same of cuLaunchCooperativeKernel: all blocks of the grid run at once, or the driver refuses. Two such grids
    on two streams, each of which would fit alone, run one after the other and do not wait for each other for ever."""
    toolchain.cupy()
    from cupy.cuda import driver

    call: Callable[..., None] = driver.launchCooperativeKernel

    def launch(*arguments: int) -> None:
        call(*arguments[:-1])  # it has no `extra`

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
    """Launches on the current device. A thread that has never used the GPU gets its context first."""
    launch = launch_cooperative_kernel() if cooperative else launch_kernel()
    try:
        launch(function, *grid, *block, shared, stream, buffer.addresses, 0)
    except Exception as error:
        if "INVALID_CONTEXT" not in str(error):
            raise
        ensure_context()
        launch(function, *grid, *block, shared, stream, buffer.addresses, 0)


# What the driver says, from then on, to whoever asks, once a kernel has failed while it ran.
_FATAL = (
    *("ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC"),
    *("HARDWARE_STACK_ERROR", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ERROR_ASSERT"),
)


def refusal(error: Exception) -> str:
    """What became of a launch that the driver refused, for a message."""
    words = str(error)
    if any(name in words for name in _FATAL):
        return f"did not run, since an earlier kernel failed on this GPU: {words}. CUPYOPS_DEBUG=1 says which one"
    if "OUT_OF_RESOURCES" in words:
        return (
            f"was refused: {words}. Its threads want more registers than a multiprocessor has: use smaller blocks, or "
            f"declare __launch_bounds__(threads) in the text"
        )
    return f"was refused: {words}"


def ensure_context() -> None:
    """Makes the current device's context current in this thread."""
    runtime = toolchain.cupy().cuda.runtime
    runtime.setDevice(runtime.getDevice())
    runtime.free(0)


def load(binary: Binary, name: str) -> Any:
    """Loads a binary on the current device: a :class:`cupy.RawKernel` from its file in the cache, or a function from
    memory."""
    cupy = toolchain.cupy()
    if binary.path is not None:
        return cupy.RawModule(path=str(binary.path)).get_function(name)
    module = cupy.cuda.function.Module()
    module.load(binary.code)
    return module.get_function(name)


def handle(raw: Any) -> int:
    """The driver's handle of what :func:`load` returned, on the current device."""
    return int(getattr(raw, "kernel", raw).ptr)


def allow_shared_memory(raw: Any, size: int) -> None:
    """Raises a kernel's limit of dynamic shared memory above the 48 KiB that every kernel may use."""
    max_dynamic_shared_size_bytes = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    toolchain.cupy().cuda.driver.funcSetAttribute(handle(raw), max_dynamic_shared_size_bytes, size)


def allow_large_clusters(raw: Any) -> None:
    """Raises a kernel's limit of blocks a cluster above 8, to 16 where the GPU has them. Whether so
    many multiprocessors lie together, :func:`resident_blocks` tells."""
    non_portable_cluster_size_allowed = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    toolchain.cupy().cuda.driver.funcSetAttribute(handle(raw), non_portable_cluster_size_allowed, 1)


@cache
def capability(device: Device) -> int:
    """The compute capability of a device, 90 for 9.0."""
    if not isinstance(device, int):
        return device.capability
    return int(toolchain.cupy().cuda.Device(device).compute_capability)


@cache
def name(device: int) -> str:
    """What a GPU is called, "NVIDIA H200"."""
    found = toolchain.cupy().cuda.runtime.getDeviceProperties(device)["name"]
    return found.decode() if isinstance(found, bytes) else str(found)


@cache
def multiprocessors(device: Device) -> int:
    """How many multiprocessors a device has."""
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
    """How many blocks of a kernel run on the current GPU at once, by the driver's reckoning; whole clusters only.

    Raises:
        LaunchError: none can, since a block wants more than a multiprocessor has.
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


def check_parameters(raw: Any, what: str, signature: Signature, fields: Sequence[tuple[int, int]]) -> None:
    """Compares the parameters read from the text with what the driver reports of the loaded kernel.

    Drivers before CUDA 12.4 do not tell; the text alone is trusted there.

    Raises:
        LaunchError: they differ, so the text's declaration was misread and a launch would pass garbage.
    """
    query = getattr(libcuda(), "cuFuncGetParamInfo", None)
    if query is None:
        return
    function = ctypes.c_void_p(handle(raw))
    reported: list[int] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    while query(function, ctypes.c_size_t(len(reported)), ctypes.byref(offset), ctypes.byref(size)) == 0:
        reported.append(size.value)
    declared = [size for _, size in fields]
    if reported != declared:
        pairs = ", ".join(f"{p.name}: {d}" for p, d in zip(signature.parameters, declared, strict=True))
        raise LaunchError(
            f"{what}: the text declares parameters of {pairs} bytes, but the loaded kernel has {reported}. "
            f"Declare parameters with plain types and no macros, so that the declaration can be read."
        )


@cache
def _packing(dtype: DType) -> Callable[[Any], bytes]:
    return struct.Struct(f"={dtype.code}").pack


def check_scalar(kernel: str, parameter: str, dtype: DType, number: Any) -> None:
    """Refuses what cannot be packed as a number of this type.

    Raises:
        TypeError: it is no number, or no integer, or neither True nor False, as the type wants.
        ValueError: it is beyond what the type holds.
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
        kind = "a number" if dtype.name.startswith("float") else "an integer"
        raise TypeError(expected(kernel, parameter, f"be {kind} ({dtype.name})", repr(number))) from error


def is_integer(value: Any) -> bool:
    """Whether Python takes it for an integer."""
    try:
        operator.index(value)
    except Exception:  # whatever a stranger's __index__ raises
        return False
    return True


def _is_bool(value: Any) -> bool:
    """Whether it is one of Python's or NumPy's two; packing would take the truth of anything."""
    import numpy

    return isinstance(value, (bool, numpy.bool_))
