"""Arrays whose shapes match by letters, and the errors for those that do not."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from cupyops.arrays import LIBRARIES
from cupyops.ops.shapes import shape_check

CHECK = shape_check("op", x="(T, B, F)", weight="(3 * S, S + F)", grad="(B, S)?", h="(B, S)", last="(2, B, S)?")
Arrays = list[torch.Tensor | None]


def fitting() -> Arrays:
    return [torch.zeros(shape) for shape in ((5, 2, 3), (12, 7), (2, 4), (2, 4), (2, 2, 4))]


def test_it_gives_what_a_body_begins_with() -> None:
    x, weight, grad, h, last = fitting()
    assert CHECK.sizes == ("T", "B", "F", "S")  # type: ignore[attr-defined]
    assert CHECK(x, weight, grad, h, last) == (LIBRARIES[torch.Tensor], "float32", 5, 2, 3, 4)
    assert CHECK(x, weight, None, h, None)[1:] == ("float32", 5, 2, 3, 4)
    with pytest.raises(TypeError, match="not an array that kernels run on"):
        CHECK(np.zeros((5, 2, 3)), weight, grad, h, last)


def test_of_nothing() -> None:
    assert CHECK(torch.zeros(0, 0, 0), torch.zeros(0, 0), None, torch.zeros(0, 0), None)[2:] == (0, 0, 0, 0)


REFUSED: dict[str, tuple[int, Callable[[torch.Tensor], torch.Tensor], type[Exception], str]] = {
    "an integer": (
        0,
        lambda t: t.int(),
        TypeError,
        "op: `x` must have dtype float16 or bfloat16 or float32 or float64, got int32",
    ),
    "another dtype": (1, lambda t: t.half(), TypeError, "op: `weight` must have dtype float32, as `x`, got float16"),
    "another dtype, where it may be absent": (
        4,
        lambda t: t.double(),
        TypeError,
        "op: `last` must have dtype float32, as `x`, got float64",
    ),
    "dimensions": (0, lambda t: t[0], ValueError, "op: `x` must have shape (T, B, F), got (2, 3)"),
    "dimensions of a later one": (3, lambda t: t[None], ValueError, "op: `h` must have shape (B, S), got (1, 2, 4)"),
    "a size of an earlier one": (3, lambda t: t[:1], ValueError, "op: `h` must have shape (B, S) = (2, 4), got (1, 4)"),
    "a size that is made of others": (
        1,
        lambda t: t.t(),
        ValueError,
        "op: `weight` must have shape (3 * S, S + F) = (12, 7), got (7, 12)",
    ),
    "a size that a later one decides": (
        2,
        lambda t: t.t(),
        ValueError,
        "op: `grad` must have shape (B, S) = (2, 4), got (4, 2)",
    ),
    "dimensions of one that may be absent": (
        2,
        lambda t: t[0],
        ValueError,
        "op: `grad` must have shape (B, S) = (2, 4), got (4,)",
    ),
    "a number": (4, lambda t: t[:1], ValueError, "op: `last` must have shape (2, B, S) = (2, 2, 4), got (1, 2, 4)"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_refused(case: str) -> None:
    which, changed, kind, words = REFUSED[case]
    arrays = fitting()
    array = arrays[which]
    assert array is not None
    arrays[which] = changed(array)
    with pytest.raises(kind, match=re.escape(words)):
        CHECK(*arrays)


def test_sizes_of_fakes_stay_symbols() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    arrays = [None if t is None else mode.from_tensor(t, static_shapes=False) for t in fitting()]
    sizes = CHECK(*arrays)[2:]
    assert sizes == (5, 2, 3, 4)
    assert isinstance(sizes[0], torch.SymInt)


def test_a_declaration_that_is_no_shape() -> None:
    with pytest.raises(ValueError, match=re.escape("a shape must be a tuple, such as '(B, F)' or '(F,)', got '(F)'")):
        shape_check("op", x="(F)")
