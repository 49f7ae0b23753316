"""The arguments of the drop-ins, odd ones among them: each is taken or refused as PyTorch's function does it, in both lanes."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import autograd_bridge as ab
import cupyops

X = torch.tensor([[1.5, -0.3, -2.2, 0.6], [-1.1, -1.4, 0.4, 0.8], [-0.7, -0.4, -0.6, 0.2]])
T = torch.tensor([0, 1, 3])
WEIGHT = torch.tensor([0.5, 0.1, 1.0, 0.7])
FIVE = torch.linspace(-1, 1, 20).view(5, 4)
NAN = float("nan")


class Pair(NamedTuple):
    """PyTorch's function and the drop-in."""

    theirs: Callable[..., Tensor]
    ours: Callable[..., Tensor]


def called(*args: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, options


def rows_without_classes() -> list[Any]:
    cases = []
    for reduction in ("none", "sum", "mean"):
        for smoothing in (0.0, 0.1):
            options = {"reduction": reduction, "label_smoothing": smoothing}
            cases += [
                called(X[:2, :0], T[:2], **options),
                called(X[:2, :0], torch.tensor([-100, -100]), **options),
                called(X[:2, :0], torch.tensor([-100, 0]), WEIGHT[:0], **options),
                called(X[:0, :0], T[:0], **options),
                called(X[:0], T[:0], WEIGHT, **options),
                called(X[0, :0], T[0], **options),
                called(X[:2, :0, None].expand(2, 0, 4), torch.zeros(2, 4, dtype=torch.int64), **options),
            ]
    return cases


SOFTMAX = [
    *(
        called(X, dim)
        for dim in (1, -1, 0, 1.0, True, False, np.int64(1), np.float32(1), torch.tensor(1), "1", None, 2, -3)
    ),
    *(called(X, 1, dtype) for dtype in (torch.float64, torch.float16, torch.int64, torch.bool, "float32", None)),
    *(called(x, -1) for x in (X.int(), X > 0, X[0, 0], X[:0], X[:, :0])),
    *(called(X[0, 0], dim) for dim in (0, -1, 1, 0.0, False)),
    called(X.int(), -1, torch.float32),
]
CROSS_ENTROPY = [
    *(called(X, T.to(dtype)) for dtype in (torch.uint8, torch.int8, torch.int32, torch.bool)),
    *(called(X[0], t) for t in (T[0], T[:1], T[:2], T[:1].byte(), T[0].byte())),
    *(called(X[0], T[:1], reduction=reduction) for reduction in ("none", "sum")),
    *(called(X[0], T[:1], label_smoothing=smoothing) for smoothing in (0.1, -0.1)),
    *(called(X, t) for t in (T[:, None], T[0], T[:1], T[:2])),
    called(X[:1], T[:1, None]),
    called(X[None].expand(2, 3, 4), torch.zeros(2, 4, dtype=torch.uint8)),
    *(called(X[0, 0], t) for t in (T[0], X[0, 0])),
    *(called(X, T, label_smoothing=s) for s in (0, -0.1, -1, 1, 1.1, True, np.float32(0.1), torch.tensor(0.1), NAN, None, "1")),
    called(X, T, WEIGHT, label_smoothing=-0.1),
    *(called(X, T, ignore_index=i) for i in (1, 1.0, 1.5, True, False, np.int64(1), np.float64(1), torch.tensor(1), None, "1")),
    *(called(X, T, ignore_index=i) for i in (2**40, 2**63, -(2**63), -(2**63) - 1)),
    *(called(X, T, reduction=reduction) for reduction in ("elementwise_mean", "average", None, 1)),
    *(called(X, T, WEIGHT.to(dtype)) for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool)),
    *(called(X.double(), T, WEIGHT.to(dtype), label_smoothing=0.1) for dtype in (torch.float32, torch.float64)),
    *(called(X.bfloat16(), T, WEIGHT.to(dtype)) for dtype in (torch.float64, torch.float16, torch.bfloat16)),
    *(called(X, T, weight) for weight in (WEIGHT[None], WEIGHT[:3], [1.0] * 4, WEIGHT[0])),
    *(called(x, T) for x in (X.int(), X > 0, X.to(torch.complex64))),
    called(X, torch.tensor([0, 1, 255]).byte(), ignore_index=255),
    *rows_without_classes(),
]  # fmt: skip
EPS = (0, -1e-5, -1.0, True, np.float32(1e-5), torch.tensor(1e-5), "1", NAN, 1)
SHAPES = ([4], (np.int64(4),), (3, 4), (4.0,), (), (3,), None, torch.tensor([4]), 4.0)
NORM = [
    *(called(X, shape) for shape in SHAPES),
    *(called(X, (4,), weight) for weight in (WEIGHT.double(), WEIGHT[None], [1.0] * 4)),
    *(called(x, (4,)) for x in (X.int(), X > 0, X[:0], X[0, 0])),
    called(X[:, :0], (0,)),
]
LAYER_NORM = [
    *NORM,
    *(called(X, (4,), None, None, eps) for eps in (*EPS, None)),
    *(called(X, (4,), WEIGHT, WEIGHT.to(dtype)) for dtype in (torch.float64, torch.float16)),
    *(called(X.bfloat16(), (4,), WEIGHT.to(dtype), WEIGHT.to(dtype)) for dtype in (torch.float32, torch.float64)),
]
RMS_NORM = [*NORM, *(called(X, (4,), None, eps) for eps in EPS), called(X.bfloat16(), (4,), WEIGHT)]
GELU = [
    *(
        called(x, how)
        for x in (X, X.int(), X > 0, X[:0], X[0, 0], 3.0, X.to(torch.complex64))
        for how in ("none", "tanh")
    ),
    *(called(X, how) for how in ("erf", None, True, 1, "Tanh")),
]
LINEAR = [
    *(called(x, FIVE) for x in (X, X[0], X[0, 0], X[:0], X[None, :0], X > 0, X.half(), X.double())),
    called(X[:, :0], FIVE[:, :0], WEIGHT.new_ones(5)),
    *(called(X, weight) for weight in (FIVE[:0], FIVE[0], FIVE.T, FIVE[None], FIVE.half())),
    *(called(X, FIVE, bias) for bias in (WEIGHT, WEIGHT.new_ones(5).double(), [1.0] * 5)),
    *(called(X, FIVE[0], bias) for bias in (WEIGHT[0], WEIGHT[:1])),
]
NUMBERS = (3, 3.0, True, np.float32(2), np.int64(2), np.float64(2), None, "a")
ADD2 = [
    *(called(X, b) for b in (*NUMBERS, X[0, 0].double(), X[0], X[:2], X > 0, X.double())),
    *(called(X.int(), b) for b in (2, 2.5, True, X > 0, X.long(), X, (X > 0)[0, 0], np.float32(2.5))),
    *(called(X > 0, b) for b in (2, 2.5, X, X.int(), X.int()[0, 0], X[0])),
    called(X.to(torch.uint8), 300),
    called(X.to(torch.uint8), X.to(torch.int8)),
    called((X > 0)[0, 0], X.int()),
    called(X[:0], X[:0]),
]
TABLE = {
    "softmax": (Pair(torch.softmax, ab.softmax), SOFTMAX),
    "log_softmax": (Pair(torch.log_softmax, ab.log_softmax), SOFTMAX),
    "cross_entropy": (Pair(F.cross_entropy, ab.cross_entropy), CROSS_ENTROPY),
    "layer_norm": (Pair(F.layer_norm, ab.layer_norm), LAYER_NORM),
    "rms_norm": (Pair(F.rms_norm, ab.rms_norm), RMS_NORM),
    "gelu": (Pair(lambda x, how: F.gelu(x, approximate=how), ab.gelu), GELU),
    "linear": (Pair(F.linear, ab.linear), LINEAR),
    "add2": (Pair(torch.add, ab.add2), ADD2),
}
ERRORS = (TypeError, ValueError, RuntimeError, IndexError)


def outcome(function: Callable[..., Tensor], args: tuple[Any, ...], options: dict[str, Any]) -> Tensor | str:
    try:
        return function(*args, **options)
    except ERRORS as error:
        return f"refused: {error}"


@pytest.mark.sample(8)
@pytest.mark.simulator
@pytest.mark.parametrize("lane", ["reference", "kernel"])
@pytest.mark.parametrize("name", TABLE)
def test_what_pytorch_takes_is_taken_and_what_it_refuses_is_refused(name: str, lane: str) -> None:
    pair, cases = TABLE[name]
    wrong = []
    for args, options in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = outcome(pair.theirs, args, options)
            with cupyops.simulate(lane == "kernel"):
                found = outcome(pair.ours, args, options)
        if isinstance(wanted, str) or isinstance(found, str):
            alike = isinstance(wanted, str) and isinstance(found, str)
        else:
            half = found.dtype.itemsize == 2
            alike = (found.dtype, found.shape) == (wanted.dtype, wanted.shape) and torch.allclose(
                found.double(),
                wanted.double(),
                rtol=1e-2 if half else 1e-5,
                atol=1e-2 if half else 1e-5,
                equal_nan=True,
            )
        if not alike:
            wrong.append(f"{args} {options}:\n    PyTorch {wanted}\n    {name} {found}")
    assert not wrong, "\n".join(wrong)
