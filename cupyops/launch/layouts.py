"""The layouts of structs, unions and classes, as the compiler has them (:mod:`cupyops.compile.ask`).

The question names every word of the text that may be a data member. The compiler reports the members of each class with
their offsets, types and extents, and whether the class is an instance of a template, has bases, or has no name. A class
with a bit field or a reference has no layout here, since their offsets cannot be asked for.
"""

from collections.abc import Callable, Sequence
from typing import Any

from cupyops.arrays import numpy_dtype
from cupyops.compile.ask import Field

from .library_types import Element, library_type
from .typenames import c_dtype

__all__ = ["of_library", "record_of"]


def record_of(fields: Sequence[Field], size: int, inner: Callable[[Field], Any]) -> Any:
    """Returns the NumPy dtype of a class, or None if it has no fields or a field has no dtype.

    Args:
        fields: the data members, in the order of the text.
        size: of the class in bytes.
        inner: returns the dtype of a member that is of a class, or None.
    """
    import numpy

    names, formats, offsets = [], [], []
    for field in sorted(fields, key=lambda field: field.offset):
        if field.offset < 0:
            return None
        dtype = inner(field) if field.kind == "s" else _dtype(field)
        if field.kind == "o":
            continue  # no data
        if dtype is None:
            return None
        try:
            formats.append(numpy.dtype((dtype, field.extents)) if field.extents else dtype)
        except ValueError:
            return None  # NumPy has no dtype of so many bytes
        names.append(field.name)
        offsets.append(field.offset)
    layout: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    return numpy.dtype(layout) if names else None


def _dtype(field: Field) -> Any:
    """Returns the dtype of a number or of an address, or None. The dtype of an address also records the dtype of the
    array there, and whether kernels only read it."""
    import numpy

    pointed, star, qualifiers = field.element.rpartition("*")
    if "(" in field.element:  # a pointer to a function
        return numpy.dtype("u8") if field.size == 8 else None
    if star and {"const", "volatile", "restrict", "__restrict", "__restrict__"}.issuperset(qualifiers.split()):
        words = pointed.split()
        plain = " ".join(word for word in words if word not in ("const", "volatile"))
        return numpy.dtype("u8", metadata={"pointer": (c_dtype(plain) or "", "const" in words)})
    dtype = c_dtype(" ".join(word for word in field.element.split() if word not in ("const", "volatile")))
    return None if dtype is None else numpy_dtype(dtype)


def of_library(spelling: str) -> Any:
    """Returns the dtype of a class of a library within a struct, or None: an array of its numbers."""
    import numpy

    element: Element | None = library_type(spelling)
    if element is None or element.record is not None:
        return None if element is None else element.record
    return numpy.dtype((numpy_dtype(element.dtype), (element.width,)))
