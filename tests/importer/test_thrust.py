"""Thrust's vectors and algorithms in host code."""

from typing import Any

import pytest
import torch

from cupyops.cpp_extension import load_inline
from tests.launch.devices import device_of

__all__ = ["device_of"]

TEXT = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <thrust/copy.h>
#include <thrust/count.h>
#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/extrema.h>
#include <thrust/gather.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <thrust/unique.h>
struct Positive { __host__ __device__ bool operator()(float x) const { return x > 0.f; } };
struct Axpy {
  float a;
  explicit Axpy(float a_) : a(a_) {}
  __host__ __device__ float operator()(float x, float y) const { return a * x + y; }
};
std::vector<torch::Tensor> sorted(torch::Tensor x) {
  auto keys = x.clone(), ascending = x.clone(), sums = torch::empty_like(x), before = torch::empty_like(x);
  auto order = torch::empty({x.numel()}, x.options().dtype(torch::kInt32));
  thrust::device_ptr<float> p(keys.data_ptr<float>());
  auto q = thrust::device_pointer_cast(order.data_ptr<int>());
  const int n = x.numel();
  thrust::sequence(q, q + n);
  thrust::sort_by_key(thrust::cuda::par.on(at::cuda::getCurrentCUDAStream()), p, p + n, q, thrust::greater<float>());
  thrust::stable_sort(thrust::device, ascending.data_ptr<float>(), ascending.data_ptr<float>() + n);
  thrust::inclusive_scan(p, p + n, thrust::device_pointer_cast(sums.data_ptr<float>()));
  thrust::exclusive_scan(thrust::device, p, p + n, before.data_ptr<float>(), 1.f);
  return {keys, order, ascending, sums, before};
}
std::vector<double> numbers(torch::Tensor x) {
  const float* p = x.data_ptr<float>();
  const int n = x.numel();
  double sum = thrust::reduce(p, p + n), whole = thrust::reduce(p, p + n, 0);
  double most = thrust::reduce(thrust::device, p, p + n, -1e30f, thrust::maximum<float>());
  double product = thrust::reduce(p, p + n, 1.f, thrust::multiplies<float>());
  int place = thrust::max_element(p, p + n) - p;
  return {sum, whole, most, product, (double)place, (double)thrust::count_if(p, p + n, Positive())};
}
std::vector<torch::Tensor> vectors(torch::Tensor x) {
  const float* p = x.data_ptr<float>();
  const int n = x.numel();
  thrust::device_vector<float> d(p, p + n), e(n, 1.5f);
  auto y = torch::empty_like(x), s = torch::empty_like(x);
  thrust::transform(thrust::device, d.begin(), d.end(), e.begin(), thrust::device_pointer_cast(y.data_ptr<float>()), Axpy(2.f));
  thrust::host_vector<float> h = d;
  h[0] = 7.f;
  d = h;
  d.push_back(8.f);
  d.resize(n);
  thrust::sort(d.begin(), d.end());
  cudaMemcpy(s.data_ptr<float>(), thrust::raw_pointer_cast(d.data()), n * sizeof(float), cudaMemcpyDeviceToDevice);
  thrust::device_vector<int> places(2), u{1, 1, 2, 2, 2, 3};
  places[0] = 3;
  thrust::device_vector<float> taken(2);
  thrust::gather(places.begin(), places.end(), p, taken.begin());
  std::vector<float> back(2);
  thrust::copy(taken.begin(), taken.end(), back.begin());
  thrust::fill(e.begin(), e.end(), 4.f);
  const int kept = thrust::unique(u.begin(), u.end()) - u.begin();
  return {y, s, torch::tensor({back[0], back[1], float(kept), float(e[n - 1])})};
}
"""


@pytest.fixture(scope="module")
def program() -> Any:
    return load_inline("of_thrust", "", TEXT, functions=["sorted", "numbers", "vectors"])


def test_sorts_and_scans(device: str, program: Any) -> None:
    x = torch.randn(50, device=device)
    keys, order, ascending, sums, before = program.sorted(x)
    expected = x.sort(descending=True)
    assert torch.equal(keys, expected.values)
    assert torch.equal(order.long(), expected.indices)
    assert torch.equal(ascending, x.sort().values)
    assert torch.allclose(sums, keys.cumsum(0), atol=1e-5)
    assert torch.allclose(before, keys.cumsum(0) - keys + 1, atol=1e-5)


def test_numbers_have_the_type_of_the_first_value(device: str, program: Any) -> None:
    values = [1.5, -2.25, 4.75, 0.5]
    total = 0
    for value in values:
        total = int(total + value)  # an int after each element
    found = program.numbers(torch.tensor(values, device=device))
    assert found == [4.5, total, 4.75, 1.5 * -2.25 * 4.75 * 0.5, 2, 3]


def test_vectors_and_function_objects(device: str, program: Any) -> None:
    x = torch.randn(20, device=device)
    y, s, numbers = program.vectors(x)
    assert torch.allclose(y, 2 * x + 1.5)
    replaced = x.clone()
    replaced[0] = 7
    assert torch.equal(s, replaced.sort().values)
    assert numbers.tolist() == [x[3].item(), x[0].item(), 3, 4]
