"""The words of PyTorch's C++ that are no operators: tensors, options, dtypes, devices, dispatch, checks and bindings.

A tensor is a ``torch.Tensor``, an undefined one None; a ScalarType and a TypeMeta are a ``torch.dtype``, a Device is a
``torch.device``, a DeviceType its name, a Scalar a number. PyTorch's operators are in :mod:`.operators`.

While the simulator runs, a tensor in host memory is on the GPU for host code: ``x.is_cuda()``, and a factory that asks
for the GPU gives a tensor in host memory.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import binding  # noqa: F401  its words are declared with these
from .cuda import device_properties, error_string
from .devices import place, seen, simulated
from .errors import NotTranslated
from .memory import DevicePointer, pointer_to
from .numbers import NUMBERS, Number, quotient
from .operators import FUNCTIONS, METHODS
from .references import Pointer, Variable
from .standard import Vector
from .words import Namespace, declare, word, words

__all__ = ["Enumeration", "TensorOptions", "message"]


class Enumeration(Namespace):
    """A C++ enumeration whose values are other Python objects: the enumerators are words inside it."""

    def __call__(self, value: Any = None) -> Any:
        return value


def _enumeration(name: str, values: dict[str, Any], base: str = "int") -> None:
    """Declares an enumeration with its enumerators, in C++'s order from zero."""
    word(name, f"enum class {name.split('::')[-1]} : {base} {{ {', '.join(values)} }};")(Enumeration())
    for enumerator, value in values.items():
        word(f"{name}::{enumerator}")(value)


def _constants(kind: str, values: dict[str, tuple[str, Any]]) -> None:
    """Declares constants ``c10::kFloat`` of an enumeration: each with its enumerator and its Python value."""
    listed = ", ".join(f"{name} = {kind}::{enumerator}" for name, (enumerator, _) in values.items())
    declare(f"namespace c10 {{ constexpr {kind} {listed}; }}")
    for name, (_, value) in values.items():
        word(f"c10::{name}")(value)


def _methods(space: str, functions: dict[str, Callable[..., Any]]) -> None:
    """Gives the methods of a class whose values are other Python objects their functions."""
    for name, function in functions.items():
        word(f"{space}::{name}")(function)


# The words of this header are for both sides, as kernels use some of them.
declare("#pragma clang force_cuda_host_device begin")
declare("namespace c10 {} namespace at { using namespace c10; } namespace torch { using namespace at; }")
declare(
    "namespace c10 { using std::optional; using std::nullopt; using std::nullopt_t; using std::make_optional; }"
    "namespace at { using std::optional; using std::nullopt; using std::make_optional; class Tensor; }"
    "namespace torch { using std::optional; using std::nullopt; using std::make_optional; }"
)

# Numbers of 16 bits.

for _half in ("Half", "BFloat16"):
    _both = "".join(
        f"{_half} operator{op}({_half}, {_half}); float operator{op}({_half}, float); float operator{op}(float, {_half});"
        f"{_half} operator{op}({_half}, int); {_half} operator{op}(int, {_half});"
        f"double operator{op}({_half}, double); double operator{op}(double, {_half});"
        f"{_half}& operator{op}=({_half}&, const {_half}&); float& operator{op}=(float&, {_half});"
        for op in "+-*/"
    )
    word(
        f"c10::{_half}",
        f"struct {_half} {{ unsigned short x; struct from_bits_t {{}}; static constexpr from_bits_t from_bits() {{ return {{}}; }}"
        f" {_half}() = default; constexpr {_half}(unsigned short bits, from_bits_t) : x(bits) {{}}"
        f" {_half}(float); operator float() const; }}; {_both} {_half} operator-({_half});",
    )(NUMBERS["float16" if _half == "Half" else "bfloat16"])

    declare(
        f"namespace std {{ template <> struct numeric_limits<c10::{_half}> : numeric_limits<float> {{"
        + "".join(
            f"static c10::{_half} {name}() noexcept;"
            for name in ("max", "min", "lowest", "epsilon", "infinity", "quiet_NaN", "denorm_min")
        )
        + f"static constexpr int digits = {11 if _half == 'Half' else 8}, digits10 = {3 if _half == 'Half' else 2},"
        f"max_digits10 = {5 if _half == 'Half' else 4}; }}; }}"
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

declare(
    "namespace c10 { template <class T> struct complex { T real_, imag_; };"
    " struct Float8_e5m2 { unsigned char x; }; struct Float8_e4m3fn { unsigned char x; }; }"
)
_enumeration("c10::ScalarType", {name: dtype for name, (_, dtype) in _SCALARS.items()}, "signed char")
_enumeration("c10::Layout", _LAYOUTS, "signed char")
_enumeration("c10::MemoryFormat", _FORMATS, "signed char")
_enumeration("c10::DeviceType", _DEVICES, "signed char")
_constants(
    "ScalarType",
    {f"k{name}": (name, dtype) for name, (_, dtype) in _SCALARS.items() if name not in ("Undefined", "NumOptions")}
    | {f"k{alias}": (name, _SCALARS[name][1]) for alias, name in _ALIASES.items()},
)
_constants("Layout", {f"k{name}": (name, layout) for name, layout in _LAYOUTS.items()})
_constants("DeviceType", {f"k{name}": (name, kind) for name, kind in _DEVICES.items()})
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
def _dtype_name(dtype: torch.dtype) -> str:
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


_methods(
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
    "struct Device { Device(DeviceType, DeviceIndex = -1); Device(const std::string&); Device(const char*); DeviceType type() const;"
    " DeviceIndex index() const; bool has_index() const; bool is_cuda() const; bool is_cpu() const; bool is_meta() const;"
    " std::string str() const; bool operator==(const Device&) const; bool operator!=(const Device&) const; };",
    methods="c10::Device_",
)
def _device(kind: Any, index: int = -1) -> torch.device:
    return torch.device(kind) if index < 0 else torch.device(kind, index)


_methods(
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


# Scalars, arrays and options.

# Not of an integer: a literal 0 is a null pointer, and a padding too.
word(
    "c10::string_view",
    "struct string_view { string_view(const std::string&);"
    " template <class T, class = std::enable_if_t<__is_constructible(std::string, T)>> string_view(const T&); };",
)(str)


@word(
    "c10::Scalar",
    "struct Scalar { Scalar();"
    + "".join(
        f" Scalar({cpp});"
        for cpp in ("int", "unsigned", "long", "unsigned long", "long long", "float", "double", "bool")
    )
    + " Scalar(signed char); Scalar(unsigned char); Scalar(short); Scalar(Half); Scalar(BFloat16);"
    " template <class T> T to() const; float toFloat() const; double toDouble() const; int toInt() const; int64_t toLong() const;"
    " bool toBool() const; bool isFloatingPoint() const; bool isIntegral(bool includeBool = false) const; bool isBoolean() const;"
    " ScalarType type() const; bool equal(double) const; Scalar operator-() const; };",
    methods="c10::Scalar_",
)
def _scalar(value: Any = 0) -> Any:
    return value


@word("c10::Scalar_::to", typed=True)
def _scalar_to(kind: Number, value: Any) -> Any:
    return kind(value)


# A number is one, by a single conversion.
word(
    "c10::OptionalScalar",
    "struct OptionalScalar { OptionalScalar(); OptionalScalar(std::nullopt_t); OptionalScalar(const std::optional<Scalar>&);"
    " template <class T, class = std::enable_if_t<__is_convertible(T, Scalar)>> OptionalScalar(const T&); };",
)(lambda value=None: value)
_methods(
    "c10::Scalar_",
    {
        **{
            f"to{k}": NUMBERS[n]
            for k, n in (("Float", "float32"), ("Double", "float64"), ("Int", "int32"), ("Long", "int64"))
        },
        "toBool": NUMBERS["bool_"],
        "isFloatingPoint": lambda value: isinstance(value, float),
        "isIntegral": lambda value, with_bool=False: type(value) is int or (with_bool and value is bool(value)),
        "isBoolean": lambda value: isinstance(value, bool),
        "type": lambda value: {float: torch.float64, bool: torch.bool, int: torch.int64}[type(value)],
        "equal": lambda value, other: value == other,
    },
)


@word(
    "c10::ArrayRef",
    "template <class T> struct ArrayRef { using value_type = T; using iterator = const T*; ArrayRef(); ArrayRef(const T&);"
    " ArrayRef(const T*, size_t); ArrayRef(const T*, const T*); ArrayRef(const std::vector<T>&); ArrayRef(std::initializer_list<T>);"
    " template <size_t N> ArrayRef(const std::array<T, N>&); template <size_t N> ArrayRef(const T (&)[N]);"
    " const T* begin() const; const T* end() const; const T* data() const; size_t size() const; bool empty() const;"
    " const T& operator[](size_t) const; const T& at(size_t) const; const T& front() const; const T& back() const;"
    " std::vector<T> vec() const; ArrayRef<T> slice(size_t, size_t) const; ArrayRef<T> slice(size_t) const;"
    " bool equals(ArrayRef<T>) const; };"
    "template <class T> bool operator==(ArrayRef<T>, ArrayRef<T>); template <class T> bool operator!=(ArrayRef<T>, ArrayRef<T>);"
    "template <class T> bool operator==(const std::vector<T>&, ArrayRef<T>);"
    "template <class T> bool operator!=(const std::vector<T>&, ArrayRef<T>);"
    "template <class T> bool operator==(ArrayRef<T>, const std::vector<T>&);"
    "template <class T> bool operator!=(ArrayRef<T>, const std::vector<T>&);"
    "using IntArrayRef = ArrayRef<int64_t>; using SymIntArrayRef = IntArrayRef;",
)
def _array_ref(first: Any = (), last: Any = None) -> Vector:
    if isinstance(first, Pointer):
        return Vector([first[i] for i in range(last - first if isinstance(last, Pointer) else last)])
    return Vector(first) if isinstance(first, (list, tuple)) else Vector([first])


@word(
    "c10::OptionalArrayRef",
    "template <class T> struct OptionalArrayRef { OptionalArrayRef(); OptionalArrayRef(std::nullopt_t); OptionalArrayRef(const T&);"
    " OptionalArrayRef(std::initializer_list<T>); OptionalArrayRef(const std::vector<T>&); OptionalArrayRef(ArrayRef<T>);"
    " bool has_value() const; ArrayRef<T> value() const; ArrayRef<T> operator*() const; explicit operator bool() const; };"
    "using OptionalIntArrayRef = OptionalArrayRef<int64_t>;",
    methods="std.optional_",
)
def _optional_array_ref(value: Any = None) -> Vector | None:
    return None if value is None else _array_ref(value)


@word(
    "c10::SmallVector",
    "template <class T, unsigned N = 4> struct SmallVector : std::vector<T> { using std::vector<T>::vector; };"
    "using DimVector = SmallVector<int64_t, 5>;",
)
class SmallVector(Vector):
    """A vector, whatever the number of elements that C++ holds in place."""


@word(
    "c10::irange",
    "template <class T> std::vector<T> irange(T); template <class A, class T> std::vector<T> irange(A, T);",
)
def _irange(first: int, last: int | None = None) -> Vector:
    return Vector(range(first) if last is None else range(first, last))


_KEEP = object()


@word(
    "c10::TensorOptions",
    "template <class T> struct TensorOptionsOf;"
    " struct TensorOptions { TensorOptions(); TensorOptions(ScalarType); TensorOptions(caffe2::TypeMeta); TensorOptions(Layout);"
    " TensorOptions(Device); TensorOptions(DeviceType); TensorOptions(MemoryFormat);"
    " TensorOptions dtype(std::optional<ScalarType>) const; TensorOptions dtype(ScalarType) const;"
    " TensorOptions dtype(caffe2::TypeMeta) const; template <class T> TensorOptionsOf<T> dtype() const; caffe2::TypeMeta dtype() const;"
    " TensorOptions device(std::optional<Device>) const; TensorOptions device(Device) const;"
    " TensorOptions device(DeviceType, DeviceIndex = -1) const; TensorOptions device(const char*) const; Device device() const;"
    " TensorOptions device_index(DeviceIndex) const; int device_index() const; TensorOptions layout(Layout) const; Layout layout() const;"
    " TensorOptions requires_grad(std::optional<bool>) const; TensorOptions requires_grad(bool) const; bool requires_grad() const;"
    " TensorOptions pinned_memory(bool) const; bool pinned_memory() const;"
    " TensorOptions memory_format(MemoryFormat) const; };"
    "template <class T> struct TensorOptionsOf : TensorOptions {};",
)
class TensorOptions:
    """The options of a factory. Each method that sets one returns new options, and without arguments gives it."""

    def __init__(self, value: Any = None) -> None:
        self.values: dict[str, Any] = {}
        if isinstance(value, TensorOptions):
            self.values = value.values
        elif value is not None:
            kinds = ((torch.dtype, "dtype"), (torch.layout, "layout"), (torch.memory_format, "memory_format"))
            name = next((name for kind, name in kinds if isinstance(value, kind)), "device")
            self.values = {name: torch.device(value) if name == "device" else value}

    def _with(self, name: str, value: Any, default: Any) -> Any:
        if value is _KEEP:
            return self.values.get(name, default)
        made = TensorOptions()
        made.values = {**self.values, name: value}
        return made

    def dtype(self, *arguments: Any) -> Any:
        # Typed by the result: T of dtype<T>(), and the class of the others.
        value = next((a for a in arguments if not isinstance(a, str)), _KEEP)
        return self._with("dtype", value.dtype if isinstance(value, Number) else value, torch.get_default_dtype())

    def device(self, value: Any = _KEEP, index: int = -1) -> Any:
        value = value if value is _KEEP or value is None else _device(value, index)
        return self._with("device", value, torch.device("cpu"))

    def device_index(self, value: Any = _KEEP) -> Any:
        return self.device().index if value is _KEEP else self.device("cuda", value)

    def layout(self, value: Any = _KEEP) -> Any:
        return self._with("layout", value, torch.strided)

    def requires_grad(self, value: Any = _KEEP) -> Any:
        return self._with("requires_grad", value, False)

    def pinned_memory(self, value: Any = _KEEP) -> Any:
        return self._with("pin_memory", value, False)

    def memory_format(self, value: Any = _KEEP) -> Any:
        return self._with("memory_format", value, None)

    def __eq__(self, other: object) -> bool:
        """Returns whether two types of tensors, ``x.type()``, are the same: the dtype, the kind of device and the layout."""
        return isinstance(other, TensorOptions) and self._kind() == other._kind()

    def _kind(self) -> tuple[Any, ...]:
        return self.dtype(), self.device().type, self.layout()

    __hash__ = None  # type: ignore[assignment]

    def keywords(self) -> dict[str, Any]:
        """Returns PyTorch's keywords of a factory."""
        given = {name: value for name, value in self.values.items() if value is not None}
        if "device" in given:
            given["device"] = place(given["device"])
            if given.get("pin_memory") and simulated():
                del given["pin_memory"]
        return given


# Tensors.

_FORMAT = "MemoryFormat = MemoryFormat::Contiguous"
_OPERATORS = "".join(
    f"Tensor operator{op}(const Tensor&, const Tensor&); Tensor operator{op}(const Tensor&, const Scalar&);"
    f" Tensor operator{op}(const Scalar&, const Tensor&);"
    for op in ("+", "-", "*", "/", "%", "==", "!=", "<", ">", "<=", ">=", "&", "|", "^")
)
declare(
    "namespace at { template <class T> struct DefaultPtrTraits { typedef T* PtrType; };"
    "template <class T> struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };"
    # The pointer's traits are for kernels: the host's types have none, as libclang does not tell such an argument.
    "template <class T, size_t N, class I> struct Accessor {"
    " Accessor<T, N - 1, I> operator[](I) const; I size(I) const; I stride(I) const; T* data() const; };"
    "template <class T, class I> struct Accessor<T, 1, I> {"
    " T& operator[](I) const; I size(I) const; I stride(I) const; T* data() const; };"
    "template <class T, size_t N, class I> struct PackedAccessor : Accessor<T, N, I> { PackedAccessor(T*, const I*, const I*); };"
    + "".join(
        f"template <class T, size_t N, template <class> class P = DefaultPtrTraits{more}> using {alias} = {kind}<T, N, {index}>;"
        for alias, kind, more, index in (
            ("TensorAccessor", "Accessor", ", class I = int64_t", "I"),
            ("GenericPackedTensorAccessor", "PackedAccessor", ", class I = int64_t", "I"),
            ("PackedTensorAccessor32", "PackedAccessor", "", "int32_t"),
            ("PackedTensorAccessor64", "PackedAccessor", "", "int64_t"),
            ("PackedTensorAccessor", "PackedAccessor", ", class I = int64_t", "I"),
        )
    )
    + "struct Generator {}; using TensorList = ArrayRef<Tensor>; using ITensorListRef = TensorList;"
    "namespace indexing { struct Slice; struct TensorIndex; } }"
)
word(
    "at::DeprecatedTypeProperties",
    "struct DeprecatedTypeProperties { ScalarType scalarType() const; bool is_cuda() const; DeviceType device_type() const;"
    " DeprecatedTypeProperties toScalarType(ScalarType) const; DeprecatedTypeProperties cpu() const; bool is_sparse() const;"
    " DeprecatedTypeProperties cuda() const; caffe2::TypeMeta typeMeta() const; Layout layout() const;"
    " std::string toString() const; operator TensorOptions() const; TensorOptions options() const; };"
    "bool operator==(const DeprecatedTypeProperties&, const DeprecatedTypeProperties&);"
    "bool operator!=(const DeprecatedTypeProperties&, const DeprecatedTypeProperties&);",
    methods="at::Type_",
)(TensorOptions)


@word(
    "at::Tensor",
    f"""class Tensor {{ public: Tensor(); Tensor(const Tensor&); Tensor(Tensor&&);
Tensor& operator=(const Tensor&) &; Tensor& operator=(const Tensor&) &&; Tensor& operator=(const Scalar&) &&;
int64_t numel() const; int64_t dim() const; int64_t ndimension() const; int64_t size(int64_t) const; int64_t stride(int64_t) const;
IntArrayRef sizes() const; IntArrayRef strides() const; bool is_cuda() const; bool is_cpu() const; bool is_meta() const;
bool is_sparse() const; bool is_contiguous({_FORMAT}) const; Tensor contiguous({_FORMAT}) const;
MemoryFormat suggest_memory_format() const; bool has_storage() const; bool is_non_overlapping_and_dense() const;
ScalarType scalar_type() const; caffe2::TypeMeta dtype() const; Device device() const; DeviceIndex get_device() const;
Layout layout() const; TensorOptions options() const; bool defined() const; int64_t element_size() const; size_t nbytes() const;
size_t itemsize() const; bool requires_grad() const; const Tensor& set_requires_grad(bool) const;
const Tensor& requires_grad_(bool = true) const; bool is_floating_point() const; bool is_complex() const; bool is_signed() const;
bool is_leaf() const; int64_t storage_offset() const; bool is_same(const Tensor&) const; Tensor& mutable_grad() const;
const Tensor& grad() const; Tensor detach() const; Tensor variable_data() const; Tensor tensor_data() const; int64_t use_count() const;
void reset(); void* data_ptr() const; const void* const_data_ptr() const; void* mutable_data_ptr() const;
template <class T> T* data_ptr() const; template <class T> const T* const_data_ptr() const;
template <class T> T* mutable_data_ptr() const; template <class T> T* data() const; Tensor data() const;
Scalar item() const; template <class T> T item() const; const DeprecatedTypeProperties& type() const; Tensor toType(ScalarType) const;
Tensor to(TensorOptions = {{}}, bool non_blocking = false, bool copy = false, std::optional<MemoryFormat> = {{}}) const;
Tensor to(Device, ScalarType, bool non_blocking = false, bool copy = false, std::optional<MemoryFormat> = {{}}) const;
Tensor to(ScalarType, bool non_blocking = false, bool copy = false, std::optional<MemoryFormat> = {{}}) const;
Tensor to(caffe2::TypeMeta, bool non_blocking = false, bool copy = false) const;
Tensor to(const Tensor&, bool non_blocking = false, bool copy = false, std::optional<MemoryFormat> = {{}}) const;
Tensor cuda() const; Tensor cpu() const; Tensor pin_memory() const; std::string toString() const;
Tensor index(ArrayRef<indexing::TensorIndex>) const; Tensor index(std::initializer_list<indexing::TensorIndex>) const;
Tensor& copy_(const Tensor&, bool non_blocking = false) const; Tensor& index_put_(std::initializer_list<indexing::TensorIndex>, const Tensor&);
Tensor& index_put_(std::initializer_list<indexing::TensorIndex>, const Scalar&);
Tensor& index_put_(ArrayRef<indexing::TensorIndex>, const Tensor&); Tensor& index_put_(ArrayRef<indexing::TensorIndex>, const Scalar&);
Tensor operator[](int64_t) const; Tensor operator[](const Tensor&) const; Tensor operator[](const Scalar&) const;
Tensor operator~() const; Tensor operator-() const;
template <class T, size_t N> TensorAccessor<T, N> accessor() const;
template <class T, size_t N, template <class> class P = DefaultPtrTraits>
GenericPackedTensorAccessor<T, N, P, int32_t> packed_accessor32() const;
template <class T, size_t N, template <class> class P = DefaultPtrTraits>
GenericPackedTensorAccessor<T, N, P, int64_t> packed_accessor64() const;
template <class T, size_t N, template <class> class P = DefaultPtrTraits, class I = int64_t>
GenericPackedTensorAccessor<T, N, P, I> packed_accessor() const;
{"".join(f"Tensor& operator{op}=(const Tensor&); Tensor& operator{op}=(const Scalar&);" for op in "+-*/&|^")}
{METHODS}
}}; {_OPERATORS} using TensorBase = Tensor; Tensor operator!(const Tensor&);
{FUNCTIONS}
}} namespace torch {{ using at::Tensor; namespace autograd {{ using Variable = at::Tensor; using variable_list = std::vector<at::Tensor>; }}""",
    methods="at",
)
def _tensor(value: torch.Tensor | None = None) -> torch.Tensor | None:
    return value


@word(
    "at::indexing::Slice",
    "struct Slice { Slice(std::optional<int64_t> = {}, std::optional<int64_t> = {}, std::optional<int64_t> = {}); };"
    "enum class EllipsisIndexType { Ellipsis }; constexpr EllipsisIndexType Ellipsis = EllipsisIndexType::Ellipsis;"
    "constexpr std::nullopt_t None = std::nullopt;"
    "struct TensorIndex { TensorIndex(std::nullopt_t); TensorIndex(EllipsisIndexType); TensorIndex(const char*);"
    " TensorIndex(int64_t); TensorIndex(int); TensorIndex(bool); TensorIndex(Slice); TensorIndex(const Tensor&); };"
    "} } namespace torch { namespace indexing { using namespace at::indexing; ",
)
def _slice(start: int | None = None, stop: int | None = None, step: int | None = None) -> slice:
    return slice(start, stop, step)


word("at::indexing::EllipsisIndexType")(Enumeration())
word("at::indexing::EllipsisIndexType::Ellipsis")(...)
word("at::indexing::Ellipsis")(...)
word("at::indexing::None")(None)


@word("at::indexing::TensorIndex")
def _tensor_index(value: Any) -> Any:
    return ... if value == "..." and isinstance(value, str) else value


def _of_methods(**functions: Callable[..., Any]) -> None:
    _methods("at", functions)


def _check_type(kind: Any, x: torch.Tensor) -> None:
    wanted = kind.dtype if isinstance(kind, Number) else None
    if wanted is None:
        raise NotTranslated(f"memory of a tensor as {kind}")
    if x.dtype != wanted:
        raise RuntimeError(f"expected scalar type {_dtype_name(wanted)} but found {_dtype_name(x.dtype)}")


def _data_ptr(*arguments: Any) -> Any:
    *kinds, x = arguments
    if not kinds or kinds[0] is None:  # void*
        return pointer_to(x, None)
    _check_type(kinds[0], x)
    return pointer_to(x, kinds[0])


for _name in ("data_ptr", "const_data_ptr", "mutable_data_ptr"):
    word(f"at::{_name}", typed=True)(_data_ptr)


@word("at::data", typed=True)
def _data(*arguments: Any) -> Any:
    kind, x = arguments
    return x.detach() if kind == "at::Tensor" else _data_ptr(kind, x)


@word("at::item", typed=True)
def _item(*arguments: Any) -> Any:
    *kinds, x = arguments
    value = x.item()
    return kinds[0](value) if kinds and isinstance(kinds[0], Number) else value


class Accessor:
    """A tensor's elements on the CPU, ``a[i][j]``."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, index: int) -> Any:
        self._check(index)
        return Accessor(self.tensor[index]) if self.tensor.dim() > 1 else self.tensor[index].item()

    def __setitem__(self, index: int, value: Any) -> None:
        self._check(index)
        self.tensor[index] = value

    def _check(self, index: int) -> None:
        if not 0 <= index < self.tensor.shape[0]:
            raise IndexError(f"element {index} of {self.tensor.shape[0]}")

    def size(self, dim: int) -> int:
        return self.tensor.size(dim)

    def stride(self, dim: int) -> int:
        return self.tensor.stride(dim)


word("at::Accessor")(Accessor)


def _accessible(*arguments: Any) -> torch.Tensor:
    kind, dimensions, *_, x = arguments
    _check_type(kind, x)
    if x.dim() != dimensions:
        raise RuntimeError(f"TensorAccessor expected {dimensions} dims but tensor has {x.dim()}")
    return x


@word("at::accessor", typed=True)
def _accessor(*arguments: Any) -> Accessor:
    return Accessor(_accessible(*arguments).detach())


for _name in ("packed_accessor32", "packed_accessor64", "packed_accessor"):
    word(f"at::{_name}", typed=True)(_accessible)


@word("at::PackedAccessor", typed=True, methods="at")
def _packed(
    kind: Any, dimensions: int, _: Any, data: Any = None, sizes: Any = None, strides: Any = None
) -> torch.Tensor:
    """Returns the tensor of an accessor that host code makes of a pointer, which is the value of an accessor."""
    if data is None:
        return torch.empty([0] * dimensions, dtype=kind.dtype)
    if not isinstance(data, DevicePointer):
        raise NotTranslated("a packed accessor of host memory")
    shape, steps = ([int(numbers[i]) for i in range(dimensions)] for numbers in (sizes, strides))
    flat = data.memory.flat(data.offset, kind.dtype, None)
    return flat.as_strided(shape, steps, flat.storage_offset())


def _options(x: torch.Tensor) -> TensorOptions:
    made = TensorOptions()
    made.values = {"dtype": x.dtype, "device": seen(x.device), "layout": x.layout}
    return made


def _to(x: torch.Tensor, target: Any = None, *rest: Any) -> torch.Tensor:
    keywords: dict[str, Any] = {}
    flags = list(rest)
    if isinstance(target, torch.Tensor):
        keywords = {"dtype": target.dtype, "device": target.device}
    else:
        if flags and isinstance(flags[0], torch.dtype):
            keywords["dtype"] = flags.pop(0)
        options = TensorOptions(target).keywords()
        keywords |= {name: options[name] for name in ("dtype", "device", "memory_format") if name in options}
    keywords |= {
        name: value for name, value in zip(("non_blocking", "copy", "memory_format"), flags, strict=False) if value
    }
    return x.to(**keywords)


def _dtype(*arguments: Any) -> Any:
    x = arguments[-1]
    return x.dtype if isinstance(x, torch.Tensor) else TensorOptions().dtype(x)


word("at::dtype", typed=True)(_dtype)
word("c10::TensorOptions::dtype", typed=True)(TensorOptions.dtype)


def _device_of(x: Any, index: int = -1) -> Any:
    return seen(x.device) if isinstance(x, torch.Tensor) else TensorOptions().device(x, index)


def _requires_grad(x: Any = True) -> Any:
    return x.requires_grad if isinstance(x, torch.Tensor) else TensorOptions().requires_grad(x)


def _index_put(x: torch.Tensor, indices: list[Any], value: Any) -> torch.Tensor:
    x[tuple(indices)] = value
    return x


def _copy(x: torch.Tensor, value: Any, non_blocking: bool = False) -> torch.Tensor:
    # A number is assigned to a part of a tensor, `x.index({0}) = 1`.
    return x.copy_(value, non_blocking) if isinstance(value, torch.Tensor) else x.fill_(value)


def _is_dense(x: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _grad_flag(x: torch.Tensor, value: bool = True) -> torch.Tensor:
    return x.requires_grad_(value)


_of_methods(
    **{
        name: getattr(torch.Tensor, name)
        for name in ("numel", "dim", "ndimension", "size", "stride", "storage_offset", "detach")
    },
    **{name: getattr(torch.Tensor, name) for name in ("element_size", "is_floating_point", "is_complex", "is_signed")},
    sizes=lambda x: Vector(x.shape),
    strides=lambda x: Vector(x.stride()),
    defined=lambda x: x is not None,
    is_cuda=lambda x: seen(x.device).type == "cuda",
    is_cpu=lambda x: seen(x.device).type == "cpu",
    is_meta=lambda x: x.is_meta,
    is_sparse=lambda x: x.is_sparse,
    is_leaf=lambda x: x.is_leaf,
    is_contiguous=lambda x, memory_format=torch.contiguous_format: x.is_contiguous(memory_format=memory_format),
    contiguous=lambda x, memory_format=torch.contiguous_format: x.contiguous(memory_format=memory_format),
    suggest_memory_format=lambda x: torch._prims_common.suggest_memory_format(x),
    has_storage=lambda x: True,
    is_non_overlapping_and_dense=_is_dense,
    scalar_type=lambda x: x.dtype,
    device=_device_of,
    layout=lambda x: x.layout if isinstance(x, torch.Tensor) else TensorOptions(x),
    requires_grad=_requires_grad,
    get_device=lambda x: -1 if seen(x.device).type == "cpu" else seen(x.device).index,
    options=_options,
    nbytes=lambda x: x.numel() * x.element_size(),
    itemsize=lambda x: x.element_size(),
    set_requires_grad=_grad_flag,
    requires_grad_=_grad_flag,
    is_same=lambda x, y: x is y,
    grad=lambda x: x.grad,
    mutable_grad=lambda x: x.grad,
    variable_data=lambda x: x.detach(),
    tensor_data=lambda x: x.detach(),
    type=_options,
    toType=lambda x, dtype: x.to(dtype),
    toString=lambda x: x.type().removeprefix("torch.").replace(".", ""),
    to=_to,
    cuda=lambda x: x.to(place("cuda")),
    cpu=lambda x: x.cpu(),
    pin_memory=lambda x: x if simulated() else x.pin_memory(),
    index=lambda x, indices: x[tuple(indices)],
    index_put_=_index_put,
    copy_=_copy,
)
_methods(
    "at::Type_",
    {
        "scalarType": lambda options: options.dtype(),
        "typeMeta": lambda options: options.dtype(),
        "toScalarType": lambda options, dtype: options.dtype(dtype),
        "is_cuda": lambda options: options.device().type == "cuda",
        "is_sparse": lambda options: options.layout() != torch.strided,
        "layout": lambda options: options.layout(),
        "device_type": lambda options: options.device().type,
        "cpu": lambda options: options.device("cpu"),
        "cuda": lambda options: options.device("cuda"),
        "toString": lambda options: f"{options.device().type.upper()}{_dtype_name(options.dtype())}Type",
        "options": lambda options: options,
    },
)
declare(
    "namespace torch { using Dtype = at::ScalarType; }"
    "namespace detail { at::ScalarType scalar_type(at::ScalarType); at::ScalarType scalar_type(const at::DeprecatedTypeProperties&); }"
    # As `device(at::kCUDA)` without a namespace finds it, the functions are in that of their arguments.
    "namespace c10 { TensorOptions dtype(ScalarType); TensorOptions dtype(caffe2::TypeMeta); template <class T> TensorOptions dtype();"
    " TensorOptions device(Device); TensorOptions device(DeviceType, DeviceIndex = -1); TensorOptions layout(Layout);"
    " TensorOptions requires_grad(bool = true); TensorOptions memory_format(MemoryFormat); }"
    "namespace at { std::optional<Device> device_of(const Tensor&);"
    " IntArrayRef sizes(const Tensor&); int64_t numel(const Tensor&); int64_t size(const Tensor&, int64_t); }"
)


for _name in ("dtype", "device", "layout", "requires_grad"):
    word(f"c10::{_name}", typed=_name == "dtype")(words()[f"at::{_name}"].object)
word("c10::memory_format")(lambda chosen: TensorOptions().memory_format(chosen))


@word("detail::scalar_type")
def _scalar_type(x: Any) -> torch.dtype:
    return x.dtype() if isinstance(x, TensorOptions) else x


word("at::device_of")(lambda x: None if x is None else seen(x.device))


@word(
    "torch::detail::TensorDataContainer",
    "struct TensorDataContainer { TensorDataContainer(); TensorDataContainer(std::initializer_list<TensorDataContainer>);"
    + "".join(
        f" TensorDataContainer({cpp});"
        for cpp in ("int", "long", "unsigned", "unsigned long", "float", "double", "bool")
    )
    + " TensorDataContainer(at::Half); TensorDataContainer(at::BFloat16); TensorDataContainer(unsigned char);"
    " template <class T> TensorDataContainer(at::ArrayRef<T>); template <class T> TensorDataContainer(const std::vector<T>&); };",
)
def _tensor_data(values: Any = ()) -> Any:
    return values


@word("torch::tensor", "at::Tensor tensor(detail::TensorDataContainer, at::TensorOptions = {});")
def _made_tensor(values: Any, options: Any = None) -> torch.Tensor:
    keywords = TensorOptions(options).keywords()
    return torch.tensor(
        _listed(values), **{k: v for k, v in keywords.items() if k in ("dtype", "device", "requires_grad")}
    )


def _listed(values: Any) -> Any:
    return [_listed(value) for value in values] if isinstance(values, (list, tuple)) else values


@word(
    "at::from_blob",
    "Tensor from_blob(void*, IntArrayRef, TensorOptions = {}); Tensor from_blob(void*, IntArrayRef, IntArrayRef, TensorOptions = {});"
    "} namespace torch { using at::from_blob;",
)
def _from_blob(pointer: Any, sizes: list[int], *rest: Any) -> torch.Tensor:
    if not isinstance(pointer, DevicePointer):
        raise NotTranslated("torch::from_blob of memory that is no tensor's")
    options = TensorOptions(rest[-1] if rest and not isinstance(rest[-1], list) else None)
    memory = pointer.memory.flat(pointer.offset, options.dtype())
    strides = rest[0] if rest and isinstance(rest[0], list) else torch.empty(list(sizes), device="meta").stride()
    return memory.as_strided(list(sizes), list(strides))


# Guards, streams and devices.


class _Guard:
    """Sets something at its construction, and sets it back at the end of its block."""

    _back: Callable[[], Any] | None = None

    def close(self) -> None:
        back, self._back = self._back, None
        if back is not None:
            back()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.close()


@word(
    "c10::cuda::CUDAGuard",
    "struct CUDAGuard { explicit CUDAGuard(Device); explicit CUDAGuard(DeviceIndex); CUDAGuard(const CUDAGuard&) = delete;"
    " void set_device(Device); void set_index(DeviceIndex); void reset_device(Device); Device current_device() const;"
    " Device original_device() const; };"
    "struct OptionalCUDAGuard { OptionalCUDAGuard(); explicit OptionalCUDAGuard(std::optional<Device>);"
    " explicit OptionalCUDAGuard(std::optional<DeviceIndex>); explicit OptionalCUDAGuard(Device);"
    " explicit OptionalCUDAGuard(DeviceIndex);"
    " OptionalCUDAGuard(const OptionalCUDAGuard&) = delete; void set_device(Device); void set_index(DeviceIndex); void reset(); };"
    "} } namespace at { namespace cuda { using namespace c10::cuda; } } namespace torch { namespace cuda {",
)
class CUDAGuard(_Guard):
    """Makes a GPU the current one. Host memory has none."""

    def __init__(self, device: Any = None) -> None:
        self._first = -1 if simulated() or not torch.cuda.is_available() else torch.cuda.current_device()
        if device is not None:
            self.set_device(device)

    def set_device(self, device: Any) -> None:
        index = device.index if isinstance(device, torch.device) else device
        if self._first >= 0 and index is not None and index >= 0:
            self._back = lambda first=self._first: torch.cuda.set_device(first)
            torch.cuda.set_device(index)

    set_index = reset_device = set_device
    reset = _Guard.close

    def original_device(self) -> torch.device:
        return torch.device("cuda", max(self._first, 0))

    def current_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device() if self._first >= 0 else 0)


word("c10::cuda::OptionalCUDAGuard")(CUDAGuard)


@word("c10::cuda::CUDAStreamGuard")
class CUDAStreamGuard(_Guard):
    """Makes a stream the current one."""

    def __init__(self, stream: Any) -> None:
        self._stream, before = stream, None if stream is None else torch.cuda.current_stream()
        if stream is not None:
            torch.cuda.set_stream(stream)
            self._back = lambda: torch.cuda.set_stream(before)  # type: ignore[arg-type]  # there is one

    def current_stream(self) -> Any:
        return self._stream


word(
    "c10::DeviceGuard",
    "struct DeviceGuard { explicit DeviceGuard(Device); };"
    " struct OptionalDeviceGuard { OptionalDeviceGuard(); explicit OptionalDeviceGuard(std::optional<Device>); };",
)(CUDAGuard)
word("c10::OptionalDeviceGuard")(CUDAGuard)


@word("at::NoGradGuard", "struct NoGradGuard { NoGradGuard(); };")
class NoGradGuard(_Guard):
    """Autograd does not record."""

    def __init__(self, enabled: bool = False) -> None:
        before = torch.is_grad_enabled()
        self._back = lambda: torch.set_grad_enabled(before)
        torch.set_grad_enabled(enabled)


class _BelowAutograd(NoGradGuard):
    def __init__(self, enabled: bool = True) -> None:
        super().__init__(not enabled)


word("at::AutoGradMode", "struct AutoGradMode { explicit AutoGradMode(bool); };")(NoGradGuard)
for _name in (
    "AutoDispatchBelowADInplaceOrView",
    "AutoDispatchBelowAutograd",
    "AutoNonVariableTypeMode",
):
    # Below autograd, nothing is recorded.
    word(f"at::{_name}", f"struct {_name} {{ explicit {_name}(bool = true); }};")(_BelowAutograd)
word("c10::InferenceMode", "struct InferenceMode { explicit InferenceMode(bool = true); };")(_BelowAutograd)


@word(
    "c10::cuda::CUDAStream",
    "struct CUDAStream { cudaStream_t stream() const; operator cudaStream_t() const; DeviceIndex device_index() const; int64_t id() const;"
    " void synchronize() const; bool query() const; Device device() const; bool operator==(const CUDAStream&) const; };"
    "CUDAStream getCurrentCUDAStream(DeviceIndex = -1); CUDAStream getDefaultCUDAStream(DeviceIndex = -1);"
    "CUDAStream getStreamFromPool(bool high_priority = false, DeviceIndex = -1); void setCurrentCUDAStream(CUDAStream);"
    "struct CUDAStreamGuard { explicit CUDAStreamGuard(CUDAStream); CUDAStreamGuard(const CUDAStreamGuard&) = delete;"
    " CUDAStream current_stream() const; };"
    "DeviceIndex current_device(); DeviceIndex device_count(); void device_synchronize(); void set_device(DeviceIndex);"
    "int ExchangeDevice(int); int MaybeExchangeDevice(int); void SetDevice(int); void MaybeSetDevice(int);",
    methods="c10::cuda::CUDAStream_",
)
def _stream(stream: Any = None) -> Any:
    return stream


def _no_gpu() -> bool:
    return simulated() or not torch.cuda.is_available()


def _index(index: int) -> int | None:
    return index if index >= 0 else None


# A CUDAStream and a cudaStream_t are PyTorch's stream; None where no GPU is.
_methods(
    "c10::cuda::CUDAStream_",
    {
        "stream": lambda stream: stream,
        "id": lambda stream: 0 if stream is None else stream.stream_id,
        "device_index": lambda stream: 0 if stream is None else stream.device_index,
        "device": lambda stream: torch.device("cuda", 0) if stream is None else stream.device,
        "synchronize": lambda stream: None if stream is None else stream.synchronize(),
        "query": lambda stream: stream is None or stream.query(),
    },
)
_methods(
    "c10::cuda",
    {
        "getCurrentCUDAStream": lambda index=-1: None if _no_gpu() else torch.cuda.current_stream(_index(index)),
        "getDefaultCUDAStream": lambda index=-1: None if _no_gpu() else torch.cuda.default_stream(_index(index)),
        "getStreamFromPool": lambda high=False, index=-1: (
            None if _no_gpu() else torch.cuda.Stream(_index(index), priority=-1 if high else 0)
        ),
        "setCurrentCUDAStream": lambda stream: None if stream is None else torch.cuda.set_stream(stream),
        "current_device": lambda: 0 if _no_gpu() else torch.cuda.current_device(),
        "device_count": lambda: 1 if simulated() else torch.cuda.device_count(),
        "device_synchronize": lambda: None if _no_gpu() else torch.cuda.synchronize(),
        **dict.fromkeys(
            ("set_device", "SetDevice", "MaybeSetDevice"),
            lambda index: None if _no_gpu() or index < 0 else torch.cuda.set_device(index),
        ),
        **dict.fromkeys(
            ("ExchangeDevice", "MaybeExchangeDevice"),
            lambda index: 0 if _no_gpu() else torch.cuda._exchange_device(index),
        ),
    },
)


@word(
    "at::cuda::getCurrentDeviceProperties",
    "cudaDeviceProp* getCurrentDeviceProperties(); cudaDeviceProp* getDeviceProperties(DeviceIndex); int warp_size();",
)
def _current_properties() -> Pointer:
    return Pointer(Variable(device_properties()))


@word("at::cuda::getDeviceProperties")
def _properties(index: int) -> Pointer:
    return Pointer(Variable(device_properties(index)))


word("at::cuda::warp_size")(lambda: 32)
declare(
    "namespace torch { namespace cuda { using namespace at::cuda; bool is_available(); size_t device_count(); void synchronize(int64_t = -1);"
    " void manual_seed(unsigned long); } void manual_seed(unsigned long); }"
)
_methods(
    "torch::cuda",
    {
        "is_available": lambda: simulated() or torch.cuda.is_available(),
        "device_count": lambda: 1 if simulated() else torch.cuda.device_count(),
        "synchronize": lambda index=-1: None if _no_gpu() else torch.cuda.synchronize(_index(index)),
        "manual_seed": lambda seed: torch.cuda.manual_seed(seed),
    },
)
word("torch::manual_seed")(torch.manual_seed)


@word("at::ceil_div", "template <class T> constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }")
def _ceil_div(a: int, b: int) -> int:
    return quotient(a + b - 1, b)


word("at::cuda::ATenCeilDiv", "template <class T> constexpr T ATenCeilDiv(T a, T b) { return (a + b - 1) / b; }")(
    _ceil_div
)


@word(
    "at::parallel_for",
    "template <class F> void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& body);"
    " namespace internal { constexpr int64_t GRAIN_SIZE = 32768; } int get_num_threads(); int get_thread_num();",
)
def _parallel_for(begin: int, end: int, grain: int, body: Callable[[int, int], Any]) -> None:
    if begin < end:
        body(begin, end)


_methods("at", {"get_num_threads": lambda: 1, "get_thread_num": lambda: 0})


@word(
    "at::cuda::detail::TensorInfo",
    "template <class T, class I> struct TensorInfo { I sizes[25]; I strides[25]; int dims; bool isContiguous() const; };"
    " template <class T, class I> TensorInfo<T, I> getTensorInfo(const at::Tensor&);"
    " template <class T, class I, int D> struct IndexToOffset { static I get(I, const TensorInfo<T, I>&); };",
    typed=True,
    methods="at.cuda.detail.TensorInfo_",
)
def _no_info(*_: Any) -> Any:
    raise NotTranslated("a TensorInfo that is made of no tensor")


@word("at::cuda::detail::getTensorInfo", typed=True)
def _tensor_info(kind: Any, _: Any, x: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, which a launch passes as a ``TensorInfo``."""
    _check_type(kind, x)
    return x


word("at::cuda::detail::TensorInfo_::sizes")(lambda x: Vector(x.shape))
word("at::cuda::detail::TensorInfo_::strides")(lambda x: Vector(x.stride()))
word("at::cuda::detail::TensorInfo_::dims")(torch.Tensor.dim)
word("at::cuda::detail::TensorInfo_::isContiguous")(lambda x: x.dim() == 1 and x.stride(0) == 1)


@word("at::cuda::detail::canUse32BitIndexMath", "bool canUse32BitIndexMath(const at::Tensor&, int64_t = 2147483647);")
def _narrow_index(x: torch.Tensor, most: int = 2147483647) -> bool:
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.numel() == 0 or (x.numel() <= most and last < most)


@word("at::Context", "struct Context { static void alertNotDeterministic(const char*); bool deterministicAlgorithms() const;"
      " void lazyInitCUDA(); bool allowTF32CuBLAS() const; }; Context& globalContext();")  # fmt: skip
class Context:
    """PyTorch's settings, ``at::globalContext()``."""

    @staticmethod
    def alertNotDeterministic(name: str) -> None:  # noqa: N802  C++'s name
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError(f"{name} does not have a deterministic implementation")

    def deterministicAlgorithms(self) -> bool:  # noqa: N802
        return torch.are_deterministic_algorithms_enabled()

    def lazyInitCUDA(self) -> None:  # noqa: N802
        """Does nothing."""

    def allowTF32CuBLAS(self) -> bool:  # noqa: N802
        return torch.backends.cuda.matmul.allow_tf32


word("at::globalContext")(lambda: Context())


@word(
    "at::TensorArg",
    "struct TensorArg { Tensor tensor; const char* name; int pos; TensorArg(const Tensor&, const char*, int); };"
    " using CheckedFrom = const char*;"
    " void checkAllSameGPU(CheckedFrom, ArrayRef<TensorArg>); void checkSameGPU(CheckedFrom, const TensorArg&, const TensorArg&);"
    " void checkAllSameType(CheckedFrom, ArrayRef<TensorArg>); void checkSameType(CheckedFrom, const TensorArg&, const TensorArg&);"
    " void checkAllContiguous(CheckedFrom, ArrayRef<TensorArg>); void checkContiguous(CheckedFrom, const TensorArg&);"
    " void checkAllDefined(CheckedFrom, ArrayRef<TensorArg>); void checkDim(CheckedFrom, const TensorArg&, int64_t);"
    " void checkSameSize(CheckedFrom, const TensorArg&, const TensorArg&);",
)
class TensorArg:
    """A tensor with its name, for checks of arguments."""

    def __init__(self, tensor: torch.Tensor, name: str, pos: int) -> None:
        self.tensor, self.name, self.pos = tensor, name, pos


def _arguments_alike(what: str, of: Callable[[torch.Tensor], Any]) -> Callable[..., None]:
    def check(function: str, *arguments: Any) -> None:
        given = arguments[0] if isinstance(arguments[0], list) else arguments
        first, *others = [a for a in given if a.tensor is not None]
        for other in others:
            if of(first.tensor) != of(other.tensor):
                raise RuntimeError(
                    f"Expected argument #{first.pos} '{first.name}' and argument #{other.pos} '{other.name}' to have the same {what}, but"
                    f" they have {of(first.tensor)} and {of(other.tensor)} (while checking arguments for {function})"
                )

    return check


def _arguments_are(what: str, test: Callable[..., bool]) -> Callable[..., None]:
    def check(function: str, given: Any, *more: Any) -> None:
        for argument in given if isinstance(given, list) else [given]:
            if not test(argument.tensor, *more):
                raise RuntimeError(
                    f"Expected {what.format(*more)} tensor for argument #{argument.pos} '{argument.name}' (while checking arguments for {function})"
                )

    return check


_methods(
    "at",
    {
        **dict.fromkeys(("checkAllSameGPU", "checkSameGPU"), _arguments_alike("GPU", lambda x: seen(x.device))),
        **dict.fromkeys(("checkAllSameType", "checkSameType"), _arguments_alike("type", lambda x: x.dtype)),
        "checkSameSize": _arguments_alike("size", lambda x: tuple(x.shape)),
        **dict.fromkeys(
            ("checkAllContiguous", "checkContiguous"), _arguments_are("contiguous", lambda x: x.is_contiguous())
        ),
        "checkAllDefined": _arguments_are("a defined", lambda x: x is not None),
        "checkDim": _arguments_are("a {}-dimensional", lambda x, dim: x.dim() == dim),
    },
)
# What PyTorch had before version 1.11. Programs may define it themselves.
word("THCCeilDiv", "template <class T> T THCCeilDiv(T a, T b);")(_ceil_div)
word("THCState_getCurrentStream", "struct THCState; cudaStream_t THCState_getCurrentStream(THCState*);")(
    lambda state: None if _no_gpu() else torch.cuda.current_stream()
)
word("THCState")(object)

# Checks.


def _shown(value: Any) -> str:
    """Returns a value as C++'s streams write it."""
    if value is None:
        return "[ Tensor (undefined) ]"
    if isinstance(value, torch.dtype):
        return _dtype_name(value)
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value)


@word("c10::str", "template <class... A> std::string str(const A&...);")
@word("cupyops::message", "template <class... A> std::string message(const A&...);")
def message(*values: Any) -> str:
    """Returns the text of a check: its values one behind the other, as C++'s streams write them."""
    return "".join(map(_shown, values))


class C10Error(RuntimeError):
    """PyTorch's ``c10::Error``, which ``TORCH_CHECK`` throws; in Python a RuntimeError."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(arguments[-1])  # behind the place in C++


def _error(kind: type[Exception]) -> type[Exception]:
    """Returns the class of an error that is an error of Python, too, and has its name there."""
    bases = (C10Error,) if kind is RuntimeError else (C10Error, kind)
    return type(kind.__name__, bases, {})


_ERRORS: dict[str, type[Exception]] = {
    e.__name__: _error(e) for e in (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError)
}
word("c10::SourceLocation", "struct SourceLocation { const char* function; const char* file; uint32_t line; };")(
    lambda *_: None
)
word(
    "c10::Error",
    "struct Error : std::exception { Error(SourceLocation, std::string); };",
    methods="std.exception_",
)(C10Error)
for _name in ("IndexError", "ValueError", "TypeError", "NotImplementedError"):
    word(
        f"c10::{_name}",
        f"struct {_name} : Error {{ {_name}(SourceLocation, std::string); }};",
        methods="std.exception_",
    )(_ERRORS[_name])


@word("cupyops::check_failed", 'void check_failed(const char*, const std::string&, const char* = "RuntimeError");')
def _check_failed(condition: str, text: str, kind: str = "RuntimeError") -> None:
    """Raises the error of a check that failed.

    Raises:
        RuntimeError: or the error of the other kind.
    """
    raise _ERRORS[kind](text or f"Expected {condition} to be true, but got false.")


@word("cupyops::failed", "[[noreturn]] void failed(const std::string&);")
def _failed(text: str) -> None:
    raise _ERRORS["RuntimeError"](text)


@word("cupyops::warn", "void warn(const std::string&);")
def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=3)


@word("cupyops::cuda_check", "void cuda_check(cudaError_t);")
def _cuda_check(error: int) -> None:
    if error:
        raise RuntimeError(f"CUDA error: {error_string(error)}")


@word("cupyops::not_dispatched", "[[noreturn]] void not_dispatched(const char*, c10::ScalarType);")
def _not_dispatched(name: str, dtype: torch.dtype) -> None:
    raise NotImplementedError(f"\"{name}\" not implemented for '{_dtype_name(dtype)}'")


def _check_macros() -> Iterator[str]:
    def check(name: str, *kind: str) -> str:
        more = "".join(f', "{k}"' for k in kind)
        # A statement that needs no semicolon, as PyTorch's.
        return f"#define {name}(c, ...) if (!(c)) {{ ::cupyops::check_failed(#c, ::cupyops::message(__VA_ARGS__){more}); }}"

    for name in (
        "TORCH_CHECK", "TORCH_INTERNAL_ASSERT", "TORCH_INTERNAL_ASSERT_DEBUG_ONLY", "AT_ASSERTM", "AT_ASSERT", "AT_CHECK",
    ):  # fmt: skip
        yield check(name)
    for name, kind in (("INDEX", "Index"), ("VALUE", "Value"), ("TYPE", "Type"), ("NOT_IMPLEMENTED", "NotImplemented")):
        yield check(f"TORCH_CHECK_{name}", f"{kind}Error")
    for name, op in (("EQ", "=="), ("NE", "!="), ("LT", "<"), ("LE", "<="), ("GT", ">"), ("GE", ">=")):
        yield (
            f"#define TORCH_CHECK_{name}(a, b) if (!((a) {op} (b))) {{ ::cupyops::check_failed(#a, "
            f'::cupyops::message("Check failed: " #a " {op} " #b " (", (a), " vs. ", (b), "). ")); }}'
        )
    yield "#define AT_ERROR(...) ::cupyops::failed(::cupyops::message(__VA_ARGS__))"
    for name in ("TORCH_WARN", "TORCH_WARN_ONCE", "AT_WARN"):
        yield f"#define {name}(...) ::cupyops::warn(::cupyops::message(__VA_ARGS__))"
    for name in ("C10_CUDA_CHECK", "AT_CUDA_CHECK", "C10_CUDA_CHECK_WARN", "TORCH_CUDA_CHECK", "THCudaCheck"):
        yield f"#define {name}(...) ::cupyops::cuda_check(__VA_ARGS__)"
    yield "#define C10_CUDA_KERNEL_LAUNCH_CHECK() ::cupyops::cuda_check(cudaGetLastError())"
    yield "#define TORCH_CUDA_KERNEL_LAUNCH_CHECK() ::cupyops::cuda_check(cudaGetLastError())"
    for name in (
        "C10_HOST",
        "C10_API",
        "TORCH_API",
        "C10_EXPORT",
        "C10_ALWAYS_INLINE",
    ):
        yield f"#define {name}"
    yield "#define C10_UNUSED [[maybe_unused]]\n#define C10_WARP_SIZE 32"
    yield "#define C10_LIKELY(x) (x)\n#define C10_UNLIKELY(x) (x)\n#define C10_RESTRICT __restrict__"
    yield "#define LEGACY_CONTIGUOUS_MEMORY_FORMAT at::MemoryFormat::Contiguous"
    major, minor, patch = torch.__version__.split("+")[0].split(".")[:3]
    patch = patch[:1]
    yield f"#define TORCH_VERSION_MAJOR {major}\n#define TORCH_VERSION_MINOR {minor}\n#define TORCH_VERSION_PATCH {patch}"
    yield f'#define TORCH_VERSION "{major}.{minor}.{patch}"'
    yield "#define C10_CLANG_DIAGNOSTIC_PUSH()\n#define C10_CLANG_DIAGNOSTIC_POP()"


# Dispatch by dtype, in the form of PyTorch's own macros.


def _dispatch_macros() -> Iterator[str]:
    yield (
        "#define AT_DISPATCH_SWITCH(TYPE, NAME, ...) [&] { const auto& the_type = TYPE; "
        "at::ScalarType _st = ::detail::scalar_type(the_type); "
        "switch (_st) { __VA_ARGS__ default: ::cupyops::not_dispatched(NAME, _st); } }()"
    )
    yield (
        "#define AT_PRIVATE_CASE_TYPE_USING_HINT(S, HINT, ...) "
        "case S: { using HINT = c10::impl::ScalarTypeToCPPTypeT<S>; return __VA_ARGS__(); }"
    )
    yield "#define AT_DISPATCH_CASE(S, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(S, scalar_t, __VA_ARGS__)"
    floating, reduced, compound = ("Double", "Float"), ("Half", "BFloat16"), ("ComplexDouble", "ComplexFloat")
    integral = ("Byte", "Char", "Int", "Long", "Short")
    groups = {
        "FLOATING_TYPES": floating,
        "REDUCED_FLOATING_TYPES": reduced,
        "INTEGRAL_TYPES": integral,
        "COMPLEX_TYPES": compound,
        "FLOATING_AND_COMPLEX_TYPES": floating + compound,
        "ALL_TYPES": integral + floating,
        "ALL_TYPES_AND_COMPLEX": integral + floating + compound,
    }
    for group, names in groups.items():
        cases = " ".join(f"AT_DISPATCH_CASE(at::ScalarType::{name}, __VA_ARGS__)" for name in names)
        yield f"#define AT_DISPATCH_CASE_{group}(...) {cases}"
        for count in range(6):
            extra = [f"T{i}" for i in range(count)]
            suffix = "" if not count else "_AND" if count == 1 else f"_AND{count}"
            more = "".join(f"AT_DISPATCH_CASE({t}, __VA_ARGS__) " for t in extra)
            yield (
                f"#define AT_DISPATCH_{group}{suffix}({''.join(f'{t}, ' for t in extra)}TYPE, NAME, ...) "
                f"AT_DISPATCH_SWITCH(TYPE, NAME, {more}AT_DISPATCH_CASE_{group}(__VA_ARGS__))"
            )
        yield (
            f"#define AT_DISPATCH_{group}_AND_HALF(TYPE, NAME, ...) "
            f"AT_DISPATCH_{group}_AND(at::ScalarType::Half, TYPE, NAME, __VA_ARGS__)"
        )
    index = " ".join(
        f"AT_PRIVATE_CASE_TYPE_USING_HINT(at::ScalarType::{name}, index_t, __VA_ARGS__)" for name in ("Int", "Long")
    )
    yield f"#define AT_DISPATCH_INDEX_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, {index})"


# torch.library

_KEYS = (
    "CPU", "CUDA", "Meta", "Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd",
    "CompositeExplicitAutograd", "Autocast", "AutocastCUDA", "Functionalize", "BackendSelect", "Undefined",
)  # fmt: skip
_enumeration("c10::DispatchKey", {key: key for key in _KEYS})


# torch::nn::functional, with its classes of options.


class FunctionOptions:
    """The options of a function of ``torch::nn::functional``: each method sets one, by its Python name."""

    def __init__(self, first: str = "", value: Any = None) -> None:
        self.values: dict[str, Any] = {first: value} if first else {}

    def __getattr__(self, name: str) -> Callable[[Any], "FunctionOptions"]:
        if name.startswith("__"):
            raise AttributeError(name)

        def setter(value: Any) -> "FunctionOptions":
            self.values[name] = value
            return self

        return setter


_INT, _INTS, _REAL, _BOOL = "int64_t", "at::IntArrayRef", "double", "bool"
_TENSOR, _MODE = "const at::Tensor&", "Mode_"
_REDUCTION = {"reduction": _MODE}
_CONV = {"bias": _TENSOR, "stride": _INTS, "padding": _INTS, "dilation": _INTS, "groups": _INT}
_POOL = {"stride": _INTS, "padding": _INTS, "ceil_mode": _BOOL}
# Of each function: the tensors in front, the class of options, the option that its constructor takes, and its options.
_FUNCTIONS: dict[str, tuple[int, str, str, dict[str, str]]] = {
    "softmax": (1, "SoftmaxFuncOptions", "dim", {"dim": _INT, "dtype": "at::ScalarType"}),
    "log_softmax": (1, "LogSoftmaxFuncOptions", "dim", {"dim": _INT, "dtype": "at::ScalarType"}),
    "relu": (1, "ReLUFuncOptions", "", {"inplace": _BOOL}),
    "silu": (1, "", "", {}),
    "mish": (1, "", "", {}),
    "softsign": (1, "", "", {}),
    "logsigmoid": (1, "", "", {}),
    "gelu": (1, "GELUFuncOptions", "", {"approximate": "const std::string&"}),
    "elu": (1, "ELUFuncOptions", "", {"alpha": _REAL, "inplace": _BOOL}),
    "leaky_relu": (1, "LeakyReLUFuncOptions", "", {"negative_slope": _REAL, "inplace": _BOOL}),
    "hardtanh": (1, "HardtanhFuncOptions", "", {"min_val": _REAL, "max_val": _REAL, "inplace": _BOOL}),
    "softplus": (1, "SoftplusFuncOptions", "", {"beta": _REAL, "threshold": _REAL}),
    "dropout": (1, "DropoutFuncOptions", "", {"p": _REAL, "training": _BOOL, "inplace": _BOOL}),
    "normalize": (1, "NormalizeFuncOptions", "", {"p": _REAL, "dim": _INT, "eps": _REAL}),
    "pad": (1, "PadFuncOptions", "pad", {"pad": _INTS, "mode": _MODE, "value": _REAL}),
    "layer_norm": (
        1, "LayerNormFuncOptions", "normalized_shape",
        {"normalized_shape": _INTS, "weight": _TENSOR, "bias": _TENSOR, "eps": _REAL},
    ),
    "group_norm": (1, "GroupNormFuncOptions", "num_groups", {"num_groups": _INT, "weight": _TENSOR, "bias": _TENSOR, "eps": _REAL}),
    "batch_norm": (
        3, "BatchNormFuncOptions", "",
        {"weight": _TENSOR, "bias": _TENSOR, "training": _BOOL, "momentum": _REAL, "eps": _REAL},
    ),
    "max_pool2d": (1, "MaxPool2dFuncOptions", "kernel_size", {"kernel_size": _INTS, "dilation": _INTS, **_POOL}),
    "avg_pool2d": (1, "AvgPool2dFuncOptions", "kernel_size", {"kernel_size": _INTS, "count_include_pad": _BOOL, **_POOL}),
    "adaptive_avg_pool2d": (1, "AdaptiveAvgPool2dFuncOptions", "output_size", {"output_size": _INTS}),
    "conv1d": (2, "Conv1dFuncOptions", "", _CONV),
    "conv2d": (2, "Conv2dFuncOptions", "", _CONV),
    "conv3d": (2, "Conv3dFuncOptions", "", _CONV),
    "conv_transpose2d": (2, "ConvTranspose2dFuncOptions", "", {**_CONV, "output_padding": _INTS}),
    "conv_transpose3d": (2, "ConvTranspose3dFuncOptions", "", {**_CONV, "output_padding": _INTS}),
    "mse_loss": (2, "MSELossFuncOptions", "", _REDUCTION),
    "l1_loss": (2, "L1LossFuncOptions", "", _REDUCTION),
    "kl_div": (2, "KLDivFuncOptions", "", {**_REDUCTION, "log_target": _BOOL}),
    "smooth_l1_loss": (2, "SmoothL1LossFuncOptions", "", {**_REDUCTION, "beta": _REAL}),
    "cross_entropy": (
        2, "CrossEntropyFuncOptions", "",
        {**_REDUCTION, "weight": _TENSOR, "ignore_index": _INT, "label_smoothing": _REAL},
    ),
    "nll_loss": (2, "NLLLossFuncOptions", "", {**_REDUCTION, "weight": _TENSOR, "ignore_index": _INT}),
    "cosine_similarity": (2, "CosineSimilarityFuncOptions", "", {"dim": _INT, "eps": _REAL}),
}  # fmt: skip
_MODES = {
    "Mean": "mean",
    "Sum": "sum",
    "None": "none",
    "Constant": "constant",
    "Reflect": "reflect",
    "Replicate": "replicate",
}
_MODES |= {"Circular": "circular", "BatchMean": "batchmean"}
declare(
    "namespace torch { namespace nn { namespace functional {} } struct Mode_ { const char* name; };"
    f" constexpr Mode_ {', '.join(f'k{name} = {{0}}' for name in _MODES)}; }}"
)
for _name, _value in _MODES.items():
    word(f"torch::k{_name}")(_value)


def _functional(name: str, tensors: int) -> Callable[..., Any]:
    function = getattr(torch.nn.functional, name)

    def call(*arguments: Any) -> Any:
        options = arguments[tensors:]
        if options and isinstance(options[0], FunctionOptions):
            values = {k: list(v) if isinstance(v, list) else v for k, v in options[0].values.items()}
            return function(*arguments[:tensors], **values)
        return function(*arguments)

    return call


for _name, (_tensors, _class, _first, _given) in _FUNCTIONS.items():
    _parameters = ", ".join([_TENSOR] * _tensors)
    if _class:
        _constructor = f"{_class}({_given[_first]});" if _first else f"{_class}();"
        _setters = "".join(f" {_class}& {option}({kind});" for option, kind in _given.items())
        word(f"torch::nn::functional::{_class}", f"struct {_class} {{ {_constructor}{_setters} }};")(
            lambda value=None, first=_first: FunctionOptions(first, value)
        )
        _parameters += f", const {_class}&" + ("" if _first else " = {}")
    word(f"torch::nn::functional::{_name}", f"at::Tensor {_name}({_parameters});")(_functional(_name, _tensors))


@word(
    "torch::nn::functional::linear", "at::Tensor linear(const at::Tensor&, const at::Tensor&, const at::Tensor& = {});"
)
def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight, bias)


declare("#pragma clang force_cuda_host_device end")
declare("\n".join([*_check_macros(), *_dispatch_macros()]))
