"""GELU: checks, geometry and launches of ``kernels_cu/gelu.cu``."""

from typing import Any

import kernels_cu
from cupyops.arrays import LIBRARIES, dense, library_of, on_any_arrays
from cupyops.dtypes import FLOATS
from cupyops.launch.geometry import Elementwise
from cupyops.launch.kernel import Kernel

from .checks import check_floating, check_like

__all__ = ["gelu", "gelu_backward"]

TEXT, FORMS = kernels_cu.source("gelu"), {"none": 0, "tanh": 1}


def _kernels(name: str) -> dict[str, Kernel]:
    geometry = Elementwise("n")
    return {form: Kernel(TEXT, name, geometry, dtypes=FLOATS, constants={"TANH": tanh}) for form, tanh in FORMS.items()}


FORWARD, BACKWARD = _kernels("gelu_forward"), _kernels("gelu_backward")

# In float64, the elements of a thread share the moves of the coefficients. Measured on an H200 while the coefficients were in constant
# memory, with four accesses of 16 bytes a thread in place of one: 2^24 elements take 0.95 to 0.97 times as long, 2^28 0.87 to 0.92 times,
# and 2^22 up to 1.03 times. Literals take more moves, so that sharing saves more of them. The number of elements of a traced tensor may be
# a symbol, and a comparison would limit the exported program to the sizes of one kernel.
MANY = 2**24


def _kernel_of_many(name: str) -> Kernel:
    return Kernel(TEXT, name, Elementwise("n", vectors=4), dtypes=("float64",), constants={"TANH": 0})


FORWARD_OF_MANY, BACKWARD_OF_MANY = _kernel_of_many("gelu_forward"), _kernel_of_many("gelu_backward")


def forward(x: Any, approximate: str = "none") -> Any:
    """Returns y = x·Φ(x), or the tanh form of GELU, in the shape, dtype and layout of x, on arrays of any library."""
    try:
        kernel = FORWARD[approximate]
    except (KeyError, TypeError):
        kernel = _form(FORWARD, approximate)  # raises
    library = LIBRARIES[type(x)]
    if not library.is_contiguous(x):
        x = dense(x)
    y = library.empty_like(x)
    _launch(kernel, library, x, y, approximate)
    return y


def forward_in_place(x: Any, approximate: str) -> None:
    """Writes y over x, which is contiguous. A thread reads an element before it writes it, and no other thread does."""
    _launch(_form(FORWARD, approximate), LIBRARIES[type(x)], x, x, approximate)


def _launch(kernel: Kernel, library: Any, x: Any, y: Any, approximate: str) -> None:
    n = library.size(x)
    if type(n) is int and n >= MANY and approximate == "none" and library.dtype_name(x) == "float64":
        kernel = FORWARD_OF_MANY
    try:
        kernel.launch_vouched(x, y, n)
    except TypeError:
        check(x, approximate)  # raises with a message that names the operator; the launch's message names the kernel
        raise


def backward(grad_y: Any, x: Any, approximate: str = "none") -> Any:
    """Returns the gradient of GELU in the shape, dtype and layout of x, on arrays of any library."""
    try:
        kernel = BACKWARD[approximate]
    except (KeyError, TypeError):
        kernel = _form(BACKWARD, approximate)  # raises
    library = LIBRARIES[type(x)]
    if grad_y.shape != x.shape:
        check(x, approximate, grad_y)
    if not (library.is_contiguous(x) and library.is_contiguous(grad_y)):
        x, grad_y = dense(x), dense(grad_y)
        if library.strides(x) != library.strides(grad_y):
            x, grad_y = library.contiguous(x), library.contiguous(grad_y)
    grad_x = library.empty_like(x)
    _launch_backward(kernel, library, grad_y, x, grad_x, approximate)
    return grad_x


def backward_in_place(grad_y: Any, x: Any, approximate: str) -> None:
    """Writes the gradient over grad_y, which is contiguous."""
    library = LIBRARIES[type(x)]
    check(x, approximate, grad_y)
    _launch_backward(_form(BACKWARD, approximate), library, grad_y, library.contiguous(x), grad_y, approximate)


def _launch_backward(kernel: Kernel, library: Any, grad_y: Any, x: Any, grad_x: Any, approximate: str) -> None:
    n = library.size(x)
    if type(n) is int and n >= MANY and approximate == "none" and library.dtype_name(x) == "float64":
        kernel = BACKWARD_OF_MANY
    kernel.launch_vouched(grad_y, x, grad_x, n)


def _form(kernels: dict[str, Kernel], approximate: str) -> Kernel:
    try:
        return kernels[approximate]
    except (KeyError, TypeError):
        words = f"gelu: approximate argument must be either none or tanh, got {approximate!r}"
        raise RuntimeError(words) from None


def check(x: Any, approximate: str, grad_y: Any = None) -> None:
    """Raises unless GELU takes the arguments. :func:`forward`, :func:`backward` and the PyTorch reference share the
    check.

    Raises:
        RuntimeError: ``approximate`` is neither none nor tanh; the message is PyTorch's.
        TypeError: x is not floating, or the dtypes of grad_y and x differ.
        ValueError: the shapes of grad_y and x differ.
    """
    _form(FORWARD, approximate)
    check_floating("gelu", "x", library_of(x).dtype_name(x))
    check_like("gelu_backward", x, grad_y=(grad_y, x.shape))


@on_any_arrays("x")
def gelu(x: Any, approximate: str = "none") -> Any:
    """Returns the Gaussian error linear unit of an array on a GPU, without PyTorch.

    y = x·Φ(x), or with ``approximate="tanh"`` y = ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).

    Args:
        x: a CuPy array, or any array that exports DLPack from GPU memory; float16, bfloat16, float32 or float64, any
            shape and layout.
        approximate: ``"none"`` or ``"tanh"``.

    Returns:
        A CuPy array of x's shape and dtype, computed on CuPy's current stream.

    Raises:
        TypeError: x is not an array, or x is not floating.
        ValueError: x is in host memory.
        RuntimeError: ``approximate`` is neither ``"none"`` nor ``"tanh"``.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing; the message says what installs them.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    return forward(x, approximate)


@on_any_arrays("grad_y", "x")
def gelu_backward(grad_y: Any, x: Any, approximate: str = "none") -> Any:
    """Returns the gradient of :func:`gelu`: grad_y·(Φ(x) + x·φ(x)), or grad_y times the derivative of the tanh form.

    Args:
        grad_y: gradient of the result, in x's shape and dtype.
        x, approximate: the arguments of :func:`gelu`.

    Returns:
        A CuPy array of x's shape and dtype.

    Raises:
        ValueError: the shapes of grad_y and x differ.
        TypeError, RuntimeError, MissingDependencyError: as :func:`gelu`.
    """
    return backward(grad_y, x, approximate)
