"""Samples with which ``check_op`` is asked about each shipped operator: one for each way that its arguments can go."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import autograd_bridge  # noqa: F401  (declares the operators)
from cupyops.torch.core.operator import operator_of

Arguments = tuple[Any, ...]


def _random(*shape: int, seed: int = 5, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


# No size divides another, and none is a multiple of a vector's width.
ROWS, COLUMNS = 13, 19
X, Z = _random(ROWS, COLUMNS), _random(ROWS, COLUMNS, seed=6)
WEIGHT, BIAS = _random(COLUMNS, seed=7), _random(COLUMNS, seed=8)
NORM = ([COLUMNS], 1e-5)

FEATURES, UNITS, BATCH, STEPS = 5, 7, 3, 4
MATRIX, VECTOR = _random(UNITS, FEATURES, seed=9, scale=0.5), _random(UNITS, seed=10)
FEW, GRADIENT, BEFORE = _random(BATCH, FEATURES), _random(BATCH, UNITS, seed=11), _random(BATCH, UNITS, seed=12)

WEIGHTS, BIASES = _random(3 * UNITS, FEATURES + UNITS, seed=13, scale=0.3), _random(3 * UNITS, seed=14)
H, CELL = _random(BATCH, UNITS, seed=15, scale=0.5), _random(BATCH, UNITS, seed=16, scale=0.5)
SEQUENCE = _random(STEPS, BATCH, FEATURES, seed=17)


def _reference(name: str, *args: Any) -> Any:
    """What an operator's reference makes of arguments."""
    return operator_of(getattr(torch.ops.cupyops, name).default).reference(*args)


def _add2() -> list[Arguments]:
    return [(X, Z, 1), (X, WEIGHT, -0.5)]


def _gelu() -> list[Arguments]:
    return [(X, "none"), (X, "tanh")]


def _gelu_backward() -> list[Arguments]:
    return [(Z, X, "none"), (Z, X, "tanh")]


def _layer_norm() -> list[Arguments]:
    return [(X, WEIGHT, BIAS, *NORM), (X, None, None, *NORM), (X, WEIGHT, None, *NORM)]


def _add_layer_norm() -> list[Arguments]:
    return [(X, Z, WEIGHT, BIAS, *NORM), (X, Z, None, None, *NORM)]


def _layer_norm_backward() -> list[Arguments]:
    # In float64, so that the statistics are those of x in every dtype.
    grad, x, weight = Z.double(), X.double(), WEIGHT.double()
    stats = _reference("layer_norm", x, weight, None, *NORM)[1]
    everything, nothing = (True, True, True), (True, False, False)
    return [
        (_wanted(grad), x, stats, _wanted(weight), _wanted(grad.flip(0)), *NORM, *everything),
        (_wanted(grad), x, stats, None, None, *NORM, *nothing),
    ]


def _rms_norm() -> list[Arguments]:
    return [(X, WEIGHT, 1e-5), (X[:1], WEIGHT, 0.1)]


def _rms_norm_without_weight() -> list[Arguments]:
    return [(X, 1e-5), (X[:1], 0.1)]


def _linear() -> list[Arguments]:
    return [(FEW, MATRIX, VECTOR), (FEW.expand(2, -1, -1), MATRIX, None)]


def _linear_backward() -> list[Arguments]:
    return [(GRADIENT, FEW, MATRIX, True), (GRADIENT, None, MATRIX, False), (GRADIENT, FEW, None, False)]


def _linear_gelu() -> list[Arguments]:
    return [(FEW, MATRIX, VECTOR, "none"), (FEW, MATRIX, None, "tanh")]


def _linear_gelu_backward() -> list[Arguments]:
    return [(GRADIENT, BEFORE, FEW, MATRIX, "none", True), (GRADIENT, BEFORE, None, MATRIX, "tanh", False)]


def _lltm_cell() -> list[Arguments]:
    return [(FEW, WEIGHTS, BIASES, H, CELL)]


def _lltm_cell_backward() -> list[Arguments]:
    _, cell, gates = _reference("lltm_cell", FEW, WEIGHTS, BIASES, H, CELL)
    saved = (FEW, WEIGHTS, H, cell, gates, None)
    grad_h, grad_cell, grad_gates = _wanted(GRADIENT), _wanted(BEFORE), _wanted(_random(*gates.shape, seed=19))
    everything, some = [True] * 5, [True, False, False, True, True]
    return [(grad_h, grad_cell, grad_gates, *saved, *everything), (grad_h, None, None, *saved, *some)]


def _lltm() -> list[Arguments]:
    return [(SEQUENCE, WEIGHTS, BIASES, H, CELL)]


def _lltm_backward() -> list[Arguments]:
    h, _, cells, gates = _reference("lltm", SEQUENCE, WEIGHTS, BIASES, H, CELL)
    saved = (SEQUENCE, WEIGHTS, H, h, cells, gates)
    return [(_wanted(_random(*h.shape, seed=18)), None, None, None, *saved, *[True] * 5)]


def _wanted(x: Tensor) -> Tensor:
    """A tensor that the checks differentiate by; the others of its sample are what a forward has saved, and belong together."""
    return x.clone().requires_grad_()


SAMPLES: dict[str, Callable[[], list[Arguments]]] = {
    "add2": _add2,
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "layer_norm": _layer_norm,
    "layer_norm_inference": _layer_norm,
    "add_layer_norm": _add_layer_norm,
    "layer_norm_backward": _layer_norm_backward,
    "rms_norm": _rms_norm,
    "rms_norm_without_weight": _rms_norm_without_weight,
    "linear": _linear,
    "linear_backward": _linear_backward,
    "linear_gelu": _linear_gelu,
    "linear_gelu_backward": _linear_gelu_backward,
    "lltm_cell": _lltm_cell,
    "lltm_cell_backward": _lltm_cell_backward,
    "lltm": _lltm,
    "lltm_backward": _lltm_backward,
}
