"""Translations of the CUDA runtime's names for kernels, streams and events."""

import time
from collections.abc import Callable
from typing import Any

import torch

from cupyops.arrays import host
from cupyops.compile import toolchain
from cupyops.launch import driver

from . import cuda_textures  # noqa: F401  its C++ text comes first
from .cuda import enum
from .cuda_devices import on_gpu
from .launches import errors, stream_of
from .numbers import NUMBERS
from .words import word

__all__: list[str] = []


enum(
    "cudaFuncAttribute",
    {"MaxDynamicSharedMemorySize": 8, "PreferredSharedMemoryCarveout": 9, "NonPortableClusterSizeAllowed": 14},
    "cudaFuncAttribute",
)
enum("cudaFuncCache", {"None": 0, "Shared": 1, "L1": 2, "Equal": 3}, "cudaFuncCachePrefer")


@word("cudaFuncSetAttribute", "template <class T> cudaError_t cudaFuncSetAttribute(T*, cudaFuncAttribute, int);")
@word("cudaFuncSetCacheConfig", "template <class T> cudaError_t cudaFuncSetCacheConfig(T*, cudaFuncCache);")
def func_set_attribute(kernel: Any, attribute: int, value: int = 0) -> int:
    """Does nothing: a launch allows the bytes of shared memory that it asks for."""
    return 0


@word("cudaDeviceSetCacheConfig", "cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache);")
def device_set_cache_config(config: int) -> int:
    return 0


def _occupancy(kernel: Any, threads: int, shared: int) -> int:
    """Returns the blocks of a kernel that a multiprocessor runs at once."""
    if on_gpu():
        device = torch.cuda.current_device()
        made = kernel.kernel((threads, 1, 1), shared)
        return int(made.resident_blocks({}, device)) // driver.multiprocessors(device)
    return int(min(32, 64 // -(-threads // 32), (228 << 10) // (shared + 1024)))


@word(
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "template <class T> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*, T*, int, size_t);",
)
def occupancy_blocks(count: Any, kernel: Any, threads: int, shared: int) -> int:
    count[0] = _occupancy(kernel, threads, shared)
    return 0


@word(
    "cudaOccupancyMaxPotentialBlockSize",
    "template <class T> cudaError_t cudaOccupancyMaxPotentialBlockSize(int*, int*, T*, size_t = 0, int = 0);",
)
def occupancy_block_size(grid: Any, block: Any, kernel: Any, shared: int = 0, limit: int = 0) -> int:
    if on_gpu():
        variant = kernel.kernel((32, 1, 1), shared).variant({}, torch.cuda.current_device())
        call = toolchain.cupy().cuda.driver.occupancyMaxPotentialBlockSize
        grid[0], block[0] = map(int, call(variant.function, shared, limit))
        return 0
    threads = min(limit or 1024, 1024)
    grid[0], block[0] = host().multiprocessors * _occupancy(kernel, threads, shared), threads
    return 0


def _launched(launch: Callable[..., None], count: int, arguments: Any) -> int:
    places = (arguments[i] for i in range(count))
    launch(*(p.cast(p.element)[0] for p in places))  # each `void*` points to a value of the parameter's type
    return errors.last


_LAUNCH = "template <class T> cudaError_t {0}(T*, dim3, dim3, void**, size_t = 0, cudaStream_t = 0);"


@word("cudaLaunchKernel", _LAUNCH.format("cudaLaunchKernel"))
def launch_kernel(kernel: Any, grid: Any, block: Any, arguments: Any, shared: int = 0, stream: Any = None) -> int:
    return _launched(kernel[grid, block, shared, stream], kernel.count, arguments)


@word("cudaLaunchCooperativeKernel", _LAUNCH.format("cudaLaunchCooperativeKernel"))
def launch_cooperative(kernel: Any, grid: Any, block: Any, arguments: Any, shared: int = 0, stream: Any = None) -> int:
    return _launched(kernel.cooperative(grid, block, shared, stream), kernel.count, arguments)


# Streams, which are the driver's handles, and events


enum("cudaStreamFlags", {"Default": 0, "NonBlocking": 1}, "cudaStream")


@word("cudaStreamCreate", "cudaError_t cudaStreamCreate(cudaStream_t*);")
@word("cudaStreamCreateWithFlags", "cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned);")
@word("cudaStreamCreateWithPriority", "cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned, int);")
def stream_create(place: Any, flags: int = 0, priority: int = 0) -> int:
    # PyTorch keeps its streams to the end of the process.
    place[0] = torch.cuda.Stream(priority=priority).cuda_stream if on_gpu() else None
    return 0


def _real(stream: Any) -> Any:
    """Returns PyTorch's stream of a handle, or the current stream. None in the simulator."""
    return stream_of(stream) or torch.cuda.current_stream() if on_gpu() else None


@word("cudaStreamSynchronize", "cudaError_t cudaStreamSynchronize(cudaStream_t);")
@word("cudaStreamDestroy", "cudaError_t cudaStreamDestroy(cudaStream_t);")
def stream_synchronize(stream: Any) -> int:
    if found := _real(stream):
        found.synchronize()
    return 0


@word("cudaStreamQuery", "cudaError_t cudaStreamQuery(cudaStream_t);")
def stream_query(stream: Any) -> int:
    found = _real(stream)
    return 0 if found is None or found.query() else 600


@word("CUevent_st")
class _Event:
    """An event: of PyTorch, or the time of the host in the simulator."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True) if on_gpu() else None
        self.seconds = 0.0

    def record(self, stream: Any) -> None:
        if self.event is not None:
            self.event.record(_real(stream))
        self.seconds = time.perf_counter()


enum("cudaEventFlags", {"Default": 0, "BlockingSync": 1, "DisableTiming": 2}, "cudaEvent")


@word("cudaEventCreate", "cudaError_t cudaEventCreate(cudaEvent_t*);")
@word("cudaEventCreateWithFlags", "cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);")
def event_create(place: Any, flags: int = 0) -> int:
    place[0] = _Event()
    return 0


@word("cudaEventRecord", "cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = 0);")
def event_record(event: Any, stream: Any = None) -> int:
    event.record(stream)
    return 0


@word("cudaStreamWaitEvent", "cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0);")
def stream_wait_event(stream: Any, event: Any, flags: int = 0) -> int:
    if event.event is not None:
        _real(stream).wait_event(event.event)
    return 0


@word("cudaEventSynchronize", "cudaError_t cudaEventSynchronize(cudaEvent_t);")
def event_synchronize(event: Any) -> int:
    if event.event is not None:
        event.event.synchronize()
    return 0


@word("cudaEventQuery", "cudaError_t cudaEventQuery(cudaEvent_t);")
def event_query(event: Any) -> int:
    return 0 if event.event is None or event.event.query() else 600


@word("cudaEventElapsedTime", "cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t);")
def event_elapsed_time(place: Any, start: Any, end: Any) -> int:
    real = start.event is not None and end.event is not None
    place[0] = NUMBERS["float32"](start.event.elapsed_time(end.event) if real else 1e3 * (end.seconds - start.seconds))
    return 0


@word("cudaEventDestroy", "cudaError_t cudaEventDestroy(cudaEvent_t);")
def event_destroy(event: Any) -> int:
    return 0


# cuBLAS: matrices lie column by column
