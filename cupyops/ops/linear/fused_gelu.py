"""The linear layer followed by GELU: checks and launches of ``kernels_cu/linear_gelu.cu``."""

from collections.abc import Sequence
from typing import Any

import kernels_cu
from cupyops.arrays import LIBRARIES, on_any_arrays
from cupyops.ops.checks import check_like
from cupyops.ops.gelu import backward as gelu_backward
from cupyops.ops.gelu import check as check_gelu
from cupyops.ops.gelu import forward as gelu_forward
from cupyops.tiling.columns import ColumnSums
from cupyops.tiling.tiles import TiledKernel

from . import config as linear_config
from .body import SUMS, narrow
from .config import FORMS, GELU_SUMS, HELD, MOST_FEW
from .odd import odd_product
from .products import check_gradients, gradients, nothing, product_apart, product_body, rows_of
from .sm90 import linear_gelu_by_tensor_cores, worth_a_look

__all__ = ["linear_gelu", "linear_gelu_backward"]

TEXT = kernels_cu.source("linear_gelu")
# The gradient kernels that warmup() and the compile command compile, by the form of GELU, for matrices given as (rows,
# compute capability). With 2^14 rows, several groups of blocks share a strip of columns. With 64 rows, a cluster shares
# a strip.
_AHEAD = {"none": ((2**14, 90), (64, 90)), "tanh": ((2**14, 90),)}


def _gradient(form: str, **constants: int) -> ColumnSums:
    names = TEXT, "linear_gelu_backward", "scalar_t", "sum_t", GELU_SUMS
    return ColumnSums(*names, constants=FORMS[form] | constants, rest=SUMS, ahead=_AHEAD[form])


GRADIENTS = {form: _gradient(form) for form in FORMS}
GRADIENTS_IN_PLACE = {form: _gradient(form, IN_PLACE=1) for form in FORMS}
# The pass that adds the bias to a product and applies GELU. Only products in float32 need the pass, so only float32 is
# declared for warmup().
_WIDEST = {2: 8, 4: 4, 8: 2}
FORWARD = {
    form: TiledKernel(TEXT, "linear_gelu_forward", _WIDEST, declared=("float32",), constants=FORMS[form] | HELD)
    for form in FORMS
}


def forward(x: Any, weight: Any, bias: Any, approximate: str = "none") -> tuple[Any, Any]:
    """Returns y = gelu(z) and z = x·Wᵀ + b, both (..., N), on arrays of any library."""
    library = LIBRARIES[type(x)]
    given = library, x, weight, bias, approximate
    if worth_a_look(library, x, approximate) and (found := linear_gelu_by_tensor_cores(*given)):
        return found
    return _product(x, weight, bias, approximate)


def _by_library(
    library: Any, x: Any, weight: Any, bias: Any, size: Sequence[int], dtype: str, approximate: str
) -> tuple[Any, Any]:
    """Returns y = gelu(z) and z = x·Wᵀ + b, by the library's product and one pass.

    Args:
        library: the array library of the arrays.
        x: (..., K).
        weight: (N, K).
        bias: (N), of x's dtype, or None.
        size: (N, K), the shape of weight.
        dtype: the dtype of x.
        approximate: the form of GELU, ``"none"`` or ``"tanh"``.
    """
    z = product_apart(library, x, weight, bias, size, dtype, linear_config.APART)
    if z is None:
        z = odd_product(library, x, weight, bias, size, dtype, dense=True)
        z = library.linear(x, weight, bias) if z is None else z
        return gelu_forward(z, approximate), z
    check_gelu(z, approximate)
    (n, k), y = size, library.empty_like(z)
    m = library.size(x) // k
    kernel, (columns, rows) = FORWARD[approximate].launch(dtype, -(-m // HELD["ROWS_EACH"]), n)
    kernel.launch_vouched(bias=library.contiguous(bias), z=z, y=y, M=m, N=n, columns=columns, rows=rows)
    return y, z


_product = product_body("linear_gelu", narrow, MOST_FEW, _by_library)


def backward(grad_y: Any, z: Any, x: Any, weight: Any, approximate: str, want_bias: bool) -> tuple[Any, Any, Any]:
    """Returns the gradients of x, weight and bias: those of linear with dL/dz = dL/dy·gelu'(z) in place of dL/dy.

    An unwanted gradient is an array without elements.
    """
    check_backward(grad_y, z, x, weight, approximate)
    return backward_of(grad_y, z, x, weight, approximate, want_bias)


def backward_of(grad_y: Any, z: Any, x: Any, weight: Any, approximate: str, want_bias: bool) -> tuple[Any, Any, Any]:
    """Returns what :func:`backward` returns, for the operands and the z of one :func:`forward`, without checks."""
    library = LIBRARIES[type(grad_y)]
    batch = grad_y.shape[:-1]
    if want_bias:
        grad_z, grad_bias = _through_gelu(library, grad_y, z, approximate)
    else:
        grad_z = rows_of(gelu_backward(grad_y, z, approximate))
        grad_bias = nothing(library, z)
    return (*gradients(library, grad_z, batch, x, weight), grad_bias)


def through_gelu(grad_y: Any, z: Any, approximate: str) -> tuple[Any, Any]:
    """Returns dL/dz = dL/dy·gelu'(z), (..., N), and the sum of its rows, dL/db (N), in one pass."""
    check_backward(grad_y, z, None, None, approximate)
    grad_z, grad_bias = _through_gelu(LIBRARIES[type(grad_y)], grad_y, z, approximate)
    return (grad_z if len(z.shape) == 2 else grad_z.reshape(z.shape)), grad_bias


def through_gelu_in_place(grad_y: Any, z: Any, approximate: str) -> Any:
    """Writes dL/dz = dL/dy·gelu'(z) over dL/dy, which is contiguous, and returns dL/db, the sum of its rows (N)."""
    check_backward(grad_y, z, None, None, approximate)
    library = LIBRARIES[type(grad_y)]
    grad, z = rows_of(grad_y), rows_of(library.contiguous(z))
    return GRADIENTS_IN_PLACE[approximate](library, grad, z, grad)


def _through_gelu(library: Any, grad_y: Any, z: Any, approximate: str) -> tuple[Any, Any]:
    grad_y, z = rows_of(library.contiguous(grad_y)), rows_of(library.contiguous(z))
    grad_z = library.empty_like(z)
    return grad_z, GRADIENTS[approximate](library, grad_y, z, grad_z)


def check_backward(grad_y: Any, z: Any, x: Any, weight: Any, approximate: str) -> None:
    """Raises unless the operands of the gradient fit each other.

    Raises:
        RuntimeError: ``approximate`` is neither none nor tanh.
        ValueError: the shape of z, x or weight does not fit grad_y.
        TypeError: the dtype of z, x or weight is not grad_y's.
    """
    check_like("linear_gelu_backward", grad_y, z=(z, grad_y.shape))
    check_gelu(grad_y, approximate)
    check_gradients("linear_gelu_backward", grad_y, x, weight)


@on_any_arrays("x", "weight", "bias?")
def linear_gelu(x: Any, weight: Any, bias: Any = None, approximate: str = "none") -> tuple[Any, Any]:
    """Returns y = gelu(z) and z = x·Wᵀ + b of arrays on a GPU, without PyTorch.

    Args:
        x, weight, bias: as for :func:`cupyops.linear`.
        approximate: ``"none"`` or ``"tanh"``, as for :func:`cupyops.gelu`.

    Returns:
        (y, z), CuPy arrays (..., N) of x's dtype. :func:`linear_gelu_backward` takes z.

    Raises:
        RuntimeError: ``approximate`` is neither ``"none"`` nor ``"tanh"``, or as :func:`cupyops.linear`.
        TypeError, ValueError, MissingDependencyError: as :func:`cupyops.linear`.
    """
    return forward(x, weight, bias, approximate)


@on_any_arrays("grad_y", "z", "x?", "weight?")
def linear_gelu_backward(
    grad_y: Any, z: Any, x: Any = None, weight: Any = None, approximate: str = "none", *, want_bias: bool = True
) -> tuple[Any, Any, Any]:
    """Returns the gradients of :func:`linear_gelu`, computed from dL/dz = dL/dy·gelu'(z).

    Args:
        grad_y: (..., N), the gradient of y.
        z: the second result of :func:`linear_gelu`.
        x, weight, want_bias: as for :func:`cupyops.linear_backward`.
        approximate: the argument of :func:`linear_gelu`.

    Returns:
        (grad_x, grad_weight, grad_bias), CuPy arrays of grad_y's dtype. An unwanted gradient has no elements.

    Raises:
        ValueError: the shape of z, x or weight does not fit grad_y.
        TypeError: the dtype of z, x or weight is not grad_y's.
        RuntimeError: ``approximate`` is neither ``"none"`` nor ``"tanh"``.
        MissingDependencyError: as :func:`linear_gelu`.
    """
    return backward(grad_y, z, x, weight, approximate, want_bias)
