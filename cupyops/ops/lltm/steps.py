"""The LLTM over a sequence by launches of single steps: each step is a product and one kernel.

The sequence runs by single steps for float64, for more units than the registers of one launch hold, and on GPUs that
cannot run all blocks of one launch at once. The host's time limits the speed of a step, so views and buffers are made
before the loop.
"""

from typing import Any, NamedTuple

from cupyops.arrays import LIBRARIES, device_of

from .cell import ABSENT, STEP, STEP_BACKWARD

__all__ = ["SequenceGradients", "States", "backward", "forward"]


class States(NamedTuple):
    """h and c of one step, (B, S) each, or of all steps, (T, B, S) each; or the gradients of h and c."""

    h: Any
    cells: Any


class SequenceGradients(NamedTuple):
    """The gradients of the results of a sequence. Each is contiguous or None.

    Attributes:
        h: (T, B, S), the gradient of h of every step.
        last: (2, B, S), the gradients of the last h and c.
        cells: (T, B, S), the gradient of c of every step.
        gates: (T, B, 3·S), the gradient of z of every step.
    """

    h: Any
    last: Any
    cells: Any
    gates: Any


def forward(weights: Any, first: States, gates: Any, found: States, dtype: str) -> None:
    """Writes h and c of all steps, and completes z.

    Args:
        weights: (S, 3·S), the transposed weights of h.
        first: h and c before the first step, (B, S) each; c is contiguous.
        gates: (T, B, 3·S), the part of z that depends on x; the part that depends on h is added.
        found: h and c of all steps, (T, B, S) each, written.
        dtype: the dtype of all arrays.
    """
    library = LIBRARIES[type(gates)]
    _, batch, state = found.h.shape
    kernel, (columns, rows) = STEP.launch(dtype, batch, state)
    old_h, old_cell = first
    for z, new_h, new_cell in zip(list(gates), list(found.h), list(found.cells), strict=True):
        library.add_product(z, old_h, weights)
        kernel.launch_vouched(
            bias=None,
            old_cell=old_cell,
            gates=z,
            new_h=new_h,
            new_cell=new_cell,
            B=batch,
            S=state,
            columns=columns,
            rows=rows,
        )
        old_h, old_cell = new_h, new_cell


def backward(
    given: SequenceGradients, weights: Any, cells: Any, gates: Any, grad_z: Any, grad_first: States, dtype: str
) -> None:
    """Writes the gradients of z of all steps, and of h0 and c0.

    Args:
        given: the gradients of the results. The gradient of h is overwritten: each step adds its gradient of the h
            before the step.
        weights: (3·S, S), the weights of h.
        cells, gates: c (T, B, S) and z (T, B, 3·S), which the forward returned, contiguous.
        grad_z: (T, B, 3·S), written.
        grad_first: the gradients of h and c before the first step, (B, S) each, written; each may be None.
        dtype: the dtype of all arrays.
    """
    library = LIBRARIES[type(gates)]
    steps, batch, state = cells.shape
    kernel, (parts, columns, rows) = STEP_BACKWARD.persistent(dtype, batch, state, device_of(library, cells))
    dense = (1, state, 1)
    # Two buffers alternate: a launch reads the gradient that the launch before it wrote.
    made_c = [library.empty((batch, state), dtype, cells) for _ in range(2)]
    made_h = library.empty((batch, state), dtype, cells) if given.h is None else None
    of_h, of_last, of_cells, of_gates = ([None] * steps if g is None else list(g) for g in given)
    z, c, dz = list(gates), list(cells), list(grad_z)
    dh, dc = (None, None) if given.last is None else of_last
    dh, dc = _sum(dh, of_h[-1]), _sum(dc, of_cells[-1])
    for t in range(steps - 1, -1, -1):
        before = made_c[t % 2] if t else grad_first.cells
        h_given, h_view = (z[t], ABSENT) if dh is None else (dh, dense)
        c_given, c_view = (z[t], ABSENT) if dc is None else (dc, dense)
        kernel.launch_vouched(
            grad_h=h_given,
            grad_cell=c_given,
            grad_gates=of_gates[t],
            gates=z[t],
            new_cell=c[t],
            grad_z=dz[t],
            grad_old=before,
            partial=None,
            grad_bias=None,
            h_view=h_view,
            cell_view=c_view,
            B=batch,
            S=state,
            parts=parts,
            columns=columns,
            rows=rows,
        )
        if t == 0:
            break
        dh = of_h[t - 1] if made_h is None else made_h
        if made_h is None:
            library.add_product(dh, dz[t], weights)
        else:
            library.matmul_into(dz[t], weights, dh)
        dc = _sum(before, of_cells[t - 1])
    if grad_first.h is not None:
        library.matmul_into(dz[0], weights, grad_first.h)


def _sum(a: Any, b: Any) -> Any:
    """Returns the sum of two gradients, each of which may be None."""
    return b if a is None else a if b is None else a + b
