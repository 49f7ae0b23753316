"""Test data of add2."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from autograd_bridge import add2
from tests.support import FLOATS

from .data import (
    COLUMNS,
    ROW,
    ROWS,
    Arguments,
    Case,
    FamilyData,
    LaunchCase,
    dtype_name,
    launch_case,
    model_of,
    random,
)

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)

CASES = [
    Case("add2", add2, torch.add, torch.ops.cupyops.add2.default, lambda a, b: (a, b, 1), 2),
    Case(
        "add2_alpha",
        lambda a, b: add2(a, b, alpha=-0.3),
        lambda a, b: torch.add(a, b, alpha=-0.3),
        torch.ops.cupyops.add2.default,
        lambda a, b: (a, b, -0.3),
        2,
    ),
]


def _samples() -> list[Arguments]:
    a = random(ROWS, COLUMNS)
    return [(a, random(ROWS, COLUMNS, seed=6), 1), (a, random(COLUMNS, seed=7), -0.5)]


def _number(dtype: torch.dtype) -> Callable[[], Tensor]:
    """A tensor without dimensions in host memory, which a kernel is given by value."""

    def made() -> Tensor:
        found = torch.ones((), dtype=dtype)
        found.on_host = True  # type: ignore[attr-defined]
        return found

    return made


def _launches() -> Iterator[LaunchCase]:
    for dtype in (*FLOATS, *INTEGERS, torch.uint16, torch.uint32, torch.uint64):
        d = dtype_name(dtype)
        yield launch_case("add2", f"alike {d}", add2, ((64, 128), dtype), ((64, 128), dtype))
        yield launch_case("add2", f"broadcast {d}", add2, ((64, 1), dtype), ((1, 48), dtype))
        yield launch_case("add2", f"a number behind {d}", add2, ((37, 19), dtype), _number(dtype))
        yield launch_case("add2", f"a number in front {d}", add2, _number(dtype), ((37, 19), dtype))
    f = torch.float32
    yield launch_case("add2", "a row", add2, ((33, 35), f), ((35,), f))
    yield launch_case("add2", "alpha", lambda a, b: add2(a, b, alpha=-0.3), ((5, 7), f), ((5, 7), f))
    yield launch_case("add2", "mixed dtypes", add2, ((64, 128), torch.float16), ((64, 128), f))
    yield launch_case("add2", "transposed both", lambda a, b: add2(a.T, b.T), ((48, 64), f), ((48, 64), f))
    yield launch_case("add2", "transposed one", lambda a, b: add2(a.T, b), ((48, 64), f), ((64, 48), f))
    yield launch_case("add2", "three dimensions", add2, ((4, 1, 16), f), ((6, 1), f))
    yield launch_case("add2", "every second", lambda a, b: add2(a[:, ::2], b), ((8, 64), f), ((8, 32), f))
    yield launch_case("add2", "off the beginning", lambda a, b: add2(a[1:], b[1:]), ((33,), f), ((33,), f))
    yield launch_case("add2", "large", add2, ((1 << 24,), torch.bfloat16), ((1 << 24,), torch.bfloat16))


MODELS = {
    "add2": model_of(lambda a, b: add2(a, b, alpha=2), ROW, ROW),
    "add2 of a row": model_of(lambda a: add2(a, torch.ones(8, dtype=a.dtype)), ROW),
}
DATA = FamilyData(CASES, {"add2": _samples}, _launches, MODELS)
