"""The operators in plain PyTorch: what CPU tensors get, and what gradients of gradients are made of."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cupyops.ops.add2 import check_alpha
from cupyops.ops.checks import check_shapes
from cupyops.ops.gelu import check as check_gelu
from cupyops.ops.layer_norm.body import check as check_layer_norm
from cupyops.ops.layer_norm.body import check_backward as check_layer_norm_backward
from cupyops.ops.linear.fused_gelu import check_backward as check_linear_gelu_backward
from cupyops.ops.linear.products import check_gradients, check_product
from cupyops.ops.lltm.checks import check_cell, check_cell_backward, check_sequence, check_sequence_backward
from cupyops.torch.core.dispatch import forward_mode, transforms_active
from cupyops.torch.core.gradients import pullback
from cupyops.torch.core.tensors import DTYPE_NAMES

__all__ = [
    *("add2", "add_layer_norm", "gelu", "gelu_backward", "layer_norm", "layer_norm_backward"),
    "layer_norm_inference",
    *("linear", "linear_backward", "linear_gelu", "linear_gelu_backward"),
    *("lltm", "lltm_backward", "lltm_cell", "lltm_cell_backward"),
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


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _recorded(*tensors: Tensor | None) -> bool:
    """Whether what is computed of these may be differentiated. A transform's tensors do not all say so."""
    if forward_mode():
        return True
    if not torch.is_grad_enabled():
        return False
    return transforms_active() or any(x is not None and x.requires_grad for x in tensors)


def _normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm over the last dimensions, and its statistics, by the formula."""
    row, wide = list(range(x.dim() - dims, x.dim())), x.to(_wide_dtype(x.dtype))
    mean = wide.mean(row, keepdim=True)
    rstd = torch.rsqrt((wide - mean).square().mean(row, keepdim=True) + eps)
    y = (wide - mean) * rstd
    y = y if weight is None else y * weight.to(wide.dtype)
    y = y if bias is None else y + bias.to(wide.dtype)
    return y.to(x.dtype), mean, rstd


class _RecordedLayerNorm(torch.autograd.Function):
    """PyTorch's own operator, with derivatives of any order: its own takes the statistics for constants in the third."""

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


def layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: Sequence[int],
    eps: float,
    dtype: str | None = None,
) -> tuple[Tensor, Tensor]:
    check_layer_norm(x, DTYPE_NAMES[x.dtype], weight, bias, normalized_shape, dtype)
    wide, result = _wide_dtype(x.dtype), x.dtype if dtype is None else getattr(torch, dtype)
    if result != x.dtype:  # else it would be rounded to x's dtype first
        x = x.to(wide)
        weight, bias = (None if t is None else t.to(wide) for t in (weight, bias))
    if not _recorded(x, weight, bias):
        y, mean, rstd = torch.native_layer_norm(x, normalized_shape, weight, bias, eps)
    elif transforms_active() or forward_mode():
        y, mean, rstd = _normalized(x, weight, bias, len(normalized_shape), eps)
    else:
        y, mean, rstd = _RecordedLayerNorm.apply(x, weight, bias, normalized_shape, eps)
    return y.to(result), torch.stack((mean.to(wide), rstd.to(wide))).detach()


def layer_norm_inference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: Sequence[int],
    eps: float,
    dtype: str | None = None,
) -> Tensor:
    return layer_norm(x, weight, bias, normalized_shape, eps, dtype)[0]


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: Sequence[int],
    eps: float,
    dtype: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    check_shapes("add_layer_norm", residual=(residual, x.shape))
    s = torch.add(x, residual)
    y, stats = layer_norm(s, weight, bias, normalized_shape, eps, dtype)
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
    check_layer_norm_backward(grad_y, x, stats, weight, grad_sum, normalized_shape)
    dtype, wide = x.dtype, stats.dtype
    weight_dtype = dtype if weight is None else weight.dtype
    row = list(range(x.dim() - len(normalized_shape), x.dim()))
    g, s = grad_y.to(wide), x.to(wide)
    if _recorded(x):
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
    check_product("linear", x, weight, bias)
    return F.linear(x, weight, bias)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> tuple[Tensor, Tensor]:
    check_product("linear_gelu", x, weight, bias)
    z = F.linear(x, weight, bias)
    return gelu(z, approximate), z


def linear_backward(
    grad_y: Tensor, x: Tensor | None, weight: Tensor | None, want_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    check_gradients("linear_backward", grad_y, x, weight)
    nothing = grad_y.new_empty(0)
    rows = grad_y.reshape(math.prod(grad_y.shape[:-1]), grad_y.shape[-1])
    grad_x = nothing if weight is None else grad_y @ weight
    grad_weight = nothing if x is None else rows.T @ x.reshape(rows.shape[0], x.shape[-1])
    return grad_x, grad_weight, rows.sum(0) if want_bias else grad_y.new_empty(0)


def linear_gelu_backward(
    grad_y: Tensor, z: Tensor, x: Tensor | None, weight: Tensor | None, approximate: str, want_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    check_linear_gelu_backward(grad_y, z, x, weight, approximate)
    return linear_backward(gelu_backward(grad_y, z, approximate), x, weight, want_bias)


def lltm_cell(
    input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    check_cell(input, weights, bias, old_h, old_cell)
    gates = F.linear(torch.cat((old_h, input), 1), weights, bias)
    z_i, z_o, z_g = gates.chunk(3, 1)
    new_cell = old_cell + F.elu(z_g) * z_i.sigmoid()
    return new_cell.tanh() * z_o.sigmoid(), new_cell, gates


def lltm_cell_backward(
    grad_h: Tensor | None,
    grad_cell: Tensor | None,
    grad_gates: Tensor | None,
    input: Tensor,
    weights: Tensor,
    old_h: Tensor,
    new_cell: Tensor,
    gates: Tensor,
    both: Tensor | None,
    want_input: bool,
    want_weights: bool,
    want_bias: bool,
    want_h: bool,
    want_cell: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``both`` is [h, x] again, and not read: the gradients of this one belong to h and x."""
    dtype, state = input.dtype, old_h.shape[1]
    check_cell_backward(input, grad_h, grad_cell, grad_gates, old_h, new_cell, gates, both)
    grad_z, grad_old = lltm_step_backward(grad_h, grad_cell, grad_gates, new_cell, gates)
    narrow = grad_z.to(dtype)
    return (
        narrow @ weights[:, state:] if want_input else input.new_empty(0),
        narrow.t() @ torch.cat((old_h, input), 1) if want_weights else input.new_empty(0),
        grad_z.sum(0).to(dtype) if want_bias else input.new_empty(0),
        narrow @ weights[:, :state] if want_h else input.new_empty(0),
        grad_old.to(dtype) if want_cell else input.new_empty(0),
    )


def lltm_step_backward(
    grad_h: Tensor | None, grad_cell: Tensor | None, grad_gates: Tensor | None, new_cell: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """From the gradients of a step's results, those of z = [h, x]·Wᵀ + b and of the old cell, in the arithmetic's
    dtype."""
    wide = _wide_dtype(gates.dtype)
    zero = torch.zeros_like(new_cell, dtype=wide)
    dh, dc = (zero if g is None else g.to(wide) for g in (grad_h, grad_cell))
    z_i, z_o, z_g = gates.to(wide).chunk(3, 1)
    i, o, g = z_i.sigmoid(), z_o.sigmoid(), F.elu(z_g)
    t = new_cell.to(wide).tanh()
    dc = dc + dh * o * (1 - t * t)
    # The derivative of elu from its value: right at 0, and NaN where z is.
    slope = torch.where(g > 0, torch.ones_like(g), g + 1)
    grad_z = torch.cat((dc * g * (i * (1 - i)), dh * t * (o * (1 - o)), dc * i * slope), 1)
    return grad_z if grad_gates is None else grad_z + grad_gates.to(wide), dc


def lltm(input: Tensor, weights: Tensor, bias: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_sequence(input, weights, bias, h0, c0)
    steps, batch, _ = input.shape
    state = h0.shape[1]
    # The part of every step's gates that the input makes, at once.
    given = F.linear(input, weights[:, state:], bias)
    h, cells, gates = [], [], []
    new_h, new_cell = h0, c0
    for t in range(steps):
        gates.append(torch.addmm(given[t], new_h, weights[:, :state].t()))
        z_i, z_o, z_g = gates[-1].chunk(3, 1)
        new_cell = new_cell + F.elu(z_g) * z_i.sigmoid()
        new_h = new_cell.tanh() * z_o.sigmoid()
        h.append(new_h)
        cells.append(new_cell)
    last = torch.stack((new_h, new_cell))
    if not steps:
        nothing, none_of_gates = input.new_empty(0, batch, state), input.new_empty(0, batch, 3 * state)
        return nothing, last, nothing.clone(), none_of_gates
    return torch.stack(h), last, torch.stack(cells), torch.stack(gates)


def lltm_backward(
    grad_h: Tensor | None,
    grad_last: Tensor | None,
    grad_cells: Tensor | None,
    grad_gates: Tensor | None,
    input: Tensor,
    weights: Tensor,
    h0: Tensor,
    h: Tensor,
    cells: Tensor,
    gates: Tensor,
    want_input: bool,
    want_weights: bool,
    want_bias: bool,
    want_h: bool,
    want_cell: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    check_sequence_backward(input, grad_h, grad_last, grad_cells, grad_gates, h0, h, cells, gates)
    dtype, wide, state, steps = input.dtype, _wide_dtype(input.dtype), h0.shape[1], input.shape[0]
    recurrent = weights[:, :state].to(wide)
    dh, dc = torch.zeros_like(torch.stack((h0, h0)), dtype=wide) if grad_last is None else grad_last.to(wide)
    found = []
    for t in range(steps - 1, -1, -1):
        dh = dh if grad_h is None else dh + grad_h[t].to(wide)
        dc = dc if grad_cells is None else dc + grad_cells[t].to(wide)
        grad_z, dc = lltm_step_backward(dh, dc, None if grad_gates is None else grad_gates[t], cells[t], gates[t])
        found.append(grad_z)
        dh = grad_z @ recurrent
    z = torch.stack(found[::-1]) if steps else gates.new_zeros(gates.shape, dtype=wide)
    before = torch.cat((h0.unsqueeze(0), h[:-1])) if steps else h
    inputs = torch.cat((before, input), 2).to(wide)
    return (
        (z @ weights[:, state:].to(wide)).to(dtype) if want_input else input.new_empty(0),
        (z.flatten(0, 1).t() @ inputs.flatten(0, 1)).to(dtype) if want_weights else input.new_empty(0),
        z.sum((0, 1)).to(dtype) if want_bias else input.new_empty(0),
        dh.to(dtype).clone() if want_h else input.new_empty(0),
        dc.to(dtype).clone() if want_cell else input.new_empty(0),
    )
