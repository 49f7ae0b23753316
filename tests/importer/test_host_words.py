"""Words of the standard library, PyTorch and pybind11 in programs: what they compute, by values."""

from typing import Any

import pytest
import torch

pytest.importorskip("clang.cindex")

import cupyops
from cupyops.importer.program import Program, program

HEAD = "#include <torch/extension.h>\n#include <queue>\n#include <cublas_v2.h>\nnamespace py = pybind11;\n"


def translated(text: str) -> Program:
    made = program("words", [("a.cu", HEAD + text)])
    assert not made.untranslated
    return made


def run(text: str, *arguments: Any) -> Any:
    """Calls the function f of a program as Python calls it."""
    made = translated(f'{text}\nPYBIND11_MODULE(m, m) {{ m.def("f", &f); }}')
    with cupyops.simulate():
        return made.bound["f"](*arguments)


def test_containers_with_an_end() -> None:
    text = """struct Longer { bool operator()(const std::string& a, const std::string& b) const { return a.size() < b.size(); } };
std::vector<std::string> f(std::vector<int64_t> given) {
  std::vector<std::string> out;
  std::priority_queue<std::tuple<float, int>> largest;
  for (size_t i = 0; i < given.size(); i++) { largest.emplace(given[i], i); if (largest.size() > 3) largest.pop(); }
  while (!largest.empty()) { out.push_back(std::to_string(std::get<1>(largest.top()))); largest.pop(); }
  std::priority_queue<int, std::vector<int>, std::greater<int>> least;
  auto copy = least;
  for (auto v : given) least.push(v);
  out.push_back(std::to_string(least.top()) + std::to_string(copy.size()));
  std::priority_queue<std::string, std::vector<std::string>, Longer> longest;
  longest.push("a"); longest.push("abc"); longest.push("ab");
  out.push_back(longest.top());
  std::queue<int> q; std::stack<int> s; std::deque<int> d = {5};
  for (int i = 0; i < 3; i++) { q.push(i); s.push(i); d.push_front(i); }
  q.pop(); s.pop(); d.pop_back(); s.top() += 10; q.back() = 7;
  out.push_back(std::to_string(q.front()) + std::to_string(q.back()) + std::to_string(s.top()) + std::to_string(d[0]) + std::to_string(d.size()));
  return out;
}"""
    assert run(text, [4, 9, 2, 7, 5]) == ["4", "0", "2", "20", "abc", "171123"]


def test_objects_of_python() -> None:
    text = """py::dict f(torch::Tensor x, py::list names, py::dict options, py::object other) {
  py::dict d; py::list l;
  d["sum"] = x.sum();
  for (int i = 0; i < names.size(); i++) l.append(names[i].cast<std::string>() + "!");
  for (auto item : names) l.append(item);
  d["names"] = l;
  if (options.contains("scale")) d["scaled"] = x * options["scale"].cast<double>();
  d["other"] = other.is_none() ? py::make_tuple(1.5, py::none()) : py::make_tuple(other, py::str("a"));
  return d;
}"""
    found = run(text, torch.ones(3), ["a", "b"], {"scale": 2.0}, None)
    assert found["names"] == ["a!", "b!", "a", "b"]
    assert (found["sum"].item(), found["scaled"].tolist(), found["other"]) == (3, [2, 2, 2], (1.5, None))
    made = translated(
        'PYBIND11_MODULE(m, m) { m.attr("EPS") = py::float_(0.5); py::object v = py::cast(7); m.attr("v") = v; }'
    )
    assert made.bound == {"EPS": 0.5, "v": 7}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_kernels_of_complex_numbers(dtype: torch.dtype) -> None:
    text = """template <class T> __global__ void k(at::PackedTensorAccessor32<T, 1> y, const T* x, T factor) {
  y[threadIdx.x] = factor * x[threadIdx.x];
}
torch::Tensor f(torch::Tensor x) {
  auto y = torch::empty_like(x);
  AT_DISPATCH_COMPLEX_TYPES(x.scalar_type(), "f", [&] {
    const scalar_t factor(0, 2);
    if (factor.imag() != 2 || factor == scalar_t(1)) return;
    k<scalar_t><<<1, x.numel()>>>(y.packed_accessor32<scalar_t, 1>(), x.data_ptr<scalar_t>(), factor);
  });
  return y;
}"""
    x = torch.tensor([1 + 2j, 3 - 1j, 0.5j], dtype=dtype)
    assert torch.allclose(run(text, x), 2j * x)


def test_an_accessor_of_no_tensor_is_not_read() -> None:
    text = """template <typename T, int64_t n> at::TensorAccessor<T, n> of(const std::optional<at::Tensor>& t) {
  if (!t.has_value()) return at::TensorAccessor<T, n>(nullptr, nullptr, nullptr);
  return t.value().accessor<T, n>();
}
double f(std::optional<at::Tensor> t) { auto a = of<float, 1>(t); return t.has_value() ? a[1] * a.data()[0] : -1; }"""
    assert run(text, None) == -1
    assert run(text, torch.tensor([2.0, 3.0])) == 6


def test_a_launch_takes_braced_lists() -> None:
    text = """__global__ void k(float* y) { y[blockIdx.y * 6 + threadIdx.y * 3 + threadIdx.x] = threadIdx.y + blockIdx.y * 10; }
torch::Tensor f(int n) { auto y = torch::zeros({12}); k<<<{1, 2, 1}, {3, (unsigned)n}, 0>>>(y.data_ptr<float>()); return y; }"""
    assert run(text, 2).tolist() == [0, 0, 0, 1, 1, 1, 10, 10, 10, 11, 11, 11]


def test_functions_of_numbers_with_two_results() -> None:
    text = """std::vector<double> f(double x) {
  int e; double whole; double m = std::frexp(x, &e); double rest = modf(x, &whole);
  srand(3); int a = rand(); std::srand(3);
  return {m, (double)e, rest, whole, (double)(a == std::rand() && a <= RAND_MAX), std::fmaxf(1.f, 2.f)};
}"""
    assert run(text, -10.25) == [-0.640625, 4, -0.25, -10, 1, 2]


def test_templates_may_be_deep() -> None:
    text = """template <int low, int high, int at> struct Chosen {
  static int run(int n) { if (at == n) return at * 2; return Chosen<low, high, at + 1>::run(n); } };
template <int low, int high> struct Chosen<low, high, high> { static int run(int n) { return -1; } };
int f(int n) { return Chosen<2, 1100, 2>::run(n); }"""
    assert run(text, 5) == 10


def test_a_stream_of_cublas() -> None:
    text = """int f() { cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle(); cudaStream_t stream; cublasMath_t mode;
  TORCH_CUDABLAS_CHECK(cublasGetStream(handle, &stream)); cublasGetMathMode(handle, &mode); return mode; }"""
    assert run(text) == 0


def test_lists_of_arrays_and_of_values_without_a_name() -> None:
    text = """struct Box { int a, b; };
int first(Box b) { return b.a * 10 + b.b; }
std::vector<int> f(int n) {
  int* p = new int[n]{7}; int* q = new int[n]{};
  std::vector<int> out = {p[0], p[n - 1], q[n - 1], first((Box){n, 2})};
  delete[] p; delete[] q; return out;
}"""
    assert run(text, 4) == [7, 0, 0, 42]


def test_conditions_on_versions_choose_what_a_build_has() -> None:
    names = ("CUDART_VERSION", "CUDA_VERSION", "CUBLAS_VERSION", "TORCH_VERSION_MAJOR")
    text = "\n".join(f"#if !defined({name}) || {name} < 2\n#error {name}\n#endif" for name in names)
    assert run(f"{text}\nint f() {{ return CUBLAS_VERSION >= 11600; }}") == 1
