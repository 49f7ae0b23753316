"""SwiGLU's gate as one would write it without this project: a RawKernel launched with addresses, in an autograd.Function.

It takes what it is measured on, contiguous float32 of one shape on the current GPU, and checks nothing.
"""

from typing import Any

import cupy
import torch
from torch import Tensor

__all__ = ["swiglu"]

BLOCK = 256
TEXT = r"""
extern "C" __global__ void forward(const float* a, const float* b, float* y, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = a[i] / (1 + expf(-a[i])) * b[i];
}
extern "C" __global__ void backward(
    const float* grad_y, const float* a, const float* b, float* grad_a, float* grad_b, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float g = grad_y[i], v = a[i], s = 1 / (1 + expf(-v));
    grad_a[i] = g * b[i] * s * (1 + v * (1 - s));
    grad_b[i] = g * v * s;
}
"""
FORWARD, BACKWARD = (cupy.RawKernel(TEXT, name) for name in ("forward", "backward"))


def _launch(kernel: Any, *tensors: Tensor) -> None:
    n = tensors[0].numel()
    # Without this the kernel is on CuPy's stream, where it does not wait for PyTorch's.
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        kernel((-(-n // BLOCK),), (BLOCK,), (*(x.data_ptr() for x in tensors), n))


class SwiGLU(torch.autograd.Function):
    """y = a·σ(a)·b."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        y = torch.empty_like(a)
        _launch(FORWARD, a, b, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        grad_a, grad_b = torch.empty_like(a), torch.empty_like(b)
        _launch(BACKWARD, grad_y, a, b, grad_a, grad_b)
        return grad_a, grad_b


def swiglu(a: Tensor, b: Tensor) -> Tensor:
    """The Function's result."""
    y: Tensor = SwiGLU.apply(a, b)
    return y
