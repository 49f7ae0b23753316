"""Dropout by PyTorch's state of random numbers, as extensions write it."""

from typing import Any

import pytest
import torch

from cupyops.cpp_extension import load_inline
from tests.launch.devices import device_of

__all__ = ["device_of"]

TEXT = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraphsUtils.cuh>
#include <mutex>
__device__ unsigned mixed(unsigned long long x) {
  x ^= x >> 33; x *= 0xff51afd7ed558ccdull; x ^= x >> 33; x *= 0xc4ceb9fe1a85ec53ull; x ^= x >> 33;
  return x >> 32;
}
__global__ void dropout(const float* x, float* y, float kept, int n, at::PhiloxCudaState state) {
  auto seeds = at::cuda::philox::unpack(state);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned r = mixed(std::get<0>(seeds) * 0x9e3779b97f4a7c15ull + std::get<1>(seeds) + i);
  if (i < n) y[i] = r * 2.3283064e-10f < kept ? x[i] / kept : 0.f;
}
torch::Tensor f(torch::Tensor x, double kept, c10::optional<at::Generator> generator) {
  auto y = torch::empty_like(x);
  auto gen = at::get_generator_or_default<at::CUDAGeneratorImpl>(generator, at::cuda::detail::getDefaultCUDAGenerator());
  at::PhiloxCudaState state;
  {
    std::lock_guard<std::mutex> lock(gen->mutex_);
    state = gen->philox_cuda_state(4);
  }
  const int n = x.numel();
  dropout<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), kept, n, state);
  return y;
}
std::vector<int64_t> pair_of_numbers() {
  auto gen = at::check_generator<at::CUDAGeneratorImpl>(at::cuda::detail::getDefaultCUDAGenerator());
  std::pair<uint64_t, uint64_t> seeds = gen->philox_engine_inputs(5);
  auto again = gen->philox_engine_inputs(1);
  return {(int64_t)seeds.first, (int64_t)seeds.second, (int64_t)again.first, (int64_t)again.second};
}
"""


@pytest.fixture(scope="module")
def program() -> Any:
    return load_inline("random_state", "", TEXT, functions=["f", "pair_of_numbers"])


def test_calls_draw_other_numbers_and_a_seed_repeats_them(device: str, program: Any) -> None:
    x = torch.randn(4000, device=device)
    torch.manual_seed(3)
    first, second = program.f(x, 0.75, None), program.f(x, 0.75, None)
    torch.manual_seed(3)
    assert torch.equal(program.f(x, 0.75, None), first)
    kept = first != 0
    assert torch.allclose(first, x / 0.75 * kept)
    assert 0.7 < kept.float().mean() < 0.8
    assert not torch.equal(first, second)


def test_a_generator_of_the_caller(device: str, program: Any) -> None:
    x = torch.randn(1000, device=device)
    generator = torch.Generator(device).manual_seed(5)
    before = torch.get_rng_state()
    first = program.f(x, 0.5, generator)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(program.f(x, 0.5, torch.Generator(device).manual_seed(5)), first)
    assert not torch.equal(program.f(x, 0.5, generator), first)


def test_the_generator_goes_on(device: str, program: Any) -> None:
    seed, offset, next_seed, next_offset = program.pair_of_numbers()
    assert (seed, offset) != (next_seed, next_offset)
    if device == "cuda":  # PyTorch's own rule: steps of four numbers
        assert (next_seed, next_offset) == (seed, offset + 8)
