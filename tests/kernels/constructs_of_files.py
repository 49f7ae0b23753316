"""Kernels whose files are more than declarations: headers that are included several times or not at all, and macros with parts of
declarations and of inline PTX."""

from pathlib import Path

from tests.kernels.construct import AT, LIST, Construct

_FACTOR = "#pragma once\nconstexpr float FACTOR = 2;\n"
_SCALES = '#pragma once\n#include "factor.h"\nconstexpr float SCALE = 3;\n'
_TABLE = "__device__ float NAME(float v) { return v * (TIMES); }\n#undef NAME\n#undef TIMES\n"

OF_FILES = {
    "headers that conditions of the architecture include, and that are included again": Construct(
        '#if __CUDA_ARCH__ < 500\n#include "scales.h"\n#else\n#include "factor.h"\n#endif\n#include "scales.h"\n#include "factor.h"\n'
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = x[i] * FACTOR + SCALE; }}",
        "k",
        lambda x: 2 * x + 3,
        ("+ SCALE", "- SCALE"),
        given={"headers": {"factor.h": _FACTOR, "scales.h": _SCALES}},
    ),
    "a header that is included several times with other macros": Construct(
        '#define NAME twice\n#define TIMES 2\n#include "times.inc"\n#define NAME thrice\n#define TIMES 3\n#include "times.inc"\n'
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = twice(x[i]) + thrice(1.f); }}",
        "k",
        lambda x: 2 * x + 3,
        ("TIMES 3", "TIMES 4"),
        given={"headers": {"times.inc": _TABLE}},
    ),
    "headers of libraries of the host that a project has": Construct(
        '#include <shared_mutex>\n#include <version>\n#include "json.hpp"\n#include "fmt/format.h"\n#include <zlib.h>\n'
        "using json = nlohmann::json;\nvoid print(const json& all) { fmt::print(all.dump()); }\n"
        f"#ifndef USE_SWIG\nconstexpr float FACTOR = 2;\n#endif\n__global__ void k{LIST} {{ {AT} if (i < n) y[i] = FACTOR * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("FACTOR = 2", "FACTOR = 3"),
        given={"options": (f"-I{Path(__file__).parent / 'project'}",)},
    ),
    "a kernel in the condition of a macro of its build, whose name begins as those of CUDA": Construct(
        f"#ifdef CUDA_PROJECT\n__global__ void k{LIST} {{ {AT} if (i < n) y[i] = 2 * x[i]; }}\n#endif\n",
        "k",
        lambda x: 2 * x,
        ("2 *", "3 *"),
    ),
    "static shared memory in macros": Construct(
        "#define FIRST(T, name, value) __shared__ T name##_of_block[1]; \\\n  if (threadIdx.x == 0) name##_of_block[0] = value; \\\n"
        "  __syncthreads();\n#define SUMS __shared__ float sum; __shared__ int counts[2];\n"
        f"__global__ void k{LIST} {{ {AT} FIRST(float, two, 2) FIRST(int, three, 3) SUMS\n"
        " if (threadIdx.x == 0) sum = two_of_block[0], counts[1] = three_of_block[0]; __syncthreads();\n"
        " if (i < n) y[i] = x[i] * sum + counts[1]; }",
        "k",
        lambda x: 2 * x + 3,
        ("three, 3)", "three, 4)"),
    ),
    "a macro for the word of shared memory": Construct(
        "#define LOCAL __shared__\n#define ALIGNED __align__(16) __shared__\n"
        f"__global__ void k{LIST} {{ {AT} LOCAL float all[256]; ALIGNED float first[4];\n"
        " all[threadIdx.x] = i < n ? x[i] : 0; if (threadIdx.x < 4) first[threadIdx.x] = threadIdx.x; __syncthreads();\n"
        " if (i < n) y[i] = all[threadIdx.x] + first[2]; }",
        "k",
        lambda x: x + 2,
        ("first[2]", "first[3]"),
    ),
    "operands of inline PTX with a macro, and 16-bit floats that it widens": Construct(
        '#define ADDRESS "l"\n__device__ float one() { float v; unsigned short half_of_two = 0x4000;\n'
        ' asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(half_of_two)); return v / 2; }\n'
        f'__global__ void k{LIST} {{ {AT} float v; if (i >= n) return;\n asm volatile(".pragma \\"nounroll\\";"::);\n'
        ' asm("ld.global.f32 %0, [%1];" : "=f"(v) : ADDRESS(x + i));\n'
        " y[i] = v + one(); }",
        "k",
        lambda x: x + 1,
        ("0x4000", "0x4400"),
    ),
    "declarations of functions of CUDA": Construct(
        "extern __device__ __device_builtin__ void __threadfence_block(void);\nextern __device__ __device_builtin__ void __syncthreads(void);\n"
        f"__global__ void k{LIST} {{ {AT} __shared__ float s[256]; s[threadIdx.x] = i < n ? x[i] : 0; __threadfence_block(); __syncthreads();\n"
        " if (i < n) y[i] = s[threadIdx.x] + 1; }",
        "k",
        lambda x: x + 1,
        ("+ 1; }", "+ 2; }"),
    ),
    "arrays of CUDA's C++ library by value, and alias templates of pointers": Construct(
        "#include <cuda/std/array>\ntemplate <typename T> using Out = T*;\ntemplate <typename T> using In = const T*;\n"
        "template <typename T, int N> using Sizes = cuda::std::array<T, N>;\n"
        "template <typename T> __global__ void k(In<T> x /* (n) */, Out<T> y /* (n) */, int n, cuda::std::array<T, 2> scale,\n"
        f" const Sizes<int64_t, 3> sizes) {{ {AT} if (i < n) y[i] = scale[1] * x[i] + sizes[2]; }}",
        "k<float>",
        lambda x: 3 * x + 7,
        ("sizes[2]", "sizes[1]"),
        more=((2.0, 3.0), (5, 6, 7)),
    ),
}  # fmt: skip
