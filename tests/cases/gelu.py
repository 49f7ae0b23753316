"""Test data of gelu and its gradient."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from autograd_bridge import GELU, gelu, gelu_backward
from cupyops.torch.ops.gelu import gelu_operator
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
    launch_case,
    model_of,
    random,
)

CASES = [
    Case("gelu", gelu, F.gelu, torch.ops.cupyops.gelu.default, lambda x: (x, "none"), 1),
    Case(
        "gelu_tanh",
        lambda x: gelu(x, approximate="tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
        torch.ops.cupyops.gelu.default,
        lambda x: (x, "tanh"),
        1,
    ),
    Case(
        "gelu_backward",
        gelu_backward,
        torch.ops.aten.gelu_backward,
        torch.ops.cupyops.gelu_backward.default,
        lambda grad, x: (grad, x, "none"),
        2,
    ),
]
X, GRAD = random(ROWS, COLUMNS), random(ROWS, COLUMNS, seed=6)


def _samples() -> list[Arguments]:
    return [(X, "none"), (X, "tanh")]


def _backward_samples() -> list[Arguments]:
    return [(GRAD, X, "none"), (GRAD, X, "tanh")]


def _launches() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for form in ("none", "tanh"):
            for shape in ((37, 19), (4096, 1024)):
                about = f"{form} {dtype_name(dtype)} {shape}"
                yield launch_case("gelu", about, lambda x, form=form: gelu(x, form), (shape, dtype))
    f = torch.float32
    yield launch_case("gelu", "transposed", lambda x: gelu(x.T), ((48, 64), f))
    yield launch_case("gelu", "every second", lambda x: gelu(x[:, ::2]), ((48, 64), f))
    yield launch_case("gelu", "off the beginning", lambda x: gelu(x[3:]), ((67,), f))
    alike = ((37, 19), f, False), ((37, 19), f, False)
    yield launch_case("gelu", "tangent", lambda t, x: gelu_operator.jvp(t, x, "none"), *alike)  # type: ignore[misc]
    yield launch_case("gelu_backward", "alike", gelu_backward, ((37, 19), f, False), ((37, 19), f, False))


MODELS = {
    "GELU": Model(GELU(), (ROW,)),
    "GELU tanh": Model(GELU("tanh"), (ROW,)),
    "gelu": model_of(lambda x: gelu(x.t()), ROW),
    "gelu_backward": model_of(gelu_backward, ROW, ROW),
}
DATA = FamilyData(CASES, {"gelu": _samples, "gelu_backward": _backward_samples}, _launches, MODELS)
