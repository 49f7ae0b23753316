"""add2: checks, geometry and launches of ``kernels_cu/add2.cu``."""

from functools import cache
from typing import Any

import kernels_cu
from cupyops.arrays import LIBRARIES, check_devices, is_dense, on_any_arrays
from cupyops.dtypes import DTYPES, FLOATS, INTEGERS
from cupyops.errors import expected
from cupyops.launch.geometry import Elementwise, Threads
from cupyops.launch.kernel import Kernel
from cupyops.tiling.broadcasting import broadcast_shape, spread, strided_loop

__all__ = ["add2"]

TEXT = kernels_cu.source("add2")
NUMBERS = FLOATS + INTEGERS

ALIKE = Kernel(TEXT, "add2", Elementwise("n", block=256), dtypes=NUMBERS)
SCALAR = {
    first: Kernel(TEXT, "add2_scalar", Elementwise("n"), dtypes=NUMBERS, constants={"VALUE_FIRST": int(first)})
    for first in (False, True)
}


@cache
def strided(ndim: int, vector_width: int, wide: bool) -> Kernel:
    """Returns the kernel for operands of different layouts.

    Args:
        ndim: dimensions of the loop.
        vector_width: elements of a thread.
        wide: indices need 64 bits.
    """
    constants = {"NDIM": ndim, "VECTOR_WIDTH": vector_width, "WIDE": int(wide)}
    return Kernel(TEXT, "add2_strided", Threads("groups", block=(128, 1, 1)), dtypes=NUMBERS, constants=constants)


# Declares kernels for warmup() and the compile command. Most broadcasts are loops of two dimensions.
for _width in (1, 4, 8):
    strided(2, _width, False)


def forward(a: Any, b: Any, alpha: Any = 1) -> Any:
    """Returns a + alpha·b in the promoted dtype and the broadcast shape: the operator add2 on arrays of any library."""
    library = LIBRARIES[type(a)]
    # Ranks are compared before shapes. Python compares tuples of different lengths element by element, too, and a
    # comparison binds a symbolic size to a value.
    alike = a.ndim == b.ndim and a.shape == b.shape
    if alike and a.dtype is b.dtype and library.is_contiguous(a) and library.is_contiguous(b):
        if type(alpha) is not int:
            check_alpha(alpha, library.dtype_name(a))
        out = library.empty_like(a)
        ALIKE.launch_vouched(a=a, b=b, out=out, alpha=alpha, n=library.size(a))
        return out
    return _general(library, a, b, alpha, alike)


def _general(library: Any, a: Any, b: Any, alpha: Any, alike: bool) -> Any:
    dtype = library.result_type(a, b)
    check_alpha(alpha, dtype)
    shape = broadcast_shape(a.shape, b.shape)
    if library.is_host_scalar(b) and not library.is_host_scalar(a):
        return _with_number(library, a, b, dtype, alpha, value_first=False)
    if library.is_host_scalar(a) and not library.is_host_scalar(b):
        return _with_number(library, b, a, dtype, alpha, value_first=True)
    strides_a, strides_b = library.strides(a), library.strides(b)
    if alike and strides_a == strides_b and is_dense(shape, strides_a) and dtype == library.dtype_name(a):
        out = library.empty_like(a)
        ALIKE.launch_vouched(a=a, b=b, out=out, alpha=alpha, n=library.size(out))
        return out
    out = library.empty(shape, dtype, a)
    if library.skips(out):
        # The sizes of fake tensors may be symbols. A loop chosen by their values would bind a compiled graph to the
        # values.
        check_devices("add2", a=a, b=b)
        return out
    if alike and library.is_contiguous(a) and library.is_contiguous(b):
        ALIKE.launch_vouched(a=a, b=b, out=out, alpha=alpha, n=library.size(out))
        return out
    widest = max(DTYPES[d].itemsize for d in (dtype, library.dtype_name(a), library.dtype_name(b)))
    vector_width, wide, *loop = strided_loop(
        shape, (spread(a.shape, strides_a, shape), spread(b.shape, strides_b, shape)), widest
    )
    size, divider, a_stride, b_stride = loop
    strided(len(size), vector_width, wide).launch_vouched(
        a=a,
        b=b,
        out=out,
        alpha=alpha,
        groups=library.size(out) // vector_width,
        size=size,
        divider=divider,
        a_stride=a_stride,
        b_stride=b_stride,
    )
    return out


def _with_number(library: Any, x: Any, number: Any, dtype: str, alpha: Any, *, value_first: bool) -> Any:
    x = library.contiguous(x)
    out = library.empty(x.shape, dtype, x)
    number = library.host_number(number, DTYPES[dtype].acc)
    SCALAR[value_first].launch_vouched(a=x, out=out, value=number, alpha=alpha, n=library.size(x))
    return out


def check_alpha(alpha: Any, dtype: str) -> None:
    """Raises unless ``torch.add`` takes the dtype and alpha. Where ``torch.add`` has a message, the message is the
    same.

    Raises:
        TypeError: the dtype is complex or bool, or alpha is not a number.
        RuntimeError: alpha is floating for an integer dtype, or alpha is a bool.
    """
    if dtype not in NUMBERS:
        raise TypeError(
            f"add2: `a` and `b` must promote to a floating or integer dtype ({', '.join(NUMBERS)}), got {dtype}"
        )
    if isinstance(alpha, bool):
        raise RuntimeError("add2: Boolean alpha only supported for Boolean results.")
    if dtype in INTEGERS and isinstance(alpha, float):
        raise RuntimeError("add2: For integral input tensors, argument alpha must not be a floating point number.")
    # While a compiler traces, an integer may be a symbol, which has no __float__.
    if not (isinstance(alpha, (int, float)) or hasattr(alpha, "__float__") or hasattr(alpha, "__index__")):
        raise TypeError(expected("add2", "alpha", "be a number", type(alpha).__name__))


@on_any_arrays("a", "b")
def add2(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    """Returns a + alpha·b of two arrays on a GPU, without PyTorch.

    Args:
        a, b: CuPy arrays, or arrays that export DLPack from GPU memory, on one device; floating or integer, of shapes
            that broadcast. Their dtypes are promoted by the rules of ``cupy.result_type``.
        alpha: a number; an integer if the result is of integers.

    Returns:
        A CuPy array of the broadcast shape, computed on CuPy's current stream. A floating result is one fused
        multiply-add in float32 (float64 for float64), rounded once. An integer result wraps.

    Raises:
        TypeError: an operand is not an array, or its dtype is bool or complex.
        ValueError: an operand is in host memory, or the operands are on different devices.
        RuntimeError: the shapes do not broadcast, or alpha is floating for an integer result.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing; the message says what installs them.

    Source: ``torch.add``.
    """
    return forward(a, b, alpha)
