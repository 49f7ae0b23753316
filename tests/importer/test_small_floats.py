"""Floats of 8 bits in programs of load_inline: PyTorch's and CUDA's types, on the host and in kernels."""

from typing import Any

import pytest
import torch

from cupyops.cpp_extension import load_inline
from tests.launch.devices import device_of

__all__ = ["device_of"]

TEXT = """
#include <torch/extension.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <cuda_fp8.h>
template <typename T, typename Q> __global__ void rounded(const T* x, Q* y, float* back, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { y[i] = static_cast<Q>(float(x[i])); back[i] = float(y[i]); }
}
__global__ void pairs(const float2* x, __nv_fp8x2_e5m2* y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = __nv_fp8x2_e5m2(x[i]);
}
template <typename Q> std::vector<at::Tensor> to(const at::Tensor& x, at::ScalarType type) {
  auto y = torch::empty(x.sizes(), x.options().dtype(type)), back = torch::empty(x.sizes(), torch::kFloat32).to(x.device());
  const int n = x.numel();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "to", [&] {
    rounded<<<(n + 127) / 128, 128>>>(x.data_ptr<scalar_t>(), reinterpret_cast<Q*>(y.data_ptr()), back.data_ptr<float>(), n);
  });
  return {y, back};
}
std::vector<at::Tensor> of_pytorch(at::Tensor x, bool e4m3) {
  if (e4m3) return to<c10::Float8_e4m3fn>(x, at::kFloat8_e4m3fn);
  return to<at::Float8_e5m2>(x, at::ScalarType::Float8_e5m2);
}
std::vector<at::Tensor> of_cuda(at::Tensor x, bool e4m3) {
  return e4m3 ? to<__nv_fp8_e4m3>(x, torch::kFloat8_e4m3fn) : to<__nv_fp8_e5m2>(x, torch::kFloat8_e5m2);
}
at::Tensor in_pairs(at::Tensor x) {
  auto y = torch::empty(x.sizes(), x.options().dtype(torch::kFloat8_e5m2));
  pairs<<<1, 64>>>((const float2*)x.data_ptr<float>(), (__nv_fp8x2_e5m2*)y.data_ptr<at::Float8_e5m2>(), x.numel() / 2);
  return y;
}
std::vector<double> on_host(double v) {
  at::Float8_e4m3fn a(v);
  __nv_fp8_e4m3 b((float)v);
  __nv_fp8_e5m2 c((float)v);
  return {a, float(b), (float)c, a * 2.f, (double)a.x, std::numeric_limits<at::Float8_e4m3fn>::max()};
}
"""


@pytest.fixture(scope="module")
def program() -> Any:
    return load_inline("small_floats", "", TEXT, functions=["of_pytorch", "of_cuda", "in_pairs", "on_host"])


def every_bfloat16() -> torch.Tensor:
    values = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    return torch.cat([values, torch.randn(1000) * 100, torch.tensor([464.0, 465.0, 480.0, 448.5, 2**-10, 1.5 * 2**-9])])


@pytest.mark.sample(2)
@pytest.mark.parametrize("e4m3", [True, False], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("function", ["of_pytorch", "of_cuda"])
def test_kernels_round_every_value(function: str, e4m3: bool, device: str, program: Any) -> None:
    dtype = torch.float8_e4m3fn if e4m3 else torch.float8_e5m2
    x = every_bfloat16()
    if function == "of_pytorch":
        x = x[~((x.abs() > 464) & e4m3)]  # where versions of PyTorch differ: NaN before 2.13, the largest value since
    y, back = (t.cpu() for t in getattr(program, function)(x.to(device), e4m3))
    expected = x.clamp(-448 if e4m3 else -57344, 448 if e4m3 else 57344) if function == "of_cuda" else x
    expected = expected.to(dtype)
    assert y.dtype == dtype
    assert torch.equal(torch.nan_to_num(back, nan=-1.0), torch.nan_to_num(expected.float(), nan=-1.0))
    kept = ~expected.float().isnan()
    assert torch.equal(y.view(torch.uint8)[kept], expected.view(torch.uint8)[kept])


def test_a_kernel_of_16_bit_floats(device: str, program: Any) -> None:
    x = torch.randn(300, dtype=torch.bfloat16)
    y, _ = program.of_pytorch(x.to(device), True)
    assert torch.equal(y.cpu().view(torch.uint8), x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_pairs(device: str, program: Any) -> None:
    x = torch.randn(64)
    assert torch.equal(program.in_pairs(x.to(device)).cpu().float(), x.to(torch.float8_e5m2).float())


def test_values_on_the_host(program: Any) -> None:
    assert program.on_host(3.3) == [3.25, 3.25, 3.5, 6.5, 69.0, 448.0]
    assert program.on_host(1e6)[1:3] == [448.0, 57344.0]
