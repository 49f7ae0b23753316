"""What can go wrong, each with a sentence that names operator, argument, expected and got."""

__all__ = ["CompileError", "ExportError", "LaunchError", "MissingDependencyError", "TuningError"]


class CompileError(RuntimeError):
    """NVRTC rejected a text. The message shows kernel, dtypes, architecture, options and the source around the line."""


class ExportError(RuntimeError):
    """A model has no ONNX form, or the file does not give the model's results. No file is left."""


class LaunchError(RuntimeError):
    """The driver rejected or aborted a launch. The message shows kernel, geometry and arguments."""


class MissingDependencyError(RuntimeError):
    """A package or program that is needed here is absent. The message ends with the line that installs it."""


class TuningError(RuntimeError):
    """Choices of a tuned kernel give different results. The message names both, and the first element that differs."""


def expected(where: str, argument: str, wanted: str, got: object) -> str:
    """The one form of message: ``gelu: `x` must be a floating array, got int32``."""
    return f"{where}: `{argument}` must {wanted}, got {got}"


def nearest(word: object, choices: object) -> str:
    """``; did you mean 'tanh'?`` where one of the choices is close to the word, else nothing."""
    from difflib import get_close_matches

    close = get_close_matches(str(word), [str(c) for c in choices], n=1)  # type: ignore[attr-defined]
    return f"; did you mean {close[0]!r}?" if close else ""
