"""The functions that take the place of several operations in a graph. A node of the graph calls each by name."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cupyops.torch.ops.adaptive import adaptive_layer_norm, add_adaptive_layer_norm
from cupyops.torch.ops.add_layer_norm import add_layer_norm
from cupyops.torch.ops.add_rms_norm import add_rms_norm
from cupyops.torch.ops.gated import geglu, reglu, swiglu
from cupyops.torch.ops.layer_norm import layer_norm
from cupyops.torch.ops.linear_gelu import linear_gelu
from cupyops.torch.ops.rms_norm import rms_norm

__all__ = [
    "add_gated_then_modulation",
    "add_then_layer_norm",
    "add_then_rms_norm",
    "addmm_then_gelu",
    "gelu_then_product",
    "linear_then_gelu",
    "norm_then_modulation",
    "relu_then_product",
    "silu_then_product",
    "sum_then_layer_norm",
    "sum_then_rms_norm",
]


def add_then_layer_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    """Returns (layer_norm(s), s) with s = x + residual. The first result has ``dtype``, or the dtype of s."""
    return add_layer_norm(x, residual, normalized_shape, weight, bias, eps, dtype=dtype)


def add_then_rms_norm(
    x: Tensor, residual: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """Returns (rms_norm(s), s) with s = x + residual, both of the dtype of s."""
    return add_rms_norm(x, residual, normalized_shape, weight, eps)


def sum_then_layer_norm(
    s: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    dtype: torch.dtype | None,
) -> Tensor:
    """Returns layer_norm(s) for a sum s that another call returns beside its norm. It has ``dtype``, or the dtype of s."""
    y: Tensor = layer_norm(s, normalized_shape, weight, bias, eps, dtype=dtype)
    return y


def sum_then_rms_norm(s: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Tensor:
    """Returns rms_norm(s), of the dtype of s, for a sum s that another call returns beside its norm."""
    return rms_norm(s, normalized_shape, weight, eps)


def linear_then_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    """Returns gelu(x·Wᵀ + b) for a weight W (N, K)."""
    return linear_gelu(x, weight, bias, approximate)


def addmm_then_gelu(bias: Tensor, x: Tensor, weight: Tensor, approximate: str) -> Tensor:
    """Returns gelu(x·W + b) for x (M, K), a weight W (K, N) and a bias (N)."""
    return linear_gelu(x, weight.t(), bias, approximate)


def silu_then_product(gate: Tensor, up: Tensor) -> Tensor:
    """Returns silu(gate)·up."""
    return swiglu(gate, up)


def relu_then_product(gate: Tensor, up: Tensor) -> Tensor:
    """Returns relu(gate)·up."""
    return reglu(gate, up)


def gelu_then_product(gate: Tensor, up: Tensor, approximate: str) -> Tensor:
    """Returns gelu(gate)·up."""
    return geglu(gate, up, approximate)


def norm_then_modulation(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Returns layer_norm(x)·(1 + scale) + shift."""
    return adaptive_layer_norm(x, scale, shift, eps)


def add_gated_then_modulation(
    residual: Tensor, x: Tensor, gate: Tensor, scale: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Returns (layer_norm(s)·(1 + scale) + shift, s) with s = residual + gate·x."""
    return add_adaptive_layer_norm(residual, x, gate, scale, shift, eps)
