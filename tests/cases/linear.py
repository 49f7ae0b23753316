"""Test data of linear, linear_gelu, and their gradients."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import Linear, LinearGELU, linear, linear_backward, linear_gelu, linear_gelu_backward
from tests.support import FLOATS

from .data import (
    ROW,
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


def _square(x: Any) -> Tensor:
    """A weight that keeps x's last dimension; any if it is not a tensor."""
    n = last(x)[0]
    numbers = torch.arange(n, device=getattr(x, "device", None))
    weight = (numbers.unsqueeze(1) * 7 + numbers * 3) % 11 / 11 - 0.5
    return weight.to(x.dtype) if isinstance(x, Tensor) else weight


def _with_weight(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """A linear function of x only; for very long rows it is elementwise, since the weight would be a square matrix."""

    def of_x(x: Tensor) -> Tensor:
        long = last(x)[0] > 2048
        rows = x.unsqueeze(-1) if long else x
        weight = _square(rows)
        y = function(rows, weight, weight.sum(1))
        return y.squeeze(-1) if long else y

    return of_x


CASES = [
    Case(
        "linear",
        _with_weight(linear),
        _with_weight(F.linear),
        torch.ops.cupyops.linear.default,
        lambda x: (x, w := _square(x), w.sum(1)),
        1,
        elementwise=False,
        atol=1e-4,
        library=True,
    ),
    Case(
        "linear_gelu",
        _with_weight(linear_gelu),
        _with_weight(lambda *operands: F.gelu(F.linear(*operands))),
        torch.ops.cupyops.linear_gelu.default,
        lambda x: (x, w := _square(x), w.sum(1), "none"),
        1,
        elementwise=False,
        atol=1e-4,
        library=True,
    ),
]
# No size divides another.
M, N, K = 3, 7, 5
X, WEIGHT, BIAS = random(M, K), random(N, K, seed=9, scale=0.5), random(N, seed=10)
GRAD, Z = random(M, N, seed=11), random(M, N, seed=12)


def _linear() -> list[Arguments]:
    return [(X, WEIGHT, BIAS), (X.expand(2, -1, -1), WEIGHT, None)]


def _linear_backward() -> list[Arguments]:
    return [(GRAD, X, WEIGHT, True), (GRAD, None, WEIGHT, False), (GRAD, X, None, False)]


def _linear_gelu() -> list[Arguments]:
    return [(X, WEIGHT, BIAS, "none"), (X, WEIGHT, None, "tanh")]


def _linear_gelu_backward() -> list[Arguments]:
    return [(GRAD, Z, X, WEIGHT, "none", True), (GRAD, Z, None, WEIGHT, "tanh", False)]


SAMPLES = {
    "linear": _linear,
    "linear_backward": _linear_backward,
    "linear_gelu": _linear_gelu,
    "linear_gelu_backward": _linear_gelu_backward,
    "gelu_bias_backward": lambda: [(grad_y, z, form) for grad_y, z, _, _, form, _ in _linear_gelu_backward()],
}
# M, N, K of products that take other ways: few rows of x or of the weight, the tensor cores of sm_90, the library's.
NARROW = ((1, 1, 2), (1, 4096, 4096), (2, 512, 512), (8, 64, 127), (16, 1024, 1024), (16384, 1, 768), (16384, 4, 768))
LARGE = ((37, 19, 41), (4096, 3072, 768), (16384, 768, 3072))


def _launches() -> Iterator[LaunchCase]:
    def narrow(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with torch.no_grad():  # with gradients, small products are PyTorch's own
            return linear(x, weight, bias)

    # A float32 product that is made without the bias.
    x, weight, bias = ((128, 4096), torch.float32), ((1024, 4096), torch.float32), ((1024,), torch.float32)
    yield launch_case("linear_gelu", "bias in a pass of its own", linear_gelu, x, weight, bias)
    yield launch_case("linear", "bias in a pass of its own", narrow, x, weight, bias)
    for dtype in FLOATS:
        for m, n, k in NARROW + LARGE:
            d = f"{dtype_name(dtype)} {m} x {n} x {k}"
            x, weight, bias = ((m, k), dtype), ((n, k), dtype), ((n,), dtype)
            yield launch_case("linear", f"without gradients {d}", narrow, x, weight, bias)
            for form in ("none", "tanh"):
                gelu = lambda x, w, b, form=form: linear_gelu(x, w, b, form)  # noqa: E731
                yield launch_case("linear_gelu", f"{form} {d}", gelu, x, weight, bias)
        d = dtype_name(dtype)
        x, weight, bias = ((16384, 32), dtype), ((768, 32), dtype), ((768,), dtype)
        fixed = (*weight, False)
        yield launch_case("linear", f"gradients {d}", linear, x, weight, bias)
        yield launch_case("linear", f"gradient of bias alone {d}", linear, (*x, False), fixed, bias)
        yield launch_case("linear_gelu", f"without bias {d}", linear_gelu, x, weight)
        yield launch_case("linear_gelu", f"gradient of x alone {d}", linear_gelu, x, fixed, (*bias, False))


OF_ROW, OF_ROW_BIAS = random(6, 8, seed=13), random(6, seed=14)


def _gelu_gradient(grad: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
    weight = OF_ROW.to(x.dtype)
    return linear_gelu_backward(grad, x @ weight.t(), x, weight)


MODELS = {
    "Linear": Model(Linear(8, 6), (ROW,)),
    "Linear of four dimensions": Model(Linear(8, 6, bias=False), ((4, 3, 2, 8),)),
    "LinearGELU": Model(LinearGELU(8, 6), (ROW,)),
    "LinearGELU tanh": Model(LinearGELU(8, 6, approximate="tanh"), (ROW,)),
    "linear": model_of(lambda x: linear(x, OF_ROW.to(x.dtype), OF_ROW_BIAS.to(x.dtype)), ROW),
    "linear_backward": model_of(lambda grad, x: linear_backward(grad, x, OF_ROW.to(x.dtype)), (4, 6), ROW),
    "linear_gelu": model_of(lambda x: linear_gelu(x, OF_ROW.to(x.dtype), approximate="tanh"), ROW),
    "linear_gelu_backward": model_of(_gelu_gradient, (4, 6), ROW),
}
DATA = FamilyData(CASES, SAMPLES, _launches, MODELS)
