"""The LLTM over a sequence: checks and launches of ``kernels_cu/lltm_sequence.cu``, and the products before and after."""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import kernels_cu

from . import driver, lltm_steps
from .arrays import LIBRARIES, as_cupy
from .dtypes import DTYPES, FLOATS
from .errors import LaunchError
from .geometry import Rows
from .kernel import Kernel
from .lltm import SUMS, side_by_side
from .lltm_checks import belong, check, check_results
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
    for _state in (64, 256, 1024):
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


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch for all steps.

    Attributes:
        kernel: of one plan and dtype.
        tiles: of rows, for each of which a team that is all over the GPU counts its meetings.
        counts: how many tiles, teams that take turns at them, and blocks of those.
        parts: what the backward leaves of the sums of the gates' gradients.
        counted: there are such teams.
    """

    kernel: Kernel
    tiles: int
    counts: tuple[int, int, int]
    parts: int
    counted: bool

    def counters(self, library: Any, like: Any) -> Any:
        """Zeros, or None."""
        if not self.counted:
            return None
        counters = library.empty((self.tiles,), "int32", like)
        counters[...] = 0
        return counters


@lru_cache(1024)
def launch_of(plan: Plan, forward: bool, batch: int, dtype: str, device: int) -> Launch:
    """The launch of a plan for so many rows."""
    kernel = (forward_kernel if forward else backward_kernel)(plan, dtype)
    tiles = -(-batch // plan.tile)
    if plan.team == 1:
        counts = tiles, tiles, tiles * plan.cluster
    else:
        teams = min(tiles, kernel.resident_blocks({"scalar_t": dtype}, device) // plan.team)
        counts = tiles, teams, teams * plan.team
    return Launch(kernel, tiles, counts, tiles * plan.rows, plan.team > 1)


def forward(x: Any, weights: Any, bias: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any, Any]:
    """The body of a sequence: h and c of every step, the last of each, and z of every step."""
    library = LIBRARIES[type(x)]
    dtype = library.dtype_name(x)
    if not belong(3, x, weights, bias, h0, c0) or dtype not in FLOATS:
        check("lltm", x, weights, bias, h0=h0, c0=c0)
    (steps, batch, features), state = x.shape, h0.shape[1]
    h = library.empty((steps, batch, state), dtype, x)
    last = library.empty((2, batch, state), dtype, x)
    cells = library.empty((steps, batch, state), dtype, x)
    if library.is_fake(h) or steps == 0 or batch == 0 or state == 0:
        if steps == 0 and not library.is_fake(h):
            last[0], last[1] = h0, c0
        return h, last, cells, library.empty((steps, batch, 3 * state), dtype, x)
    gates = library.linear(library.contiguous(x), weights[:, state:], bias)
    device = library.device_index(x)
    plan = way(state, batch, dtype, True, device) if steps <= MOST_STEPS else None
    c0 = library.contiguous(c0)
    if plan is None:
        lltm_steps.forward(library, weights[:, :state].T, h0, c0, gates, h, cells, dtype)
        last[0], last[1] = h[steps - 1], cells[steps - 1]
        return h, last, cells, gates
    launch = launch_of(plan, True, batch, dtype, device)
    launch.kernel.launch_vouched(
        library.contiguous(weights),
        library.contiguous(h0),
        c0,
        gates,
        h,
        cells,
        last,
        launch.counters(library, x),
        steps,
        batch,
        state,
        features + state,
        *launch.counts,
    )
    return h, last, cells, gates


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
    dh, last, dc, dz = (None if g is None else library.contiguous(g) for g in given)
    cells, gates = library.contiguous(cells), library.contiguous(gates)
    grad_z = library.empty((steps, batch, 3 * state), dtype, x)
    device = library.device_index(x)
    plan = way(state, batch, dtype, False, device) if steps <= MOST_STEPS else None
    if plan is None:
        first_h, first_c = (grad_h0 if want_h else None), (grad_c0 if want_cell else None)
        if dh is not None and dh is grad_h:
            dh = library.copy(dh)  # the steps add to it
        lltm_steps.backward(
            library, dh, last, dc, dz, weights[:, :state], cells, gates, grad_z, first_h, first_c, dtype
        )
        if want_bias:
            SUMS.launch_vouched(grad_z, grad_bias, steps * batch, 3 * state)
    else:
        launch = launch_of(plan, False, batch, dtype, device)
        sums = library.empty((launch.parts, 3 * state), DTYPES[dtype].acc, x)
        launch.kernel.launch_vouched(
            dh,
            last,
            dc,
            dz,
            library.contiguous(weights),
            gates,
            cells,
            grad_z,
            grad_h0 if want_h else library.empty((batch, state), dtype, x),
            grad_c0 if want_cell else library.empty((batch, state), dtype, x),
            sums,
            launch.counters(library, x),
            steps,
            batch,
            state,
            inputs,
            launch.parts,
            *launch.counts,
        )
        if want_bias:
            SUMS.launch_vouched(sums, grad_bias, launch.parts, 3 * state)
    flat = grad_z.reshape((steps * batch, 3 * state))
    if want_x and features:
        library.matmul_into(flat, weights[:, state:], grad_x.reshape((steps * batch, features)))
    if want_weights:
        before = side_by_side(library, h0, library.contiguous(h), library.contiguous(x), dtype)
        library.matmul_into(flat.T, before, grad_weights)
    return found


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
    (steps, batch, _), state, dtype = x.shape, h0.shape[1], x.dtype
    rows, of_gates = (steps, batch, state), (steps, batch, 3 * state)
    if not (  # a glance, on the way to every launch
        dtype == h.dtype == cells.dtype == gates.dtype
        and h.shape == cells.shape == rows
        and gates.shape == of_gates
        and (grad_h is None or (grad_h.shape == rows and grad_h.dtype == dtype))
        and (grad_last is None or (grad_last.shape == (2, batch, state) and grad_last.dtype == dtype))
        and (grad_cells is None or (grad_cells.shape == rows and grad_cells.dtype == dtype))
        and (grad_gates is None or (grad_gates.shape == of_gates and grad_gates.dtype == dtype))
    ):
        check_results(
            "lltm_sequence_backward",
            x,
            grad_h=(grad_h, rows),
            grad_last=(grad_last, (2, batch, state)),
            grad_cells=(grad_cells, rows),
            grad_gates=(grad_gates, of_gates),
            h=(h, rows),
            cells=(cells, rows),
            gates=(gates, of_gates),
        )


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
