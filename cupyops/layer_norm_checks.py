"""What layer normalisation refuses, in the same words for a body and for a reference."""

import math
from collections.abc import Sequence
from typing import Any

from .arrays import LIBRARIES
from .dtypes import DTYPES, FLOATS
from .errors import expected

__all__ = ["check", "check_backward", "check_residual", "check_shape"]

MOST_COLUMNS = 2**31 - 2**16  # what the texts count columns in, less a slice


def check_shape(x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None) -> None:
    """Refuses shapes in the words that PyTorch's users know.

    Raises:
        RuntimeError: an empty normalized_shape, or one that x, weight or bias do not have.
    """
    shape = list(normalized_shape)
    if not shape:
        raise RuntimeError(
            "layer_norm: Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
            "but got normalized_shape = []"
        )
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and list(parameter.shape) != shape:
            raise RuntimeError(
                f"layer_norm: Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(parameter.shape)} and normalized_shape = {shape}"
            )
    if len(x.shape) < len(shape) or list(x.shape[len(x.shape) - len(shape) :]) != shape:
        wanted = ", ".join(["*", *map(str, shape)])
        raise RuntimeError(
            f"layer_norm: Given normalized_shape={shape}, expected input with shape [{wanted}], but got input of size"
            f"{list(x.shape)}"
        )


def check(
    x: Any, dtype: str, weight: Any, bias: Any, normalized_shape: Sequence[int], result: str | None = None
) -> None:
    """Refuses what no lane takes: the same words for a body and for a reference.

    Args:
        dtype: of the sum that is normalised.
        result: that is asked for, or None.

    Raises:
        RuntimeError: shapes as :func:`check_shape`; a weight or bias of another dtype than x, unless it is float32 beside
            x of 16 bits, or the two of different dtypes.
        TypeError: x or the result is not floating.
        ValueError: a row of more than 2^31 - 2^16 elements.
    """
    check_shape(x, normalized_shape, weight, bias)
    if dtype not in FLOATS:
        raise TypeError(expected("layer_norm", "x", f"have dtype {' or '.join(FLOATS)}", dtype))
    if result is not None and result not in FLOATS:
        raise TypeError(expected("layer_norm", "dtype", f"be {' or '.join(FLOATS)}", result))
    allowed = (dtype, "float32") if DTYPES[dtype].itemsize == 2 else (dtype,)
    library = LIBRARIES[type(x)]
    names = [library.dtype_name(p) for p in (weight, bias) if p is not None]
    for name in names:
        if name not in allowed or name != names[0]:
            raise RuntimeError(
                f"layer_norm: expected scalar type {names[0] if name in allowed else dtype} but found {name}: `weight` and "
                f"`bias` must have dtype {' or '.join(allowed)}, both the same"
            )
    if math.prod(normalized_shape) > MOST_COLUMNS:
        raise ValueError(
            expected("layer_norm", "normalized_shape", f"hold at most {MOST_COLUMNS} elements", list(normalized_shape))
        )


def check_residual(x: Any, residual: Any) -> None:
    """Refuses a residual of another shape.

    Raises:
        ValueError: so it is.
    """
    if x.shape != residual.shape:
        raise ValueError(
            expected("add_layer_norm", "residual", f"have x's shape {tuple(x.shape)}", tuple(residual.shape))
        )


def check_backward(
    grad_y: Any, x: Any, dtype: str, stats: Any, weight: Any, grad_sum: Any, normalized_shape: Sequence[int]
) -> None:
    """Refuses operands of a gradient that do not belong together.

    Raises:
        ValueError: shapes that are not x's, or not those of its statistics; else as :func:`check`.
        TypeError: a grad_y that is not floating, or a grad_sum of another dtype than x.
    """
    check(x, dtype, weight, None, normalized_shape)
    library = LIBRARIES[type(x)]
    for name, gradient, allowed in (("grad_y", grad_y, FLOATS), ("grad_sum", grad_sum, (dtype,))):
        if gradient is None:
            continue
        if gradient.shape != x.shape:
            raise ValueError(
                expected("layer_norm_backward", name, f"have x's shape {tuple(x.shape)}", tuple(gradient.shape))
            )
        if (found := library.dtype_name(gradient)) not in allowed:
            raise TypeError(expected("layer_norm_backward", name, f"have dtype {' or '.join(allowed)}", found))
    wanted = (2, *x.shape[: len(x.shape) - len(normalized_shape)], *(1,) * len(normalized_shape))
    if tuple(stats.shape) != wanted:
        raise ValueError(expected("layer_norm_backward", "stats", f"have shape {wanted}", tuple(stats.shape)))
