"""The tangent of layer normalisation in plain PyTorch, and its rule of sharding."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops.ops.layer_norm.checks import check_tangent
from cupyops.torch.scale.sharding import Split

from .native_layer_norm import recorded

__all__ = ["layer_norm_jvp_reference", "layer_norm_jvp_sharding"]


def layer_norm_jvp_reference(
    tangent_x: Tensor,
    x: Tensor,
    stats: Tensor,
    weight: Tensor | None,
    tangent_weight: Tensor | None,
    tangent_bias: Tensor | None,
    normalized_shape: Sequence[int],
    eps: float,
    dtype: str | None = None,
) -> Tensor:
    """Returns the tangent of y. :mod:`cupyops.ops.layer_norm.programs` states the formula."""
    check_tangent(tangent_x, x, stats, weight, tangent_weight, tangent_bias, normalized_shape, dtype)
    result, wide = x.dtype if dtype is None else getattr(torch, dtype), stats.dtype
    row = list(range(x.dim() - len(normalized_shape), x.dim()))
    moved, s = tangent_x.to(wide), x.to(wide)
    if recorded(x):
        # A derivative includes the derivatives of mean and rstd. PyTorch records their computation here.
        centered = s - s.mean(row, keepdim=True)
        rstd = torch.rsqrt(centered.square().mean(row, keepdim=True) + eps)
    else:
        centered, rstd = s - stats[0], stats[1]
    normalized = centered * rstd
    y = rstd * (moved - moved.mean(row, keepdim=True) - normalized * (moved * normalized).mean(row, keepdim=True))
    y = y if weight is None else y * weight.to(wide)
    y = y if tangent_weight is None else y + tangent_weight.to(wide) * normalized
    y = y if tangent_bias is None else y + tangent_bias.to(wide)
    return y.to(result)


def layer_norm_jvp_sharding(
    tangent_x: Any,
    x: Any,
    stats: Any,
    weight: Any,
    of_weight: Any,
    of_bias: Any,
    normalized_shape: Sequence[int],
    *_: Any,
) -> Iterable[Split]:
    """Returns the splits along the dimensions that are not normalised. The statistics have one more dimension in front."""
    dims = range(x.ndim - len(normalized_shape))
    return [((dim,), (dim, dim, dim + 1, None, None, None)) for dim in dims]
