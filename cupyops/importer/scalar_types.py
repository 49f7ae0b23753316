"""Translations of PyTorch's C++ names for numbers and their types: floats of 16 and of 8 bits, dtypes, layouts, memory formats and devices.

A ScalarType and a TypeMeta are a ``torch.dtype``, a Device is a ``torch.device``, a DeviceType its name.
"""

from typing import Any

import torch

from . import torch_library  # noqa: F401  its C++ text comes first
from .numbers import NUMBERS
from .words import constants, declare, enumeration, methods, word

__all__ = ["dtype_name", "made_device"]


# These names are declared for host and device code, because kernels use some of them.
declare("#pragma clang force_cuda_host_device begin")
declare("namespace c10 {} namespace at { using namespace c10; } namespace torch { using namespace at; }")
declare(
    "namespace c10 { using std::optional; using std::nullopt; using std::nullopt_t; using std::make_optional; }"
    "namespace at { using std::optional; using std::nullopt; using std::make_optional; class Tensor; }"
    "namespace torch { using std::optional; using std::nullopt; using std::make_optional; }"
)

# Numbers of 16 and of 8 bits: their digits, in binary and in decimal.

for _small, _number, _bits, _digits in (
    ("Half", "float16", "short", (11, 3, 5)),
    ("BFloat16", "bfloat16", "short", (8, 2, 4)),
    ("Float8_e4m3fn", "float8_e4m3fn", "char", (4, 0, 3)),
    ("Float8_e5m2", "float8_e5m2", "char", (3, 0, 2)),
):
    _both = "".join(
        f"{_small} operator{op}({_small}, {_small}); float operator{op}({_small}, float); float operator{op}(float, {_small});"
        f"{_small} operator{op}({_small}, int); {_small} operator{op}(int, {_small});"
        f"double operator{op}({_small}, double); double operator{op}(double, {_small});"
        f"{_small}& operator{op}=({_small}&, const {_small}&); float& operator{op}=(float&, {_small});"
        for op in "+-*/"
    )
    word(
        f"c10::{_small}",
        f"struct {_small} {{ unsigned {_bits} x; struct from_bits_t {{}}; static constexpr from_bits_t from_bits() {{ return {{}}; }}"
        f" {_small}() = default; constexpr {_small}(unsigned {_bits} bits, from_bits_t) : x(bits) {{}}"
        f" {_small}(float); operator float() const; }}; {_both} {_small} operator-({_small});",
    )(NUMBERS[_number])

    declare(
        f"namespace std {{ template <> struct numeric_limits<c10::{_small}> : numeric_limits<float> {{"
        + "".join(
            f"static c10::{_small} {name}() noexcept;"
            for name in ("max", "min", "lowest", "epsilon", "infinity", "quiet_NaN", "denorm_min")
        )
        + f"static constexpr int digits = {_digits[0]}, digits10 = {_digits[1]}, max_digits10 = {_digits[2]}; }}; }}"
    )

for _name, _limit in {
    "max": lambda half: torch.finfo(half.dtype).max,
    "min": lambda half: torch.finfo(half.dtype).tiny,
    "lowest": lambda half: torch.finfo(half.dtype).min,
    "epsilon": lambda half: torch.finfo(half.dtype).eps,
    "infinity": lambda half: float("inf"),
    "quiet_NaN": lambda half: float("nan"),
    "denorm_min": lambda half: half.of_bits(1),
}.items():
    word(f"std::numeric_limits::{_name}", typed=True)(_limit)
word("at::numeric_limits::lower_bound", typed=True)(lambda half: float("-inf"))
word("at::numeric_limits::upper_bound", typed=True)(lambda half: float("inf"))
declare("""namespace at { template <class T> struct numeric_limits : std::numeric_limits<T> { using limits = std::numeric_limits<T>;
static constexpr T lower_bound() { if constexpr (limits::has_infinity) return -limits::infinity(); else return limits::lowest(); }
static constexpr T upper_bound() { if constexpr (limits::has_infinity) return limits::infinity(); else return limits::max(); } }; }""")

# dtypes, layouts, memory formats and devices.

_SCALARS: dict[str, tuple[str, torch.dtype | None]] = {
    "Byte": ("unsigned char", torch.uint8), "Char": ("signed char", torch.int8), "Short": ("short", torch.int16),
    "Int": ("int", torch.int32), "Long": ("int64_t", torch.int64), "Half": ("c10::Half", torch.float16),
    "Float": ("float", torch.float32), "Double": ("double", torch.float64),
    "ComplexHalf": ("c10::complex<c10::Half>", torch.complex32), "ComplexFloat": ("c10::complex<float>", torch.complex64),
    "ComplexDouble": ("c10::complex<double>", torch.complex128), "Bool": ("bool", torch.bool),
    "QInt8": ("", torch.qint8), "QUInt8": ("", torch.quint8), "QInt32": ("", torch.qint32),
    "BFloat16": ("c10::BFloat16", torch.bfloat16), "QUInt4x2": ("", torch.quint4x2), "QUInt2x4": ("", torch.quint2x4),
    "Bits1x8": ("", torch.bits1x8), "Bits2x4": ("", torch.bits2x4), "Bits4x2": ("", torch.bits4x2),
    "Bits8": ("", torch.bits8), "Bits16": ("", torch.bits16), "Float8_e5m2": ("c10::Float8_e5m2", torch.float8_e5m2),
    "Float8_e4m3fn": ("c10::Float8_e4m3fn", torch.float8_e4m3fn), "Float8_e5m2fnuz": ("", torch.float8_e5m2fnuz),
    "Float8_e4m3fnuz": ("", torch.float8_e4m3fnuz), "UInt16": ("unsigned short", torch.uint16),
    "UInt32": ("unsigned", torch.uint32), "UInt64": ("unsigned long", torch.uint64),
    **{f"{s}Int{n}": ("", getattr(torch, f"{s.lower()}int{n}", None)) for s in ("U", "") for n in range(1, 8)},
    "Float8_e8m0fnu": ("", getattr(torch, "float8_e8m0fnu", None)),
    "Float4_e2m1fn_x2": ("", getattr(torch, "float4_e2m1fn_x2", None)), "Undefined": ("", None), "NumOptions": ("", None),
}  # fmt: skip
_NAMES = {dtype: name for name, (_, dtype) in _SCALARS.items() if dtype is not None}
_ALIASES = {
    "UInt8": "Byte", "Int8": "Char", "Int16": "Short", "Int32": "Int", "Int64": "Long", "Float16": "Half",
    "Float32": "Float", "Float64": "Double", "ComplexFloat64": "ComplexFloat", "ComplexFloat128": "ComplexDouble",
}  # fmt: skip
_LAYOUTS = {"Strided": torch.strided, "Sparse": torch.sparse_coo, "SparseCsr": torch.sparse_csr}
_FORMATS = {
    "Contiguous": torch.contiguous_format, "Preserve": torch.preserve_format, "ChannelsLast": torch.channels_last,
    "ChannelsLast3d": torch.channels_last_3d,
}  # fmt: skip
_DEVICES = {name: name.lower() for name in ("CPU", "CUDA", "MKLDNN", "OPENGL", "OPENCL", "IDEEP", "HIP", "FPGA")}
_DEVICES |= {
    "MAIA": "maia",
    "XLA": "xla",
    "Vulkan": "vulkan",
    "Metal": "metal",
    "XPU": "xpu",
    "MPS": "mps",
    "Meta": "meta",
}

word(
    "c10::complex",
    "template <class T> struct complex { using value_type = T; T real_, imag_; constexpr complex() : real_(0), imag_(0) {}"
    " constexpr complex(T real, T imag = T()) : real_(real), imag_(imag) {} T real() const; T imag() const;"
    " bool operator==(const complex&) const; bool operator!=(const complex&) const; };",
    typed=True,
    methods="c10::complex_",
)(lambda kind, real=0.0, imag=0.0: complex(kind(real), kind(imag)))
methods("c10::complex_", {"real": lambda value: value.real, "imag": lambda value: value.imag})
enumeration("c10::ScalarType", {name: dtype for name, (_, dtype) in _SCALARS.items()}, "signed char")
enumeration("c10::Layout", _LAYOUTS, "signed char")
enumeration("c10::MemoryFormat", _FORMATS, "signed char")
enumeration("c10::DeviceType", _DEVICES, "signed char")
constants(
    "ScalarType",
    {f"k{name}": (name, dtype) for name, (_, dtype) in _SCALARS.items() if name not in ("Undefined", "NumOptions")}
    | {f"k{alias}": (name, _SCALARS[name][1]) for alias, name in _ALIASES.items()},
)
constants("Layout", {f"k{name}": (name, layout) for name, layout in _LAYOUTS.items()})
constants("DeviceType", {f"k{name}": (name, kind) for name, kind in _DEVICES.items()})
declare(
    "namespace c10 { typedef signed char DeviceIndex;"
    "template <ScalarType S> struct CppTypeOf_; template <class T> struct CppTypeToScalarType;"
    + "".join(
        f"template <> struct CppTypeOf_<ScalarType::{name}> {{ using type = {cpp}; }};"
        f"template <> struct CppTypeToScalarType<{cpp}> {{ static constexpr ScalarType value = ScalarType::{name}; }};"
        for name, (cpp, _) in _SCALARS.items()
        if cpp
    )
    + "namespace impl { template <ScalarType S> using ScalarTypeToCPPTypeT = typename CppTypeOf_<S>::type;"
    "template <ScalarType S> using ScalarTypeToCPPType = CppTypeOf_<S>; } }"
    "namespace at { template <class T> struct OpMathType { using type = T; };"
    "template <> struct OpMathType<Half> { using type = float; };"
    "template <> struct OpMathType<BFloat16> { using type = float; };"
    "template <class T> using opmath_type = typename OpMathType<T>::type;"
    # Sums on a GPU are of the type that opmath_type has; on a CPU, of double for float, and of int64_t for integers.
    "template <class T, bool cuda> struct AccumulateType { using type = T; };"
    + "".join(
        f"template <> struct AccumulateType<{cpp}, {cuda}> {{ using type = {accumulated}; }};"
        for cuda, wide in (("true", "float"), ("false", "double"))
        for cpp, accumulated in (
            ("Half", "float"), ("BFloat16", "float"), ("float", wide), ("signed char", "int64_t"),
            ("unsigned char", "int64_t"), ("short", "int64_t"), ("int", "int64_t"),
        )
    )
    + "template <class T, bool cuda> using acc_type = typename AccumulateType<T, cuda>::type;"
    "template <class T> using acc_type_device = acc_type<T, true>; }"
)  # fmt: skip


@word("c10::toString", "const char* toString(ScalarType);")
def dtype_name(dtype: torch.dtype) -> str:
    return _NAMES.get(dtype, "Undefined")


@word("c10::elementSize", "size_t elementSize(ScalarType);")
def _element_size(dtype: torch.dtype) -> int:
    return dtype.itemsize


@word("c10::isFloatingType", "bool isFloatingType(ScalarType);")
def _is_floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


@word("c10::isComplexType", "bool isComplexType(ScalarType);")
def _is_complex(dtype: torch.dtype) -> bool:
    return dtype.is_complex


@word("c10::isIntegralType", "bool isIntegralType(ScalarType, bool includeBool = false);")
def _is_integral(dtype: torch.dtype, with_bool: bool = False) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and (with_bool or dtype != torch.bool)


@word("c10::promoteTypes", "ScalarType promoteTypes(ScalarType, ScalarType);")
def _promote(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    return torch.promote_types(a, b)


@word(
    "caffe2::TypeMeta",
    "using c10::ScalarType; struct TypeMeta { ScalarType toScalarType() const; size_t itemsize() const; bool isScalarType() const;"
    " const char* name() const; }; bool operator==(TypeMeta, TypeMeta); bool operator!=(TypeMeta, TypeMeta);"
    "bool operator==(TypeMeta, ScalarType); bool operator!=(TypeMeta, ScalarType);"
    "bool operator==(ScalarType, TypeMeta); bool operator!=(ScalarType, TypeMeta);",
    methods="caffe2::TypeMeta_",
)
def _type_meta(dtype: Any = None) -> Any:
    return dtype


methods(
    "caffe2::TypeMeta_",
    {
        "toScalarType": lambda dtype: dtype,
        "itemsize": lambda dtype: dtype.itemsize,
        "isScalarType": lambda dtype: True,
        "name": lambda dtype: _cpp_name(dtype),
    },
)


def _cpp_name(dtype: torch.dtype) -> str:
    return _SCALARS[_NAMES[dtype]][0].replace("int64_t", "long")


@word("c10::typeMetaToScalarType", "ScalarType typeMetaToScalarType(caffe2::TypeMeta);")
def _type_meta_to_scalar_type(dtype: torch.dtype) -> torch.dtype:
    return dtype


@word("c10::scalarTypeToTypeMeta", "caffe2::TypeMeta scalarTypeToTypeMeta(ScalarType);")
def _scalar_type_to_type_meta(dtype: torch.dtype) -> torch.dtype:
    return dtype


@word("c10::get_default_dtype", "caffe2::TypeMeta get_default_dtype();")
def _default_dtype() -> torch.dtype:
    return torch.get_default_dtype()


@word(
    "c10::Device",
    "struct Device { using Type = DeviceType; Device(DeviceType, DeviceIndex = -1); Device(const std::string&); Device(const char*);"
    " DeviceType type() const;"
    " DeviceIndex index() const; bool has_index() const; bool is_cuda() const; bool is_cpu() const; bool is_meta() const;"
    " std::string str() const; bool operator==(const Device&) const; bool operator!=(const Device&) const; };",
    methods="c10::Device_",
)
def made_device(kind: Any, index: int = -1) -> torch.device:
    return torch.device(kind) if index < 0 else torch.device(kind, index)


methods(
    "c10::Device_",
    {
        "type": lambda device: device.type,
        "index": lambda device: -1 if device.index is None else device.index,
        "has_index": lambda device: device.index is not None,
        "is_cuda": lambda device: device.type == "cuda",
        "is_cpu": lambda device: device.type == "cpu",
        "is_meta": lambda device: device.type == "meta",
        "str": str,
    },
)
