"""Kernels with names of the C++ library, of Thrust, of PyTorch and of g++, as projects use them in device code."""

import numpy as np
import torch

from cupyops import Threads
from tests.kernels.construct import AT, LIST, Construct


def thrown(seed: int) -> float:
    """Returns ten and two numbers of a generator that has skipped five: one from [-1, 1) and one of a dice, as Thrust has them."""
    states = [seed]
    for _ in range(7):
        states.append(states[-1] * 48271 % 2147483647)
    first, second = states[6:]
    real = np.float32(np.float32(first - 1) / np.float32(2147483646)) * np.float32(2) - np.float32(1)
    return float(real + np.float32(int((second - 1) / 2147483646 * 6 + 1)) + np.float32(10))


OF_LIBRARIES = {
    "pairs, tuples, arrays and function objects of the C++ library": Construct(
        "#include <array>\n#include <functional>\n#include <tuple>\n#include <utility>\n"
        "template <size_t... I> __device__ int count(std::index_sequence<I...>) { return (int(I) + ...); }\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return;\n std::array<float, 3> a{{}}; a[1] = x[i]; std::get<2>(a) = 4;\n"
        " std::pair<int, float> p(2, a[1]); auto q = std::make_pair(3, 4); auto [first, second] = q;\n"
        " std::tuple<int, float> t(first, p.second); int u; float v; std::tie(u, v) = t;\n"
        " typename std::tuple_element<1, decltype(t)>::type w = std::get<1>(t); static_assert(std::tuple_size<decltype(t)>::value == 2);\n"
        " int c = std::multiplies<>()(second, 2) + std::negate<int>()(u) + a[2];\n"
        " c += std::modulus<int>()(7, 4) + std::logical_not<bool>()(false) + count(std::index_sequence_for<int, float>()) + p.first;\n"
        " y[i] = std::plus<float>()(v, w) + c; }",
        "k",
        lambda x: 2 * x + 16,
        ("(7, 4)", "(6, 4)"),
    ),
    "pairs, tuples and function objects of Thrust": Construct(
        "#include <thrust/device_vector.h>\n#include <thrust/extrema.h>\n#include <thrust/functional.h>\n#include <thrust/sort.h>\n"
        "struct Twice : public thrust::unary_function<float, float> { __device__ result_type operator()(float v) const { return 2 * v; } };\n"
        "struct Sum : std::binary_function<float, float, float> { __device__ float operator()(float v, float w) const { return v + w; } };\n"
        "void run(thrust::device_vector<float>& v) { thrust::sort(v.begin(), v.end(), thrust::greater<float>()); }\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return;\n thrust::pair<int, float> p = thrust::make_pair(1, x[i]);\n"
        " thrust::tuple<int, float> t = thrust::make_tuple(2, 3.f); thrust::swap(p.first, thrust::get<0>(t));\n"
        " int c = thrust::plus<float>()(0, p.first) + thrust::maximum<float>()(1, 4) + thrust::min(5, 3) + thrust::identity<int>()(1);\n"
        " c += Twice()(2) + Sum()(1, 2) + thrust::get<0>(t); y[i] = p.second + c; }",
        "k",
        lambda x: x + 18,
        ("min(5, 3)", "min(5, 2)"),
    ),
    "algorithms of Thrust in one thread": Construct(
        "#include <thrust/binary_search.h>\n#include <thrust/execution_policy.h>\n#include <thrust/reduce.h>\n#include <thrust/sort.h>\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return;\n int a[5] = {{3, 1, 4, 1, 5}}, b[5], at[5];\n"
        " thrust::sequence(thrust::seq, at, at + 5);\n"
        " thrust::copy(thrust::seq, a, a + 5, b); thrust::sort_by_key(thrust::seq, b, b + 5, at, thrust::greater<int>());\n"
        " thrust::sort(thrust::seq, a, a + 5); const int* p = thrust::lower_bound(thrust::seq, a, a + 5, 2);\n"
        " int c = (p - a) + 10 * (thrust::upper_bound(a, a + 5, 1) - a) + 100 * thrust::binary_search(thrust::device, a, a + 5, 4);\n"
        " c += 1000 * at[0] + 10000 * at[4] + thrust::reduce(thrust::seq, b, b + 5, 0) + thrust::count(thrust::seq, a, a + 5, 1);\n"
        " thrust::inclusive_scan(thrust::seq, a, a + 5, b); thrust::exclusive_scan(thrust::seq, a, a + 5, at, 7);\n"
        " c += b[4] + at[4] + *thrust::max_element(thrust::seq, a, a + 5) - *thrust::min_element(a, a + 5) + (thrust::find(a, a + 5, 4) - a);\n"
        " thrust::fill(thrust::seq, b, b + 5, 2); thrust::transform(thrust::seq, a, a + 5, b, at, thrust::multiplies<int>());\n"
        " thrust::reverse(thrust::seq, at, at + 5); y[i] = x[i] + c + at[0]; }",
        "k",
        lambda x: x + (2 + 20 + 100 + 4000 + 30000 + 14 + 2 + 14 + 16 + 5 - 1 + 3 + 10),
        ("b + 5, 0)", "b + 4, 0)"),
    ),
    "values with keys, loads and names that CUB 3 removed": Construct(
        "#include <cub/cub.cuh>\n"
        f"__global__ void k{LIST} {{ {AT} typedef cub::KeyValuePair<int, float> Pair; typedef cub::BlockReduce<Pair, 128> Reduce;\n"
        " __shared__ typename Reduce::TempStorage room[2]; __shared__ int most, least; const int t = threadIdx.x;\n"
        " const Pair a = Reduce(room[0]).Reduce(Pair(t, t == 77 || t == 90 ? 5.f : 1.f), cub::ArgMax());\n"
        " const Pair b = Reduce(room[1]).Reduce(Pair(t, t == 33 ? -5.f : 1.f), cub::ArgMin());\n"
        " if (t == 0) { most = a.key; least = b.key; } __syncthreads(); if (i >= n) return;\n"
        " const float v = cub::ThreadLoad<cub::LOAD_CG>(x + i) + CUB_MAX(3, 4) + CUB_MIN(1, 2) + cub::Difference()(9, 4);\n"
        " cub::ThreadStore<cub::STORE_CG>(y + i, v + most + least + (cub::LaneId() == t % 32)); }",
        "k",
        lambda x: x + 4 + 1 + 5 + 77 + 33 + 1,
        ("t == 77", "t == 78"),
        given={"geometry": Threads("n", block=128)},
    ),
    "complex numbers of Thrust": Construct(
        "#include <thrust/complex.h>\nusing thrust::complex;\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return;\n complex<float> z(x[i], 1), w = z * thrust::conj(z) + 2.f;\n"
        " w.imag(3); y[i] = w.real() + w.imag() - thrust::norm(z) + thrust::abs(complex<float>(3, 4)) + thrust::exp(complex<float>(0, 0)).real(); }",
        "k",
        lambda x: torch.full_like(x, 11),
        ("w.imag(3)", "w.imag(4)"),
    ),
    "function objects by value": Construct(
        "#include <functional>\nnamespace a { template <typename T, typename R = T> struct Scale {\n"
        " __host__ __device__ R operator()(const T& v) const { return 2 * v; } };\n"
        "struct Once { __device__ float operator()(float v) const { return v; } }; }\n"
        "template <typename T, typename F, typename G, typename Op> __global__ void k(\n"
        " const T* x /* (n) */, T* y /* (n) */, int n, F f, G g, Op op) {\n"
        f" {AT} if (i < n) y[i] = op(f(x[i]), g(1)); }}",
        "k<float, a::Scale<float, float>, a::Once, std::plus<float>>",
        lambda x: 2 * x + 1,
        ("return 2 * v", "return 3 * v"),
        more=((), b"\0", ()),
    ),
    "functions of bits, macros and integers of 128 bits of g++": Construct(
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return;\n const unsigned __int128 wide = (unsigned __int128)n << 64;\n"
        " const int c = __builtin_popcount(7) + __builtin_clz(1) + __builtin_ctz(8) + __builtin_ffs(4) + __builtin_popcountll(~0ull)\n"
        "  + __builtin_clzll(1ull) + __builtin_ctzll(1ull << 40) + (int)(wide >> 64) - n\n"
        "  + (__INT_MAX__ >> 30) + (int)__SIZEOF_DOUBLE__; y[i] = x[i] + c; }",
        "k",
        lambda x: x + (3 + 31 + 3 + 3 + 64 + 63 + 40 + 1 + 8),
        ("popcount(7)", "popcount(5)"),
    ),
    "classes and roundings of integers, and the largest of a list": Construct(
        "#include <algorithm>\n#include <cmath>\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return;\n"
        " int c = isnan(n) + isinf(n) + isfinite(n) + signbit(-3) + lround(4) + llround(5) + lrint(6) + ilogb(8) + ldexp(3, 2) + scalbn(1, 3);\n"
        " c += fma(2, 3.0, 1.f) + std::max({1, 7, 3}) + std::min({4.f, 2.f})\n"
        "  + std::max(1, 2, [](int a, int b) { return b < a; });\n y[i] = x[i] + c; }",
        "k",
        lambda x: x + (1 + 1 + 4 + 5 + 6 + 3 + 12 + 8 + 7 + 7 + 2 + 1),
        ("{1, 7, 3}", "{1, 6, 3}"),
    ),
    "pairs of 16-bit floats that are emptied, and vectors of long": Construct(
        "#include <cuda_fp16.h>\n"
        f"__global__ void k{LIST[:-1]}, long4 size, ulong2 more) {{ {AT} if (i >= n) return;\n"
        " half2 sum = {}, sums[2]; sum = __floats2half2_rn(1, 2); sum = {}; sums[1] = {}; sums[i & 1] = {};\n"
        " y[i] = x[i] + (__low2float(sum) + (float)(size.w + size.x + more.y)); }",
        "k",
        lambda x: x + 14,
        ("size.w", "size.z"),
        more=((1, 2, 3, 4), (8, 9)),
    ),
    "accessors by an alias, without the namespace of PyTorch": Construct(
        "#include <torch/types.h>\nusing namespace torch;\n"
        "template <typename T, int dims> using Accessor = PackedTensorAccessor32<T, dims, RestrictPtrTraits>;\n"
        "template <typename scalar_t> __global__ void k(const Accessor<scalar_t, 1> x, Accessor<scalar_t, 1> y, int n) {\n"
        f" {AT} if (i < n) y[i] = 2 * x[i] + x.size(0); }}\n"
        "Tensor run(Tensor x) { return x; }",
        "k<float>",
        lambda x: 2 * x + len(x),
        ("2 * x[i]", "3 * x[i]"),
    ),
    "names that only the host defines, and types that a macro declares": Construct(
        "namespace utils { inline int width(const float* p) { return p ? 4 : 1; } __device__ inline float twice(float v) { return 2 * v; } }\n"
        "using utils::width;\nusing utils::twice;\nunsigned int const COUNT = sizeof(long long) * 8;\n"
        "template <typename T, int N> struct Vector {};\n"
        "#define VECTOR(T, N, V, ARGS...) template <ARGS> struct Vector<T, N> { using Type = V; };\n"
        "VECTOR(float, 4, float4)\nVECTOR(T, 1, T, typename T)\n\n"
        "texture<float, 2, cudaReadModeElementType> image;\n__global__ void other(float* y) { y[0] = tex2D(image, 0, 0); }\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = twice(x[i]) "
        "+ (COUNT + sizeof(Vector<float, 4>::Type) + sizeof(Vector<int, 1>::Type)); }",
        "k",
        lambda x: 2 * x + 84,
        ("return 2 * v", "return 3 * v"),
    ),
    "members that are defined outside of their class, and typedefs of pointers": Construct(
        "class Point { public: __host__ __device__ Point(); __host__ __device__ ~Point(); __device__ Point(float v);\n"
        " __host__ void show() { cudaDeviceSynchronize(); }\n __device__ float twice() const; int host(); float p; };\n"
        "Point::Point() : p(0) {}\nPoint::~Point() {}\nPoint::Point(float v) : p(v) {}\n"
        "float Point::twice() const { return 2 * p; }\nint Point::host() { return std::cout.good(); }\n"
        "typedef float* __restrict__ OUT;\nusing IN = const float*;\n"
        f"__global__ void k(IN x /* (n) */, OUT y /* (n) */, int n) {{ {AT} if (i < n) y[i] = Point(x[i]).twice() + Point().p; }}",
        "k",
        lambda x: 2 * x,
        ("return 2 * p", "return 3 * p"),
    ),
    "integers that the text declares, and lambdas for the GPU": Construct(
        "typedef unsigned char uint8_t;\ntypedef unsigned long long uint64_t;\ntypedef uint64_t uintptr_t;\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return;\n const uint64_t large = 1ull << 40; const uintptr_t address = (uintptr_t)(x + i);\n"
        " auto f = [=] __device__ (float v) { return 2 * v + (large >> 39); }; auto g = [&] __host__ __device__ () { return address % 4; };\n"
        " y[i] = f(x[i]) + (g() + (uint8_t)256); }",
        "k",
        lambda x: 2 * x + 2,
        ("large >> 39", "large >> 40"),
    ),
    "random numbers of Thrust": Construct(
        "#include <thrust/random.h>\n__device__ thrust::default_random_engine engine(int i) {\n"
        " thrust::default_random_engine found(i + 1); found.discard(5); return found; }\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return; auto numbers = engine(i); thrust::minstd_rand0 others(0);\n"
        " thrust::uniform_real_distribution<float> u(-1, 1); thrust::uniform_int_distribution<int> dice(1, 6);\n"
        " const float first = u(numbers); y[i] = first + dice(numbers) + 10 * (others() == 16807) + 0 * x[i]; }",
        "k",
        lambda x: torch.tensor([thrown(i + 1) for i in range(len(x))], device=x.device),
        ("discard(5)", "discard(6)"),
    ),
    "iterators that go backwards": Construct(
        "#include <iterator>\nstruct Span {\n const float* first; int count;\n using back = std::reverse_iterator<const float*>;\n"
        " constexpr const float* end() const { return std::next(first, count); }\n"
        " constexpr back rbegin() const { return back(end()); }\n constexpr back rend() const { return back(first); }\n};\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return; const float a[] = {{4, 2, 1}}; Span span{{a, 3}}; float sum = 0;\n"
        " for (auto p = span.rbegin(); p != span.rend(); ++p) sum = 10 * sum + *p;\n y[i] = x[i] + sum + *std::prev(span.end()); }",
        "k",
        lambda x: x + 124 + 1,
        ("10 * sum", "20 * sum"),
    ),
}  # fmt: skip
