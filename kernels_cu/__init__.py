"""Loads the CUDA C++ texts and headers of this package.

There is one ``.cu`` text per kernel family. The headers of a single family lie beside its text. ``shared/`` has the
headers that several texts include. ``hardware/`` has only PTX: one function per instruction. ``former/`` has headers
under the names of the previous release.

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
    """A ``.cu`` or ``.cuh`` text with the name of its file, which compiler messages show."""

    __slots__ = ("filename",)
    filename: str

    def __new__(cls, text: str, filename: str) -> "Text":
        self = super().__new__(cls, text)
        self.filename = filename
        return self


@cache
def source(name: str) -> Text:
    """Returns the text of ``kernels_cu/<name>.cu``.

    Raises:
        ValueError: the file does not exist; the message lists the existing names.
    """
    if name not in names():
        raise ValueError(f"kernels_cu has no text named {name!r}; it has {', '.join(names())}")
    return Text(files(__name__).joinpath(f"{name}.cu").read_text(encoding="utf-8"), f"{name}.cu")


@cache
def names() -> tuple[str, ...]:
    """Returns the names of all ``.cu`` texts without the suffix, sorted."""
    return tuple(sorted(f.name[:-3] for f in files(__name__).iterdir() if f.name.endswith(".cu")))


@cache
def headers() -> dict[str, Text]:
    """Returns all headers by file name; the compiler replaces ``#include "<name>"`` in a text by the header."""
    return {name: text for folder in _FOLDERS for name, text in _headers_in(folder).items()}


@cache
def former_headers() -> frozenset[str]:
    """Returns the names of headers that were renamed; the first line of each gives the new name."""
    return frozenset(_headers_in("former"))


def _headers_in(folder: str) -> dict[str, Text]:
    found = (f for f in files(__name__).joinpath(folder).iterdir() if f.name.endswith(".cuh"))
    return {f.name: Text(f.read_text(encoding="utf-8"), f.name) for f in found}
