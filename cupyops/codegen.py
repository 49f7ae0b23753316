"""Compiles generated Python functions. All generated Python of this package goes through :func:`write`.

A launch takes the driver about 2 microseconds, and a Python loop over the arguments takes as long again. A function
generated for one signature has no loop over the arguments. The docstring of each use of :func:`write` states the gain
over a closure.

:mod:`linecache` holds the text of each function: a traceback shows the lines, and ``inspect.getsource`` returns the
text. :func:`source_of` returns the text, too.
"""

import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["source_of", "write"]


def write(what: str, name: str, lines: Sequence[str] | str, scope: Mapping[str, Any]) -> Callable[..., Any]:
    """Compiles the text of a function and returns the function.

    Args:
        what: description of the function, which becomes part of its file name: ``"launch of gelu_forward"``.
        name: the name of the function in the text.
        lines: the text.
        scope: the function's globals. A dict is used itself, not copied, so the caller can replace a global later.

    >>> double = write("double", "double", ["def double(x):", "    return 2 * x"], {})
    >>> double(21)
    42
    >>> double.__code__.co_filename
    '<cupyops generated: double>'
    """
    text = lines if isinstance(lines, str) else "\n".join(lines)
    text = f"{text}\n"
    scope = scope if isinstance(scope, dict) else dict(scope)
    # The scope gets no __name__: a tracer would look globals up in the module of that name.
    exec(compile(text, _filed(what, text), "exec"), scope)
    function: Callable[..., Any] = scope[name]
    return function


def source_of(function: Callable[..., Any]) -> str:
    """Returns the text of a function that :func:`write` compiled.

    Raises:
        ValueError: :func:`write` did not compile the function.

    >>> print(source_of(write("half", "half", ["def half(x):", "    return x / 2"], {})))
    def half(x):
        return x / 2
    """
    code = getattr(function, "__code__", None)
    filename = getattr(code, "co_filename", "")
    if not filename.startswith("<cupyops generated: "):
        raise ValueError(f"source_of: {function!r} was not written by cupyops; inspect.getsource knows other functions")
    return "".join(linecache.getlines(filename)).rstrip("\n")


def _filed(what: str, text: str) -> str:
    """Adds the text to linecache and returns its file name. Equal texts of one description share an entry, so
    generating a function again takes no further memory."""
    number = 1
    while True:
        filename = f"<cupyops generated: {what}{f' #{number}' if number > 1 else ''}>"
        # checkcache() keeps an entry whose modification time is None.
        entry = (len(text), None, text.splitlines(keepends=True), filename)
        if linecache.cache.setdefault(filename, entry)[2] == entry[2]:  # type: ignore[misc]
            return filename
        number += 1
