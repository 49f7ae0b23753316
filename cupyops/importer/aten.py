"""Translations of the C++ names of PyTorch, besides tensors, that extensions use: loops, indices of kernels, settings, checks of arguments."""

from collections.abc import Callable
from typing import Any

import torch

from .devices import seen
from .errors import NotTranslated
from .guards import no_gpu
from .numbers import quotient
from .standard import Vector
from .tensors import check_type
from .words import methods, word

__all__: list[str] = []


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


methods("at", {"get_num_threads": lambda: 1, "get_thread_num": lambda: 0})


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
    check_type(kind, x)
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


methods(
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
# Functions that PyTorch had before version 1.11. Programs may define it themselves.
word("THCCeilDiv", "template <class T> T THCCeilDiv(T a, T b);")(_ceil_div)
word("THCState_getCurrentStream", "struct THCState; cudaStream_t THCState_getCurrentStream(THCState*);")(
    lambda state: None if no_gpu() else torch.cuda.current_stream()
)
word("THCState")(object)
