"""Tensor maps: the arguments for the driver, the maps that a launch accepts, and their place among the arguments."""

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cupyops import Kernel
from cupyops.errors import LaunchError, MissingDependencyError
from cupyops.launch import driver
from cupyops.launch.geometry import Rows
from cupyops.launch.signature import Signature
from cupyops.launch.tensor_map import TensorMap, tensor_map

TEXT = """extern "C" __global__ void k(
    const scalar_t* x,  // (M, N)
    scalar_t* y,        // (M, N) or null
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map, long long M, long long N) {}"""


class Encoder:
    """Stands in for the driver: records its arguments, and returns the address that it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> None:
        self.asked: list[list[Any]] = []
        self.status = status
        monkeypatch.setattr(driver, "libcuda", lambda: SimpleNamespace(cuTensorMapEncodeTiled=self.encode))
        tensor_map.cache_clear()

    def encode(self, memory: ctypes.c_void_p, *rest: Any) -> int:
        assert memory.value is not None
        assert memory.value % 64 == 0
        self.asked.append([list(a) if hasattr(a, "_length_") else a.value for a in rest])
        ctypes.memset(memory.value, 7, 128)
        return self.status


@pytest.fixture(autouse=True)
def _no_maps_of_others() -> Any:
    yield
    tensor_map.cache_clear()


@pytest.mark.parametrize(("dtype", "number"), [("float16", 6), ("bfloat16", 9)])
def test_the_driver_is_told_of_columns_first(monkeypatch: pytest.MonkeyPatch, dtype: str, number: int) -> None:
    encoder = Encoder(monkeypatch)
    found = tensor_map(4096, 30, 72, dtype, 128)
    # type, rank, address, sizes, bytes of a row, box, steps, interleaving, swizzle of 128 bytes, promotion, zeros
    assert encoder.asked == [[number, 2, 4096, [72, 30], [144], [64, 128], [1, 1], 0, 3, 3, 0]]
    assert found == bytes([7]) * 128
    assert (found.address, found.size, found.box_rows) == (4096, 30 * 72, 128)
    assert tensor_map(4096, 30, 72, dtype, 128) is found
    moved = found.moved(8192)
    assert encoder.asked[1] == [number, 2, 8192, *encoder.asked[0][3:]]
    assert (moved.address, moved.size) == (8192, 30 * 72)


def test_the_simulators_maps_are_plain_numbers() -> None:
    """Address, rows, columns, rows and columns of a box, bytes of an element; no driver is asked, and the same is refused."""
    found = tensor_map(4096, 30, 72, "bfloat16", 128, simulated=True)
    assert struct.unpack("=16Q", found) == (4096, 30, 72, 128, 64, 2, *[0] * 10)
    moved = found.moved(8192)
    assert (moved.address, moved.size, moved.simulated) == (8192, 30 * 72, True)
    with pytest.raises(ValueError, match="tensor_map: `address` must be a multiple of 16"):
        tensor_map(4096, 30, 60, "bfloat16", 64, simulated=True)


@pytest.mark.parametrize(("address", "columns"), [(4104, 64), (4096, 60)])
def test_what_the_hardware_cannot_copy_is_refused(monkeypatch: pytest.MonkeyPatch, address: int, columns: int) -> None:
    encoder = Encoder(monkeypatch)
    with pytest.raises(ValueError, match="tensor_map: `address` must be a multiple of 16"):
        tensor_map(address, 30, columns, "float16", 64)
    assert encoder.asked == []


def test_what_the_driver_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    Encoder(monkeypatch, status=1)
    with pytest.raises(LaunchError, match=r"refuses a tensor map of float16\[30, 64\] in boxes of 64 rows: error 1"):
        tensor_map(4096, 30, 64, "float16", 64)
    monkeypatch.setattr(driver, "libcuda", lambda: None)
    with pytest.raises(MissingDependencyError, match="Tensor maps need NVIDIA's driver of CUDA 12"):
        tensor_map(4096, 30, 64, "float16", 64)


def test_maps_lie_among_the_arguments_as_c_aligns_them() -> None:
    signature = Signature.parse(TEXT, "k")
    assert [(p.name, p.map_of) for p in signature.parameters if p.map_of] == [("x_map", "x"), ("y_map", "y")]
    packing, places = signature.packing({"scalar_t": "float16"}, {})
    assert places == [(0, 8), (8, 8), (64, 128), (192, 128), (320, 8), (328, 8)]
    memory = packing.pack(1, 2, bytes([3]) * 128, bytes([4]) * 128, 5, 6)
    assert memory[64:192] == bytes([3]) * 128
    assert memory[192:320] == bytes([4]) * 128


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (
            "const __grid_constant__ TensorMap z_map",
            "`z_map` is the tensor map of `z`, and the kernel has no array `z`",
        ),
        ("TensorMap x_map", "declare `x_map` as const __grid_constant__ TensorMap"),
        ("const __grid_constant__ TensorMap of_x", "declare `of_x` as const __grid_constant__ TensorMap"),
    ],
)
def test_a_map_is_declared_for_an_array_of_its_name(declared: str, words: str) -> None:
    text = f'extern "C" __global__ void k(const scalar_t* x, scalar_t* y, {declared}) {{}}'
    with pytest.raises(TypeError, match=words):
        Kernel(text, "k", dtypes=("float16",))


def test_a_launch_takes_the_maps_of_its_arrays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is that of the checked launch, which the generated one falls back to."""
    import cupyops

    encoder = Encoder(monkeypatch)
    kernel = Kernel(TEXT, "k", Rows("M"), dtypes=("float16",))
    x, y = torch.zeros(2, 4, 64, dtype=torch.float16).unbind()
    of_x, of_y = (tensor_map(t.data_ptr(), 4, 64, "float16", 64, simulated=True) for t in (x, y))
    short = tensor_map(x.data_ptr(), 2, 64, "float16", 64, simulated=True)
    assert encoder.asked == []
    by_driver = tensor_map(x.data_ptr(), 4, 64, "float16", 64)
    with cupyops.simulate():
        with pytest.raises(TypeError, match="k: `x_map` must be a TensorMap, got bytes"):
            kernel(x, y, bytes(of_x), of_y, 4, 64)
        with pytest.raises(
            ValueError, match="k: `y_map` must be a map of `y`, 256 elements at 0x.*, got one of 256 at"
        ):
            kernel(x, y, of_x, of_x, 4, 64)
        with pytest.raises(
            ValueError, match="k: `x_map` must be a map of `x`, 256 elements at 0x.*, got one of 128 at"
        ):
            kernel(x, y, short, of_y, 4, 64)
        with pytest.raises(
            ValueError,
            match=r"k: `x_map` must be made with simulated=True, for an array on cpu, got one with simulated=F",
        ):
            kernel(x, y, by_driver, of_y, 4, 64)


def test_the_generated_launch_asks_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from cupyops.launch import generated

    Encoder(monkeypatch)
    kernel = Kernel(TEXT, "k", Rows("M"), dtypes=("float16",))
    launched: list[Any] = []
    back: list[Any] = []
    monkeypatch.setattr(driver, "launch_kernel", lambda: lambda *a: launched.append(a))
    tensors = generated.TensorAccess(frozenset({torch.Tensor}), lambda: -1, lambda d: 0, lambda: 1)
    written = (kernel.signature, kernel.geometry, kernel.constants, tensors, lambda *a: back.append(a))
    for vouched, launch in enumerate(generated.write_launch(*written)[:2]):
        buffer = ctypes.create_string_buffer(336), 0
        packing = kernel.signature.packing({"scalar_t": "float16"}, {})[0]
        variant = SimpleNamespace(unit=1, buffers=[buffer], pack_into=packing.pack_into, function=1, shared=0)
        keys = [(-1, torch.float16)] if vouched else [(-1, torch.float16, torch.float16), (-1, torch.float16, None)]
        launch.__globals__["variants"] = dict.fromkeys(keys, variant)
        x, y = torch.zeros(2, 4, 64, dtype=torch.float16).unbind()
        of_x, of_y = (tensor_map(t.data_ptr(), 4, 64, "float16", 64) for t in (x, y))
        short = tensor_map(x.data_ptr(), 2, 64, "float16", 64)
        launch(x, y, of_x, of_y, 4, 64)
        assert (len(launched), len(back)) == (2 * vouched + 1, 4 * vouched)
        for wrong in ((x, y, bytes(of_x), of_y), (x, y, of_y, of_y), (x, y, short, of_y)):
            launch(*wrong, 4, 64)
        assert (len(launched), len(back)) == (2 * vouched + 1, 4 * vouched + 3)
        launch(x, None, of_x, of_y, 4, 64)  # the map of a missing array does not matter
        assert (len(launched), len(back)) == (2 * vouched + 2, 4 * vouched + 3)
        launch(x, None, of_x, b"short", 4, 64)
        assert (len(launched), len(back)) == (2 * vouched + 2, 4 * vouched + 4)


def test_a_map_is_bytes_that_know_their_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    Encoder(monkeypatch)
    found = tensor_map(4096, 2, 8, "bfloat16", 64)
    assert isinstance(found, TensorMap)
    assert len(found) == 128
    assert f"{found}" == repr(found) == "<TensorMap of bfloat16[2, 8] at 0x1000>"
