"""Constructs of samples, courses and RawKernels of CuPy: names that a kernel shares with other functions, constants of classes,
concepts of C++20, and what texts have as with nvcc."""

import torch

from tests.kernels.construct import AT, LIST, TYPED, Construct
from tests.kernels.constructs_of_projects import PROJECT


def _conjugate(x: torch.Tensor) -> torch.Tensor:
    z = torch.view_as_complex(x.view(-1, 2)) + (2 + 0.5j)
    return torch.view_as_real(z.conj().resolve_conj() + 1).flatten()


_KERNEL = f"{{ {AT} if (i < n) y[i] = k(x[i]) + 1; }}"

OF_SAMPLES = {
    "a kernel beside functions of its name": Construct(
        "__host__ __device__ float k(float v) { return 2 * v; }\n__global__ void k(float* y, int n, int m);\nvoid k(double* on_the_host);\n"
        f"__global__ void k{LIST};\n__global__ void k{LIST} {_KERNEL}",
        "k",
        lambda x: 2 * x + 1,
        ("return 2 * v", "return 3 * v"),
    ),
    "a template beside a function of its name, in a namespace": Construct(
        '#include "twice.cuh"\nnamespace a { struct Once { char by; };\n'
        f"template <typename T> __global__ void k(const T* x /* (n) */, T* y /* (n) */, int n, Once once) {{ {AT}\n"
        " if (i < n) y[i] = k(x[i]) + once.by; }\ntemplate __global__ void k<float>(const float*, float*, int, Once); }",
        "a::k<float>",
        lambda x: 2 * x + 3,
        ("+ once.by", "- once.by"),
        more=((3,),),
        given={"headers": {"twice.cuh": "namespace a { __device__ inline float k(float v) { return 2 * v; } }\n"}},
    ),
    "a mark of the order of bytes before a text and its header": Construct(
        '\ufeff// A text of an editor that writes such a mark.\n#include "marked.h"\n'
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = OF_MARKED * x[i] + 1; }}",
        "k",
        lambda x: 2 * x + 1,
        ("+ 1; }", "+ 2; }"),
        given={"options": (f"-I{PROJECT}",)},
    ),
    "a constant in place of warpSize": Construct(
        f"inline constexpr int warpSize = 32;\n__global__ void k{LIST} {{ {AT} float all[warpSize];\n"
        " all[threadIdx.x % warpSize] = 1; if (i < n) y[i] = x[i] + all[threadIdx.x % warpSize] * warpSize; }",
        "k",
        lambda x: x + 32,
        ("= 1;", "= 2;"),
    ),
    "concepts of the library, and functions that concepts constrain": Construct(
        "#include <concepts>\ntemplate <std::floating_point T> __device__ T twice(T v) { return v * 2; }\n"
        "__device__ auto one(std::integral auto v) { return v / v; }\n"
        "template <typename T, typename... Ts> concept AnyOf = (std::same_as<T, Ts> || ...);\n"
        "template <typename T> concept Number = AnyOf<T, int, float, double>;\n"
        "template <typename F> concept Binary = requires(F f, float a) { { f(a, a) } -> std::same_as<float>; };\n"
        "__device__ inline float add(float a, float b) { return a + b; }\n"
        "__device__ inline float larger(float a, float b) { return a > b ? a : b; }\n"
        "template <Binary auto F> struct Start;\ntemplate <> struct Start<add> { static constexpr float value = 1; };\n"
        "template <> struct Start<larger> { static constexpr float value = -1e30f; };\n"
        "template <Binary auto F = add> __device__ float from_start(float v) { return F(v, Start<F>::value); }\n"
        f"template <Number T> __global__ void k{TYPED} {{ {AT} if (i < n) y[i] = twice(from_start(x[i])) + one(n)\n"
        " + from_start<larger>(3.f); }",
        "k",
        lambda x: 2 * x + 6,
        ("value = 1;", "value = 2;"),
    ),
    "complex numbers of CuPy": Construct(
        '#include <cupy/complex.cuh>\nextern "C" __global__ void k(const complex<float>* x /* (n) */, complex<float>* y /* (n) */, int n,\n'
        f" complex<double> by) {{ {AT} if (i >= n) return;\n const complex<float> z = x[i] + complex<float>(by);\n"
        " y[i] = isfinite(z) && !isnan(z) ? conj(z) : complex<float>(0); y[i] += exp(complex<float>(0, 0)); }",
        "k",
        _conjugate,
        ("conj(z)", "z"),
        more=((2.0, 0.5),),
        shape=(-1, 2),
    ),
    "functions with parameters of the type auto, and dependent launches": Construct(
        "__device__ float scaled(const auto& v, float by) { return v * by; }\n"
        f"__global__ void k{LIST} {{ {AT} cudaGridDependencySynchronize();\n"
        " const auto add = [](auto a, auto b) { return a + b; }; for (auto one : {1}) if (i < n) y[i] = add(scaled(x[i], 2), one);\n"
        " cudaTriggerProgrammaticLaunchCompletion(); }",
        "k",
        lambda x: 2 * x + 1,
        ("return v * by", "return v / by"),
    ),
    "constants of classes that are no integers": Construct(
        "template <typename T> struct Sum { static const T start = static_cast<T>(2); static const int more = 3;\n"
        " template <typename U> struct Inner { static const float half = 0.5f; };\n"
        " __device__ T operator()(T a, T b) const { static const float table[] = {1.f, 4.f}; return a + b + table[1]; } };\n"
        f"template <typename T> __global__ void k{TYPED} {{ {AT} if (i < n) y[i] = Sum<T>()(x[i], Sum<T>::start) + Sum<T>::more\n"
        " + Sum<T>::template Inner<int>::half; }",
        "k<float>",
        lambda x: x + 2 + 4 + 3 + 0.5,
        ("static_cast<T>(2)", "static_cast<T>(3)"),
    ),
    "conditions that ask for nvcc": Construct(
        "#ifdef __NVCC__\n#define DEVICE __device__\n#else\n#define DEVICE\n#endif\n#ifndef __NVCC__\n#define __device__\n#endif\n"
        "#if !defined(__NVCC__) || !defined(__CUDACC__)\n#error a compiler of CUDA\n#endif\nDEVICE float twice(float v) { return 2 * v; }\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = twice(x[i]); }}",
        "k",
        lambda x: 2 * x,
        ("return 2 * v", "return 3 * v"),
    ),
    "braces that narrow an integer for a constructor": Construct(
        "struct Place { __device__ Place(unsigned row, unsigned column) : row(row), column(column) {} unsigned row, column; };\n"
        "__device__ Place place(const int* at) { return {at[0], at[1]}; }\n"
        f"__global__ void k{LIST} {{ {AT} const int at[] = {{i / 2, i % 2}}; const Place p = place(at);\n"
        " if (i < n) y[i] = x[i] + int(p.row * 2 + p.column - i); }",
        "k",
        lambda x: x,
        ("p.row * 2", "p.row * 3"),
    ),
    "a struct of times of the host": Construct(
        "#include <sys/time.h>\n#include <chrono>\nusing namespace std;\nusing clock_point = chrono::time_point<chrono::steady_clock>;\n"
        "double since(clock_point start);\ntypedef struct { struct timeval start, end; } Timer;\nstruct Span { timespec at; };\n"
        "static void start(Timer* timer) { gettimeofday(&timer->start, NULL); }\ndouble of(Span s) { return s.at.tv_sec; }\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = 2 * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("= 2 *", "= 3 *"),
    ),
    "iterators of the library, and a base of the host whose functions name its classes": Construct(
        "#include <iterator>\n#include <iostream>\nstruct Error { std::string what; void update(); };\n"
        "class Managed { public:\n void* operator new(std::size_t bytes) { void* p; Error error = cudaMallocManaged(&p, bytes); return p; }\n"
        " void operator delete(void* p) { cudaFree(p); std::cout << p; } };\n"
        "struct Place : std::iterator<std::input_iterator_tag, int> { int at; __device__ explicit Place(int i) : at(i) {}\n"
        " __device__ value_type operator*() const { return at; } __device__ Place& operator++() { ++at; return *this; }\n"
        " __device__ bool operator!=(const Place& other) const { return at != other.at; } };\n"
        "class Range : public Managed { public: Range(std::string text); __device__ Place begin() const { return Place(first); }\n"
        " __device__ Place end() const { return Place(last); } int first, last; };\n"
        f"__global__ void k{LIST[:-1]}, Range range) {{ {AT} if (i >= n) return;\n"
        " float sum = 0; for (int each : range) sum += each; y[i] = x[i] + sum; }",
        "k",
        lambda x: x + 3 + 4 + 5,
        ("sum += each", "sum -= each"),
        more=((3, 6),),
    ),
}  # fmt: skip
