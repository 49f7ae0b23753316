"""C++'s exceptions: The Python classes are those that pybind11 raises, with the class hierarchy of C++."""

from . import strings  # noqa: F401  its C++ text comes first
from .words import declare, word

__all__ = ["OutOfRangeError"]


def _texts(name: str, base: str) -> str:
    return f"struct {name} : {base} {{ explicit {name}(const string&); explicit {name}(const char*); }};"


declare("#pragma clang force_cuda_host_device end")  # a user's class overrides what() for the host alone
word(
    "std::exception",
    "struct exception { exception() noexcept; exception(const exception&) noexcept; exception& operator=(const exception&) noexcept;"
    " virtual ~exception(); virtual const char* what() const noexcept; };",
    methods="std.exception_",
)(RuntimeError)
declare("#pragma clang force_cuda_host_device begin")


@word("std::runtime_error", _texts("runtime_error", "exception"), methods="std.exception_")
class StandardRuntimeError(RuntimeError):
    """``std::runtime_error``."""


@word("std::logic_error", _texts("logic_error", "exception"), methods="std.exception_")
class LogicError(RuntimeError):
    """``std::logic_error``."""


@word("std::invalid_argument", _texts("invalid_argument", "logic_error"), methods="std.exception_")
class InvalidArgumentError(LogicError, ValueError):
    """``std::invalid_argument``."""


@word("std::domain_error", _texts("domain_error", "logic_error"), methods="std.exception_")
class DomainError(LogicError, ValueError):
    """``std::domain_error``."""


@word("std::length_error", _texts("length_error", "logic_error"), methods="std.exception_")
class LengthError(LogicError, ValueError):
    """``std::length_error``."""


@word("std::out_of_range", _texts("out_of_range", "logic_error"), methods="std.exception_")
class OutOfRangeError(LogicError, IndexError):
    """``std::out_of_range``."""


@word("std::range_error", _texts("range_error", "runtime_error"), methods="std.exception_")
class RangeError(StandardRuntimeError, ValueError):
    """``std::range_error``."""


@word("std::overflow_error", _texts("overflow_error", "runtime_error"), methods="std.exception_")
class StandardOverflowError(StandardRuntimeError, OverflowError):
    """``std::overflow_error``."""


@word("std::bad_alloc", "struct bad_alloc : exception { bad_alloc() noexcept; };", methods="std.exception_")
class BadAllocError(RuntimeError, MemoryError):
    """``std::bad_alloc``."""


@word("std::exception_::what")
def what(error: BaseException) -> str:
    """Returns the message of an exception; the method of a user's class, if it has one."""
    own = getattr(error, "what", None)
    return own() if own is not None else str(error)
