"""Test data of the LLTM's cell and of its sequence, and of their gradients."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import LLTM, LLTMCell, LLTMLayers, lltm, lltm_cell
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
    reference,
    wanted,
)


def _narrow(x: Any) -> Any:
    """Rows short enough for a square of weights; the argument itself if it is not a tensor."""
    n = last(x)[0] if isinstance(x, Tensor) else 1
    return x if n <= 64 else x.reshape(-1, max(d for d in range(1, 33) if n % d == 0))


def _parameters(like: Any) -> tuple[Tensor, Tensor]:
    """Weights and bias for as many features as units, the same ones every time."""
    n = last(like)[0]
    device, dtype = getattr(like, "device", None), getattr(like, "dtype", torch.float32)
    weights = torch.arange(6 * n * n, device=device, dtype=torch.float32).reshape(3 * n, 2 * n)
    bias = torch.arange(3 * n, device=device, dtype=torch.float32)
    return (weights.sin() / max(n, 1) ** 0.5).to(dtype), bias.cos().to(dtype)


def _cell(x: Tensor, state: Tensor) -> Tensor:
    rows, states = _narrow(x), _narrow(state)
    h, c = lltm_cell(rows, *_parameters(rows), states, states)
    return (h + c).reshape(getattr(x, "shape", ()))


def _cell_of_pytorch(x: Tensor, state: Tensor) -> Tensor:
    shape = x.shape
    x, state = _narrow(x), _narrow(state)
    weights, bias = _parameters(x)
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        lower = torch.get_autocast_dtype(x.device.type)
        x, state, weights, bias = (t.to(lower) for t in (x, state, weights, bias))
    z_i, z_o, z_g = F.linear(torch.cat((state, x), -1), weights, bias).chunk(3, -1)
    c = state + F.elu(z_g) * z_i.sigmoid()
    return (c.tanh() * z_o.sigmoid() + c).reshape(shape)


CASES = [
    Case(
        "lltm_cell",
        _cell,
        _cell_of_pytorch,
        torch.ops.cupyops.lltm_cell.default,
        lambda x, state: (x, *_parameters(x), state, state),
        2,
        elementwise=False,
        atol=1e-5,
    ),
]

# No size divides another.
FEATURES, UNITS, BATCH, STEPS = 5, 7, 3, 4
X, SEQUENCE = random(BATCH, FEATURES), random(STEPS, BATCH, FEATURES, seed=17)
WEIGHTS, BIAS = random(3 * UNITS, FEATURES + UNITS, seed=13, scale=0.3), random(3 * UNITS, seed=14)
H, CELL = random(BATCH, UNITS, seed=15, scale=0.5), random(BATCH, UNITS, seed=16, scale=0.5)


def _cell_samples() -> list[Arguments]:
    return [(X, WEIGHTS, BIAS, H, CELL)]


def _cell_backward_samples() -> list[Arguments]:
    _, cell, gates = reference("lltm_cell", X, WEIGHTS, BIAS, H, CELL)
    saved = (X, WEIGHTS, H, cell, gates, None)
    grad_h, grad_cell = wanted(random(BATCH, UNITS, seed=11)), wanted(random(BATCH, UNITS, seed=12))
    grad_gates = wanted(random(*gates.shape, seed=19))
    everything, some = [True] * 5, [True, False, False, True, True]
    return [(grad_h, grad_cell, grad_gates, *saved, *everything), (grad_h, None, None, *saved, *some)]


def _sequence_samples() -> list[Arguments]:
    return [(SEQUENCE, WEIGHTS, BIAS, H, CELL)]


def _sequence_backward_samples() -> list[Arguments]:
    h, _, cells, gates = reference("lltm", SEQUENCE, WEIGHTS, BIAS, H, CELL)
    saved = (SEQUENCE, WEIGHTS, H, h, cells, gates)
    return [(wanted(random(*h.shape, seed=18)), None, None, None, *saved, *[True] * 5)]


SAMPLES = {
    "lltm_cell": _cell_samples,
    "lltm_cell_backward": _cell_backward_samples,
    "lltm": _sequence_samples,
    "lltm_backward": _sequence_backward_samples,
}
# Features, units and rows of sequences that take other ways.
SEQUENCES = (
    (16, 16, 3),
    (32, 64, 64),
    (64, 256, 16),
    (64, 256, 4096),
    (64, 512, 64),
    (64, 1024, 64),
    (8, 1500, 4),
)


def _launches() -> Iterator[LaunchCase]:
    def cell(inputs: int, state: int, batch: int, dtype: torch.dtype) -> list[Any]:
        sizes = (batch, inputs), (3 * state, state + inputs), (3 * state,), (batch, state), (batch, state)
        return [(size, dtype) for size in sizes]

    def run(x: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        y, state = lltm(x, (h, c), weights, bias)
        return y, *state

    for dtype in FLOATS:
        d = dtype_name(dtype)
        for inputs, state, batch in ((32, 16, 4), (33, 65, 7), (256, 128, 64), (1024, 1024, 64), (512, 1024, 2048)):
            about = f"{d} {batch} x {inputs} x {state}"
            yield launch_case("lltm_cell", about, lltm_cell, *cell(inputs, state, batch, dtype))
        for inputs, state, batch in SEQUENCES:
            _, weights, bias, h, c = cell(inputs, state, batch, dtype)
            sequence = ((5, batch, inputs), dtype)
            yield launch_case("lltm", f"{d} 5 x {batch} x {inputs} x {state}", run, sequence, weights, bias, h, c)


GATES, GATES_BIAS = random(15, 13, seed=20), random(15, seed=21)
MODELS = {
    "LLTMCell": Model(LLTMCell(8, 5), (ROW, ((4, 5), (4, 5)))),
    "LLTM": Model(LLTM(8, 5), ((3, 4, 8),), 1),
    "LLTMLayers": Model(LLTMLayers(8, 5, 2), ((3, 4, 8),), 1),
    "lltm_cell": model_of(
        lambda x, *state: lltm_cell(x, GATES.to(x.dtype), GATES_BIAS.to(x.dtype), *state), ROW, (4, 5), (4, 5)
    ),
    "lltm": model_of(lambda x: lltm(x, None, GATES.to(x.dtype), GATES_BIAS.to(x.dtype)), (3, 4, 8), batch=1),
}
DATA = FamilyData(CASES, SAMPLES, _launches, MODELS)
