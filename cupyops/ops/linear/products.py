"""Products with a weight, x·Wᵀ + b, as operators leave them to their arrays' library, and their gradients.

An operator that does something with such a product has its body from :func:`product_body`, sums up the gradient of the bias as it
likes (:mod:`cupyops.tiling.columns`), and has :func:`gradients` make the other two. The checks say what is wrong in the words that
PyTorch's users know, and name the operator.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cupyops.arrays import LIBRARIES
from cupyops.dtypes import FLOATS
from cupyops.errors import expected
from cupyops.ops.checks import check_floating

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
    """The body of an operator that is such a product, or begins with it: ``body(x, weight, bias, *more)``.

    It is y (..., N) of x (..., K) floating, weight (N, K), and bias (N) or None; it raises what :func:`check_product` does.

    Args:
        where: the operator, in messages.
        ours: a function that is asked for products in which x or weight has few rows, which a library is not made for:
            ``ours(library, x, weight, bias, n, k, dtype, few_is_x, *more)``, with x's dtype. It gives the result, or None
            where the library is as fast or has to say what is wrong. Arrays without memory are the library's.
        few: so many.
        otherwise: what gives the result of all others, ``otherwise(library, x, weight, bias, n, k, dtype, *more)``, by
            ``library.linear`` unless it says what is wrong itself; by default that alone.
    """

    def body(x: Any, weight: Any, bias: Any, *more: Any) -> Any:
        library = LIBRARIES[type(x)]
        try:
            n, k = weight.shape  # an error of many words where there are other than two
            dtype = library.dtype_name(x)
            # What the library might take, and should not.
            if (bias is not None and (bias.shape != (n,) or bias.dtype != x.dtype)) or dtype not in FLOATS:
                check_product(where, x, weight, bias)
            if ours is not None and not library.is_fake(x):
                few_is_x = library.size(x) <= few * k
                if few_is_x or n <= few:
                    y = ours(library, x, weight, bias, n, k, dtype, few_is_x, *more)
                    if y is not None:
                        return y
            if otherwise is not None:
                return otherwise(library, x, weight, bias, n, k, dtype, *more)
            return library.linear(x, weight, bias)
        except (RuntimeError, ValueError):
            check_product(where, x, weight, bias)
            raise

    return body


class Apart(NamedTuple):
    """Products that a library is slower to make with the bias than without.

    Attributes:
        least_k: columns of x, at least.
        least, most: elements of the product.
    """

    least_k: int
    least: int
    most: int

    def takes(self, elements: int, k: int) -> bool:
        return k >= self.least_k and self.least <= elements <= self.most


# Columns and rows of x below which no table is looked at; of fewer rows the library makes products of vectors, with a bias as
# quickly as without.
LEAST_APART_K, LEAST_APART_ROWS = 1024, 16


def product_apart(
    library: Any, x: Any, weight: Any, bias: Any, n: int, k: int, dtype: str, table: Mapping[bool, Sequence[Apart]]
) -> Any:
    """x·Wᵀ (..., N), contiguous, for one who then adds the bias in a pass of his own; or None where the product is in no line of
    the table, which are of float32 and by whether it is multiplied in TF32, or the library has to say what is wrong. Arguments as
    ``otherwise`` of :func:`product_body` has them."""
    if dtype != "float32" or bias is None or k < LEAST_APART_K or library.is_fake(x):
        return None
    rows = library.size(x) // k
    elements = rows * n
    if rows < LEAST_APART_ROWS or not any(line.takes(elements, k) for line in table[library.tf32()]):
        return None
    if library.device_index(bias) != library.device_index(x):
        return None
    return library.contiguous(library.linear(x, weight, None))


def check_product(where: str, x: Any, weight: Any, bias: Any) -> None:
    """Refuses operands of a product that do not belong together, whatever computes it.

    Raises:
        RuntimeError: ranks, shapes or dtypes that do not belong together.
        TypeError: x is not floating.
        ValueError: arrays on different devices.
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
    """The array as a matrix of all its rows."""
    return x if len(x.shape) == 2 else x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))


def gradients(library: Any, grad: Any, batch: Sequence[int], x: Any, weight: Any) -> tuple[Any, Any]:
    """dL/dx = dL/dy·W and dL/dW = dL/dyᵀ·x.

    Args:
        library: the arrays'.
        grad: dL/dy as a matrix of all its rows.
        batch: what x's shape begins with.
        x: (..., K) for the gradient of weight, else None.
        weight: (N, K) for the gradient of x, else None.

    Returns:
        The two; what is not wanted has no elements.
    """
    if weight is None:
        grad_x = nothing(library, grad)
    else:
        grad_x = library.matmul(grad, weight)
        if len(batch) != 1:
            grad_x = grad_x.reshape((*batch, weight.shape[1]))
    return grad_x, nothing(library, grad) if x is None else library.matmul(grad.T, rows_of(x))


def nothing(library: Any, like: Any) -> Any:
    """What stands for a gradient that is not wanted."""
    return library.empty((0,), library.dtype_name(like), like)


def check_gradients(where: str, grad_y: Any, x: Any, weight: Any) -> None:
    """Refuses operands of a gradient that do not belong together; x and weight may be None.

    Raises:
        ValueError: shapes.
        TypeError: dtypes.
    """
    shape, dtype = grad_y.shape, grad_y.dtype  # once each: they cost a tensor a fraction of a microsecond
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
