"""Checks of operators on rows. The messages have the words of PyTorch's normalisations."""

import math
from collections.abc import Sequence
from typing import Any

from cupyops.arrays import LIBRARIES, library_of
from cupyops.dtypes import DTYPES
from cupyops.errors import expected
from cupyops.ops.checks import check_floating, check_like, check_shapes
from cupyops.programs.program_config import MOST_COLUMNS

__all__ = [
    "Shape",
    "as_shape",
    "check",
    "check_backward",
    "check_normalized_shape",
    "check_parameters",
    "check_tangent",
    "stats_shape",
]

Shape = Sequence[int]  # the sizes of the last dimensions, which form a row


def as_shape(normalized_shape: int | Shape) -> tuple[int, ...]:
    """Returns ``normalized_shape`` as a tuple; an int is the size of one dimension.

    Raises:
        TypeError: a size is not an integer.
    """
    if isinstance(normalized_shape, int):  # also a symbol while Dynamo traces, which cannot ask it for attributes
        return (normalized_shape,)
    shape = tuple(normalized_shape)
    if hasattr(normalized_shape, "dtype") or any(isinstance(n, float) for n in shape):
        raise TypeError(f"normalized_shape must be a tuple of ints, got {shape}")
    return shape


def stats_shape(x: Any, normalized_shape: Shape) -> tuple[int, ...]:
    """Returns the shape of the two statistics of each row of x: (2, *batch), then 1 for each dimension of a row."""
    return (2, *x.shape[: len(x.shape) - len(normalized_shape)], *(1,) * len(normalized_shape))


def check_normalized_shape(where: str, x: Any, normalized_shape: Shape, **parameters: Any) -> None:
    """Raises unless ``normalized_shape`` is the shape of x's last dimensions and of every parameter.

    Args:
        where: the operator's name, for messages.
        x: the array of rows.
        normalized_shape: the shape of a row.
        parameters: by name, an array with one row's shape, or None.

    Raises:
        RuntimeError: ``normalized_shape`` is empty, or x or a parameter has another shape.
        ValueError: a row has more than 2^31 - 2^16 elements.
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
    """Raises unless all parameters have one dtype: the dtype of the rows, or float32 for rows of 16-bit elements.

    Args:
        where: the operator's name, for messages.
        dtype: the dtype of the rows.
        parameters: by name, an array or None.

    Raises:
        RuntimeError: a parameter has a dtype that is not allowed, or the parameters have different dtypes.
    """
    allowed = (dtype, "float32") if DTYPES[dtype].itemsize == 2 else (dtype,)
    found = [library_of(p).dtype_name(p) for p in parameters.values() if p is not None]
    for name in found:
        if name not in allowed or name != found[0]:
            raise RuntimeError(
                f"{where}: expected scalar type {found[0] if name in allowed else dtype} but found {name}: "
                f"{' and '.join(f'`{p}`' for p in parameters)} must have dtype {' or '.join(allowed)}, all the same"
            )


def check(x: Any, dtype: str, weight: Any, bias: Any, normalized_shape: Shape, result: str | None = None) -> None:
    """Raises unless layer normalisation takes the operands. The operators and their PyTorch references share the check.

    Args:
        x: the operand.
        dtype: the dtype of x, or of the sum x + residual.
        weight, bias: the parameters; each may be None.
        normalized_shape: the shape of a row.
        result: the wanted dtype of y, or None.

    Raises:
        RuntimeError: a shape is not ``normalized_shape``, in PyTorch's words; the dtype of weight or bias is neither
            ``dtype`` nor, for a 16-bit ``dtype``, float32; or the dtypes of weight and bias differ.
        TypeError: ``dtype`` or ``result`` is not floating.
        ValueError: a row has more than 2^31 - 2^16 elements.
    """
    check_normalized_shape("layer_norm", x, normalized_shape, weight=weight, bias=bias)
    check_floating("layer_norm", "x", dtype)
    check_floating("layer_norm", "dtype", result or dtype, "be")
    check_parameters("layer_norm", dtype, weight=weight, bias=bias)


def check_backward(grad_y: Any, x: Any, stats: Any, weight: Any, grad_sum: Any, normalized_shape: Shape) -> None:
    """Raises unless the gradient of layer normalisation takes the operands.

    Raises:
        ValueError: grad_y or grad_sum has another shape than x, or stats does not have the shape of x's statistics.
        TypeError: grad_y is not floating, or grad_sum has another dtype than x.
        RuntimeError: as :func:`check`.
    """
    library = LIBRARIES[type(x)]
    check(x, library.dtype_name(x), weight, None, normalized_shape)
    check_shapes("layer_norm_backward", grad_y=(grad_y, x.shape), stats=(stats, stats_shape(x, normalized_shape)))
    check_floating("layer_norm_backward", "grad_y", library.dtype_name(grad_y))
    check_like("layer_norm_backward", x, grad_sum=(grad_sum, x.shape))


def check_tangent(
    tangent_x: Any, x: Any, stats: Any, weight: Any, tangent_weight: Any, tangent_bias: Any, shape: Shape, result: Any
) -> None:
    """Raises unless the tangent of layer normalisation takes the operands.

    Raises:
        ValueError: tangent_x has another shape than x, or stats does not have the shape of x's statistics.
        TypeError: tangent_x has another dtype than x.
        RuntimeError: as :func:`check`, also for the tangents of weight and bias.
    """
    where, dtype = "layer_norm_jvp", LIBRARIES[type(x)].dtype_name(x)
    check(x, dtype, weight, tangent_weight, shape, result)
    check(x, dtype, weight, tangent_bias, shape, result)
    check_parameters(where, dtype, tangent_weight=tangent_weight, tangent_bias=tangent_bias)
    check_shapes(where, stats=(stats, stats_shape(x, shape)))
    check_like(where, x, tangent_x=(tangent_x, x.shape))
