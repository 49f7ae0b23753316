"""Checks of shapes and dtypes. The LLTM operators and their PyTorch references share the checks."""

from typing import Any

from cupyops.errors import expected
from cupyops.ops.shapes import shape_check

__all__ = ["check_cell", "check_cell_backward", "check_leading", "check_sequence", "check_sequence_backward"]

PARAMETERS = {"weights": "(3 * S, S + F)", "bias": "(3 * S,)"}
STEP = {"grad_h": "(B, S)?", "grad_cell": "(B, S)?", "grad_gates": "(B, 3 * S)?", "old_h": "(B, S)"}
STEPS = {"grad_h": "(T, B, S)?", "grad_last": "(2, B, S)?", "grad_cells": "(T, B, S)?", "grad_gates": "(T, B, 3 * S)?"}
RESULTS = {"h": "(T, B, S)", "cells": "(T, B, S)", "gates": "(T, B, 3 * S)"}

check_cell = shape_check("lltm_cell", input="(B, F)", **PARAMETERS, old_h="(B, S)", old_cell="(B, S)")
check_cell_backward = shape_check(
    "lltm_cell_backward", input="(B, F)", **STEP, new_cell="(B, S)", gates="(B, 3 * S)", both="(B, S + F)?"
)
check_sequence = shape_check("lltm", input="(T, B, F)", **PARAMETERS, h0="(B, S)", c0="(B, S)")
check_sequence_backward = shape_check("lltm_sequence_backward", input="(T, B, F)", **STEPS, h0="(B, S)", **RESULTS)


def check_leading(x: Any, old_h: Any, old_cell: Any) -> None:
    """Raises unless the leading dimensions of a cell's operands are equal.

    Raises:
        ValueError: `input` has no dimension, or a state has other dimensions before the last than `input`.
    """
    if len(x.shape) == 0:
        raise ValueError(expected("lltm_cell", "input", "have shape (B, F) or (F)", ()))
    for name, state in (("old_h", old_h), ("old_cell", old_cell)):
        if tuple(state.shape[:-1]) != tuple(x.shape[:-1]) or len(state.shape) != len(x.shape):
            wanted = f"have shape {(*x.shape[:-1], 'S')}, as `input` has {tuple(x.shape)}".replace("'", "")
            raise ValueError(expected("lltm_cell", name, wanted, tuple(state.shape)))
