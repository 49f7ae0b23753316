"""A linear layer with GELU behind it: checks and launches of ``kernels_cu/linear_gelu.cu``."""

from functools import cache, partial
from typing import Any

import kernels_cu

from .arrays import LIBRARIES, as_cupy
from .dtypes import DTYPES, FLOATS
from .errors import expected
from .gelu import FORWARD
from .gelu import backward as gelu_backward
from .gelu import check as check_gelu
from .gelu import forward as gelu_forward
from .hopper_linear import linear_gelu_by_matrix_units
from .kernel import Kernel
from .linear import check_backward as check_linear_backward
from .linear import column_sums, empty, products, rows_of
from .linear import forward as linear_forward
from .linear_plan import ColumnPlan, column_plan

__all__ = ["linear_gelu", "linear_gelu_backward"]

TEXT = kernels_cu.source("linear_gelu")


@cache
def backward_kernel(approximate: str, plan: ColumnPlan, dtype: str) -> Kernel:
    """The gradient of the product, with the sums of its columns in ``dtype`` or, of several groups, unrounded."""
    return Kernel(
        TEXT,
        "linear_gelu_backward",
        plan.geometry,
        dtypes=FLOATS,
        constants={**plan.constants, **({"TANH": 1} if approximate == "tanh" else {})},
        since=plan.since,
        # A cluster has the result; else there are several groups, most often.
        choices=[{"scalar_t": dtype, "sum_t": dtype if plan.cluster > 1 else DTYPES[dtype].acc}],
    )


KERNELS = {form: partial(backward_kernel, form) for form in FORWARD}

for _dtype in FLOATS:
    # One of each kind, so that warmup() and the compile command find them: several groups, and a cluster.
    for _form, _m in (("none", 2**14), ("tanh", 2**14), ("none", 64)):
        _plan = column_plan(_m, 4096, DTYPES[_dtype].itemsize, 90, 132, gelu=True)
        backward_kernel(_form, _plan.text, _dtype)


def forward(x: Any, weight: Any, bias: Any, approximate: str = "none") -> tuple[Any, Any]:
    """The body of linear_gelu: y = gelu(z) and z = x·Wᵀ + b, both (..., N)."""
    found = linear_gelu_by_matrix_units(LIBRARIES[type(x)], x, weight, bias, approximate)
    if found is not None:
        return found
    z = linear_forward(x, weight, bias, "linear_gelu")
    return gelu_forward(z, approximate), z


def backward(grad_y: Any, z: Any, x: Any, weight: Any, approximate: str, want_bias: bool) -> tuple[Any, Any, Any]:
    """The body of the gradient: as that of linear, by way of dL/dz."""
    check_backward(grad_y, z, x, weight, approximate)
    library = LIBRARIES[type(grad_y)]
    batch = grad_y.shape[:-1]
    if want_bias:
        grad_y, z = (library.contiguous(rows_of(library, a)) for a in (grad_y, z))
        grad_z = library.empty_like(z)
        m, n = z.shape
        grad_bias = column_sums(
            library, KERNELS[approximate], (grad_y, z, grad_z), m, n, library.dtype_name(z), gelu=True
        )
    else:
        grad_z = rows_of(library, gelu_backward(grad_y, z, approximate))
        grad_bias = empty(library, z)
    return (*products(library, grad_z, batch, x, weight), grad_bias)


def check_backward(grad_y: Any, z: Any, x: Any, weight: Any, approximate: str) -> None:
    """Refuses operands of a gradient that do not belong together.

    Raises:
        RuntimeError: another word for ``approximate``.
        ValueError: shapes.
        TypeError: dtypes.
    """
    where = "linear_gelu_backward"
    if z.shape != grad_y.shape:
        raise ValueError(expected(where, "z", f"have grad_y's shape {tuple(grad_y.shape)}", tuple(z.shape)))
    if z.dtype != grad_y.dtype:
        raise TypeError(expected(where, "z", f"have dtype {grad_y.dtype}, as `grad_y` has", z.dtype))
    check_gelu(grad_y, approximate)
    check_linear_backward(grad_y, x, weight, where)


def linear_gelu(x: Any, weight: Any, bias: Any = None, approximate: str = "none") -> tuple[Any, Any]:
    """y = gelu(z) with z = x·Wᵀ + b of any arrays on a GPU, without PyTorch.

    Args:
        x, weight, bias: as for :func:`cupyops.linear`.
        approximate: ``"none"`` or ``"tanh"``, as for :func:`cupyops.gelu`.

    Returns:
        (y, z), CuPy arrays (..., N) of x's dtype; z is what the gradient is made of.

    Raises:
        RuntimeError: another word for ``approximate``; else as :func:`cupyops.linear`.
    """
    x, weight, bias = _as_cupy("linear_gelu", x=x, weight=weight, bias=bias)
    return forward(x, weight, bias, approximate)


def linear_gelu_backward(
    grad_y: Any, z: Any, x: Any = None, weight: Any = None, approximate: str = "none", *, want_bias: bool = True
) -> tuple[Any, Any, Any]:
    """Gradients of :func:`linear_gelu`, by way of dL/dz = dL/dy·gelu'(z).

    Args:
        grad_y: (..., N), gradient of y.
        z: what :func:`linear_gelu` gave.
        x, weight, want_bias: as for :func:`cupyops.linear_backward`.
        approximate: what :func:`linear_gelu` was given.

    Returns:
        (grad_x, grad_weight, grad_bias), CuPy arrays of grad_y's dtype; those that are not wanted have no elements.

    Raises:
        ValueError, TypeError: operands that do not belong together; else as :func:`cupyops.linear_gelu`.
    """
    grad_y, z, x, weight = _as_cupy("linear_gelu_backward", grad_y=grad_y, z=z, x=x, weight=weight)
    return backward(grad_y, z, x, weight, approximate, want_bias)


def _as_cupy(where: str, **arrays: Any) -> list[Any]:
    return [None if a is None else as_cupy(a, where, name) for name, a in arrays.items()]
