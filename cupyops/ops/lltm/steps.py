"""The LLTM over a sequence by launches of single steps: each step is a product and one kernel.

The sequence runs by single steps for float64, for more units than the registers of one launch hold, and on GPUs that
cannot run all blocks of one launch at once. The host's time limits the speed of a step, so views and buffers are made
before the loop.
"""

from typing import Any

from cupyops.arrays import device_of

from .cell import ABSENT, STEP, STEP_BACKWARD

__all__ = ["backward", "forward"]


def forward(library: Any, weights: Any, first_h: Any, first_c: Any, gates: Any, h: Any, cells: Any, dtype: str) -> None:
    """Writes h and c of all steps, and completes z.

    Args:
        weights: (S, 3·S), the transposed weights of h.
        first_h: (B, S).
        first_c: (B, S), contiguous.
        gates: (T, B, 3·S), the part of z that depends on x; the part that depends on h is added.
        h, cells: (T, B, S), written.
    """
    _, batch, state = h.shape
    kernel, (columns, rows) = STEP.launch(dtype, batch, state)
    old_h, old_cell = first_h, first_c
    for z, new_h, new_cell in zip(list(gates), list(h), list(cells), strict=True):
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
    library: Any, given: Any, weights: Any, cells: Any, gates: Any, grad_z: Any, grad_h0: Any, grad_c0: Any, dtype: str
) -> None:
    """Writes the gradients of z of all steps, and of h0 and c0.

    Args:
        given: the gradients of h, of the last h and c, of c, and of z. Each is contiguous or None. The gradient of h is
            overwritten: each step adds its gradient of the h before the step.
        weights: (3·S, S), the weights of h.
        cells, gates: c and z, which the forward returned.
        grad_z: (T, B, 3·S), written.
        grad_h0, grad_c0: (B, S), written, or None.
    """
    steps, batch, state = cells.shape
    kernel, (parts, columns, rows) = STEP_BACKWARD.persistent(dtype, batch, state, device_of(library, cells))
    dense = (1, state, 1)
    # Two buffers alternate: a launch reads the gradient that the launch before it wrote.
    made_c = [library.empty((batch, state), dtype, cells) for _ in range(2)]
    made_h = library.empty((batch, state), dtype, cells) if given[0] is None else None
    of_h, of_last, of_cells, of_gates = ([None] * steps if g is None else list(g) for g in given)
    z, c, dz = list(gates), list(cells), list(grad_z)
    dh, dc = (None, None) if given[1] is None else of_last
    dh, dc = _sum(dh, of_h[-1]), _sum(dc, of_cells[-1])
    for t in range(steps - 1, -1, -1):
        before = made_c[t % 2] if t else grad_c0
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
    if grad_h0 is not None:
        library.matmul_into(dz[0], weights, grad_h0)


def _sum(a: Any, b: Any) -> Any:
    """Returns the sum of two gradients, each of which may be None."""
    return b if a is None else a if b is None else a + b
