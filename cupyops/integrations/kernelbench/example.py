import torch
import torch.nn as nn

from cupyops import Blocks, Kernel, Threads

# A kernel is CUDA C++ in a string. It needs no C++ host code and no build: its first call compiles it.
# - scalar_t is the dtype of the tensors, acc_t the dtype of arithmetic on it: float for float, half and bfloat16.
# - The comment after an array is its shape. Each call is checked against it, and the launch takes the sizes from it.
# - Arguments are contiguous tensors on the GPU and numbers, in the order of the parameters. Outputs are tensors, too.
# - Threads("n") has a thread for each of n elements. Blocks("rows", block=256) has a block of 256 threads for each of
#   `rows` rows. kernel[grid, block](...) launches as <<<grid, block>>> does.
# - The launch is on PyTorch's current stream. Do not synchronize.
add = Kernel(
    r"""__global__ void add(
    const scalar_t* a,  // (n)
    const scalar_t* b,  // (n)
    scalar_t* out,      // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = scalar_t(acc_t(a[i]) + acc_t(b[i]));
}""",
    "add",
    Threads("n"),
)

# A reduction, as an example of shared memory: a block sums a row. ModelNew below does not need it.
row_sum = Kernel(
    r"""__global__ void row_sum(
    const scalar_t* x,  // (rows, n)
    scalar_t* out,      // (rows)
    long long rows, long long n) {
    __shared__ acc_t part[256];
    acc_t sum = 0;
    for (long long i = threadIdx.x; i < n; i += 256) sum += acc_t(x[blockIdx.x * n + i]);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = scalar_t(part[0]);
}""",
    "row_sum",
    Blocks("rows", block=256),
)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty_like(a)
        add(a, b, out, a.numel())
        return out
