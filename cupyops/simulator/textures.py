"""Textures and surfaces of the simulator: arrays of NumPy, or tensors on the CPU, that kernels read with CUDA's filters."""

import ctypes
from collections.abc import Sequence
from typing import Any

from cupyops.errors import expected

__all__ = ["SurfaceObject", "TextureObject"]

_FORMATS = ("float32", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32")
_ADDRESSES = ("wrap", "clamp", "mirror", "border")
_FILTERS = ("point", "linear")
_KINDS = ("array", "layered", "cubemap", "layered cubemap")


class _Description(ctypes.Structure):
    """``CupyopsTexture`` of cuda/textures.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_int * 3),
        *((name, ctypes.c_int) for name in ("dimensions", "layers", "faces", "channels", "format")),
        ("address", ctypes.c_int * 3),
        *((name, ctypes.c_int) for name in ("linear", "normalized", "scaled")),
        ("border", ctypes.c_float * 4),
    )


class _Object:
    simulated = True  # a launch on a GPU refuses the object

    def __init__(self, array: Any, channels: int, kind: str) -> None:
        import numpy

        what = type(self).__name__
        try:
            if not hasattr(array, "__array__"):
                raise TypeError
            self.array = numpy.asarray(array)
        except (TypeError, RuntimeError):  # a tensor on a GPU, or one that requires a gradient
            wanted = "be an array of NumPy, or a tensor on the CPU that requires no gradient"
            raise TypeError(expected(what, "array", wanted, type(array).__name__)) from None
        if self.array.dtype.name not in _FORMATS:
            raise TypeError(expected(what, "array", f"be of {', '.join(_FORMATS)}", self.array.dtype.name))
        if channels not in (1, 2, 4):
            raise ValueError(expected(what, "channels", "be 1, 2 or 4", repr(channels)))
        if kind not in _KINDS:
            raise ValueError(expected(what, "kind", f"be one of {', '.join(map(repr, _KINDS))}", repr(kind)))
        shape = self.array.shape
        if channels > 1 and (not shape or shape[-1] != channels):
            raise ValueError(
                expected(what, "array", f"have {channels} channels as its last dimension", f"shape {shape}")
            )
        sizes = shape[:-1] if channels > 1 else shape
        lead, sizes = (sizes[:1], sizes[1:]) if kind != "array" else ((), sizes)
        faces = 6 if "cubemap" in kind else 1
        most = 3 if kind == "array" else 2
        square = faces == 1 or (len(sizes) == 2 and sizes[0] == sizes[1] and lead and lead[0] % 6 == 0)
        if not 1 <= len(sizes) <= most or not square or 0 in shape or (kind == "cubemap" and lead != (6,)):
            forms = {
                "array": "(W), (H, W) or (D, H, W)",
                "layered": "(L, W) or (L, H, W)",
                "cubemap": "(6, W, W)",
                "layered cubemap": "(6 L, W, W)",
            }
            raise ValueError(expected(what, "array", f"have the sizes {forms[kind]}, and none 0", f"shape {shape}"))
        if not self.array.flags.c_contiguous:
            raise ValueError(
                f"{expected(what, 'array', 'be contiguous', f'strides {self.array.strides}')}. Pass a copy"
            )
        self._description = _Description(data=self.array.ctypes.data, dimensions=len(sizes), channels=channels)
        self._description.size = (ctypes.c_int * 3)(*[*reversed(sizes), 1, 1][:3])
        self._description.layers = lead[0] // faces if "layered" in kind else 0
        self._description.faces = faces
        self._description.format = _FORMATS.index(self.array.dtype.name)

    @property
    def ptr(self) -> int:
        """The value of the kernel's parameter."""
        return ctypes.addressof(self._description)


class TextureObject(_Object):
    """The argument for a ``cudaTextureObject_t`` in the simulator.

    The object refers to the memory of its array and does not copy it. A texture has one level of detail.

    Args:
        array: the texels, an array of NumPy or a tensor on the CPU, of float32, float16 or integers of 8 to 32 bits. Its
            sizes are (W), (H, W) or (D, H, W); with `channels`, the channels are the last dimension.
        channels: the numbers of a texel: 1, 2 or 4.
        kind: "array"; "layered" of sizes (L, W) or (L, H, W); "cubemap" of sizes (6, W, W); "layered cubemap" of sizes
            (6 L, W, W).
        address: what a coordinate outside means: "clamp", "wrap", "mirror" or "border"; one word, or one for each dimension
            from x on. With coordinates that are not normalized, "wrap" and "mirror" clamp.
        filter: "point", or "linear" between the nearest texels, with weights in steps of 1/256.
        normalized: whether a size is the coordinate 1.
        normalized_read: whether integers of 8 or 16 bits are read as floats of [0, 1], or of [-1, 1] if they are signed.
        border: the channels of a texel outside with "border".

    Raises:
        TypeError: `array` is not an array of the CPU, or has another dtype.
        ValueError: another argument is not one of these, or they do not fit each other.

    Source: the section "Texture Fetching" of CUDA's programming guide.
    """

    def __init__(
        self,
        array: Any,
        *,
        channels: int = 1,
        kind: str = "array",
        address: str | Sequence[str] = "clamp",
        filter: str = "point",
        normalized: bool = False,
        normalized_read: bool = False,
        border: Sequence[float] = (0.0, 0.0, 0.0, 0.0),
    ) -> None:
        super().__init__(array, channels, kind)
        modes = [address] * 3 if isinstance(address, str) else [*address]
        modes += modes[-1:] * (3 - len(modes))
        if len(modes) != 3 or any(mode not in _ADDRESSES for mode in modes):
            wanted = f"be one of {', '.join(map(repr, _ADDRESSES))}, or one for each dimension"
            raise ValueError(expected("TextureObject", "address", wanted, repr(address)))
        if filter not in _FILTERS:
            raise ValueError(expected("TextureObject", "filter", "be 'point' or 'linear'", repr(filter)))
        kind_of, bits = self.array.dtype.kind, 8 * self.array.dtype.itemsize
        if normalized_read and (kind_of == "f" or bits == 32):
            wanted = "be of integers of 8 or 16 bits for normalized_read"
            raise ValueError(expected("TextureObject", "array", wanted, self.array.dtype.name))
        if filter == "linear" and kind_of != "f" and not normalized_read:
            wanted = "be of floats for a linear filter, or have normalized_read"
            raise ValueError(expected("TextureObject", "array", wanted, self.array.dtype.name))
        if len(border) != 4:
            raise ValueError(expected("TextureObject", "border", "have 4 numbers", str(len(border))))
        self._description.address = (ctypes.c_int * 3)(*map(_ADDRESSES.index, modes))
        self._description.linear = filter == "linear"
        self._description.normalized = bool(normalized)
        self._description.scaled = bool(normalized_read)
        self._description.border = (ctypes.c_float * 4)(*border)


class SurfaceObject(_Object):
    """The argument for a ``cudaSurfaceObject_t`` in the simulator. Kernels read and write the memory of its array.

    Args:
        array, channels, kind: as in :class:`TextureObject`.

    Raises:
        TypeError: `array` is not an array of the CPU, or has another dtype.
        ValueError: another argument does not fit; the array is read-only.
    """

    def __init__(self, array: Any, *, channels: int = 1, kind: str = "array") -> None:
        super().__init__(array, channels, kind)
        if not self.array.flags.writeable:
            raise ValueError(f"{expected('SurfaceObject', 'array', 'be writable', 'a read-only array')}. Pass a copy")
