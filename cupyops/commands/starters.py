"""The starter files of ``python -m cupyops new``, with the placeholder NAME for the operator's name.

A starter has a head, the part of its kind, and a tail. The names that the parts share are NAME, the operator, and
``reference``, the operation in PyTorch.
"""

from dataclasses import dataclass

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """A kind of starter.

    Attributes:
        what: the operator of the file, in words. uses: the launch policy, and the file's other imports.
        part: kernels and declaration.
        sample: a sample of the operator's arguments, in Python.
        large: arguments for the benchmark.
    """

    what: str
    uses: str
    part: str
    sample: str
    large: str

    @property
    def text(self) -> str:
        """The whole file."""
        values = {"WHAT": self.what, "USES": self.uses, "SAMPLE": self.sample, "LARGE": self.large}
        text = HEAD + self.part.strip("\n") + TAIL
        for name, value in values.items():
            text = text.replace(name, value)
        return text


HEAD = '''"""NAME: WHAT, and its gradient, as a PyTorch operator.

Put your own formula in its place. `python NAME.py` checks the operator, on a CPU in the simulator, and times it on a
GPU. `python -m pytest NAME.py` runs the check as a test.
"""

import torch
from cupyops import Kernel, USES
from cupyops.torch import bench_op, check_op, operator

'''

TAIL = '''


def samples(device):
    """Returns one tuple of arguments for each code path of the operator, of sizes that no block divides."""
    return [SAMPLE]


def test_NAME():
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        check_op(NAME, samples(device))


if __name__ == "__main__":
    test_NAME()
    if torch.cuda.is_available():
        large = LARGE
        bench_op(NAME, large, peers={"torch.compile": torch.compile(reference)})
    else:
        print("Checked. The benchmark needs a GPU.")
'''

ELEMENTWISE = r'''
# scalar_t is the dtype of the tensors. acc_t is the dtype of the arithmetic (float for 16-bit tensors). The comment
# after a pointer is the tensor's shape, which every call checks. `map` is an elementwise loop at memory speed. To write
# the threads yourself, leave out `map`, and use Threads("n") in place of Elementwise("n").
TEXT = r"""
#include "elementwise.cuh"
#include "scalar.cuh"

__device__ __forceinline__ acc_t sigmoid(acc_t x) { return acc_t(1) / (acc_t(1) + exp(-x)); }

// y = x * s with s = sigmoid(x)
extern "C" __global__ void NAME_forward(
    const scalar_t* __restrict__ x,  // (n)
    scalar_t* __restrict__ y,        // (n)
    long long n) {
    map(n, [](scalar_t element) {
            const acc_t x = convert<acc_t>(element);
            return convert<scalar_t>(x * sigmoid(x));
        },
        y, x);
}

// dy/dx = s + x * s * (1 - s) = s * (1 + x * (1 - s))
extern "C" __global__ void NAME_backward(
    const scalar_t* __restrict__ grad_y,  // (n)
    const scalar_t* __restrict__ x,       // (n)
    scalar_t* __restrict__ grad_x,        // (n)
    long long n) {
    map(n, [](scalar_t grad, scalar_t element) {
            const acc_t x = convert<acc_t>(element), s = sigmoid(x);
            return convert<scalar_t>(convert<acc_t>(grad) * s * (acc_t(1) + x * (acc_t(1) - s)));
        },
        grad_x, grad_y, x);
}
"""
FORWARD = Kernel(TEXT, "NAME_forward", Elementwise("n"))
BACKWARD = Kernel(TEXT, "NAME_backward", Elementwise("n"))


# The same in PyTorch: it runs on CPU tensors, and the check compares the kernels with it.
def reference(x):
    return x * torch.sigmoid(x)


# The names of the parameters select the arguments: the gradient of the result y, and the input x.
def gradient(grad_y, x):
    grad_y, x = grad_y.contiguous(), x.contiguous()
    grad_x = torch.empty_like(x)
    BACKWARD(grad_y, x, grad_x, x.numel())
    return grad_x


# The body allocates the result and launches the kernel. Stream, device, pointers and grid are set automatically.
@operator("mylib::NAME(Tensor x) -> Tensor y", backward=gradient, reference=reference, elementwise=True)
def NAME(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    FORWARD(x, y, x.numel())
    return y
'''

ROWS = r'''
# scalar_t is the dtype of the tensors. acc_t is the dtype of the arithmetic (float for 16-bit tensors). The comment
# after a pointer is the tensor's shape, which every call checks. Rows("M") launches a block of BLOCK_THREADS threads
# for each row. If assignments can express the operation, cupyops.torch.row_reduce writes a faster kernel around them.
TEXT = r"""
// Returns the sum of the values of all threads of the block, to every thread.
__device__ acc_t block_sum(acc_t value) {
    __shared__ acc_t part[BLOCK_THREADS / 32];
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    __syncthreads();  // the block may still read the parts of an earlier sum
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    acc_t sum = 0;
    for (int warp = 0; warp < BLOCK_THREADS / 32; ++warp) sum += part[warp];
    return sum;
}

// y = x * r with r = 1 / sqrt(mean of x * x over the row + eps)
extern "C" __global__ void NAME_forward(
    const scalar_t* __restrict__ x,  // (M, N)
    scalar_t* __restrict__ y,        // (M, N)
    acc_t eps, long long M, long long N) {
    const long long row = blockIdx.x * N;
    acc_t squares = 0;
    for (long long j = threadIdx.x; j < N; j += BLOCK_THREADS) squares += acc_t(x[row + j]) * acc_t(x[row + j]);
    const acc_t r = 1 / sqrt(block_sum(squares) / acc_t(N) + eps);
    for (long long j = threadIdx.x; j < N; j += BLOCK_THREADS) y[row + j] = scalar_t(acc_t(x[row + j]) * r);
}

// grad_x = r * (grad_y - x * r * r * mean of grad_y * x over the row)
extern "C" __global__ void NAME_backward(
    const scalar_t* __restrict__ grad_y,  // (M, N)
    const scalar_t* __restrict__ x,       // (M, N)
    scalar_t* __restrict__ grad_x,        // (M, N)
    acc_t eps, long long M, long long N) {
    const long long row = blockIdx.x * N;
    acc_t squares = 0, products = 0;
    for (long long j = threadIdx.x; j < N; j += BLOCK_THREADS) {
        squares += acc_t(x[row + j]) * acc_t(x[row + j]);
        products += acc_t(grad_y[row + j]) * acc_t(x[row + j]);
    }
    const acc_t r = 1 / sqrt(block_sum(squares) / acc_t(N) + eps);
    const acc_t mean = block_sum(products) / acc_t(N);
    for (long long j = threadIdx.x; j < N; j += BLOCK_THREADS)
        grad_x[row + j] = scalar_t(r * (acc_t(grad_y[row + j]) - acc_t(x[row + j]) * r * r * mean));
}
"""
FORWARD = Kernel(TEXT, "NAME_forward", Rows("M", 256))
BACKWARD = Kernel(TEXT, "NAME_backward", Rows("M", 256))


# The same in PyTorch: it runs on CPU tensors, and the check compares the kernels with it.
def reference(x, eps):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


# The names of the parameters select the arguments: the gradient of the result y, the input x, the number eps.
def gradient(grad_y, x, eps):
    grad_y, x = grad_y.contiguous(), x.contiguous()
    grad_x = torch.empty_like(x)
    BACKWARD(grad_y, x, grad_x, eps, x[..., 0].numel(), x.shape[-1])
    return grad_x


# The body allocates the result and launches the kernel. Stream, device, pointers and grid are set automatically.
@operator("mylib::NAME(Tensor x, float eps) -> Tensor y", backward=gradient, reference=reference)
def NAME(x, eps):
    x = x.contiguous()
    y = torch.empty_like(x)
    FORWARD(x, y, eps, x[..., 0].numel(), x.shape[-1])
    return y
'''

TILE = r'''
# scalar_t is the dtype of the tensors. The comment after a pointer is the tensor's shape, which every call checks. A
# block of TILE * TILE threads loads a tile into shared memory along the rows of x, waits, and stores the tile along the
# rows of y, so that neighbouring threads read and write neighbouring elements. The column that pads a row of the tile
# puts the elements of a tile's column into different banks.
TEXT = r"""
// y = the transpose of x
extern "C" __global__ void NAME_tile(
    const scalar_t* __restrict__ x,  // (M, N)
    scalar_t* __restrict__ y,        // (N, M)
    long long M, long long N) {
    __shared__ scalar_t tile[TILE][TILE + 1];
    const long long column = blockIdx.x * (long long)TILE, row = blockIdx.y * (long long)TILE;
    if (row + threadIdx.y < M && column + threadIdx.x < N)
        tile[threadIdx.y][threadIdx.x] = x[(row + threadIdx.y) * N + column + threadIdx.x];
    __syncthreads();
    if (column + threadIdx.y < N && row + threadIdx.x < M)
        y[(column + threadIdx.y) * M + row + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
"""
TILE = 16
KERNEL = Kernel(TEXT, "NAME_tile", Threads("N", "M", block=(TILE, TILE)), constants={"TILE": TILE})


# The same in PyTorch: it runs on CPU tensors, and the check compares the kernel with it.
def reference(x):
    return torch.clone(x.t(), memory_format=torch.contiguous_format)


# The names of the parameters select the arguments. The gradient is a transpose, too. It takes x, which it does not
# read: a backward that takes all inputs has a derivative itself, from the reference.
def gradient(grad_y, x):
    grad_y = grad_y.contiguous()
    M, N = grad_y.shape
    grad_x = torch.empty(N, M, dtype=grad_y.dtype, device=grad_y.device)
    KERNEL(grad_y, grad_x, M, N)
    return grad_x


# The body allocates the result and launches the kernel. Stream, device, pointers and grid are set automatically.
@operator("mylib::NAME(Tensor x) -> Tensor y", backward=gradient, reference=reference)
def NAME(x):
    x = x.contiguous()
    M, N = x.shape
    y = torch.empty(N, M, dtype=x.dtype, device=x.device)
    KERNEL(x, y, M, N)
    return y
'''

KINDS = {
    "elementwise": Kind(
        "y = x * sigmoid(x)",
        "Elementwise",
        ELEMENTWISE,
        "(torch.randn(37, 29, device=device, requires_grad=True),)",
        '(torch.randn(1 << 26, device="cuda", dtype=torch.bfloat16),)',
    ),
    "rows": Kind(
        "y = x / sqrt(mean of x * x over the row + eps)",
        "Rows",
        ROWS,
        "(torch.randn(5, 300, device=device, requires_grad=True), 1e-5)",
        '(torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16), 1e-5)',
    ),
    "tile": Kind(
        "y = the transpose of x, by tiles in shared memory",
        "Threads",
        TILE,
        "(torch.randn(37, 19, device=device, requires_grad=True),)",
        '(torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16),)',
    ),
}
