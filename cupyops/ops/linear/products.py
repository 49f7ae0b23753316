"""Operators that begin with a product x·Wᵀ + b of the array library: their forwards, gradients and checks.

:func:`product_body` returns the forward of an operator. :func:`gradients` computes the gradients of x and W. The
operator itself computes the gradient of the bias (:mod:`cupyops.tiling.columns`). The checks raise in PyTorch's words
and name the operator.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cupyops.arrays import LIBRARIES
from cupyops.dtypes import FLOATS
from cupyops.errors import expected
from cupyops.ops.checks import check_floating

from .odd import is_odd, odd_gradients

__all__ = [
    "Apart",
    "check_gradients",
    "check_product",
    "gradients",
    "nothing",
    "product_apart",
    "product_body",
    "rows_of",
]


def product_body(
    where: str, ours: Callable[..., Any] | None = None, few: int = 0, otherwise: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns the forward of an operator that is a product or begins with one: ``body(x, weight, bias, *more)``.

    The function computes y (..., N) from a floating x (..., K), weight (N, K), and bias (N) or None. The function
    raises the errors of :func:`check_product`.

    Args:
        where: the operator's name, for messages.
        ours: ``ours(library, x, weight, bias, size, dtype, *more)`` with ``size`` (N, K), the shape of weight, and x's
            dtype. The function is called first if x or weight has at most ``few`` rows, since libraries are slow for
            such products. The function returns the result, or None for a product that ``otherwise`` computes. Fake
            tensors are not passed to the function.
        few: the most rows of x or weight for which ``ours`` is called.
        otherwise: ``otherwise(library, x, weight, bias, size, dtype, *more)``, called for all other products; by
            default ``library.linear(x, weight, bias)``. The function raises for operands that do not fit each other, or
            calls ``library.linear``, which raises.

    The operands are separate arguments: a named tuple of the operands would add 0.3 µs to the host time of a call.
    """

    def body(x: Any, weight: Any, bias: Any, *more: Any) -> Any:
        library = LIBRARIES[type(x)]
        try:
            n, k = size = weight.shape  # if weight is not a matrix, check_product replaces the ValueError
            dtype = library.dtype_name(x)
            # A library may broadcast such a bias, or take such dtypes. The operator does not.
            if (bias is not None and (bias.shape != (n,) or bias.dtype != x.dtype)) or dtype not in FLOATS:
                check_product(where, x, weight, bias)
            if ours is not None and not library.is_fake(x) and (n <= few or library.size(x) <= few * k):
                y = ours(library, x, weight, bias, size, dtype, *more)
                if y is not None:
                    return y
            if otherwise is not None:
                return otherwise(library, x, weight, bias, size, dtype, *more)
            return library.linear(x, weight, bias)
        except (RuntimeError, ValueError):
            check_product(where, x, weight, bias)
            raise

    return body


class Apart(NamedTuple):
    """A range of products for which a product without the bias and a pass that adds the bias are faster than one
    kernel.

    Attributes:
        least_k: the fewest columns of x.
        least, most: the fewest and the most elements of the product.
    """

    least_k: int
    least: int
    most: int

    def takes(self, elements: int, k: int) -> bool:
        return k >= self.least_k and self.least <= elements <= self.most


# The fewest columns and rows of x of a product that is in a table. With fewer rows, the library's product with a bias
# is as fast as its product without a bias.
LEAST_APART_K, LEAST_APART_ROWS = 1024, 16


def product_apart(
    library: Any,
    x: Any,
    weight: Any,
    bias: Any,
    size: Sequence[int],
    dtype: str,
    table: Mapping[bool, Sequence[Apart]],
) -> Any:
    """Returns a contiguous x·Wᵀ (..., N), to which the caller adds the bias in a pass.

    Returns None if a product with the bias is as fast, or if the operands do not fit each other. The library's product
    with the bias then raises.

    Args:
        library: the array library of the arrays.
        x: (..., K).
        weight: (N, K).
        bias: (N), or None.
        size: (N, K), the shape of weight.
        dtype: the dtype of x.
        table: ranges of products in float32, by whether the library multiplies in TF32.
    """
    if dtype != "float32" or bias is None or size[1] < LEAST_APART_K or library.is_fake(x):
        return None
    n, k = size
    rows = library.size(x) // k
    elements = rows * n
    if rows < LEAST_APART_ROWS or not any(line.takes(elements, k) for line in table[library.tf32()]):
        return None
    if library.device_index(bias) != library.device_index(x):
        return None
    return library.contiguous(library.linear(x, weight, None))


def check_product(where: str, x: Any, weight: Any, bias: Any) -> None:
    """Raises unless the operands of a product fit each other.

    Raises:
        RuntimeError: ranks, shapes or dtypes do not fit each other.
        TypeError: x is not floating.
        ValueError: the arrays are on different devices.
    """
    library = LIBRARIES[type(x)]
    dtype = library.dtype_name(x)
    check_floating(where, "x", dtype)
    if len(x.shape) == 0 or len(weight.shape) != 2:
        raise RuntimeError(
            f"{where}: both arguments to linear need to be at least 1D, and `weight` to have shape (N, K), but they are "
            f"{len(x.shape)}D and {len(weight.shape)}D"
        )
    n, k = weight.shape
    if x.shape[-1] != k:
        rows = math.prod(x.shape[:-1])
        raise RuntimeError(
            f"{where}: mat1 and mat2 shapes cannot be multiplied ({rows}x{x.shape[-1]} and {k}x{n}): `x` must have "
            f"{k} columns, as `weight` of shape {tuple(weight.shape)} has, got shape {tuple(x.shape)}"
        )
    if bias is not None and tuple(bias.shape) != (n,):
        raise RuntimeError(
            f"{where}: `bias` must have shape ({n},), as many elements as `weight` has rows, got {tuple(bias.shape)}"
        )
    for name, other in (("weight", weight), ("bias", bias)):
        if other is None:
            continue
        if library.dtype_name(other) != dtype:
            raise RuntimeError(
                f"{where}: mat1 and mat2 must have the same dtype: `{name}` must have dtype {dtype}, as `x` has, got "
                f"{library.dtype_name(other)}"
            )
        if library.device_index(other) != library.device_index(x):
            wanted = f"be on the device of `x`: Expected all tensors to be on the same device ({library.info(x)})"
            raise ValueError(expected(where, name, wanted, library.info(other)))


def rows_of(x: Any) -> Any:
    """Returns the array as a matrix: all leading dimensions become rows."""
    shape = x.shape  # read once, for host time
    return x if len(shape) == 2 else x.reshape((math.prod(shape[:-1]), shape[-1]))


def gradients(library: Any, grad: Any, batch: Sequence[int], x: Any, weight: Any) -> tuple[Any, Any]:
    """Returns dL/dx = dL/dy·W and dL/dW = dL/dyᵀ·x.

    Args:
        library: the array library of the arrays.
        grad: dL/dy as a matrix (M, N), whose rows are all leading dimensions.
        batch: the leading dimensions of x.
        x: (..., K) for the gradient of weight, else None.
        weight: (N, K) for the gradient of x, else None.

    Returns:
        (dL/dx, dL/dW). An unwanted gradient is an array without elements.
    """
    rows = None if x is None else rows_of(x)
    grad_x, grad_weight = None, None
    other = rows if weight is None else weight
    if other is not None:
        if is_odd(library.dtype_name(grad), grad.shape[1], other.shape[1]):
            grad_x, grad_weight = odd_gradients(library, grad, rows, weight)
        else:
            grad_x = None if weight is None else library.matmul(grad, weight)
            grad_weight = None if rows is None else library.matmul(grad.T, rows)
    if grad_x is not None and len(batch) != 1:
        grad_x = grad_x.reshape((*batch, grad_x.shape[1]))
    return (
        nothing(library, grad) if grad_x is None else grad_x,
        nothing(library, grad) if grad_weight is None else grad_weight,
    )


def nothing(library: Any, like: Any) -> Any:
    """Returns an array without elements, the value of an unwanted gradient."""
    return library.empty((0,), library.dtype_name(like), like)


def check_gradients(where: str, grad_y: Any, x: Any, weight: Any) -> None:
    """Raises unless the operands of a gradient fit each other; x and weight may be None.

    Raises:
        ValueError: the shape of x or weight does not fit grad_y.
        TypeError: the dtype of x or weight is not grad_y's.
    """
    shape, dtype = (
        grad_y.shape,
        grad_y.dtype,
    )  # read once: reading a tensor's attribute takes a fraction of a microsecond
    if not shape:
        raise ValueError(expected(where, "grad_y", "have shape (..., N)", "()"))
    if weight is not None and (len(rows := weight.shape) != 2 or rows[0] != shape[-1]):
        wanted = f"have shape ({shape[-1]}, K), a row for each column of `grad_y`"
        raise ValueError(expected(where, "weight", wanted, tuple(weight.shape)))
    if x is not None and x.shape[:-1] != shape[:-1]:
        wanted = f"have shape ({', '.join(map(str, (*shape[:-1], 'K')))}), a row for each of `grad_y`"
        raise ValueError(expected(where, "x", wanted, tuple(x.shape)))
    for name, other in (("x", x), ("weight", weight)):
        if other is not None and other.dtype != dtype:
            raise TypeError(expected(where, name, f"have dtype {dtype}, as `grad_y` has", other.dtype))
