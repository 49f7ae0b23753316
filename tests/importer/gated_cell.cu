// A gated recurrent cell, written as a PyTorch C++/CUDA extension: the kernels take packed accessors.
//   g = [h, x] W^T + b,  z = sigmoid(g0),  c = tanh(g1),  h' = h + z (c - h)
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <tuple>
#include <vector>

#include "gated_cell.h"

#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CELL_THREADS 64

using Gates = torch::PackedTensorAccessor32<float, 3>;  // nothing uses it

namespace cell {

template <typename scalar_t>
__device__ __forceinline__ scalar_t sigmoid(scalar_t x) {
    return scalar_t(1) / (scalar_t(1) + exp(-x));
}

// Of a tile of the batch, the gates of one row.
template <typename scalar_t>
using Rows = torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits>;

template <typename scalar_t>
__global__ void forward_kernel(
    const torch::PackedTensorAccessor32<scalar_t, 3, torch::RestrictPtrTraits> g,
    const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> h,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> z,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> c,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> new_h) {
    const int n = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= h.size(1)) return;
    const scalar_t gate = sigmoid(g[n][0][j]), candidate = tanh(g[n][1][j]);
    z[n][j] = gate;
    c[n][j] = candidate;
    new_h[n][j] = mix(h[n][j], candidate, gate);
}

template <typename scalar_t, typename index_t>
__global__ void backward_kernel(
    const at::PackedTensorAccessor<scalar_t, 2, at::RestrictPtrTraits, index_t> grad,
    const at::PackedTensorAccessor<scalar_t, 2, at::RestrictPtrTraits, index_t> h,
    const at::PackedTensorAccessor<scalar_t, 2, at::RestrictPtrTraits, index_t> z,
    const at::PackedTensorAccessor<scalar_t, 2, at::RestrictPtrTraits, index_t> c,
    at::PackedTensorAccessor<scalar_t, 3, at::RestrictPtrTraits, index_t> grad_g,
    at::PackedTensorAccessor<scalar_t, 2, at::RestrictPtrTraits, index_t> grad_h) {
    const int n = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= h.size(1)) return;
    const scalar_t gate = z[n][j], candidate = c[n][j], d = grad[n][j];
    grad_g[n][0][j] = d * (candidate - h[n][j]) * gate * (1 - gate);
    grad_g[n][1][j] = d * gate * (1 - candidate * candidate);
    grad_h[n][j] = d * (1 - gate);
}

}  // namespace cell

// Returns the new state, and what the backward reads.
std::vector<torch::Tensor> cell_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor h) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(x.size(0) == h.size(0), "x and h must have one batch size");
    const at::cuda::OptionalCUDAGuard guard(device_of(x));
    auto joined = torch::cat({h, x}, /*dim=*/1);
    const auto batch = h.size(0), width = h.size(1);
    auto g = torch::addmm(bias, joined, weight.transpose(0, 1)).reshape({batch, 2, width});
    auto z = torch::empty_like(h), c = torch::empty_like(h);
    auto new_h = torch::empty({batch, width}, h.options());
    const dim3 blocks((width + CELL_THREADS - 1) / CELL_THREADS, batch);
    AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "cell_forward", ([&] {
        cell::forward_kernel<scalar_t><<<blocks, CELL_THREADS, 0, at::cuda::getCurrentCUDAStream()>>>(
            g.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>(),
            h.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
            z.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
            c.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
            new_h.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>());
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }));
    return {new_h, z, c, joined};
}

std::tuple<torch::Tensor, torch::Tensor, torch::Tensor, torch::Tensor> cell_backward(
    torch::Tensor grad_new_h, torch::Tensor h, torch::Tensor z, torch::Tensor c, torch::Tensor joined, torch::Tensor weight) {
    const auto batch = h.size(0);
    const int64_t width = h.size(1);
    auto grad_g = torch::empty({batch, 2, width}, h.options());
    auto grad_h = torch::empty_like(h);
    const int threads = 64;
    const dim3 blocks((width + threads - 1) / threads, batch);
    AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "cell_backward", [&] {
        cell::backward_kernel<scalar_t, int64_t><<<blocks, threads>>>(
            grad_new_h.packed_accessor<scalar_t, 2, at::RestrictPtrTraits, int64_t>(),
            h.packed_accessor<scalar_t, 2, at::RestrictPtrTraits, int64_t>(),
            z.packed_accessor<scalar_t, 2, at::RestrictPtrTraits, int64_t>(),
            c.packed_accessor<scalar_t, 2, at::RestrictPtrTraits, int64_t>(),
            grad_g.packed_accessor<scalar_t, 3, at::RestrictPtrTraits, int64_t>(),
            grad_h.packed_accessor<scalar_t, 2, at::RestrictPtrTraits, int64_t>());
    });
    auto flat = grad_g.flatten(1, 2);
    auto grad_joined = flat.mm(weight);
    grad_h += grad_joined.slice(/*dim=*/1, 0, width);
    return std::make_tuple(
        grad_joined.slice(1, width).clone(), flat.t().mm(joined), flat.sum(/*dim=*/0), grad_h);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("forward", &cell_forward, "forward");
    m.def("backward", &cell_backward, "backward");
}
