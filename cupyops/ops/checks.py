"""What operators refuse in the same words."""

from typing import Any

from cupyops.arrays import LIBRARIES
from cupyops.dtypes import FLOATS
from cupyops.errors import expected

__all__ = ["check_floating", "check_like", "check_shapes"]


def check_floating(where: str, name: str, dtype: str, must: str = "have dtype") -> None:
    """Refuses a dtype that is none of float16, bfloat16, float32 and float64.

    Args:
        must: what is said of ``name``: an array has a dtype, an argument may be one.

    Raises:
        TypeError: so it is.
    """
    if dtype not in FLOATS:
        raise TypeError(expected(where, name, f"{must} {' or '.join(FLOATS)}", dtype))


def check_like(where: str, like: Any, **wanted: tuple[Any, tuple[int, ...]]) -> None:
    """Refuses arrays that are not of the shapes, and the dtype of another, that they have to be.

    Args:
        like: the other.
        wanted: by name, an array or None, and its shape.

    Raises:
        ValueError: another shape.
        TypeError: another dtype.
    """
    dtype = like.dtype  # once: it costs a tensor a fraction of a microsecond
    for name, (array, shape) in wanted.items():
        if array is None:
            continue
        if array.shape != shape:
            raise ValueError(expected(where, name, f"have shape {tuple(shape)}", tuple(array.shape)))
        if array.dtype != dtype:
            library = LIBRARIES[type(like)]
            raise TypeError(expected(where, name, f"have dtype {library.dtype_name(like)}", library.dtype_name(array)))


def check_shapes(where: str, **wanted: tuple[Any, tuple[int, ...]]) -> None:
    """Refuses arrays that are not of the shapes that they have to be.

    Args:
        wanted: by name, an array or None, and its shape.

    Raises:
        ValueError: another shape.
    """
    for name, (array, shape) in wanted.items():
        if array is not None and array.shape != shape:
            raise ValueError(expected(where, name, f"have shape {tuple(shape)}", tuple(array.shape)))
