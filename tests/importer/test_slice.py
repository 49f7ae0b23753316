"""The code of a CUDA file that is compiled by NVRTC: only what kernels reach."""

import re
from pathlib import Path

import pytest

pytest.importorskip("clang.cindex")

from cupyops import Kernel
from cupyops.compile.compiler import OPTIONS, compile_text
from cupyops.compile.cuda_text import scan
from cupyops.importer.errors import NotTranslated
from cupyops.importer.slice import sliced
from cupyops.importer.tree import parse

HEAD = "#include <torch/extension.h>\n#include <vector>\n#include <string>\n"


def cut(text: str, *names: str, **files: str) -> str:
    """The slice of a text, without blank lines."""
    found = sliced(parse([("ext.cu", HEAD + text)]), names or None)
    assert found.count("\n") == (HEAD + text).count("\n")
    return "\n".join(line.rstrip() for line in found.splitlines()[3:] if line.strip())


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", scan(text).bare))


def compiles(text: str, *kernels: str) -> None:
    for name in kernels:
        compile_text(Kernel(text, name, 32).final_text({}), name, "sm_90", OPTIONS)


PROGRAM = """
using torch::Tensor;
namespace py = pybind11;
#define TWICE(x) ((x) + detail::scale_of(x))
#define HD __host__ __device__
static const int N = 32, UNUSED_N = 7;
constexpr float TABLE[2] = {1.f, 2.f};
__constant__ float weights[N];
static int calls = 0;
static std::vector<std::string> log_lines;
namespace { namespace detail {
enum Mode { PLUS, MINUS };
template <Mode M> struct Sign { static constexpr int value = 1; };
template <> struct Sign<MINUS> { static constexpr int value = -1; };
HD inline float scale_of(float x) { return x * Sign<MINUS>::value; }
__device__ float unused_device(float x) { return x; }
float host_only(float x) { return x; }
} }
struct Pair {
    float a, b;
    Pair(const Tensor& t) : a(0), b(0) {}
    HD Pair(float x, float y) : a(x), b(y) {}
    std::string name() const { return "pair"; }
    __device__ float sum() const;
    friend __device__ Pair operator+(Pair x, Pair y) { return Pair(x.a + y.a, x.b + y.b); }
    friend std::ostream& operator<<(std::ostream& out, const Pair& p) { return out; }
};
__device__ float Pair::sum() const { return a + b; }
struct Options { std::string text; Tensor bias; };
template <typename T> struct Relu { __device__ T operator()(T x) const { return x > T(0) ? x : T(0); } };
template <typename T> using Function = Relu<T>;
template <typename T> __device__ T apply(T x);
template <typename T> __device__ T apply(T x) { return Function<T>()(x); }
static_assert(N == 32, "a warp");
static_assert(sizeof(std::string) > 0, "of the host");
template <typename T> __global__ void k(const T* x, T* y, int n) {
    float calls = 1, Options = 2;
    Pair p = Pair(x[0], TWICE(x[1])) + Pair(0.f, calls);
    if (threadIdx.x < n) y[threadIdx.x] = apply(p.sum()) * TABLE[1] + weights[threadIdx.x % N] + Options;
}
template __global__ void k<float>(const float*, float*, int);
extern "C" __global__ void plain(float* y) { y[0] = 1; }
template <typename T> void launch(Tensor x, Tensor y) {
    ++calls;
    k<T><<<1, N>>>(x.data_ptr<T>(), y.data_ptr<T>(), (int)x.numel());
}
template void launch<float>(Tensor, Tensor);
Tensor run(Tensor x, Options o) { auto y = torch::empty_like(x); launch<float>(x, y); return y; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


def test_what_kernels_reach_is_kept_and_nothing_else() -> None:
    found = sliced(parse([("ext.cu", HEAD + PROGRAM)]), ["k<float>"])
    assert found.count("\n") == (HEAD + PROGRAM).count("\n")
    there = words(found)
    assert {
        "N",
        "TABLE",
        "weights",
        "Mode",
        "Sign",
        "scale_of",
        "Pair",
        "sum",
        "Relu",
        "Function",
        "apply",
        "k",
    } <= there
    host = {"Tensor", "py", "std", "log_lines", "host_only", "name", "ostream", "launch", "run", "string", "m", "text"}
    assert not there & (host | {"unused_device", "plain", "bias"})
    assert found.count("apply(T x)") == 2
    assert len(re.findall(r"__global__", found)) == 1
    compiles(found, "k<float>")
    both = sliced(parse([("ext.cu", HEAD + PROGRAM)]))
    assert "plain" in words(both)
    compiles(both, "k<float>", "plain")


def test_a_constant_with_its_value_in_parentheses_is_cut_whole() -> None:
    text = "constexpr int read(3), left(4);\nconstexpr int unread((read + 1) * (read));\n"
    kernel = "__global__ void k(int* x) { x[0] = read; }"
    assert cut(text + kernel) == f"constexpr int read(3), left(4);\n{kernel}"
    compiles(HEAD + text + kernel, "k")


def test_every_kept_character_keeps_its_place() -> None:
    text = '__device__ float f(float x) { return x; }  // "Größe"\n'
    text += 'void host() { std::string s = "ö"; }\n__global__ void k(float* y) { *y = f(1); }  // ü\n'
    found = sliced(parse([("ext.cu", text)]))
    lines = text.splitlines()
    assert [line.rstrip() for line in found.splitlines()] == [lines[0], "", lines[2]]


def test_template_arguments_are_reached() -> None:
    text = """
namespace ops { struct Add { __device__ float operator()(float a) const { return a + one(); } __device__ static float one() { return 1; } };
struct Mul { __device__ float operator()(float a) const { return a * 2; } }; struct Policy { static constexpr int size = 4; }; }
template <class F, class P> __global__ void k(float* y) { y[P::size] = F()(y[0]); }
__global__ void other(float* y) { y[0] = 1; }
void run(float* y) { k<ops::Mul, ops::Policy><<<1, 1>>>(y); }
"""
    found = cut(text, "k<ops::Add, ops::Policy>")
    assert {"Add", "Policy"} <= words(found)
    assert not {"Mul", "other", "run"} & words(found)
    compiles(found, "k<ops::Add, ops::Policy>")
    every = words(cut(text))
    assert {"Mul", "Policy", "other"} <= every
    assert "Add" not in every
    with pytest.raises(NotTranslated, match="a lambda"):
        cut(text, "k<(lambda at ext.cu:3:4), ops::Policy>")


def test_macros_that_declare_kernels_with_their_host_functions() -> None:
    text = """
#define DEFINE(name, op)                                                        \\
    __global__ void name##_kernel(const float* x, float* y) { y[0] = op(x[0]); } \\
    torch::Tensor name(torch::Tensor x) {                                       \\
        name##_kernel<<<1, 1>>>(x.data_ptr<float>(), x.data_ptr<float>());      \\
        return x;                                                               \\
    }
#define CALL(T) void call_##T(T* p) {}
__device__ float negate(float v) { return -v; }
__device__ float unused(float v) { return -v; }
DEFINE(minus, negate)
CALL(float)
"""
    found = cut(text)
    assert "negate" in words(found)
    assert not {"unused", "CALL"} & words(found)
    assert "torch" not in words(found)
    compiles(found, "minus_kernel")


def test_code_of_the_gpu_that_the_host_does_not_see() -> None:
    text = """
__device__ float fast(float v) { return v; }
__device__ float never(float v) { return v; }
#ifdef __CUDA_ARCH__
__device__ inline float exact(float v) { return fast(v); }
#else
inline float exact(float v) { return std::stof("1"); }
#endif
__global__ void k(float* y) {
#if __CUDA_ARCH__ >= 900
    y[0] = exact(y[0]);
#endif
}
"""
    found = cut(text)
    assert {"fast", "exact"} <= words(found)
    assert not {"never", "stof"} & words(found)
    compiles(found, "k")


def test_code_that_clang_cannot_resolve_is_kept_by_its_names() -> None:
    text = """
namespace cg = cooperative_groups;
template <bool WIDE> using Out = missing::select<WIDE, float, int>;
__device__ unknown_t strange(unknown_t v) { return v; }
__device__ float helper(float v) { return v; }
template <class T> __global__ void k(cg::some_group<T> g, Out<true>* y) { y[0] = strange(helper(1)); }
template __global__ void k<float>(cg::some_group<float>, Out<true>*);
std::vector<missing_t> host_side(missing_t x) { return {x}; }
"""
    found = cut(text, "k<float>")
    assert {"cg", "Out", "strange", "helper", "k"} <= words(found)
    assert not {"host_side", "vector"} & words(found)
    assert found.count("__global__") == 1


def test_files_of_the_user_stand_where_they_are_included(tmp_path: Path) -> None:
    (tmp_path / "ops.cuh").write_text(
        "#pragma once\n#include <string>\n__device__ inline float twice(float v) { return 2 * v; }\n"
        "inline std::string name() { return {}; }\n"
    )
    (tmp_path / "host.h").write_text('#pragma once\n#include "ops.cuh"\nstruct Settings { std::string s; };\n')
    text = '#include "host.h"\n#include "ops.cuh"\n#include "ops.cuh"\n__global__ void k(float* y) { y[0] = twice(y[0]); }\n'
    (tmp_path / "ext.cu").write_text(text)
    found = sliced(parse([(str(tmp_path / "ext.cu"), text)], include=[str(tmp_path)]))
    assert found.count("float twice") == 1
    assert not {"std", "Settings"} & words(found)
    assert f'#line 4 "{tmp_path / "ext.cu"}"\n__global__' in found
    compiles(found, "k")


def test_members_that_are_defined_outside_of_their_class() -> None:
    text = """
class Point { public: __host__ __device__ Point(); __device__ Point(float v); __device__ float twice() const; int host(); static const int K = 3;
  float p;
  __device__ operator float() const { return p; } };
Point::Point() : p(0) {}
__device__ Point::Point(float v) : p(v) {}
__device__ float Point::twice() const { return K * p; }
int Point::host() { std::vector<int> v; return (int)v.size(); }
__global__ void k(float* y) { y[0] = Point(y[0]).twice() + Point(); }
"""
    found = cut(text)
    assert "host" not in words(found)
    compiles(found, "k")


def test_an_alias_of_a_type_of_the_host_is_of_the_host() -> None:
    text = """using ScalarType = at::ScalarType;
__global__ void k(float* y) { y[0] = 1; }
bool f(at::Tensor x) { k<<<1, 1>>>(x.data_ptr<float>()); return x.scalar_type() == ScalarType::Half; }
"""
    assert "ScalarType" not in words(cut(text))
