"""Test data of softmax and log_softmax."""

from collections.abc import Iterator

import torch

from autograd_bridge import log_softmax, softmax

from .data import COLUMNS, FLOATS, ROWS, Arguments, Case, FamilyData, LaunchCase, dtype_name, launch_case, random

CASES = [
    Case(
        name,
        lambda x, ours=ours: ours(x, -1),
        lambda x, theirs=theirs: theirs(x, -1),
        getattr(torch.ops.cupyops, name).default,
        lambda x: (x,),
        1,
        elementwise=False,
    )
    for name, ours, theirs in (
        ("softmax", softmax, torch.softmax),
        ("log_softmax", log_softmax, torch.log_softmax),
    )
]
X = random(ROWS, COLUMNS)


def _samples() -> list[Arguments]:
    return [(X,), (3 * X[:1],)]


def _launches() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for n in (100, 1024, 4544, 32768, 131072):
            x, about = ((16, n), dtype), f"{dtype_name(dtype)} {n}"
            yield launch_case("softmax", about, lambda x: softmax(x, -1), x)
            yield launch_case("log_softmax", about, lambda x: log_softmax(x, -1), x)


DATA = FamilyData(CASES, {"softmax": _samples, "log_softmax": _samples}, _launches)
