"""Kernels with the functions and types that PyTorch's headers have for kernels beside accessors."""

import torch

from cupyops import Threads
from tests.kernels.construct import AT, LIST, TYPED, Construct

_HEAD = LIST.removesuffix(")")

OF_PYTORCH = {
    "atomic sums, products and maxima of PyTorch, of numbers of any size": Construct(
        "#include <ATen/cuda/Atomic.cuh>\n#include <torch/extension.h>\n"
        f"__global__ void k{LIST} {{ {AT} __shared__ alignas(8) at::Half h[2]; __shared__ alignas(4) int8_t b[4];\n"
        " __shared__ int64_t wide; __shared__ float most, product; __shared__ int least; __shared__ c10::complex<float> z;\n"
        " if (threadIdx.x == 0) { h[0] = h[1] = at::Half(0.f); for (int j = 0; j < 4; ++j) b[j] = 0; wide = 0; most = -9; product = 1;\n"
        "  least = 100; z = c10::complex<float>(0, 0); } __syncthreads();\n"
        " if (threadIdx.x < 4) { atomicAdd(&h[1], at::Half(1.f)); gpuAtomicAdd(&b[2], int8_t(1)); atomicAdd(&b[2], int8_t(1));\n"
        "  gpuAtomicAdd(&wide, 1ll << 39); atomicAdd(&wide, int64_t(1) << 39);\n"
        "  gpuAtomicMax(&most, -float(threadIdx.x)); gpuAtomicMin(&least, int(threadIdx.x) + 3);\n"
        "  gpuAtomicMul(&product, 2.f); gpuAtomicAddNoReturn(&z, c10::complex<float>(1, 2)); } __syncthreads();\n"
        " if (i < n) y[i] = x[i] + (h[1] + h[0]) + (b[2] + b[3]) + (wide >> 40) + most + least + product + z.real() + z.imag(); }",
        "k",
        lambda x: x + 4 + 8 + 4 + 0 + 3 + 16 + 4 + 8,
        ("atomicAdd(&b[2], int8_t(1))", "atomicAdd(&b[2], int8_t(2))"),
    ),
    "NaN in atomic maxima and minima of PyTorch": Construct(
        "#include <ATen/cuda/Atomic.cuh>\n"
        f"__global__ void k{LIST} {{ {AT} __shared__ float s[2][2]; if (threadIdx.x == 0) for (int last = 0; last < 2; ++last) {{\n"
        "  s[0][last] = s[1][last] = 1; for (int j = 0; j < 2; ++j) { const float v = j == last ? NAN : 2 - 1.5f * j;\n"
        "   gpuAtomicMax(&s[0][last], v); gpuAtomicMin(&s[1][last], v); } } __syncthreads();\n"
        " if (i < n) for (int j = 0; j < 4; ++j) y[i] += x[i] + isnan(s[j / 2][j % 2]); }",
        "k",
        lambda x: 4 * x + 4,
        ("? NAN", "? 1"),
    ),
    "quotients of complex numbers of PyTorch by a part that is tiny beside the other": Construct(
        "#include <c10/util/complex.h>\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return; const c10::complex<float> one(1e10f, 1e10f);\n"
        " const auto a = one / c10::complex<float>(1e-30f, 1e10f), b = one / c10::complex<float>(1e10f, 1e-30f);\n"
        " y[i] = x[i] + a.real() + 2 * a.imag() + 4 * b.real() + 8 * b.imag(); }",
        "k",
        lambda x: x + 1 - 2 + 4 + 8,
        ("2 * a.imag()", "3 * a.imag()"),
    ),
    "16-bit floats of PyTorch with numbers of other types": Construct(
        "#include <torch/extension.h>\n"
        f"template <typename T> __global__ void k{TYPED} {{ {AT} if (i >= n) return; const float f = 2 * x[i] + 1.5f; T v = f - 1;\n"
        " v += 1; float sum = 0; sum += v; if (v < 0 || v >= 1e3f || v == -7) sum = -sum;\n"
        " const float whole = T(2048) * 3 / 7, brain = 7 + (1 + c10::BFloat16(256.f)) / 3;  // integers leave 16 bits\n"
        " y[i] = sum * T(1) / 2 + exp(T(0)) + max(x[i], T(-9)) * 0 + (whole - 877) + (brain - 92); }",
        "k<at::Half>",
        lambda x: torch.where(
            (v := ((2 * x.float() + 1.5).sub(1).half() + 1).float()) < 0, -v, v
        ).div(2).add(2).half(),
        ("1e3f", "-1e3f"),
        torch.float16,
    ),
    "the state of PyTorch's Philox generator by value": Construct(
        "#include <ATen/cuda/CUDAContext.h>\n#include <ATen/cuda/CUDAGraphsUtils.cuh>\n#include <tuple>\n"
        f"__global__ void k{_HEAD}, at::PhiloxCudaState state) {{ {AT} auto seeds = at::cuda::philox::unpack(state);\n"
        " uint64_t first, second; std::tie(first, second) = seeds; auto [seed, offset] = seeds;\n"
        " if (i < n) y[i] = x[i] + (std::get<0>(seeds) == first && std::get<1>(seeds) == second) + 10 * seed + offset; }",
        "k",
        lambda x: x + 1 + 70 + 4,
        ("10 * seed", "20 * seed"),
        more=((7, 4),),
    ),
    "reductions of blocks of PyTorch, and vectors of its memory": Construct(
        "#include <ATen/native/cuda/MemoryAccess.cuh>\n#include <ATen/native/cuda/block_reduce.cuh>\nnamespace at { namespace native {\n"
        "struct Larger { __device__ float combine(float a, float b) const { return a < b ? b : a; }\n"
        " __device__ float warp_shfl_down(float v, int offset) const { return WARP_SHFL_DOWN(v, offset); } };\n"
        f"__global__ void k{LIST} {{ {AT} __shared__ float s[cuda_utils::kCUDABlockReduceMaxThreads / C10_WARP_SIZE]; __shared__ float found[3];\n"
        " const float sum = cuda_utils::BlockReduceSum(1.f, s), most = cuda_utils::BlockReduceMax(float(threadIdx.x), s);\n"
        " const float other = cuda_utils::BlockReduce(-float(threadIdx.x), Larger(), -1e9f, s);\n"
        " if (threadIdx.x == 0) { found[0] = sum; found[1] = most; found[2] = other; } __syncthreads();\n"
        " using Four = memory::aligned_vector<float, 4>; if (i >= n) return; const Four v = reinterpret_cast<const Four*>(x)[i / 4];\n"
        " y[i] = v.val[i % 4] + found[0] + found[1] + found[2]; } } }",
        "at::native::k",
        lambda x: x + 128 + 127,
        ("BlockReduceSum(1.f", "BlockReduceSum(2.f"),
        given={"geometry": Threads("n", block=128)},
    ),
    "mathematical functions, divisors and types of the arithmetic of PyTorch": Construct(
        "#include <ATen/AccumulateType.h>\n#include <ATen/NumericUtils.h>\n#include <ATen/cuda/detail/IntegerDivider.cuh>\n"
        "#include <c10/cuda/CUDAMathCompat.h>\n#include <c10/util/Load.h>\nnamespace at::native {\n"
        "template <typename T, typename acc_t = acc_type_device<T, c10::DeviceType::CUDA>> __global__ void k(const T* x, T* y, int n) {\n"
        ' CUDA_KERNEL_ASSERT_MSG(n > 0, "n"); const at::cuda::detail::IntDivider<unsigned> by(7u); CUDA_KERNEL_LOOP_TYPE(i, n, int64_t) {\n'
        "  const acc_t v = c10::load(x + i); const auto found = by.divmod(16u); y[i] = c10::cuda::compat::max(v, acc_t(-100)) +\n"
        "   c10::cuda::compat::rsqrt(acc_t(4)) + at::_isnan(v) + found.div + found.mod + by.div(15u); } } }",
        "at::native::k<float>",
        lambda x: x + 0.5 + 2 + 2 + 2,
        ("acc_t(4)", "acc_t(16)"),
    ),
}  # fmt: skip
