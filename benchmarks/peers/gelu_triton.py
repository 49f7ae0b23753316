"""GELU in Triton, in float32 (float64 for float64): by ``erf``, or by the sigmoid that the tanh form equals."""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["backward", "forward"]

BLOCK = 1024

SQRT_HALF = tl.constexpr(0.7071067811865476)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)
TWO_SQRT_2_OVER_PI = tl.constexpr(1.5957691216057308)
CUBIC = tl.constexpr(0.044715)


# Triton looks up annotations as the kernel's globals, and takes none but its own.
@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    y_ptr,
    n,
    TANH: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(x_ptr + i, mask=mask).to(ACC)
    if TANH:
        gate = 1.0 / (1.0 + tl.exp(-TWO_SQRT_2_OVER_PI * x * (1.0 + CUBIC * x * x)))
    else:
        gate = 0.5 * (1.0 + tl.erf(x * SQRT_HALF))
    tl.store(y_ptr + i, x * gate, mask=mask)


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    grad_ptr,
    x_ptr,
    out_ptr,
    n,
    TANH: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    grad = tl.load(grad_ptr + i, mask=mask).to(ACC)
    x = tl.load(x_ptr + i, mask=mask).to(ACC)
    if TANH:
        gate = 1.0 / (1.0 + tl.exp(-TWO_SQRT_2_OVER_PI * x * (1.0 + CUBIC * x * x)))
        slope = TWO_SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x)
        derivative = gate + x * gate * (1.0 - gate) * slope
    else:
        gate = 0.5 * (1.0 + tl.erf(x * SQRT_HALF))
        derivative = gate + x * INV_SQRT_2PI * tl.exp(-0.5 * x * x)
    tl.store(out_ptr + i, grad * derivative, mask=mask)


def _arithmetic(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32


def forward(tanh: bool, x: Tensor) -> Tensor:
    """GELU of a contiguous tensor."""
    y = torch.empty_like(x)
    n = x.numel()
    grid = (triton.cdiv(n, BLOCK),)
    _forward_kernel[grid](x, y, n, TANH=tanh, ACC=_arithmetic(x.dtype), BLOCK=BLOCK, num_warps=4)
    return y


def backward(tanh: bool, grad_y: Tensor, x: Tensor) -> Tensor:
    """GELU's gradient for contiguous tensors of one shape and dtype."""
    grad_x = torch.empty_like(x)
    n = x.numel()
    grid = (triton.cdiv(n, BLOCK),)
    _backward_kernel[grid](grad_y, x, grad_x, n, TANH=tanh, ACC=_arithmetic(x.dtype), BLOCK=BLOCK, num_warps=4)
    return grad_x
