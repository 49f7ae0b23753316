"""The names of types and the macros in a kernel's declaration.

The dtypes of C's own numbers are known by name. The compiler resolves any other name (:mod:`cupyops.compile.ask`). If
no text declares the name, the arrays of a call decide it.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cupyops.compile.cuda_text import scan
from cupyops.compile.declarations import WORD
from cupyops.compile.standard import INTEGERS
from cupyops.dtypes import DTYPES, FLOATS

from .definitions import ATTRIBUTES

__all__ = [
    "Element",
    "complex_of",
    "data_members",
    "dtype_of",
    "library_type",
    "may_declare",
    "taken_apart",
    "without_attributes",
]

# The dtype of each type of C that is a number.
C_TYPES = {d.c_type: d.name for d in DTYPES.values()} | {
    "char": "int8",
    "size_t": "uint64",
    "ptrdiff_t": "int64",
    "cufftReal": "float32",
    "cufftDoubleReal": "float64",
    "half": "float16",
    "nv_bfloat16": "bfloat16",
    **{f"{space}::Half": "float16" for space in ("at", "c10", "torch")},
    **{f"{space}::BFloat16": "bfloat16" for space in ("at", "c10", "torch")},
    **{f"{space}::Float8_{kind}": "uint8" for space in ("at", "c10", "torch") for kind in ("e4m3fn", "e5m2")},
    "nvcuda::wmma::layout_t": "int32",
    "wmma::layout_t": "int32",
    **{
        f"__nv_fp{kind}_{name}": dtype
        for names, dtypes in {
            ("e4m3", "e5m2", "e8m0", "storage_t"): {"8": "uint8", "8x2": "uint16", "8x4": "uint32"},
            ("e2m3", "e3m2", "storage_t"): {"6": "uint8", "6x2": "uint16", "6x4": "uint32"},
            ("e2m1", "storage_t"): {"4": "uint8", "4x2": "uint8", "4x4": "uint16"},
        }.items()
        for name in names
        for kind, dtype in dtypes.items()
    },
    "clock_t": "int32" if sys.platform == "win32" else "int64",
}


# Words that may declare a type: those after a keyword, but not a parameter of a template; the names at the end of a typedef and
# after braces; and a macro. No expression matches across the next such keyword, so that the time stays linear in the text.
_CLASS = re.compile(r"([<,]\s*)?\b(?:struct|class|union|enum)\b((?:[\s\w]|::|\([^();{}]*\))*)")
_USING = re.compile(r"\busing\s+(?:[\w\s:]*::\s*)?(\w+)")
_TYPEDEF = re.compile(r"\btypedef\b((?:(?!\btypedef\b)[^;{}])*;)|\}((?:(?!\btypedef\b)[^;{}()=])*;)")
_NAMED = re.compile(r"\b([A-Za-z_]\w*)\s*[;,)\[]")  # before the end, a comma, an extent, or in parentheses
_MACRO = re.compile(r"\w+")
_OF_CUDA = re.compile(r"__\w+__")  # __host__ and __device__
_KEYWORDS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl concept const "  # noqa: SIM905
    "consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast else "
    "enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr "
    "operator or or_eq private protected public register reinterpret_cast requires return short signed sizeof static static_assert "
    "static_cast struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void "
    "volatile wchar_t while xor xor_eq".split()
)
_BODY = re.compile(r"\b(?:struct|class|union)\b(?:(?!\b(?:struct|class|union)\b)[^;(){}=]|\([^();{}]*\))*\{")
# A name that declares data is before the end of the declaration, an extent, an initializer or the width of a bit field, or in
# the parentheses of a pointer to a function or of a macro.
_MEMBER = re.compile(r"(?<![.>\w])\b([A-Za-z_]\w*)\s*(?=[;,=\[{:)])(?!::)")
_STD = re.compile(r"\A(?:::\s*)?(?:(?:cuda\s*::\s*)?std\s*::\s*)?")
_EXTENTS = re.compile(r"\s*\([*&]\)\s*(?:\[\d*\])+\Z|(?:\s*\[\d*\])+\Z")
_POINTER = re.compile(r"\s*(?:\*|&&?)\s*(const)?\s*(?:volatile\b|(?:__)?restrict(?:__)?\b|\s)*\Z")
# NVRTC has the host's `long`.
_LONG = "int" if sys.platform == "win32" else "long long"


@lru_cache(64)
def may_declare(text: str) -> frozenset[str]:
    """Returns names with all names of types that a text declares. Other names may be among them."""
    code = scan(text)
    found = {name[0] for d in code.directives if d.name == "define" and (name := _MACRO.match(d.rest))}
    for piece in (without_attributes(code.bare), *(d.rest for d in code.directives if d.name == "define")):
        for match in _CLASS.finditer(piece):
            found.update(() if match[1] else WORD.findall(match[2]))
        found.update(_USING.findall(piece))
        for match in _TYPEDEF.finditer(piece):
            found.update(_NAMED.findall(match[1] or match[2]))
    return frozenset(found) - _KEYWORDS


def without_attributes(bare: str) -> str:
    """Returns code with blanks for attributes. Every other character keeps its offset."""
    return ATTRIBUTES.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), bare)


def data_members(texts: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """Returns names together with the data members of all classes of some texts, in their order, and the members that
    several classes have. Other names may be among them."""
    found: Counter[str] = Counter()
    for text in texts:
        found.update(_members(text))
    names = [name for name in found if name not in _KEYWORDS and not _OF_CUDA.fullmatch(name)]
    return names, frozenset(name for name, count in found.items() if count > 1)


@lru_cache(64)
def _members(text: str) -> Counter[str]:
    code = scan(text)
    found: Counter[str] = Counter()
    end = 0
    for opening in _BODY.finditer(without_attributes(code.bare)):
        if opening.start() < end:
            continue  # within another class
        end = code.end_of_function(opening.end() - 1)
        body = code.bare[opening.end() : end]
        found.update(dict.fromkeys(_MEMBER.findall(body), 1))
        words = set(WORD.findall(body))
        for d in code.directives:  # a macro may stand for members
            if d.name == "define" and (name := _MACRO.match(d.rest)) and name[0] in words:
                found.update(dict.fromkeys(WORD.findall(d.rest[name.end() :]), 1))
    return found


def dtype_of(base: str) -> str | None:
    """Returns the dtype of a type of C, or None for another type."""
    words = " ".join(word for word in _STD.sub("", base, count=1).split() if word not in ("const", "volatile"))
    return C_TYPES.get(_integer(words))


def _integer(base: str) -> str:
    """Returns the usual spelling of an integer type: ``unsigned long long`` for ``long long unsigned int``."""
    words = base.split()
    if not words or not {"char", "short", "int", "long", "signed", "unsigned"}.issuperset(words):
        return base
    kind = next((k for k in ("char", "short") if k in words), " ".join(["long"] * words.count("long")) or "int")
    kind = _LONG if kind == "long" else kind
    if "unsigned" in words:
        return f"unsigned {kind}"
    return "signed char" if kind == "char" else kind


C_TYPES |= {name: C_TYPES[_integer(of)] for name, of in INTEGERS.items()}


def taken_apart(spelling: str) -> tuple[int, bool, bool, str]:
    """Returns the pointers and references of a type, whether the outer pointer's target is a ``const`` pointer, whether the element is
    ``const``, and the element.

    >>> taken_apart("float const*")
    (1, False, True, 'float')
    """
    depth, pointer_const = 0, False
    if extents := _EXTENTS.search(spelling):
        depth, spelling = 1, spelling[: extents.start()]
    while (found := _POINTER.search(spelling)) and not spelling.endswith(">"):
        pointer_const = pointer_const or (depth == 1 and found[1] is not None)
        depth, spelling = depth + 1, spelling[: found.start()]
    words = spelling.split(" ")
    const = "const" in words[-2:]
    while words[-1] in ("const", "volatile"):
        words.pop()
    return depth, pointer_const, const, " ".join(words)


# The types of CUDA's headers and of libraries that are more than one number: vectors, complex numbers, states of generators, textures
# and surfaces, vectors and matrices of GLM, arrays of CUDA's C++ library, and function objects.

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
