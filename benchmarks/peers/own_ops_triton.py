"""The operators of ``examples/own_ops`` in Triton, forward and backward, in float32: rows whole in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    *("cross_entropy", "cross_entropy_backward", "dropout", "rms_norm", "rms_norm_backward", "rotary", "softmax"),
    *("softmax_backward", "swiglu", "swiglu_backward"),
]

BLOCK = 1024
PROGRAMS = 4  # of a backward that sums over rows, on each multiprocessor


# Triton looks up annotations as the kernel's globals, and takes none but its own.
@triton.jit
def _softmax(x_ptr, y_ptr, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < N
    x = tl.load(x_ptr + row * N + column, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * N + column, e / tl.sum(e, 0), mask=mask)


@triton.jit
def _softmax_backward(grad_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < N
    grad = tl.load(grad_ptr + row * N + column, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + row * N + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * N + column, y * (grad - tl.sum(grad * y, 0)), mask=mask)


@triton.jit
def _rms_norm(x_ptr, weight_ptr, y_ptr, N, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < N
    x = tl.load(x_ptr + row * N + column, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
    tl.store(y_ptr + row * N + column, x * r * weight, mask=mask)


@triton.jit
def _rms_norm_backward(  # type: ignore[no-untyped-def]
    grad_ptr, x_ptr, weight_ptr, out_ptr, partial_ptr, M, N, eps, BLOCK: tl.constexpr
):
    part = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < N
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(part, M, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * N + column
        grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        r = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
        d = tl.sum(grad * weight * x, 0) / N * r * r
        tl.store(out_ptr + at, r * (grad * weight - x * d), mask=mask)
        total += grad * x * r
    tl.store(partial_ptr + part.to(tl.int64) * N + column, total, mask=mask)


@triton.jit
def _cross_entropy(x_ptr, target_ptr, loss_ptr, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + column, mask=column < N, other=-float("inf")).to(tl.float32)
    chosen = tl.load(x_ptr + row * N + tl.load(target_ptr + row)).to(tl.float32)
    m = tl.max(x, 0)
    tl.store(loss_ptr + row, tl.log(tl.sum(tl.exp(x - m), 0)) + m - chosen)


@triton.jit
def _cross_entropy_backward(  # type: ignore[no-untyped-def]
    grad_ptr, x_ptr, target_ptr, out_ptr, N, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < N
    x = tl.load(x_ptr + row * N + column, mask=mask, other=-float("inf")).to(tl.float32)
    grad = tl.load(grad_ptr + row).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    y = e * (grad / tl.sum(e, 0)) - tl.where(column == tl.load(target_ptr + row), grad, 0.0)
    tl.store(out_ptr + row * N + column, y, mask=mask)


@triton.jit
def _swiglu(a_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    a = tl.load(a_ptr + i, mask=mask).to(tl.float32)
    b = tl.load(b_ptr + i, mask=mask).to(tl.float32)
    tl.store(y_ptr + i, a * tl.sigmoid(a) * b, mask=mask)


@triton.jit
def _swiglu_backward(grad_ptr, a_ptr, b_ptr, grad_a_ptr, grad_b_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    grad = tl.load(grad_ptr + i, mask=mask).to(tl.float32)
    a = tl.load(a_ptr + i, mask=mask).to(tl.float32)
    b = tl.load(b_ptr + i, mask=mask).to(tl.float32)
    s = tl.sigmoid(a)
    tl.store(grad_a_ptr + i, grad * b * s * (1 + a * (1 - s)), mask=mask)
    tl.store(grad_b_ptr + i, grad * a * s, mask=mask)


@triton.jit
def _rotary(x_ptr, cos_ptr, sin_ptr, y_ptr, S, H, HALF: tl.constexpr, HEADS: tl.constexpr):  # type: ignore[no-untyped-def]
    position = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, HALF)
    c = tl.load(cos_ptr + position % S * HALF + column)[None, :]
    s = tl.load(sin_ptr + position % S * HALF + column)[None, :]
    at = (position * H + head[:, None]) * (2 * HALF) + column[None, :]
    mask = (head < H)[:, None]
    u = tl.load(x_ptr + at, mask=mask).to(tl.float32)
    v = tl.load(x_ptr + at + HALF, mask=mask).to(tl.float32)
    tl.store(y_ptr + at, u * c - v * s, mask=mask)
    tl.store(y_ptr + at + HALF, v * c + u * s, mask=mask)


@triton.jit
def _dropout(x_ptr, y_ptr, key_ptr, n, p, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(x_ptr + i, mask=mask).to(tl.float32)
    kept = tl.rand(tl.load(key_ptr), i.to(tl.uint32)) >= p
    tl.store(y_ptr + i, tl.where(kept, x / (1 - p), 0.0), mask=mask)


def _rows(kernel: object, x: Tensor, *args: object) -> None:
    n = x.shape[-1]
    block = triton.next_power_of_2(n)
    kernel[(x.numel() // n,)](*args, BLOCK=block, num_warps=min(max(block // 512, 1), 16))  # type: ignore[index]


def softmax(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    _rows(_softmax, x, x, y, x.shape[-1])
    return y


def softmax_backward(grad_y: Tensor, y: Tensor) -> Tensor:
    grad_x = torch.empty_like(y)
    _rows(_softmax_backward, y, grad_y, y, grad_x, y.shape[-1])
    return grad_x


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = torch.empty_like(x)
    _rows(_rms_norm, x, x, weight, y, x.shape[-1], eps)
    return y


def rms_norm_backward(grad_y: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    n, grad_x = x.shape[-1], torch.empty_like(x)
    rows, block = x.numel() // n, triton.next_power_of_2(n)
    parts = min(rows, PROGRAMS * torch.cuda.get_device_properties(x.device).multi_processor_count)
    partial = torch.empty(parts, n, dtype=torch.float32, device=x.device)
    warps = min(max(block // 512, 1), 16)
    _rms_norm_backward[(parts,)](grad_y, x, weight, grad_x, partial, rows, n, eps, BLOCK=block, num_warps=warps)
    return grad_x, partial.sum(0).to(weight.dtype)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    loss = x.new_empty(x.shape[:-1])
    _rows(_cross_entropy, x, x, target, loss, x.shape[-1])
    return loss


def cross_entropy_backward(grad_loss: Tensor, x: Tensor, target: Tensor) -> Tensor:
    grad_x = torch.empty_like(x)
    _rows(_cross_entropy_backward, x, grad_loss, x, target, grad_x, x.shape[-1])
    return grad_x


def swiglu(a: Tensor, b: Tensor) -> Tensor:
    y = torch.empty_like(a)
    _swiglu[(triton.cdiv(a.numel(), BLOCK),)](a, b, y, a.numel(), BLOCK=BLOCK, num_warps=4)
    return y


def swiglu_backward(grad_y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    grad_a, grad_b = torch.empty_like(a), torch.empty_like(b)
    grid = (triton.cdiv(a.numel(), BLOCK),)
    _swiglu_backward[grid](grad_y, a, b, grad_a, grad_b, a.numel(), BLOCK=BLOCK, num_warps=4)
    return grad_a, grad_b


def rotary(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """x (B, S, H, D) with D / 2 a power of 2."""
    y, (B, S, H, D) = torch.empty_like(x), x.shape
    heads = min(triton.next_power_of_2(H), max(2048 // D, 1))
    _rotary[(B * S, triton.cdiv(H, heads))](x, c, s, y, S, H, HALF=D // 2, HEADS=heads, num_warps=4)
    return y


def dropout(x: Tensor, key: Tensor, p: float) -> Tensor:
    y = torch.empty_like(x)
    _dropout[(triton.cdiv(x.numel(), BLOCK),)](x, y, key, x.numel(), p, BLOCK=BLOCK, num_warps=4)
    return y
