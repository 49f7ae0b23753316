"""Textures and surfaces: each fetch of the simulator has the value that the rules of CUDA's programming guide give in NumPy, and
so has a GPU."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import cupyops
from cupyops import Kernel, LaunchError, Threads
from cupyops.simulator import SurfaceObject, TextureObject
from tests.conftest import CUDA

LANES = [pytest.param("cpu", marks=pytest.mark.simulator), CUDA]
COUNT = 256
SIZES = {1: (8,), 2: (4, 8), 3: (2, 4, 8)}  # powers of two: a normalized coordinate is exact
FETCH = """
extern "C" __global__ void fetch(cudaTextureObject_t image, const float* at,  // (3, n)
    float* y,  // (n, 4)
    int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float u = at[i], v = at[n + i], w = at[2 * n + i];
    const T value = CALL;
    (void)v, (void)w;
    y[4 * i] = value.x;
    y[4 * i + 1] = WIDTH > 1 ? reinterpret_cast<const B*>(&value)[WIDTH > 1] : 0;
    for (int c = 2; c < 4; ++c) y[4 * i + c] = WIDTH > 2 ? reinterpret_cast<const B*>(&value)[WIDTH > 2 ? c : 0] : 0;
}"""
BASES = {"float32": "float", "float16": "float", "int8": "signed char", "uint8": "unsigned char", "int16": "short"}
BASES |= {"uint16": "unsigned short", "int32": "int", "uint32": "unsigned"}
NAMES = {"signed char": "char", "unsigned char": "uchar", "unsigned short": "ushort", "unsigned": "uint"}


@dataclass(frozen=True)
class Image:
    """A texture, and the call that reads it."""

    dimensions: int = 2
    dtype: str = "float32"
    channels: int = 1
    address: str = "clamp"
    filter: str = "point"
    normalized: bool = False
    normalized_read: bool = False

    def array(self) -> np.ndarray:
        shape = SIZES[self.dimensions] + ((self.channels,) if self.channels > 1 else ())
        random = np.random.default_rng(3)
        if self.dtype.startswith("float"):
            return random.integers(-64, 64, shape).astype(self.dtype)
        limits = np.iinfo(self.dtype)
        return random.integers(max(limits.min, -(2**20)), min(limits.max, 2**20), shape, endpoint=True).astype(
            self.dtype
        )

    @property
    def options(self) -> dict[str, Any]:
        names = ("address", "filter", "normalized", "normalized_read")
        return {name: getattr(self, name) for name in names} | {"border": BORDER}

    def kernel(self) -> Kernel:
        base = "float" if self.normalized_read else BASES[self.dtype]
        kind = f"{NAMES.get(base, base)}{self.channels}"
        call = f"tex{self.dimensions}D<{kind}>(image, {', '.join('uvw'[: self.dimensions])})"
        text = FETCH.replace("CALL", call).replace("const T ", f"const {kind} ").replace("B*", f"{base}*")
        return Kernel(text, "fetch", Threads("n"), constants={"WIDTH": self.channels})

    @property
    def top(self) -> float:
        """The largest of the 16-bit numbers in which normalized integers are filtered."""
        return 32767.0 if np.dtype(self.dtype).kind == "i" else 65535.0

    def coordinates(self) -> np.ndarray:
        """Inside and on both sides: multiples of 1/512 of a texel for a linear filter, which rounds half of them; for the
        nearest texel, multiples of 1/64 and half such a step."""
        random, sizes = np.random.default_rng(4), [*reversed(SIZES[self.dimensions])]
        at = np.zeros((3, COUNT), np.float32)
        for d, n in enumerate(sizes):
            steps = 512 if self.filter == "linear" else 64
            at[d] = random.integers(-steps * n, 2 * steps * n, COUNT) / steps
            if self.filter == "point":
                at[d] += 1 / 128
            at[d] /= n if self.normalized else 1
        return at


BORDER = (3.0, -2.0, 0.5, 1.0)


def place(i: np.ndarray, n: int, image: Image) -> np.ndarray:
    """The index of a texel, or -1 for the border."""
    if image.address == "border":
        return np.where((i < 0) | (i >= n), -1, i)
    if image.address == "wrap" and image.normalized:
        return i % n
    if image.address == "mirror" and image.normalized:
        return np.where(i % (2 * n) < n, i % (2 * n), 2 * n - 1 - i % (2 * n))
    return i.clip(0, n - 1)


def corners(x: np.ndarray, y: Any = 0, z: Any = 0) -> dict[tuple[int, int, int], np.ndarray]:
    """The weight of each texel in a linear filter, in 256ths. They are those that an H200 uses, by 65536 reads in two dimensions
    and 20000 in three."""
    found: dict[tuple[int, int, int], np.ndarray] = {}
    for up, slice_ in ((0, 256 - z), (1, z)):
        right = (slice_ * x + 128) // 256
        left = slice_ - right
        found[1, 1, up] = (right * y + 128) // 256
        found[0, 0, up] = (left * (256 - y) + 128) // 256
        found[1, 0, up], found[0, 1, up] = right - found[1, 1, up], left - found[0, 0, up]
    return found


def expected(image: Image) -> np.ndarray:
    array, sizes = image.array().astype(np.float64), [*reversed(SIZES[image.dimensions])]
    if image.normalized_read:
        array = (array / np.iinfo(image.dtype).max).clip(-1)
    array = array.reshape(*SIZES[image.dimensions], image.channels)
    scale = [n if image.normalized else 1 for n in sizes]
    at = [image.coordinates()[d].astype(np.float64) * s for d, s in enumerate(scale)]

    def texels(indices: list[np.ndarray]) -> np.ndarray:
        found = [place(i, n, image) for i, n in zip(indices, sizes, strict=True)]
        values = array[tuple(reversed(found))]
        outside = np.any([f < 0 for f in found], 0)
        border = np.array(BORDER[: image.channels])
        return np.where(outside[:, None], border, values)

    if image.filter == "point":
        values = texels([np.floor(x).astype(int) for x in at])
    else:
        if image.address == "clamp" or not (image.normalized or image.address == "border"):
            at = [x.clip(0.5, n - 0.5) for x, n in zip(at, sizes, strict=True)]
        first, weight = zip(*(np.divmod(np.floor((x - 0.5) * 256 + 0.5).astype(int), 256) for x in at), strict=True)
        top = image.top
        values = np.zeros((COUNT, image.channels))
        for corner, share in corners(*weight).items():
            found = texels([f + up for f, up in zip(first, corner, strict=False)])
            values += share[:, None] / 256 * (np.rint(found * top * 1024) / 1024 if image.normalized_read else found)
        values = np.floor(values + 0.5) / top if image.normalized_read else values
    return np.pad(values, ((0, 0), (0, 4 - image.channels)))


def on_gpu(image: Image) -> Any:
    import cupy
    from cupy.cuda import runtime, texture

    array = image.array()
    kind = {"f": "Float", "i": "Signed", "u": "Unsigned"}[array.dtype.kind]
    bits = [8 * array.dtype.itemsize * (c < image.channels) for c in range(4)]
    format_ = texture.ChannelFormatDescriptor(*bits, getattr(runtime, f"cudaChannelFormatKind{kind}"))
    sizes = SIZES[image.dimensions]
    memory = texture.CUDAarray(format_, *reversed(sizes))
    memory.copy_from(cupy.asarray(array.reshape(*sizes[:-1], sizes[-1] * image.channels)))
    address = getattr(runtime, f"cudaAddressMode{image.address.capitalize()}")
    description = texture.TextureDescriptor(
        (address,) * 3,
        getattr(runtime, f"cudaFilterMode{image.filter.capitalize()}"),
        runtime.cudaReadModeNormalizedFloat if image.normalized_read else runtime.cudaReadModeElementType,
        None,
        BORDER,
        int(image.normalized),
    )
    return texture.TextureObject(texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=memory), description)


IMAGES = [
    *(Image(dimensions=d, filter=f) for d in (1, 2, 3) for f in ("point", "linear")),
    *(
        Image(address=a, filter=f, normalized=True)
        for a in ("wrap", "clamp", "mirror", "border")
        for f in ("point", "linear")
    ),
    Image(address="border", filter="linear"),
    Image(address="wrap"),  # of coordinates that are not normalized: clamps
    *(Image(dtype=t) for t in BASES),
    *(
        Image(dtype=t, channels=c, filter="linear", normalized_read=True)
        for t, c in (("uint8", 4), ("int8", 1), ("int16", 2), ("uint16", 1))
    ),
    *(Image(channels=c, filter="linear") for c in (2, 4)),
    Image(dtype="int32", channels=4),
]


@pytest.mark.sample(16)
@pytest.mark.parametrize("where", LANES)
@pytest.mark.parametrize("image", IMAGES, ids=lambda i: "-".join(str(v) for v in vars(i).values()))
def test_a_fetch_has_another_value_than_the_guide_says(image: Image, where: str) -> None:
    at, y = image.coordinates(), np.zeros((COUNT, 4), np.float32)
    if where == "cuda":
        import cupy

        got = cupy.zeros((COUNT, 4), "float32")
        image.kernel()(on_gpu(image), cupy.asarray(at), got, COUNT)
        y = got.get()
    else:
        with cupyops.simulate(sanitize=True):
            image.kernel()(TextureObject(image.array(), channels=image.channels, **image.options), at, y, COUNT)
    wanted = expected(image)
    # An H200 rounds int8 in another way.
    unit = 1 / image.top if where == "cuda" and image.dtype == "int8" and image.normalized_read else 0.0
    np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=unit + 1e-5 * max(1.0, float(np.abs(wanted).max())))


KINDS = """
extern "C" __global__ void kinds(cudaTextureObject_t line, cudaTextureObject_t lines, cudaTextureObject_t planes,
    cudaTextureObject_t cube, cudaTextureObject_t cubes, cudaTextureObject_t plane, float* y) {  // (16)
    y[0] = tex1Dfetch<float>(line, 3), y[1] = tex1Dfetch<float>(line, 8), y[2] = tex1Dfetch<float>(line, -1);
    y[3] = tex1DLayered<float>(lines, 2.5f, 1), y[4] = tex1DLayered<float>(lines, 2.5f, 7);
    y[5] = tex2DLayered<float>(planes, 1.5f, 2.5f, 2);
    y[6] = texCubemap<float>(cube, 2.0f, 0.0f, 0.0f), y[7] = texCubemap<float>(cube, -1.0f, 0.5f, 0.1f);
    y[8] = texCubemap<float>(cube, 0.1f, 3.0f, -2.0f), y[9] = texCubemap<float>(cube, 0.6f, 0.7f, -0.9f);
    y[10] = texCubemapLayered<float>(cubes, 0.0f, -1.0f, 0.0f, 1);
    const float4 four = tex2Dgather<float4>(plane, 2.0f, 1.0f);
    y[11] = four.x, y[12] = four.y, y[13] = four.z, y[14] = four.w;
    tex2D(&y[15], plane, 3.5f, 1.5f);
}"""


@pytest.mark.simulator
def test_a_kind_of_texture_has_another_layout() -> None:
    numbers = lambda *shape: np.arange(np.prod(shape), dtype=np.float32).reshape(shape)  # noqa: E731
    line, lines, planes, cube = numbers(8), numbers(3, 8), numbers(3, 4, 8), numbers(6, 4, 4)
    cubes, plane, y = numbers(12, 4, 4), numbers(4, 8), np.zeros(16, np.float32)
    objects = [
        *(TextureObject(line), TextureObject(lines, kind="layered"), TextureObject(planes, kind="layered")),
        *(TextureObject(cube, kind="cubemap"), TextureObject(cubes, kind="layered cubemap"), TextureObject(plane)),
    ]
    with cupyops.simulate(sanitize=True):
        Kernel(KINDS, "kinds", 1)[1](*objects, y)
    # (s/m + 1)/2 of each face by the guide's table; 4 texels in a row.
    assert y[:6].tolist() == [3, 0, 0, lines[1, 2], lines[2, 2], planes[2, 2, 1]]
    assert y[6:10].tolist() == [cube[0, 2, 2], cube[1, 1, 2], cube[2, 0, 2], cube[5, 0, 0]]
    assert y[10] == cubes[9, 2, 2]
    assert y[11:15].tolist() == [plane[1, 1], plane[1, 2], plane[0, 2], plane[0, 1]]
    assert y[15] == plane[1, 3]


SURFACES = """
extern "C" __global__ void surfaces(cudaSurfaceObject_t plane, cudaSurfaceObject_t space, cudaSurfaceObject_t layers, float* y) {  // (8)
    const int x = threadIdx.x;
    surf2Dwrite(make_uchar4(x, x + 1, x + 2, x + 3), plane, 4 * x, 1);
    surf2Dwrite((unsigned char)9, plane, 0, 7, cudaBoundaryModeZero);
    surf3Dwrite(surf3Dread<float>(space, 4 * x, 1, 1) + 1.0f, space, 4 * x, 0, 1);
    short old;
    surf2DLayeredread(&old, layers, 2 * x, 0, 1);
    surf2DLayeredwrite(short(-old), layers, 2 * x, 0, 0);
    y[x] = surf2Dread<uchar4>(plane, 4 * x, 1).w + surf3Dread<float>(space, 4 * x, 9, 1, cudaBoundaryModeClamp);
}"""


@pytest.mark.simulator
def test_a_surface_is_written_elsewhere() -> None:
    plane, space = np.zeros((2, 4, 4), np.uint8), np.arange(2 * 2 * 4, dtype=np.float32).reshape(2, 2, 4)
    layers, y = np.arange(16, dtype=np.int16).reshape(2, 2, 4), np.zeros(8, np.float32)
    before = space.copy(), layers.copy()
    objects = SurfaceObject(plane, channels=4), SurfaceObject(space), SurfaceObject(layers, kind="layered")
    with cupyops.simulate(sanitize=True):
        Kernel(SURFACES, "surfaces", 4)[4](*objects, y)
    assert plane[1].tolist() == [[x, x + 1, x + 2, x + 3] for x in range(4)]
    assert not plane[0].any()
    assert np.array_equal(space[1, 0], before[0][1, 1] + 1)
    assert np.array_equal(layers[0, 0], -before[1][1, 0])
    assert y[:4].tolist() == [x + 3 + before[0][1, 1, x] for x in range(4)]


FAULTS = [
    ("tex2D<float4>(image, 0, 0).x", "a fetch returns more channels than the texture has"),
    ("tex2D<int>(image, 0, 0)", "a fetch returns floats of a texture of integers, or integers of one of floats"),
    ("tex3D<float>(image, 0, 0, 0)", "a texture or surface function is of another kind or of other dimensions"),
    ("tex2D<float>(0, 0, 0)", "a texture or surface object is 0"),
    ("surf2Dread<float>(out, 32, 0)", "an access outside a surface; x counts bytes"),
    ("surf2Dread<float>(out, 2, 0)", "x, in bytes, is not a multiple of the size of the type"),
]


@pytest.mark.simulator
@pytest.mark.parametrize(("expression", "words"), FAULTS)
def test_a_wrong_access_of_a_texture_is_no_error(expression: str, words: str) -> None:
    text = f"__global__ void k(cudaTextureObject_t image, cudaSurfaceObject_t out, float* y) {{ y[0] = {expression}; }}"
    array = np.zeros((4, 8), np.float32)
    with cupyops.simulate(sanitize=True), pytest.raises(LaunchError, match=words) as caught:
        Kernel(text, "k", 1)[1](TextureObject(array), SurfaceObject(array), np.zeros(1, np.float32))
    assert "k.cu:1" in str(caught.value)


ARRAY = np.zeros((4, 8), np.float32)
REFUSED: list[tuple[type[Exception], Any, dict[str, Any], str]] = [
    (
        TypeError,
        [1.0],
        {},
        "`array` must be an array of NumPy, or a tensor on the CPU that requires no gradient, got list",
    ),
    (TypeError, ARRAY.astype(np.float64), {}, "`array` must be of float32, .*, got float64"),
    (ValueError, ARRAY, {"channels": 3}, "`channels` must be 1, 2 or 4, got 3"),
    (ValueError, ARRAY, {"channels": 2}, r"`array` must have 2 channels as its last dimension, got shape \(4, 8\)"),
    (ValueError, ARRAY, {"kind": "mipmap"}, "`kind` must be one of 'array', .*, got 'mipmap'"),
    (ValueError, ARRAY, {"kind": "cubemap"}, r"`array` must have the sizes \(6, W, W\), and none 0, got shape"),
    (ValueError, ARRAY[:, ::2], {}, "`array` must be contiguous, got strides .* Pass a copy"),
]
REFUSED_TEXTURES: list[tuple[type[Exception], Any, dict[str, Any], str]] = [
    (ValueError, ARRAY, {"address": "repeat"}, "`address` must be one of 'wrap', .*, got 'repeat'"),
    (ValueError, ARRAY, {"filter": "cubic"}, "`filter` must be 'point' or 'linear', got 'cubic'"),
    (
        ValueError,
        ARRAY,
        {"normalized_read": True},
        "`array` must be of integers of 8 or 16 bits for normalized_read, got float32",
    ),
    (
        ValueError,
        ARRAY.astype(np.int32),
        {"filter": "linear"},
        "`array` must be of floats for a linear filter, .*, got int32",
    ),
    (ValueError, ARRAY, {"border": (0.0,)}, "`border` must have 4 numbers, got 1"),
]


@pytest.mark.parametrize(("kind", "array", "options", "words"), REFUSED)
@pytest.mark.parametrize("of", [TextureObject, SurfaceObject])
def test_an_unfit_array_is_no_error(
    of: Any, kind: type[Exception], array: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(kind, match=f"{of.__name__}: {words}"):
        of(array, **options)


@pytest.mark.parametrize(("kind", "array", "options", "words"), REFUSED_TEXTURES)
def test_an_unfit_option_is_no_error(kind: type[Exception], array: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(kind, match=f"TextureObject: {words}"):
        TextureObject(array, **options)
    locked = ARRAY.copy()
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="SurfaceObject: `array` must be writable, got a read-only array. Pass a copy"):
        SurfaceObject(locked)


@pytest.mark.simulator
def test_a_texture_of_a_gpu_is_taken_by_the_simulator() -> None:
    class Foreign:
        ptr = 3

    Foreign.__name__ = "TextureObject"
    text = "__global__ void k(cudaTextureObject_t image, float* y) { y[0] = tex1D<float>(image, 0); }"
    words = "k: `image` must be a cupyops.simulator.TextureObject, got .*TextureObject"
    with cupyops.simulate(), pytest.raises(TypeError, match=words):
        Kernel(text, "k", 1)[1](Foreign(), np.zeros(1, np.float32))


IN_STRUCT = """
template <class T> struct Image {
    cudaTextureObject_t texture; cudaSurfaceObject_t surface; int width;
    __device__ T at(int x, int y) const { return tex2D<T>(texture, x + 0.5f, y + 0.5f); }
    __device__ void write(T v, int x, int y) const { surf2Dwrite<T>(v, surface, x * sizeof(T), y); }
};
__global__ void k(Image<float> image, float* y,  // (n)
    int n) {
    const int i = threadIdx.x;
    if (i >= n) return;
    y[i] = image.at(i % image.width, i / image.width) + 1;
    image.write(2 * y[i], i % image.width, i / image.width);
}"""


@pytest.mark.simulator
def test_a_texture_and_a_surface_in_a_struct_are_no_numbers() -> None:
    pixels, written, y = (
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.zeros((2, 3), np.float32),
        np.zeros(6, np.float32),
    )
    texture, surface = TextureObject(pixels), SurfaceObject(written)
    with cupyops.simulate(sanitize=True):
        Kernel(IN_STRUCT, "k", Threads("n"))((texture.ptr, surface.ptr, 3), y, 6)
    np.testing.assert_array_equal(y, np.arange(6) + 1)
    np.testing.assert_array_equal(written.ravel(), 2 * y)


OF_INTEGER = """
struct Image { unsigned long long texture; };
__device__ float read(const Image& image, float x, int level) {
    if (level < 0) return tex1D<float>(image.texture, x);
    return tex1DLod<float>(image.texture, x, level);
}
__global__ void k(Image image, float* y, int n) {
    const int i = threadIdx.x;
    if (i < n) y[i] = read(image, i + 0.5f, i - 1);
}"""


@pytest.mark.simulator
def test_a_text_that_keeps_a_texture_as_an_integer() -> None:
    texture, y = TextureObject(np.float32([1, 2, 4])), np.zeros(3, np.float32)
    with cupyops.simulate(sanitize=True):
        Kernel(OF_INTEGER, "k", Threads("n"))((texture.ptr,), y, 3)
    assert y.tolist() == [1, 2, 4]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_a_text_of_textures_does_not_compile(architecture: str) -> None:
    pytest.importorskip("cupy")
    from cupyops.compile.compiler import binary_for

    kernels = [Image().kernel(), Image(channels=4).kernel(), Kernel(KINDS, "kinds", 1), Kernel(SURFACES, "surfaces", 4)]
    kernels += [Kernel(IN_STRUCT, "k", Threads("n")), Kernel(OF_INTEGER, "k", 1)]
    for kernel in kernels:
        assert binary_for(kernel.final_text({}), kernel.name, architecture).code
