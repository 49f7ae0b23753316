"""The linear layer: launches of ``kernels_cu/linear.cu``, and the matrix products of the array library."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import kernels_cu
from cupyops.arrays import LIBRARIES, device_of, on_any_arrays
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.launch import driver
from cupyops.launch.kernel import Kernel
from cupyops.tiling.columns import ColumnSums

from . import config as linear_config
from .config import FORMS, MOST_FEW, NarrowConfig, narrow_config
from .odd import odd_product
from .products import check_gradients, gradients, nothing, product_apart, product_body, rows_of

__all__ = ["linear", "linear_backward"]

TEXT = kernels_cu.source("linear")
SUMS = ColumnSums(TEXT, "linear_bias_gradient", "x_t", "scalar_t")


@cache
def narrow_kernel(config: NarrowConfig, dtype: str, *form: str) -> Kernel:
    """Returns the kernel for the product of x and W, one of which has few rows.

    Args:
        config: the kernel's config.
        dtype: the dtype of all arrays.
        form: the form of GELU that is applied to the product; none for the product alone.
    """
    gelu = {"GELU": 1, **FORMS[form[0]]} if form else {}
    return config.kernel(TEXT, "linear_narrow", {"scalar_t": dtype}, dtypes=FLOATS, constants=gelu)


for _dtype in FLOATS:
    # Declares a kernel of each kind for warmup() and the compile command.
    for _few_is_x, _form in ((True, ()), (False, ()), (True, ("none",)), (False, ("tanh",))):
        narrow_kernel(NarrowConfig(_few_is_x, 1, 16 // DTYPES[_dtype].itemsize, 1, 1), _dtype, *_form)


def narrow(library: Any, x: Any, weight: Any, bias: Any, size: Sequence[int], dtype: str, *form: str) -> Any:
    """Returns the product z of the kernel linear_narrow, or (y, z) with y = gelu(z) if a form of GELU is given.

    Returns None if the library's product is as fast, or if the operands do not fit each other. The library then raises.

    Args:
        library: the array library of the arrays.
        x: (..., K).
        weight: (N, K). At least one of x and weight has at most ``MOST_FEW`` rows.
        bias: (N), of x's dtype, or None.
        size: (N, K), the shape of weight.
        dtype: the dtype of x.
        form: the form of GELU, ``"none"`` or ``"tanh"``; none for the product alone.
    """
    (n, k), shape = size, x.shape
    if not k or not shape or shape[-1] != k or form not in ((), *zip(FORMS)):
        return None
    rows = library.size(x) // k
    few_is_x = rows <= MOST_FEW
    few, many = (rows, n) if few_is_x else (n, rows)
    itemsize = DTYPES[dtype].itemsize
    small = many * k * itemsize < linear_config.LEAST_NARROW
    if small and not few_is_x:
        return None
    config = narrow_config(few_is_x, few, many, k, itemsize, driver.capability(device_of(library, x)), small=small)
    if config is None or not (library.is_contiguous(x) and library.is_contiguous(weight)) or weight.dtype != x.dtype:
        return None
    z = library.empty((*shape[:-1], n), dtype, x)
    y = library.empty_like(z) if form else None
    bias = None if bias is None else library.contiguous(bias)
    first, second = (weight, x) if few_is_x else (x, weight)
    narrow_kernel(config, dtype, *form).launch_vouched(
        many=first, few=second, bias=bias, z=z, y=y, R=many, K=k, B=0 if bias is None else n
    )
    return z if y is None else (y, z)


def _by_library(library: Any, x: Any, weight: Any, bias: Any, size: Sequence[int], dtype: str) -> Any:
    y = product_apart(library, x, weight, bias, size, dtype, linear_config.APART)
    if y is None:
        return library.linear(x, weight, bias)
    y += bias
    return y


def _otherwise(library: Any, x: Any, weight: Any, bias: Any, size: Sequence[int], dtype: str) -> Any:
    y = odd_product(library, x, weight, bias, size, dtype)
    return _by_library(library, x, weight, bias, size, dtype) if y is None else y


# `forward` is the operator linear. `by_library` always calls the library, so PyTorch can record the library's own
# gradient.
forward = product_body("linear", narrow, MOST_FEW, _otherwise)
by_library = product_body("linear", otherwise=_by_library)


def backward(grad_y: Any, x: Any, weight: Any, want_bias: bool) -> tuple[Any, Any, Any]:
    """Returns dL/dx if weight is given, dL/dW if x is given, and dL/db if ``want_bias``.

    An unwanted gradient is an array without elements.
    """
    check_gradients("linear_backward", grad_y, x, weight)
    library = LIBRARIES[type(grad_y)]
    grad = rows_of(grad_y)
    if want_bias:
        grad = library.contiguous(grad)
        grad_bias = SUMS(library, grad)
    else:
        grad_bias = nothing(library, grad)
    return (*gradients(library, grad, grad_y.shape[:-1], x, weight), grad_bias)


@on_any_arrays("x", "weight", "bias?")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Returns y = x·Wᵀ + b of arrays on a GPU, without PyTorch.

    CuPy computes the product by cuBLAS, except for some products in which x or weight has at most 16 rows. These have a
    kernel of this project.

    Args:
        x: (..., K), a CuPy array, or any array that exports DLPack from GPU memory; float16, bfloat16, float32 or
            float64, any layout.
        weight: (N, K), of x's dtype.
        bias: (N), of x's dtype, or None.

    Returns:
        A CuPy array (..., N) of x's dtype, computed on CuPy's current stream.

    Raises:
        TypeError: x is not an array, or x is not floating.
        RuntimeError: the shapes or dtypes do not fit each other, in PyTorch's words.
        ValueError: an array is in host memory, or on another device than x.
        MissingDependencyError: CuPy, NVRTC, CUDA's headers or cuBLAS are missing; the message says what installs them.

    Source: ``torch.nn.functional.linear``.
    """
    return forward(x, weight, bias)


@on_any_arrays("grad_y", "x?", "weight?")
def linear_backward(grad_y: Any, x: Any = None, weight: Any = None, *, want_bias: bool = True) -> tuple[Any, Any, Any]:
    """Returns the gradients of :func:`linear`: dL/dx = dL/dy·W, dL/dW = dL/dyᵀ·x, and dL/db, the column sums of dL/dy.

    The column sums are added up in a fixed order.

    Args:
        grad_y: (..., N), the gradient of y.
        x: the argument of :func:`linear`, for the gradient of weight; else None.
        weight: the argument of :func:`linear`, for the gradient of x; else None.
        want_bias: whether the gradient of the bias is wanted.

    Returns:
        (grad_x, grad_weight, grad_bias), CuPy arrays of grad_y's dtype. An unwanted gradient has no elements.

    Raises:
        ValueError: the shape of x or weight does not fit grad_y.
        TypeError: the dtype of x or weight is not grad_y's.
    """
    return backward(grad_y, x, weight, want_bias)
