"""What operators on rows refuse, in the words that PyTorch's users know from its normalisations."""

import math
from collections.abc import Sequence
from typing import Any

from cupyops.arrays import library_of
from cupyops.dtypes import DTYPES
from cupyops.errors import expected

__all__ = ["Shape", "as_shape", "check_normalized_shape", "check_parameters", "stats_shape"]

Shape = Sequence[int]  # of the last dimensions, which are a row

MOST_COLUMNS = 2**31 - 2**16  # what rows.cuh counts columns in, less a slice


def as_shape(normalized_shape: int | Shape) -> tuple[int, ...]:
    """The last dimensions as a tuple, where an int is one dimension."""
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


def stats_shape(x: Any, normalized_shape: Shape, count: int = 2) -> tuple[int, ...]:
    """The shape of so many statistics of each row: 1 in place of each dimension that belongs to the row."""
    return (count, *x.shape[: len(x.shape) - len(normalized_shape)], *(1,) * len(normalized_shape))


def check_normalized_shape(where: str, x: Any, normalized_shape: Shape, **parameters: Any) -> None:
    """Refuses rows, which are the last dimensions of x, that x or a parameter does not have.

    Args:
        parameters: by name, arrays of one row, or None.

    Raises:
        RuntimeError: an empty normalized_shape, or one that x or a parameter does not have.
        ValueError: a row of more than 2^31 - 2^16 elements.
    """
    shape = list(normalized_shape)
    if not shape:
        raise RuntimeError(
            f"{where}: Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
            "but got normalized_shape = []"
        )
    for name, parameter in parameters.items():
        if parameter is not None and list(parameter.shape) != shape:
            raise RuntimeError(
                f"{where}: Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(parameter.shape)} and normalized_shape = {shape}"
            )
    if len(x.shape) < len(shape) or list(x.shape[len(x.shape) - len(shape) :]) != shape:
        wanted = ", ".join(["*", *map(str, shape)])
        raise RuntimeError(
            f"{where}: Given normalized_shape={shape}, expected input with shape [{wanted}], but got input of size"
            f"{list(x.shape)}"
        )
    if math.prod(shape) > MOST_COLUMNS:
        raise ValueError(expected(where, "normalized_shape", f"hold at most {MOST_COLUMNS} elements", shape))


def check_parameters(where: str, dtype: str, **parameters: Any) -> None:
    """Refuses parameters of another dtype than the rows, unless it is float32 beside rows of 16 bits, and parameters of different
    dtypes.

    Args:
        dtype: of the rows.
        parameters: by name, arrays or None.

    Raises:
        RuntimeError: so it is.
    """
    allowed = (dtype, "float32") if DTYPES[dtype].itemsize == 2 else (dtype,)
    found = [library_of(p).dtype_name(p) for p in parameters.values() if p is not None]
    for name in found:
        if name not in allowed or name != found[0]:
            raise RuntimeError(
                f"{where}: expected scalar type {found[0] if name in allowed else dtype} but found {name}: "
                f"{' and '.join(f'`{p}`' for p in parameters)} must have dtype {' or '.join(allowed)}, all the same"
            )
