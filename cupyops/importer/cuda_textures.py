"""Translations of the CUDA runtime's names for texture objects: descriptions, arrays of texels, and what kernels fetch."""

from typing import Any

import torch

from cupyops.compile import toolchain
from cupyops.simulator.textures import TextureObject

from . import cuda_memory  # its C++ text comes first
from .cuda import enum
from .cuda_devices import done, on_gpu
from .errors import NotTranslated
from .memory import KINDS, DevicePointer, known
from .numbers import NUMBERS, Number
from .words import declare, section, word

__all__: list[str] = []

_KINDS = {"Signed": 0, "Unsigned": 1, "Float": 2, "None": 3}
_ADDRESSES = {"Wrap": 0, "Clamp": 1, "Mirror": 2, "Border": 3}

section("cudaTextureObject_t", "cudaArray_t", "cudaResourceDesc", "cudaChannelFormatDesc")
declare("typedef unsigned long long cudaTextureObject_t; struct cudaArray; typedef cudaArray* cudaArray_t;")
enum("cudaChannelFormatKind", _KINDS, "cudaChannelFormatKind")
enum("cudaResourceType", {"Array": 0, "Linear": 2, "Pitch2D": 3}, "cudaResourceType")
enum("cudaTextureAddressMode", _ADDRESSES, "cudaAddressMode")
enum("cudaTextureFilterMode", {"Point": 0, "Linear": 1}, "cudaFilterMode")
enum("cudaTextureReadMode", {"ElementType": 0, "NormalizedFloat": 1}, "cudaReadMode")


class _Record:
    """The base class of CUDA's descriptions: members with defaults."""

    fields: tuple[tuple[str, Any], ...] = ()

    def __init__(self) -> None:
        for name, kind in self.fields:
            setattr(self, name, _default(kind))

    def copy(self) -> Any:
        made = type(self)()
        made.assign(self)
        return made

    def assign(self, other: Any) -> None:
        for name, _ in self.fields:
            value = getattr(other, name)
            setattr(self, name, value.copy() if hasattr(value, "copy") else value)


def _default(kind: Any) -> Any:
    if isinstance(kind, tuple):
        from .containers import Vector  # whose words follow those of CUDA

        return None if kind[0] == "*" else Vector([kind[1](0)] * kind[2])
    return kind() if isinstance(kind, type) else kind(0)


_int32, _uint64, _float32 = (NUMBERS[n] for n in ("int32", "uint64", "float32"))
_POINTER = ("*", None)


@word("cudaChannelFormatDesc", "struct cudaChannelFormatDesc { int x, y, z, w; cudaChannelFormatKind f; };")
class Format(_Record):
    """The bits of each channel of a texel, and what they are."""

    x: int
    y: int
    z: int
    w: int
    f: int
    fields = (*((name, _int32) for name in "xyzw"), ("f", _int32))

    def dtype(self) -> torch.dtype:
        name = {0: "int", 1: "uint", 2: "float"}.get(self.f, "none")
        found = getattr(torch, f"{name}{self.x}", None)
        if found is None or found.itemsize > 4:
            raise NotTranslated(f"texels of {self.x} bits")
        assert isinstance(found, torch.dtype)
        return found

    @property
    def channels(self) -> int:
        return sum(bits > 0 for bits in (self.x, self.y, self.z, self.w))


@word(
    "cudaCreateChannelDesc",
    "template <class T> cudaChannelFormatDesc cudaCreateChannelDesc();"
    " cudaChannelFormatDesc cudaCreateChannelDesc(int, int, int, int, cudaChannelFormatKind);",
    typed=True,
)
def channel_format(*given: Any) -> Format:
    made = Format()
    if len(given) > 1:
        made.x, made.y, made.z, made.w, made.f = given[-5:]
        return made
    texel = known(given[0])
    kinds = [kind for _, kind in texel.fields] if hasattr(texel, "fields") else [texel]
    for name, kind in zip("xyzw", kinds, strict=False):
        setattr(made, name, 8 * kind.size)
    of: Number = kinds[0]
    made.f = _KINDS["Float" if of.floating else "Signed" if of.signed else "Unsigned"]
    return made


class Array(_Record):
    """The member of a resource that is an array."""

    fields = (("array", _POINTER),)


class Linear(_Record):
    """The member of a resource that is memory."""

    fields = (("devPtr", _POINTER), ("desc", Format), ("sizeInBytes", _uint64))


class Pitched(_Record):
    """The member of a resource that is rows of memory."""

    fields = (("devPtr", _POINTER), ("desc", Format), *((n, _uint64) for n in ("width", "height", "pitchInBytes")))


class Resources(_Record):
    """The kinds of a resource. In CUDA, one memory has all of them."""

    fields = (("array", Array), ("linear", Linear), ("pitch2D", Pitched))


@word(
    "cudaResourceDesc",
    "struct cudaResourceDesc { cudaResourceType resType; struct Resources { struct Array { cudaArray_t array; } array;"
    " struct Linear { void* devPtr; cudaChannelFormatDesc desc; size_t sizeInBytes; } linear;"
    " struct Pitched { void* devPtr; cudaChannelFormatDesc desc; size_t width, height, pitchInBytes; } pitch2D; } res; };",
)
class Resource(_Record):
    """What a texture fetches from."""

    fields = (("resType", _int32), ("res", Resources))


@word(
    "cudaTextureDesc",
    "struct cudaTextureDesc { cudaTextureAddressMode addressMode[3]; cudaTextureFilterMode filterMode; cudaTextureReadMode readMode;"
    " int sRGB; float borderColor[4]; int normalizedCoords; unsigned maxAnisotropy; };",
)
class Texture(_Record):
    """How a texture fetches."""

    fields = (
        ("addressMode", ("[]", _int32, 3)),
        *((name, _int32) for name in ("filterMode", "readMode", "sRGB")),
        ("borderColor", ("[]", _float32, 4)),
        ("normalizedCoords", _int32),
        ("maxAnisotropy", NUMBERS["uint32"]),
    )


KINDS |= {"cudaChannelFormatDesc": Format, "cudaResourceDesc": Resource, "cudaTextureDesc": Texture}


@word("cudaArray")
class Texels:
    """An array of texels, which a texture fetches with filters: of CuPy on a GPU, a tensor in the simulator."""

    def __init__(self, form: Format, width: int, height: int) -> None:
        self.form = form.copy()
        sizes = [*([height] if height else []), width, *([form.channels] if form.channels > 1 else [])]
        self.texels = torch.zeros(sizes, dtype=form.dtype(), device="cuda" if on_gpu() else "cpu")
        self.array: Any = None
        if on_gpu():
            texture = toolchain.cupy().cuda.texture
            described = texture.ChannelFormatDescriptor(form.x, form.y, form.z, form.w, form.f)
            self.array = texture.CUDAarray(described, width, height)

    def rows(self) -> torch.Tensor:
        """Returns the bytes of the rows."""
        rows = self.texels.shape[0] if self.texels.dim() > 1 + (self.form.channels > 1) else 1
        return self.texels.view(torch.uint8).view(rows, -1)

    def written(self) -> None:
        """Takes the texels over on a GPU."""
        if self.array is not None:
            self.array.copy_from(toolchain.cupy().from_dlpack(self.texels))


@word(
    "cudaMallocArray",
    "cudaError_t cudaMallocArray(cudaArray_t*, const cudaChannelFormatDesc*, size_t, size_t = 0, unsigned = 0);",
)
def malloc_array(place: Any, form: Any, width: int, height: int = 0, flags: int = 0) -> int:
    place[0] = Texels(form[0], width, height)
    return 0


@word("cudaFreeArray", "cudaError_t cudaFreeArray(cudaArray_t);")
def free_array(array: Any) -> int:
    if on_gpu():
        torch.cuda.synchronize()  # a kernel may fetch from it
    return 0


_TO_ARRAY = "cudaError_t {0}(cudaArray_t, size_t, size_t, const void*, size_t, size_t, size_t, cudaMemcpyKind{1});"


@word("cudaMemcpy2DToArrayAsync", _TO_ARRAY.format("cudaMemcpy2DToArrayAsync", ", cudaStream_t = 0"))
@word("cudaMemcpy2DToArray", _TO_ARRAY.format("cudaMemcpy2DToArray", ""))
def rows_to_array(
    array: Any, x: int, y: int, source: Any, pitch: int, width: int, height: int, kind: int, stream: Any = None
) -> int:
    rows = array.rows()
    if x + width > rows.shape[1] or y + height > rows.shape[0]:
        return done(1)
    with cuda_memory.on_stream(stream):
        rows[y : y + height, x : x + width].copy_(cuda_memory.rows_of(source, pitch, width, height))
        array.written()
    return 0


@word(
    "cudaMemcpyToArray",
    "cudaError_t cudaMemcpyToArray(cudaArray_t, size_t, size_t, const void*, size_t, cudaMemcpyKind);",
)
def to_array(array: Any, x: int, y: int, source: Any, count: int, kind: int) -> int:
    flat = array.rows().view(-1)
    start = y * array.rows().shape[1] + x
    if start + count > len(flat):
        return done(1)
    flat[start : start + count].copy_(cuda_memory.rows_of(source, count, count, 1)[0])
    array.written()
    return 0


_LIVING: dict[int, Any] = {}  # a kernel fetches by the number alone


def _memory(part: Any, width: int, height: int, pitch: int) -> torch.Tensor:
    """Returns the texels of memory."""
    if not isinstance(part.devPtr, DevicePointer):
        raise NotTranslated("a texture of host memory")
    dtype, channels = part.desc.dtype(), part.desc.channels
    flat: torch.Tensor = part.devPtr.memory.flat(part.devPtr.offset, dtype, None)
    step = pitch // dtype.itemsize
    sizes = [*([height] if height else []), width, *([channels] if channels > 1 else [])]
    strides = [*([step] if height else []), channels, *([1] if channels > 1 else [])]
    return flat.as_strided(sizes, strides, flat.storage_offset())


@word(
    "cudaCreateTextureObject",
    "struct cudaResourceViewDesc; cudaError_t cudaCreateTextureObject(cudaTextureObject_t*, const cudaResourceDesc*,"
    " const cudaTextureDesc*, const cudaResourceViewDesc*);",
)
def create_texture(place: Any, resource: Any, texture: Any, view: Any) -> int:
    of, how = resource[0], texture[0]
    array, linear, pitched = of.res.array.array, of.res.linear, of.res.pitch2D
    if of.resType == 0:
        form, texels = array.form, array.texels
    elif of.resType == 2:
        form = linear.desc
        bytes_of_texel = form.dtype().itemsize * form.channels
        texels = _memory(linear, linear.sizeInBytes // bytes_of_texel, 0, 0)
    else:
        form, texels = pitched.desc, _memory(pitched, pitched.width, pitched.height, pitched.pitchInBytes)
    if on_gpu():
        cupy = toolchain.cupy()
        names = cupy.cuda.texture
        described = names.ChannelFormatDescriptor(form.x, form.y, form.z, form.w, form.f)
        if of.resType == 0:
            found = names.ResourceDescriptor(0, cuArr=array.array)
        elif of.resType == 2:
            found = names.ResourceDescriptor(
                2, arr=cupy.from_dlpack(texels), chDesc=described, sizeInBytes=linear.sizeInBytes
            )
        else:
            found = names.ResourceDescriptor(
                3, arr=cupy.from_dlpack(texels), chDesc=described, width=pitched.width, height=pitched.height,
                pitchInBytes=pitched.pitchInBytes,
            )  # fmt: skip
        fetching = names.TextureDescriptor(
            tuple(how.addressMode), how.filterMode, how.readMode, how.sRGB, tuple(how.borderColor), how.normalizedCoords
        )
        made: Any = names.TextureObject(found, fetching)
    else:
        words = {number: name.lower() for name, number in _ADDRESSES.items()}
        dimensions = texels.dim() - (form.channels > 1)
        made = TextureObject(
            texels.contiguous() if of.resType == 3 else texels,
            channels=form.channels,
            address=[words[mode] for mode in how.addressMode[:dimensions]],
            filter="linear" if how.filterMode else "point",
            normalized=bool(how.normalizedCoords),
            normalized_read=bool(how.readMode),
            border=tuple(how.borderColor),
        )
    place[0] = made
    _LIVING[id(made)] = made
    return 0


@word("cudaDestroyTextureObject", "cudaError_t cudaDestroyTextureObject(cudaTextureObject_t);")
def destroy_texture(texture: Any) -> int:
    if id(texture) not in _LIVING:
        return done(1)
    if on_gpu():
        torch.cuda.synchronize()  # a kernel may fetch from it
    del _LIVING[id(texture)]
    return 0


# What kernels fetch, which has no Python meaning.
declare("#pragma clang force_cuda_host_device begin")
declare("".join(
    f"template <class T> T {name}(cudaTextureObject_t, {', '.join(kinds)});"
    for name, kinds in {
        "tex1Dfetch": ["int"], "tex1D": ["float"], "tex2D": ["float"] * 2, "tex3D": ["float"] * 3,
        "tex1DLayered": ["float", "int"], "tex2DLayered": ["float", "float", "int"], "tex2DLod": ["float"] * 3,
    }.items()
))  # fmt: skip
declare("#pragma clang force_cuda_host_device end")
section()
