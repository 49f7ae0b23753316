"""Products in 16 bits whose rows do not begin at multiples of 16 bytes: N or K is not a multiple of 8.

A library needs aligned rows for its fast kernels, and falls back to kernels that read single elements. The functions of
this module append zeros to the operands' rows and columns, and compute the next larger product.
:data:`ODD` decides which products are padded.

The padded product x·Wᵀ equals the product: the appended elements are zeros, and the appended columns are dropped. The
library may add in another order, as for any other size, so that the last bit may differ from the product without
padding.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["ODD", "Odd", "has_odd_rows", "is_odd", "odd_gradients", "odd_product"]

DTYPES = frozenset({"float16", "bfloat16"})


class Odd(NamedTuple):
    """The rule for products in 16 bits that are padded (:mod:`cupyops.ops.linear.odd`).

    Attributes:
        multiple: N and K are padded to a multiple of this number of elements, 16 bytes.
        least_size: the least N and K.
        least: the fewest elements of the weight.
        strided: whether the rows of a result (..., N) begin at multiples of 16 bytes, as the product has written them.
            Otherwise a copy follows, in which the rows follow each other without a gap.
    """

    multiple: int = 8
    least_size: int = 128
    least: int = 2**19
    strided: bool = True


# The library's product takes 13.2 ms for 16384 x 50257 x 768 in bfloat16 on an H200, which is 96 TFLOP/s, and its
# gradients 9.0 and 8.4 ms. The same products with N = 50264 take 1.5, 1.5 and 1.8 ms, some 800 TFLOP/s. A product of
# 2·M·N·K operations hence loses 2·M·N·K·(1/96 - 1/800)·1e-12 s = M·N·K·1.8e-14 s without padding.
#
# Padding costs a copy of each operand whose rows or columns change, at 4.2e12 B/s: 4·N·K bytes of the weight, or
# N·K·9.5e-13 s, which M = 52 rows repay; likewise 4·M·K bytes of x, if K changes, which N = 52 repays, and 4·M·N bytes
# of the gradient, if N changes, which K = 52 repays. For the product above, the copies take 0.04 ms (weight) and
# 0.8 ms (gradient, which both products of the backward share). The copies also take a few launches, about 10 µs. At
# M = 1000 a weight of 2^19 elements repays them.
#
# A result without a gap between its rows would take another copy of 4·M·N bytes, 0.8 ms for the product above, as long
# as half of the product. The consumer of such a result mostly reads it once: a conversion to float32 or a softmax.
#
# None switches the padding off, for comparisons.
ODD: Odd | None = Odd()


def is_odd(dtype: str, n: int, k: int) -> bool:
    """Returns whether a product with a weight (n, k) is padded.

    The choice ignores the number of rows of x: a traced program does not know it, and its results must have the same
    strides.
    """
    return dtype in DTYPES and has_odd_rows(n, k)


def has_odd_rows(n: int, k: int) -> bool:
    """Returns whether a product in 16 bits with a weight (n, k) is padded."""
    return (
        ODD is not None
        and bool(n % ODD.multiple or k % ODD.multiple)
        and min(n, k) >= ODD.least_size
        and n * k >= ODD.least
    )


def odd_product(
    library: Any, x: Any, weight: Any, bias: Any, size: Sequence[int], dtype: str, *, dense: bool = False
) -> Any:
    """Returns y = x·Wᵀ + b (..., N) of a padded product, or None if the product is not padded.

    Args:
        library: the array library of the arrays.
        x: (..., K).
        weight: (N, K).
        bias: (N), or None.
        size: (N, K), the shape of weight.
        dtype: the dtype of x.
        dense: whether the rows of y must follow each other without a gap.
    """
    (n, k), shape = size, x.shape
    if not is_odd(dtype, n, k) or not shape or shape[-1] != k or weight.dtype != x.dtype:
        return None  # the library's product raises for operands that do not fit each other
    wide_n, wide_k = _next(n), _next(k)
    rows = x.reshape((library.size(x) // k, k))
    if wide_k != k:
        rows = library.padded(rows, rows.shape[0], wide_k)
    weight = library.padded(weight, wide_n, wide_k)
    if bias is not None and wide_n != n:
        bias = library.padded(bias.reshape((1, n)), 1, wide_n).reshape((wide_n,))
    y = library.linear(rows, weight, bias)
    # In host memory, a reference computes the product, and its result has no gaps.
    strided = not dense and ODD is not None and ODD.strided and library.info(x).place == "cuda"
    return _cut(library, y, (*shape[:-1], n), not strided)


def odd_gradients(library: Any, grad: Any, x: Any, weight: Any) -> tuple[Any, Any]:
    """Returns dL/dx = dL/dy·W as a matrix, and dL/dW = dL/dyᵀ·x, of padded products. Both are contiguous.

    Args:
        library: the array library of the arrays.
        grad: dL/dy as a matrix (M, N).
        x: x as a matrix (M, K) for the gradient of weight, else None.
        weight: (N, K) for the gradient of x, else None.
    """
    m, n = grad.shape
    wide_n = _next(n)
    if wide_n != n:
        grad = library.padded(grad, m, wide_n)  # once, for both products
    grad_x = grad_weight = None
    if weight is not None:
        k = weight.shape[1]
        product = library.matmul(grad, library.padded(weight, wide_n, _next(k)))
        grad_x = _cut(library, product, (m, k), True)
    if x is not None:
        k = x.shape[1]
        x = x if _next(k) == k else library.padded(x, m, _next(k))
        grad_weight = _cut(library, library.matmul(grad.T, x), (n, k), True)
    return grad_x, grad_weight


def _next(size: int) -> int:
    """Returns the next multiple of ``ODD.multiple``."""
    assert ODD is not None
    multiple = ODD.multiple
    return -(-size // multiple) * multiple


def _cut(library: Any, y: Any, shape: Sequence[int], dense: bool) -> Any:
    """Returns the first rows and columns of a padded product, in the given shape. Nothing else refers to the padded
    product, so no later write through another array can change the part."""
    found = library.part(y, shape)
    return library.contiguous(found) if dense else found
