"""Test data of rms_norm, with and without a weight."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import rms_norm

from .data import COLUMNS, FLOATS, ROWS, Arguments, Case, FamilyData, LaunchCase, dtype_name, last, launch_case, random


def _row(x: Any) -> Any:
    """A weight for the last dimension of x; of what is no tensor, None."""
    if not isinstance(x, Tensor):
        return None
    return 1 + torch.arange(x.shape[-1], device=x.device).remainder(7).to(x.dtype) / 8


CASES = [
    Case(
        "rms_norm",
        lambda x: rms_norm(x, last(x), _row(x)),
        lambda x: F.rms_norm(x, last(x), _row(x)),
        torch.ops.cupyops.rms_norm.default,
        lambda x: (x, _row(x), 1e-5),
        1,
        elementwise=False,
        atol=1e-3,
    ),
    Case(
        "rms_norm_without_weight",
        lambda x: rms_norm(x, last(x)),
        lambda x: F.rms_norm(x, last(x)),
        torch.ops.cupyops.rms_norm_without_weight.default,
        lambda x: (x, 1e-5),
        1,
        elementwise=False,
        atol=1e-3,
    ),
]
X, WEIGHT = random(ROWS, COLUMNS), random(COLUMNS, seed=7)


def _samples() -> list[Arguments]:
    return [(X, WEIGHT, 1e-5), (X[:1], WEIGHT, 0.1)]


def _samples_without_weight() -> list[Arguments]:
    return [(X, 1e-5), (X[:1], 0.1)]


def _launches() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for n in (100, 1024, 32768):
            x, weight, about = ((64, n), dtype), ((n,), dtype), f"{dtype_name(dtype)} {n}"
            yield launch_case("rms_norm", about, lambda x, w: rms_norm(x, (w.shape[0],), w), x, weight)
            yield launch_case("rms_norm", f"{about} no weight", lambda x: rms_norm(x, (x.shape[-1],)), x)


DATA = FamilyData(CASES, {"rms_norm": _samples, "rms_norm_without_weight": _samples_without_weight}, _launches)
