"""The LLTM over a sequence: checks and launches of ``kernels_cu/lltm_sequence.cu``, and the products before and after."""

from functools import cache
from typing import Any

import kernels_cu

from . import driver
from .arrays import LIBRARIES, as_cupy
from .dtypes import DTYPES, FLOATS
from .errors import LaunchError, expected
from .geometry import Rows
from .kernel import Kernel
from .lltm import ABSENT, SUMS, check_parameters, check_sizes, step, step_backward_kernel
from .lltm_plan import CLUSTERS_SINCE, MOST_TURNS, Plan, rows_of_team, sequence_plan, turns

__all__ = ["lltm_sequence", "lltm_sequence_backward"]

TEXT = kernels_cu.source("lltm_sequence")
MOST_STEPS = 2**31 // 128  # that a counter of 32 bits counts, of the largest team


@cache
def forward_kernel(plan: Plan, dtype: str) -> Kernel:
    """The forward of one plan and one dtype."""
    return _kernel("lltm_sequence", plan, dtype, 1)


@cache
def backward_kernel(plan: Plan, dtype: str) -> Kernel:
    """The backward of one plan and one dtype."""
    return _kernel("lltm_sequence_backward", plan, dtype, 3)


def _kernel(name: str, plan: Plan, dtype: str, bands: int) -> Kernel:
    geometry = Rows("teams" if plan.team == 1 else "blocks", plan.block, blocks_per_row=plan.cluster)
    return Kernel(
        TEXT,
        name,
        geometry,
        dtypes=("float16", "bfloat16", "float32"),
        constants=plan.constants,
        shared=plan.shared(bands),
        since=plan.since,
        cooperative=plan.team > 1,
        choices=[{"scalar_t": dtype}],
    )


for _dtype in ("float16", "bfloat16", "float32"):
    # One of each kind, so that warmup() and the compile command find them.
    for _state in (112, 256, 1024):
        for _make, _forward in ((forward_kernel, True), (backward_kernel, False)):
            _plan = sequence_plan(_state, _forward, CLUSTERS_SINCE)
            assert _plan is not None
            _make(_plan, _dtype)


@cache
def way(state: int, batch: int, dtype: str, forward: bool, device: int) -> Plan | None:
    """How a GPU makes all steps in one launch; None if it does not: it has no room for a team at once, teams all over it
    would have to take too many turns, or rows have more elements than the texts count."""
    if dtype == "float64" or 3 * state * batch >= 2**31:
        return None
    plan = sequence_plan(state, forward, driver.capability(device))
    if plan is None:
        return None
    make = forward_kernel if forward else backward_kernel
    try:
        at_once = make(plan, dtype).resident_blocks({"scalar_t": dtype}, device)
        plan = rows_of_team(plan, forward, batch, at_once)
        at_once = make(plan, dtype).resident_blocks({"scalar_t": dtype}, device)
    except LaunchError:  # not one block or cluster fits
        return None
    if at_once < plan.cluster * plan.team or (plan.team > 1 and turns(plan, batch, at_once) > MOST_TURNS):
        return None
    return plan


def _launch(
    kernel: Kernel, plan: Plan, batch: int, dtype: str, device: int, library: Any, like: Any
) -> tuple[Any, ...]:
    """(counters, tiles, teams, blocks): tiles of rows, the teams that take turns at them, and those teams' blocks."""
    tiles = -(-batch // plan.tile)
    if plan.team == 1:
        return None, tiles, tiles, tiles * plan.cluster
    teams = min(tiles, kernel.resident_blocks({"scalar_t": dtype}, device) // plan.team)
    counters = library.empty((tiles,), "int32", like)
    counters[...] = 0
    return counters, tiles, teams, teams * plan.team


def forward(x: Any, weights: Any, bias: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any, Any]:
    """The body of a sequence: h and c of every step, the last of each, and z of every step."""
    library = LIBRARIES[type(x)]
    check(x, weights, bias, h0, c0)
    dtype = library.dtype_name(x)
    (steps, batch, features), state = x.shape, h0.shape[1]
    h = library.empty((steps, batch, state), dtype, x)
    last = library.empty((2, batch, state), dtype, x)
    cells = library.empty((steps, batch, state), dtype, x)
    gates = library.empty((steps, batch, 3 * state), dtype, x)
    if library.is_fake(h):
        return h, last, cells, gates
    if steps == 0:
        last[0], last[1] = h0, c0
    if steps == 0 or batch == 0 or state == 0:
        return h, last, cells, gates
    rows, flat = steps * batch, gates.reshape(steps * batch, 3 * state)
    transposed = weights.T
    library.addmm(bias, library.contiguous(x).reshape(rows, features), transposed[state:], flat)
    device = library.device_index(x)
    plan = way(state, batch, dtype, True, device) if steps <= MOST_STEPS else None
    if plan is None:
        _forward_by_steps(library, transposed[:state], h0, c0, gates, h, cells, dtype)
        last[0], last[1] = h[steps - 1], cells[steps - 1]
        return h, last, cells, gates
    weights, h0, c0 = library.contiguous(weights), library.contiguous(h0), library.contiguous(c0)
    kernel = forward_kernel(plan, dtype)
    counters, *counts = _launch(kernel, plan, batch, dtype, device, library, x)
    sizes = (steps, batch, state, features + state, *counts)
    kernel.launch_fresh(weights, h0, c0, gates, h, cells, last, counters, *sizes)
    return h, last, cells, gates


def _forward_by_steps(
    library: Any, weights: Any, old_h: Any, old_cell: Any, gates: Any, h: Any, cells: Any, dtype: str
) -> None:
    old_cell = library.contiguous(old_cell)
    for t in range(gates.shape[0]):
        z = gates[t]
        library.addmm(z, old_h, weights, z)
        old_h, new_cell = h[t], cells[t]
        step(library, z, old_cell, old_h, new_cell, dtype)
        old_cell = new_cell


def backward(
    grad_h: Any,
    grad_last: Any,
    grad_cells: Any,
    grad_gates: Any,
    x: Any,
    weights: Any,
    h0: Any,
    h: Any,
    cells: Any,
    gates: Any,
    want_x: bool,
    want_weights: bool,
    want_bias: bool,
    want_h: bool,
    want_cell: bool,
) -> tuple[Any, Any, Any, Any, Any]:
    """The body of the gradient: of x, weights, bias, h0 and c0; what is not wanted has no elements. The gradients of the
    results may each be absent."""
    library = LIBRARIES[type(x)]
    dtype = library.dtype_name(x)
    check_backward(grad_h, grad_last, grad_cells, grad_gates, x, h0, h, cells, gates)
    (steps, batch, features), state = x.shape, h0.shape[1]
    inputs = features + state
    grad_x = library.empty(x.shape if want_x else (0,), dtype, x)
    grad_weights = library.empty((3 * state, inputs) if want_weights else (0,), dtype, x)
    grad_bias = library.empty((3 * state,) if want_bias else (0,), dtype, x)
    grad_h0 = library.empty((batch, state) if want_h else (0,), dtype, x)
    grad_c0 = library.empty((batch, state) if want_cell else (0,), dtype, x)
    found = grad_x, grad_weights, grad_bias, grad_h0, grad_c0
    if library.is_fake(grad_x):
        return found
    if steps == 0 or batch == 0 or state == 0:
        for gradient in found:
            gradient[...] = 0
        for wanted, gradient, i in ((want_h, grad_h0, 0), (want_cell, grad_c0, 1)):
            if wanted and grad_last is not None:
                gradient[...] = grad_last[i]
        return found
    given = (grad_h, grad_last, grad_cells, grad_gates)
    grad_h, grad_last, grad_cells, grad_gates = (None if g is None else library.contiguous(g) for g in given)
    h0, h, cells, gates = (library.contiguous(a) for a in (h0, h, cells, gates))
    grad_z = library.empty((steps, batch, 3 * state), dtype, x)
    device = library.device_index(x)
    plan = way(state, batch, dtype, False, device) if steps <= MOST_STEPS else None
    if plan is None:
        grads = (grad_h, grad_last, grad_cells, grad_gates)
        first = _backward_by_steps(library, *grads, weights[:, :state], cells, gates, grad_z, dtype, want_h)
        for wanted, gradient, value in zip((want_h, want_cell), (grad_h0, grad_c0), first, strict=True):
            if wanted:
                gradient[...] = value
        if want_bias:
            SUMS.launch_fresh(grad_z, grad_bias, steps * batch, 3 * state)
    else:
        kernel = backward_kernel(plan, dtype)
        counters, tiles, *counts = _launch(kernel, plan, batch, dtype, device, library, x)
        parts = tiles * plan.rows
        sums = library.empty((parts, 3 * state), DTYPES[dtype].acc, x)
        first = tuple(
            g if wanted else library.empty((batch, state), dtype, x)
            for g, wanted in ((grad_h0, want_h), (grad_c0, want_cell))
        )
        grads = (grad_h, grad_last, grad_cells, grad_gates)
        sizes = (steps, batch, state, inputs, parts, tiles, *counts)
        kernel.launch_fresh(*grads, library.contiguous(weights), gates, cells, grad_z, *first, sums, counters, *sizes)
        if want_bias:
            SUMS.launch_fresh(sums, grad_bias, parts, 3 * state)
    _products(library, grad_z, x, weights, h0, h, grad_x if want_x else None, grad_weights if want_weights else None)
    return found


def _products(library: Any, grad_z: Any, x: Any, weights: Any, h0: Any, h: Any, grad_x: Any, grad_weights: Any) -> None:
    """What is made of dz after all steps: the gradients of x and of the weights."""
    (steps, batch, features), state = x.shape, h0.shape[1]
    rows = steps * batch
    flat = grad_z.reshape(rows, 3 * state)
    if grad_x is not None and features:
        library.matmul_into(flat, weights[:, state:], grad_x.reshape(rows, features))
    if grad_weights is None:
        return
    if features:
        library.matmul_into(flat.T, library.contiguous(x).reshape(rows, features), grad_weights[:, state:])
    recurrent = grad_weights[:, :state]
    library.matmul_into(grad_z[0].T, h0, recurrent)
    if steps > 1:
        library.addmm(recurrent, flat[batch:].T, h[: steps - 1].reshape(rows - batch, state), recurrent)


def _backward_by_steps(
    library: Any,
    grad_h: Any,
    grad_last: Any,
    grad_cells: Any,
    grad_gates: Any,
    weights: Any,
    cells: Any,
    gates: Any,
    grad_z: Any,
    dtype: str,
    want_h: bool,
) -> tuple[Any, Any]:
    """The gradients of h0 and c0."""
    steps, batch, state = cells.shape
    dh, dc = (None, None) if grad_last is None else (grad_last[0], grad_last[1])
    kernel = step_backward_kernel(state, dtype)
    columns, parts = -(-state // kernel.constants.get("LANES", 1)), min(-(-batch // 8), 65535)
    sizes = (batch, state, parts, columns, parts * 8)
    for t in range(steps - 1, -1, -1):
        if grad_h is not None:
            dh = grad_h[t] if dh is None else dh + grad_h[t]
        if grad_cells is not None:
            dc = grad_cells[t] if dc is None else dc + grad_cells[t]
        before = library.empty((batch, state), dtype, cells)
        dh, h_view = (gates, ABSENT) if dh is None else (dh, (1, state, 1))
        dc, cell_view = (gates, ABSENT) if dc is None else (dc, (1, state, 1))
        more = None if grad_gates is None else grad_gates[t]
        kernel.launch_fresh(dh, dc, more, gates[t], cells[t], grad_z[t], before, None, h_view, cell_view, *sizes)
        dc = before
        if t > 0 or want_h:
            dh = library.empty((batch, state), dtype, cells)
            library.matmul_into(grad_z[t], weights, dh)
    return dh, dc


def check(x: Any, weights: Any, bias: Any, h0: Any, c0: Any) -> None:
    """Refuses what no lane takes: the same words for a body and for a reference.

    Raises:
        TypeError: x is not floating, or another array is of another dtype.
        ValueError: shapes that do not belong together.
    """
    library = LIBRARIES[type(x)]
    dtype = library.dtype_name(x)
    if dtype not in FLOATS:
        raise TypeError(expected("lltm", "input", f"have dtype {' or '.join(FLOATS)}", dtype))
    states = {"h0": h0, "c0": c0}
    check_parameters("lltm", dtype, x, weights, bias, states)
    if len(x.shape) != 3:
        raise ValueError(expected("lltm", "input", "have shape (T, B, F)", tuple(x.shape)))
    for name, state in states.items():
        if len(state.shape) != 2 or state.shape[0] != x.shape[1]:
            wanted = f"have shape ({x.shape[1]}, S), as `input` has {x.shape[1]} rows a step"
            raise ValueError(expected("lltm", name, wanted, tuple(state.shape)))
    check_sizes("lltm", x.shape[2], weights, bias, states)


def check_backward(
    grad_h: Any,
    grad_last: Any,
    grad_cells: Any,
    grad_gates: Any,
    x: Any,
    h0: Any,
    h: Any,
    cells: Any,
    gates: Any,
) -> None:
    """Refuses gradients that are not of the results' shapes and dtype, and results that are not of the inputs'.

    Raises:
        ValueError: another shape.
        TypeError: another dtype.
    """
    where, library = "lltm_sequence_backward", LIBRARIES[type(x)]
    dtype, (steps, batch, _), state = library.dtype_name(x), x.shape, h0.shape[1]
    rows = (steps, batch, state)
    wanted = {
        "grad_h": (grad_h, rows),
        "grad_last": (grad_last, (2, batch, state)),
        "grad_cells": (grad_cells, rows),
        "grad_gates": (grad_gates, (steps, batch, 3 * state)),
        "h": (h, rows),
        "cells": (cells, rows),
        "gates": (gates, (steps, batch, 3 * state)),
    }
    for name, (array, shape) in wanted.items():
        if array is None:
            continue
        if tuple(array.shape) != shape:
            raise ValueError(expected(where, name, f"have shape {shape}", tuple(array.shape)))
        if library.dtype_name(array) != dtype:
            raise TypeError(expected(where, name, f"have dtype {dtype}", library.dtype_name(array)))


def lltm_sequence(x: Any, weights: Any, bias: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any, Any]:
    """All steps of an LLTM on arrays on a GPU, without PyTorch.

    Args:
        x: (T, B, F), a CuPy array, or any array that exports DLPack from GPU memory; float16, bfloat16, float32, float64.
        weights, bias: as for :func:`cupyops.lltm_cell`.
        h0, c0: (B, S). All of x's dtype.

    Returns:
        CuPy arrays: h (T, B, S), the last h and c (2, B, S), c (T, B, S), and z (T, B, 3·S), which
        :func:`lltm_sequence_backward` takes. The products over all steps are CuPy's, by the libraries that it needs.

    Raises:
        TypeError: no array, not floating, or dtypes that differ.
        ValueError: in host memory, or shapes that do not belong together.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing; the message says what installs them.
    """
    arrays = {"x": x, "weights": weights, "bias": bias, "h0": h0, "c0": c0}
    return forward(*(as_cupy(a, "lltm_sequence", name) for name, a in arrays.items()))


def lltm_sequence_backward(
    grad_h: Any, grad_last: Any, x: Any, weights: Any, h0: Any, h: Any, cells: Any, gates: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """Gradients of :func:`lltm_sequence`.

    Args:
        grad_h, grad_last: of h, and of the last h and c; each may be None.
        x, weights, h0: what :func:`lltm_sequence` was given.
        h, cells, gates: what it gave.

    Returns:
        CuPy arrays: the gradients of x, weights, bias, h0 and c0.

    Raises:
        ValueError, TypeError: operands that do not belong together; else as :func:`lltm_sequence`.
    """
    where = "lltm_sequence_backward"
    dh, dl = (None if g is None else as_cupy(g, where, n) for g, n in ((grad_h, "grad_h"), (grad_last, "grad_last")))
    named = {"x": x, "weights": weights, "h0": h0, "h": h, "cells": cells, "gates": gates}
    x, weights, h0, h, cells, gates = (as_cupy(a, where, name) for name, a in named.items())
    return backward(dh, dl, None, None, x, weights, h0, h, cells, gates, True, True, True, True, True)
