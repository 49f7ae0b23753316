"""Kernels with constructs of templates, of classes and of C++20, with kernels of headers, and with what the host's headers declare."""

from tests.kernels.construct import AT, LIST, Construct

_CLUSTERS = (
    "#pragma once\n__device__ float twice(float v) { return 2 * v; }\n"
    "__global__ void __cluster_dims__(2, 1, 1) other(float* y) { y[0] = undeclared(1); }\n"
)

OF_CPP = {
    "a failed assertion of the host's library": Construct(
        f'__global__ void k{LIST} {{ {AT} if (n < 0) __assert_fail("n >= 0", __FILE__, __LINE__, __func__); if (i < n) y[i] = 2 * x[i]; }}',
        "k",
        lambda x: 2 * x,
        ("2 * x", "3 * x"),
    ),
    "initializers that name a member, concepts and consteval, without an option": Construct(
        "struct Line { float a; int b; };\n__constant__ Line line = {.a = 2.f, .b = 3};\nconsteval int three() { return 3; }\n"
        "template <typename T> concept Small = sizeof(T) <= 4;\ntemplate <typename T> requires Small<T> __device__ T twice(T v) { return 2 * v; }\n"
        "#if __cplusplus >= 202002L\n#define FOUR 4\n#endif\n"
        f"__global__ void k{LIST} {{ {AT} const Line other{{.a = 1.f, .b = FOUR}};\n"
        " if (i < n) y[i] = line.a * x[i] + (line.b + twice(other.b) + three()); }",
        "k",
        lambda x: 2 * x + 14,
        (".b = 3}", ".b = 4}"),
    ),
    "packs of parameters": Construct(
        "template <typename T, typename... Ts> __global__ void k(const T* x /* (n) */, T* y /* (n) */, int n, Ts... more) {\n"
        f" {AT} if (i < n) y[i] = x[i] + (T(more) + ...); }}",
        "k<float, int, double>",
        lambda x: x + 5,
        ("x[i] +", "x[i] -"),
        more=(2, 3.0),
    ),
    "classes within a class, by value": Construct(
        "namespace a { template <typename T, int N> struct Traits { using Element = T; struct Params { Element by[N]; int more; }; };\n"
        "struct Plain { struct Params { char kind; double by; }; };\n"
        "template <typename Kernel> __global__ void k(const float* x /* (n) */, float* y /* (n) */, int n, typename Kernel::Params p,\n"
        f" Plain::Params q) {{ {AT} if (i < n) y[i] = p.by[1] * x[i] + p.more + q.by; }} }}",
        "a::k<a::Traits<float, 2>>",
        lambda x: 2 * x + 7,
        ("p.by[1]", "p.by[0]"),
        more=(((1, 2), 3), (1, 4)),
    ),
    "casts of bits, and <cuda/std/bit>": Construct(
        f"#include <bit>\n#include <cuda/std/bit>\n__global__ void k{LIST} {{ {AT} if (i >= n) return;\n"
        " const unsigned bits = std::bit_cast<unsigned>(x[i]) ^ 0x80000000u;\n"
        " y[i] = cuda::std::bit_cast<float>(bits) + (cuda::std::popcount(7u) + cuda::std::countl_zero(1u) + cuda::std::countr_zero(8u));\n"
        " y[i] += float(cuda::std::rotl(1u, 2) + cuda::std::bit_width(5u) + cuda::std::bit_ceil(3u) + cuda::std::bit_floor(3u)); }",
        "k",
        lambda x: -x + 37 + 13,
        ("popcount(7u)", "popcount(3u)"),
    ),
    "a tensor map of the driver": Construct(
        "#include <cuda.h>\n#include <cudaTypedefs.h>\n"
        f"__global__ void k{LIST[:-1]}, const __grid_constant__ CUtensorMap map) {{ {AT} if (i < n) y[i] = x[i] + ((const char*)&map)[100]; }}",
        "k",
        lambda x: x + 100,
        ("[100]", "[99]"),
        more=(bytes(range(128)),),
    ),
    "a kernel of a header that the text includes": Construct(
        '#define FACTOR 2\n#include "outer.cuh"\nvoid run(float* p) { k<<<1, 32>>>(p, p, 1); }\n',
        "k",
        lambda x: 2 * x + 1,
        ("FACTOR 2", "FACTOR 3"),
        given={
            "headers": {
                "outer.cuh": '#pragma once\n#include "inner.cuh"\n#include "plus.cuh"\n',
                "inner.cuh": '#pragma once\n#include "plus.cuh"\n'
                f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = plus(FACTOR * x[i]); }}\n",
                "plus.cuh": "#pragma once\n__device__ float plus(float v) { return v + 1; }\n",
            }
        },
    ),
    "other kernels of a header, and macros that declare a kernel and its launch": Construct(
        '#include "clusters.cuh"\ntemplate <typename T> void launch(T* y);\n'
        "#define KERNEL(T) __global__ void of_##T(T* y) { y[0] = 0; } template <> void launch<T>(T* y) { of_##T<<<1, 1>>>(y); }\n"
        f"KERNEL(float)\nKERNEL(int)\n__global__ void k{LIST} {{ {AT} if (i < n) y[i] = twice(x[i]) + 1; }}",
        "k",
        lambda x: 2 * x + 1,
        ("+ 1; }", "+ 2; }"),
        given={"headers": {"clusters.cuh": _CLUSTERS}},
    ),
    "alignments by a macro, and sizes of arrays by conditions": Construct(
        "#define _ALIGNAS(n) __align__(n)\ntemplate <typename T, int N, bool LARGE> struct _ALIGNAS(16) Table {\n"
        " T first; int more[LARGE ? N : 1]; };\n"
        "struct _ALIGNAS(8) Pair { float a, b; };\n"
        f"__global__ void k{LIST[:-1]}, Table<float, 4, false> s, Pair p, Table<char, 2, true> t) {{ {AT}\n"
        " static_assert(sizeof(s) == 16 && sizeof(p) == 8); if (i < n) y[i] = s.first * x[i] + (s.more[0] + p.b + t.more[1]); }",
        "k",
        lambda x: 2 * x + 18,
        ("t.more[1]", "t.more[0]"),
        more=((2, (3,)), (4, 5), (6, (7, 10))),
    ),
    "namespaces of libraries of the host": Construct(
        "#include <torch//extension.h>\n#include <boost/shared_ptr.hpp>\n#include <THC/THCDeviceUtils.cuh>\n"
        "namespace gflags = google;\nusing boost::shared_ptr;\nnamespace torch::autograd {\n"
        "class Twice : public Function<Twice> { static Tensor forward(AutogradContext* c, Tensor x) { return torch::add(x, x); } };\n}\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = x[i] + THCCeilDiv(7, 4); }}",
        "k",
        lambda x: x + 2,
        ("(7, 4)", "(9, 4)"),
    ),
}  # fmt: skip
