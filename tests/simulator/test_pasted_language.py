"""The C++ of NVRTC in the simulator: names, macros and extensions, and the code that both refuse."""

import re
from pathlib import Path

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, LaunchError, Module
from cupyops.compile.compiler import binary_for

pytestmark = pytest.mark.simulator


def test_a_header_of_the_text_with_a_name_of_the_simulators_hides_it() -> None:
    names = ("ptx.h", "simd.h", "device.h", "attributes.h", "textures.h")
    headers = {
        name: f"#pragma once\n__device__ unsigned from_{i}() {{ return {10**i}; }}\n" for i, name in enumerate(names)
    }
    text = "".join(f'#include "{name}"\n' for name in names) + (
        '__global__ void __launch_bounds__(32) k(unsigned* y) { unsigned r; asm("popc.b32 %0, %1;" : "=r"(r) : "r"(7u)); '
        f"y[0] = __vadd4(r, 1) + {' + '.join(f'from_{i}()' for i in range(len(names)))}; }}"
    )
    y = np.zeros(1, np.uint32)
    with cupyops.simulate():
        Kernel(text, "k", 1, headers=headers)[1](y)
    assert y[0] == 4 + 11111


def test_dynamic_shared_memory_that_a_macro_declares_does_not_compile() -> None:
    text = r"""
#define STORE(T, NAME)                \
    struct Store_##T {                \
        __device__ static T* get() {  \
            extern __shared__ T NAME[]; \
            return NAME;              \
        }                             \
    }
STORE(float, s_float);
STORE(int, s_int);
__global__ void k(float* y) {
    float* s = Store_float::get();
    s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = s[31 - threadIdx.x] + (Store_int::get() == (int*)s);
}"""
    y = np.zeros(32, np.float32)
    with cupyops.simulate(sanitize=True):
        Kernel(text, "k", 32, shared=128)[32](y)
    assert y.tolist() == [32.0 - i for i in range(32)]


def test_names_that_nvrtc_leaves_to_the_text_or_knows_without_a_header_do_not_compile() -> None:
    text = """
__device__ unsigned long long __globaltimer() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
__global__ void k(int* y) { y[0] = __globaltimer() > 0 && sizeof(Volume::size) == 24; }
"""
    volume = "struct Volume { cudaArray* content; cudaExtent size; cudaChannelFormatDesc format; cudaTextureReadMode mode; };\n"
    text = '#include "volume.h"\n' + text
    y = np.zeros(1, np.int32)
    with cupyops.simulate():
        Kernel(text, "k", 1, headers={"volume.h": volume})[1](y)
    assert y[0] == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("memmove(y, y + 1, 8);", "memmove"),
        ('y[0] = strlen("abc");', "strlen"),
        ("y[0] = ::rand();", 'global scope has no "rand"'),
        ("switch (*y) { case 1 ... 3: y[0] = 1; }", 'error: expected a ":"'),
        ("y[0] = y[1] ?: 2;", "error: expected an expression"),
        ("y[0] = ({ int z = y[1]; z + 1; });", "error: expected an expression"),
        ("__typeof__(y) z = y; z[0] = 1;", 'identifier "__typeof__" is undefined'),
        ("y[0] = __builtin_parity(3);", 'identifier "__builtin_parity" is undefined'),
        ("atomicAdd((long long*)y, 1);", "CUDA has no atomicAdd of signed 64-bit integers"),
        ("atomicSub((unsigned long long*)y, 1ull);", "CUDA has atomicSub of int and unsigned alone"),
    ],
)
def test_what_nvrtc_refuses_is_refused_by_name_and_line(code: str, words: str) -> None:
    text = f"__global__ void k(int* y) {{\n    {code}\n}}"
    kernel = Kernel(text, "k", 1)
    with cupyops.simulate(), pytest.raises(CompileError, match=r"k\.cu:2\b") as caught:
        kernel[1](np.zeros(8, np.int32))
    assert words in str(caught.value)
    pytest.importorskip("cupy")
    with pytest.raises(CompileError, match=r"k\.cu:2\b.*error"):
        binary_for(kernel.final_text({}), "k", "sm_90")


def test_a_text_that_asks_for_a_feature_of_the_compiler_gets_nvrtcs_answer() -> None:
    path = Path(cupyops.__file__).with_name("simulator") / "cuda" / "compiler_features.h"
    present = re.findall(r"CUPYOPS_FEATURE_(\w+) 1$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert {"cxx_lambdas", "cxx_constexpr"} <= set(present)
    absent = "address_sanitizer", "thread_sanitizer", "memory_sanitizer", "cxx_atomic", "objc_arc", "blocks", "tls"
    lines = [
        f"#if {word}({name}) != {int(name in present)}\n#error {name}\n#endif"
        for word in ("__has_feature", "__has_extension")
        for name in (*present, *absent)
    ]
    text = "\n".join([*lines, "#include <cmath>", *lines, "__global__ void k(int* y) { y[0] = 1; }"])
    y = np.zeros(1, np.int32)
    with cupyops.simulate():
        (kernel := Kernel(text, "k", 1))[1](y)
    assert y[0] == 1
    pytest.importorskip("cupy")
    binary_for(kernel.final_text({}), "k", "sm_90")


def test_a_text_sees_the_macros_of_nvrtc_alone() -> None:
    absent = (
        *(
            "__GNUG__",
            "__GNUC_MINOR__",
            "__clang__",
            "__x86_64__",
            "__aarch64__",
            "__unix__",
            "__linux",
            "__ELF__",
            "__OPTIMIZE__",
        ),
        *(
            "__SIZEOF_INT128__",
            "__BYTE_ORDER__",
            "__VERSION__",
            "__COUNTER__",
            "__GLIBC__",
            "_GNU_SOURCE",
            "__PIC__",
        ),
        *(
            "__SANITIZE_THREAD__",
            "__STRICT_ANSI__",
            "__GXX_RTTI",
            "EOF",
            "BUFSIZ",
            "UINT64_C",
            "EXIT_FAILURE",
            "RAND_MAX",
            "stdout",
        ),
    )
    present = (
        *(
            "__EDG__",
            "__EXCEPTIONS",
            "__cpp_exceptions",
            "__cpp_rtti",
            "__cpp_if_constexpr",
            "__LP64__",
            "__STDC__",
            "__CUDACC_RTC__",
        ),
        *("__CUDART_API_VERSION", "__CUDACC_VER_BUILD__", "__CUDA_PREC_DIV", "__linux__"),
    )
    lines = [f"#ifdef {name}\n#error {name}\n#endif" for name in absent]
    lines += [f"#ifndef {name}\n#error {name}\n#endif" for name in present]
    lines += ["#if __GNUC__ != 13 || __EDG__ != 1 || __USE_FAST_MATH__\n#error values\n#endif"]
    own = "#define EOF 3\n#define __FLT_MAX__ 4\n"  # definitions of the text stay, also after a header of a library
    text = "\n".join(["#include <cmath>", *lines, own, "#include <cuda_fp16.h>", *lines[:4], *lines[-4:]])
    text += "\n__global__ void k(int* y) { y[0] = EOF + __FLT_MAX__ + int(__half2float(__float2half(1.f))); y[1] = __INT_MAX__ == 0x7fffffff; }"
    y = np.zeros(2, np.int32)
    for sanitize in (True, False):
        with cupyops.simulate(sanitize=sanitize):
            (kernel := Kernel(text, "k", 1))[1](y)
    assert y.tolist() == [8, 1]
    pytest.importorskip("cupy")
    binary_for(kernel.final_text({}), "k", "sm_90")


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    "code",
    [
        "int a[n]; a[0] = n; y[0] = a[0];",
        "int a[0]; y[0] = sizeof(a);",
        "struct S { int n; int a[]; }; y[0] = sizeof(S);",
        "int a[3] = {[1] = 5}; y[0] = a[1];",
        "void* p = &&end; goto *p; end: y[0] = 1;",
        "S s = (S){1, 2}; y[0] = s.b;",
        "static thread_local int v; v = 1; y[0] = v;",
        "_Complex float z = 1; y[0] = 1;",
        "_Float16 z = 1; y[0] = z;",
        "__float128 z = 1; y[0] = z;",
        "y[0] = sizeof(void);",
        "int a$b = n; y[0] = a$b;",
        "try { y[0] = 1; } catch (...) {}",
        "y[0] = *(int*)alloca(4);",
        'char b[9]; sprintf(b, "%d", n); y[0] = b[0];',
        'y[0] = fopen("/dev/null", "w") != 0;',
        "y[0] = EXIT_FAILURE;",
        "y[0] = RAND_MAX;",
        "y[0] = __COUNTER__;",
        "y[0] = __GNUC__;",
        "void* p = y; p = p + 4; *(int*)p = 1;",
        "y[0] = FP_NAN;",
        "y[0] = fpclassify(1.0f);",
        "y[0] = isunordered(1.0f, 2.0f);",
        "y[0] = (int)sqrtl(2.0L);",
        "int sign; y[0] = (int)lgamma_r(1.0, &sign);",
        "y[0] = (int)::drem(1.0, 2.0);",
        "__sync_fetch_and_add(y, 1);",
    ],
)
def test_an_extension_of_the_hosts_compiler_is_refused_as_by_nvrtc(code: str) -> None:
    text = f"struct S {{ int a, b; }};\n\n__global__ void k(int* y, int n) {{\n    {code}\n}}"
    kernel = Kernel(text, "k", 1)
    with cupyops.simulate(), pytest.raises(CompileError, match=r"k\.cu:4\b|text_only"):
        kernel[1](np.zeros(8, np.int32), 1)
    pytest.importorskip("cupy")
    with pytest.raises(CompileError, match=r"k\.cu:4\b.*error"):
        binary_for(kernel.final_text({}), "k", "sm_90")


def test_an_initializer_that_names_a_member_is_refused_in_cpp17_alone() -> None:
    text = "__global__ void k(int* y) {\n    struct { int a, b; } s = {.a = 1, .b = 2}; y[0] = s.b;\n}"
    y, older = np.zeros(8, np.int32), Kernel(text, "k", 1, options=("-std=c++17",))
    with cupyops.simulate():
        Kernel(text, "k", 1)[1](y)  # C++20, as nothing chooses another version
        with pytest.raises(CompileError, match=r"k\.cu:2\b.*-std=c\+\+20"):
            older[1](y)
    assert y[0] == 2
    pytest.importorskip("cupy")
    with pytest.raises(CompileError, match=r"k\.cu:2\b.*error"):
        binary_for(older.final_text({}), "k", "sm_90", older.options)


def test_functions_and_variables_with_names_of_the_c_library_are_the_texts_own() -> None:
    text = """
struct Op { __device__ int strlen(int v) const { return v; } };
__device__ int memcmp(int a, int b) { return a - b; }
template <typename F> __global__ void k(int* y, F div) { Op op; y[0] = memcmp(7, 3) + op.strlen(2) + div(8); }
struct Half { __device__ int operator()(int v) const { return v / 2; } };"""
    y = np.zeros(1, np.int32)
    with cupyops.simulate():
        Kernel(text, "k<Half>", 1)[1](y, ())
        with pytest.raises(TypeError, match="div"):
            Kernel(text, "k<Half>", 1)[1](y, (1,))
    assert y[0] == 4 + 2 + 4


def test_functions_of_16_bit_floats_that_the_text_defines_too() -> None:
    text = """
#include <cuda_fp16.h>
#define OF_FLOAT(NAME, F) static inline __device__ half NAME(half v) { return __float2half(F(__half2float(v)) + 1.0f); }
OF_FLOAT(htanh, tanhf)
OF_FLOAT(hexp, expf)
__global__ void k(half* x) { x[0] = htanh(x[0]); x[1] = hexp(x[1]); x[2] = hsqrt(x[2]); }"""
    x = np.array([0, 0, 4], np.float16)
    with cupyops.simulate():
        Kernel(text, "k", 1)[1](x)
    assert x.tolist() == [1, 2, 2]


def test_assignments_of_braces_to_pairs_of_16_bit_floats() -> None:
    text = """
#include <cuda_fp16.h>
struct Plain { int a, b; };
__global__ void k(half2* y, int n) {
    Plain p;
    p = {3, 4};
    y[n - 1] = {__float2half(1.0f), __int2half_rn(2)};
    half2 v;
    v = {__float2half(5.0f), __float2half(p.b)};
    y[n] = v;
    v = y[0];
    if (n == 1) { y[n + 1] = {v.y, v.x}; }
}"""
    y = np.zeros((3, 2), np.float16)
    with cupyops.simulate():
        Kernel(text, "k", 1)[1](y, 1)
    assert y.tolist() == [[1, 2], [5, 4], [2, 1]]


def test_a_kernel_of_a_namespace_that_is_defined_outside_of_it() -> None:
    text = """
namespace outer { namespace sort {
__global__ void __launch_bounds__(32) k(int* y, int n);
} }
__global__ void __launch_bounds__(32) outer::sort::k(int* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 7; }"""
    y = np.zeros(3, np.int32)
    with cupyops.simulate():
        Kernel(text, "outer::sort::k", 32)[3](y, 3)
    assert y.tolist() == [7, 7, 7]


def test_a_choice_between_two_literals_compiles() -> None:
    text = '__global__ void k(int* y) { const char* word = y[0] ? "yes" : "no"; y[0] = word[0]; }'
    y = np.ones(1, np.int32)
    with cupyops.simulate():
        Kernel(text, "k", 1)[1](y)
    assert y[0] == ord("y")


@pytest.mark.parametrize(
    "other",
    [
        "__device__ int k(int a) { return a; }",
        "__device__ int k(int a);\n__device__ int k(int a) { return a; }",
        "constexpr int k(int a) { return a; } constexpr int (*of)(int) = &k; static_assert(k(3) == 3);",
        "__device__ int k(int a) { return a; }\ntemplate <int (*f)(int) = &k> __device__ int called() { return f(7); }",
    ],
)
@pytest.mark.parametrize("linkage", ["", 'extern "C" '])
def test_a_kernel_beside_another_function_of_its_name(other: str, linkage: str) -> None:
    y = np.zeros(1, np.int32)
    with cupyops.simulate():
        Kernel(f"{other}\n{linkage}__global__ void k(int* y) {{ y[0] = k(7); }}", "k", 1)[1](y)
    assert y[0] == 7


def test_two_kernels_of_a_module_beside_other_functions_of_their_names() -> None:
    text = """
__device__ int total;
__device__ int add(int a) { return a; }
__device__ int get(int a) { return a + 1; }
extern "C" __global__ void add(int* y) { total += add(y[0]); }
extern "C" __global__ void get(int* y) { y[0] = get(total); }"""
    module = Module(text)
    y = np.array([6], np.int32)
    with cupyops.simulate():
        module.kernel("add", 1)[1](y)
        module.kernel("get", 1)[1](y)
    assert y[0] == 7


@pytest.mark.parametrize(
    "head",
    [
        '#define HEAD extern "C" __global__ void',
        '#ifdef ELSEWHERE\n#else\n#define HEAD extern "C" __global__ void\n#endif',
        '#define LINKAGE extern "C"\n#define HEAD LINKAGE __global__ void __launch_bounds__(32)',
        "#define HEAD static __attribute__((noinline)) __global__ void __maxnreg__(32)",
        "#define HEAD __global__ void __launch_bounds__(32, 2)",
    ],
)
def test_a_kernel_whose_head_is_a_macro(head: str) -> None:
    text = f"{head}\nHEAD k(int* y, int n) {{ if (threadIdx.x < n) y[threadIdx.x] = 7; }}"
    y = np.zeros(3, np.int32)
    with cupyops.simulate():
        Kernel(text, "k", 32)[3](y, 3)
        assert y.tolist() == [7, 7, 7]
        if "launch_bounds" in head:
            with pytest.raises(LaunchError, match="__launch_bounds__ allow 32 threads a block"):
                Kernel(text, "k", 64)[3](y, 3)


@pytest.mark.parametrize("end", ["// \\", "\n// at the end \\  ", "\n#define LAST 1 \\\n"])
def test_a_text_whose_last_line_is_continued(end: str) -> None:
    y = np.zeros(1, np.int32)
    with cupyops.simulate():
        Kernel(f"__global__ void k(int* y) {{ y[0] = 7; }} {end}", "k", 1)[1](y)
    assert y[0] == 7


@pytest.mark.parametrize("kind", ["at::Half", "at::BFloat16"])
def test_the_bounds_of_a_16_bit_float_are_not_zero(kind: str) -> None:
    torch = pytest.importorskip("torch")
    names = ("max", "min", "lowest", "epsilon", "infinity", "denorm_min")
    values = "".join(f"y[{i}] = std::numeric_limits<T>::{name}();" for i, name in enumerate(names))
    text = f"#include <torch/extension.h>\ntemplate <typename T> __global__ void k(T* y) {{ {values} }}"
    dtype = torch.float16 if kind == "at::Half" else torch.bfloat16
    y, info = torch.zeros(6, dtype=dtype), torch.finfo(dtype)
    with cupyops.simulate():
        Kernel(text, f"k<{kind}>")[1](y)
    least = torch.tensor([1], dtype=torch.int16).view(dtype).item()
    assert y.tolist() == [info.max, info.tiny, info.min, info.eps, float("inf"), least]


def test_a_16_bit_float_of_pytorch_is_made_of_its_bits() -> None:
    text = """#include <ATen/ATen.h>
#define ONE at::Half(0x3C00, at::Half::from_bits())
template <typename T> struct limits;
template <> struct limits<at::Half> {
    static inline __device__ at::Half lowest() { return at::Half(0xFBFF,
        c10::Half::from_bits()); }
};
namespace at { __device__ BFloat16 one() { return BFloat16((unsigned short)(0x3F80), BFloat16::from_bits()); } }
__device__ int which(at::Half) { return 1; }
__device__ int which(float) { return 2; }
__global__ void k(at::Half* y, at::BFloat16* z, int* w) {
    y[0] = ONE; y[1] = limits<at::Half>::lowest(); z[0] = at::one(); constexpr at::Half half(0x3800, at::Half::from_bits());
    at::Half two{0x4000, c10::Half::from_bits()}; y[2] = half; y[3] = two;
    w[0] = which(::at::Half(0x3C00, ::at::Half::from_bits())); w[1] = __LINE__;
}"""
    torch = pytest.importorskip("torch")
    kernel = Kernel(text, "k", 1)
    y, z = torch.zeros(4, dtype=torch.float16), torch.zeros(1, dtype=torch.bfloat16)
    w = torch.zeros(2, dtype=torch.int32)
    with cupyops.simulate():
        kernel[1](y, z, w)
    assert [*y.tolist(), *z.tolist(), *w.tolist()] == [1, -65504, 0.5, 2, 1, 1, 14]
    pytest.importorskip("cupy")
    binary_for(kernel.final_text({}), "k", "sm_90")
