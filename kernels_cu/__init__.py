"""CUDA C++ text and nothing else: one ``.cu`` per operator, shared device headers (``.cuh``), and this loader.

>>> "__global__" in source("gelu")
True
>>> {"elementwise.cuh", "rows.cuh", "scalar.cuh"} <= set(headers())
True
"""

from functools import cache
from importlib.resources import files

__all__ = ["Text", "headers", "names", "source"]


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
    """Shared device headers by file name, to be spliced into a text where it says ``#include "<name>"``."""
    found = (f for f in files(__name__).iterdir() if f.name.endswith(".cuh"))
    return {f.name: Text(f.read_text(encoding="utf-8"), f.name) for f in found}
