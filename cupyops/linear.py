"""The linear layer: checks and launches of ``kernels_cu/linear.cu``, around the matrix products of a library."""

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import kernels_cu

from . import driver, linear_plan
from .arrays import LIBRARIES, as_cupy
from .dtypes import DTYPES, FLOATS
from .errors import expected
from .kernel import Kernel
from .linear_plan import MOST_FEW, ColumnPlan, NarrowPlan, column_plan, narrow_plan

__all__ = ["linear", "linear_backward"]

TEXT = kernels_cu.source("linear")


@cache
def bias_gradient_kernel(plan: ColumnPlan, dtype: str) -> Kernel:
    """The sums of columns in ``dtype``, and the sums of what several groups have found."""
    acc = DTYPES[dtype].acc
    # A cluster has the result, or makes it of several groups' sums; else there are such groups.
    kinds = dict.fromkeys([(dtype, dtype), (acc, dtype)] if plan.cluster > 1 else [(dtype, acc)])
    return Kernel(
        TEXT,
        "linear_bias_gradient",
        plan.geometry,
        dtypes=FLOATS,
        constants=plan.constants,
        since=plan.since,
        choices=[{"x_t": x, "scalar_t": out} for x, out in kinds],
    )


@cache
def narrow_kernel(plan: NarrowPlan, dtype: str, few_is_x: bool) -> Kernel:
    """The product with a matrix of few rows: x's, or W's."""
    constants = {**plan.constants, "FEW_IS_X": int(few_is_x)}
    return Kernel(
        TEXT, "linear_narrow", plan.geometry, dtypes=FLOATS, constants=constants, choices=[{"scalar_t": dtype}]
    )


for _dtype in FLOATS:
    # One of each kind, so that warmup() and the compile command find them.
    _size = DTYPES[_dtype].itemsize
    for _capability in (0, 90):
        bias_gradient_kernel(column_plan(2**14, 4096, _size, _capability, 132).text, _dtype)
    for _few_is_x in (True, False):
        narrow_kernel(NarrowPlan(1, 16 // _size, 1, 1), _dtype, _few_is_x)


def forward(x: Any, weight: Any, bias: Any, where: str = "linear") -> Any:
    """The body of linear: y (..., N) of x (..., K); ``where`` stands in messages."""
    library = LIBRARIES[type(x)]
    try:
        n, k = weight.shape  # an error of many words where there are other than two
        # What the library might take, and should not.
        if (bias is not None and bias.shape != (n,)) or library.dtype_name(x) not in FLOATS:
            check(x, weight, bias, where)
        if not library.is_fake(x):
            few_is_x = library.size(x) <= MOST_FEW * k
            if few_is_x or n <= MOST_FEW:
                y = _narrow(library, x, weight, bias, few_is_x)
                if y is not None:
                    return y
        return library.linear(x, weight, bias)
    except (RuntimeError, ValueError):
        check(x, weight, bias, where)
        raise


def by_library(x: Any, weight: Any, bias: Any) -> Any:
    """The same by the library alone, which may record a gradient of its own."""
    library = LIBRARIES[type(x)]
    try:
        n, _ = weight.shape
        if (bias is not None and bias.shape != (n,)) or library.dtype_name(x) not in FLOATS:
            check(x, weight, bias)
        return library.linear(x, weight, bias)
    except (RuntimeError, ValueError):
        check(x, weight, bias)
        raise


def _narrow(library: Any, x: Any, weight: Any, bias: Any, few_is_x: bool) -> Any:
    """The product by a kernel of ours, or None where the library is as fast or has to say what is wrong."""
    n, k = weight.shape
    if not k or len(x.shape) == 0 or x.shape[-1] != k:
        return None
    rows = library.size(x) // k
    few, many = (rows, n) if few_is_x else (n, rows)
    dtype = library.dtype_name(x)
    size = DTYPES[dtype].itemsize
    small = many * k * size < linear_plan.LEAST_NARROW
    if small and not few_is_x:
        return None
    plan = narrow_plan(few, many, k, size, driver.capability(library.device_index(x)), small=small)
    if plan is None or not (library.is_contiguous(x) and library.is_contiguous(weight)) or weight.dtype != x.dtype:
        return None
    y = library.empty((*x.shape[:-1], n), dtype, x)
    bias = None if bias is None else library.contiguous(bias)
    first, second = (weight, x) if few_is_x else (x, weight)
    narrow_kernel(plan, dtype, few_is_x).launch_vouched(first, second, bias, y, many, k, 0 if bias is None else n)
    return y


def backward(grad_y: Any, x: Any, weight: Any, want_bias: bool) -> tuple[Any, Any, Any]:
    """The body of the gradient: of x where weight is given, of weight where x is given, and of the bias; what is not wanted
    has no elements."""
    check_backward(grad_y, x, weight)
    library = LIBRARIES[type(grad_y)]
    grad = rows_of(library, grad_y)
    if want_bias:
        grad = library.contiguous(grad)
        grad_bias = bias_gradient(library, grad)
    else:
        grad_bias = empty(library, grad_y)
    return (*products(library, grad, grad_y.shape[:-1], x, weight), grad_bias)


def rows_of(library: Any, x: Any) -> Any:
    """The array as a matrix of all its rows."""
    return x if len(x.shape) == 2 else x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))


def empty(library: Any, like: Any) -> Any:
    """What stands for a gradient that is not wanted."""
    return library.empty((0,), library.dtype_name(like), like)


def products(library: Any, grad: Any, batch: Sequence[int], x: Any, weight: Any) -> tuple[Any, Any]:
    """dL/dx = dL/dy·W and dL/dW = dL/dyᵀ·x, of dL/dy as a matrix."""
    if weight is None:
        grad_x = empty(library, grad)
    else:
        grad_x = library.matmul(grad, weight)
        if len(batch) != 1:
            grad_x = grad_x.reshape((*batch, weight.shape[1]))
    grad_weight = empty(library, grad) if x is None else library.matmul(grad.T, rows_of(library, x))
    return grad_x, grad_weight


def bias_gradient(library: Any, grad: Any) -> Any:
    """The sums of the columns of a contiguous matrix."""
    m, n = grad.shape
    dtype = library.dtype_name(grad)
    return column_sums(library, bias_gradient_kernel, (grad,), m, n, dtype)


def column_sums(
    library: Any,
    kernels: Callable[[ColumnPlan, str], Kernel],
    arrays: Sequence[Any],
    m: int,
    n: int,
    dtype: str,
    *,
    gelu: bool = False,
) -> Any:
    """The sums that a kernel of ``columns.cuh`` finds in matrices (m, n) of a dtype.

    Args:
        kernels: from a plan and a dtype to the kernel.
        arrays: what it is given before the sums; the first is read.
        gelu: GELU's gradient is made on the way.
    """
    first = arrays[0]
    sums = library.empty((n,), dtype, first)
    if library.is_fake(first):
        return sums
    device = library.device_index(first)
    gpu = driver.capability(device), driver.multiprocessors(device)
    kernel, groups, tiles, last, last_tiles = _launches(kernels, m, n, dtype, *gpu, gelu)
    if last is None:
        kernel.launch_vouched(*arrays, sums, m, n, 1, tiles)
        return sums
    parts = library.empty((groups, n), DTYPES[dtype].acc, first)
    kernel.launch_vouched(*arrays, parts, m, n, groups, tiles)
    last.launch_vouched(parts, sums, groups, n, 1, last_tiles)
    return sums


@lru_cache(1024)
def _launches(
    kernels: Callable[[ColumnPlan, str], Kernel],
    m: int,
    n: int,
    dtype: str,
    capability: int,
    multiprocessors: int,
    gelu: bool,
) -> tuple[Kernel, int, int, Kernel | None, int]:
    """The kernel for sums of columns, its groups and tiles; for several groups, the kernel and tiles for theirs."""
    gpu = capability, multiprocessors
    plan = column_plan(m, n, DTYPES[dtype].itemsize, *gpu, gelu=gelu)
    if plan.groups == 1:
        return kernels(plan.text, dtype), 1, plan.tiles, None, 0
    rest = column_plan(plan.groups, n, DTYPES[DTYPES[dtype].acc].itemsize, *gpu, last=True)
    return kernels(plan.text, dtype), plan.groups, plan.tiles, bias_gradient_kernel(rest.text, dtype), rest.tiles


def check(x: Any, weight: Any, bias: Any, where: str = "linear") -> Any:
    """Refuses what no lane takes, in the words that PyTorch's users know.

    Returns:
        The shape of weight.

    Raises:
        RuntimeError: ranks, shapes or dtypes that do not belong together.
        TypeError: x is not floating.
        ValueError: arrays on different devices.
    """
    library = LIBRARIES[type(x)]
    dtype = library.dtype_name(x)
    if dtype not in FLOATS:
        raise TypeError(expected(where, "x", f"have dtype {' or '.join(FLOATS)}", dtype))
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
    return weight.shape


def check_backward(grad_y: Any, x: Any, weight: Any, where: str = "linear_backward") -> None:
    """Refuses operands of a gradient that do not belong together.

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


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """y = x·Wᵀ + b of any arrays on a GPU, without PyTorch.

    The product is CuPy's, that is cuBLAS's.

    Args:
        x: (..., K), a CuPy array, or any array that exports DLPack from GPU memory; float16, bfloat16, float32 or
            float64, any layout.
        weight: (N, K), of x's dtype.
        bias: (N), of x's dtype, or None.

    Returns:
        A CuPy array (..., N) of x's dtype, computed on CuPy's current stream.

    Raises:
        TypeError: x is no array, or not floating.
        RuntimeError: shapes or dtypes that do not belong together, in PyTorch's words.
        ValueError: an array in host memory, or on another device than x.
        MissingDependencyError: CuPy, NVRTC, CUDA's headers or cuBLAS are missing; the message says what installs them.

    Source: ``torch.nn.functional.linear``.
    """
    x, weight = as_cupy(x, "linear", "x"), as_cupy(weight, "linear", "weight")
    return forward(x, weight, None if bias is None else as_cupy(bias, "linear", "bias"))


def linear_backward(grad_y: Any, x: Any = None, weight: Any = None, *, want_bias: bool = True) -> tuple[Any, Any, Any]:
    """Gradients of :func:`linear`: dL/dx = dL/dy·W, dL/dW = dL/dyᵀ·x, and dL/db, the sums of dL/dy's columns in a fixed
    order.

    Args:
        grad_y: (..., N), gradient of the result.
        x: what :func:`linear` was given, for the gradient of weight; else None.
        weight: what :func:`linear` was given, for the gradient of x; else None.
        want_bias: whether the gradient of the bias is wanted.

    Returns:
        (grad_x, grad_weight, grad_bias), CuPy arrays of grad_y's dtype; those that are not wanted have no elements.

    Raises:
        ValueError, TypeError: operands that do not belong together.
    """
    arrays = {"grad_y": grad_y, "x": x, "weight": weight}
    grad_y, x, weight = (None if a is None else as_cupy(a, "linear_backward", name) for name, a in arrays.items())
    return backward(grad_y, x, weight, want_bias)
