"""Dropout by PyTorch's state of random numbers, as extensions write it."""

import importlib.util
from typing import Any

import pytest
import torch

import cupyops
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


INFO = """
#include <torch/extension.h>
#include <ATen/cuda/detail/IndexUtils.cuh>
#include <ATen/cuda/detail/TensorInfo.cuh>
template <typename T> __global__ void rows(at::cuda::detail::TensorInfo<T, int> x, T* y, int n) {
  const int i = threadIdx.x;
  if (i < n) y[i] = x.data[at::cuda::detail::IndexToOffset<T, int, -1>::get(i, x)] + T(x.sizes[x.dims - 1]);
}
torch::Tensor g(torch::Tensor x) {
  auto y = torch::empty({x.numel()}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rows", [&] {
    rows<scalar_t><<<1, 64>>>(at::cuda::detail::getTensorInfo<scalar_t, int>(x), y.data_ptr<scalar_t>(), x.numel());
  });
  return y;
}
"""


@pytest.fixture(scope="module")
def program() -> Any:
    return load_inline("random_state", "", TEXT, functions=["f", "pair_of_numbers"])


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The starting files of both texts, as modules."""
    folder, made = tmp_path_factory.mktemp("starting"), []
    for name, text, bound in (("random_state_file", TEXT, "f"), ("info_file", INFO, "g")):
        binding = f'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("{bound}", &{bound}); }}'
        extension = cupyops.from_extension(text + binding, namespace=name)
        assert not extension.refused
        extension.write(folder / f"{name}.py")
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        made.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(made[-1])
    return made


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


def test_starting_files_have_such_kernels(device: str, starting: Any) -> None:
    x = torch.randn(300, device=device)
    y = starting[0].f_op(x, 0.5, None)
    assert torch.equal(y, 2 * x * (y != 0))
    t = torch.randn(3, 4, dtype=torch.float64, device=device).t()
    assert torch.equal(starting[1].g_op(t), t.reshape(-1) + 3)
