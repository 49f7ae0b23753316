"""The memory functions of CUDA's runtime and of the C library."""

from typing import Any

import torch

from . import memory
from .cuda import enum
from .cuda_devices import SIMULATED, device_synchronize, done, on_gpu
from .errors import NotTranslated
from .launches import on_stream
from .memory import DevicePointer
from .words import word

__all__ = ["rows_of"]


enum(
    "cudaMemcpyKind",
    {"HostToHost": 0, "HostToDevice": 1, "DeviceToHost": 2, "DeviceToDevice": 3, "Default": 4},
    "cudaMemcpy",
)


def _allocated(kind: Any, place: Any, count: int, on_host: bool = False) -> int:
    # A cast, (void**)&p, keeps the type of the variable.
    of = getattr(place, "element", None)
    kind = of[1] if kind is None and isinstance(of, tuple) else kind
    try:
        place[0] = memory.allocate(count, kind, on_host)
    except torch.OutOfMemoryError:
        return done(2)
    return 0


@word("cudaMalloc", "template <class T> cudaError_t cudaMalloc(T**, size_t);", typed=True)
def malloc(kind: Any, place: Any, count: int) -> int:
    return _allocated(kind, place, count)


@word("cudaMallocAsync", "template <class T> cudaError_t cudaMallocAsync(T**, size_t, cudaStream_t);", typed=True)
def malloc_async(kind: Any, place: Any, count: int, stream: Any) -> int:
    with on_stream(stream):
        return _allocated(kind, place, count)


@word(
    "cudaMallocPitch",
    "template <class T> cudaError_t cudaMallocPitch(T**, size_t*, size_t, size_t);",
    typed=True,
)
def malloc_pitch(kind: Any, place: Any, pitch: Any, width: int, height: int) -> int:
    pitch[0] = -(-width // 512) * 512
    return _allocated(kind, place, pitch[0] * height)


_PINNED = "template <class T> cudaError_t {0}(T**, size_t, unsigned = 0);"


@word("cudaHostAlloc", _PINNED.format("cudaHostAlloc"), typed=True)
@word("cudaMallocHost", _PINNED.format("cudaMallocHost"), typed=True)
def malloc_host(kind: Any, place: Any, count: int, flags: int = 0) -> int:
    return _allocated(kind, place, count, on_host=True)


@word("cudaMallocManaged", "template <class T> cudaError_t cudaMallocManaged(T**, size_t, unsigned = 1);", typed=True)
def malloc_managed(kind: Any, place: Any, count: int, flags: int = 1) -> int:
    if on_gpu():
        raise NotTranslated("cudaMallocManaged: host code would read and write the memory of the GPU")
    return _allocated(kind, place, count, on_host=True)


@word("cudaFreeHost", "cudaError_t cudaFreeHost(void*);")
@word("cudaFree", "cudaError_t cudaFree(void*);")
def free(pointer: Any) -> int:
    if pointer is None:
        return 0
    device_synchronize()  # CUDA waits, too: a kernel on another stream may use the memory
    return _freed(pointer)


@word("cudaFreeAsync", "cudaError_t cudaFreeAsync(void*, cudaStream_t);")
def free_async(pointer: Any, stream: Any) -> int:
    return 0 if pointer is None else _freed(pointer)


# The C library's memory works alike: a cast determines its type.


@word("malloc", "void* malloc(size_t); void* calloc(size_t, size_t); void free(void*);"
      " namespace std { using ::malloc; using ::calloc; using ::free; }")  # fmt: skip
def host_malloc(count: int) -> Any:
    return memory.allocate(count, None, True)


@word("calloc")
def host_calloc(count: int, size: int) -> Any:
    made = host_malloc(count * size)
    memory.fill(made, 0, count * size)
    return made


@word("free")
def host_free(pointer: Any) -> None:
    if pointer is not None:
        _freed(pointer)


@word("memset", "void* memset(void*, int, size_t); void* memcpy(void*, const void*, size_t);"
      " namespace std { using ::memset; using ::memcpy; }")  # fmt: skip
def host_memset(pointer: Any, value: int, count: int) -> Any:
    memory.fill(pointer, value, count)
    return pointer


@word("memcpy")
def host_memcpy(to: Any, source: Any, count: int) -> Any:
    memory.copy(to, source, count)
    return to


def _freed(pointer: Any) -> int:
    if not isinstance(pointer, DevicePointer) or not pointer.memory.owned:
        return done(1)
    storage = pointer.memory.storage
    if storage.data_ptr() != pointer.offset:
        return done(1)
    pointer.memory.owned = False
    storage.resize_(0)
    return 0


@word(
    "cudaMemcpyAsync",
    "cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t = 0);",
)
@word("cudaMemcpy", "cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind);")
def memcpy(to: Any, source: Any, count: int, kind: int, stream: Any = None) -> int:
    with on_stream(stream):
        memory.copy(to, source, count)
    return 0


def rows_of(pointer: Any, pitch: int, width: int, height: int) -> Any:
    """Returns the bytes of rows that begin `pitch` bytes after each other, as a matrix."""
    if not isinstance(pointer, DevicePointer):
        raise NotTranslated("rows of a variable of host code")
    whole = pointer.memory.bytes_at(pointer.offset, (height - 1) * pitch + width)
    return whole.as_strided((height, width), (pitch, 1))


_COPY_ROWS = "cudaError_t {0}(void*, size_t, const void*, size_t, size_t, size_t, cudaMemcpyKind{1});"


@word("cudaMemcpy2DAsync", _COPY_ROWS.format("cudaMemcpy2DAsync", ", cudaStream_t = 0"))
@word("cudaMemcpy2D", _COPY_ROWS.format("cudaMemcpy2D", ""))
def memcpy_rows(
    to: Any, to_pitch: int, source: Any, pitch: int, width: int, height: int, kind: int, stream: Any = None
) -> int:
    if width > min(to_pitch, pitch):
        return done(12)  # cudaErrorInvalidPitchValue
    if width and height:
        with on_stream(stream):
            rows_of(to, to_pitch, width, height).copy_(rows_of(source, pitch, width, height))
    return 0


_SET_ROWS = "cudaError_t {0}(void*, size_t, int, size_t, size_t{1});"


@word("cudaMemset2DAsync", _SET_ROWS.format("cudaMemset2DAsync", ", cudaStream_t = 0"))
@word("cudaMemset2D", _SET_ROWS.format("cudaMemset2D", ""))
def memset_rows(pointer: Any, pitch: int, value: int, width: int, height: int, stream: Any = None) -> int:
    if width and height:
        with on_stream(stream):
            rows_of(pointer, pitch, width, height).fill_(value & 255)
    return 0


@word("cudaMemsetAsync", "cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t = 0);")
@word("cudaMemset", "cudaError_t cudaMemset(void*, int, size_t);")
def memset(pointer: Any, value: int, count: int, stream: Any = None) -> int:
    with on_stream(stream):
        memory.fill(pointer, value, count)
    return 0


_TO = (
    "template <class T> cudaError_t {0}(const T&, const void*, size_t, size_t = 0, "
    "cudaMemcpyKind = cudaMemcpyHostToDevice{1});"
)
_FROM = (
    "template <class T> cudaError_t {0}(void*, const T&, size_t, size_t = 0, "
    "cudaMemcpyKind = cudaMemcpyDeviceToHost{1});"
)


@word("cudaMemcpyToSymbolAsync", _TO.format("cudaMemcpyToSymbolAsync", ", cudaStream_t = 0"))
@word("cudaMemcpyToSymbol", _TO.format("cudaMemcpyToSymbol", ""))
def memcpy_to_symbol(symbol: Any, source: Any, count: int, offset: int = 0, kind: int = 1, stream: Any = None) -> int:
    symbol.write(memory.host_bytes(source, count), offset, stream)
    return 0


@word("cudaMemcpyFromSymbolAsync", _FROM.format("cudaMemcpyFromSymbolAsync", ", cudaStream_t = 0"))
@word("cudaMemcpyFromSymbol", _FROM.format("cudaMemcpyFromSymbol", ""))
def memcpy_from_symbol(to: Any, symbol: Any, count: int, offset: int = 0, kind: int = 2, stream: Any = None) -> int:
    data = bytearray(symbol.read(count, offset, stream))
    held = memory.DeviceMemory(torch.frombuffer(data, dtype=torch.uint8))
    memory.copy(to, DevicePointer(held, held.tensor.data_ptr()), count)
    return 0


@word("cudaMemGetInfo", "cudaError_t cudaMemGetInfo(size_t*, size_t*);")
def mem_get_info(free_bytes: Any, total: Any) -> int:
    found = torch.cuda.mem_get_info() if on_gpu() else (SIMULATED["totalGlobalMem"],) * 2
    free_bytes[0], total[0] = found
    return 0
