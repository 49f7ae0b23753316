"""Kernels with structs, libraries and names of PyTorch's headers as extensions and samples of CUDA use them."""

from pathlib import Path

import torch

from cupyops import Threads
from tests.kernels.construct import AT, LIST, Construct

PROJECT = Path(__file__).parent / "project"
# A part of GLM: a vector and a matrix, by column.
_GLM = (
    "namespace glm { template <int L, typename T> struct vec;\n"
    "template <typename T> struct vec<3, T> { T x, y, z; };\n"
    "template <int C, int R, typename T> struct mat { T value[C][R]; __device__ const T* operator[](int i) const { return value[i]; } };\n"
    "typedef vec<3, float> vec3; typedef mat<2, 2, float> mat2; }\n"
)
_LANES = torch.arange(300)

OF_EXTENSIONS = {
    "types that a struct and its bases declare": Construct(
        "struct Base { using index_t = int64_t; typedef index_t stride_t; int rows; index_t stride; void* __restrict__ data; };\n"
        "struct Sizes : public Base { stride_t offset; bool whole; index_t count[2]; };\n"
        f"__global__ void k(const float* x, float* y, int n, Sizes s) {{ {AT} "
        "if (i < n) y[i] = x[i] * s.stride + s.offset + s.count[1] + s.rows + s.whole; }",
        "k",
        lambda x: 2 * x + 13,
        ("s.count[1]", "s.count[0]"),
        more=((1, 2, 0, 3, True, (4, 8)),),
    ),
    "function objects by value, of templates with default arguments": Construct(
        "namespace ops { template <typename T, typename Result = T, int TIMES = 2> struct Multiply {\n"
        " T by; Result more[TIMES]; __device__ Result operator()(T v) const { return v * by + more[1]; } }; }\n"
        f"template <typename T, typename F> __global__ void k(const T* x /* (n) */, T* y /* (n) */, int n, F f) {{ {AT} "
        "if (i < n) y[i] = f(x[i]); }",
        "k<float, ops::Multiply<float>>",
        lambda x: 3 * x + 5,
        ("more[1]", "more[0]"),
        more=((3.0, (4.0, 5.0)),),
    ),
    "tensors with their sizes and strides, by TensorInfo": Construct(
        "#include <ATen/cuda/detail/IndexUtils.cuh>\n#include <ATen/cuda/detail/TensorInfo.cuh>\n"
        "using at::cuda::detail::TensorInfo;\n"
        "template <typename T> __global__ void k(const TensorInfo<T, int> x, at::cuda::detail::TensorInfo<T, int64_t> y, int n) {\n"
        " const int row = at::cuda::ATenCeilDiv(int(2 * (blockIdx.x * blockDim.x + threadIdx.x)), 2); if (row >= n) return;\n"
        " for (int i = row * x.sizes[1]; i < (row + 1) * x.sizes[1]; ++i) {\n"
        " const int from = at::cuda::detail::IndexToOffset<T, int, -1>::get(i, x);\n"
        " y.data[at::cuda::detail::IndexToOffset<T, int64_t, 2>::get(i, y)] = x.data[from] + (x.dims + x.strides[0]); } }\n"
        "void run(at::Tensor x) { auto info = at::cuda::detail::getTensorInfo<float, int>(x); }",
        "k<float>",
        lambda x: x + 5,
        ("(x.dims +", "(2 * x.dims +"),
        shape=(-1, 3),
    ),
    "accessors of PyTorch's headers without a library": Construct(
        "#include <torch/headeronly/core/TensorAccessor.h>\n"
        "template <typename T> __global__ void k(const torch::headeronly::HeaderOnlyGenericPackedTensorAccessor<T, 1> x,\n"
        f" torch::headeronly::HeaderOnlyGenericPackedTensorAccessor<T, 1, torch::headeronly::RestrictPtrTraits, int32_t> y, int n) {{ {AT} "
        "if (i < n) y[i] = x[i] + x.stride(0); }",
        "k<float>",
        lambda x: x + 1,
        ("x.stride(0)", "x.size(0)"),
    ),
    "functions of PyTorch's headers that the text defines": Construct(
        "#include <ATen/ATen.h>\ntemplate <typename T> __device__ __forceinline__ T WARP_SHFL_XOR(T value, int mask, int width = 32) {\n"
        " return __shfl_xor_sync(0xffffffffu, value, mask, width); }\n"
        f"__global__ void k{LIST} {{ {AT} const at::opmath_type<float> v = i < n ? x[i] : 0;\n"
        " const float w = WARP_SHFL_XOR(v, 1); const float back = WARP_SHFL_XOR(w, 1); if (i < n) y[i] = back + 1; }",
        "k",
        lambda x: x + 1,
        ("+ 1; }", "+ 2; }"),
    ),
    "vectors and matrices of GLM": Construct(
        f"{_GLM}using vec3 = glm::vec<3, float>;\n"
        f"__global__ void k(const float* x, float* y, int n, const glm::vec3 a, glm::mat2 m, vec3 b) {{ {AT} "
        "if (i < n) y[i] = a.y * x[i] + m[1][0] + b.z; }",
        "k",
        lambda x: 2 * x + 13,
        ("m[1][0]", "m[0][1]"),
        more=((1.0, 2.0, 3.0), (4.0, 5.0, 6.0, 7.0), (5.0, 6.0, 7.0)),
    ),
    "a type that the text declares under a name of CUDA's headers": Construct(
        "struct cuComplex { float r, i; __device__ cuComplex(float a, float b) : r(a), i(b) {}\n"
        " __device__ cuComplex operator*(const cuComplex& a) { return cuComplex(r * a.r - i * a.i, i * a.r + r * a.i); } };\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = (cuComplex(x[i], 1) * cuComplex(2, 0)).r + CLOCKS_PER_SEC / 1000; }}",
        "k",
        lambda x: 2 * x + 1000,
        ("cuComplex(2, 0)", "cuComplex(3, 0)"),
    ),
    "functions of bits in constant expressions": Construct(
        "template <unsigned N> __global__ void k(const float* x /* (n) */, float* y /* (n) */, int n) {\n"
        " constexpr int zeros = __builtin_ctz(N), ones = __builtin_popcountll(N), before = __builtin_clz(N), first = __builtin_ffsl(N);\n"
        f" static_assert(zeros == 3 && ones == 2 && before == 27 && first == 4);\n{AT} const unsigned m = n;\n"
        " if (i < n) y[i] = x[i] + (zeros + first + __builtin_ctz(m) + __builtin_popcount(m) + __builtin_clz(m) + __builtin_ffs(m)); }",
        "k<24>",
        lambda x: x + 39,
        ("(zeros +", "(ones +"),
    ),
    "scans with a function of what precedes the block": Construct(
        "#include <cub/block/block_scan.cuh>\n"
        "struct Before { float all; __device__ float operator()(float aggregate) { all += aggregate; return 1; } };\n"
        "struct Larger { __device__ float operator()(float a, float b) const { return a < b ? b : a; } };\n"
        f"__global__ void k{LIST} {{ {AT} typedef cub::BlockScan<float, 512> Scan; __shared__ typename Scan::TempStorage room[4];\n"
        " Before before{0}; float up = 0, from = 0, pair[1] = {0}, two[1] = {float(threadIdx.x)};\n"
        " Scan(room[0]).InclusiveScan(float(threadIdx.x), up, Larger(), before);\n"
        " Scan(room[1]).ExclusiveScan(float(threadIdx.x), from, Larger(), before);\n"
        " Scan(room[2]).ExclusiveScan(two, pair, Larger(), before);\n float sum = 0; Scan(room[3]).ExclusiveSum(1.f, sum, before);\n"
        " if (i < n) y[i] = x[i] + (up + from + pair[0] + sum); }",
        "k",
        lambda x: x + (_LANES.clamp(min=1) + 2 * (_LANES - 1).clamp(min=1) + _LANES + 1).to(x),
        ("return 1;", "return 900;"),
        given={"geometry": Threads("n", block=512)},
    ),
    "headers of CUDA's samples in a folder": Construct(
        "#include <helper_of_samples.h>\n#include <helper_cuda.h>\n"
        f"int main() {{ checkCudaErrors(0); }}\n__global__ void k{LIST} {{ {AT} if (i < n) y[i] = (make_float2(x[i], 1) + make_float2(2, 3)).x; }}",
        "k",
        lambda x: x + 2,
        ("make_float2(2, 3)", "make_float2(3, 2)"),
        given={"options": (f"-I{PROJECT}",)},
    ),
    "classes that a macro of a header declares": Construct(
        '#include "atomics.h"\n'
        f"__global__ void k{LIST} {{ {AT} __shared__ float sum; if (threadIdx.x == 0) sum = 0; __syncthreads();\n"
        " add_to(&sum, 1); __syncthreads(); if (i < n) y[i] = x[i] + sum / blockDim.x; }",
        "k",
        lambda x: x + 1,
        ("&sum, 1", "&sum, 2"),
        given={
            "headers": {
                "atomics.h": "#define ATOMIC(NAME) template <typename T, int SIZE> struct Atomic##NAME;\\\n"
                " template <typename T> struct Atomic##NAME<T, 4> { __device__ void operator()(T* p, T v) { OP(p, v); } };\n"
                "#define OP(P, V) atomicAdd(P, V)\nATOMIC(Add)\n#undef OP\n"
                "static __device__ void add_to(float* p, float v) { AtomicAdd<float, sizeof(float)>()(p, v); }\n"
            }
        },
    ),
    "a struct that is made from tensors of the host, and tables of the host": Construct(
        "#include <torch/extension.h>\n#include <cstdio>\nnamespace device { struct Rays { torch::Tensor origins; };\n"
        "struct PackedRays {\n PackedRays(Rays& rays) : count(rays.origins.size(0)), whole(rays.origins.dim() > 1) {}\n"
        " PackedRays(torch::Tensor t) : count(0) {}\n int64_t count; bool whole; }; }\n"
        "struct Entry { const char* name; void (*call)(torch::Tensor); };\nvoid run(torch::Tensor t) {}\n"
        'static const struct Entry entries[] = {{"run", run}, {nullptr, nullptr}};\n'
        f'__global__ void k(const float* x, float* y, int n, device::PackedRays rays) {{ {AT} if (n < 0) std::printf("%d", n);\n'
        " if (i < n) y[i] = x[i] + rays.count + rays.whole; }",
        "k",
        lambda x: x + 8,
        ("rays.whole;", "2 * rays.whole;"),
        more=((7, True),),
    ),
    "concepts": Construct(
        "#include <torch/extension.h>\nnamespace detail { template <class T> struct is_tensor { static const bool value = false; };\n"
        "template <> struct is_tensor<at::Tensor> { static const bool value = true; };\n"
        "template <class T> concept IsTensor = is_tensor<T>::value; }\n"
        "template <class T> struct Argument { static_assert(detail::IsTensor<T>); };\n"
        "template <class T> concept Small = sizeof(T) <= 4;\ntemplate <Small T> __device__ T twice(T v) { return 2 * v; }\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = twice(x[i]); }}",
        "k",
        lambda x: 2 * x,
        ("return 2 * v", "return 3 * v"),
        given={"options": ("-std=c++20",)},
    ),
    "accessors of complex numbers of PyTorch, and shuffles of them": Construct(
        "#include <ATen/ATen.h>\n#include <c10/util/complex.h>\n"
        "template <typename T, size_t N> using Accessor = at::GenericPackedTensorAccessor<T, N, at::RestrictPtrTraits, int32_t>;\n"
        f"template <typename T> __global__ void k(const Accessor<T, 1> x, Accessor<c10::complex<float>, 1> y, int n) {{ {AT}\n"
        " using part_t = typename at::scalar_value_type<T>::type; const T v = i < n ? x[i] : T();\n"
        " const T back = WARP_SHFL_XOR(WARP_SHFL_XOR(v, 1), 1);\n const T zero = WARP_SHFL_DOWN(WARP_SHFL_UP(WARP_SHFL(T(), 3), 1), 1);\n"
        " if (i < n) y[i] = back * std::exp(zero) + T(std::abs(T(3, 4)), part_t(2)) + std::log(T(1)); }",
        "k<c10::complex<float>>",
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 2)) + (5 + 2j)).flatten(),
        ("T(3, 4)", "T(4, 4)"),
        shape=(-1, 2),
    ),
}  # fmt: skip
