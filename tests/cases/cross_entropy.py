"""Test data of cross_entropy, with and without label smoothing and weights."""

from collections.abc import Iterator

import torch

from autograd_bridge import CrossEntropyLoss, cross_entropy
from tests.support import FLOATS

from .data import (
    COLUMNS,
    ROW,
    ROWS,
    Arguments,
    FamilyData,
    LaunchCase,
    Model,
    dtype_name,
    launch_case,
    model_of,
    random,
    wanted,
)

X, WEIGHT = random(ROWS, COLUMNS), random(COLUMNS, seed=7).abs()
# One row is ignored.
TARGET = torch.arange(ROWS).mul(7).remainder(COLUMNS).index_fill(0, torch.tensor([2]), -100)
IGNORE = -100.0


def _samples() -> list[Arguments]:
    return [(wanted(X), TARGET, IGNORE), (wanted(3 * X[:2]), TARGET[:2], 0.0)]


def _samples_smoothed() -> list[Arguments]:
    return [(wanted(X), TARGET, IGNORE, 0.1), (wanted(3 * X[:2]), TARGET[:2], IGNORE, 0.5)]


def _samples_weighted() -> list[Arguments]:
    return [(wanted(X), TARGET, WEIGHT, IGNORE, 0.0), (wanted(X[:2]), TARGET[:2], WEIGHT, IGNORE, 0.3)]


def _probabilities() -> list[Arguments]:
    shares = random(ROWS, COLUMNS, seed=8).abs()
    return [(wanted(X), wanted(shares), 0.1), (wanted(3 * X[:2]), shares[:2], 0.0)]


def _probabilities_weighted() -> list[Arguments]:
    return [(x, shares, WEIGHT, smoothing) for x, shares, smoothing in _probabilities()]


def _launches() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for n in (100, 1024, 32000, 50257, 131072):
            x, weight, about = (
                ((16, n), dtype),
                ((n,), torch.promote_types(dtype, torch.float32), False),
                f"{dtype_name(dtype)} {n}",
            )
            target = ((16,), torch.int64)
            yield launch_case("cross_entropy", about, lambda x, t: cross_entropy(x, t, reduction="none"), x, target)
            over = lambda x, t: cross_entropy(x * 1, t, reduction="none", inplace_backward=True)  # noqa: E731
            yield launch_case("cross_entropy", f"{about} over the logits", over, x, target)
        call = lambda x, t, w: cross_entropy(x, t, w, label_smoothing=0.1, reduction="none")  # noqa: E731
        yield launch_case("cross_entropy", f"{about} weight", call, x, target, weight)
        call = lambda x, t: cross_entropy(x, t, label_smoothing=0.1, reduction="none")  # noqa: E731
        yield launch_case("cross_entropy", f"{about} smoothing", call, x, target)
        call = lambda x, t, w: cross_entropy(x, t, w, label_smoothing=0.1, reduction="none", softcap=30.0)  # noqa: E731
        yield launch_case("cross_entropy", f"{about} probabilities weight", call, x, x, weight)
        yield launch_case("cross_entropy", f"{about} probabilities", lambda x, t: cross_entropy(x, t), x, x)


MODELS = {
    "CrossEntropyLoss": Model(
        CrossEntropyLoss(label_smoothing=0.1, reduction="none"), (ROW, torch.zeros(4, dtype=torch.int64))
    ),
    "cross_entropy": model_of(cross_entropy, (4, 8, 5), torch.zeros(4, 5, dtype=torch.int64)),
}
# No case: the loss is not a function of tensors of one shape.
DATA = FamilyData(
    [],
    {
        "cross_entropy": _samples,
        "cross_entropy_smoothed": _samples_smoothed,
        "cross_entropy_weighted": _samples_weighted,
        "cross_entropy_probabilities": _probabilities,
        "cross_entropy_probabilities_weighted": _probabilities_weighted,
        "softcap": lambda: [(wanted(3 * X), 2.0)],
    },
    _launches,
    MODELS,
)
