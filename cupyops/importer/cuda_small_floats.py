"""Translations of CUDA's 8-bit floats, and the types of several of them, of 6 and of 4 bits, which kernels read."""

import torch

from . import cuda  # its C++ text comes first
from .numbers import NUMBERS, Number
from .words import declare, section, word

__all__: list[str] = []


def _float8(name: str, dtype: torch.dtype) -> None:
    """Declares a float of 8 bits. A value beyond the largest one becomes the largest one."""
    conversions = " ".join(
        f"explicit {name}({t});" for t in ("float", "double", "int", "unsigned", "__half", "__nv_bfloat16")
    )
    members = f"unsigned char __x; {name}() = default; {conversions} explicit operator float() const; explicit operator double() const;"
    declare(
        f"struct {name} {{ {members} explicit operator __half() const; explicit operator __nv_bfloat16() const; }};"
    )
    kind = Number(str(dtype).removeprefix("torch."), name, 1, dtype=dtype, finite=True)
    word(name)(kind)
    cuda.memory.KINDS[name] = kind


_float8("__nv_fp8_e4m3", torch.float8_e4m3fn)
_float8("__nv_fp8_e5m2", torch.float8_e5m2)


section(
    *("cuda_fp8", "cuda_fp6", "cuda_fp4", "__nv_fp8x2_e4m3", "__nv_fp8x4_e4m3", "__nv_fp8x2_e5m2", "__nv_fp8x4_e5m2"),
    *("__nv_fp8_storage_t", "__nv_fp8x2_storage_t", "__nv_fp4_storage_t", "__nv_fp4x2_storage_t"),
)


# What has no number of PyTorch has its bits on the host.
for _name, _bits in {
    "__nv_fp8_e8m0": "uint8",
    **{f"__nv_fp{bits}{count}_{kind}": of for bits, count, kind, of in (
        (8, "x2", "e4m3", "uint16"), (8, "x2", "e5m2", "uint16"), (8, "x2", "e8m0", "uint16"),
        (8, "x4", "e4m3", "uint32"), (8, "x4", "e5m2", "uint32"), (8, "x4", "e8m0", "uint32"),
        (6, "", "e2m3", "uint8"), (6, "", "e3m2", "uint8"), (6, "x2", "e2m3", "uint16"), (6, "x2", "e3m2", "uint16"),
        (6, "x4", "e2m3", "uint32"), (6, "x4", "e3m2", "uint32"),
        (4, "", "e2m1", "uint8"), (4, "x2", "e2m1", "uint8"), (4, "x4", "e2m1", "uint16"),
    )},
}.items():  # fmt: skip
    _made = type(
        _name,
        (cuda.Vector,),
        {"fields": (("__x", NUMBERS[_bits]),), "alignment": NUMBERS[_bits].size, "__slots__": ("__x",)},
    )
    word(
        _name,
        f"struct {_name} {{ {NUMBERS[_bits].spelling} __x; {_name}() = default; template <class T> explicit {_name}(T); }};",
    )(_made)
    cuda.memory.KINDS[_name] = _made

declare(
    "".join(
        f"typedef {of} __nv_fp{name}_storage_t;"
        for name, of in {
            "8": "unsigned char", "8x2": "unsigned short", "8x4": "unsigned", "6": "unsigned char", "6x2": "unsigned short",
            "6x4": "unsigned", "4": "unsigned char", "4x2": "unsigned char", "4x4": "unsigned short",
        }.items()
    )
    + "enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE }; enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };"
    "enum __nv_fp6_interpretation_t { __NV_E2M3, __NV_E3M2 }; enum __nv_fp4_interpretation_t { __NV_E2M1 };"
)  # fmt: skip
section()
