"""Exceptions, and the form of their messages: operator, argument, expected value, given value."""

__all__ = ["CompileError", "ExportError", "LaunchError", "MissingDependencyError", "TuningError"]


class CompileError(RuntimeError):
    """NVRTC rejected a text.

    The message shows the kernel, the dtypes, the architecture, the options and the source lines.
    """


class ExportError(RuntimeError):
    """A model has no ONNX form, or the exported file does not reproduce the model's results; or a package cannot hold an
    operator.

    A failed export leaves no file.
    """


class LaunchError(RuntimeError):
    """The driver rejected or aborted a launch. The message shows the kernel, the geometry and the arguments."""


class MissingDependencyError(RuntimeError):
    """A required package or program is not installed. The message ends with the command that installs it."""


class TuningError(RuntimeError):
    """Two choices of a tuned kernel give different results.

    The message names both choices and the first element that differs.
    """


def expected(where: str, argument: str, wanted: str, got: object) -> str:
    """Returns the message for a wrong argument: ``gelu: `x` must be a floating array, got int32``."""
    return f"{where}: `{argument}` must {wanted}, got {got}"


def nearest(word: object, choices: object) -> str:
    """Returns ``; did you mean 'tanh'?`` with the choice closest to the word, or ``""`` if no choice is close."""
    from difflib import get_close_matches

    close = get_close_matches(str(word), [str(c) for c in choices], n=1)  # type: ignore[attr-defined]
    return f"; did you mean {close[0]!r}?" if close else ""
