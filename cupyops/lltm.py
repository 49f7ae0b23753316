"""The LLTM cell: checks and launches of ``kernels_cu/lltm.cu``, and the products around them."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import kernels_cu

from .arrays import LIBRARIES, as_cupy
from .dtypes import DTYPES, FLOATS
from .errors import expected
from .geometry import Geometry, Rows, Threads
from .kernel import Kernel
from .layer_norm_plan import lanes_for

__all__ = ["lltm_cell", "lltm_cell_backward"]

TEXT = kernels_cu.source("lltm")
ROWS_AT_ONCE, MOST_BLOCKS = 8, 65535  # rows of a block of the pointwise kernels; blocks in y
# Products of up to so many multiplications are made by the kernel of the whole cell: there a product of PyTorch's takes
# as long as a launch, whatever its size.
WHOLE_WORK, WHOLE_INPUTS = 2**23, 2048
WHOLE_ROWS = 256  # of a backward: each of its blocks for the weights goes through all of them

ABSENT = (0, 0, 0)  # what stands for the strides of a gradient that is not there


def _kernel(name: str, geometry: Geometry, lanes: int = 1, dtype: str | None = None) -> Kernel:
    constants = {"LANES": lanes} if lanes > 1 else {}
    choices = None if dtype is None else [{"scalar_t": dtype}]
    return Kernel(TEXT, name, geometry, dtypes=FLOATS, constants=constants, choices=choices)


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
def step_kernel(state: int, dtype: str) -> Kernel:
    """The forward's pointwise part, by the widest access that divides a row."""
    return _step("lltm_step", dtype, lanes_for(state, DTYPES[dtype].itemsize))


@cache
def step_backward_kernel(state: int, dtype: str) -> Kernel:
    """The backward's; a thread keeps the sums of its columns, so it has fewer of them."""
    return _step("lltm_step_backward", dtype, min(lanes_for(state, DTYPES[dtype].itemsize), 4))


@cache
def _step(name: str, dtype: str, lanes: int) -> Kernel:
    # Two units of float64 at once take more registers than there are.
    lanes = 1 if dtype == "float64" else lanes
    return _kernel(name, Threads("columns", "rows", block=(32, ROWS_AT_ONCE, 1)), lanes, dtype)


for _dtype in FLOATS:
    # One of each, so that warmup() and the compile command find them.
    step_kernel(1024, _dtype)
    step_backward_kernel(1024, _dtype)


def whole(batch: int, state: int, inputs: int) -> bool:
    """Whether one kernel makes the whole cell, its products included."""
    return 3 * batch * state * inputs <= WHOLE_WORK and inputs <= WHOLE_INPUTS


def forward(x: Any, weights: Any, bias: Any, old_h: Any, old_cell: Any) -> tuple[Any, Any, Any]:
    """The body of a cell: h', c' and z = [h, x]·Wᵀ + b, which the gradient is made of."""
    library = LIBRARIES[type(x)]
    if not (
        x.dtype == weights.dtype == bias.dtype == old_h.dtype == old_cell.dtype
        and len(x.shape) == len(old_h.shape) == 2
        and old_h.shape == old_cell.shape
        and x.shape[0] == old_h.shape[0]
        and tuple(weights.shape) == (3 * old_h.shape[1], x.shape[1] + old_h.shape[1])
        and tuple(bias.shape) == (3 * old_h.shape[1],)
    ):
        check(x, weights, bias, old_h, old_cell)
    dtype = library.dtype_name(x)
    if dtype not in FLOATS:
        check(x, weights, bias, old_h, old_cell)
    (batch, features), state = x.shape, old_h.shape[1]
    new_h, new_cell = library.empty((batch, state), dtype, x), library.empty((batch, state), dtype, x)
    gates = library.empty((batch, 3 * state), dtype, x)
    if library.is_fake(new_h) or batch == 0 or state == 0:
        return new_h, new_cell, gates
    old_cell = library.contiguous(old_cell)
    inputs = features + state
    if whole(batch, state, inputs):
        x, weights, bias, old_h = (library.contiguous(a) for a in (x, weights, bias, old_h))
        threads, tiles = -(-state // 4) * 128, -(-batch // 16)
        CELL.launch_fresh(
            x, weights, bias, old_h, old_cell, new_h, new_cell, gates, batch, features, state, inputs, threads, tiles
        )
        return new_h, new_cell, gates
    transposed = weights.T
    library.addmm(bias, old_h, transposed[:state], gates)
    library.addmm(gates, x, transposed[state:], gates)
    step(library, gates, old_cell, new_h, new_cell, dtype)
    return new_h, new_cell, gates


def step(library: Any, gates: Any, old_cell: Any, new_h: Any, new_cell: Any, dtype: str) -> None:
    """From z and c to h' and c'."""
    batch, state = new_h.shape
    kernel = step_kernel(state, dtype)
    columns, rows = -(-state // kernel.constants.get("LANES", 1)), min(batch, ROWS_AT_ONCE * MOST_BLOCKS)
    kernel.launch_fresh(gates, old_cell, new_h, new_cell, batch, state, columns, rows)


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
    for grad, like in ((grad_h, new_cell), (grad_cell, new_cell), (grad_gates, gates)):
        if grad is not None and (grad.shape != like.shape or grad.dtype != x.dtype):
            check_backward(library, dtype, grad_h, grad_cell, grad_gates, new_cell, gates)
    if tuple(new_cell.shape) != (batch, state) or tuple(gates.shape) != (batch, 3 * state):
        check_backward(library, dtype, grad_h, grad_cell, grad_gates, new_cell, gates, (batch, state))
    inputs = features + state
    grad_x = library.empty((batch, features) if want_x else (0,), dtype, x)
    grad_weights = library.empty((3 * state, inputs) if want_weights else (0,), dtype, x)
    grad_bias = library.empty((3 * state,) if want_bias else (0,), dtype, x)
    grad_old_h = library.empty((batch, state) if want_h else (0,), dtype, x)
    grad_old = library.empty((batch, state) if want_cell else (0,), dtype, x)
    found = grad_x, grad_weights, grad_bias, grad_old_h, grad_old
    if library.is_fake(grad_x):
        return found
    if batch == 0 or state == 0:
        for gradient in (grad_x, grad_weights, grad_bias):
            gradient[...] = 0
        return found
    new_cell, gates = library.contiguous(new_cell), library.contiguous(gates)
    grad_gates = None if grad_gates is None else library.contiguous(grad_gates)
    grad_h, h_view = view(library, grad_h, gates)
    grad_cell, cell_view = view(library, grad_cell, gates)
    if whole(batch, state, inputs) and batch <= WHOLE_ROWS:
        x, weights, old_h = library.contiguous(x), library.contiguous(weights), library.contiguous(old_h)
        input_blocks = -(-inputs // 32) * -(-batch // 4) if want_x or want_h or want_cell else 0
        weight_blocks = -(-inputs // 256) * -(-state // 4) if want_weights or want_bias else 0
        CELL_BACKWARD.launch_fresh(
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
    kernel = step_backward_kernel(state, dtype)
    columns = -(-state // kernel.constants.get("LANES", 1))
    parts = _parts(kernel, dtype, library.device_index(x), -(-columns // 32), batch)
    partial = library.empty((parts, 3 * state), DTYPES[dtype].acc, x) if want_bias else None
    old = grad_old if want_cell else None
    sizes = (batch, state, parts, columns, parts * ROWS_AT_ONCE)
    kernel.launch_fresh(grad_h, grad_cell, grad_gates, gates, new_cell, grad_z, old, partial, h_view, cell_view, *sizes)
    if want_bias:
        SUMS.launch_fresh(partial, grad_bias, parts, 3 * state)
    if want_h:
        library.matmul_into(grad_z, weights[:, :state], grad_old_h)
    if want_x and features:
        library.matmul_into(grad_z, weights[:, state:], grad_x)
    if want_weights:
        library.matmul_into(grad_z.T, old_h, grad_weights[:, :state])
        if features:
            library.matmul_into(grad_z.T, x, grad_weights[:, state:])
    return found


@cache
def _at_once(kernel: Kernel, dtype: str, device: int) -> int:
    return kernel.resident_blocks({"scalar_t": dtype}, device)


def _parts(kernel: Kernel, dtype: str, device: int, tiles: int, batch: int) -> int:
    """Blocks that stay, each with its share of the rows."""
    return max(1, min(_at_once(kernel, dtype, device) // tiles, -(-batch // ROWS_AT_ONCE), MOST_BLOCKS))


def check(x: Any, weights: Any, bias: Any, old_h: Any, old_cell: Any) -> None:
    """Refuses what no lane takes: the same words for a body and for a reference.

    Raises:
        TypeError: x is not floating, or another array is of another dtype.
        ValueError: shapes that do not belong together.
    """
    library = LIBRARIES[type(x)]
    dtype = library.dtype_name(x)
    if dtype not in FLOATS:
        raise TypeError(expected("lltm_cell", "input", f"have dtype {' or '.join(FLOATS)}", dtype))
    check_parameters("lltm_cell", dtype, x, weights, bias, {"old_h": old_h, "old_cell": old_cell})
    if len(x.shape) != 2:
        raise ValueError(expected("lltm_cell", "input", "have shape (B, F)", tuple(x.shape)))
    for name, state in (("old_h", old_h), ("old_cell", old_cell)):
        if len(state.shape) != 2 or state.shape[0] != x.shape[0]:
            wanted = f"have shape ({x.shape[0]}, S), as `input` has {x.shape[0]} rows"
            raise ValueError(expected("lltm_cell", name, wanted, tuple(state.shape)))
    check_sizes("lltm_cell", x.shape[1], weights, bias, {"old_h": old_h, "old_cell": old_cell})


def check_leading(x: Any, old_h: Any, old_cell: Any) -> None:
    """Refuses an input without features, and states that have not its dimensions before them.

    Raises:
        ValueError: so it is.
    """
    if len(x.shape) == 0:
        raise ValueError(expected("lltm_cell", "input", "have shape (B, F) or (F)", ()))
    for name, state in (("old_h", old_h), ("old_cell", old_cell)):
        if tuple(state.shape[:-1]) != tuple(x.shape[:-1]) or len(state.shape) != len(x.shape):
            wanted = f"have shape {(*x.shape[:-1], 'S')}, as `input` has {tuple(x.shape)}".replace("'", "")
            raise ValueError(expected("lltm_cell", name, wanted, tuple(state.shape)))


def check_parameters(where: str, dtype: str, x: Any, weights: Any, bias: Any, states: dict[str, Any]) -> None:
    """Refuses arrays of another dtype than the input's.

    Raises:
        TypeError: so it is.
    """
    library = LIBRARIES[type(x)]
    for name, array in (("weights", weights), ("bias", bias), *states.items()):
        if library.dtype_name(array) != dtype:
            raise TypeError(expected(where, name, f"have dtype {dtype}, as `input`", library.dtype_name(array)))


def check_sizes(where: str, features: int, weights: Any, bias: Any, states: dict[str, Any]) -> None:
    """Refuses weights, a bias or states whose sizes do not belong together.

    Raises:
        ValueError: so it is.
    """
    state = next(iter(states.values())).shape[-1]
    for name, array in states.items():
        if array.shape[-1] != state:
            raise ValueError(expected(where, name, f"have {state} columns, as the other state", tuple(array.shape)))
    if tuple(weights.shape) != (3 * state, features + state):
        wanted = f"have shape (3·S, F + S) = {(3 * state, features + state)}"
        raise ValueError(expected(where, "weights", wanted, tuple(weights.shape)))
    if tuple(bias.shape) != (3 * state,):
        raise ValueError(expected(where, "bias", f"have shape (3·S) = {(3 * state,)}", tuple(bias.shape)))


def check_backward(
    library: Any,
    dtype: str,
    grad_h: Any,
    grad_cell: Any,
    grad_gates: Any,
    new_cell: Any,
    gates: Any,
    shape: Sequence[int] | None = None,
) -> None:
    """Refuses gradients that are not of the results' shapes and dtype, and results that are not of the inputs'.

    Raises:
        ValueError: another shape.
        TypeError: another dtype.
    """
    where = "lltm_cell_backward"
    if shape is not None:
        for name, array, columns in (("new_cell", new_cell, shape[1]), ("gates", gates, 3 * shape[1])):
            if tuple(array.shape) != (shape[0], columns):
                raise ValueError(expected(where, name, f"have shape {(shape[0], columns)}", tuple(array.shape)))
    for name, grad, like in (
        ("grad_h", grad_h, new_cell),
        ("grad_cell", grad_cell, new_cell),
        ("grad_gates", grad_gates, gates),
    ):
        if grad is None:
            continue
        if grad.shape != like.shape:
            raise ValueError(expected(where, name, f"have shape {tuple(like.shape)}", tuple(grad.shape)))
        if library.dtype_name(grad) != dtype:
            raise TypeError(expected(where, name, f"have dtype {dtype}", library.dtype_name(grad)))


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
