"""Translations of PyTorch's C++ names for scalars, lists of sizes and TensorOptions.

A Scalar is a number, an ArrayRef a list.
"""

from typing import Any

import torch

from .devices import place, simulated
from .numbers import NUMBERS, Number
from .references import Pointer
from .scalar_types import made_device
from .standard import Vector
from .words import methods, word

__all__ = ["TensorOptions"]


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


# A number converts to it by a single implicit conversion.
word(
    "c10::OptionalScalar",
    "struct OptionalScalar { OptionalScalar(); OptionalScalar(std::nullopt_t); OptionalScalar(const std::optional<Scalar>&);"
    " template <class T, class = std::enable_if_t<__is_convertible(T, Scalar)>> OptionalScalar(const T&); };",
)(lambda value=None: value)
methods(
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
    "using IntArrayRef = ArrayRef<int64_t>; using SymIntArrayRef = IntArrayRef; using IntList = IntArrayRef;",
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
        # Typed by the result: for dtype<T>(), T; for the others, their class
        value = next((a for a in arguments if not isinstance(a, str)), _KEEP)
        return self._with("dtype", value.dtype if isinstance(value, Number) else value, torch.get_default_dtype())

    def device(self, value: Any = _KEEP, index: int = -1) -> Any:
        value = value if value is _KEEP or value is None else made_device(value, index)
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
