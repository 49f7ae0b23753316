"""Test data of linear_cross_entropy."""

from collections.abc import Iterator

import torch

from autograd_bridge import LinearCrossEntropyLoss, linear_cross_entropy
from tests.support import FLOATS

from .data import Arguments, FamilyData, LaunchCase, Model, dtype_name, launch_case, model_of, random, wanted

# No size divides another.
M, N, K = 5, 11, 3
# Small logits: a float32 loss shows how logits in 16 bits are rounded.
X, WEIGHT, BIAS = random(M, K, scale=0.25), random(N, K, seed=9, scale=0.25), random(N, seed=10, scale=0.25)
CLASS_WEIGHT = random(N, seed=11).abs()
# One class is ignored. If the ignored target is outside the classes, a check that changes the number would have a target that is no
# class, for which PyTorch's reference ends the process on a GPU.
TARGET = torch.tensor([3, 0, 5, 10, 7])
IGNORE = 3.0


def _rows() -> list[Arguments]:
    x, weight, bias = wanted(X), wanted(WEIGHT), wanted(BIAS)
    return [
        (x, weight, bias, TARGET, CLASS_WEIGHT, IGNORE, 0.1, 3.0, 0.01),
        (
            x.detach().expand(2, -1, -1).clone().requires_grad_(),
            weight,
            None,
            TARGET.expand(2, -1),
            None,
            IGNORE,
            0.0,
            0.0,
            0.0,
        ),
    ]


def _rows_backward() -> list[Arguments]:
    return [
        (
            random(*args[0].shape[:-1], seed=12),
            *(a.detach() if isinstance(a, torch.Tensor) else a for a in args),
            *wants,
        )
        for args, wants in zip(_rows(), ((True, True, True), (True, False, False)), strict=True)
    ]


def _sum() -> list[Arguments]:
    scale = torch.tensor(0.25)
    return [
        (wanted(X), wanted(WEIGHT), None, TARGET, None, scale, IGNORE, 0.0, 0.0, 0.0, True, True, False),
        (
            wanted(X),
            wanted(WEIGHT),
            wanted(BIAS),
            TARGET,
            CLASS_WEIGHT,
            scale,
            IGNORE,
            0.1,
            3.0,
            0.01,
            True,
            True,
            True,
        ),
    ]


def _of_classes() -> list[Arguments]:
    """Maxima and shares of all classes, and targets of which some are classes of other ranks."""
    logits = random(M, N, seed=14)
    m = logits.amax(-1) + 0.5
    r = 0.5 / (logits - m.unsqueeze(-1)).exp().sum(-1)
    return [(wanted(logits), wanted(m), wanted(r), wanted(random(M, seed=15)), torch.tensor([3, -1, 5, 10, -1]))]


def _launches() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for n in (1000, 1003, 50257):
            x, weight, target = ((1100, 64), dtype), ((n, 64), dtype), ((1100,), torch.int64)
            for reduction in ("mean", "none"):
                call = lambda x, w, t, r=reduction: linear_cross_entropy(x, w, t, reduction=r)  # noqa: E731
                yield launch_case(
                    "linear_cross_entropy", f"{reduction} {dtype_name(dtype)} {n}", call, x, weight, target
                )
        with_all = lambda x, w, t, b, c: linear_cross_entropy(  # noqa: E731
            x, w, t, b, class_weight=c, label_smoothing=0.1, softcap=30.0, z_loss=1e-4
        )
        others = ((n,), dtype), ((n,), torch.promote_types(dtype, torch.float32), False)
        yield launch_case("linear_cross_entropy", f"all {dtype_name(dtype)}", with_all, x, weight, target, *others)


HEAD = random(6, 8, seed=13)
MODELS = {
    "LinearCrossEntropyLoss": Model(
        LinearCrossEntropyLoss(8, 6, bias=True, reduction="none", label_smoothing=0.1, softcap=5.0, z_loss=0.01),
        ((4, 8), torch.zeros(4, dtype=torch.int64)),
    ),
    "linear_cross_entropy": model_of(
        lambda x, target: linear_cross_entropy(x, HEAD.to(x.dtype), target),
        (4, 8),
        torch.zeros(4, dtype=torch.int64),
    ),
}
# No case: the loss is not a function of tensors of one shape.
DATA = FamilyData(
    [],
    {
        "linear_cross_entropy_rows": _rows,
        "linear_cross_entropy_rows_backward": _rows_backward,
        "linear_cross_entropy": _sum,
        "linear_cross_entropy_of_classes": _of_classes,
    },
    _launches,
    MODELS,
)
