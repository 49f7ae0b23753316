"""The LLTM cell: checks, launches of the kernels of one step in ``kernels_cu/lltm_*.cu``, and the library's
products."""

from typing import Any, NamedTuple

import kernels_cu
from cupyops.arrays import LIBRARIES, device_of, on_any_arrays
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.launch.geometry import Rows, Threads
from cupyops.launch.kernel import Kernel
from cupyops.tiling.tiles import TiledKernel

from .checks import check_cell, check_cell_backward

__all__ = ["lltm_cell", "lltm_cell_backward"]

# The most multiplications, and the most columns of [h, x], of a cell that one kernel computes. The library's product of
# this size takes as long as an empty launch.
WHOLE_WORK, WHOLE_INPUTS = 2**23, 2048
# The fewest columns of [h, x] for which the step kernel adds the bias in float32. The library's product takes longer
# with a bias than without, on an H200: 39.3 µs and 23.4 µs for 64 x 512 x 1024, 839 µs and 667 µs for 256 x 1024 x
# 4096.
BIAS_APART = 1024
WHOLE_ROWS = 256  # the most rows of a backward in one kernel: each block for the gradient of the weights reads all rows
# The most rows of a step's backward for which one block sums the bias's gradient over all rows, in up to four
# iterations. With more rows, each block stores a partial sum, and a second launch adds up the partial sums.
FEW_ROWS = 256

ABSENT = (0, 0, 0)  # the view of an absent gradient, see `Gradient` in lltm_gradient.cuh
Gradients = tuple[Any, Any, Any, Any, Any]


class StepGradients(NamedTuple):
    """The gradients of the results of a step. All have the dtype of the step's arrays.

    Attributes:
        h, cell: (B, S), the gradients of h' and c', of any strides; each may be None.
        gates: (B, 3·S), the gradient of z, contiguous, or None.
    """

    h: Any
    cell: Any
    gates: Any


CELL = Kernel(kernels_cu.source("lltm_cell"), "lltm_cell", Threads("threads", "tiles", block=(128, 1, 1)))
CELL_BACKWARD = Kernel(kernels_cu.source("lltm_cell_backward"), "lltm_cell_backward", Rows("blocks", 256))
PARTS = [{"scalar_t": dtype, "part_t": DTYPES[dtype].acc} for dtype in FLOATS]
SUMS = Kernel(kernels_cu.source("lltm_sums"), "lltm_sums", Threads("N", block=(32, 32, 1)), choices=PARTS)

# The kernels between products. The tables give the most elements of an access, by the bytes of an element. Two units of
# float64 need more registers than a thread has. The forward of float32 has accesses of 8 bytes, so that more threads
# share the work. The backward keeps the sums of a thread's columns in registers, so a thread has fewer columns.
STEP = TiledKernel(kernels_cu.source("lltm_step"), "lltm_step", {2: 8, 4: 2, 8: 1})
STEP_WITH_BIAS = TiledKernel(
    kernels_cu.source("lltm_step"), "lltm_step", {2: 8, 4: 2, 8: 1}, declared=("float32",), constants={"ADD_BIAS": 1}
)
STEP_BACKWARD = TiledKernel(
    kernels_cu.source("lltm_step_backward"), "lltm_step_backward", {2: 4, 4: 4, 8: 1}, alone=True
)
# The kernels that concatenate h and x, and split the gradient of [h, x].
INPUTS = TiledKernel(kernels_cu.source("lltm_inputs"), "lltm_inputs", {2: 8, 4: 4, 8: 1})
INPUTS_BACKWARD = TiledKernel(kernels_cu.source("lltm_inputs"), "lltm_inputs_backward", {2: 8, 4: 4, 8: 1})


def whole(batch: int, state: int, inputs: int) -> bool:
    """Returns whether one kernel computes the whole cell, the product included.

    Args:
        batch: rows.
        state: units of a row.
        inputs: columns of [h, x].
    """
    return 3 * batch * state * inputs <= WHOLE_WORK and inputs <= WHOLE_INPUTS


def forward(x: Any, weights: Any, bias: Any, old_h: Any, old_cell: Any) -> tuple[Any, Any, Any]:
    """Returns h', c' and z = [h, x]·Wᵀ + b of one step, on arrays of any library. The backward needs z."""
    return forward_and_inputs(x, weights, bias, old_h, old_cell)[0]


def forward_and_inputs(x: Any, weights: Any, bias: Any, old_h: Any, old_cell: Any) -> tuple[tuple[Any, Any, Any], Any]:
    """Returns the results of :func:`forward`, and [h, x], or None if [h, x] was not computed.

    The gradient of the weights needs [h, x].
    """
    library, dtype, batch, features, state = check_cell(x, weights, bias, old_h, old_cell)
    inputs, contiguous = features + state, library.contiguous
    old_cell = contiguous(old_cell)
    # empty_like is the fastest way to allocate an array.
    new_h, new_cell = library.empty_like(old_cell), library.empty_like(old_cell)
    if library.skips(new_h) or batch == 0 or state == 0:
        return (new_h, new_cell, library.empty((batch, 3 * state), dtype, x)), None
    if whole(batch, state, inputs):
        x, weights, bias, old_h = contiguous(x), contiguous(weights), contiguous(bias), contiguous(old_h)
        gates = library.empty((batch, 3 * state), dtype, x)
        CELL.launch_vouched(
            x=x,
            weights=weights,
            bias=bias,
            old_h=old_h,
            old_cell=old_cell,
            new_h=new_h,
            new_cell=new_cell,
            gates=gates,
            B=batch,
            F=features,
            S=state,
            K=inputs,
            threads=-(-state // 4) * 128,
            tiles=-(-batch // 16),
        )
        return (new_h, new_cell, gates), None
    both = side_by_side(library, old_h, None, x, dtype)
    apart = dtype == "float32" and inputs >= BIAS_APART
    # Without a bias, matmul() computes the same product as linear() and takes less of the host's time.
    gates = library.matmul(both, weights.T) if apart else library.linear(both, weights, bias)
    step(gates, old_cell, new_h, new_cell, dtype, contiguous(bias) if apart else None)
    return (new_h, new_cell, gates), both


def step(gates: Any, old_cell: Any, new_h: Any, new_cell: Any, dtype: str, bias: Any = None) -> None:
    """Writes h' and c', computed from z (``gates``) and c. If there is a bias, the bias is added to z first."""
    batch, state = new_h.shape
    kernel, (columns, rows) = (STEP if bias is None else STEP_WITH_BIAS).launch(dtype, batch, state)
    kernel.launch_vouched(
        bias=bias,
        old_cell=old_cell,
        gates=gates,
        new_h=new_h,
        new_cell=new_cell,
        B=batch,
        S=state,
        columns=columns,
        rows=rows,
    )


def side_by_side(library: Any, first_h: Any, h: Any, x: Any, dtype: str) -> Any:
    """Returns [h, x] of one step, or of all steps of a sequence: (rows, S + F). h is the state before the step.

    One product with [h, x] takes less time than a product with h, a product with x and their sum.

    Args:
        library: the array library of the arrays.
        first_h: (B, S), h before the first step.
        h: (T, B, S), h after each step, or None for one step.
        x: (B, F) or (T, B, F).
        dtype: the dtype of all arrays.
    """
    batch, state = first_h.shape
    features = x.shape[-1]
    if h is None and not features:
        return first_h
    steps = 1 if h is None else x.shape[0]
    inputs = library.empty((steps * batch, state + features), dtype, x)
    kernel, (columns, rows) = INPUTS.launch(dtype, steps * batch, state, features)
    first_h, x = library.contiguous(first_h), library.contiguous(x)
    kernel.launch_vouched(
        first_h=first_h,
        h=h,
        x=x,
        inputs=inputs,
        T=steps,
        B=batch,
        F=features,
        S=state,
        K=state + features,
        columns=columns,
        rows=rows,
    )
    return inputs


def view(library: Any, grad: Any, like: Any) -> tuple[Any, tuple[int, int, int]]:
    """Returns a gradient as the kernels take it: an array, and a view (1, row stride, column stride).

    For an absent gradient the array is ``like``, which the kernels do not read, and the view is ``ABSENT``.
    """
    return (like, ABSENT) if grad is None else (grad, (1, *library.strides(grad)))


def backward(
    grad_h: Any,
    grad_cell: Any,
    grad_gates: Any,
    x: Any,
    weights: Any,
    old_h: Any,
    new_cell: Any,
    gates: Any,
    both: Any,
    *want: bool,
) -> Gradients:
    """Returns the gradients of one step, on arrays of any library.

    Args:
        grad_h, grad_cell, grad_gates: the gradients of h', c' and z; each may be None. The first two may have any
            strides.
        x, weights, old_h, new_cell, gates: operands and results of :func:`forward`.
        both: [h, x], or None.
        want: whether the gradients of x, weights, bias, h and c are wanted.

    Returns:
        The gradients of x, weights, bias, h and c. An unwanted gradient has no elements.
    """
    given = grad_h, grad_cell, grad_gates
    library, dtype, batch, features, state = check_cell_backward(x, *given, old_h, new_cell, gates, both)
    contiguous, empty, empty_like, nothing = library.contiguous, library.empty, library.empty_like, (0,)
    inputs = features + state
    want_x, want_weights, want_bias, want_h, want_cell = want
    new_cell, gates = contiguous(new_cell), contiguous(gates)
    grad_gates = None if grad_gates is None else contiguous(grad_gates)
    grad_bias = empty((3 * state,) if want_bias else nothing, dtype, x)
    # empty_like is the fastest way to allocate an array.
    grad_old = empty_like(new_cell) if want_cell else empty(nothing, dtype, x)
    db, dc0 = grad_bias if want_bias else None, grad_old if want_cell else None
    absent = library.skips(gates) or batch == 0 or state == 0
    if not absent and not (whole(batch, state, inputs) and batch <= WHOLE_ROWS):
        grad_z = empty_like(gates)
        step_backward(StepGradients(grad_h, grad_cell, grad_gates), gates, new_cell, grad_z, dc0, dtype, db)
        wanted = want_x and features > 0, want_weights, want_h
        products = _products_backward(x, weights, old_h, grad_z, both, dtype, wanted)
        shapes = x.shape if want_x else nothing, nothing, nothing  # shapes of the gradients that no product computes
        dx, dw, dh0 = (empty(s, dtype, x) if g is None else g for g, s in zip(products, shapes, strict=True))
        return dx, dw, grad_bias, dh0, grad_old
    grad_x = empty((batch, features) if want_x else nothing, dtype, x)
    grad_weights = empty((3 * state, inputs) if want_weights else nothing, dtype, x)
    grad_old_h = empty_like(new_cell) if want_h else empty(nothing, dtype, x)
    found = grad_x, grad_weights, grad_bias, grad_old_h, grad_old
    if absent:
        if not library.skips(gates):
            for gradient in found:
                gradient[...] = 0
        return found
    (dh, h_view), (dc, c_view) = view(library, grad_h, gates), view(library, grad_cell, gates)
    x, weights, old_h = contiguous(x), contiguous(weights), contiguous(old_h)
    of_inputs = -(-inputs // 32) * -(-batch // 4) if want_x or want_h or want_cell else 0
    of_weights = -(-inputs // 256) * -(-state // 4) if want_weights or want_bias else 0
    CELL_BACKWARD.launch_vouched(
        grad_h=dh,
        grad_cell=dc,
        grad_gates=grad_gates,
        x=x,
        weights=weights,
        old_h=old_h,
        new_cell=new_cell,
        gates=gates,
        grad_x=grad_x if want_x else None,
        grad_weights=grad_weights if want_weights else None,
        grad_bias=db,
        grad_old_h=grad_old_h if want_h else None,
        grad_old_cell=dc0,
        h_view=h_view,
        cell_view=c_view,
        B=batch,
        F=features,
        S=state,
        K=inputs,
        input_blocks=of_inputs,
        blocks=of_inputs + of_weights,
    )
    return found


def _products_backward(
    x: Any, weights: Any, old_h: Any, grad_z: Any, both: Any, dtype: str, wanted: tuple[bool, bool, bool]
) -> tuple[Any, Any, Any]:
    """Returns the gradients of x, weights and h by the library's products, which allocate the results.

    Args:
        x: (B, F).
        weights: (3·S, S + F).
        old_h: (B, S).
        grad_z: (B, 3·S), contiguous.
        both: [h, x], (B, S + F), or None.
        dtype: the dtype of all arrays.
        wanted: whether the gradients of x, weights and h are wanted. An unwanted gradient is None.
    """
    library = LIBRARIES[type(grad_z)]
    (batch, features), state, matmul = x.shape, old_h.shape[1], library.matmul
    grad_x = grad_weights = grad_h = None
    want_x, want_weights, want_h = wanted
    if want_h and want_x:
        grad_both = matmul(grad_z, weights)
        grad_h, grad_x = library.empty((batch, state), dtype, x), library.empty((batch, features), dtype, x)
        kernel, (columns, rows) = INPUTS_BACKWARD.launch(dtype, batch, state, features)
        kernel.launch_vouched(
            grad_inputs=grad_both,
            grad_h=grad_h,
            grad_x=grad_x,
            B=batch,
            F=features,
            S=state,
            K=features + state,
            columns=columns,
            rows=rows,
        )
    elif want_h:
        grad_h = matmul(grad_z, weights[:, :state])
    elif want_x:
        grad_x = matmul(grad_z, weights[:, state:])
    if want_weights:
        both = side_by_side(library, old_h, None, x, dtype) if both is None else both
        grad_weights = matmul(grad_z.T, both)
    return grad_x, grad_weights, grad_h


def step_backward(
    given: StepGradients, gates: Any, new_cell: Any, grad_z: Any, grad_old: Any, dtype: str, grad_bias: Any
) -> None:
    """Writes the gradients of z and c, and the bias's gradient.

    Args:
        given: the gradients of h', c' and z.
        gates, new_cell: z (B, 3·S) and c' (B, S), contiguous.
        grad_z: (B, 3·S), the gradient of z, written.
        grad_old: (B, S), the gradient of c, written, or None.
        dtype: the dtype of all arrays.
        grad_bias: (3·S), the bias's gradient, written, or None.
    """
    grad_h, grad_cell, grad_gates = given
    (batch, state), library = new_cell.shape, LIBRARIES[type(gates)]
    (dh, h_view), (dc, c_view) = view(library, grad_h, gates), view(library, grad_cell, gates)
    few = 0 if grad_bias is None else FEW_ROWS
    kernel, (parts, columns, rows) = STEP_BACKWARD.persistent(dtype, batch, state, device_of(library, gates), few)
    apart = grad_bias is not None and batch > few
    partial = library.empty((parts, 3 * state), DTYPES[dtype].acc, gates) if apart else None
    kernel.launch_vouched(
        grad_h=dh,
        grad_cell=dc,
        grad_gates=grad_gates,
        gates=gates,
        new_cell=new_cell,
        grad_z=grad_z,
        grad_old=grad_old,
        partial=partial,
        grad_bias=None if apart else grad_bias,
        h_view=h_view,
        cell_view=c_view,
        B=batch,
        S=state,
        parts=parts,
        columns=columns,
        rows=rows,
    )
    if partial is not None:
        SUMS.launch_vouched(partial=partial, sums=grad_bias, parts=parts, N=3 * state)


@on_any_arrays("x", "weights", "bias", "old_h", "old_cell")
def lltm_cell(x: Any, weights: Any, bias: Any, old_h: Any, old_cell: Any) -> tuple[Any, Any, Any]:
    """Returns one step of an LLTM on arrays on a GPU, without PyTorch.

    With (z_i, z_o, z_g) = [h, x]·Wᵀ + b: c' = c + elu(z_g)·σ(z_i) and h' = tanh(c')·σ(z_o).

    Args:
        x: (B, F), a CuPy array, or any array that exports DLPack from GPU memory; float16, bfloat16, float32, float64.
        weights: (3·S, S + F), of x's dtype. The first S columns belong to h. The rows belong to the gates i, o and g,
            in this order.
        bias: (3·S), of x's dtype.
        old_h, old_cell: (B, S), h and c, of x's dtype.

    Returns:
        CuPy arrays h' (B, S), c' (B, S) and z (B, 3·S), which :func:`lltm_cell_backward` takes. CuPy computes large
        products.

    Raises:
        TypeError: an operand is not an array or not floating, or the dtypes differ.
        ValueError: an operand is in host memory, or the shapes of the operands do not fit each other.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing; the message says what installs them.

    Source: PyTorch's tutorial "Custom C++ and CUDA Extensions" (Goldsborough, 2018).
    """
    return forward(x, weights, bias, old_h, old_cell)


@on_any_arrays("grad_h?", "grad_cell?", "x", "weights", "old_h", "new_cell", "gates")
def lltm_cell_backward(
    grad_h: Any, grad_cell: Any, x: Any, weights: Any, old_h: Any, new_cell: Any, gates: Any
) -> Gradients:
    """Returns the gradients of :func:`lltm_cell`.

    Args:
        grad_h, grad_cell: the gradients of h' and c', of any strides; each may be None.
        x, weights, old_h: operands of :func:`lltm_cell`.
        new_cell, gates: results of :func:`lltm_cell`, c' and z.

    Returns:
        CuPy arrays: the gradients of x, weights, bias, old_h and old_cell.

    Raises:
        TypeError, ValueError, MissingDependencyError: as :func:`lltm_cell`.
    """
    return backward(grad_h, grad_cell, None, x, weights, old_h, new_cell, gates, None, *(True,) * 5)
