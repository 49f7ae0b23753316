"""What the LLTM's bodies and references refuse, of a cell and of a sequence, in the same words."""

from typing import Any

from .arrays import LIBRARIES
from .dtypes import FLOATS
from .errors import expected

__all__ = ["belong", "check", "check_leading", "check_results"]


def belong(dimensions: int, x: Any, weights: Any, bias: Any, h: Any, c: Any) -> bool:
    """Whether shapes and dtypes belong together: a glance on the way to every launch, after whose no :func:`check` says
    what is wrong."""
    shape, of_state = x.shape, h.shape
    if len(shape) != dimensions or len(of_state) != 2:
        return False
    gates = 3 * of_state[1]
    return bool(
        x.dtype == weights.dtype == bias.dtype == h.dtype == c.dtype
        and of_state == c.shape
        and of_state[0] == shape[-2]
        and weights.shape == (gates, shape[-1] + of_state[1])
        and bias.shape == (gates,)
    )


def check(where: str, x: Any, weights: Any, bias: Any, **states: Any) -> None:
    """Refuses what no lane takes.

    Args:
        where: lltm_cell, or lltm, whose input has steps.
        states: two, by their names.

    Raises:
        TypeError: x is not floating, or another array is of another dtype.
        ValueError: shapes that do not belong together.
    """
    library, steps = LIBRARIES[type(x)], where == "lltm"
    dtype, shape = library.dtype_name(x), tuple(x.shape)
    if dtype not in FLOATS:
        raise TypeError(expected(where, "input", f"have dtype {' or '.join(FLOATS)}", dtype))
    for name, array in (("weights", weights), ("bias", bias), *states.items()):
        if library.dtype_name(array) != dtype:
            raise TypeError(expected(where, name, f"have dtype {dtype}, as `input`", library.dtype_name(array)))
    if len(shape) != 2 + steps:
        raise ValueError(expected(where, "input", f"have shape {'(T, B, F)' if steps else '(B, F)'}", shape))
    for name, array in states.items():
        if len(array.shape) != 2 or array.shape[0] != shape[-2]:
            wanted = f"have shape ({shape[-2]}, S), as `input` has {shape[-2]} rows{' a step' if steps else ''}"
            raise ValueError(expected(where, name, wanted, tuple(array.shape)))
    state = next(iter(states.values())).shape[1]
    for name, array in states.items():
        if array.shape[1] != state:
            raise ValueError(expected(where, name, f"have {state} columns, as the other state", tuple(array.shape)))
    if tuple(weights.shape) != (3 * state, shape[-1] + state):
        wanted = f"have shape (3·S, F + S) = {(3 * state, shape[-1] + state)}"
        raise ValueError(expected(where, "weights", wanted, tuple(weights.shape)))
    if tuple(bias.shape) != (3 * state,):
        raise ValueError(expected(where, "bias", f"have shape (3·S) = {(3 * state,)}", tuple(bias.shape)))


def check_leading(x: Any, old_h: Any, old_cell: Any) -> None:
    """Refuses an input of a cell without features, and states that have not its dimensions before them.

    Raises:
        ValueError: so it is.
    """
    if len(x.shape) == 0:
        raise ValueError(expected("lltm_cell", "input", "have shape (B, F) or (F)", ()))
    for name, state in (("old_h", old_h), ("old_cell", old_cell)):
        if tuple(state.shape[:-1]) != tuple(x.shape[:-1]) or len(state.shape) != len(x.shape):
            wanted = f"have shape {(*x.shape[:-1], 'S')}, as `input` has {tuple(x.shape)}".replace("'", "")
            raise ValueError(expected("lltm_cell", name, wanted, tuple(state.shape)))


def check_results(where: str, like: Any, **wanted: tuple[Any, tuple[int, ...]]) -> None:
    """Refuses results and gradients that are not of the shapes, and the input's dtype, that they have to be.

    Args:
        like: the input.
        wanted: by name, an array or None, and its shape.

    Raises:
        ValueError: another shape.
        TypeError: another dtype.
    """
    library = LIBRARIES[type(like)]
    dtype = library.dtype_name(like)
    for name, (array, shape) in wanted.items():
        if array is None:
            continue
        if tuple(array.shape) != tuple(shape):
            raise ValueError(expected(where, name, f"have shape {tuple(shape)}", tuple(array.shape)))
        if library.dtype_name(array) != dtype:
            raise TypeError(expected(where, name, f"have dtype {dtype}", library.dtype_name(array)))
