"""Test data of rms_norm, with and without a weight."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import AddRMSNorm, RMSNorm, add_rms_norm, rms_norm
from tests.support import FLOATS

from .data import (
    COLUMNS,
    ROW,
    ROWS,
    Arguments,
    Case,
    FamilyData,
    LaunchCase,
    Model,
    dtype_name,
    last,
    launch_case,
    model_of,
    random,
)


def _row(x: Any) -> Any:
    """A weight for the last dimension of x; None if it is not a tensor."""
    if not isinstance(x, Tensor):
        return None
    return 1 + torch.arange(x.shape[-1], device=x.device).remainder(7).to(x.dtype) / 8


def _sum_and_norm(x: Any, residual: Any, weight: Any) -> Any:
    s = x + residual
    return F.rms_norm(s, last(s), weight).to(s.dtype)


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
    Case(
        "add_rms_norm",
        lambda x, residual: add_rms_norm(x, residual, last(x), _row(x))[0],
        lambda x, residual: _sum_and_norm(x, residual, _row(x)),
        torch.ops.cupyops.add_rms_norm.default,
        lambda x, residual: (x, residual, _row(x), 1e-5),
        2,
        elementwise=False,
        atol=1e-3,
    ),
    Case(
        "add_rms_norm_without_weight",
        lambda x, residual: add_rms_norm(x, residual, last(x))[0],
        lambda x, residual: _sum_and_norm(x, residual, None),
        torch.ops.cupyops.add_rms_norm_without_weight.default,
        lambda x, residual: (x, residual, 1e-5),
        2,
        elementwise=False,
        atol=1e-3,
    ),
]
X, Z, WEIGHT = random(ROWS, COLUMNS), random(ROWS, COLUMNS, seed=6), random(COLUMNS, seed=7)


def _samples() -> list[Arguments]:
    return [(X, WEIGHT, 1e-5), (X[:1], WEIGHT, 0.1)]


def _samples_without_weight() -> list[Arguments]:
    return [(X, 1e-5), (X[:1], 0.1)]


def _add_samples() -> list[Arguments]:
    return [(X, Z, WEIGHT, 1e-5), (X[:1], Z[:1], WEIGHT, 0.1)]


def _add_samples_without_weight() -> list[Arguments]:
    return [(X, Z, 1e-5), (X[:1], Z[:1], 0.1)]


SAMPLES = {
    "rms_norm": _samples,
    "rms_norm_without_weight": _samples_without_weight,
    "add_rms_norm": _add_samples,
    "add_rms_norm_without_weight": _add_samples_without_weight,
}


def _launches() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for n in (100, 1024, 32768):
            x, weight, about = ((64, n), dtype), ((n,), dtype), f"{dtype_name(dtype)} {n}"
            yield launch_case("rms_norm", about, lambda x, w: rms_norm(x, (w.shape[0],), w), x, weight)
            yield launch_case("rms_norm", f"{about} no weight", lambda x: rms_norm(x, (x.shape[-1],)), x)
            added = lambda x, r, w=None: add_rms_norm(x, r, x.shape[-1:], w)  # noqa: E731
            yield launch_case("add_rms_norm", about, added, x, x, weight)
            yield launch_case("add_rms_norm", f"{about} no weight", added, x, x)


MODELS = {
    "RMSNorm": Model(RMSNorm(8), (ROW,)),
    "AddRMSNorm": Model(AddRMSNorm(8), (ROW, ROW)),
    "rms_norm": model_of(lambda x: rms_norm(x, 8, _row(x)), ROW),
    "add_rms_norm": model_of(lambda x, y: add_rms_norm(x, y, 8), ROW, ROW),
}
DATA = FamilyData(CASES, SAMPLES, _launches, MODELS)
