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
    """The kernel for operands of different layouts.

    Args:
        ndim: dimensions of the loop.
        vector_width: elements of a thread.
        wide: counts and strides take 64 bits.
    """
    constants = {"NDIM": ndim, "VECTOR_WIDTH": vector_width, "WIDE": int(wide)}
    return Kernel(TEXT, "add2_strided", Threads("groups", block=(128, 1, 1)), dtypes=NUMBERS, constants=constants)


# Most broadcasts are loops of two dimensions. warmup() and the compile command find the kernels that are declared here.
for _width in (1, 4, 8):
    strided(2, _width, False)


def forward(a: Any, b: Any, alpha: Any = 1) -> Any:
    """The body of add2: a + alpha·b in the promoted dtype and the broadcast shape."""
    library = LIBRARIES[type(a)]
    # The ranks are compared first: to compare shapes of different ranks would bind a symbolic size to a value, since tuples of
    # different lengths are compared element by element, too.
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
    if library.is_fake(out):
        # Sizes may be symbols. To config a loop by their values would bind a compiled graph to these values.
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
    """Raises unless torch.add takes the dtype and alpha, in the words of torch.add where it has some.

    Raises:
        TypeError: the dtype is complex or bool, or alpha is no number.
        RuntimeError: a floating alpha for integers, or a bool alpha.
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
    """a + alpha·b of any two arrays on a GPU, without PyTorch.

    Args:
        a, b: CuPy arrays, or arrays that export DLPack from GPU memory, on one device; floating or integer, of shapes
            that broadcast. They are promoted as ``cupy.result_type`` says.
        alpha: a number; an integer where the result is of integers.

    Returns:
        A CuPy array of the broadcast shape, computed on CuPy's current stream. Floating results are one fused
        multiply-add in float32 (float64 for float64), rounded once; integer results wrap.

    Raises:
        TypeError: an operand is no array, or bool or complex.
        ValueError: an operand is in host memory, or they are on different devices.
        RuntimeError: shapes that do not broadcast; a floating alpha for integers.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing; the message says what installs them.

    Source: ``torch.add``.
    """
    return forward(a, b, alpha)
