"""A fake GPU for tuned launches: its memory is the host's, its kernels are Python, and each launch sets its clock."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cupyops import Kernel, LaunchError, Threads, Tuned, arrays
from cupyops.arrays import Info
from cupyops.launch import debug, driver
from cupyops.launch.generated import TensorAccess
from cupyops.launch.geometry import Target
from cupyops.launch.load import Variant
from cupyops.sharing import Setting
from cupyops.tuning import records as tuning
from tests.gpu.stub_gpu import Stub, StubLibrary

TEXT = """
extern "C" __global__ void axpy(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    acc_t a, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] += scalar_t(a * acc_t(x[i]));
}
"""
BLOCKS = (256, 128, 512)


def axpy(block: int = 256, **options: Any) -> Kernel:
    return Kernel(TEXT, "axpy", Threads("n", block=(block, 1, 1)), **{"dtypes": ("float32", "float64"), **options})


def tuned(*blocks: int, **options: Any) -> Tuned:
    return Tuned([axpy(b) for b in blocks or BLOCKS], **options)


class Array(Stub):
    """Numbers in host memory that claim to be on a GPU."""

    def __init__(self, values: Any, device: int = 0) -> None:
        self.values = np.ascontiguousarray(values)
        self.dtype = str(self.values.dtype)
        self.requires_grad = False
        shape, strides = self.values.shape, tuple(s // self.values.itemsize for s in self.values.strides)
        self.info = Info(
            self.dtype, shape, strides, self.values.size, "cuda", device, self.values.ctypes.data, device < 0
        )


class Gpu:
    """CuPy and its driver. Records a launch, which takes the time `cost` and has the results of `result`."""

    memcpyDeviceToDevice = memcpyDeviceToHost = 0  # noqa: N815

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[int] = []  # threads of a block, of each launch
        self.outputs: list[int] = []  # addresses, of each launch
        self.cost: Callable[[int, int], float] = lambda block, n: {256: 3.0, 128: 2.0, 512: 4.0}[block]
        self.wrong: dict[int, Callable[[np.ndarray], None]] = {}
        self.refused: set[int] = set()
        self.failing: set[int] = set()
        self.capturing: bool | Exception = False
        self.free_bytes = 1 << 30
        self.now = 0.0
        self.flushed = 0
        self.held: dict[int, Any] = {}
        self.events: dict[int, float] = {}
        self.pending: Exception | None = None
        self.cuda = SimpleNamespace(runtime=self, Device=lambda device: SimpleNamespace(attributes={"L2CacheSize": 64}))
        self.library = StubLibrary()
        self.library.tensor_access = TensorAccess(frozenset({Array}), lambda: 0, lambda d: 1000 + d, lambda: 1)
        self.types: dict[int, dict[str, str]] = {}
        monkeypatch.setattr("cupyops.compile.toolchain.cupy", lambda: self)
        monkeypatch.setitem(arrays.LIBRARIES, Array, self.library)
        monkeypatch.setattr(Kernel, "variant", lambda kernel, types, device: self.variant(kernel, types, device))
        monkeypatch.setattr(driver, "submit", self.submit)
        monkeypatch.setattr(driver, "launch_kernel", lambda: self.launch_kernel)
        monkeypatch.setattr(driver, "capability", lambda device: 90)
        monkeypatch.setattr(driver, "name", lambda device: "NVIDIA H200")

    def variant(self, kernel: Kernel, types: dict[str, str], device: int) -> Variant:
        if kernel.hardware.since > 90:
            raise LaunchError(f"needs a GPU of sm_{kernel.hardware.since}")
        key = (device, *types.values())
        if key not in kernel._variants:
            handle = len(self.types) + 1
            self.types[handle] = types
            packing, raw = kernel.signature.packing(types, kernel.constants), SimpleNamespace(ptr=handle)
            kernel._variants[key] = Variant(kernel.describe(types), raw, packing, kernel.geometry, Target(4, 132))
        return kernel._variants[key]

    def submit(
        self, function: int, grid: Any, block: Any, shared: int, stream: int, buffer: Any, *, cooperative: bool = False
    ) -> None:
        self.launch_kernel(function, *grid, *block, shared, stream, buffer.addresses, 0)

    def launch_kernel(self, function: int, *rest: int) -> None:
        types, threads = self.types[function], rest[3]
        if threads in self.refused:
            raise RuntimeError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch")
        self.launches.append(threads)
        kind = {"float32": ctypes.c_float, "float64": ctypes.c_double}[types["scalar_t"]]
        table = (ctypes.c_void_p * 4).from_address(rest[8])
        read = (ctypes.c_uint64, ctypes.c_uint64, kind, ctypes.c_int64)
        x, y, a, n = (t.from_address(at).value for t, at in zip(read, table, strict=True))
        self.outputs.append(y)
        self.now += self.cost(threads, n)
        if threads in self.failing:
            self.pending = RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")
            return
        source, result = (np.ctypeslib.as_array((kind * n).from_address(p)) for p in (x, y))
        result += kind(a).value * source
        if threads in self.wrong:
            self.wrong[threads](result)

    # CuPy's runtime

    def malloc(self, size: int) -> int:
        if size > self.free_bytes:
            raise RuntimeError("cudaErrorMemoryAllocation: out of memory")
        memory = ctypes.create_string_buffer(size + 256)
        pointer = -(-ctypes.addressof(memory) // 256) * 256
        self.held[pointer] = memory
        return pointer

    def free(self, pointer: int) -> None:
        del self.held[pointer]

    def memcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        assert stream in (1000, 1001)
        ctypes.memmove(to, source, size)

    def memsetAsync(self, pointer: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        self.now += 1000.0  # no measurement includes it
        self.flushed += size

    def streamSynchronize(self, stream: int) -> None:  # noqa: N802
        if self.pending:
            raise self.pending

    def streamIsCapturing(self, stream: int) -> bool:  # noqa: N802
        if isinstance(self.capturing, Exception):
            raise self.capturing
        return self.capturing

    def eventCreate(self) -> int:  # noqa: N802
        self.events[event := len(self.events) + 1] = 0.0
        return event

    def eventDestroy(self, event: int) -> None:  # noqa: N802
        self.events[event] = -1.0

    def eventRecord(self, event: int, stream: int) -> None:  # noqa: N802
        self.events[event] = self.now

    def eventElapsedTime(self, start: int, end: int) -> float:  # noqa: N802
        return (self.events[end] - self.events[start]) / 1e3


@contextmanager
def timed_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUPYOPS_TUNE", raising=False)
    monkeypatch.setattr(debug, "_setting", Setting(False))
    monkeypatch.setattr(tuning, "_own", {})
    monkeypatch.setattr(tuning, "_loaded", {})
    found = Gpu(monkeypatch)
    yield found
    assert not found.held, "memory is still held"
    assert set(found.events.values()) <= {-1.0}, "an event is still there"


def arguments(n: int = 1000, dtype: str = "float32") -> tuple[Any, ...]:
    x = np.arange(n).astype(dtype)
    return Array(x), Array(np.ones(n, dtype)), 2.0, n


def launched(gpu: Gpu, call: Callable[[], object]) -> list[int]:
    gpu.launches.clear()
    call()
    return gpu.launches


def a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_own", {})
