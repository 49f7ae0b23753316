"""Programs whose kernels take addresses from memory, rows with a pitch, and kernels from a table."""

from typing import Any

import pytest
import torch

import cupyops
from cupyops.cpp_extension import load_inline
from cupyops.errors import LaunchError
from tests.launch.devices import device_of

__all__ = ["device_of"]

TEXT = """
#include <torch/extension.h>
__global__ void gather(float** rows, float* y, int k) {
  for (int i = threadIdx.x; i < k; i += blockDim.x) y[blockIdx.x * k + i] = rows[blockIdx.x][i];
}
__global__ void add_at(const int64_t* rows, const float* x, int k) {
  float* row = reinterpret_cast<float*>(rows[blockIdx.x]);
  for (int i = threadIdx.x; i < k; i += blockDim.x) row[i] += x[i];
}
__global__ void pitched(const float* x, float* y, size_t pitch, int w) {
  if (threadIdx.x < w) y[blockIdx.x * w + threadIdx.x] = ((const float*)((const char*)x + blockIdx.x * pitch))[threadIdx.x];
}
template <int N> __global__ void power(const float* x, float* y, int n) {
  float v = 1;
  for (int k = 0; k < N; ++k) v *= x[threadIdx.x];
  if (threadIdx.x < n) y[threadIdx.x] = v;
}
__global__ void negated(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = -x[threadIdx.x]; }
typedef void (*Kernel)(const float*, float*, int);
static const Kernel table[] = {power<0>, &power<2>, power<3>, negated};

torch::Tensor array_of_pointers(std::vector<torch::Tensor> xs, int64_t beyond) {
  const int n = xs.size(), k = xs[0].numel();
  std::vector<float*> host(n);
  for (int i = 0; i < n; ++i) host[i] = xs[i].data_ptr<float>();
  float** device;
  cudaMalloc(&device, n * sizeof(float*));
  cudaMemcpy(device, host.data(), n * sizeof(float*), cudaMemcpyHostToDevice);
  auto y = torch::empty({n, k + beyond}, xs[0].options());
  gather<<<n, 32>>>(device, y.data_ptr<float>(), k + beyond);
  cudaFree(device);
  return y;
}
void tensor_of_addresses(std::vector<torch::Tensor> xs, torch::Tensor x) {
  auto addresses = torch::empty({(int64_t)xs.size()}, torch::kInt64);
  auto at = addresses.accessor<int64_t, 1>();
  for (size_t i = 0; i < xs.size(); ++i) at[i] = reinterpret_cast<int64_t>(xs[i].data_ptr<float>());
  addresses = addresses.to(x.device());
  add_at<<<xs.size(), 32>>>(addresses.data_ptr<int64_t>(), x.data_ptr<float>(), x.numel());
}
torch::Tensor rows(torch::Tensor x) {
  const int h = x.size(0), w = x.size(1);
  float* d;
  size_t pitch;
  cudaMallocPitch(&d, &pitch, w * sizeof(float), h);
  cudaMemset2D(d, pitch, 0, w * sizeof(float), h);
  cudaMemcpy2D(d, pitch, x.data_ptr<float>(), w * sizeof(float), w * sizeof(float), h - 1, cudaMemcpyDeviceToDevice);
  auto y = torch::empty_like(x);
  pitched<<<h, 64>>>(d, y.data_ptr<float>(), pitch, w);
  cudaFree(d);
  TORCH_CHECK(cudaMemcpy2D(d, 4, x.data_ptr<float>(), 8, 8, 1, cudaMemcpyDeviceToDevice) == 12 && cudaGetLastError() == 12);
  return y;
}
torch::Tensor of_table(torch::Tensor x, int64_t i) {
  auto y = torch::empty_like(x);
  Kernel kernel = table[i];
  kernel<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""


@pytest.fixture(scope="module")
def program() -> Any:
    return load_inline(
        "addresses", "", TEXT, functions=["array_of_pointers", "tensor_of_addresses", "rows", "of_table"]
    )


def test_kernels_read_pointers_from_memory(device: str, program: Any) -> None:
    xs = [torch.randn(40, device=device) for _ in range(5)]
    assert torch.equal(program.array_of_pointers(xs, 0), torch.stack(xs))


def test_an_index_beyond_such_memory_is_found(program: Any) -> None:
    xs = [torch.randn(4096) for _ in range(2)]
    with cupyops.simulate(sanitize=True), pytest.raises(LaunchError, match=r"out of bounds: reads 4 bytes"):
        program.array_of_pointers(xs, 1 << 20)


def test_kernels_write_at_addresses_of_a_tensor(device: str, program: Any) -> None:
    xs = [torch.randn(40, device=device) for _ in range(3)]
    expected = [x + xs[0] for x in xs]
    program.tensor_of_addresses(xs, xs[0].clone())
    assert all(map(torch.equal, xs, expected))


def test_an_argument_whose_address_other_memory_has_is_no_copy(device: str, program: Any) -> None:
    x = torch.randn(8, device=device)
    expected = x + x
    program.tensor_of_addresses([x], x)
    assert torch.equal(x, expected)


def test_rows_with_a_pitch(device: str, program: Any) -> None:
    x = torch.randn(3, 5, device=device)
    y = program.rows(x)
    assert torch.equal(y[:2], x[:2])
    assert not y[2].any()


def test_a_table_of_kernels(device: str, program: Any) -> None:
    x = torch.randn(64, device=device)
    for i, expected in enumerate((torch.ones_like(x), x * x, x * x * x, -x)):
        assert torch.equal(program.of_table(x, i), expected)
