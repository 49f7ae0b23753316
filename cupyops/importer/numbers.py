"""C++'s types of numbers in generated code: each converts a value as C++ does when it is called.

``int32(x)`` truncates a floating value and wraps an integer, ``uint8(-1)`` is 255, ``float32(0.1)`` has the bits of a
float. Integers are Python's ``int``, floating values ``float``, so Python's operators compute on them. C++'s division and
remainder are functions of this module.
"""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

__all__ = ["NUMBERS", "Number", "divide", "quotient", "remainder"]


@dataclass(frozen=True)
class Number:
    """An arithmetic type of C++.

    Attributes:
        name: the name in generated code, ``"int32"``.
        spelling: C++'s name, ``"int"``.
        size: bytes.
        signed: whether an integer has negative values.
        dtype: PyTorch's dtype, or None.
        finite: a value beyond the largest one becomes the largest one, as in CUDA's floats of 8 bits.
    """

    name: str
    spelling: str
    size: int
    signed: bool = True
    dtype: torch.dtype | None = None
    finite: bool = False

    def __repr__(self) -> str:
        return self.name

    @property
    def floating(self) -> bool:
        return "float" in self.name

    def __call__(self, value: Any = 0) -> Any:
        """Returns the value converted to this type, as C++'s implicit conversion does."""
        return self._convert(value)

    def of_bits(self, bits: int) -> float:
        """Returns the float of its bits, ``Half(0x3C00, Half::from_bits())``."""
        assert self.dtype is not None
        return float(torch.tensor(bits, dtype=getattr(torch, f"uint{8 * self.size}")).view(self.dtype))

    def bits(self, value: float) -> int:
        """Returns the bits of a float of 16 or 8 bits, the member ``x`` of PyTorch's class."""
        return int(torch.tensor(value, dtype=self.dtype).view(getattr(torch, f"uint{8 * self.size}")))

    @cached_property
    def _convert(self) -> Callable[[Any], Any]:
        simple: dict[str, Callable[[Any], Any]] = {"bool_": bool, "float64": float, "float32": _float32}
        if self.name in simple:
            return simple[self.name]
        if self.floating:
            dtype = self.dtype
            assert dtype is not None
            most = torch.finfo(dtype).max if self.finite else math.inf
            return lambda value: torch.tensor(_float32(value)).clamp(-most, most).to(dtype).item()
        bits = 8 * self.size
        least, modulus = (-1 << (bits - 1) if self.signed else 0), 1 << bits
        # Out of the range of the type C++ leaves a converted floating value undefined. x86 converts to 32 bits, or to 64,
        # which give their least value, and truncates that.
        register = 32 if bits < 32 or (bits == 32 and self.signed) else 64
        bound = 1 << (register - 1)

        def convert(value: Any) -> int:
            if isinstance(value, float):
                value = int(value) if math.isfinite(value) else bound
                if not (-bound <= value < bound or (least == 0 and 0 <= value < modulus)):
                    value = -bound
            return (int(value) - least) % modulus + least

        return convert


def _float32(value: Any) -> float:
    return ctypes.c_float(value).value


def _integers() -> list[Number]:
    spellings = {1: "char", 2: "short", 4: "int", 8: "long"}
    made = []
    for size, spelling in spellings.items():
        for signed in (True, False):
            name = f"{'' if signed else 'u'}int{8 * size}"
            sign = "unsigned " if not signed else "signed " if size == 1 else ""
            made.append(Number(name, sign + spelling, size, signed, getattr(torch, name)))
    return made


NUMBERS: dict[str, Number] = {
    n.name: n
    for n in (
        Number("bool_", "bool", 1, False, torch.bool),
        *_integers(),
        Number("float16", "c10::Half", 2, dtype=torch.float16),
        Number("bfloat16", "c10::BFloat16", 2, dtype=torch.bfloat16),
        Number("float8_e4m3fn", "c10::Float8_e4m3fn", 1, dtype=torch.float8_e4m3fn),
        Number("float8_e5m2", "c10::Float8_e5m2", 1, dtype=torch.float8_e5m2),
        Number("float32", "float", 4, dtype=torch.float32),
        Number("float64", "double", 8, dtype=torch.float64),
    )
}


def quotient(a: int, b: int) -> int:
    """Returns C++'s quotient of integers, rounded toward zero."""
    if b == 0:
        raise ZeroDivisionError("integer division by zero, which is undefined in C++")
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def remainder(a: int, b: int) -> int:
    """Returns C++'s remainder of integers, which has the sign of the dividend."""
    return a - b * quotient(a, b)


def divide(a: float, b: float) -> float:
    """Returns the quotient of floating values: infinite or NaN for a zero divisor, as IEEE 754 has it."""
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
