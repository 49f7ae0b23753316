"""The checked launch up to the driver, without a GPU: the arguments of a correct call, and the errors of wrong ones."""

import ctypes
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

import cupyops.torch  # noqa: F401  (makes tensors known)
from cupyops import Elementwise, GridStride, Kernel, LaunchError, Rows, Threads
from cupyops.compile import toolchain
from cupyops.launch import driver
from cupyops.launch.geometry import Geometry
from cupyops.launch.load import load
from cupyops.simulator import simulate
from tests.gpu.stub_gpu import TEXT, Driver, Stub, scale


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    found = Driver(monkeypatch)
    yield found
    assert found.library.current == 0, "the current device is another than before"


def many(geometry: Geometry | None = None) -> Kernel:
    return Kernel(TEXT, "many", geometry or GridStride("n"), dtypes=("float32",), constants={"NDIM": 3, "WIDTH": 4})


def test_the_bytes_of_a_launch(gpu: Driver) -> None:
    x, y = Stub(5, 4), Stub(20)
    many()(True, (1, -2, 3), x, 255, (2**62, -(2**63)), y, 0.1, 5)
    pointer, three, two = ctypes.c_uint64, ctypes.c_int64 * 3, ctypes.c_int64 * 2
    got = gpu.read(ctypes.c_bool, three, pointer, ctypes.c_uint8, two, pointer, ctypes.c_double, ctypes.c_uint64)
    assert got == [True, [1, -2, 3], x.info.pointer, 255, [2**62, -(2**63)], y.info.pointer, 0.1, 5]


def test_the_geometry_of_a_launch(gpu: Driver) -> None:
    scale(Threads("N", "M", block=(32, 8, 1)), shared=100)(Stub(9, 33), Stub(9, 33), 2, 9, 33)
    (launch,) = gpu.launches
    assert (launch.function, launch.grid, launch.block, launch.shared, launch.stream) == (
        42,
        (2, 2, 1),
        (32, 8, 1),
        100,
        1000,
    )


@pytest.mark.parametrize("cooperative", [False, True])
def test_blocks_that_wait_for_one_another_are_launched_as_a_whole(gpu: Driver, cooperative: bool) -> None:
    constants = {"NDIM": 3, "WIDTH": 4}
    kernel = Kernel(TEXT, "many", GridStride("n"), dtypes=("float32",), constants=constants, cooperative=cooperative)
    kernel(True, (1, -2, 3), Stub(5, 4), 255, (1, 2), Stub(20), 0.1, 5)
    assert [launch.cooperative for launch in gpu.launches] == [cooperative]


def test_a_launch_on_another_than_the_current_device(gpu: Driver) -> None:
    scale()(Stub(1, 4, device=1), Stub(4, device=1), np.float32(0.1), np.int32(1), np.int64(4))
    assert gpu.read(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float, ctypes.c_int32, ctypes.c_int64)[2:] == [
        np.float32(0.1),
        1,
        4,
    ]
    assert (gpu.launches[0].function, gpu.launches[0].stream) == (43, 1001)


@pytest.mark.parametrize("types", [("float16", "int64", "float32"), ("float64", "int32", "float64")])
def test_arithmetic_arrays_follow_scalar_t(gpu: Driver, types: tuple[str, str, str]) -> None:
    gather = Kernel(TEXT, "gather", GridStride("n"), dtypes=("float16", "float64", "int32", "int64"))
    x, index, total = Stub(9, dtype=types[0]), Stub(5, dtype=types[1]), Stub(1, dtype=types[2])
    gather(x, index, total, 5)
    with pytest.raises(TypeError, match=f"gather: `sum` must have dtype {types[2]}, got int8"):
        gather(x, index, Stub(1, dtype="int8"), 5)
    assert len(gpu.launches) == 1


@pytest.mark.parametrize(("comment", "count"), [("()", 1), ("(1)", 1), ("(2, 3)", 6), ("(N)", 4), ("(0)", 0)])
def test_arrays_of_a_fixed_size(gpu: Driver, comment: str, count: int) -> None:
    text = f'extern "C" __global__ void k(float* x,  // {comment}\n long long n) {{}}'
    found = Kernel(text, "k", Threads("n"), dtypes=("float32",), constants={"N": 4})
    for size in range(8):
        if size == count:
            found(Stub(size), 5)
        else:
            with pytest.raises(ValueError, match=rf"k: `x` must hold .*= {count} elements, got {size}"):
                found(Stub(size), 5)
    assert len(gpu.launches) == 1


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
@pytest.mark.parametrize("geometry", [Threads("N", "M", block=(32, 8, 1)), Threads("M", "N", block=(32, 8, 1))])
def test_nothing_is_launched_for_no_elements(gpu: Driver, geometry: Geometry, shape: tuple[int, int]) -> None:
    scale(geometry)(Stub(*shape), Stub(*shape), 2.0, *shape)
    assert not gpu.launches


@pytest.mark.parametrize("changed", [{"factor": "two"}, {"M": 0.0}, {"N": -4}])
def test_no_elements_are_no_excuse(gpu: Driver, changed: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        scale(Rows("M"))(Stub(0, 4), Stub(0, 4), **{"factor": 2.0, "M": 0, "N": 4, **changed})


class Stranger:
    def __index__(self) -> NoReturn:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "<stranger>"


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"flag": 1}, TypeError, "many: `flag` must be True or False, got 1"),
        ({"flag": "no"}, TypeError, "`flag` must be True or False, got 'no'"),
        ({"shape": (1, 2)}, TypeError, r"`shape` must be a tuple of 3 integers, got \(1, 2\)"),
        ({"shape": (1, 2, 3, 4), "pair": (1,)}, TypeError, "`shape` must be a tuple of 3 integers"),
        ({"pair": [1, 2]}, TypeError, r"`pair` must be a tuple of 2 integers, got \[1, 2\]"),
        ({"pair": (1, 2.5)}, TypeError, r"`pair` must be an integer \(int64\), got 2.5"),
        ({"pair": (1, 2**63)}, ValueError, "`pair` must fit int64, got 9223372036854775808"),
        ({"small": 256}, ValueError, "`small` must fit uint8, got 256"),
        ({"small": -1}, ValueError, "`small` must fit uint8, got -1"),
        ({"small": 1.0}, TypeError, r"`small` must be an integer \(uint8\), got 1.0"),
        ({"small": torch.tensor(1.5)}, TypeError, r"`small` must be an integer \(uint8\), got tensor"),
        ({"small": Stranger()}, TypeError, r"`small` must be an integer \(uint8\), got <stranger>"),
        ({"wide": "0.1"}, TypeError, r"`wide` must be a number \(float64\), got '0.1'"),
        ({"wide": 1j}, TypeError, r"`wide` must be a number \(float64\), got 1j"),
        ({"wide": None}, TypeError, r"`wide` must be a number \(float64\), got None"),
        ({"wide": 10**400}, ValueError, "`wide` must fit float64, got 1000"),
        ({"n": 6}, ValueError, "many: `y` must hold n x WIDTH = 24 elements, got 20"),
        ({"n": 4}, ValueError, "many: `y` must hold n x WIDTH = 16 elements, got 20"),
        ({"y": Stub(20, fake=True)}, ValueError, r"`y` must be an array of the kind of `x`, got one without memory"),
        (
            {"y": Stub(20, device=1)},
            ValueError,
            r"`y` must be on the device of `x` \(float32\[5, 4\] on cuda:0\), got .* on cuda:1",
        ),
        ({"x": Stub(20, dtype="int8")}, TypeError, "`x` must have dtype float32, got int8"),
        ({"x": torch.ones(20)}, TypeError, "many: a launch takes arrays of one library, got arrays of torch and stub"),
    ],
)
def test_wrong_values_never_reach_the_driver(gpu: Driver, changed: dict[str, Any], error: type, words: str) -> None:
    right = {
        "flag": np.bool_(True),
        "shape": (1, 2, 3),
        "x": Stub(5, 4),
        "small": 0,
        "pair": (1, 2),
        "y": Stub(20),
        "wide": 1,
        "n": 5,
    }
    with pytest.raises(error, match=words):
        many()(**{**right, **changed})
    assert not gpu.launches
    many()(**right)
    assert len(gpu.launches) == 1


@pytest.mark.parametrize(
    ("value", "error", "words"), [(1e39, ValueError, "must fit float32, got 1e"), (1j, TypeError, "must be a number")]
)
def test_float32_scalars(gpu: Driver, value: complex, error: type, words: str) -> None:
    with pytest.raises(error, match=f"scale: `factor` {words}"):
        scale()(Stub(3, 4), Stub(12), value, 3, 4)
    scale()(Stub(3, 4), Stub(12), float("inf"), 3, 4)
    assert gpu.read(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float)[2] == float("inf")


def test_negative_sizes_whose_product_fits_are_refused(gpu: Driver) -> None:
    with pytest.raises(ValueError, match="scale: `N` must be at least 0, got -4"):
        scale()(Stub(3, 4), Stub(3, 4), 2.0, -3, -4)


def test_grids_beyond_the_hardware_are_refused(gpu: Driver) -> None:
    n = 2**31
    with pytest.raises(ValueError, match=f"scale: a grid of {n} blocks in x: CUDA has at most {n - 1}"):
        scale(Rows("N"))(Stub(1, n), Stub(n), 2.0, 1, n)
    with pytest.raises(ValueError, match="scale: a grid of 1 x 65536 x 1 blocks: CUDA has at most 65535 .* y and z"):
        scale(Threads("M", "N", block=(256, 1, 1)))(Stub(1, 65536), Stub(65536), 2.0, 1, 65536)
    scale(Elementwise("N"))(Stub(1, 2**39), Stub(2**39), 2.0, 1, 2**39)
    assert gpu.launches[0].grid == (2**30, 1, 1)


def test_a_refused_launch_names_kernel_geometry_and_arguments(gpu: Driver) -> None:
    gpu.failure = RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument")
    with pytest.raises(LaunchError) as caught:
        scale(GridStride("N", block=1024))(Stub(3, 4), Stub(12), 2.0, 3, 4)
    assert str(caught.value) == (
        "scale<float32> with grid (1, 1, 1), block (1024, 1, 1) was refused: CUDA_ERROR_INVALID_VALUE: invalid argument. "
        "Arguments: x: float32[3, 4] on cuda:0, y: float32[12] on cuda:0"
    )
    assert caught.value.__cause__ is gpu.failure


@pytest.mark.simulator
def test_a_simulated_cooperative_launch_has_room_by_its_shared_memory() -> None:
    kernel = Kernel("__global__ void k(float* y) { y[blockIdx.x] = 1; }", "k", 1, shared=200 * 1024, cooperative=True)
    y = np.zeros(5, np.float32)
    with simulate():
        with pytest.raises(LaunchError, match="GPU of 4 multiprocessors has room for 4"):
            kernel[5](y)
        kernel[4](y)
    assert y.tolist() == [1, 1, 1, 1, 0]


# Threads by each call


@pytest.mark.parametrize(
    ("threads", "block", "grid"),
    [
        ((1,), (256, 1, 1), (1, 1, 1)),
        ((np.int64(257),), (256, 1, 1), (2, 1, 1)),
        ((33, 9), (32, 8, 1), (2, 2, 1)),
        ((5, 6, 7), (4, 4, 4), (2, 2, 2)),
    ],
)
def test_each_call_says_how_many_threads(gpu: Driver, threads: Any, block: Any, grid: tuple[int, int, int]) -> None:
    kernel = Kernel(TEXT, "scale", Threads(block=block))
    kernel.forall(*threads)(Stub(3, 4), Stub(12), 2.0, N=4, M=3)
    if len(threads) == 1:
        kernel[threads[0]](Stub(3, 4), Stub(12), 2.0, N=4, M=3)
        assert (gpu.launches[1].grid, gpu.launches[1].block) == (grid, block)
    assert (gpu.launches[0].grid, gpu.launches[0].block) == (grid, block)
    assert gpu.read(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float, ctypes.c_int32, ctypes.c_int64)[2:] == [2.0, 3, 4]


def test_no_threads_launch_nothing_and_are_no_excuse(gpu: Driver) -> None:
    kernel = Kernel(TEXT, "scale")
    for threads in (0, (0, 5), (5, 0)):
        launch = kernel.forall(*threads) if isinstance(threads, tuple) else kernel[threads]
        launch(Stub(3, 4), Stub(12), 2.0, 3, 4)
        with pytest.raises(ValueError, match="scale: `x` must hold M x N = 15 elements, got 12"):
            launch(Stub(3, 4), Stub(12), 2.0, 3, 5)
    assert not gpu.launches


def test_a_grid_and_a_block_load_the_kernel_once(gpu: Driver) -> None:
    kernel = Kernel(TEXT, "scale")
    for configuration in ((3, 64), ((3, 2), (8, 8), 4096), (3, 64, 512), (3, 64)):
        kernel[configuration](Stub(3, 4), Stub(12), 2.0, 3, 4)
    found = [(launch.grid, launch.block, launch.shared) for launch in gpu.launches]
    one = ((3, 1, 1), (64, 1, 1), 0)
    assert found == [one, ((3, 2, 1), (8, 8, 1), 4096), ((3, 1, 1), (64, 1, 1), 512), one]


def test_the_limit_of_shared_memory_is_raised_and_never_lowered(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    device = SimpleNamespace(Device=lambda _: nullcontext(SimpleNamespace(compute_capability="90")))
    monkeypatch.setattr(toolchain, "cupy", lambda: SimpleNamespace(cuda=device))
    monkeypatch.setattr(driver, "allow_shared_memory", lambda raw, size: limits.append(size))
    kernel, types = Kernel(TEXT, "scale", shared=256), {"scalar_t": "float32"}
    for shared in (512, 128, 4096, 512):
        variant = load(kernel.configured(Threads(block=64), shared), types, 0)
        assert (variant.shared, variant.threads, variant.grid(65, 1, 1)) == (shared, (64, 1, 1), (2, 1, 1))
        assert variant.function == kernel.variant(types, 0).function
    assert limits == [512, 4096]
    assert kernel.variant(types, 0).shared == 256


def test_calls_that_say_their_threads_stay_in_the_checked_launch(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generated launch takes the grid from the arguments alone."""
    kernel = Kernel(TEXT, "scale")
    monkeypatch.setattr(gpu.library, "tensor_access", object())
    kernel[7](Stub(3, 4), Stub(12), 2.0, 3, 4)
    assert kernel.launch == kernel.checked_launch
    with pytest.raises(AttributeError):
        scale()(Stub(3, 4), Stub(12), 2.0, 3, 4)  # a launch with a policy opens the generated one
