"""CUDA C++ and its loader.

One ``.cu`` text per kernel family, and beside it the headers of that family alone. ``shared/`` has the headers that several
texts include. ``hardware/`` has PTX and nothing else: a function for each instruction. ``former/`` has headers by the names that
they had in the release before.

>>> "__global__" in source("gelu")
True
>>> {"elementwise.cuh", "rows.cuh", "scalar.cuh"} <= set(headers())
True
"""

from functools import cache
from importlib.resources import files

__all__ = ["Text", "former_headers", "headers", "names", "source"]

# A text includes a header by its file name alone, wherever the header lies.
_FOLDERS = (".", "shared", "hardware", "former")


class Text(str):
    """A ``.cu`` text that knows the file it came from, so that compiler messages can name it."""

    __slots__ = ("filename",)
    filename: str

    def __new__(cls, text: str, filename: str) -> "Text":
        self = super().__new__(cls, text)
        self.filename = filename
        return self


@cache
def source(name: str) -> Text:
    """The text of ``kernels_cu/<name>.cu``.

    Raises:
        ValueError: there is no such file; the message lists the names there are.
    """
    if name not in names():
        raise ValueError(f"kernels_cu has no text named {name!r}; it has {', '.join(names())}")
    return Text(files(__name__).joinpath(f"{name}.cu").read_text(encoding="utf-8"), f"{name}.cu")


@cache
def names() -> tuple[str, ...]:
    """The stems of all ``.cu`` texts, sorted."""
    return tuple(sorted(f.name[:-3] for f in files(__name__).iterdir() if f.name.endswith(".cu")))


@cache
def headers() -> dict[str, Text]:
    """All device headers by file name, to be spliced into a text where it says ``#include "<name>"``."""
    return {name: text for folder in _FOLDERS for name, text in _headers_in(folder).items()}


@cache
def former_headers() -> frozenset[str]:
    """Names of headers that have another name now; their first line says which."""
    return frozenset(_headers_in("former"))


def _headers_in(folder: str) -> dict[str, Text]:
    found = (f for f in files(__name__).joinpath(folder).iterdir() if f.name.endswith(".cuh"))
    return {f.name: Text(f.read_text(encoding="utf-8"), f.name) for f in found}
