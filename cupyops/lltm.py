"""The LLTM cell: checks and launches of ``kernels_cu/lltm.cu``, and the products around them."""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import kernels_cu

from .arrays import LIBRARIES, as_cupy
from .dtypes import DTYPES, FLOATS
from .geometry import Geometry, Rows, Threads
from .kernel import Kernel
from .layer_norm_plan import lanes_for
from .lltm_checks import belong, check, check_results

__all__ = ["lltm_cell", "lltm_cell_backward"]

TEXT = kernels_cu.source("lltm")
THREADS, MOST_BLOCKS = 256, 65535  # of a block of the pointwise kernels; blocks in y
# Products of up to so many multiplications are made by the kernel of the whole cell: there a product of PyTorch's takes
# as long as a launch, whatever its size.
WHOLE_WORK, WHOLE_INPUTS = 2**23, 2048
# Columns of h and x together from which a product in float32 takes the library longer with the bias than without it and our
# kernel to add it, on an H200: 64 x 512 x 1024 39.3 µs with, 23.4 without; 256 x 1024 x 4096 839 and 667.
BIAS_APART = 1024
WHOLE_ROWS = 256  # of a backward: each of its blocks for the weights goes through all of them

ABSENT = (0, 0, 0)  # what stands for the strides of a gradient that is not there


def _kernel(
    name: str, geometry: Geometry, constants: Mapping[str, int] | None = None, dtype: str | None = None
) -> Kernel:
    choices = None if dtype is None else [{"scalar_t": dtype}]
    return Kernel(TEXT, name, geometry, dtypes=FLOATS, constants=constants or {}, choices=choices)


CELL = _kernel("lltm_cell", Threads("threads", "tiles", block=(128, 1, 1)))
CELL_BACKWARD = _kernel("lltm_cell_backward", Rows("blocks", 256))
SUMS = Kernel(
    TEXT,
    "lltm_sums",
    Threads("N", block=(32, 32, 1)),
    dtypes=FLOATS,
    choices=[{"scalar_t": d, "part_t": DTYPES[d].acc} for d in FLOATS],
)


@cache
def step_kernel(state: int, dtype: str, adds_bias: bool = False) -> Kernel:
    """The forward's pointwise part, by the widest access that divides a row; of float32 by 8 bytes, for the more threads."""
    lanes = lanes_for(state, DTYPES[dtype].itemsize)
    constants = {"ADD_BIAS": 1} if adds_bias else {}
    return _pointwise("lltm_step", dtype, state, min(lanes, 2) if dtype == "float32" else lanes, constants)


@cache
def step_backward_kernel(state: int, dtype: str) -> Kernel:
    """The backward's; a thread keeps the sums of its columns, so it has fewer of them."""
    return _pointwise("lltm_step_backward", dtype, state, min(lanes_for(state, DTYPES[dtype].itemsize), 4))


@cache
def inputs_kernel(features: int, state: int, dtype: str, *, backward: bool = False) -> Kernel:
    """What puts h and x beside each other, or a gradient apart."""
    size = DTYPES[dtype].itemsize
    lanes = min(lanes_for(features, size), lanes_for(state, size))
    return _pointwise("lltm_inputs_backward" if backward else "lltm_inputs", dtype, features + state, lanes)


def _pointwise(name: str, dtype: str, n: int, lanes: int, more: Mapping[str, int] | None = None) -> Kernel:
    # Two units of float64 at once take more registers than there are.
    lanes = 1 if dtype == "float64" else lanes
    abreast = abreast_for(-(-n // lanes))
    constants = {"LANES": lanes, "ABREAST": abreast, **(more or {})}
    return _kernel(name, Threads("columns", "rows", block=(abreast, THREADS // abreast, 1)), constants, dtype)


@cache
def abreast_for(columns: int) -> int:
    """Threads of a block side by side: a power of 2, of 8 to 32 the one that leaves the fewest idle at the end of a row."""
    if columns < 8:
        return 1 << (columns - 1).bit_length()
    return min((32, 16, 8), key=lambda n: -columns % n)


step_kernel(1024, "float32", True)
for _dtype in FLOATS:
    # One of each, so that warmup() and the compile command find them.
    step_kernel(1024, _dtype)
    step_backward_kernel(1024, _dtype)
    inputs_kernel(1024, 1024, _dtype)
    inputs_kernel(1024, 1024, _dtype, backward=True)


@lru_cache(4096)
def pointwise_sizes(kernel: Kernel, n: int, rows: int) -> tuple[int, int]:
    """Threads across rows of n elements and down so many rows, of a launch in which blocks take turns if need be."""
    down = THREADS // kernel.constants["ABREAST"]
    return -(-n // kernel.constants.get("LANES", 1)), min(rows, down * MOST_BLOCKS)


def whole(batch: int, state: int, inputs: int) -> bool:
    """Whether one kernel makes the whole cell, its products included."""
    return 3 * batch * state * inputs <= WHOLE_WORK and inputs <= WHOLE_INPUTS


def forward(x: Any, weights: Any, bias: Any, old_h: Any, old_cell: Any) -> tuple[Any, Any, Any]:
    """The body of a cell: h', c' and z = [h, x]·Wᵀ + b, which the gradient is made of."""
    library = LIBRARIES[type(x)]
    dtype = library.dtype_name(x)
    if not belong(2, x, weights, bias, old_h, old_cell) or dtype not in FLOATS:
        check("lltm_cell", x, weights, bias, old_h=old_h, old_cell=old_cell)
    (batch, features), state = x.shape, old_h.shape[1]
    contiguous = library.contiguous
    old_cell = contiguous(old_cell)
    # The cheapest way to an array is one like another.
    new_h, new_cell = library.empty_like(old_cell), library.empty_like(old_cell)
    if library.is_fake(new_h) or batch == 0 or state == 0:
        return new_h, new_cell, library.empty((batch, 3 * state), dtype, x)
    inputs = features + state
    if whole(batch, state, inputs):
        x, weights, bias, old_h = contiguous(x), contiguous(weights), contiguous(bias), contiguous(old_h)
        gates = library.empty((batch, 3 * state), dtype, x)
        threads, tiles = -(-state // 4) * 128, -(-batch // 16)
        CELL.launch_vouched(
            x, weights, bias, old_h, old_cell, new_h, new_cell, gates, batch, features, state, inputs, threads, tiles
        )
        return new_h, new_cell, gates
    inputs_side_by_side = side_by_side(library, old_h, None, x, dtype)
    apart = contiguous(bias) if dtype == "float32" and inputs >= BIAS_APART else None
    gates = library.linear(inputs_side_by_side, weights, bias if apart is None else None)
    step(gates, old_cell, new_h, new_cell, dtype, apart)
    return new_h, new_cell, gates


def step(gates: Any, old_cell: Any, new_h: Any, new_cell: Any, dtype: str, bias: Any = None) -> None:
    """From z and c to h' and c'; a bias is added to z first."""
    batch, state = new_h.shape
    kernel = step_kernel(state, dtype, bias is not None)
    sizes = pointwise_sizes(kernel, state, batch)
    kernel.launch_vouched(bias, old_cell, gates, new_h, new_cell, batch, state, *sizes)


def side_by_side(library: Any, first_h: Any, h: Any, x: Any, dtype: str) -> Any:
    """The rows [h, x] of one step, or of all steps of a sequence with h of the step before: (rows, S + F). The weights'
    product with them is one, which a sum of two products would take longer than."""
    batch, state = first_h.shape
    features = x.shape[-1]
    if h is None and not features:
        return first_h
    steps = 1 if h is None else x.shape[0]
    inputs = library.empty((steps * batch, state + features), dtype, x)
    kernel = inputs_kernel(features, state, dtype)
    sizes = pointwise_sizes(kernel, state + features, steps * batch)
    first_h, x = library.contiguous(first_h), library.contiguous(x)
    kernel.launch_vouched(first_h, h, x, inputs, steps, batch, features, state, state + features, *sizes)
    return inputs


def view(library: Any, grad: Any, like: Any) -> tuple[Any, tuple[int, int, int]]:
    """A gradient as the kernels take it: an array, and whether it is there and its strides."""
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
    want_x: bool,
    want_weights: bool,
    want_bias: bool,
    want_h: bool,
    want_cell: bool,
) -> tuple[Any, Any, Any, Any, Any]:
    """The body of the gradient: of x, weights, bias, h and c; what is not wanted has no elements. The gradients of the
    results may have any strides, and each may be absent."""
    library = LIBRARIES[type(x)]
    dtype = library.dtype_name(x)
    (batch, features), state = x.shape, old_h.shape[1]
    check_backward(grad_h, grad_cell, grad_gates, x, old_h, new_cell, gates)
    inputs = features + state
    new_cell, gates = library.contiguous(new_cell), library.contiguous(gates)
    grad_x = library.empty((batch, features) if want_x else (0,), dtype, x)
    grad_weights = library.empty((3 * state, inputs) if want_weights else (0,), dtype, x)
    grad_bias = library.empty((3 * state,) if want_bias else (0,), dtype, x)
    # The cheapest way to an array is one like another.
    grad_old_h = library.empty_like(new_cell) if want_h else library.empty((0,), dtype, x)
    grad_old = library.empty_like(new_cell) if want_cell else library.empty((0,), dtype, x)
    found = grad_x, grad_weights, grad_bias, grad_old_h, grad_old
    if library.is_fake(grad_x):
        return found
    if batch == 0 or state == 0:
        for gradient in (grad_x, grad_weights, grad_bias):
            gradient[...] = 0
        return found
    grad_gates = None if grad_gates is None else library.contiguous(grad_gates)
    grad_h, h_view = view(library, grad_h, gates)
    grad_cell, cell_view = view(library, grad_cell, gates)
    if whole(batch, state, inputs) and batch <= WHOLE_ROWS:
        x, weights, old_h = library.contiguous(x), library.contiguous(weights), library.contiguous(old_h)
        input_blocks = -(-inputs // 32) * -(-batch // 4) if want_x or want_h or want_cell else 0
        weight_blocks = -(-inputs // 256) * -(-state // 4) if want_weights or want_bias else 0
        CELL_BACKWARD.launch_vouched(
            grad_h,
            grad_cell,
            grad_gates,
            x,
            weights,
            old_h,
            new_cell,
            gates,
            grad_x if want_x else None,
            grad_weights if want_weights else None,
            grad_bias if want_bias else None,
            grad_old_h if want_h else None,
            grad_old if want_cell else None,
            h_view,
            cell_view,
            batch,
            features,
            state,
            inputs,
            input_blocks,
            input_blocks + weight_blocks,
        )
        return found
    grad_z = library.empty((batch, 3 * state), dtype, x)
    old = grad_old if want_cell else None
    partial = step_backward(
        grad_h, grad_cell, grad_gates, gates, new_cell, grad_z, old, h_view, cell_view, dtype, want_bias
    )
    if want_bias:
        SUMS.launch_vouched(partial, grad_bias, partial.shape[0], 3 * state)
    if want_h and want_x and features:
        both = library.empty((batch, inputs), dtype, x)
        library.matmul_into(grad_z, weights, both)
        kernel = inputs_kernel(features, state, dtype, backward=True)
        sizes = pointwise_sizes(kernel, inputs, batch)
        kernel.launch_vouched(both, grad_old_h, grad_x, batch, features, state, inputs, *sizes)
    elif want_h:
        library.matmul_into(grad_z, weights[:, :state], grad_old_h)
    elif want_x and features:
        library.matmul_into(grad_z, weights[:, state:], grad_x)
    if want_weights:
        library.matmul_into(grad_z.T, side_by_side(library, old_h, None, x, dtype), grad_weights)
    return found


def step_backward(
    grad_h: Any,
    grad_cell: Any,
    grad_gates: Any,
    gates: Any,
    new_cell: Any,
    grad_z: Any,
    grad_old: Any,
    h_view: tuple[int, int, int],
    cell_view: tuple[int, int, int],
    dtype: str,
    want_sums: bool,
) -> Any:
    """From the gradients of h' and c', as :func:`view` gives them, those of z and c; and what is left of the sums of the
    former over the rows, (parts, 3·S), where they are wanted."""
    (batch, state), library = new_cell.shape, LIBRARIES[type(gates)]
    kernel = step_backward_kernel(state, dtype)
    columns, _ = pointwise_sizes(kernel, state, batch)
    parts, down = parts_of(kernel, dtype, library.device_index(gates), columns, batch)
    partial = library.empty((parts, 3 * state), DTYPES[dtype].acc, gates) if want_sums else None
    sizes = (batch, state, parts, columns, parts * down)
    kernel.launch_vouched(
        grad_h, grad_cell, grad_gates, gates, new_cell, grad_z, grad_old, partial, h_view, cell_view, *sizes
    )
    return partial


@lru_cache(4096)
def parts_of(kernel: Kernel, dtype: str, device: int, columns: int, batch: int) -> tuple[int, int]:
    """Blocks that stay, each with its share of the rows, and how many of those a block has at once."""
    abreast = kernel.constants["ABREAST"]
    down = THREADS // abreast
    at_once = kernel.resident_blocks({"scalar_t": dtype}, device)
    return max(1, min(at_once // -(-columns // abreast), -(-batch // down), MOST_BLOCKS)), down


def check_backward(grad_h: Any, grad_cell: Any, grad_gates: Any, x: Any, old_h: Any, new_cell: Any, gates: Any) -> None:
    """Refuses gradients that are not of the results' shapes and dtype, and results that are not of the inputs'.

    Raises:
        ValueError: another shape.
        TypeError: another dtype.
    """
    batch, state, dtype = x.shape[0], old_h.shape[1], x.dtype
    of_state, of_gates = (batch, state), (batch, 3 * state)
    if not (  # a glance, on the way to every launch
        dtype == new_cell.dtype == gates.dtype
        and new_cell.shape == of_state
        and gates.shape == of_gates
        and (grad_h is None or (grad_h.shape == of_state and grad_h.dtype == dtype))
        and (grad_cell is None or (grad_cell.shape == of_state and grad_cell.dtype == dtype))
        and (grad_gates is None or (grad_gates.shape == of_gates and grad_gates.dtype == dtype))
    ):
        check_results(
            "lltm_cell_backward",
            x,
            new_cell=(new_cell, of_state),
            gates=(gates, of_gates),
            grad_h=(grad_h, of_state),
            grad_cell=(grad_cell, of_state),
            grad_gates=(grad_gates, of_gates),
        )


def lltm_cell(x: Any, weights: Any, bias: Any, old_h: Any, old_cell: Any) -> tuple[Any, Any, Any]:
    """One step of an LLTM on arrays on a GPU, without PyTorch.

    With (z_i, z_o, z_g) = [h, x]·Wᵀ + b: c' = c + elu(z_g)·σ(z_i) and h' = tanh(c')·σ(z_o).

    Args:
        x: (B, F), a CuPy array, or any array that exports DLPack from GPU memory; float16, bfloat16, float32, float64.
        weights: (3·S, S + F), the columns of h first; the rows of the gates i, o, g.
        bias: (3·S).
        old_h, old_cell: (B, S). All of x's dtype.

    Returns:
        CuPy arrays (h', c', z), z (B, 3·S), which :func:`lltm_cell_backward` takes. Large products are CuPy's, by the
        libraries that it needs for them.

    Raises:
        TypeError: no array, not floating, or dtypes that differ.
        ValueError: in host memory, or shapes that do not belong together.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing; the message says what installs them.

    Source: PyTorch's tutorial "Custom C++ and CUDA Extensions" (Goldsborough, 2018).
    """
    arrays = {"x": x, "weights": weights, "bias": bias, "old_h": old_h, "old_cell": old_cell}
    return forward(*(as_cupy(a, "lltm_cell", name) for name, a in arrays.items()))


def lltm_cell_backward(
    grad_h: Any, grad_cell: Any, x: Any, weights: Any, old_h: Any, new_cell: Any, gates: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """Gradients of :func:`lltm_cell`.

    Args:
        grad_h, grad_cell: of h' and c', of any strides; each may be None.
        x, weights, old_h: what :func:`lltm_cell` was given.
        new_cell, gates: what it gave.

    Returns:
        CuPy arrays: the gradients of x, weights, bias, old_h and old_cell.

    Raises:
        ValueError, TypeError: operands that do not belong together; else as :func:`lltm_cell`.
    """
    where = "lltm_cell_backward"
    dh, dc = (None if g is None else as_cupy(g, where, n) for g, n in ((grad_h, "grad_h"), (grad_cell, "grad_cell")))
    named = {"x": x, "weights": weights, "old_h": old_h, "new_cell": new_cell, "gates": gates}
    x, weights, old_h, new_cell, gates = (as_cupy(a, where, name) for name, a in named.items())
    return backward(dh, dc, None, x, weights, old_h, new_cell, gates, True, True, True, True, True)
