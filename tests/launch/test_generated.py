"""The function generated for each signature, without a GPU: it launches correct calls and passes on all others."""

import ctypes
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import kernels_cu
from cupyops import Elementwise, GridStride, LaunchError, Rows, Threads
from cupyops.launch import driver
from cupyops.launch.generated import TensorAccess, deciding, launch_source, write_launch
from cupyops.launch.geometry import Geometry, Target
from cupyops.launch.load import Hardware, Variant
from cupyops.launch.signature import Signature

TEXT = """
extern "C" __global__ void many(
    const float* x,     // (M, N)
    const double* view,
    bool flag, Int64s<NDIM> shape, Int64s<2> pair,
    float* y,           // (n, WIDTH)
    int M, int N, float factor, long long n) {}
extern "C" __global__ void scale(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    acc_t factor, long long n) {}
"""
CONSTANTS = {"NDIM": 3, "WIDTH": 2}
SIGNATURE = Signature.parse(TEXT, "many")


class Array:
    """The parts of a tensor that a generated launch reads."""

    def __init__(
        self, *shape: int, dtype: str = "float32", device: int = 0, contiguous: bool = True, pointer: int = 4096
    ) -> None:
        self.shape, self.dtype, self.device, self.contiguous, self.pointer = shape, dtype, device, contiguous, pointer
        self.negated = self.requires_grad = False

    def get_device(self) -> int:
        return self.device

    def data_ptr(self) -> int:
        return self.pointer

    def is_contiguous(self) -> bool:
        return self.contiguous

    def is_neg(self) -> bool:
        return self.negated

    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


class Wrapper(Array):
    """A subclass, which may hold no memory of its own."""


class Gpu:
    """The driver: records launches, with the argument values in memory at that moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, current: int = 0, devices: int = 2) -> None:
        self.current, self.devices = current, devices
        self.launches: list[tuple[Any, ...]] = []
        self.values: list[bytes] = []
        self.size = 0
        self.failure: Exception | None = None
        self.inside: Callable[[], object] = lambda: None
        monkeypatch.setattr(driver, "launch_kernel", lambda: self.launch)

    def tensors(self) -> TensorAccess:
        return TensorAccess(
            frozenset({Array}), lambda: self.current, lambda device: 1000 + device, lambda: self.devices
        )

    def launch(self, *args: Any) -> None:
        if self.failure:
            raise self.failure
        first = ctypes.c_void_p.from_address(args[9]).value or 0
        before = ctypes.string_at(first, self.size)
        self.inside()
        assert ctypes.string_at(first, self.size) == before, "another launch wrote into the values of this one"
        self.launches.append(args)
        self.values.append(before)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


class Written:
    """The generated launch of a kernel that is loaded on both GPUs, and the calls that it passed on."""

    def __init__(
        self, gpu: Gpu, signature: Signature, geometry: Geometry, types: dict[str, str], constants: dict[str, int]
    ) -> None:
        self.returned: list[tuple[Any, ...]] = []
        checked = lambda *args: self.returned.append(args)  # noqa: E731
        self.launch, self.vouched, variants = write_launch(signature, geometry, constants, gpu.tensors(), checked)
        self.packing, _ = packing = signature.packing(types, constants)
        gpu.size = self.packing.size
        self.variants = [
            Variant("k", SimpleNamespace(ptr=7 + device), packing, geometry, Target(4, 132), Hardware(shared=48))
            for device in (0, 1)
        ]
        for vouched in (False, True):
            dtypes = [p.c_type(types) for p in deciding(signature, vouched=vouched)]
            variants.update({(device, *dtypes): v for device, v in enumerate(self.variants)})


@pytest.fixture
def many(gpu: Gpu) -> Written:
    return Written(gpu, SIGNATURE, Threads("N", "M", block=(32, 8, 1)), {}, CONSTANTS)


def right(**changed: Any) -> list[Any]:
    x, view, y = Array(9, 33), Array(dtype="float64", contiguous=False, pointer=64), Array(5, 2, pointer=2**47)
    values: dict[str, Any] = {"x": x, "view": view, "flag": True, "shape": (1, 2, 3), "pair": (-4, 5), "y": y}
    return list({**values, "M": 9, "N": 33, "factor": 0.5, "n": 5, **changed}.values())


PACKED = (4096, 64, True, 1, 2, 3, -4, 5, 2**47, 9, 33, 0.5, 5)


def test_a_right_call_is_one_launch_of_the_right_values(gpu: Gpu, many: Written) -> None:
    assert many.launch(*right()) is None
    (launch,) = gpu.launches
    assert (*launch[:9], launch[10]) == (7, 2, 2, 1, 32, 8, 1, 48, 1000, 0)
    assert many.packing.unpack(gpu.values[0]) == PACKED
    assert not many.returned


def test_the_gpu_of_the_arrays_if_it_is_current(gpu: Gpu, many: Written) -> None:
    gpu.current = 1
    on_1 = {
        n: Array(*s, device=1, dtype=d)
        for n, s, d in (("x", (9, 33), "float32"), ("view", (), "float64"), ("y", (10,), "float32"))
    }
    many.launch(*right(**on_1))
    assert (gpu.launches[0][0], gpu.launches[0][8]) == (8, 1001)
    assert not many.returned


WRONG: dict[str, dict[str, Any]] = {
    "a subclass": {"x": Wrapper(9, 33)},
    "no array": {"x": None},
    "no array behind the first": {"y": [1.0]},
    "dtype of the first": {"x": Array(9, 33, dtype="float64")},
    "dtype of another": {"view": Array()},
    "dtype of an output": {"y": Array(5, 2, dtype="float16")},
    "the first on another device": {"x": Array(9, 33, device=1)},
    "a view on another device": {"view": Array(dtype="float64", device=1)},
    "an output on the host": {"y": Array(5, 2, device=-1)},
    "a layout": {"x": Array(9, 33, contiguous=False)},
    "a layout of an output": {"y": Array(5, 2, contiguous=False)},
    "too few elements": {"x": Array(9, 32)},
    "too many elements": {"y": Array(5, 3)},
    "a size": {"n": 4},
    "negative sizes whose product fits": {"M": -9, "N": -33},
    "a float for an integer": {"M": 9.0},
    "text for a number": {"factor": "0.5"},
    "nothing for a number": {"factor": None},
    "a number beyond its type": {"factor": 1e39},
    "an integer beyond its type": {"shape": (1, 2, 2**63)},
    "a number for a bool": {"flag": 1},
    "truth for a bool": {"flag": "yes"},
    "a tuple too long": {"shape": (1, 2, 3, 4)},
    "a tuple too short": {"pair": (1,)},
    "one tuple too long, one too short": {"shape": (1, 2), "pair": (3, 4, 5)},
    "no tuple": {"pair": 2},
}


# The checks that are left out for a caller that has checked shapes and layouts, and allocated its outputs.
VOUCHED = {"dtype of an output", "an output on the host", "a layout of an output", "a layout", "too few elements"}
VOUCHED |= {"too many elements", "a size", "negative sizes whose product fits"}


@pytest.mark.parametrize(
    ("wrong", "vouched"), [(w, vouched) for w in WRONG for vouched in (False, True) if not (vouched and w in VOUCHED)]
)
def test_each_wrong_argument_goes_to_the_checked_launch(gpu: Gpu, many: Written, wrong: str, vouched: bool) -> None:
    args = right(**WRONG[wrong])
    (many.vouched if vouched else many.launch)(*args)
    assert not gpu.launches
    (returned,) = many.returned
    assert all(a is b for a, b in zip(returned, args, strict=True))
    many.launch(*right())  # and life goes on
    assert many.packing.unpack(gpu.values[0]) == PACKED


def test_another_current_device_goes_to_the_checked_launch(gpu: Gpu, many: Written) -> None:
    gpu.current = 1
    many.launch(*right())
    assert not gpu.launches
    assert len(many.returned) == 1


def test_a_kernel_that_is_not_loaded_goes_to_the_checked_launch(gpu: Gpu) -> None:
    scale = Written(gpu, Signature.parse(TEXT, "scale"), GridStride("n"), {"scalar_t": "float32"}, {})
    for dtype, handed_back in (("float32", 0), ("float64", 1)):
        scale.launch(Array(5, dtype=dtype), Array(5, dtype=dtype), 1.0, 5)
        assert len(scale.returned) == handed_back
    assert len(gpu.launches) == 1


@pytest.mark.parametrize(
    "failure", [RuntimeError("CUDA_ERROR_INVALID_CONTEXT"), OverflowError("grid"), LaunchError("no")]
)
def test_a_refusal_of_the_driver_goes_to_the_checked_launch(gpu: Gpu, many: Written, failure: Exception) -> None:
    gpu.failure = failure
    args = right()
    many.launch(*args)
    assert many.returned == [tuple(args)]


def test_a_failing_stream_goes_to_the_checked_launch(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = TensorAccess(frozenset({Array}), lambda: 0, lambda device: 1 // 0, lambda: 1)
    monkeypatch.setattr(gpu, "tensors", lambda: tensors)
    found = Written(gpu, Signature.parse(TEXT, "scale"), GridStride("n"), {"scalar_t": "float32"}, {})
    found.launch(Array(5), Array(5), 1.0, 5)
    assert len(found.returned) == 1


@pytest.mark.parametrize(("M", "N"), [(0, 33), (9, 0), (0, 0)])
def test_nothing_is_launched_for_no_elements(gpu: Gpu, many: Written, M: int, N: int) -> None:
    many.launch(*right(x=Array(M, N), M=M, N=N))
    assert not gpu.launches
    assert not many.returned


def test_of_a_vouched_call_outputs_and_shapes_are_not_looked_at_but_inputs_are(
    gpu: Gpu, many: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(_: Any) -> Any:
        raise AssertionError("looked at")

    for method in ("is_contiguous", "numel", "is_neg"):
        monkeypatch.setattr(Array, method, looked_at)
    output = type("Output", (Array,), {"get_device": looked_at, "dtype": property(looked_at, lambda *_: None)})
    many.vouched(*right(y=output(pointer=2**47)))
    assert many.packing.unpack(gpu.values[0]) == PACKED
    many.vouched(*right(view=Array(dtype="float64", device=1)))
    assert (len(gpu.launches), len(many.returned)) == (1, 1)


def test_the_first_array_is_looked_at_even_if_it_is_an_output(gpu: Gpu) -> None:
    signature = Signature.parse('extern "C" __global__ void fill(scalar_t* y,  // (n)\n long long n) {}', "fill")
    scale = Written(gpu, signature, GridStride("n"), {"scalar_t": "float32"}, {})
    for array in (Array(5, dtype="float64"), Wrapper(5), Array(5, device=1)):
        scale.vouched(array, 5)
    assert len(scale.returned) == 3
    scale.vouched(Array(5), 5)
    assert len(gpu.launches) == 1


def test_of_a_vouched_call_a_type_is_decided_by_an_input_that_is_there_or_by_an_output() -> None:
    text = """extern "C" __global__ void k(
        const x_t* x, const x_t* more, const w_t* weight,  // (n) or null
        x_t* sum, w_t* of_weight, y_t* y, float* stats, long long n) {}"""
    signature = Signature.parse(text, "k")
    assert [p.name for p in deciding(signature, vouched=True)] == ["x", "more", "weight", "of_weight", "y"]
    assert [p.name for p in deciding(signature)] == [*signature.names[:-1]]


def test_blocks_that_wait_for_one_another_are_launched_as_a_whole(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(driver, "launch_cooperative_kernel", lambda: asked.append(True) or gpu.launch)
    for cooperative in (False, True):
        write_launch(SIGNATURE, Rows("M"), CONSTANTS, gpu.tensors(), print, cooperative=cooperative)
        assert bool(asked) == cooperative


@pytest.mark.parametrize(("devices", "asked"), [(1, False), (2, True)])
def test_the_current_gpu_is_asked_for_only_where_there_are_several(devices: int, asked: bool) -> None:
    text = launch_source(SIGNATURE, Rows("M"), CONSTANTS, one_device=devices == 1)
    assert ("current_device() != device" in text) == asked


# Names


REFUSED_SIZES = ["in", "lambda", "None", "not", "min", "unit"]
OWN_NAMES = ["gx", "gy", "gz", "device", "variant", "variants", "buffer", "plain", "checked", "errors", "stream"]
OWN_NAMES += [
    "grad_enabled",
    "written",
    "current_device",
    "launch_kernel",
    "launch",
    "type",
    "IndexError",
    "Exception",
    "in_",
    "shape_0",
    "x_0",
]


@pytest.mark.parametrize("name", REFUSED_SIZES + OWN_NAMES)
def test_any_name_that_c_allows_will_do(gpu: Gpu, name: str) -> None:
    text = f"""extern "C" __global__ void k(
        const float* {name},  // (n)
        Int64s<2> shape, float* in__, int n) {{}}"""
    scale = Written(gpu, Signature.parse(text, "k"), GridStride("n"), {}, {})
    scale.launch(Array(5), (1, 2), Array(pointer=64), 5)
    assert scale.packing.unpack(gpu.values[0]) == (4096, 1, 2, 64, 5)
    scale.launch(Array(4), (1, 2), Array(), 5)
    assert len(scale.returned) == 1


@pytest.mark.parametrize("name", OWN_NAMES)
def test_any_size_may_have_such_a_name(gpu: Gpu, name: str) -> None:
    text = f"""extern "C" __global__ void k(
        const float* x,  // ({name}, WIDTH)
        int {name}, int unit, float min) {{}}"""
    scale = Written(gpu, Signature.parse(text, "k"), GridStride(name), {}, {"WIDTH": 2})
    scale.launch(Array(1000, 2), 1000, 3, 0.25)
    assert scale.packing.unpack(gpu.values[0]) == (4096, 1000, 3, 0.25)
    assert gpu.launches[0][1:4] == (4, 1, 1)
    assert not scale.returned


def test_constants_may_have_any_name(gpu: Gpu) -> None:
    text = 'extern "C" __global__ void k(const float* x,  // (n, plain, variants)\n int n) {}'
    scale = Written(gpu, Signature.parse(text, "k"), GridStride("n"), {}, {"plain": 2, "variants": 3, "errors": 9})
    scale.launch(Array(5, 6), 5)
    assert len(gpu.launches) == 1


def test_python_names_the_kernel_of_too_few_arguments(many: Written) -> None:
    for function in (many.launch, many.vouched):
        with pytest.raises(TypeError, match=r"^many\(\) missing 10 required"):
            function()


@pytest.mark.parametrize("name", ["add2", "add2_scalar", "add2_strided", "gelu_forward", "gelu_backward"])
@pytest.mark.parametrize("vouched", [False, True])
def test_every_shipped_signature_can_be_written(name: str, vouched: bool) -> None:
    text = kernels_cu.source(name.partition("_")[0])
    size = "groups" if name == "add2_strided" else "n"
    source = launch_source(
        Signature.parse(text, name), Elementwise(size), {"NDIM": 4, "VECTOR_WIDTH": 2}, vouched=vouched
    )
    compile(source, name, "exec")
    assert source.count(".numel() != ") == source.count(".is_contiguous()")


# Threads


def test_threads_share_no_buffer(gpu: Gpu) -> None:
    scale = Written(gpu, Signature.parse(TEXT, "scale"), GridStride("n"), {"scalar_t": "float32"}, {})
    gpu.inside = lambda: time.sleep(0.0002)  # lets other threads in while the values lie there
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            start.wait()
            for i in range(40):
                scale.launch(Array(5, pointer=number), Array(5, pointer=i), float(number), 5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not scale.returned
    calls = sorted(scale.packing.unpack(v) for v in gpu.values)
    assert calls == sorted((n, i, float(n), 5) for n in range(8) for i in range(40))
    buffers = scale.variants[0].buffers
    assert 1 <= len(buffers) == len({b.addresses for b in buffers}) <= 8


def test_a_refusal_is_raised_once(gpu: Gpu) -> None:
    """The generated launch used to catch exceptions of the checked launch, and to call it again."""
    asked: list[int] = []

    def checked(*args: object) -> None:
        asked.append(1)
        raise ValueError("refused")

    signature = Signature.parse(TEXT, "scale")
    launch, _, _ = write_launch(signature, GridStride("n"), {}, gpu.tensors(), checked)
    with pytest.raises(ValueError, match="refused") as caught:
        launch(Array(5), Array(5), 1.0, 5)
    assert asked == [1]
    assert caught.value.__context__ is None
