"""The table of element types: Python name, C type, accumulation type, size, and :mod:`struct` code of a scalar."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .errors import expected, nearest

__all__ = ["DTYPES", "FLOATS", "INTEGERS", "DType", "as_view", "bfloat16_bits", "dtype_name", "dtype_names"]


@dataclass(frozen=True)
class DType:
    """One element type.

    Attributes:
        name: the name in NumPy, CuPy and PyTorch, ``"float32"``.
        c_type: the type in CUDA C++.
        acc: name of the accumulation type: float32 for 16-bit floats, the type itself for every other type.
        itemsize: bytes of an element.
        header: the CUDA header that defines ``c_type``, or None.
        code: the :mod:`struct` code of a kernel argument. :mod:`struct` has no code of a bfloat16, whose bits are packed.
    """

    name: str
    c_type: str
    acc: str
    itemsize: int
    header: str | None = None
    code: str = ""


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("float16", "__half", "float32", 2, "cuda_fp16.h", code="e"),
        DType("bfloat16", "__nv_bfloat16", "float32", 2, "cuda_bf16.h", code="H"),
        DType("float32", "float", "float32", 4, code="f"),
        DType("float64", "double", "float64", 8, code="d"),
        DType("int8", "signed char", "int8", 1, code="b"),
        DType("int16", "short", "int16", 2, code="h"),
        DType("int32", "int", "int32", 4, code="i"),
        DType("int64", "long long", "int64", 8, code="q"),
        DType("uint8", "unsigned char", "uint8", 1, code="B"),
        DType("uint16", "unsigned short", "uint16", 2, code="H"),
        DType("uint32", "unsigned int", "uint32", 4, code="I"),
        DType("uint64", "unsigned long long", "uint64", 8, code="Q"),
        DType("bool", "bool", "bool", 1, code="?"),
    )
}

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def as_view(name: str, dtype: str) -> str:
    """Returns the end of a message that refuses a dtype that no kernel has: the view that a kernel can read.

    >>> as_view("x", "float8_e4m3fn")
    ': pass x.view(torch.uint8), whose elements the kernel may read as __nv_fp8_e4m3 or __nv_fp8_e5m2'
    >>> as_view("x", "int8")
    ''
    """
    if dtype.startswith("float8"):
        return f": pass {name}.view(torch.uint8), whose elements the kernel may read as __nv_fp8_e4m3 or __nv_fp8_e5m2"
    if dtype.startswith("complex"):
        return f": pass torch.view_as_real({name}), whose pairs of elements the kernel may read as complex numbers"
    return ""


def bfloat16_bits(number: Any) -> int:
    """Returns the bits of the bfloat16 nearest to a number; ties go to the even one.

    >>> hex(bfloat16_bits(1.0))
    '0x3f80'

    Raises:
        struct.error: `number` is not a number.
        OverflowError: the magnitude of `number` is too large.
    """
    (bits,) = struct.unpack("=I", struct.pack("=f", number))
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 | 0x40  # the payload of a NaN may be in the lower half alone
    rounded: int = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    if rounded & 0x7FFF == 0x7F80 and bits & 0x7FFFFFFF != 0x7F800000:
        raise OverflowError("float too large for a bfloat16")
    return rounded


def dtype_names(where: str, dtypes: Any) -> tuple[str, ...]:
    """Returns the names of one dtype or of several.

    A dtype is given as a name or as an object of PyTorch, NumPy or CuPy.

    >>> dtype_names("scale", "float32")
    ('float32',)

    Raises:
        ValueError: a dtype is not in :data:`DTYPES`, or no dtype is given.
    """
    one = isinstance(dtypes, (str, type)) or not isinstance(dtypes, Iterable)
    given = [dtypes] if one else list(dtypes)
    # PyTorch's dtypes are recognized by their str(), "torch.float32": cupyops does not import PyTorch here.
    names = [d.__name__ if isinstance(d, type) else str(d).removeprefix("torch.") for d in given]
    unknown = [(d, name) for d, name in zip(given, names, strict=True) if name not in DTYPES]
    if unknown or not names:
        got = ", ".join(repr(d) for d, _ in unknown) or "none"
        word = unknown[0][1] if unknown else ""
        of_c = next((d.name for d in DTYPES.values() if word in (d.c_type, d.c_type.strip("_"))), "")
        if isinstance(dtypes, str) and "," in dtypes:
            hint = "; give several as a tuple"
        else:
            hint = f"; did you mean {of_c!r}?" if of_c else nearest(word, DTYPES)
        raise ValueError(expected(where, "dtypes", f"be names of {', '.join(DTYPES)}", f"{got}{hint}"))
    return tuple(names)


def dtype_name(dtype: Any) -> str | None:
    """Returns the name of a dtype given as a name, a type or a NumPy dtype. Returns None for None."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    import numpy

    return str(numpy.dtype(dtype))
