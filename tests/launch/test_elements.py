"""The generated launch of kernels with vectors, structs and textures, variables of a GPU, and what debug mode quotes."""

import ctypes
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cupyops import Kernel, LaunchError, Threads, save_repro, simulate
from cupyops.compile.cache import Binary
from cupyops.launch import driver, variables
from cupyops.launch.generated import launch_source
from cupyops.launch.signature import Signature
from tests.launch.test_generated import Array, Gpu, Written
from tests.support import without_python_file

PAIR = np.dtype([("a", "i4"), ("b", "f8")], align=True)
TEXT = """
struct Pair { int a; double b; };
extern "C" __global__ void mixed(
    const float4* x,  // (n)
    const short2* view, const Pair* pairs,  // (n) or null
    Pair one, char3 small, double2 wide, cudaTextureObject_t image, int n) {}
extern "C" __global__ void plain(const float* x,  // (n)
    int n) {}
"""


class Strided(Array):
    strides: tuple[int, ...] = (2, 1)

    def stride(self, dimension: int | None = None) -> Any:
        return self.strides if dimension is None else self.strides[dimension]


class TextureObject:
    ptr = 77


class SurfaceObject:
    ptr = 78


ONE = np.array((5, 0.5), PAIR)


def call(**changed: Any) -> list[Any]:
    values: dict[str, Any] = {
        "x": Strided(8, 4),
        "view": Strided(3, 2, dtype="int16", pointer=64),
        "pairs": None,
        "one": ONE,
        "small": (1, 2, 3),
        "wide": (0.5, 1.5),
        "image": TextureObject(),
        "n": 8,
    }
    return list({**values, **changed}.values())


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> tuple[Gpu, Written]:
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr(Gpu, "tensors", _of_strided)
    written = Written(gpu, Kernel(TEXT, "mixed", Threads("n")).signature, Threads("n"), {}, {})
    dtypes = ("float32", "int16", None)
    for launch in (written.launch, written.vouched):
        launch.__globals__["variants"].update({(0, *dtypes): written.variants[0]})
    return gpu, written


def _of_strided(gpu: Gpu) -> Any:
    from cupyops.launch.generated import TensorAccess

    return TensorAccess(frozenset({Strided}), lambda: 0, lambda device: 1000, lambda: 1)


def test_a_right_call_packs_structs_vectors_and_handles(mixed: tuple[Gpu, Written]) -> None:
    gpu, written = mixed
    written.launch(*call())
    assert not written.returned
    assert written.packing.unpack(gpu.values[0]) == (4096, 64, 0, ONE.tobytes(), 1, 2, 3, 0.5, 1.5, 77, 8)


WRONG: dict[str, dict[str, Any]] = {
    "a last dimension": {"x": Strided(4, 8)},
    "an address": {"x": Strided(8, 4, pointer=4100)},
    "a last dimension of a view": {"view": Strided(2, 3, dtype="int16", pointer=64)},
    "a struct": {"one": np.array(1.0)},
    "several structs": {"one": np.zeros(2, PAIR)},
    "another object": {"image": SurfaceObject()},
    "too many numbers": {"small": (1, 2, 3, 4)},
    "one number": {"wide": 1.0},
    "a number beyond its type": {"small": (1, 2, 200)},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_call_is_handed_to_the_checked_launch(mixed: tuple[Gpu, Written], wrong: str) -> None:
    gpu, written = mixed
    written.launch(*call(**WRONG[wrong]))
    assert (len(gpu.launches), len(written.returned)) == (0, 1)


@pytest.mark.parametrize("strides", [(3, 1), (2, 2), (1, 3)])
def test_a_view_whose_vectors_are_apart_is_handed_over(mixed: tuple[Gpu, Written], strides: tuple[int, int]) -> None:
    gpu, written = mixed
    view = Strided(3, 2, dtype="int16", pointer=64)
    view.strides = strides
    written.launch(*call(view=view))
    assert (len(gpu.launches), len(written.returned)) == (0, 1)


def test_a_kernel_without_them_has_the_launch_that_it_had() -> None:
    source = launch_source(Signature.parse(TEXT, "plain"), Threads("n"), {})
    assert not any(word in source for word in ("packed", "shape[", "stride", "%"))


def test_a_struct_without_a_known_layout_is_its_bytes() -> None:
    unknown = re.sub(r"(struct Pair \{)", r"\1 int bits : 3;", TEXT)
    assert unknown != TEXT
    found = {p.name: p for p in Kernel(unknown, "mixed", Threads("n")).signature.parameters}
    for name in ("pairs", "one"):
        element = found[name].element
        assert element is not None
        assert (element.width, element.alignment, element.record) == (16, 8, np.dtype("V16"))
    assert found["pairs"].shape is not None


@pytest.mark.simulator
def test_a_failure_with_structs_and_linked_texts_can_be_repeated(tmp_path: Path) -> None:
    main = (
        TEXT.partition("extern")[0]
        + """__device__ int seen;
    extern __device__ int limit(int a);
    extern "C" __global__ void bad(int* y,  // (n)
        Pair one, float2 pair, int n) { y[threadIdx.x + limit(one.a) + int(pair.y)] = 1; }"""
    )
    bad = Kernel(main, "bad", Threads("n", block=32), link=["__device__ int limit(int a) { return a; }"])
    with simulate(sanitize=True), pytest.raises(LaunchError) as caught:
        bad(np.zeros(32, "i4"), ONE, (0.5, 2.0), 32)
    file = tmp_path / "again.py"
    save_repro(caught.value, file)
    with pytest.raises(LaunchError) as again:
        runpy.run_path(str(file))
    first, second = (without_python_file(str(error.value)).splitlines()[0] for error in (caught, again))
    assert first == second


# Variables on a GPU, whose memory is host memory here


class Memory:
    """CuPy's runtime, with one variable `v` of two floats."""

    memcpyHostToDevice = memcpyDeviceToHost = 0  # noqa: N815

    def __init__(self) -> None:
        self.v = (ctypes.c_float * 2)(1.0, 2.0)
        self.said: list[str] = []
        module = lambda: SimpleNamespace(load=lambda code: None, ptr=1)  # noqa: E731
        self.cuda = SimpleNamespace(runtime=self, Device=self.device, function=SimpleNamespace(Module=module))

    def device(self, index: int) -> Any:
        import contextlib

        self.said.append(f"device {index}")
        return contextlib.nullcontext()

    def deviceSynchronize(self) -> None:  # noqa: N802
        self.said.append("wait for all")

    def streamSynchronize(self, stream: int) -> None:  # noqa: N802
        self.said.append(f"wait for {stream}")

    def memcpy(self, to: int, source: int, size: int, kind: int) -> None:
        self.said.append("copy")
        ctypes.memmove(to, source, size)

    def memcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        self.said.append(f"copy on {stream}")
        ctypes.memmove(to, source, size)

    def cuModuleGetGlobal_v2(self, address: Any, size: Any, module: Any, symbol: bytes) -> int:  # noqa: N802
        if symbol != b"v":
            return 500
        address._obj.value, size._obj.value = ctypes.addressof(self.v), ctypes.sizeof(self.v)
        return 0


def test_a_variable_of_a_gpu_is_copied_behind_all_work_or_behind_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    monkeypatch.setattr("cupyops.compile.toolchain.cupy", lambda: memory)
    monkeypatch.setattr(driver, "ensure_context", lambda: None)
    monkeypatch.setattr(driver, "libcuda", lambda: memory)
    text = '__constant__ float v[2]; __device__ int absent; extern "C" __global__ void k(float* y) {}'
    kernel = Kernel(text, "k", 1)
    code = variables.GpuCode(kernel, {}, text, Binary(b"", "", {}, 0.0), 3)
    assert code.read("v").tolist() == [1.0, 2.0]
    code.write("v", [3, 4])
    assert list(memory.v) == [3.0, 4.0]
    assert memory.said == ["device 3", "wait for all", "copy", "wait for all"] * 2
    memory.said.clear()
    code.write("v", [5, 6], SimpleNamespace(cuda_stream=9))
    assert memory.said == ["device 3", "copy on 9", "wait for 9"]
    with pytest.raises(Exception, match="k: the compiled code has no variable `absent`"):
        code.read("absent")


# Debug mode


@pytest.mark.parametrize(
    ("declaration", "name"),
    [
        ("typedef float4 Pixel; __global__ void k(const Pixel* x)", "k"),
        ("using Half = __half2; __global__ void k(Half* x)", "k"),
        ("template <class T> __global__ void k(T* x)", "k<float4>"),
        ("template <class T> __global__ void k(T* x)", "k<Pair>"),
        ("typedef struct Pair P; __global__ void k(P* x)", "k"),
    ],
)
def test_elements_are_found_behind_type_names_and_template_arguments(declaration: str, name: str) -> None:
    text = f"#include <cuda_fp16.h>\nstruct Pair {{ int a; double b; }}; {declaration} {{}}"
    (x,) = Kernel(text, name, 1).signature.parameters
    assert x.element is not None
    assert x.element.name in ("Pixel", "float4", "Half", "Pair", "P")


@pytest.mark.simulator
def test_an_array_without_vectors_has_no_strides_to_check() -> None:
    """NumPy's arrays without elements have other strides than PyTorch's."""
    text = 'extern "C" __global__ void sums(const float4* x, float* y, int n) { if (threadIdx.x < n) *y += x[threadIdx.x].w; }'
    kernel, y = Kernel(text, "sums", Threads("n", block=32)), np.ones(1, np.float32)
    with simulate():
        kernel(np.ones((0, 4), np.float32), y, 0)
        assert y == 1
        with pytest.raises(ValueError, match="must have 4 as its last dimension"):
            kernel(np.ones((0, 3), np.float32), y, 0)
