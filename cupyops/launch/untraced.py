"""Keeps torch.compile out of launches.

In a compiled function, Dynamo would trace a launch, and the imports of the first launch, which takes half a minute and
has no use. A launch breaks the graph instead, and with ``fullgraph=True`` Dynamo's error has :data:`REASON`. Two marks
are needed, and neither imports PyTorch:

- Attributes of the function, those of ``torch.compiler.disable``, whose wrapper would take a microsecond of each launch. Dynamo
  then does not trace the function as a part of a traced caller.
- A setting of the function's code object. Dynamo then does not trace the function by itself, nor what it calls, when the
  function is called after the break. PyTorch has the setting, so that :func:`hide` makes it when PyTorch is loaded, by a
  function that this package's ``__init__`` registers.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

__all__ = ["REASON", "hide", "register_setting", "untraced"]

REASON = (
    "a launch is no operation of PyTorch; have the body of a cupyops.torch.Operator launch the kernel, and call the Operator in "
    "the compiled function"
)
F = TypeVar("F", bound=Callable[..., Any])
_WAITING: list[CodeType] = []  # code objects without the setting
_SETTINGS: list[Callable[[], Callable[[CodeType], object] | None]] = []


def register_setting(find: Callable[[], Callable[[CodeType], object] | None]) -> None:
    """Registers a function that returns the function that makes the setting, or None while PyTorch is not loaded."""
    _SETTINGS.append(untraced(find))


def untraced(function: F) -> F:
    """Marks a function that launches, and returns it."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = REASON
    _WAITING.append(marked.__code__)
    return function


@untraced
def hide() -> None:
    """Makes the setting for all marked functions, if PyTorch is loaded."""
    if not _WAITING:
        return
    for find in _SETTINGS:
        if (make := find()) is not None:
            while _WAITING:
                make(_WAITING.pop())
