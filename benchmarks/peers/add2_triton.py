"""Addition in Triton: 1024 elements a program and 4 warps, so 8 elements a thread in accesses of 16 bytes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["add2"]

BLOCK = 1024


# Triton looks up annotations as the kernel's globals, and takes none but its own.
@triton.jit
def _add2_kernel(  # type: ignore[no-untyped-def]
    a_ptr,
    b_ptr,
    out_ptr,
    n,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    a = tl.load(a_ptr + i, mask=mask)
    b = tl.load(b_ptr + i, mask=mask)
    tl.store(out_ptr + i, a + b, mask=mask)


@triton.jit
def _add2_rows_kernel(  # type: ignore[no-untyped-def]
    a_ptr,
    b_ptr,
    out_ptr,
    width,
    ROW_VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    m = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = i < width
    at = m.to(tl.int64) * width + i
    a = tl.load(a_ptr + at, mask=mask)
    if ROW_VECTOR:
        b = tl.load(b_ptr + i, mask=mask)
    else:
        b = tl.load(b_ptr + m)
    tl.store(out_ptr + at, a + b, mask=mask)


def add2(a: Tensor, b: Tensor) -> Tensor:
    """a + b for contiguous operands of one shape, or a (M, N) with b (N,) or (M, 1)."""
    if a.dtype == b.dtype:
        out = torch.empty_like(a)
    else:
        out = torch.empty_like(a, dtype=torch.promote_types(a.dtype, b.dtype))
    n = out.numel()
    if a.shape == b.shape:
        _add2_kernel[(triton.cdiv(n, BLOCK),)](a, b, out, n, BLOCK=BLOCK, num_warps=4)
        return out
    m, width = a.shape
    row_vector = b.shape == (width,)
    if not row_vector and b.shape != (m, 1):
        raise ValueError(f"add2: `b` must have shape ({width},) or ({m}, 1), got {tuple(b.shape)}")
    grid = m, triton.cdiv(width, BLOCK)
    _add2_rows_kernel[grid](a, b, out, width, ROW_VECTOR=row_vector, BLOCK=BLOCK, num_warps=4)
    return out
