"""The types of CUDA's headers and of libraries that are more than one number: vectors, complex numbers, states of generators,
textures and surfaces, vectors and matrices of GLM, arrays of CUDA's C++ library, and function objects."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cupyops.dtypes import DTYPES, FLOATS

from .typenames import dtype_of

__all__ = ["Element", "complex_of", "library_type"]

# A demangled name has the inline namespaces of CUDA's C++ library, and the suffixes of numbers.
_INLINE = re.compile(r"\b(?:_V_)?__[0-9]\w*::|(?<=\d)[uU]?[lL]{0,2}\b")
_COMPLEX = re.compile(r"(?:(?:c10|at|torch|thrust|cuda::std)::)?complex<([\w:]+)>")
# Vectors and matrices of GLM, whose numbers lie one after another. A matrix lies column by column.
_GLM = re.compile(r"glm::(?:vec<(\d)|mat<(\d), (\d)), (\w+)(?:, .*)?>")
_ARRAY = re.compile(r"(?:cuda::)?std::array<(.*), (\d+)>")
_LARGEST_ALIGNMENT = 16  # bytes of the widest access of a thread


@dataclass(frozen=True)
class Element:
    """The C type of a parameter that is not a number.

    Attributes:
        name: the name in the text, ``float4``.
        dtype: the dtype of the array; uint8 for a struct.
        width: the last dimension of the array: the numbers of a vector, or the bytes of a struct.
        alignment: bytes of which an address is a multiple.
        record: the NumPy dtype of a struct, else None.
        handle: the CuPy class of a texture or surface object, else ``""``.
    """

    name: str
    dtype: str
    width: int
    alignment: int
    record: Any = None
    handle: str = ""


def _vectors() -> Iterator[Element]:
    names = {"char": "int8", "uchar": "uint8", "short": "int16", "ushort": "uint16", "int": "int32", "uint": "uint32"}
    names |= {"longlong": "int64", "ulonglong": "uint64"}
    names |= {"long": "int32", "ulong": "uint32"} if sys.platform == "win32" else {"long": "int64", "ulong": "uint64"}
    names |= {"float": "float32", "double": "float64"}
    for name, dtype in names.items():
        size = DTYPES[dtype].itemsize
        for width in (1, 2, 3, 4):
            aligned = size * width if width in (2, 4) else size
            yield Element(f"{name}{width}", dtype, width, min(aligned, _LARGEST_ALIGNMENT))
    for name, dtype in {"half2": "float16", "__half2": "float16"}.items():
        yield Element(name, dtype, 2, 4)
    for name in ("nv_bfloat162", "__nv_bfloat162"):
        yield Element(name, "bfloat16", 2, 4)
    yield Element("dim3", "uint32", 3, 4)
    yield Element("cudaExtent", "uint64", 3, 8)
    # The states of cuRAND's generators: bytes that a kernel writes and reads.
    states = {"": (48, 8), "XORWOW": (48, 8), "Philox4_32_10": (64, 16), "Sobol32": (140, 4), "MRG32k3a": (48, 8)}
    for kind, (size, aligned) in states.items():
        yield from (Element(f"curandState{name}", "uint8", size, aligned) for name in (kind, f"{kind}_t"))
    yield Element("curandDirectionVectors32_t", "uint32", 32, 4)
    for name in ("cuComplex", "cuFloatComplex", "cufftComplex"):
        yield Element(name, "float32", 2, 8)
    for name in ("cuDoubleComplex", "cufftDoubleComplex"):
        yield Element(name, "float64", 2, 16)


_KNOWN = {e.name: e for e in _vectors()} | {
    f"cuda{kind}Object_t": Element(f"cuda{kind}Object_t", "uint64", 1, 8, handle=f"{kind}Object")
    for kind in ("Texture", "Surface")
}
_KNOWN |= {
    f"CU{short}Object": _KNOWN[f"cuda{kind}Object_t"] for short, kind in (("tex", "Texture"), ("surf", "Surface"))
}


@lru_cache(256)
def library_type(name: str) -> Element | None:
    """Returns the element of a type of CUDA's headers or of a library, or None for another type.

    Args:
        name: the name as the compiler spells it, ``float4`` or ``c10::complex<float>``.
    """
    plain = _INLINE.sub("", name)
    if (found := _KNOWN.get(plain)) is not None:
        return found
    if found := complex_of(name):
        return found
    if glm := _GLM.fullmatch(plain):
        dtype, count = dtype_of(glm[4]), int(glm[1] or int(glm[2]) * int(glm[3]))
        return None if dtype is None else Element(name, dtype, count, DTYPES[dtype].itemsize)
    if array := _ARRAY.fullmatch(plain):
        dtype = dtype_of(array[1])
        return None if dtype is None else Element(name, dtype, int(array[2]), DTYPES[dtype].itemsize)
    import numpy

    if plain.rpartition("::")[2] in ("CUtensorMap_st", "CUtensorMap"):  # passed by value as its bytes
        return Element(name, "uint8", 128, 64, numpy.dtype([("opaque", "u8", 16)]))
    if plain.rpartition("::")[2] == "PhiloxCudaState":
        # The rest of the struct is for the capture of a CUDA graph by PyTorch, and is 0 without.
        fields: Any = {"names": ["seed", "offset"], "formats": ["u8", "u8"], "offsets": [0, 8], "itemsize": 24}
        return Element(name, "uint8", 24, 8, numpy.dtype(fields))
    return None


def complex_of(name: str) -> Element | None:
    """Returns the element of a complex number of PyTorch, of Thrust or of CUDA's C++ library, or None for another type."""
    found = _COMPLEX.fullmatch(_INLINE.sub("", name))
    dtype = dtype_of(found[1]) if found else None
    return Element(name, dtype, 2, 2 * DTYPES[dtype].itemsize) if dtype in FLOATS else None
