"""PyTorch's checks with their errors and messages, and the dispatch by dtype, as macros."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from . import aten  # noqa: F401  its C++ text comes first
from .cuda_devices import error_string
from .scalar_types import dtype_name
from .words import declare, word

__all__ = ["message"]


def _shown(value: Any) -> str:
    """Returns a value as C++'s streams write it."""
    if value is None:
        return "[ Tensor (undefined) ]"
    if isinstance(value, torch.dtype):
        return dtype_name(value)
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
    """Returns the text of a check: its values one after another, as C++'s streams write them."""
    return "".join(map(_shown, values))


class C10Error(RuntimeError):
    """PyTorch's ``c10::Error``, which ``TORCH_CHECK`` throws; in Python a RuntimeError."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(arguments[-1])  # after the place in C++


def _error(kind: type[Exception]) -> type[Exception]:
    """Returns the class of a C++ error that is also a Python exception, by its Python name."""
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
    raise NotImplementedError(f"\"{name}\" not implemented for '{dtype_name(dtype)}'")


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


declare("\n".join([*_check_macros(), *_dispatch_macros()]))
