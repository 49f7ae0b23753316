"""An operator of one's own, from CUDA text to gradients: SwiGLU, y = a·σ(a)·b."""

import torch

from cupyops import Kernel, Threads
from cupyops.torch import bench_op, check_op, operator

# scalar_t is the dtype of the tensors, acc_t the dtype of the arithmetic: float for 16-bit tensors. The comment after a
# pointer is the tensor's shape, which every call checks.
TEXT = r"""
extern "C" __global__ void forward(
    const scalar_t* a,  // (n)
    const scalar_t* b,  // (n)
    scalar_t* y,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(acc_t(a[i]) / (1 + exp(-acc_t(a[i]))) * acc_t(b[i]));
}

// dy/da = b s (1 + a (1 - s)) with s = σ(a), and dy/db = a s
extern "C" __global__ void backward(
    const scalar_t* grad_y,  // (n)
    const scalar_t* a,       // (n)
    const scalar_t* b,       // (n)
    scalar_t* grad_a,        // (n)
    scalar_t* grad_b,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    const acc_t g = grad_y[i], v = a[i], s = 1 / (1 + exp(-v));
    grad_a[i] = scalar_t(g * acc_t(b[i]) * s * (1 + v * (1 - s)));
    grad_b[i] = scalar_t(g * v * s);
}
"""
FORWARD = Kernel(TEXT, "forward", Threads("n"))
BACKWARD = Kernel(TEXT, "backward", Threads("n"))


# The names of the parameters select the arguments: the gradient of the result y, and the inputs a and b.
def gradient(grad_y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    grad_y, a, b = (x.contiguous() for x in torch.broadcast_tensors(grad_y, a, b))
    grad_a, grad_b = torch.empty_like(a), torch.empty_like(b)
    BACKWARD(grad_y, a, b, grad_a, grad_b, a.numel())
    return grad_a, grad_b


@operator("mylib::swiglu(Tensor a, Tensor b) -> Tensor y", backward=gradient)
def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = (x.contiguous() for x in torch.broadcast_tensors(a, b))
    y = torch.empty_like(a)
    FORWARD(a, b, y, a.numel())
    return y


if __name__ == "__main__":
    inputs = tuple(torch.randn(2, 1000, device="cuda" if torch.cuda.is_available() else "cpu"))
    check_op(swiglu, inputs)
    bench_op(swiglu, inputs)
