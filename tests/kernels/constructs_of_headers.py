"""Kernels whose headers also have host code, as headers of frameworks do."""

import torch

from cupyops import Threads
from tests.kernels.construct import AT, LIST, Construct

_VECTOR = r"""
#pragma once
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>
using std::string;
namespace util {
template <bool YES> using Require = typename std::enable_if<YES>::type;
struct Layout { string name; constexpr int rank() const; };
constexpr int Layout::rank() const { return parse_rank(name); }
struct Matrix { std::vector<int> rows; };
template <typename T> struct Stored { std::vector<T> all; void to_host(T* out) const; };
template struct Stored<int>;
template <typename T, int N> class Vec {
public:
  __host__ __device__ T& operator[](int i) { return v_[i]; }
  std::vector<T> to_vector() const { return std::vector<T>(v_, v_ + N); }
  static const std::string separator;
  friend std::ostream& operator<<(std::ostream& out, const Vec& v);
private:
  T v_[N];
};
template <int R, typename T, int N, class = Require<R <= N>>
__host__ __device__ Vec<T, R> head(Vec<T, N> v) { Vec<T, R> found; for (int i = 0; i < R; i++) found[i] = v[i]; return found; }
}
namespace kernels { template <typename T> class Matrix { public: __device__ static T twice(T x) { return 2 * x; } }; }
"""
_TYPES = r"""
#include <functional>
#include <limits>
#include <string>
#define VECTORS(name, T) template <int N> using name = Several<T, N>; using name##2 = name<2>;
namespace py = pybind11;
namespace types {
template <typename T, int N> struct Several { T v[N]; };
VECTORS(vec, float)
struct Small { signed char bits; };
}
namespace std {
template <> class numeric_limits<types::Small> { public: static constexpr bool is_specialized = true; static constexpr int digits = 7; };
template <> struct hash<types::Small> { size_t operator()(types::Small s) const { return hash<string>()(to_string(s.bits)); } };
}
"""

OF_HEADERS = {
    "classes with members of the host, and templates that compare numbers": Construct(
        f'#include "vector.h"\n__global__ void k{LIST} {{ {AT} util::Vec<float, 3> v; if (i >= n) return;\n'
        " v[0] = x[i]; v[1] = 1; y[i] = kernels::Matrix<float>::twice(util::head<2>(v)[0]) + util::head<2>(v)[1]; }",
        "k",
        lambda x: 2 * x + 1,
        ("v[1] = 1", "v[1] = 3"),
        given={"headers": {"vector.h": _VECTOR}},
    ),
    "aliases that a macro declares, and specializations in namespace std": Construct(
        f'#include "types.h"\n__global__ void k{LIST} {{ {AT} types::vec2 two{{{{2, 3}}}}; types::vec<1> one{{{{1}}}};\n'
        " if (i < n) y[i] = two.v[0] * x[i] + (one.v[0] + std::numeric_limits<types::Small>::digits); }",
        "k",
        lambda x: 2 * x + 8,
        ("two.v[0]", "two.v[1]"),
        given={"headers": {"types.h": _TYPES}},
    ),
    "conditions on g++, roundings, and integers of a least width": Construct(
        "#include <cfenv>\n#include <cstdint>\n#ifdef __GNUC__\n#define FACTOR 2\n#else\n#error no compiler\n#endif\n"
        f"#if !defined(__PRETTY_FUNCTION__) && !defined(__GNUC__)\n#define __PRETTY_FUNCTION__ __FUNCSIG__\n#endif\n"
        "template <int MODE = FE_TONEAREST> __device__ int rounded(float v)\n"
        " { if constexpr (MODE == FE_DOWNWARD) return __float2int_rd(v); else return __float2int_rn(v); }\n"
        f"__global__ void k{LIST} {{ {AT} std::uint_least16_t one = 1; int_fast32_t two = FACTOR;\n"
        " if (i < n) y[i] = rounded<FE_DOWNWARD>(x[i]) * two + rounded(one); }",
        "k",
        lambda x: 2 * x.floor() + 1,
        ("<FE_DOWNWARD>(", "("),
    ),
    "other kernels whose braces match after preprocessing": Construct(
        f"namespace {{\n__global__ void k{LIST} {{ {AT} if (i < n) y[i] = 2 * x[i]; }}\n"
        "__global__ void other(float* y, int n) {\n#ifdef NEVER\n y[0] = 0;\n#if __CUDA_ARCH__ >= 800\n if (n > 1) {\n#else\n"
        " if (n > 2) {\n#endif\n y[0] = 1; }\n#endif\n}\n}\nvoid launch(float* y) { other<<<1, 1>>>(y, 2); }",
        "k",
        lambda x: 2 * x,
        ("2 * x[i]", "3 * x[i]"),
    ),
    "names of the C library's headers, constants of constants, and streams of the host by their last name": Construct(
        '#include <cstddef>\n#include <float.h>\n#include <inttypes.h>\n#include <stdio.h>\n#include <iostream>\nusing namespace std;\n'
        "#ifdef NO_LIBRARY\n#define FLT_MAX 1.f\n#endif\n"
        "struct Pair { char first; double second;\n"
        " __host__ __device__ double get() const { return second; }\n void write(ostream& to) const;\n"
        " friend ostream& operator<<(ostream& to, const Pair& p); };\n"
        "const double SPEED = 4.; const double INVERSE = 1. / SPEED;\nstatic const float ONE = 1.f, TWO = 2 * ONE;\n"
        f"__global__ void k{LIST} {{ {AT} const uint64_t large = 1; if (n < 0) printf(\"%\" PRIu64 \" %\" PRId32, large, n);\n"
        " const Pair p = {1, 3.};\n"
        " if (i < n) y[i] = float(INVERSE * SPEED) * TWO * x[i] + offsetof(Pair, second) + (x[i] < FLT_MAX) + p.get(); }",
        "k",
        lambda x: 2 * x + 8 + 1 + 3,
        ("2 * ONE", "3 * ONE"),
    ),
    "a macro that stands for parameters, and a condition of a build around the kernel": Construct(
        "#if defined(USE_CUDA) && defined(WITH_SCALES)\n#define PARAMETERS const float* x /* (n) */, \\\n  float* y /* (n) */\n"
        f"__global__ void k(PARAMETERS, int n) {{ {AT} if (i < n) y[i] = 2 * x[i]; }}\n#endif",
        "k",
        lambda x: 2 * x,
        ("2 * x[i]", "3 * x[i]"),
    ),
    "pointers to structs of any layout": Construct(
        "namespace a { template <typename T> struct Node { T value; int low : 3, high : 5; }; }\n"
        "struct Bits { int low : 3, high : 5; };\n"
        f"__global__ void k{LIST[:-1]}, const a::Node<float>* node, const Bits* bits) {{ {AT}\n"
        " if (i < n) y[i] = node->value * x[i] + bits->high; }",
        "k",
        lambda x: 2 * x + 3,
        ("bits->high", "bits->low"),
        more=(torch.tensor([2.0, 0.0]), torch.tensor([3 << 3], dtype=torch.int32)),
    ),
    "dynamic shared memory as an object, and member templates without the word template": Construct(
        "struct Pair { float first[128]; template <int AT> __device__ float get(int i) { return first[i] * AT; } };\n"
        "template <typename T> struct Reader { static __device__ float twice(T& p, int i) { return p.get<2>(i); } };\n"
        f"__global__ void k{LIST} {{ {AT} extern __shared__ char memory[];\n"
        " Pair& all = reinterpret_cast<Pair&>(memory); auto& more = reinterpret_cast<Pair&>(memory[sizeof(Pair)]);\n"
        " all.first[threadIdx.x] = i < n ? x[i] : 0; more.first[threadIdx.x] = 1; __syncthreads();\n"
        " if (i < n) y[i] = Reader<Pair>::twice(all, threadIdx.x) + more.first[threadIdx.x]; }",
        "k",
        lambda x: 2 * x + 1,
        ("get<2>", "get<3>"),
        given={"geometry": Threads("n", block=128), "shared": 1024},
    ),
    "parts of complex numbers of PyTorch, by std": Construct(
        "#include <c10/util/complex.h>\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return; const c10::complex<float> z(x[i], 1);\n"
        " y[i] = std::real(z) + std::imag(std::conj(z)) + std::norm(c10::complex<float>(1, 1)); }",
        "k",
        lambda x: x - 1 + 2,
        ("std::conj(z)", "z"),
    ),
    "headers in folders whose names have backslashes, and a loop of host code": Construct(
        '#include "parts\\times.h"\nvoid run(float* p) {\n#pragma unroll\n for (int i = 0; i < 2; ++i) p[i] = 0; }\n'
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = times(x[i]); }}",
        "k",
        lambda x: 2 * x,
        ("times(x[i])", "x[i]"),
        given={"headers": {"parts/times.h": "#pragma once\n__device__ float times(float v) { return 2 * v; }\n"}},
    ),
    "headers that a macro names": Construct(
        '#define WIDTH 2\n#if WIDTH == 2\n#define CONFIG "two.h"\n#else\n#define CONFIG "four.h"\n#endif\n#include CONFIG\n#include FUNCTIONS\n'
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = times(x[i]); }}",
        "k",
        lambda x: 2 * x,
        ("times(x[i])", "-times(x[i])"),
        given={
            "headers": {
                "two.h": '#define FACTOR 2\n#define FUNCTIONS "functions.h"\n',
                "functions.h": "__device__ float times(float v) { return FACTOR * v; }\n",
            }
        },
    ),
    "conditions in the PTX of a statement": Construct(
        f"__global__ void k{LIST} {{ {AT} int r;\n asm volatile(\n#if __CUDA_ARCH__ >= 800\n"
        ' "add.s32 %0, %1, 2;"\n#else\n "add.s32 %0, %1, 3;"\n#endif\n "add.s32 %0, %0, 4;" : "=r"(r) : "r"(n));\n'
        " if (i < n) y[i] = x[i] + (r - n); }",
        "k",
        lambda x: x + 6,
        ("%1, 2;", "%1, 5;"),
    ),
    "memory of the heap of the GPU": Construct(
        "struct Sum { float v; __device__ Sum(float a, float b) : v(a + b) {} };\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return; int* a = (int*)malloc(2 * sizeof(int)); float* b = new float[3];\n"
        " a[1] = 4; b[2] = 2; Sum* sum = new Sum(x[i], a[1]); y[i] = sum->v + b[2]; free(a); delete[] b; delete sum; }",
        "k",
        lambda x: x + 6,
        ("a[1] = 4", "a[1] = 5"),
    ),
}  # fmt: skip
