"""Loads the CUDA C++ sources of the shipped operators that are not programs.

Each kernel family has a ``.cu`` text, and the headers of that family alone lie beside the text. ``shared/`` has the
headers that several texts include. ``hardware/`` has PTX and nothing else: a function for each instruction.

>>> "__global__" in source("gelu")
True
>>> {"elementwise.cuh", "rows.cuh", "scalar.cuh"} <= set(headers())
True
"""

from functools import cache
from importlib.resources import files

__all__ = ["Text", "headers", "names", "source"]

# A text includes a header by its file name alone, wherever the header lies.
_FOLDERS = (".", "shared", "hardware")


class Text(str):
    """A CUDA source as a string, with its file's name for compiler messages."""

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
        ValueError: no text has the name; the message lists the names of all texts.
    """
    if name not in names():
        raise ValueError(f"kernels_cu has no text named {name!r}; it has {', '.join(names())}")
    return Text(files(__name__).joinpath(f"{name}.cu").read_text(encoding="utf-8"), f"{name}.cu")


@cache
def names() -> tuple[str, ...]:
    """Returns the file names of all ``.cu`` texts without their suffix, sorted."""
    return tuple(sorted(f.name[:-3] for f in files(__name__).iterdir() if f.name.endswith(".cu")))


@cache
def headers() -> dict[str, Text]:
    """Returns all device headers by file name; a header replaces its ``#include "<name>"`` line in a text."""
    return {name: text for folder in _FOLDERS for name, text in _headers_in(folder).items()}


def _headers_in(folder: str) -> dict[str, Text]:
    found = (f for f in files(__name__).joinpath(folder).iterdir() if f.name.endswith(".cuh"))
    return {f.name: Text(f.read_text(encoding="utf-8"), f.name) for f in found}
