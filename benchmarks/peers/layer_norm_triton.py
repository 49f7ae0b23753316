"""LayerNorm in Triton, in float32: rows in registers while they fit, and by blocks where they are longer.

The gradients of weight and bias are added up in a fixed order: each program keeps sums of its own rows, and a second
kernel adds the programs' sums.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["add_forward", "backward", "forward", "forward_with_stats"]

# Short rows share a program, so that it has this many elements.
TILE = 2048
# Elements of the longest row that a program keeps: x in the forward; in the backward x, grad_y and both sums.
LONGEST_FORWARD, LONGEST_BACKWARD = 32768, 8192
LONG_BLOCK = 4096
# Columns and rows of a tile of the sums over rows, and of their last addition.
SUM_COLUMNS, SUM_ROWS = 128, 32
LAST_COLUMNS, LAST_ROWS = 32, 64


# Triton looks up annotations as the kernel's globals, and takes none but its own.
@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    s_ptr,
    y_ptr,
    stats_ptr,
    M,
    N,
    eps,
    ADD: tl.constexpr,
    AFFINE: tl.constexpr,
    STATS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = column < N
    mask = (row < M)[:, None] & inside[None, :]
    at = row.to(tl.int64)[:, None] * N + column[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(s_ptr + at, x, mask=mask)
    mean = tl.sum(x, 1) / N
    centred = tl.where(mask, x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / N + eps)
    y = centred * rstd[:, None]
    if AFFINE:
        weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
        y = y * weight[None, :] + bias[None, :]
    tl.store(y_ptr + at, y, mask=mask)
    if STATS:
        tl.store(stats_ptr + row, mean, mask=row < M)
        tl.store(stats_ptr + M + row, rstd, mask=row < M)


@triton.jit
def _long_forward_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    s_ptr,
    y_ptr,
    stats_ptr,
    M,
    N,
    eps,
    ADD: tl.constexpr,
    AFFINE: tl.constexpr,
    STATS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    # Each lane keeps mean and squared deviations of what it has seen, by Welford's update: one pass, no cancellation.
    count = tl.zeros((BLOCK,), tl.float32)
    mean = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        mask = first + column < N
        at = row * N + first + column
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if ADD:
            x += tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)
            tl.store(s_ptr + at, x, mask=mask)
        count += tl.where(mask, 1.0, 0.0)
        delta = tl.where(mask, x - mean, 0.0)
        mean += delta / tl.maximum(count, 1.0)
        squares += delta * tl.where(mask, x - mean, 0.0)
    row_mean = tl.sum(mean * count, 0) / N
    off = mean - row_mean
    rstd = 1.0 / tl.sqrt(tl.sum(squares + count * off * off, 0) / N + eps)
    for first in range(0, N, BLOCK):
        mask = first + column < N
        at = row * N + first + column
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if ADD:
            x += tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)
        y = (x - row_mean) * rstd
        if AFFINE:
            weight = tl.load(weight_ptr + first + column, mask=mask, other=0.0).to(tl.float32)
            bias = tl.load(bias_ptr + first + column, mask=mask, other=0.0).to(tl.float32)
            y = y * weight + bias
        tl.store(y_ptr + at, y, mask=mask)
    if STATS:
        tl.store(stats_ptr + row, row_mean)
        tl.store(stats_ptr + M + row, rstd)


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    grad_ptr,
    x_ptr,
    stats_ptr,
    weight_ptr,
    grad_s_ptr,
    out_ptr,
    sums_ptr,
    M,
    N,
    ADD: tl.constexpr,
    AFFINE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    inside = column < N
    if AFFINE:
        weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
        grad_weight = tl.zeros((ROWS, BLOCK), tl.float32)
        grad_bias = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(program * ROWS, M, programs * ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < M)[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * N + column[None, :]
        mean = tl.load(stats_ptr + row, mask=row < M, other=0.0)
        rstd = tl.load(stats_ptr + M + row, mask=row < M, other=0.0)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
        x_hat = tl.where(mask, (x - mean[:, None]) * rstd[:, None], 0.0)
        g = grad
        if AFFINE:
            grad_weight += grad * x_hat
            grad_bias += grad
            g = grad * weight[None, :]
        along_one = tl.sum(g, 1) / N
        along_x = tl.sum(g * x_hat, 1) / N
        out = (g - along_one[:, None] - x_hat * along_x[:, None]) * rstd[:, None]
        if ADD:
            out += tl.load(grad_s_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + at, out, mask=mask)
    if AFFINE:
        at_sums = program.to(tl.int64) * N + column
        tl.store(sums_ptr + at_sums, tl.sum(grad_weight, 0), mask=inside)
        tl.store(sums_ptr + programs.to(tl.int64) * N + at_sums, tl.sum(grad_bias, 0), mask=inside)


@triton.jit
def _long_backward_kernel(  # type: ignore[no-untyped-def]
    grad_ptr,
    x_ptr,
    stats_ptr,
    weight_ptr,
    grad_s_ptr,
    out_ptr,
    M,
    N,
    ADD: tl.constexpr,
    AFFINE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mean = tl.load(stats_ptr + row)
    rstd = tl.load(stats_ptr + M + row)
    along_one = tl.zeros((BLOCK,), tl.float32)
    along_x = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        mask = first + column < N
        at = row * N + first + column
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if AFFINE:
            g *= tl.load(weight_ptr + first + column, mask=mask, other=0.0).to(tl.float32)
        along_one += g
        along_x += g * (x - mean) * rstd
    one = tl.sum(along_one, 0) / N
    other = tl.sum(along_x, 0) / N
    for first in range(0, N, BLOCK):
        mask = first + column < N
        at = row * N + first + column
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if AFFINE:
            g *= tl.load(weight_ptr + first + column, mask=mask, other=0.0).to(tl.float32)
        out = (g - one - (x - mean) * rstd * other) * rstd
        if ADD:
            out += tl.load(grad_s_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + at, out, mask=mask)


@triton.jit
def _column_sums_kernel(  # type: ignore[no-untyped-def]
    grad_ptr,
    x_ptr,
    stats_ptr,
    sums_ptr,
    M,
    N,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    part, parts = tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < N
    grad_weight = tl.zeros((ROWS, COLUMNS), tl.float32)
    grad_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(part * ROWS, M, parts * ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < M)[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * N + column[None, :]
        mean = tl.load(stats_ptr + row, mask=row < M, other=0.0)
        rstd = tl.load(stats_ptr + M + row, mask=row < M, other=0.0)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
        grad_weight += grad * (x - mean[:, None]) * rstd[:, None]
        grad_bias += grad
    at_sums = part.to(tl.int64) * N + column
    tl.store(sums_ptr + at_sums, tl.sum(grad_weight, 0), mask=inside)
    tl.store(sums_ptr + parts.to(tl.int64) * N + at_sums, tl.sum(grad_bias, 0), mask=inside)


@triton.jit
def _last_sums_kernel(  # type: ignore[no-untyped-def]
    sums_ptr,
    out_ptr,
    parts,
    N,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    which = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < N
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, parts, ROWS):
        part = first + tl.arange(0, ROWS)
        mask = (part < parts)[:, None] & inside[None, :]
        at = (which * parts + part).to(tl.int64)[:, None] * N + column[None, :]
        total += tl.load(sums_ptr + at, mask=mask, other=0.0)
    tl.store(out_ptr + which * N + column, tl.sum(total, 0), mask=inside)


def forward(eps: float, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """y of a contiguous (M, N)."""
    return _run_forward(eps, x, None, weight, bias, None)[0]


def forward_with_stats(eps: float, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """y, and what the backward needs: mean and 1/√(variance + eps), (2, M, 1)."""
    stats = torch.empty((2, x.shape[0], 1), dtype=torch.float32, device=x.device)
    return _run_forward(eps, x, None, weight, bias, stats)[0], stats


def add_forward(
    eps: float, x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """y of s = x + residual, and s."""
    return _run_forward(eps, x, residual, weight, bias, None)


def _run_forward(
    eps: float, x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, stats: Tensor | None
) -> tuple[Tensor, Tensor]:
    m, n = x.shape
    y = torch.empty_like(x)
    s = x if residual is None else torch.empty_like(x)
    arguments = x, residual, weight, bias, s, y, stats, m, n, eps
    flags = {"ADD": residual is not None, "AFFINE": weight is not None, "STATS": stats is not None}
    block = triton.next_power_of_2(n)
    if block > LONGEST_FORWARD:
        _long_forward_kernel[(m,)](*arguments, **flags, BLOCK=LONG_BLOCK, num_warps=16)
    else:
        rows, warps = _tile(block)
        _forward_kernel[(triton.cdiv(m, rows),)](*arguments, **flags, ROWS=rows, BLOCK=block, num_warps=warps)
    return y, s


def backward(
    grad_y: Tensor, x: Tensor, stats: Tensor, weight: Tensor | None = None, grad_s: Tensor | None = None
) -> tuple[Tensor, ...]:
    """grad_x (to which grad_s is added), and with a weight its gradient and the bias's."""
    m, n = x.shape
    grad_x = torch.empty_like(x)
    flags = {"ADD": grad_s is not None, "AFFINE": weight is not None}
    block = triton.next_power_of_2(n)
    multiprocessors = _multiprocessors(x.get_device())
    if block > LONGEST_BACKWARD:
        _long_backward_kernel[(m,)](
            grad_y, x, stats, weight, grad_s, grad_x, m, n, **flags, BLOCK=LONG_BLOCK, num_warps=16
        )
        if weight is None:
            return (grad_x,)
        columns = triton.cdiv(n, SUM_COLUMNS)
        parts = max(1, min(triton.cdiv(m, SUM_ROWS), triton.cdiv(8 * multiprocessors, columns)))
        sums = torch.empty((2, parts, n), dtype=torch.float32, device=x.device)
        _column_sums_kernel[(columns, parts)](
            grad_y, x, stats, sums, m, n, ROWS=SUM_ROWS, COLUMNS=SUM_COLUMNS, num_warps=8
        )
    else:
        rows, warps = _tile(block)
        parts = min(triton.cdiv(m, rows), multiprocessors * max(1, 16 // warps))
        sums = torch.empty((2, parts, n) if weight is not None else 0, dtype=torch.float32, device=x.device)
        _backward_kernel[(parts,)](
            grad_y, x, stats, weight, grad_s, grad_x, sums, m, n, **flags, ROWS=rows, BLOCK=block, num_warps=warps
        )
        if weight is None:
            return (grad_x,)
    grads = torch.empty((2, n), dtype=weight.dtype, device=x.device)
    grid = triton.cdiv(n, LAST_COLUMNS), 2
    _last_sums_kernel[grid](sums, grads, parts, n, ROWS=LAST_ROWS, COLUMNS=LAST_COLUMNS, num_warps=4)
    return grad_x, grads[0], grads[1]


def _tile(block: int) -> tuple[int, int]:
    """Rows and warps of a program that keeps rows of so many elements: 16 a thread, 32 in the longest rows."""
    rows = max(1, TILE // block)
    return rows, max(4, min(32, rows * block // 512))


@cache
def _multiprocessors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
