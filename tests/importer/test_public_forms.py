"""Forms of whole public extensions: functions as template arguments, kinds of devices as keys, Python's rest of the arguments."""

from typing import Any

import pytest
import torch

from cupyops.cpp_extension import load_inline
from tests.launch.devices import device_of

__all__ = ["device_of"]

TEXT = """
#include <torch/extension.h>
#include <torch/library.h>
#define SWITCH(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE(at::kFloat, __VA_ARGS__) AT_DISPATCH_CASE(at::kHalf, __VA_ARGS__))
namespace act {
template <typename T> __device__ __forceinline__ T twice(const T& x) { return (T)(2.f * (float)x); }
__device__ __forceinline__ float negated(const float& x) { return -x; }
template <typename scalar_t, scalar_t (*ONE)(const scalar_t&), scalar_t (*OTHER)(const scalar_t&), int N>
__global__ void kernel(const scalar_t* x, scalar_t* y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = ONE(OTHER(x[threadIdx.x])) + (scalar_t)(float)N;
}
}
#define LAUNCH(F, G) \\
  SWITCH(x.scalar_type(), "act", [&] { \\
    act::kernel<scalar_t, F<scalar_t>, G<scalar_t>, 3><<<1, 64>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel()); });
void four_times(torch::Tensor& y, const torch::Tensor& x) { LAUNCH(act::twice, act::twice) }
torch::Tensor negated(torch::Tensor x) {
  auto y = torch::empty_like(x);
  act::kernel<float, act::negated, act::twice<float>, 0><<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
torch::Tensor every_second(torch::Tensor x) {
  using namespace torch::indexing;
  return x.index({Slice(None, None, 2), "...", None});
}
TORCH_LIBRARY(public_forms, ops) {
  ops.def("four_times(Tensor(a!) y, Tensor x) -> ()");
  ops.impl("four_times", torch::kCUDA, &four_times);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("four_times", &four_times);
  m.def("negated", &negated);
  m.def("every_second", &every_second);
  m.def("total", [](double x, std::optional<double> y, py::args rest, py::kwargs named) {
    double sum = x + y.value_or(100);
    for (auto r : rest) sum += r.cast<double>();
    if (named.contains("factor")) sum *= named["factor"].cast<int>();
    return py::make_tuple(sum, rest.size(), named.size());
  }, py::arg("x"), py::arg("y") = py::none());
}
"""


@pytest.fixture(scope="module")
def program() -> Any:
    return load_inline("public_forms", "", TEXT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_functions_of_the_device_as_template_arguments(dtype: torch.dtype, device: str, program: Any) -> None:
    x = torch.arange(20, device=device).to(dtype)
    y = torch.empty_like(x)
    program.four_times(y, x)
    assert torch.equal(y, 4 * x + 3)
    if dtype == torch.float32:
        assert torch.equal(program.negated(x), -2 * x)


def test_an_operator_for_a_kind_of_device(device: str, program: Any) -> None:
    x, y = torch.ones(5, device=device), torch.zeros(5, device=device)
    torch.ops.public_forms.four_times(y, x)
    assert torch.equal(y, torch.full_like(x, 7))


def test_an_index_of_slices(program: Any) -> None:
    x = torch.randn(5, 3)
    assert torch.equal(program.every_second(x), x[::2, ..., None])


def test_the_rest_of_the_arguments(program: Any) -> None:
    assert program.total(1) == (101, 0, 0)
    assert program.total(1.0, 2, 3, 4, factor=2, other=0) == (20, 2, 2)
    assert program.total(y=2.0, x=1.0, factor=3) == (9, 0, 1)
    with pytest.raises(TypeError, match=r"= None, \*args, \*\*kwargs\) -> tuple"):
        program.total()
