"""Definitions of ``PYBIND11_MODULE`` besides functions: classes, enumerations, and those without a translation."""

import pytest
import torch

import cupyops

pytest.importorskip("clang.cindex")

from cupyops import cpp_extension
from cupyops.errors import LaunchError
from cupyops.importer.errors import NotTranslated
from cupyops.importer.program import program

SOURCE = """
#include <torch/extension.h>
namespace py = pybind11;
enum class Mode : int { Sum = 1, Mean = 4 };
enum Kind { A, B = 7 };
struct Rays { torch::Tensor origins; float step = 0.5f; int n = 0; std::vector<int64_t> sizes; };
struct Counter { int c; std::string name; Counter(int s) : c(s), name("c") {}
  Counter(int s, const std::string& n) : c(s), name(n) {}
  int add(int k) { c += k; return c; } int add(double d) { c += 100; return c; } float half() const { return c / 2.f; }
  static int twice(int x) { return 2 * x; } Counter grown() const { return Counter(c + 1, name + "g"); } };
int code(Mode m) { return static_cast<int>(m); }
Kind kind(int k) { return k > 0 ? B : A; }
float use(const Rays& r, Mode m) { return r.origins.sum().item<float>() * r.step + r.n + (m == Mode::Mean ? 100 : 0) + r.sizes.size(); }
void change(Rays& r) { r.n += 5; r.sizes.push_back(3); }
Rays make(torch::Tensor x) { Rays r; r.origins = x; r.n = 9; return r; }
int total(std::vector<Counter> v) { int s = 0; for (auto& c : v) s += c.c; return s; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::enum_<Mode>(m, "Mode").value("Sum", Mode::Sum).value("Mean", Mode::Mean, "doc");
  py::enum_<Kind>(m, "Kind", py::arithmetic()).value("A", A).value("B", Kind::B).export_values();
  py::class_<Rays>(m, "Rays").def(py::init<>())
   .def_readwrite("origins", &Rays::origins).def_readwrite("step", &Rays::step).def_readonly("n", &Rays::n)
   .def_readwrite("sizes", &Rays::sizes);
  py::class_<Counter> c(m, "Counter");
  c.def(py::init<int>()).def(py::init<int, const std::string&>(), py::arg("start"), py::arg("name") = "q")
   .def("half", &Counter::half).def("grown", &Counter::grown).def_static("twice", &Counter::twice)
   .def("name", [](const Counter& c, int k) { return c.name + std::to_string(k); }, py::arg("k") = 3)
   .def_property_readonly("value", [](const Counter& c) { return c.c; })

   .def("gone", [](const Counter& c) { goto x; x: return 1; })
   .def("add", static_cast<int (Counter::*)(int)>(&Counter::add));
  m.def("code", &code); m.def("kind", &kind); m.def("use", &use, py::arg("r"), py::arg("mode") = Mode::Sum); m.def("change", &change);
  m.def("make", &make); m.def("total", &total);
  m.def("bad", &nowhere);
  m.def("later", [](int x) { return x + 1; });
}
"""


@pytest.fixture(scope="module")
def module():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpp_extension, "fallback", False)
        return cpp_extension.load_inline("classes", "", SOURCE)


def test_an_enumeration_has_names_and_its_values(module):
    assert (module.code(module.Mode.Mean), int(module.Mode.Mean), module.Kind.A.name) == (4, 4, "A")
    assert repr(module.Mode.Sum) == "<Mode.Sum: 1>"
    assert module.kind(3) == module.B  # exported


def test_a_struct_has_attributes_that_convert(module):
    rays = module.Rays()
    rays.origins, rays.step, rays.sizes = torch.ones(4), 2, (1, 2)
    assert (module.use(rays, module.Mode.Mean), module.use(rays)) == (110.0, 10.0)
    module.change(rays)
    assert (rays.n, rays.sizes) == (5, [1, 2, 3])
    made = module.make(torch.zeros(2))
    assert isinstance(made, module.Rays)
    with pytest.raises(TypeError, match="step: wanted .* got str"):
        rays.step = "x"
    with pytest.raises(AttributeError):
        rays.n = 2
    with pytest.raises(TypeError, match="incompatible function arguments"):
        module.Rays(3)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        module.use(3)


def test_a_class_has_constructors_and_methods(module):
    one, two = module.Counter(5), module.Counter(start=6)
    assert (one.half(), one.grown().value, module.Counter.twice(4)) == (2.5, 6, 8)
    assert (one.name(), two.name(k=4)) == ("c3", "q4")
    assert (one.add(3), one.value, module.total([one, two])) == (8, 8, 14)


def test_what_has_no_translation_is_lost_alone(module):
    with pytest.raises(NotTranslated, match=r"classes\.cu:\d+: .* a goto"):
        module.Counter(1).gone()
    with pytest.raises(NotTranslated, match=r"classes\.cu:\d+: .* 'nowhere'"):
        module.bad(2)
    assert module.later(2) == 3


ERRORS = """#include <torch/extension.h>
int caught(int k) {
    try {
        TORCH_CHECK(k != 0, "zero");
        TORCH_CHECK_INDEX(k != 1, "index");
        if (k == 2) throw c10::TypeError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, c10::str("two", 2));
        if (k == 3) throw std::runtime_error("x");
    } catch (const c10::TypeError& e) { return 100 + std::string(e.what()).size();
    } catch (const c10::Error& e) { return 200 + std::string(e.what()).size();
    } catch (const std::exception& e) { return 300; }
    return 0;
}
void raised(int k) { TORCH_CHECK_INDEX(k > 0, "index"); TORCH_CHECK_VALUE(k > 1, "value"); TORCH_CHECK(k > 2, "check"); }
"""


def test_errors_of_pytorch_are_those_of_python():
    f = program("errors", [("errors.cu", ERRORS)], functions=["caught", "raised"]).functions
    assert [f["caught"](k) for k in range(5)] == [204, 205, 104, 300, 0]
    for k, kind in enumerate((IndexError, ValueError, RuntimeError)):
        with pytest.raises(kind) as caught:
            f["raised"](k)
        assert type(caught.value).__name__ == kind.__name__


DEVICE = """#include <torch/extension.h>
#include <ATen/cuda/detail/TensorInfo.cuh>
#include <cub/cub.cuh>
using at::cuda::detail::TensorInfo;
__global__ void scale(TensorInfo<float, int> x, float* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = 2 * x.data[at::cuda::detail::IndexToOffset<float, int, -1>::get(i, x)] + x.dims;
}
torch::Tensor scaled(torch::Tensor x) {
    auto info = at::cuda::detail::getTensorInfo<float, int>(x);
    auto y = torch::empty({x.numel()}, x.options());
    ::scale << <1, 64 >> > (info, y.data_ptr<float>(), info.sizes[0] * info.sizes[1]);
    return y;
}
template <class F> void run(F algorithm, torch::Tensor like) {
    size_t bytes = 0;
    algorithm(nullptr, bytes);
    auto memory = torch::empty({(int64_t)bytes}, like.options().dtype(torch::kByte));
    algorithm(memory.data_ptr(), bytes);
}
std::vector<torch::Tensor> scans(torch::Tensor x) {
    auto y = torch::empty_like(x), z = torch::empty_like(x), s = torch::empty({1}, x.options());
    auto *from = reinterpret_cast<unsigned*>(x.data_ptr<int>()), *to = reinterpret_cast<unsigned*>(y.data_ptr<int>());
    int n = x.numel();
    run([&](void* m, size_t& b) { CubDebugExit(cub::DeviceScan::InclusiveSum(m, b, from, to, n)); }, x);
    run([&](void* m, size_t& b) { cub::DeviceScan::ExclusiveSum(m, b, x.data_ptr<int>(), z.data_ptr<int>(), n); }, x);
    run([&](void* m, size_t& b) { cub::DeviceReduce::Max(m, b, x.data_ptr<int>(), s.data_ptr<int>(), n); }, x);
    return {y, z, s};
}
std::vector<torch::Tensor> sorted(torch::Tensor keys, torch::Tensor values, int bits) {
    auto k = torch::empty_like(keys), v = torch::empty_like(values);
    auto from = reinterpret_cast<const uint64_t*>(keys.data_ptr<int64_t>());
    auto to = reinterpret_cast<uint64_t*>(k.data_ptr<int64_t>());
    run([&](void* m, size_t& b) {
        cub::DeviceRadixSort::SortPairs(m, b, from, to, values.data_ptr<float>(), v.data_ptr<float>(), keys.numel(), 0, bits);
    }, keys);
    return {k, v};
}
"""


def test_device_memory_of_host_code_without_kernels():
    f = program("device", [("device.cu", DEVICE)], functions=["scaled", "scans", "sorted"]).functions
    x = torch.arange(6.0).view(2, 3).t()
    with cupyops.simulate():
        assert torch.equal(f["scaled"](x), 2 * x.reshape(-1) + 2)
        found = f["scans"](torch.tensor([3, 1, 4, 1], dtype=torch.int32))
        assert [t.tolist() for t in found] == [[3, 4, 8, 9], [0, 3, 4, 8], [4]]
        keys, values = torch.tensor([5, -1, 2, 0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
        assert [t.tolist() for t in f["sorted"](keys, values, 64)] == [[0, 2, 5, -1], [4.0, 3.0, 1.0, 2.0]]
        assert f["sorted"](keys, values, 1)[0].tolist() == [2, 0, 5, -1]


CUB = """#include <torch/extension.h>
#include <cub/cub.cuh>
using Reduce = cub::BlockReduce<float, 64>;
__global__ void k(const float* x, float* y) {
    extern __shared__ char memory[];
    float sum = Reduce(*reinterpret_cast<typename Reduce::TempStorage*>(memory)).Sum(x[threadIdx.x]);
    if (threadIdx.x == 0) y[0] = sum;
}
void f(torch::Tensor x, torch::Tensor y) {
    k<<<1, 64, sizeof(typename Reduce::TempStorage)>>>(x.data_ptr<float>(), y.data_ptr<float>());
}
"""


def test_the_bytes_of_cub_that_only_nvrtc_knows_are_not_one_byte():
    f = program("cub", [("cub.cu", CUB)], functions=["f"]).functions["f"]
    with cupyops.simulate(), pytest.raises(LaunchError, match="at most 227 KiB of shared memory"):
        f(torch.ones(64), torch.zeros(1))
