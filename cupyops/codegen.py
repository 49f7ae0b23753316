"""Functions written as text: the one place in which this package compiles Python that it has made.

A launch costs the driver about 2 microseconds, and a loop over arguments in Python costs as much. A function that is written for
one signature has no such loop. Each use states in its docstring what the written function gains over a closure.

The text of a function stands in :mod:`linecache`, so that a traceback shows its lines and ``inspect.getsource`` returns it.
:func:`source_of` prints it.
"""

import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["source_of", "write"]


def write(what: str, name: str, lines: Sequence[str] | str, scope: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns a function that is given as text.

    Args:
        what: what the function is, for its file name: ``"launch of gelu_forward"``.
        name: the name that the text gives it.
        lines: the text.
        scope: the function's globals. They are the mapping itself where it is a dict, so that the caller may replace one later.

    >>> double = write("double", "double", ["def double(x):", "    return 2 * x"], {})
    >>> double(21)
    42
    >>> double.__code__.co_filename
    '<cupyops generated: double>'
    """
    text = lines if isinstance(lines, str) else "\n".join(lines)
    text = f"{text}\n"
    scope = scope if isinstance(scope, dict) else dict(scope)
    # The scope gets no __name__: a tracer that finds one looks globals up in the module of that name.
    exec(compile(text, _filed(what, text), "exec"), scope)
    function: Callable[..., Any] = scope[name]
    return function


def source_of(function: Callable[..., Any]) -> str:
    """The text of a function that :func:`write` returned.

    Raises:
        ValueError: it is another function.

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
    """The file name under which the text now stands in linecache. Equal texts share one, so that a function that is written again
    takes no more memory."""
    number = 1
    while True:
        filename = f"<cupyops generated: {what}{f' #{number}' if number > 1 else ''}>"
        # Without a time of modification, checkcache() leaves the entry alone.
        entry = (len(text), None, text.splitlines(keepends=True), filename)
        if linecache.cache.setdefault(filename, entry)[2] == entry[2]:  # type: ignore[misc]
            return filename
        number += 1
