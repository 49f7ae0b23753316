"""Operators that variables of a file register, and ``torch::autograd::Function``."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("clang.cindex")

import cupyops
from cupyops import cpp_extension
from cupyops.cpp_extension import load


@pytest.fixture(autouse=True)
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_extension, "fallback", False)


def registered(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    names = [n.replace("_", ".") for n in files if not n.endswith("_h")]
    assert load("registered", [folder / n for n in names], is_python_module=False) is None


HEADER = "#pragma once\n#include <torch/script.h>\ntorch::Tensor cubed(torch::Tensor x);\n"
KERNEL = """#include "p.h"
__global__ void cube(float* y, const float* x, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x] * x[threadIdx.x]; }
torch::Tensor cubed(torch::Tensor x) {
  auto y = torch::empty_like(x);
  cube<<<1, 32>>>(y.data_ptr<float>(), x.data_ptr<float>(), x.numel());
  return y;
}
"""
FUNCTION = """#include "p.h"
using torch::autograd::AutogradContext; using torch::autograd::Variable; using torch::autograd::variable_list;
class Cube : public torch::autograd::Function<Cube> {
 public:
  static variable_list forward(AutogradContext* ctx, Variable x, double factor, c10::optional<Variable> other) {
    ctx->saved_data["factor"] = factor;
    ctx->saved_data["has_other"] = other.has_value();
    ctx->save_for_backward({x});
    auto whole = torch::zeros({2}, torch::kLong);
    ctx->mark_non_differentiable({whole});
    auto y = factor * cubed(x);
    return {other.has_value() ? y + other.value() : y, whole};
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto factor = ctx->saved_data["factor"].toDouble();
    auto x = ctx->get_saved_variables()[0];
    auto gradient = gradients[0] * 3 * factor * x * x;
    return {gradient, Variable(), ctx->saved_data["has_other"].toBool() ? gradients[0] : Variable()};
  }
};
std::tuple<torch::Tensor, torch::Tensor> cube(torch::Tensor x, double factor, c10::optional<torch::Tensor> other) {
  auto result = Cube::apply(x, factor, other);
  return std::make_tuple(result[0], result[1]);
}
static auto registry = torch::RegisterOperators()
    .op("registered_tests::cube", &cube)
    .op("registered_tests::version", [] { return (int64_t)12; });
"""


def test_variables_of_two_files_register_operators(tmp_path: Path) -> None:
    other = '#include "p.h"\nint64_t twice(int64_t n) { return 2 * n; }\n'
    other += 'static auto registry = torch::RegisterOperators("registered_tests::twice(int n) -> int", &twice);\n'
    registered(tmp_path, p_h=HEADER, a_cpp=FUNCTION, b_cpp=other, c_cu=KERNEL)
    assert torch.ops.registered_tests.version() == 12
    assert torch.ops.registered_tests.twice(21) == 42


def test_a_function_of_autograd_has_its_gradients(tmp_path: Path) -> None:
    registered(tmp_path, p_h=HEADER, a_cpp=FUNCTION, c_cu=KERNEL)
    x, other = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    with cupyops.simulate():
        y, whole = torch.ops.registered_tests.cube(x, 2.0, other)
        without, _ = torch.ops.registered_tests.cube(x, 2.0, None)
        y.sum().backward()
    assert torch.allclose(y, 2 * x**3 + other)
    assert torch.allclose(without, 2 * x**3)
    assert torch.allclose(x.grad, 6 * x**2)  # type: ignore[arg-type]
    assert torch.equal(other.grad, torch.ones(5))  # type: ignore[arg-type]
    assert not whole.requires_grad


def test_one_operator_without_a_translation_leaves_the_others(tmp_path: Path) -> None:
    text = """#include <torch/script.h>
int64_t good() { return 1; }
static auto registry = torch::RegisterOperators()
    .op("registered_tests::bad", [](Unknown x) { return x; })
    .op("registered_tests::good", &good);
"""
    with pytest.warns(UserWarning, match=r"a.cpp:4: no translation of .*Unknown"):
        registered(tmp_path, a_cpp=text)
    assert torch.ops.registered_tests.good() == 1
