"""The LLTM over a sequence: checks, launches of the kernels of all steps, and the library's products before and after.

The kernels are ``kernels_cu/lltm_sequence*.cu`` and ``kernels_cu/lltm_tensor_cores*.cu``.
"""

from functools import cache, lru_cache
from itertools import product
from typing import Any

import kernels_cu
from cupyops.arrays import Device, device_of, on_any_arrays
from cupyops.dtypes import DTYPES
from cupyops.launch import driver
from cupyops.launch.kernel import Kernel
from cupyops.tiling.config import CLUSTERS_SINCE
from cupyops.tiling.teams import TeamLaunch

from . import steps as lltm_steps
from .cell import SUMS, Gradients, side_by_side
from .checks import check_sequence, check_sequence_backward
from .config import SequenceConfig, TensorCoresConfig, sequence_config
from .steps import SequenceGradients, States

__all__ = ["lltm_sequence", "lltm_sequence_backward"]

TYPES = ("float16", "bfloat16", "float32")
MOST_STEPS = 2**31 // 128  # the most steps that the 32-bit counter of the largest team can count


@cache
def kernel_of(config: SequenceConfig | TensorCoresConfig, dtype: str) -> Kernel:
    """Returns the kernel of a config, declared for one dtype."""
    name = f"{config.text}_backward" if config.backward else config.text
    types = TYPES if isinstance(config, SequenceConfig) else TYPES[:2]
    return config.kernel(kernels_cu.source(name), name, {"scalar_t": dtype}, dtypes=types)


# Declares a kernel of each kind for warmup() and the compile command.
for _dtype, _state, _forward in product(TYPES, (64, 256, 1024), (True, False)):
    _config = sequence_config(_state, _forward, CLUSTERS_SINCE, DTYPES[_dtype].itemsize)
    assert _config is not None
    kernel_of(_config, _dtype)


@lru_cache(4096)
def way(state: int, batch: int, dtype: str, forward: bool, device: Device) -> TeamLaunch | None:
    """Returns the launch that computes all steps on a GPU.

    Args:
        state, batch: units of a row, and rows.
        dtype: the dtype of the arrays.
        forward: whether the launch is the forward; else the launch is the backward.
        device: the GPU's index, or a simulated device.

    Returns:
        The launch. None if each step is a separate launch: the dtype is float64, the GPU has no room for a team, a team
            would
        compute too many tiles, or a step has 2^31 elements or more.
    """
    if dtype not in TYPES or 3 * state * batch >= 2**31:
        return None
    config = sequence_config(state, forward, driver.capability(device), DTYPES[dtype].itemsize)
    return None if config is None else config.fitted(lambda cut: kernel_of(cut, dtype), dtype, batch, device)


def forward(x: Any, weights: Any, bias: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any, Any]:
    """Returns h of every step, the last h and c, c of every step, and z of every step, on arrays of any library."""
    library, dtype, steps, batch, features, state = check_sequence(x, weights, bias, h0, c0)
    h, cells, last = (library.empty((count, batch, state), dtype, x) for count in (steps, steps, 2))
    if library.skips(h) or steps == 0 or batch == 0 or state == 0:
        if steps == 0 and not library.skips(h):
            last[0], last[1] = h0, c0
        return h, last, cells, library.empty((steps, batch, 3 * state), dtype, x)
    gates = library.linear(library.contiguous(x), weights[:, state:], bias)
    launch = way(state, batch, dtype, True, device_of(library, x)) if steps <= MOST_STEPS else None
    c0 = library.contiguous(c0)
    if launch is None:
        lltm_steps.forward(weights[:, :state].T, States(h0, c0), gates, States(h, cells), dtype)
        last[0], last[1] = h[steps - 1], cells[steps - 1]
        return h, last, cells, gates
    weights, h0, counters = library.contiguous(weights), library.contiguous(h0), launch.counters(library, x)
    tiles, teams, blocks = launch.counts
    launch.kernel.launch_vouched(
        weights=weights,
        first_h=h0,
        first_c=c0,
        gates=gates,
        h=h,
        cells=cells,
        last=last,
        counters=counters,
        T=steps,
        B=batch,
        S=state,
        K=features + state,
        tiles=tiles,
        teams=teams,
        blocks=blocks,
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
    *want: bool,
) -> Gradients:
    """Returns the gradients of a sequence, on arrays of any library.

    Args:
        grad_h, grad_last, grad_cells, grad_gates: the gradients of the results of :func:`forward`; each may be None.
        x, weights, h0, h, cells, gates: operands and results of :func:`forward`.
        want: whether the gradients of x, weights, bias, h0 and c0 are wanted.

    Returns:
        The gradients of x, weights, bias, h0 and c0. An unwanted gradient has no elements.
    """
    given = (grad_h, grad_last, grad_cells, grad_gates)
    library, dtype, steps, batch, features, state = check_sequence_backward(x, *given, h0, h, cells, gates)
    empty, contiguous, of_state = library.empty, library.contiguous, (batch, state)
    want_x, want_weights, want_bias, want_h, want_cell = want
    shapes = (steps, batch, features), (3 * state, features + state), (3 * state,), of_state, of_state
    found: Any = tuple(empty(s if wanted else (0,), dtype, x) for s, wanted in zip(shapes, want, strict=True))
    grad_x, grad_weights, grad_bias, grad_h0, grad_c0 = found
    if library.skips(grad_x):
        return found
    if steps == 0 or batch == 0 or state == 0:
        for gradient in found:
            gradient[...] = 0
        for wanted, gradient, i in ((want_h, grad_h0, 0), (want_cell, grad_c0, 1)):
            if wanted and grad_last is not None:
                gradient[...] = grad_last[i]
        return found
    dh, *others = (None if g is None else contiguous(g) for g in given)
    cells, gates = contiguous(cells), contiguous(gates)
    grad_z = empty((steps, batch, 3 * state), dtype, x)
    launch = way(state, batch, dtype, False, device_of(library, x)) if steps <= MOST_STEPS else None
    if launch is None:
        if dh is not None and dh is grad_h:
            dh = library.copy(dh)  # lltm_steps.backward overwrites dh
        first = States(grad_h0 if want_h else None, grad_c0 if want_cell else None)
        results = SequenceGradients(dh, *others)
        lltm_steps.backward(results, weights[:, :state], cells, gates, grad_z, first, dtype)
        sums, parts = grad_z, steps * batch
    else:
        parts = launch.parts
        sums = empty((parts, 3 * state), DTYPES[dtype].acc, x)
        d_last, d_cells, d_gates = others
        tiles, teams, blocks = launch.counts
        launch.kernel.launch_vouched(
            grad_h=dh,
            grad_last=d_last,
            grad_cells=d_cells,
            grad_gates=d_gates,
            weights=contiguous(weights),
            gates=gates,
            cells=cells,
            grad_z=grad_z,
            grad_first_h=grad_h0 if want_h else empty(of_state, dtype, x),
            grad_first_c=grad_c0 if want_cell else empty(of_state, dtype, x),
            bias_sums=sums,
            counters=launch.counters(library, x),
            T=steps,
            B=batch,
            S=state,
            K=features + state,
            parts=parts,
            tiles=tiles,
            teams=teams,
            blocks=blocks,
        )
    if want_bias:
        SUMS.launch_vouched(partial=sums, sums=grad_bias, parts=parts, N=3 * state)
    flat = grad_z.reshape((steps * batch, 3 * state))
    if want_x and features:
        library.matmul_into(flat, weights[:, state:], grad_x.reshape((steps * batch, features)))
    if want_weights:
        before = side_by_side(library, h0, contiguous(h), contiguous(x), dtype)
        library.matmul_into(flat.T, before, grad_weights)
    return found


@on_any_arrays("x", "weights", "bias", "h0", "c0")
def lltm_sequence(x: Any, weights: Any, bias: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any, Any]:
    """Returns all steps of an LLTM on arrays on a GPU, without PyTorch.

    Args:
        x: (T, B, F), a CuPy array, or any array that exports DLPack from GPU memory; float16, bfloat16, float32,
            float64.
        weights, bias: as for :func:`cupyops.lltm_cell`.
        h0, c0: (B, S), h and c before the first step, of x's dtype.

    Returns:
        CuPy arrays: h (T, B, S), the last h and c (2, B, S), c (T, B, S), and z (T, B, 3·S).
        :func:`lltm_sequence_backward` takes h, c and z. CuPy computes the products over all steps.

    Raises:
        TypeError: an operand is not an array or not floating, or the dtypes differ.
        ValueError: an operand is in host memory, or the shapes of the operands do not fit each other.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing; the message says what installs them.
    """
    return forward(x, weights, bias, h0, c0)


@on_any_arrays("grad_h?", "grad_last?", "x", "weights", "h0", "h", "cells", "gates")
def lltm_sequence_backward(
    grad_h: Any, grad_last: Any, x: Any, weights: Any, h0: Any, h: Any, cells: Any, gates: Any
) -> Gradients:
    """Returns the gradients of :func:`lltm_sequence`.

    Args:
        grad_h, grad_last: the gradients of h, and of the last h and c; each may be None.
        x, weights, h0: operands of :func:`lltm_sequence`.
        h, cells, gates: results of :func:`lltm_sequence`: h, c and z of every step.

    Returns:
        CuPy arrays: the gradients of x, weights, bias, h0 and c0.

    Raises:
        TypeError, ValueError, MissingDependencyError: as :func:`lltm_sequence`.
    """
    return backward(grad_h, grad_last, None, None, x, weights, h0, h, cells, gates, *(True,) * 5)
