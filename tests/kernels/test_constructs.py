"""Kernels as people write them for nvcc: each construct of a declaration, of a template and of the standard names runs with the
same values in the simulator and on a GPU, and a fault planted in it is noticed."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

import cupyops
from cupyops import Kernel, Threads
from tests.kernels.construct import AT, LIST, TYPED, Construct
from tests.kernels.constructs_of_cpp import OF_CPP
from tests.kernels.constructs_of_extensions import OF_EXTENSIONS
from tests.kernels.constructs_of_files import OF_FILES
from tests.kernels.constructs_of_frameworks import OF_FRAMEWORKS
from tests.kernels.constructs_of_headers import OF_HEADERS
from tests.kernels.constructs_of_libraries import OF_LIBRARIES
from tests.kernels.constructs_of_projects import OF_PROJECTS
from tests.kernels.constructs_of_pytorch import OF_PYTORCH
from tests.kernels.constructs_of_samples import OF_SAMPLES
from tests.kernels.constructs_of_structs import OF_STRUCTS

pytestmark = [pytest.mark.simulator, pytest.mark.filterwarnings("ignore:.*no such header is known, so it is left out")]


CONSTRUCTS = {
    "no extern C": Construct(
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = 2 * x[i]; }}", "k", lambda x: 2 * x, ("2 *", "3 *")
    ),
    "a namespace in an unnamed one": Construct(
        f"namespace {{ namespace a {{ constexpr float F = 3; __global__ void k{LIST} {{ {AT} if (i < n) y[i] = F * x[i]; }} }} }}",
        "a::k",
        lambda x: 3 * x,
        ("F = 3", "F = 4"),
    ),
    "static, attributes and macros in any order": Construct(
        "#define RESTRICT __restrict__\n#define LAUNCH_BOUNDS(n) __launch_bounds__((n) + 0)\ntypedef float real;\n"
        "[[maybe_unused]] static void __global__ LAUNCH_BOUNDS(256) \\\n k(volatile const real x[] /* (n) */, "
        f"real* RESTRICT y /* (n) */, int n = (5)) {{ {AT} if (i < n) y[i] = x[i] + 1; }}",
        "k",
        lambda x: x + 1,
        ("x[i] + 1", "x[i] - 1"),
    ),
    "std::size_t and long": Construct(
        f"__global__ void k(const float* x /* (n) */, float* y /* (n) */, std::size_t n, long add) {{ {AT} "
        "if (i < n) y[i] = x[i] + (add >> 33); }",
        "k",
        lambda x: x + 2,
        (">> 33", ">> 34"),
        more=(1 << 34,),
    ),
    "a template of a type and a number": Construct(
        f"template <typename T, int N> __global__ void __launch_bounds__(N) k{TYPED} {{ {AT} __shared__ T s[N]; "
        "s[threadIdx.x] = i < n ? x[i] : T(0); __syncthreads(); if (i < n) y[i] = s[threadIdx.x] * T(N); }",
        "k<double, 256>",
        lambda x: x * 256,
        ("* T(N)", "* T(N + 1)"),
        torch.float64,
    ),
    "a template that the arrays and constants decide": Construct(
        f"namespace b {{ template <class T, bool NEGATE, int N = NEGATE ? 1 : 2> __global__ void k{TYPED} {{ {AT} "
        "if (i < n) y[i] = NEGATE ? -x[i] * N : x[i]; } }",
        "k",
        lambda x: -x,
        ("NEGATE ? 1", "NEGATE ? 3"),
        torch.float64,
        given={"constants": {"NEGATE": 1}},
    ),
    "a template of float16": Construct(
        f"template <typename scalar_t> __global__ void k(const scalar_t* x /* (n) */, scalar_t* y /* (n) */, int n) {{ {AT} "
        "if (i < n) y[i] = (scalar_t)((acc_t)x[i] + 1.f); }",
        "k",
        lambda x: x + 1,
        ("+ 1.f", "+ 2.f"),
        torch.float16,
    ),
    "a specialization and an instantiation beside the template": Construct(
        f"template <typename T> __global__ void k{TYPED} {{ {AT} if (i < n) y[i] = x[i]; }}\n"
        f"template <> __global__ void k<float>(const float* x, float* y, int n) {{ {AT} if (i < n) y[i] = x[i] + 7; }}\n"
        "template __global__ void k<double>(const double*, double*, int);",
        "k",
        lambda x: x + 7,
        ("x[i] + 7", "x[i] + 8"),
    ),
    "a template that another kernel shadows": Construct(
        f"template <typename T> __global__ void other{TYPED} {{ }}\ntemplate __global__ void other<int>(const int*, int*, int);\n"
        f"template <typename T> __device__ T twice(T v) {{ return v + v; }}\n"
        f"template <typename T> __global__ void k{TYPED} {{ {AT} if (i < n) y[i] = twice(x[i]); }}",
        "k<T>",
        lambda x: x + x,
        ("v + v", "v"),
    ),
    "names of the C library": Construct(
        f"#include <stdint.h>\n#include <float.h>\n#include <math.h>\n#include <cuda_runtime.h>\n__global__ void k{LIST} {{ {AT} "
        "const int64_t wide = (int64_t)INT_MAX + 1; const uint8_t low = (uint8_t)257; float best = -INFINITY; "
        "best = fmaxf(best, x[i % n]); if (i < n) y[i] = best + (wide >> 31) + low + (NAN != NAN) + (float)(2 * M_PI) - FLT_MAX * 0; }",
        "k",
        lambda x: x + 3 + float(torch.tensor(2 * torch.pi, dtype=torch.float32)),
        ("257", "258"),
    ),
    "names of the C++ library": Construct(
        f"#include <cmath>\n#include <limits>\n#include <type_traits>\n#include <algorithm>\ntemplate <typename T> __global__ void k{TYPED} {{ {AT} "
        "static_assert(std::is_same<T, float>::value, \"\"); T low = std::numeric_limits<T>::lowest(); "
        "low = std::max(low, std::min<T>(x[i % n], T(1))); if (i < n) y[i] = std::abs(low) + std::sqrt(T(4)); }",
        "k",
        lambda x: x.clamp(max=1).abs() + 2,
        ("T(4)", "T(9)"),
    ),
    "CUDA's C++ library": Construct(
        f"#include <cuda/std/array>\n#include <cuda/std/limits>\n__global__ void k{LIST} {{ {AT} cuda::std::array<float, 2> a{{1, 2}}; "
        "if (i < n) y[i] = x[i] * a[1] + (cuda::std::numeric_limits<int>::max() == 2147483647); }",
        "k",
        lambda x: x * 2 + 1,
        ("a[1]", "a[0]"),
    ),
    "conditions": Construct(
        "#ifdef HALF\ntypedef half real;\n#elif defined(__CUDACC__) && WIDE == 1\ntypedef double real;\n#else\ntypedef float real;\n"
        f"#include <vector>\n#endif\n__global__ void k(const real* x /* (n) */, real* y /* (n) */, int n) {{ {AT} if (i < n) y[i] = x[i] / 3; }}",
        "k",
        lambda x: x / 3,
        ("/ 3", "/ 4"),
        torch.float64,
        given={"options": ("-DWIDE=1",)},
    ),
    "a default argument in braces": Construct(
        f"__global__ void k(const float* x /* (n) */, float* y /* (n) */, int n = {{3}}, int add = {{}}) {{ {AT} if (i < n) y[i] = x[i] + add; }}",
        "k",
        lambda x: x + 4,
        ("+ add", "- add"),
        more=(4,),
    ),
    "macros with parameters in the declaration": Construct(
        "#define IN(T, name) const T* __restrict__ name\n#define POINTER(T) T*\n"
        f"__global__ void k(IN(float, x) /* (n) */, POINTER(float) y /* (n) */, int n) {{ {AT} if (i < n) y[i] = 2 * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("2 *", "3 *"),
    ),
    "void*": Construct(
        f"__global__ void k(const void* x, void* y, int n) {{ {AT} if (i < n) static_cast<float*>(y)[i] = 1 + static_cast<const float*>(x)[i]; }}",
        "k",
        lambda x: x + 1,
        ("1 +", "2 +"),
    ),
    "enumerations and names of integers": Construct(
        "enum Mode : unsigned char { ADD, SUB };\ntypedef enum { LOW, HIGH = 7 } Level;\n"
        f"__global__ void k(const float* x /* (n) */, float* y /* (n) */, ptrdiff_t n, enum Mode mode, Level level, uint more) {{ {AT} "
        "if (i < n) y[i] = mode == SUB && level == HIGH ? x[i] - more : 0.f; }",
        "k",
        lambda x: x - 5,
        ("- more", "+ more"),
        more=(1, 7, 5),
    ),
    "16-bit floats by value": Construct(
        "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
        f"__global__ void k(const float* x /* (n) */, float* y /* (n) */, int n, half a, nv_bfloat16 b, half2 c, dim3 d) {{ {AT} "
        "if (i < n) y[i] = x[i] * __half2float(a) + __bfloat162float(b) + __high2float(c) + d.z; }",
        "k",
        lambda x: x * 0.5 - 3 + 8 + 2,
        ("+ __bfloat", "- __bfloat"),
        more=(0.5, -3.0, (9, 8), (4, 3, 2)),
    ),
    "arithmetic of 16-bit floats": Construct(
        f"#include <cuda_fp16.h>\n__global__ void k(const half* x /* (n) */, half* y /* (n) */, int n) {{ {AT} "
        "if (i < n) y[i] = __hfma(x[i], __float2half(2.f), __int2half_rn(__half2int_rd(x[i]) - __half2int_ru(x[i]))); }",
        "k",
        lambda x: (2 * x.double() + x.double().floor() - x.double().ceil()).to(x.dtype),
        ("_rd(x[i]) -", "_rd(x[i]) +"),
        torch.float16,
    ),
    "a struct by value whose layout the text determines": Construct(
        "struct Scale { char kind; float3 by; int more[2]; char last; float sum() const { return by.x + more[0]; } };\n"
        f"__global__ void k(const float* x /* (n) */, float* y /* (n) */, int n, Scale s) {{ {AT} if (i < n) y[i] = x[i] * s.by.z + s.more[1]; }}",
        "k",
        lambda x: x * 3 + 5,
        ("s.by.z", "s.by.y"),
        more=((0, (1, 2, 3), (4, 5), 6),),
    ),
    "a macro of the options that a shared header declares": Construct(
        f'#include "vector.cuh"\n#include <cuda/std/array>\n__global__ void k{LIST} {{ {AT} cuda::std::array<float, N> a{{1, 2, 3, 4}}; '
        "if (i < n) y[i] = x[i] + a[N - 1]; }",
        "k",
        lambda x: x + 4,
        ("N - 1", "N - 2"),
        given={"options": ("-DN=4",)},
    ),
    "logarithms and roots of a header for kernels": Construct(
        f"#include <cuda/std/cmath>\n__global__ void k{LIST} {{ {AT} if (i < n) y[i] = cuda::std::log1p(x[i] * x[i]) + cuda::std::cbrt(8.f); }}",
        "k",
        lambda x: (x * x).log1p() + 2,
        ("8.f", "27.f"),
    ),
    "headers of a library that uses 16-bit floats": Construct(
        f"#include <cublas_v2.h>\n__device__ float rounded(float v) {{ "
        f"register __nv_bfloat16 b = __float2bfloat16(v); return __bfloat162float(b); }}\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = rounded(x[i]) + 1; }}",
        "k",
        lambda x: x.bfloat16().float() + 1,
        ("+ 1", "+ 2"),
    ),
    "a constexpr function that calls the host": Construct(
        "extern void fail(const char* words, ...);\n#define FAIL(...) fail(\"no: %d\", __VA_ARGS__)\n"
        "constexpr int positive(int n) { if (n < 0) { FAIL(n); } return n; }\n"
        f"__global__ void k{LIST} {{ {AT} constexpr int TWO = positive(2); if (i < n) y[i] = TWO * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("positive(2)", "positive(3)"),
    ),
    "the compiler's version": Construct(
        "#if CUDART_VERSION >= 12000 && __CUDACC_VER_MAJOR__ >= 12 && defined(__CUDACC_VER_MINOR__) && defined(__CUDA_ARCH_LIST__)\n"
        f"#define FACTOR 2\n#else\n#define FACTOR 3\n#endif\n__global__ void k{LIST} {{ {AT} if (i < n) y[i] = FACTOR * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("FACTOR 2", "FACTOR 4"),
    ),
    "dynamic shared memory of two dimensions": Construct(
        f"constexpr int SKEW = 3;\n__global__ void k{LIST} {{ {AT} extern __shared__ float s[][2 * SKEW]; "
        "if (i < n) s[threadIdx.x][SKEW] = x[i]; __syncthreads(); if (i < n) y[i] = s[threadIdx.x][SKEW] + 1; }",
        "k",
        lambda x: x + 1,
        ("y[i] = s[threadIdx.x][SKEW]", "y[i] = s[0][SKEW]"),
        given={"shared": 24 * 256},
    ),
    "minima and maxima of integers": Construct(
        f"__global__ void k{LIST} {{ {AT} const unsigned low = umin(umax(i, 5), 9u); "
        "const long long wide = llmin(llmax(low, -1), 8); if (i < n) y[i] = x[i] + ullmax(wide, ullmin(7, 6)); }",
        "k",
        lambda x: x + torch.arange(len(x), device=x.device).clamp(6, 8),
        ("umax(i, 5)", "umax(i, 20)"),
    ),
    "a comment that begins with an expression in parentheses": Construct(
        f"__global__ void k(const float* x,  // (h*w+1)*n\n float* y,  // (n)\n int n) {{ {AT} if (i < n) y[i] = 2 * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("2 *", "3 *"),
    ),
    "host code around the kernel": Construct(
        "#include <iostream>\n#include <vector>\n#include <torch/extension.h>\nusing namespace std;\n"
        "#define CHECK(x) do { if ((x) != cudaSuccess) { cerr << \"no\"; exit(1); } } while (0)\n"
        "const float FACTOR = 2;\nstatic int calls = 0;\nstd::vector<float> kept;\n"
        "struct Pair { float a; Pair(float v) : a(v) {} float half() const { return a / 2; } __device__ float twice() const { return 2 * a; } };\n"
        "float on_host(float v) { return v; }\ntemplate <typename T> void launch(T* x, int n);\n"
        f"template <typename T> __global__ void k{TYPED} {{ {AT} if (i < n) y[i] = FACTOR * x[i] + 1; }}\n"
        "template <typename T> void launch(T* x, int n) { vector<T> v(n); k<T><<<1, 32>>>(x, x, n); CHECK(cudaGetLastError()); ++calls; }\n"
        "template void launch<float>(float*, int);\n"
        "int main(int argc, char** argv) { cout << on_host(1) << endl; return 0; }",
        "k<float>",
        lambda x: 2 * x + 1,
        ("x[i] + 1", "x[i] + 2"),
    ),
    "one of several functions of a name": Construct(
        f"__global__ void k(const double* x, double* y, int n) {{}}\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = 2 * x[i]; }}\n"
        "template <typename T> __global__ void k(T* x) {}",
        "k(const float*, float*, int)",
        lambda x: 2 * x,
        ("2 * x", "3 * x"),
    ),
    "one of several templates of a name": Construct(
        "namespace a { template <typename T, int N> __global__ void k(const T* x, T* y) {}\n"
        f"template <typename T, int N> __global__ void k{TYPED} {{ {AT} if (i < n) y[i] = N * x[i]; }} }}",
        "a::k<float, 2>(const T* x, T* y, int n)",
        lambda x: 2 * x,
        ("N * x", "x"),
    ),
    "references and a parameter without a name": Construct(
        f"#include <type_traits>\n__global__ void k(const float* x, float* y, const int& n, std::true_type, int) {{ {AT} "
        "if (i < n) y[i] = x[i] + n; }",
        "k",
        lambda x: x + len(x),
        ("x[i] + n", "x[i] - n"),
        more=(0, 3),
        given={"geometry": 512},
    ),
    "structs and unions by templates": Construct(
        "namespace a { constexpr int SIZE = 1 + 1; template <typename T, int N> struct Pair {\n"
        " enum Kind { A, B }; T by; Kind kind; short more[N * SIZE]; };\n"
        "union Both { float f; unsigned u; };\n"
        f"template <typename T> __global__ void k(const T* x /* (n) */, T* y /* (n) */, int n,\n Pair<T, 2> s, Both b) {{ {AT} "
        "if (i < n) y[i] = x[i] * s.by + s.more[3] + b.f; } }",
        "k<float>",
        lambda x: 3 * x + 9,
        ("s.more[3]", "s.more[2]"),
        more=((3, 1, (5, 6, 7, 8)), b"\0\0\x80\x3f"),
    ),
    "names of PyTorch's headers": Construct(
        "#include <torch/extension.h>\n#include <ATen/cuda/CUDAContext.h>\n#include <c10/macros/Macros.h>\n"
        "C10_HOST_DEVICE inline float once(c10::Half v) { return v; }\n"
        f"template <typename T> C10_LAUNCH_BOUNDS_1(256) __global__ void k{TYPED} {{ "
        "using acc = at::acc_type<T, true>; CUDA_KERNEL_LOOP(i, n) {\n"
        " acc v = at::numeric_limits<acc>::lowest() < x[i] ? x[i] : 0; y[i] = v + once(c10::Half(2.f)) "
        "- at::ceil_div(7, 4); } }\n"
        "torch::Tensor run(torch::Tensor x) {\n AT_DISPATCH_ALL(x, 0, [&] { k<scalar_t><<<1, 256>>>(0, 0, 1); });\n"
        " return x; }\n"
        "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def(0, &run); }\n",
        "k<float>",
        lambda x: x,
        ("ceil_div(7, 4)", "ceil_div(9, 4)"),
    ),
    "device code for the host's libraries that no kernel calls": Construct(
        "#include <thrust/device_vector.h>\n#include <thrust/for_each.h>\n"
        "struct Twice { thrust::pair<float, float> p; __device__ float operator()(thrust::tuple<float> t) { return 2 * thrust::get<0>(t); } };\n"
        f"__device__ float twice(float v) {{ return 2 * v; }}\n__global__ void k{LIST} {{ {AT} if (i < n) y[i] = twice(x[i]); }}\n"
        "void run(thrust::device_vector<float>& v) { thrust::for_each(v.begin(), v.end(), Twice()); }",
        "k",
        lambda x: 2 * x,
        ("return 2 * v", "return 3 * v"),
    ),
    "braces and lines as g++ reads them": Construct(
        'extern "C"__global__ void k' + f"{LIST} {{ {AT} if (i < n) y[i] = TWICE(x[i]); }}\n".replace("TWICE", "std::fabsf(-2.f) * ")
        + "#define NEVER(x) \\  \n    nothing(x)\n"
        "int main(int n) {\n#if CUDA_VERSION >= 13000\n    if (n > 1) {\n#else\n    if (n > 2) {\n#endif\n        return 1; }\n return 0; }\n",
        "k",
        lambda x: 2 * x,
        ("-2.f", "-3.f"),
    ),
    "macros of the compiler and of the system": Construct(
        f"#if !defined(__linux__) && !defined(_WIN32)\n#error system\n#endif\n#if CUDA_VERSION < 9000\n#error version\n#endif\n"
        f"#ifdef CUDA_VERSION\n#define FACTOR 2\n#else\n#define FACTOR 3\n#endif\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = FACTOR * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("FACTOR 2", "FACTOR 4"),
    ),
    **OF_PROJECTS,
    **OF_LIBRARIES,
    **OF_EXTENSIONS,
    **OF_CPP,
    **OF_HEADERS,
    **OF_FILES,
    **OF_STRUCTS,
    **OF_PYTORCH,
    **OF_SAMPLES,
    **OF_FRAMEWORKS,
}  # fmt: skip


def moved(value: Any, device: str) -> Any:
    """An argument with its tensors, also those in tuples, on a device."""
    if isinstance(value, tuple):
        return tuple(moved(part, device) for part in value)
    return value.to(device) if isinstance(value, torch.Tensor) else value


def run(construct: Construct, text: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's result and the expected one."""
    torch.manual_seed(0)
    x = torch.randn(300, dtype=torch.float64).to(construct.dtype).to(device)
    y = torch.zeros_like(x)
    a, b = x.view(construct.shape), y.view(construct.shape)
    kernel = Kernel(text, construct.name, **{"geometry": Threads("n"), **construct.given})
    by_reference = kernel.signature.parameters[2].pointer
    n = torch.tensor([len(a)], dtype=torch.int32, device=device) if by_reference else len(a)
    with cupyops.simulate(sanitize=True) if device == "cpu" else nullcontext():
        (kernel[1] if by_reference else kernel)(a, b, n, *moved(construct.more, device))
    return y, construct.result(x)


@pytest.mark.sample(40)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_construct_has_the_same_values_in_both_lanes(name: str, device: str) -> None:
    construct = CONSTRUCTS[name]
    torch.testing.assert_close(
        *run(construct, construct.text, device), atol=1e-3 if construct.dtype == torch.float16 else 1e-6, rtol=0
    )


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_fault_in_a_construct_is_noticed(name: str) -> None:
    construct = CONSTRUCTS[name]
    old, new = construct.fault
    assert construct.text.count(old) == 1
    y, expected = run(construct, construct.text.replace(old, new), "cpu")
    assert not torch.allclose(y, expected, atol=1e-2)


@pytest.mark.thorough
def test_nvrtc_compiles_every_construct() -> None:
    """The constructs of the simulator also compile for GPUs, half of them for either architecture."""
    pytest.importorskip("cupy")
    from cupyops.compile.compiler import OPTIONS, compile_text, warnings_in

    for number, (name, construct) in enumerate(CONSTRUCTS.items()):
        architecture = (80, 90)[number % 2]
        kernel = Kernel(construct.text, construct.name, **{"geometry": Threads("n"), **construct.given})
        types = dict.fromkeys(kernel.signature.bindings, str(construct.dtype).removeprefix("torch."))
        options = (*OPTIONS, *kernel.options)
        binary = compile_text(kernel.final_text(types), name, f"sm_{architecture}", options)
        assert binary.named(kernel.name) in binary.resources, name
        assert warnings_in(binary.log) == [], name
