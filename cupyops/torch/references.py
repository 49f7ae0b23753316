"""The operators in plain PyTorch: what CPU tensors get, and what gradients of gradients are made of."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..add2 import check_alpha
from ..gelu import check as check_gelu
from ..layer_norm_checks import check as check_layer_norm
from ..layer_norm_checks import check_backward, check_residual
from ..linear import check as check_linear
from ..linear import check_backward as check_linear_backward
from ..linear_gelu import check_backward as check_linear_gelu_backward
from .arrays import DTYPE_NAMES

__all__ = [
    *("add2", "add_layer_norm", "gelu", "gelu_backward", "layer_norm", "layer_norm_backward"),
    *("linear", "linear_backward", "linear_gelu", "linear_gelu_backward"),
]


def add2(a: Tensor, b: Tensor, alpha: complex) -> Tensor:
    check_alpha(alpha, DTYPE_NAMES[a.dtype if a.dtype is b.dtype else torch.result_type(a, b)])
    return torch.add(a, b, alpha=alpha)


def gelu(x: Tensor, approximate: str) -> Tensor:
    check_gelu(x, approximate)
    return F.gelu(x, approximate=approximate)


def gelu_backward(grad_y: Tensor, x: Tensor, approximate: str) -> Tensor:
    check_gelu(x, approximate, grad_y)
    grad_x: Tensor = torch.ops.aten.gelu_backward(grad_y, x, approximate=approximate)
    return grad_x


def _stats_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, normalized_shape: Sequence[int], eps: float
) -> tuple[Tensor, Tensor]:
    check_layer_norm(x, DTYPE_NAMES[x.dtype], weight, bias, normalized_shape)
    y, mean, rstd = torch.native_layer_norm(x, normalized_shape, weight, bias, eps)
    wide = _stats_dtype(x.dtype)
    return y, torch.stack((mean.to(wide), rstd.to(wide))).detach()


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: Sequence[int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    check_residual(x, residual)
    s = torch.add(x, residual)
    y, stats = layer_norm(s, weight, bias, normalized_shape, eps)
    return y, s, stats


def layer_norm_backward(
    grad_y: Tensor,
    x: Tensor,
    stats: Tensor,
    weight: Tensor | None,
    grad_sum: Tensor | None,
    normalized_shape: Sequence[int],
    eps: float,
    want_x: bool,
    want_weight: bool,
    want_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    check_backward(grad_y, x, DTYPE_NAMES[x.dtype], stats, weight, grad_sum, normalized_shape)
    dtype, wide = x.dtype, stats.dtype
    weight_dtype = dtype if weight is None else weight.dtype
    row = list(range(x.dim() - len(normalized_shape), x.dim()))
    g, s = grad_y.to(wide), x.to(wide)
    if torch.is_grad_enabled() and x.requires_grad:
        # The statistics anew, since their own derivatives belong to the gradient of this gradient.
        centered = s - s.mean(row, keepdim=True)
        rstd = torch.rsqrt(centered.square().mean(row, keepdim=True) + eps)
    else:
        centered, rstd = s - stats[0], stats[1]
    normalized = centered * rstd
    rest = list(range(x.dim() - len(normalized_shape)))
    grad_weight, grad_bias = ((p.sum(rest) if rest else p.clone()) for p in (g * normalized, g))
    w = g if weight is None else g * weight.to(wide)
    grad_x = rstd * (w - w.mean(row, keepdim=True) - normalized * (w * normalized).mean(row, keepdim=True))
    grad_x = grad_x if grad_sum is None else grad_x + grad_sum
    return (
        grad_x.to(dtype) if want_x else x.new_empty(0),
        grad_weight.to(weight_dtype) if want_weight else x.new_empty(0, dtype=weight_dtype),
        grad_bias.to(weight_dtype) if want_bias else x.new_empty(0, dtype=weight_dtype),
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    check_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> tuple[Tensor, Tensor]:
    check_linear(x, weight, bias, "linear_gelu")
    z = F.linear(x, weight, bias)
    return gelu(z, approximate), z


def linear_backward(
    grad_y: Tensor, x: Tensor | None, weight: Tensor | None, want_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    check_linear_backward(grad_y, x, weight)
    nothing = grad_y.new_empty(0)
    rows = grad_y.reshape(math.prod(grad_y.shape[:-1]), grad_y.shape[-1])
    grad_x = nothing if weight is None else grad_y @ weight
    grad_weight = nothing if x is None else rows.T @ x.reshape(len(rows), x.shape[-1])
    return grad_x, grad_weight, rows.sum(0) if want_bias else grad_y.new_empty(0)


def linear_gelu_backward(
    grad_y: Tensor, z: Tensor, x: Tensor | None, weight: Tensor | None, approximate: str, want_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    check_linear_gelu_backward(grad_y, z, x, weight, approximate)
    return linear_backward(gelu_backward(grad_y, z, approximate), x, weight, want_bias)
