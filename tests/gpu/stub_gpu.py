"""A fake GPU: arrays that claim to be on it, and a driver that records launches."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from cupyops import GridStride, Kernel, arrays
from cupyops.arrays import Info
from cupyops.launch import debug, driver
from cupyops.launch.generated import TensorAccess
from cupyops.launch.geometry import Geometry, Grid, Target
from cupyops.launch.load import Variant
from cupyops.sharing import Setting

TARGET = Target(itemsize=4, multiprocessors=132)

FLOATS = ("float16", "float32", "float64")
TEXT = """
extern "C" __global__ void scale(
    const scalar_t* x,  // (M, N)
    scalar_t* y,        // (M, N)
    acc_t factor, int M, long long N) {}
extern "C" __global__ void gather(
    const scalar_t* x, const index_t* index, // (n)
    acc_t* sum,                              // (1)
    long long n) {}
extern "C" __global__ void many(
    bool flag, Int64s<NDIM> shape, const float* x, unsigned char small, Int64s<2> pair,
    float* y,  // (n, WIDTH)
    double wide, unsigned long long n) {}
"""


def scale(geometry: Geometry | None = None, **options: Any) -> Kernel:
    return Kernel(TEXT, "scale", geometry or GridStride("N"), dtypes=FLOATS, **options)


class Stub:
    """An array of a library that only these tests know."""

    def __init__(self, *shape: int, dtype: str = "float32", device: int = 0, fake: bool = False) -> None:
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
        pointer = 0x7F00_0000_0000 + id(self) % 2**32
        self.info = Info(dtype, shape, strides, int(np.prod(shape)), "cuda", device, pointer, fake)
        self.dtype = dtype
        self.requires_grad = False

    def get_device(self) -> int:
        return self.info.device

    def data_ptr(self) -> int:
        return self.info.pointer

    def is_contiguous(self) -> bool:
        return True

    def numel(self) -> int:
        return self.info.size

    def is_neg(self) -> bool:
        return self.info.negated


class StubLibrary:
    """A kernel whose generated launch a test may set."""

    name = "stub"
    tensor_access: TensorAccess | None = None

    def __init__(self) -> None:
        self.current = 0

    def info(self, x: Stub) -> Info:
        return x.info

    def written(self, arrays: Sequence[Stub]) -> None:
        pass

    def stream(self, device: int) -> int:
        assert device == self.current, "the stream of a device that is not current"
        return 1000 + device

    @contextmanager
    def device(self, device: int) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before


class Launch(NamedTuple):
    function: int
    grid: Sequence[int]
    block: Sequence[int]
    shared: int
    stream: int
    addresses: int
    cooperative: bool = False


class Driver:
    """Writes down launches, and reads their arguments as the driver would: by a table of addresses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[Launch] = []
        self.kept: list[Any] = []
        self.failure: Exception | None = None
        self.library = StubLibrary()
        variants: dict[Any, Variant] = {}

        def variant(kernel: Kernel, types: dict[str, str], device: int) -> Variant:
            packing, raw = kernel.signature.packing(types, kernel.constants), SimpleNamespace(ptr=42 + device)
            shape = (kernel.geometry, TARGET, kernel.hardware)
            made = Variant(kernel.describe(types), raw, packing, *shape)
            return variants.setdefault((kernel, device, *types.values()), made)

        monkeypatch.setattr(debug, "_setting", Setting(False))  # as CUPYOPS_DEBUG=1 may have it
        monkeypatch.setattr(Kernel, "variant", variant)
        monkeypatch.setattr(driver, "submit", self.submit)
        monkeypatch.setattr(driver, "launch_kernel", lambda: self.launch_kernel)
        monkeypatch.setattr(driver, "launch_cooperative_kernel", lambda: self.launch_cooperative_kernel)
        monkeypatch.setitem(arrays.LIBRARIES, Stub, self.library)

    def submit(
        self,
        function: int,
        grid: Grid,
        block: Grid,
        shared: int,
        stream: int,
        buffer: driver.ArgumentBuffer,
        *,
        cooperative: bool = False,
    ) -> None:
        if self.failure:
            raise self.failure
        self.kept.append(buffer)
        self.launches.append(Launch(function, grid, block, shared, stream, buffer.addresses, cooperative))

    def launch_cooperative_kernel(self, function: int, *rest: int) -> None:
        self.launch_kernel(function, *rest)
        self.launches[-1] = self.launches[-1]._replace(cooperative=True)

    def launch_kernel(self, function: int, *rest: int) -> None:
        """The driver function that the generated launch calls. Its buffers stay alive in the variant."""
        *geometry, shared, stream, addresses, extra = rest
        assert extra == 0
        self.launches.append(Launch(function, tuple(geometry[:3]), tuple(geometry[3:]), shared, stream, addresses))

    def read(self, *types: Any) -> list[Any]:
        """The last launch's arguments."""
        table = (ctypes.c_void_p * len(types)).from_address(self.launches[-1].addresses)
        values = [kind.from_address(address) for kind, address in zip(types, table, strict=True)]
        return [list(v) if hasattr(v, "_length_") else v.value for v in values]
