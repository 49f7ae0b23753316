"""The LLTM over a sequence by launches of single steps: a product and the pointwise kernel for each, in either direction.

This is the way of float64, of more units than one launch for all steps has room for, and of GPUs that cannot run its
blocks at once. What does not change from step to step is made before them, and every buffer once: the loops are the
host's time, of which a step has little.
"""

from typing import Any

from cupyops.arrays import device_of

from .cell import ABSENT, STEP, STEP_BACKWARD

__all__ = ["backward", "forward"]


def forward(library: Any, weights: Any, first_h: Any, first_c: Any, gates: Any, h: Any, cells: Any, dtype: str) -> None:
    """h and c of all steps, and their z, to the part of x in which that of h is added.

    Args:
        weights: (S, 3·S), those of h.
        first_h, first_c: (B, S); the latter contiguous.
        gates: (T, B, 3·S); h, cells: (T, B, S).
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
    """The gradients of the gates of all steps, and of h0 and c0.

    Args:
        given: those of h, the last h and c, c and the gates: contiguous, each may be None. What comes from later steps is
            added to the first.
        weights: (3·S, S), those of h.
        cells, gates: what the forward gave; grad_z: (T, B, 3·S), to be written.
        grad_h0, grad_c0: (B, S), to be written, or None.
    """
    steps, batch, state = cells.shape
    kernel, (parts, columns, rows) = STEP_BACKWARD.staying(dtype, batch, state, device_of(library, cells))
    dense = (1, state, 1)
    # Two in turn, since a launch reads what the last one wrote.
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
    """Of two gradients, each of which may be absent."""
    return b if a is None else a if b is None else a + b
