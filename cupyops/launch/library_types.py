"""The types of CUDA's headers and of libraries that are more than one number: vectors, complex numbers, states of generators,
textures and surfaces, vectors and matrices of GLM, arrays of CUDA's C++ library, and function objects."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cupyops.compile.cpp_library import FUNCTIONS
from cupyops.dtypes import DTYPES, FLOATS

from .typenames import c_dtype

__all__ = ["KNOWN", "LARGEST_ALIGNMENT", "REFUSED", "STD_ARRAY", "Element", "complex_of", "library_type", "vector_of"]

_FUNCTION = re.compile(
    rf"(?:::)?(?:(?:cuda::)?std|thrust)::(?:{'|'.join(sorted(FUNCTIONS))})\s*<[\w:\s]*>|(?:thrust|cuda)::(?:maximum|minimum|identity)\s*<[\w:\s]*>"
    r"|cub::(?:Sum|Max|Min|Equality|Inequality)"
)
_COMPLEX = re.compile(r"(?:(?:::)?(?:c10|at|torch|thrust|cuda::std)::)?complex\s*<\s*((?:\w+::)?\w+)\s*>")
# Vectors and matrices of GLM, whose numbers lie one behind the other. A matrix lies column by column.
_GLM = re.compile(
    r"(?:::)?glm::(?:([diu]?)(?:vec([234])|mat([234])(?:x([234]))?)"
    r"|vec\s*<\s*([1-4])\s*,\s*(\w+)\s*>|mat\s*<\s*([234])\s*,\s*([234])\s*,\s*(\w+)\s*>)"
)
STD_ARRAY = re.compile(r"(?:::)?(?:cuda::)?std::array\s*<(.*),\s*([^,<>]+)>")
_OF_GLM = {"": "float32", "d": "float64", "i": "int32", "u": "uint32"}
LARGEST_ALIGNMENT = 16  # bytes of the widest access of a thread


@dataclass(frozen=True)
class Element:
    """The C type of a parameter that is no number.

    Attributes:
        name: the name in the text, ``float4``.
        dtype: the dtype of the array; uint8 for a struct.
        width: the last dimension of the array: the numbers of a vector, or the bytes of a struct.
        alignment: bytes of which an address is a multiple.
        record: the NumPy dtype of a struct, else None.
        handle: the CuPy class of a texture or surface object, else ``""``.
        spelling: the name in C++ outside all namespaces, if it is another one.
    """

    name: str
    dtype: str
    width: int
    alignment: int
    record: Any = None
    handle: str = ""
    spelling: str = ""


def _vectors() -> Iterator[Element]:
    names = {"char": "int8", "uchar": "uint8", "short": "int16", "ushort": "uint16", "int": "int32", "uint": "uint32"}
    names |= {"longlong": "int64", "ulonglong": "uint64"}
    names |= {"long": "int32", "ulong": "uint32"} if sys.platform == "win32" else {"long": "int64", "ulong": "uint64"}
    names |= {"float": "float32", "double": "float64"}
    for name, dtype in names.items():
        size = DTYPES[dtype].itemsize
        for width in (1, 2, 3, 4):
            aligned = size * width if width in (2, 4) else size
            yield Element(f"{name}{width}", dtype, width, min(aligned, LARGEST_ALIGNMENT))
    for name, dtype in {"half2": "float16", "__half2": "float16"}.items():
        yield Element(name, dtype, 2, 4)
    for name in ("nv_bfloat162", "__nv_bfloat162"):
        yield Element(name, "bfloat16", 2, 4)
    yield Element("dim3", "uint32", 3, 4)
    yield Element("cudaExtent", "uint64", 3, 8)
    # The states of cuRAND's generators: bytes that a kernel writes and reads.
    for name in ("curandState", "curandState_t", "curandStateXORWOW", "curandStateXORWOW_t"):
        yield Element(name, "uint8", 48, 8)
    for name in ("curandStatePhilox4_32_10", "curandStatePhilox4_32_10_t"):
        yield Element(name, "uint8", 64, 16)
    for name in ("curandStateSobol32", "curandStateSobol32_t"):
        yield Element(name, "uint8", 140, 4)
    for name in ("curandStateMRG32k3a", "curandStateMRG32k3a_t"):
        yield Element(name, "uint8", 48, 8)
    yield Element("curandDirectionVectors32_t", "uint32", 32, 4)
    for name in ("cuComplex", "cuFloatComplex", "cufftComplex"):
        yield Element(name, "float32", 2, 8)
    for name in ("cuDoubleComplex", "cufftDoubleComplex"):
        yield Element(name, "float64", 2, 16)


KNOWN = {e.name: e for e in _vectors()} | {
    f"cuda{kind}Object_t": Element(f"cuda{kind}Object_t", "uint64", 1, 8, handle=f"{kind}Object")
    for kind in ("Texture", "Surface")
}
KNOWN |= {f"CU{short}Object": KNOWN[f"cuda{kind}Object_t"] for short, kind in (("tex", "Texture"), ("surf", "Surface"))}


# Types that no array has, and what to use instead.
REFUSED = dict.fromkeys(
    ("curandStateMtgp32", "curandStateMtgp32_t"),
    "whose tables cuRAND's functions for the host make: use curandStatePhilox4_32_10_t, or XORWOW's curandState",
)


def library_type(name: str) -> Element | None:
    """Returns the element of a type of CUDA's headers or of a library, or None for another type."""
    return (
        KNOWN.get(name)
        or complex_of(name)
        or _glm_of(name)
        or _function_of(name)
        or _tensor_map_of(name)
        or _philox_of(name)
        or _array_of(name)
    )


@lru_cache(64)
def complex_of(name: str) -> Element | None:
    """Returns the element of a complex number of PyTorch, of Thrust or of CUDA's C++ library, or None for another type."""
    found = _COMPLEX.fullmatch(name)
    dtype = c_dtype(found[1]) if found else None
    return Element(name, dtype, 2, 2 * DTYPES[dtype].itemsize) if dtype in FLOATS else None


@lru_cache(64)
def _glm_of(name: str) -> Element | None:
    """Returns the element of a vector or of a matrix of GLM, or None for another type."""
    found = _GLM.fullmatch(name)
    if found is None:
        return None
    kind, length, columns, rows, size, number, width, height, of_matrix = found.groups()
    dtype = c_dtype(number or of_matrix) if number or of_matrix else _OF_GLM[kind]
    if dtype is None:
        return None
    count = int(length or size or 0) or int(columns or width) * int(rows or columns or height)
    return Element(name, dtype, count, DTYPES[dtype].itemsize)


@lru_cache(64)
def _function_of(name: str) -> Element | None:
    """Returns the element of a function object of a library, such as ``std::plus<float>``, or None for another type."""
    if not _FUNCTION.fullmatch(name):
        return None
    import numpy

    return Element(name, "uint8", 1, 1, numpy.dtype({"names": [], "formats": [], "itemsize": 1}), spelling=name)


@lru_cache(8)
def _tensor_map_of(name: str) -> Element | None:
    """Returns the element of a tensor map of the driver, which is passed by value as its bytes, or None for another type."""
    if name != "CUtensorMap":
        return None
    import numpy

    return Element(name, "uint8", 128, 64, numpy.dtype([("opaque", "u8", 16)]))


@lru_cache(8)
def _philox_of(name: str) -> Element | None:
    """Returns the element of the state of PyTorch's Philox generator, or None for another type."""
    if not re.fullmatch(r"(?:(?:::)?(?:at|c10|torch)::)?PhiloxCudaState", name):
        return None
    import numpy

    # The rest of the struct is for the capture of a CUDA graph by PyTorch, and is 0 without.
    fields: Any = {"names": ["seed", "offset"], "formats": ["u8", "u8"], "offsets": [0, 8], "itemsize": 24}
    return Element(name, "uint8", 24, 8, numpy.dtype(fields))


@lru_cache(64)
def _array_of(name: str) -> Element | None:
    """Returns the element of an array of the C++ library of a number of numbers, or None for another type."""
    found = STD_ARRAY.fullmatch(name if "::" in name else f"std::{name}")  # an instance has no namespaces
    dtype = c_dtype(re.sub(r"^(?:::)?std::", "", found[1].strip())) if found else None
    count = found[2].strip().rstrip("uUlL") if found else ""
    if dtype is None or not count.isdigit():
        return None
    return Element(name, dtype, int(count), DTYPES[dtype].itemsize)


def vector_of(name: str) -> Element | None:
    """Returns the element of a vector type, or None for another type."""
    found = KNOWN.get(name) or _glm_of(name)
    return None if found is None or found.handle else found
