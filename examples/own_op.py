"""An operator of one's own, from CUDA text to gradients: SwiGLU, y = a·σ(a)·b."""

import torch

from cupyops import Kernel, Threads
from cupyops.torch import bench_op, check_op, operator

TEXT = r"""extern "C" __global__ void forward(const scalar_t* a /* (n) */, const scalar_t* b /* (n) */, scalar_t* y /* (n) */, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(acc_t(a[i]) / (1 + exp(-acc_t(a[i]))) * acc_t(b[i]));
}
extern "C" __global__ void backward(const scalar_t* grad_y /* (n) */, const scalar_t* a /* (n) */, const scalar_t* b /* (n) */,
                                    scalar_t* grad_a /* (n) */, scalar_t* grad_b /* (n) */, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; if (i >= n) return;
    const acc_t g = grad_y[i], v = a[i], s = 1 / (1 + exp(-v));
    grad_a[i] = scalar_t(g * acc_t(b[i]) * s * (1 + v * (1 - s))), grad_b[i] = scalar_t(g * v * s);
}"""
FORWARD, BACKWARD = (Kernel(TEXT, name, Threads("n")) for name in ("forward", "backward"))


# The names of the backward's parameters select its arguments: gradients of results, inputs, results.
def gradient(grad_y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = [x.contiguous() for x in torch.broadcast_tensors(grad_y, a, b)]
    BACKWARD(*tensors, grad_a := torch.empty_like(tensors[0]), grad_b := torch.empty_like(tensors[0]), grad_a.numel())
    return grad_a, grad_b


@operator("mylib::swiglu(Tensor a, Tensor b) -> Tensor y", backward=gradient)
def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = (x.contiguous() for x in torch.broadcast_tensors(a, b))
    FORWARD(a, b, y := torch.empty_like(a), a.numel())
    return y


if __name__ == "__main__":
    inputs = tuple(torch.randn(2, 1000, device="cuda" if torch.cuda.is_available() else "cpu"))
    check_op(swiglu, inputs)
    bench_op(swiglu, inputs)
