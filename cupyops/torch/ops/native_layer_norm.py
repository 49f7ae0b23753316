"""PyTorch's layer normalisation with correct derivatives of any order. The third derivative of PyTorch's own operator
treats the statistics as constants."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops.torch.core.conditions import forward_mode, is_scripted, is_traced, transforms_active
from cupyops.torch.core.gradients import pullback
from cupyops.torch.core.tensors import wide_dtype

__all__ = ["native_layer_norm", "recorded"]


def native_layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, normalized_shape: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the results of ``torch.native_layer_norm``: y, mean and 1/√(var + eps)."""
    transformed = transforms_active() or forward_mode()
    # torch.jit.trace records PyTorch's operations. AOTAutograd differentiates a compiled graph once, and Dynamo does not trace into every Function.
    if not transformed and (is_traced() or is_scripted() or not recorded(x, weight, bias)):
        return torch.native_layer_norm(x, normalized_shape, weight, bias, eps)
    if transformed:
        return _normalized(x, weight, bias, len(normalized_shape), eps)
    found: tuple[Tensor, Tensor, Tensor] = _RecordedLayerNorm.apply(x, weight, bias, normalized_shape, eps)
    return found


def recorded(*tensors: Tensor | None) -> bool:
    """Returns whether a function of these tensors may be differentiated.

    Returns True while a transform of ``torch.func`` is active in grad mode, since it differentiates tensors that do not
    require grad, and while torch.jit.trace records a graph, which may run in either mode.
    """
    if forward_mode() or is_scripted():
        return True
    if not torch.is_grad_enabled():
        return False
    return transforms_active() or any(x is not None and x.requires_grad for x in tensors)


def _normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns layer norm over the last ``dims`` dimensions, the mean and 1/√(var + eps), computed by elementary
    operations."""
    row, wide = list(range(x.dim() - dims, x.dim())), x.to(wide_dtype(x.dtype))
    mean = wide.mean(row, keepdim=True)
    rstd = torch.rsqrt((wide - mean).square().mean(row, keepdim=True) + eps)
    y = (wide - mean) * rstd
    y = y if weight is None else y * weight.to(wide.dtype)
    y = y if bias is None else y + bias.to(wide.dtype)
    return y.to(x.dtype), mean, rstd


class _RecordedLayerNorm(torch.autograd.Function):
    """PyTorch's own operator and backward. A differentiable backward uses :func:`_normalized` instead."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Sequence[int], eps: float
    ) -> Any:
        found = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, *found[1:])
        ctx.mark_non_differentiable(*found[1:])
        ctx.shape, ctx.eps = shape, eps
        return found

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if not torch.is_grad_enabled():
            found = torch.ops.aten.native_layer_norm_backward(
                grad_y, x, ctx.shape, mean, rstd, weight, bias, list(needs)
            )
            return (*(g if needed else None for g, needed in zip(found, needs, strict=True)), None, None)
        inputs = [x, weight, bias]
        wanted = [i for i, needed in enumerate(needs) if needed]

        def formula(*tensors: Tensor) -> tuple[Tensor]:
            given = list(inputs)
            for i, t in zip(wanted, tensors, strict=True):
                given[i] = t
            return (_normalized(given[0], given[1], given[2], len(ctx.shape), ctx.eps)[0],)

        grads: list[Tensor | None] = [None] * 5
        for i, g in zip(wanted, pullback(formula, [inputs[i] for i in wanted], [grad_y]), strict=True):
            grads[i] = g
        return tuple(grads)
