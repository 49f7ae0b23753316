"""Whole programs of load_inline, on a GPU and in the simulator: what they compute, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch

import cupyops
from cupyops import cpp_extension
from cupyops.cpp_extension import load_inline
from cupyops.importer.errors import NotTranslated
from cupyops.importer.statements import Statements
from tests.launch.devices import device_of

__all__ = ["device_of"]


@pytest.fixture(autouse=True)
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with nvcc would build programs without a translation."""
    monkeypatch.setattr(cpp_extension, "fallback", False)


HEAD = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
__global__ void scale(const float* x, float* y, int n, float k) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) y[i] = k * x[i];
}
"""
XY = "x.data_ptr<float>(), y.data_ptr<float>()"
ONE = f"scale<<<2, 64>>>({XY}, n, k);"


def function(body: str, *, head: str = "", signature: str = "torch::Tensor f(torch::Tensor x)", name: str = "f") -> Any:
    text = f"{HEAD}{head}\n{signature} {{\n  auto y = torch::empty_like(x);\n  int n = x.numel();\n{body}\n}}"
    return getattr(load_inline("program", "", text, functions=[name]), name)


# The statement in a function, and the factor that every element gets.
HOST = {
    "a loop doubles": ("float k = 1; while (k < n) k *= 2; " + ONE + " return y;", 128),
    "a loop counts down": ("float k = 0; for (int i = 10; i > 0; i -= 3) k += i; " + ONE + " return y;", 22),
    "quotients round toward zero": ("float k = (4 - n) / 7; " + ONE + " return y;", -13),
    "remainders have the sign of the dividend": ("float k = (4 - n) % 7; " + ONE + " return y;", -5),
    "unsigned values wrap": ("unsigned u = 3; u -= 4; float k = u > 100; " + ONE + " return y;", 1),
    "an integer loses its fraction": ("int q = 7.9; float k = q; " + ONE + " return y;", 7),
    "integers divide inside a float": ("float k = 0.5f * (n / 40); " + ONE + " return y;", 1),
    "a tensor divides by an integer": ("float k = 1; " + ONE + " return y / 4;", 0.25),
    "an empty grid launches nothing": (
        "y.zero_(); float k = 1;"
        " scale<<<0, 64>>>(" + XY + ", n, k); TORCH_CHECK(cudaGetLastError() == 9); return y;", 0),
    "one component of dim3": (
        "float k = 2; dim3 b(32); dim3 g((n + b.x - 1) / b.x, b.y);"
        " scale<<<g, b>>>(" + XY + ", n, k); return y;", 2),
    "a member of dim3 is assigned": (
        "float k = 2; dim3 g, b; b.x = 256; g.x = (n + 255) / 256;"
        " scale<<<g, b>>>(" + XY + ", n, k); return y;", 2),
    "a switch over the dtype": (
        "float k = 3; switch (x.scalar_type()) { case at::kFloat: " + ONE + ''
        ' break; default: TORCH_CHECK(false, "dtype"); } return y;', 3),
    "a lambda launches": ("auto go = [&](float k) { " + ONE + " }; go(5); return y;", 5),
    "a stream and a guard": (
        "const c10::cuda::CUDAGuard guard(x.device());"
        " scale<<<2, 64, 0, at::cuda::getCurrentCUDAStream()>>>(" + XY + ", n, 6.f); C10_CUDA_KERNEL_LAUNCH_CHECK(); return y;", 6),
    "an inner scope shadows": (
        "float k = 2; { float k = 9; k += 1; } for (int k = 0; k < 3; ++k) {} " + ONE + " return y;", 2),
    "options": (
        "float k = 1; auto o = torch::TensorOptions().dtype(torch::kFloat32).device(x.device()); y = torch::zeros({n}, o); " + ONE + " return y;", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", HOST)
def test_host_code(device: str, case: str) -> None:
    body, factor = HOST[case]
    x = torch.arange(100.0, device=device)
    assert torch.equal(function(body)(x), factor * x)


def test_a_pointer_with_an_offset(device: str) -> None:
    f = function("y.zero_(); scale<<<1, 64>>>(x.data_ptr<float>() + 3, y.data_ptr<float>() + 3, 3, 2); return y;")
    assert f(torch.arange(8.0, device=device)).tolist() == [0, 0, 0, 6, 8, 10, 0, 0]


def test_a_vector_of_one_tensor(device: str) -> None:
    f = function("float k = 2; " + ONE + " return {y};", signature="std::vector<torch::Tensor> f(torch::Tensor x)")
    found = f(torch.arange(4.0, device=device))
    assert isinstance(found, list)
    assert found[0].tolist() == [0, 2, 4, 6]


def test_dynamic_shared_memory_of_run_time_and_beyond_48_kib(device: str) -> None:
    head = """__global__ void reverse(const float* x, float* y, int n) { extern __shared__ float s[];
      for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = x[i];
      __syncthreads();
      for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = s[n - 1 - i]; }"""
    body = """const size_t bytes = n * sizeof(float);
      if (bytes > 48 * 1024) cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      int threads = std::min(n, 256);
      reverse<<<1, threads, bytes>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
      return y;"""
    f = function(body, head=head)
    for n in (5, 700, 16000):
        x = torch.randn(n, device=device)
        assert torch.equal(f(x), x.flip(0))


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dispatch_and_templates_of_the_host(device: str, dtype: torch.dtype) -> None:
    head = """template <typename T, int N> __global__ void times(const T* x, T* y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = T(float(x[i]) * N); }
    template <int N, typename T> void launch(const torch::Tensor& x, torch::Tensor& y) {
      const int threads = 64; times<T, N><<<(x.numel() + threads - 1) / threads, threads>>>(x.data_ptr<T>(), y.data_ptr<T>(), x.numel()); }"""
    body = """AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "times", [&] {
        if (n % 2) launch<3, scalar_t>(x, y); else launch<2, scalar_t>(x, y); });
      return y;"""
    f = function(body, head=head)
    for n in (7, 8):
        x = torch.arange(n, device=device).to(dtype)
        assert torch.equal(f(x), x * (3 if n % 2 else 2))
    with pytest.raises(NotImplementedError, match="\"times\" not implemented for 'Int'"):
        f(torch.arange(3, device=device, dtype=torch.int32))


def test_a_constant_that_host_code_sets_and_a_null_pointer(device: str) -> None:
    head = """__constant__ float table[4];
    __global__ void look(const int* i, float* y, int n, const float* bias) {
      int t = threadIdx.x; if (t < n) y[t] = table[i[t]] + (bias ? bias[t] : 0.f); }"""
    body = """float h[4] = {1, 2, 4, 8};
      cudaMemcpyToSymbol(table, h, sizeof(h));
      auto i = torch::arange(4, x.options().dtype(torch::kInt32));
      look<<<1, 32>>>(i.data_ptr<int>(), y.data_ptr<float>(), 4, b.has_value() ? b->data_ptr<float>() : nullptr);
      return y;"""
    f = function(body, head=head, signature="torch::Tensor f(torch::Tensor x, c10::optional<torch::Tensor> b)")
    x = torch.ones(4, device=device)
    assert f(x, None).tolist() == [1, 2, 4, 8]
    assert f(x, x).tolist() == [2, 3, 5, 9]


def test_memory_of_cuda_itself(device: str) -> None:
    body = """float* t; cudaMalloc(&t, n * sizeof(float));
      cudaMemset(t, 0, n * sizeof(float));
      scale<<<2, 64>>>(x.data_ptr<float>(), t, n, 3);
      cudaMemcpyAsync(y.data_ptr<float>(), t, n * sizeof(float), cudaMemcpyDeviceToDevice);
      cudaFree(t);
      return y;"""
    x = torch.arange(9.0, device=device)
    assert torch.equal(function(body)(x), 3 * x)


def test_checks_have_their_message_and_the_line_of_the_source(device: str) -> None:
    f = function('TORCH_CHECK(n <= 16, "at most 16, got ", n); return y;')
    with pytest.raises(RuntimeError, match="at most 16, got 100") as caught:
        f(torch.ones(100, device=device))
    places = [(frame.name, frame.filename) for frame in __import__("traceback").extract_tb(caught.value.__traceback__)]
    assert ("f", "program.cu") in places


def test_what_has_no_translation_raises_before_anything_behind_it_runs(device: str) -> None:
    f = function("y.zero_(); goto end; end: x.fill_(7); return y;")
    x = torch.ones(3, device=device)
    with pytest.raises(NotTranslated, match=r"program\.cu:\d+: no translation of a goto"):
        f(x)
    assert x.tolist() == [1, 1, 1]


def test_an_unknown_name_raises_where_it_stands(device: str) -> None:
    f = function("y.zero_(); auto z = torch::no_such_function(x); x.fill_(7); return y;")
    x = torch.ones(3, device=device)
    with pytest.raises(NotTranslated, match=r"program\.cu:\d+: .*no_such_function"):
        f(x)
    assert x.tolist() == [1, 1, 1]


def test_a_tree_that_the_translator_does_not_expect_loses_one_statement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(self: Any, cursor: Any) -> None:
        raise KeyError("no such part")

    monkeypatch.setattr(Statements, "s_switch_stmt", broken)
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path))  # no translation of an earlier run
    f = function(
        "if (n > 3) { switch (n) { default: break; } } y.fill_(2); return y; // a fault of the translator's own"
    )
    with cupyops.simulate():
        assert f(torch.ones(3)).tolist() == [2, 2, 2]
        with pytest.raises(NotTranslated, match=r"program\.cu:\d+: .*whose tree is unexpected \(KeyError"):
            f(torch.ones(4))


@pytest.mark.parametrize(
    "body",
    [
        "return torch::zeros({2}, torch::CUDA(torch::kDouble)) + x.to(at::CPU(at::kInt).scalarType());",
        "at::IntList sizes = x.sizes(); return x.view(sizes).to(torch::CUDA(at::kDouble));",
        "TORCH_CHECK(x.device().type() == at::Device::Type::CUDA); return x.to(at::kDouble);",
        "auto all = [](auto... t) { return std::tuple<std::decay_t<decltype(t)>...>(t...); }; std::tuple<> none;"
        " all(); (void)none; return x.to(at::kDouble);",
    ],
    ids=["a type of a device", "IntList", "Device::Type", "an empty tuple"],
)
def test_old_names_of_pytorch(body: str) -> None:
    module = load_inline(
        "program", "", f"#include <torch/extension.h>\ntorch::Tensor f(torch::Tensor x) {{ {body} }}", functions=["f"]
    )
    with cupyops.simulate():
        y = module.f(torch.tensor([1.0, 2.0]))
    assert y.tolist() == [1, 2]
    assert y.dtype == torch.float64
    assert y.device.type == "cpu"
