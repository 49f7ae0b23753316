"""Translations of PyTorch's C++ names for tensors. PyTorch's operators are in :mod:`.operators`.

A tensor is a ``torch.Tensor``, an undefined one None.

While the simulator runs, a tensor in host memory is on the GPU for host code: ``x.is_cuda()``, and a factory that asks
for the GPU gives a tensor in host memory.
"""

from collections.abc import Callable
from typing import Any

import torch

from .devices import place, seen, simulated
from .errors import NotTranslated
from .memory import DevicePointer, dtype_of, pointer_to
from .numbers import NUMBERS, Number
from .operators import FUNCTIONS, METHODS
from .scalar_types import dtype_name
from .standard import Vector
from .tensor_options import TensorOptions
from .words import Enumeration, declare, methods, word, words

__all__ = ["check_type"]


_FORMAT = "MemoryFormat = MemoryFormat::Contiguous"
_OPERATORS = "".join(
    f"Tensor operator{op}(const Tensor&, const Tensor&); Tensor operator{op}(const Tensor&, const Scalar&);"
    f" Tensor operator{op}(const Scalar&, const Tensor&);"
    for op in ("+", "-", "*", "/", "%", "==", "!=", "<", ">", "<=", ">=", "&", "|", "^")
)
declare(
    "namespace at { template <class T> struct DefaultPtrTraits { typedef T* PtrType; };"
    "template <class T> struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };"
    # The pointer's traits are for kernels: the host's types have none, as libclang does not report such an argument.
    "template <class T, size_t N, class I> struct Accessor { using PtrType = T*; Accessor(T*, const I*, const I*);"
    " Accessor<T, N - 1, I> operator[](I) const; I size(I) const; I stride(I) const; T* data() const; };"
    "template <class T, class I> struct Accessor<T, 1, I> { using PtrType = T*; Accessor(T*, const I*, const I*);"
    " T& operator[](I) const; I size(I) const; I stride(I) const; T* data() const; };"
    "template <class T, size_t N, class I> struct PackedAccessor : Accessor<T, N, I> { using Accessor<T, N, I>::Accessor; };"
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


@word("at::CUDA", "DeprecatedTypeProperties CUDA(ScalarType);")
def type_of_cuda(dtype: torch.dtype) -> TensorOptions:
    found: TensorOptions = TensorOptions(dtype).device("cuda")
    return found


@word("at::CPU", "DeprecatedTypeProperties CPU(ScalarType);")
def type_of_cpu(dtype: torch.dtype) -> TensorOptions:
    found: TensorOptions = TensorOptions(dtype).device("cpu")
    return found


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
    methods("at", functions)


def check_type(kind: Any, x: torch.Tensor) -> None:
    wanted = None if isinstance(kind, str) else dtype_of(kind)  # PyTorch has no data_ptr<__half>()
    if wanted is None:
        raise NotTranslated(f"memory of a tensor as {kind}")
    if x.dtype != wanted:
        raise RuntimeError(f"expected scalar type {dtype_name(wanted)} but found {dtype_name(x.dtype)}")


def _data_ptr(*arguments: Any) -> Any:
    *kinds, x = arguments
    if not kinds or kinds[0] is None:  # void*
        return pointer_to(x, None)
    check_type(kinds[0], x)
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
    """A tensor's elements on the CPU, ``a[i][j]``; None for the accessor of a null pointer, which has no elements."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any = None, sizes: Any = None, strides: Any = None) -> None:
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise NotTranslated("an accessor that host code makes of a pointer")
        self.tensor: Any = tensor

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
        return int(self.tensor.size(dim))

    def stride(self, dim: int) -> int:
        return int(self.tensor.stride(dim))

    def data(self) -> Any:
        return pointer_to(self.tensor, next((n for n in NUMBERS.values() if n.dtype == self.tensor.dtype), None))


word("at::Accessor")(Accessor)


def _accessible(*arguments: Any) -> torch.Tensor:
    kind, dimensions, *_, x = arguments
    check_type(kind, x)
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


def _index(indices: list[Any]) -> tuple[Any, ...]:
    return tuple(map(_tensor_index, indices))


def _index_put(x: torch.Tensor, indices: list[Any], value: Any) -> torch.Tensor:
    x[_index(indices)] = value
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
    index=lambda x, indices: x[_index(indices)],
    index_put_=_index_put,
    copy_=_copy,
)
methods(
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
        "toString": lambda options: f"{options.device().type.upper()}{dtype_name(options.dtype())}Type",
        "options": lambda options: options,
    },
)
declare(
    "namespace torch { using Dtype = at::ScalarType; }"
    "namespace detail { at::ScalarType scalar_type(at::ScalarType); at::ScalarType scalar_type(const at::DeprecatedTypeProperties&); }"
    # `device(at::kCUDA)` without a namespace is found in the namespace of its argument, so the functions are there.
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
        raise NotTranslated("torch::from_blob of memory that is not a tensor's")
    options = TensorOptions(rest[-1] if rest and not isinstance(rest[-1], list) else None)
    memory = pointer.memory.flat(pointer.offset, options.dtype())
    strides = rest[0] if rest and isinstance(rest[0], list) else torch.empty(list(sizes), device="meta").stride()
    return memory.as_strided(list(sizes), list(strides))
