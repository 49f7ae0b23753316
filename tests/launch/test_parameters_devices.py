"""Vectors, structs, textures and kernels without arrays: the same assertions in the simulator and on a GPU."""

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import cupyops
from cupyops import Kernel, LaunchError, Threads
from tests.launch.devices import DEVICES, GPU, device_of  # noqa: F401 - the fixture `device`

# Vectors

VECTORS = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void vectors(
    const float4* a,        // (n)
    const half2* b,         // (n)
    const __nv_bfloat162* c, // (n)
    const uchar4* d,
    const longlong2* e,     // (n) or null
    float3* y,              // (n)
    float2 shift, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float3 s = make_float3(a[i].w, __high2float(b[i]), __low2float(__halves2half2(__high2half(b[i]), __low2half(b[i]))));
    s.x += __bfloat162float(__high2bfloat16(c[i])) + shift.x;
    s.y += d[i].z + shift.y;
    s.z += e ? float(e[i].y) : 0.f;
    y[i] = s;
}"""


@pytest.fixture(scope="module")
def vectors() -> Kernel:
    return Kernel(VECTORS, "vectors", Threads("n", block=64))


def vector_arrays(n: int, device: str) -> list[torch.Tensor]:
    made = torch.arange(4.0 * n).reshape(n, 4)
    a = [
        made,
        made[:, :2].half(),
        made[:, 2:].bfloat16(),
        made.byte(),
        made[:, :2].long().contiguous(),
        torch.empty(n, 3),
    ]
    return [x.contiguous().to(device) for x in a]


def test_vectors_are_read_and_written_in_place(vectors: Kernel, device: str) -> None:
    n = 20
    a, b, c, d, e, y = vector_arrays(n, device)
    for _ in range(3):  # on a GPU the generated launch from the second call on
        vectors(a, b, c, d[:n], e, y.zero_(), (0.5, 100.0), n)
        wanted = torch.stack(
            [
                a[:, 3] + c[:, 1].float() + 0.5,
                b[:, 1].float() + d[:, 2].float() + 100,
                b[:, 1].float() + e[:, 1].float(),
            ],
            1,
        )
        assert torch.equal(y, wanted)
    vectors(a, b, c, d, None, y, (0.0, 0.0), n)
    assert torch.equal(y[:, 2], b[:, 1].float())


def moved(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, four bytes further."""
    room = torch.empty(x.numel() + 4, dtype=x.dtype, device=x.device)
    return room[1 : 1 + x.numel()].view_as(x).copy_(x)


@pytest.mark.parametrize("warm", [False, True], ids=["checked", "warm"])
def test_arrays_that_are_no_vectors_are_refused(vectors: Kernel, device: str, warm: bool) -> None:
    n = 20
    a, b, c, d, e, y = vector_arrays(n, device)
    rest = ((0.0, 0.0), n)
    if warm:
        vectors(a, b, c, d, e, y, *rest)
    wrong: list[tuple[Any, str]] = [
        (
            (a.reshape(-1), b, c, d, e, y),
            r"`a` must have 4 as its last dimension, the float32s of a float4, got shape \(80,\)",
        ),
        ((a.reshape(n // 2, 8), b, c, d, e, y), r"`a` must have 4 as its last dimension"),
        ((moved(a), b, c, d, e, y), "`a` must begin at a multiple of 16 bytes, as float4 does, got 0x"),
        ((a, b, c, d, e, torch.empty(n, 4, device=device)), "`y` must have 3 as its last dimension"),
        ((a, b, c, d.t().contiguous().t(), e, y), "`d` must have every uchar4 in one piece"),
        ((a, b, c, torch.zeros(n, 6, device=device).byte()[:, :4], e, y), "`d` must have every uchar4 in one piece"),
        ((a[:-1], b, c, d, e, y), "`a` must hold n x 4 = 80 elements, got 76"),
    ]
    for arrays, words in wrong:
        with pytest.raises(ValueError, match=words):
            vectors(*arrays, *rest)
    with pytest.raises(TypeError, match="`a` must have dtype float32, got float64"):
        vectors(a.double(), b, c, d, e, y, *rest)
    with pytest.raises(TypeError, match=r"`shift` must be a tuple of 2 numbers \(float2\), got 1.0"):
        vectors(a, b, c, d, e, y, 1.0, n)


# Structs

PARTICLE = np.dtype(
    [("mass", "f4"), ("place", "f8", (3,)), ("kind", "i2"), ("box", [("low", "u1"), ("high", "i8")])], align=True
)
STRUCTS = """
struct Box { unsigned char low; long long high; };
typedef struct { float mass; double place[3]; short kind; Box box; } Particle;
extern "C" __global__ void move(
    const Particle* from,  // (n)
    Particle* to,          // (n)
    const Particle by, double* sum, int n) {
    const int i = threadIdx.x;
    if (i >= n) return;
    Particle p = from[i];
    p.place[2] += by.place[1] * p.mass;
    p.kind = short(p.kind + by.kind);
    p.box.high -= by.box.low;
    to[i] = p;
    if (i == 0) sum[0] = p.place[2] + sizeof(Particle);
}"""


class Box(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint8), ("high", ctypes.c_int64))


class Particle(ctypes.Structure):
    _fields_ = (("mass", ctypes.c_float), ("place", ctypes.c_double * 3), ("kind", ctypes.c_short), ("box", Box))


def particles(n: int) -> Any:
    found = np.zeros(n, PARTICLE)
    found["mass"], found["kind"] = np.arange(n) / 2, np.arange(n)
    found["place"][:, 2], found["box"]["high"] = 7, 2**40
    return found


def as_bytes(array: Any, device: str) -> torch.Tensor:
    return torch.from_numpy(array.view(np.uint8).reshape(*array.shape, array.itemsize).copy()).to(device)


@pytest.mark.parametrize("structs", [PARTICLE, Particle], ids=["numpy", "ctypes"])
def test_structs_in_arrays_and_by_value(structs: Any, device: str) -> None:
    move = Kernel(STRUCTS, "move", Threads("n", block=64))
    given = particles(10)
    by = np.zeros((), PARTICLE)
    by["place"][1], by["kind"], by["box"]["low"] = 3, -1, 5
    by_value: Any = by if structs is PARTICLE else Particle.from_buffer_copy(by.tobytes())
    x = as_bytes(given, device)
    for _ in range(3):
        y, total = torch.zeros_like(x), torch.zeros(1, dtype=torch.float64, device=device)
        move(x, y, by_value, total, 10)
        got = y.cpu().numpy().view(PARTICLE).reshape(-1)
        assert (got["place"][:, 2] == 7 + 3 * given["mass"]).all()
        assert (got["kind"] == given["kind"] - 1).all()
        assert (got["box"]["high"] == 2**40 - 5).all()
        assert (got["mass"] == given["mass"]).all()
        assert total.item() == 7 + PARTICLE.itemsize
    with pytest.raises(TypeError, match="move: `by` must be a Particle: one element of the dtype"):
        move(x, y, np.zeros(2, PARTICLE), total, 10)
    with pytest.raises(TypeError, match="move: `by` must be a Particle"):
        move(x, y, Box(), total, 10)
    with pytest.raises(
        TypeError, match=r"move: `from` must be an array of the dtype .* or of uint8 with 56 as its last dimension"
    ):
        move(torch.zeros(10, 56, device=device), y, by_value, total, 10)
    with pytest.raises(ValueError, match="`from` must have 56 as its last dimension"):
        move(x.reshape(-1), y, by_value, total, 10)


def test_arrays_of_a_structured_dtype(device: str) -> None:
    move = Kernel(STRUCTS, "move", Threads("n"))
    library: Any = np
    if device == "cuda":
        import cupy as library
    given = particles(6)
    to = (
        library.empty(6, PARTICLE)
        if device == "cpu"
        else library.ndarray(6, PARTICLE, library.zeros(6 * PARTICLE.itemsize, "u1").data)
    )
    x = given
    if device == "cuda":
        x = library.ndarray(6, PARTICLE, library.asarray(given.view("u1")).data)
    total = library.zeros(1)
    move(x, to, np.ones((), PARTICLE), total, 6)
    got = to if device == "cpu" else library.ndarray(6 * PARTICLE.itemsize, "u1", to.data).get().view(PARTICLE)
    assert (got["place"][:, 2] == 7 + given["mass"]).all()
    if device == "cpu":
        with pytest.raises(TypeError, match="move: `to` must be an array of the dtype"):
            move(x, np.zeros(6, [("mass", "f4"), ("rest", "V52")]), np.ones((), PARTICLE), total, 6)


@pytest.mark.simulator
def test_an_array_of_another_layout_is_refused() -> None:
    packed = np.dtype([(n, PARTICLE[n]) for n in PARTICLE.names])
    given = np.zeros(2, packed)
    with (
        cupyops.simulate(),
        pytest.raises(TypeError, match=r"move: `from` must be an array of the dtype .*, got \[\('mass'"),
    ):
        Kernel(STRUCTS, "move", Threads("n"))(given, given.copy(), np.zeros((), PARTICLE), np.zeros(1), 2)


# Kernels without arrays, function pointers, lambdas, printf

SCALARS = r"""
typedef int (*Operation)(int, int);
__device__ int plus(int a, int b) { return a + b; }
__device__ int times(int a, int b) { return a * b; }
__device__ Operation operations[2] = {plus, times};
__device__ int result[3];
template <typename F> __device__ int apply(F f, int x) { return f(x); }
extern "C" __global__ void scalars(int a, long long b, float f, bool say) {
    const int base = a;
    result[0] = operations[1](a, int(b));
    result[1] = apply([=](int x) { return x + base; }, int(f));
    Operation chosen = say ? plus : times;
    result[2] = chosen(a, 1);
    if (say) printf("a=%d f=%.1f %s\n", a, f, "said");
}"""


def test_a_kernel_without_arrays(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    scalars = Kernel(SCALARS, "scalars", 1)
    scalars[1](6, 7, 2.5, False)
    assert scalars.variables["result"].tolist() == [42, 8, 6]
    scalars[1](2, 2, 9.0, say=True)
    assert scalars.variables["result"].tolist() == [4, 11, 3]
    assert capfd.readouterr().out == "a=2 f=9.0 said\n"
    with pytest.raises(TypeError, match="scalars: `b` must be an integer"):
        scalars[1](2, 2.5, 9.0, False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
def test_a_kernel_without_arrays_says_that_there_is_no_gpu() -> None:
    with pytest.raises(
        ValueError, match=r"scalars: no array of the call says where it runs, and there is no current GPU"
    ):
        Kernel(SCALARS, "scalars", 1)[1](6, 7, 2.5, False)


# Assert and trap

STOPS = """extern "C" __global__ void stops(int* y, int limit) {
    assert(y[0] < limit);
    if (limit == 5) __trap();
}"""


@pytest.mark.simulator
def test_assert_and_trap_raise_with_the_line() -> None:
    stops, y = Kernel(STOPS, "stops", 1), np.array([3], "int32")
    with cupyops.simulate():
        stops[1](y, 4)
        with pytest.raises(
            LaunchError, match=r"stops: assertion `y\[0\] < limit` failed in stops at \S+ \(stops\.cu:2\)"
        ):
            stops[1](y, 3)
        with pytest.raises(LaunchError, match=r"stops: __trap\(\) was called at \S+ \(stops\.cu:3\)"):
            stops[1](y, 5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("debug", "limit", "words"),
    [
        (True, 3, "The GPU has printed the failed assert to stderr. The process has lost the GPU"),
        (True, 5, "The process has lost the GPU: restart the process"),
        (False, 3, "The GPU has printed the failed assert to stderr. The process has lost the GPU"),
    ],
)
def test_assert_and_trap_on_a_gpu(debug: bool, limit: int, words: str) -> None:
    program = f"""
import cupyops, torch
from cupyops import Kernel, LaunchError
stops, y = Kernel({STOPS!r}, "stops", 1), torch.full((1,), 3, dtype=torch.int32, device="cuda")
try:
    with cupyops.debug_mode({debug}):
        stops[1](y, {limit})
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            stops[1](y, {limit})
except LaunchError as error:
    print("LaunchError", error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert "LaunchError" in done.stdout, done.stderr
    assert words in done.stdout
    assert limit != 3 or "stops.cu:2" in done.stderr  # the driver's own words still reach stderr


# Textures

TEXTURES = """
extern "C" __global__ void textures(cudaTextureObject_t image, cudaSurfaceObject_t out, float* y,  // (n)
    int n) {
    const int i = threadIdx.x;
    if (i >= n) return;
    y[i] = tex1D<float>(image, i + 0.5f);
    surf1Dwrite(2 * y[i], out, i * 4);
}"""


@pytest.mark.gpu
def test_textures_and_surfaces() -> None:
    import cupy
    from cupy.cuda import texture

    n = 16
    format_ = texture.ChannelFormatDescriptor(32, 0, 0, 0, cupy.cuda.runtime.cudaChannelFormatKindFloat)
    source = texture.CUDAarray(format_, n)
    source.copy_from(cupy.arange(n, dtype="float32"))
    target = texture.CUDAarray(format_, n, flags=cupy.cuda.runtime.cudaArraySurfaceLoadStore)
    array_of = lambda a: texture.ResourceDescriptor(cupy.cuda.runtime.cudaResourceTypeArray, cuArr=a)  # noqa: E731
    image = texture.TextureObject(
        array_of(source), texture.TextureDescriptor((cupy.cuda.runtime.cudaAddressModeClamp,))
    )
    out = texture.SurfaceObject(array_of(target))
    kernel, y = Kernel(TEXTURES, "textures", Threads("n", block=64)), torch.zeros(n, device="cuda")
    for _ in range(3):
        kernel(image, out, y.zero_(), n)
        assert y.tolist() == list(range(n))
    got = cupy.zeros(n, "float32")
    torch.cuda.synchronize()
    target.copy_to(got)
    assert got.tolist() == [2.0 * i for i in range(n)]
    with pytest.raises(
        TypeError,
        match="textures: `image` must be a cupy.cuda.texture.TextureObject, got cupy.cuda.texture.SurfaceObject",
    ):
        kernel(out, out, y, n)


@pytest.mark.simulator
def test_textures_and_surfaces_of_the_simulator() -> None:
    from cupyops.simulator import SurfaceObject, TextureObject

    source, target, y = np.arange(16, dtype="float32"), np.zeros(16, "float32"), np.zeros(16, "float32")
    kernel = Kernel(TEXTURES, "textures", Threads("n", block=64))
    with cupyops.simulate(sanitize=True):
        kernel(TextureObject(source), SurfaceObject(target), y, 16)
        assert y.tolist() == source.tolist()
        assert target.tolist() == (2 * source).tolist()
        words = (
            "textures: `image` must be a cupyops.simulator.TextureObject, got cupyops.simulator.textures.SurfaceObject"
        )
        with pytest.raises(TypeError, match=words):
            kernel(SurfaceObject(target), SurfaceObject(target), y, 16)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_texts_of_this_file_compile_for_a_gpu(target: str) -> None:
    """The simulator is more lenient than NVRTC."""
    from cupyops.compile.compiler import OPTIONS, compile_text, warnings_in

    kernels = [
        *(Kernel(VECTORS, "vectors", Threads("n")), Kernel(SCALARS, "scalars", 1)),
        *(Kernel(STRUCTS, "move", Threads("n")), Kernel(STOPS, "stops", 1)),
        Kernel(TEXTURES, "textures", Threads("n")),
    ]
    for kernel in kernels:
        binary = compile_text(kernel.final_text({}), kernel.name, target, OPTIONS)
        assert kernel.name in binary.resources
        assert not warnings_in(binary.log)
