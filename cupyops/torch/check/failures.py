"""What an error of a check says: its first cause, and whether it is a refusal."""

import contextlib
import traceback
from collections.abc import Iterator

from cupyops.compile.compiler import first_error
from cupyops.errors import CompileError

__all__ = ["MEND_THE_TEXT", "does_not_compile", "first_cause", "first_words", "quiet", "refuses_gradient"]

# The advice of every check for an operator with a kernel that does not compile.
MEND_THE_TEXT = "Mend the kernel's text at the first error. Later errors are often consequences of the first."


def refuses_gradient(error: BaseException) -> bool:
    """Returns whether an error is a deliberate refusal of a (further) derivative, by an operator or by PyTorch."""
    return any(words in str(error) for words in ("has no gradient", "once_differentiable"))


def first_words(error: BaseException) -> str:
    """Returns type and first line of the error's first cause.

    For a compile error, returns the compiler's first error with the source lines around it.
    """
    cause = first_cause(error)
    if isinstance(cause, CompileError):
        return f"{type(cause).__name__}: {first_error(str(cause))}"
    words = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {words[0] if words else ''}"


def first_cause(error: BaseException) -> BaseException:
    """Returns the error in which a chain of exceptions began.

    This is the error that this package or the operator's author raised, without the exceptions that PyTorch and the
    author's handlers raised from it.
    """
    met = [error]
    while (below := met[-1].__cause__ or met[-1].__context__) is not None and below not in met:
        met.append(below)
    if compiled := next((e for e in met if isinstance(e, CompileError)), None):
        return compiled
    told = [error]
    for wrapped in met[1:]:
        # Dynamo raises its exceptions from None: the exception that it caught is the context. In an author's code, a
        # context that is not a cause is unrelated: the handler of one error failed with another error.
        if _is_ours(told[-1]) or not (_of_pytorch(told[-1]) or wrapped is told[-1].__cause__):
            break
        told.append(wrapped)
    # An exception raised inside PyTorch explains less than the exception that PyTorch raises from it.
    return next((e for e in reversed(told) if not _of_pytorch(e) and _raised_in(e) != "torch"), error)


def does_not_compile(error: BaseException) -> bool:
    """Returns whether the first cause of an error is a compile error."""
    return isinstance(first_cause(error), CompileError)


def _is_ours(error: BaseException) -> bool:
    return not _of_pytorch(error) and _raised_in(error) == "cupyops"


def _of_pytorch(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "torch"


def _raised_in(error: BaseException) -> str:
    """Returns the top-level package whose code raised the error."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return str(frames[-1][0].f_globals.get("__name__", "")).partition(".")[0] if frames else ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses warnings, which come from PyTorch and not from the operator."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
