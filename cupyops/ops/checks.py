"""Checks of dtypes and shapes that the operators share."""

from typing import Any

from cupyops.arrays import LIBRARIES
from cupyops.dtypes import FLOATS
from cupyops.errors import expected

__all__ = ["check_floating", "check_like", "check_shapes"]


def check_floating(where: str, name: str, dtype: str, must: str = "have dtype") -> None:
    """Raises unless ``dtype`` is float16, bfloat16, float32 or float64.

    Args:
        where: the operator's name, for the message.
        name: the argument's name, for the message.
        dtype: the dtype's name.
        must: the verb of the message: "have dtype" for an array, "be" for an argument that is a dtype.

    Raises:
        TypeError: the dtype is not floating.
    """
    if dtype not in FLOATS:
        raise TypeError(expected(where, name, f"{must} {' or '.join(FLOATS)}", dtype))


def check_like(where: str, like: Any, **wanted: tuple[Any, tuple[int, ...]]) -> None:
    """Raises unless every array has its expected shape and the dtype of ``like``.

    Args:
        where: the operator's name, for the message.
        like: the array with the wanted dtype.
        wanted: by name, an array or None, and the array's wanted shape.

    Raises:
        ValueError: an array has another shape.
        TypeError: an array has another dtype.
    """
    dtype = like.dtype  # read once: reading a tensor's dtype takes a fraction of a microsecond
    for name, (array, shape) in wanted.items():
        if array is None:
            continue
        if array.shape != shape:
            raise ValueError(expected(where, name, f"have shape {tuple(shape)}", tuple(array.shape)))
        if array.dtype != dtype:
            library = LIBRARIES[type(like)]
            raise TypeError(expected(where, name, f"have dtype {library.dtype_name(like)}", library.dtype_name(array)))


def check_shapes(where: str, **wanted: tuple[Any, tuple[int, ...]]) -> None:
    """Raises unless every array has its expected shape.

    Args:
        where: the operator's name, for the message.
        wanted: by name, an array or None, and the array's wanted shape.

    Raises:
        ValueError: an array has another shape.
    """
    for name, (array, shape) in wanted.items():
        if array is not None and array.shape != shape:
            raise ValueError(expected(where, name, f"have shape {tuple(shape)}", tuple(array.shape)))
