"""Forms of public kernels that the simulator once refused, or ran with other values."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, LaunchError, Module, Threads
from cupyops.compile.compiler import OPTIONS, compile_text

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


REDUCE = """
__global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    const int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (t < 32) {
        volatile float* v = s;
        for (int step = 32; step; step /= 2) { const float other = v[t + step]; SYNC v[t] += other; SYNC }
    }
    if (t == 0) y[0] = s[0];
}"""


def test_a_warp_reduction_that_counts_on_lanes_in_step_is_no_race() -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(1, np.float32)
    with cupyops.simulate(sanitize=True):
        with pytest.raises(
            LaunchError, match="a race in shared memory: writes element 1 of `s`.* which thread .0, 0, 0. read"
        ):
            Kernel(REDUCE.replace("SYNC", ""), "k", 64)[64](x, y)
        Kernel(REDUCE.replace("SYNC", "__syncwarp();"), "k", 64)[64](x, y)
    assert y[0] == 2016


def test_a_volatile_flag_between_lanes_of_a_warp_is_a_race() -> None:
    text = """
__global__ void k(int* y) {
    __shared__ volatile int flag, value;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == 1) { value = 7; __threadfence_block(); flag = 1; }
    else { while (!flag) {} __threadfence_block(); y[threadIdx.x] = value; }
}"""
    y = np.zeros(32, np.int32)
    with cupyops.simulate(sanitize=True):
        Kernel(text, "k", 32)[32](y)
    assert y.tolist() == [7, 0, *[7] * 30]


@pytest.mark.parametrize(
    ("kind", "make"), [("__half2", "__floats2half2_rn"), ("__nv_bfloat162", "__floats2bfloat162_rn")]
)
def test_an_atomic_operation_on_a_pair_is_a_race(kind: str, make: str) -> None:
    text = f"""#include <cuda_fp16.h>
#include <cuda_bf16.h>
__global__ void k({kind}* y, unsigned short* lock) {{
    atomicAdd(y, {make}(1.0f, 2.0f));
    if (threadIdx.x == 3) while (atomicCAS(lock, (unsigned short)0, (unsigned short)9) == 0) {{}}
}}"""
    import torch

    y = torch.zeros(1, 2, dtype=torch.float16 if kind == "__half2" else torch.bfloat16)
    lock = torch.zeros(1, dtype=torch.uint16)
    with cupyops.simulate(sanitize=True):
        Kernel(text, "k", 64)[64](y, lock)
    assert y.tolist() == [[64.0, 128.0]]
    assert lock.view(torch.int16).item() == 9


@pytest.mark.parametrize("width", [2, 4])
def test_atomic_sums_of_vectors(width: int) -> None:
    ones = ", ".join(f"{i + 1}" for i in range(width))
    text = f"__global__ void k(float{width}* y) {{ atomicAdd(y, make_float{width}({ones})); }}"
    y = np.zeros((1, width), np.float32)
    with cupyops.simulate(sanitize=True):
        Kernel(text, "k", 32)[32](y)
    assert y.tolist() == [[32.0 * (i + 1) for i in range(width)]]


def test_a_product_with_decimal_numbers_and_without_some_results() -> None:
    """The sums of the rows of a matrix, as attention kernels compute them."""
    text = """__global__ void k(const unsigned* x, float* y) {
    float low = 1, high = 2;
    const unsigned one = 0x3c003c00;
    asm volatile("{mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, _, %1, _}, {%2, %3, %4, %5}, {%6, %6}, {%0, 0., %1, 0.0};}"
        : "+f"(low), "+f"(high) : "r"(x[threadIdx.x]), "r"(x[32 + threadIdx.x]), "r"(x[64 + threadIdx.x]), "r"(x[96 + threadIdx.x]), "r"(one));
    if (threadIdx.x % 4 == 0) y[threadIdx.x / 4] = low, y[8 + threadIdx.x / 4] = high;
}"""
    a = np.random.default_rng(0).integers(-3, 4, (16, 16)).astype(np.float16)
    parts = [a[r : r + 8, c : c + 8].reshape(32, 2) for c in (0, 8) for r in (0, 8)]
    x = np.ascontiguousarray(np.stack(parts)).view(np.uint32).reshape(128)
    y = np.zeros(16, np.float32)
    with cupyops.simulate(sanitize=True):
        Kernel(text, "k", 32)[32](x, y)
    np.testing.assert_array_equal(y, a.astype(np.float32).sum(1) + np.repeat([1, 2], 8))


@pytest.mark.parametrize("sanitize", [True, False])
def test_an_array_that_begins_at_an_odd_multiple_of_16_bytes_is_misaligned(sanitize: bool) -> None:
    """On a GPU, the same array begins at a multiple of 256 bytes."""
    text = """#include <mma.h>
__global__ void k(const __half* a, float* y) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, __half, row_major> fa;
    fragment<matrix_b, 16, 16, 16, __half, col_major> fb;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    load_matrix_sync(fa, a, 16), load_matrix_sync(fb, a, 16);
    mma_sync(sum, fa, fb, sum);
    store_matrix_sync(y, sum, 16, mem_row_major);
}"""
    memory = ctypes.create_string_buffer(4096)
    at = -ctypes.addressof(memory) % 32 + 16
    a = np.frombuffer(memory, np.float16, 256, at).reshape(16, 16)
    y = np.frombuffer(memory, np.float32, 256, at + 1024).reshape(16, 16)
    a[:] = np.random.default_rng(0).integers(-3, 4, (16, 16))
    with cupyops.simulate(sanitize=sanitize):
        Kernel(text, "k", 32)[32](a, y)
        np.testing.assert_array_equal(y, a.astype(np.float32) @ a.astype(np.float32).T)
        if sanitize:  # a view keeps its offset in the memory that it is a part of
            with pytest.raises(LaunchError, match="no multiple of 32 bytes"):
                Kernel(text, "k", 32)[32](np.zeros(512, np.float16)[8:264].reshape(16, 16), y)


@pytest.mark.parametrize(
    "form",
    [
        "sync.aligned.m8n8.x2.shared.b16",
        "sync.aligned.x2.m8n8.shared.b16",
        "sync.aligned.shared.m8n8.x2.b16",
        "sync.aligned.m8n8.x2.b16",
    ],
)
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_the_qualifiers_of_ldmatrix_have_one_order(form: str, trans: str) -> None:
    generic = "shared" not in form
    address = "s + t % 16 * 8" if generic else "(unsigned)__cvta_generic_to_shared(s + t % 16 * 8)"
    text = f"""
__global__ void k(unsigned* y) {{
    __shared__ __align__(16) unsigned short s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 32) s[i] = i;
    __syncthreads();
    unsigned a, b;
    asm volatile("ldmatrix.{form.replace(".x2", f".x2{trans}")} {{%0, %1}}, [%2];" : "=r"(a), "=r"(b) : "{"l" if generic else "r"}"({address}));
    y[2 * t] = a, y[2 * t + 1] = b;
}}"""
    y = np.zeros(64, np.uint32)
    with cupyops.simulate(sanitize=True):
        Kernel(text, "k", 32)[32](y)
    matrices = np.arange(128, dtype=np.uint16).reshape(2, 8, 8)
    wanted = (matrices.transpose(0, 2, 1) if trans else matrices).reshape(2, 32, 2)
    got = y.view(np.uint16).reshape(32, 2, 2).transpose(1, 0, 2)
    assert (got == wanted).all()


def test_a_kernel_of_textures_alone_is_not_simulated() -> None:
    from cupyops.simulator import SurfaceObject, TextureObject

    text = """__global__ void k(cudaTextureObject_t from, cudaSurfaceObject_t to, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) surf1Dwrite(tex1Dfetch<float>(from, i), to, 4 * i);
}"""
    source, target = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    with cupyops.simulate(sanitize=True):
        Kernel(text, "k", Threads("n"))(TextureObject(source), SurfaceObject(target), 8)
    assert target.tolist() == source.tolist()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("memmove(y, y + 1, 8);", "`memmove` is of the host's C library"),
        ('y[0] = strlen("abc");', "`strlen` is of the host's C library"),
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
        compile_text(kernel.final_text({}), "k", "sm_90", OPTIONS)


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
    compile_text(kernel.final_text({}), "k", "sm_90", OPTIONS)


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
    own = "#define EOF 3\n#define __FLT_MAX__ 4\n"  # definitions of the text stay, also behind a header of a library
    text = "\n".join(["#include <cmath>", *lines, own, "#include <cuda_fp16.h>", *lines[:4], *lines[-4:]])
    text += "\n__global__ void k(int* y) { y[0] = EOF + __FLT_MAX__ + int(__half2float(__float2half(1.f))); y[1] = __INT_MAX__ == 0x7fffffff; }"
    y = np.zeros(2, np.int32)
    for sanitize in (True, False):
        with cupyops.simulate(sanitize=sanitize):
            (kernel := Kernel(text, "k", 1))[1](y)
    assert y.tolist() == [8, 1]
    pytest.importorskip("cupy")
    compile_text(kernel.final_text({}), "k", "sm_90", OPTIONS)


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
        compile_text(kernel.final_text({}), "k", "sm_90", OPTIONS)


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
        compile_text(older.final_text({}), "k", "sm_90", ("-std=c++17", *OPTIONS))


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


@pytest.mark.parametrize("use", ["a[2] = 1;", "free(a); a[0] = 1;", "int* b = new int[n]; b[n] = 1; y[b[n - 1]] = 0;"])
def test_an_access_outside_the_memory_of_the_heap_is_found(use: str) -> None:
    text = (
        f"__global__ void k(float* y, int n) {{ int* a = (int*)malloc(2 * sizeof(int)); a[1] = 1; {use} y[0] = a[1]; }}"
    )
    with (
        cupyops.simulate(sanitize=True),
        pytest.raises(LaunchError, match="out of bounds: writes 4 bytes at memory that belongs"),
    ):
        Kernel(text, "k")[1](np.zeros(1, np.float32), 2)


def test_new_is_the_launchs_beside_a_cpp_library_that_all_libraries_share() -> None:
    """A package may load the C++ library for the whole process. The loader then offers its `operator new` first."""
    script = """
import ctypes, numpy, cupyops
ctypes.CDLL("libstdc++.so.6", mode=ctypes.RTLD_GLOBAL)
text = "__global__ void k(float* x, int n) { float* a = new float[2]; a[1] = 3; if (threadIdx.x == 0) x[0] = a[n]; delete[] a; }"
x = numpy.zeros(1, numpy.float32)
with cupyops.simulate(sanitize=True):
    cupyops.Kernel(text, "k")[32](x, 1)
print(x[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "3.0", done.stderr[-1000:]


def test_a_carry_between_statements_and_products_with_a_carry() -> None:
    text = """
__device__ void plus(unsigned& low, unsigned& high, unsigned a, unsigned b) {
    asm volatile("add.cc.u32 %0, %0, %1;" : "+r"(low) : "r"(a));
    asm volatile("addc.u32 %0, %0, %1;" : "+r"(high) : "r"(b));
}
__global__ void k(const unsigned* x, unsigned* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned low = x[i], high = 1, product, top;
    plus(low, high, 0x80000000u, 2);
    asm volatile("mad.lo.cc.u32 %0, %1, %2, %3;" : "=r"(product) : "r"(x[i]), "r"(0x10001u), "r"(0xffffffffu));
    asm volatile("madc.hi.u32 %0, %1, %2, %3;" : "=r"(top) : "r"(x[i]), "r"(0x10001u), "r"(5u));
    y[4 * i] = low; y[4 * i + 1] = high; y[4 * i + 2] = product; y[4 * i + 3] = top;
}"""
    x = np.random.default_rng(0).integers(0, 1 << 32, 70, np.uint32)
    for sanitize in (False, True):
        y = np.zeros((70, 4), np.uint32)
        with cupyops.simulate(sanitize=sanitize):
            Kernel(text, "k", 32)[70](x, y, 70)
        wide = x.astype(object)
        sums = [int(v) + 0x80000000 + (3 << 32) for v in wide]
        products = [int(v) * 0x10001 + 0xFFFFFFFF + (5 << 32) for v in wide]
        for column, values in enumerate((sums, sums, products, products)):
            assert y[:, column].tolist() == [v >> 32 * (column % 2) & 0xFFFFFFFF for v in values]


def test_each_thread_of_blocks_that_run_at_once_has_a_carry_of_its_own() -> None:
    text = """
#include <cooperative_groups.h>
__global__ void k(unsigned* y) {
    unsigned low = blockIdx.x < 10 ? 0xffffffffu : 0, high = 0;
    asm volatile("add.cc.u32 %0, %0, 1;" : "+r"(low));
    cooperative_groups::this_grid().sync();
    asm volatile("addc.u32 %0, %0, 0;" : "+r"(high));
    if (threadIdx.x == 0) y[blockIdx.x] = high;
}"""
    y = np.zeros(20, np.uint32)
    with cupyops.simulate():
        Kernel(text, "k", 32, cooperative=True)[20 * 32](y)
    assert y.tolist() == [1] * 10 + [0] * 10


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


def test_the_bits_of_numbers_in_their_order_by_cub() -> None:
    text = """
#include <cub/cub.cuh>
template <typename T> __device__ unsigned in(T key) {
    return cub::Traits<T>::TwiddleIn(reinterpret_cast<typename cub::Traits<T>::UnsignedBits&>(key));
}
__global__ void k(const float* x, unsigned* y, float* back, int n) {
    for (int i = 0; i < n; ++i) {
        y[i] = in(x[i]);
        back[i] = __uint_as_float(cub::Traits<float>::TwiddleOut(y[i]));
    }
    y[n] = in(-1) < in(0) && in(0) < in(1) && in(1u) < in(0x80000000u);
}"""
    x = np.array([-3, -0.5, 0, 2, 7], np.float32)
    y, back = np.zeros(6, np.uint32), np.zeros(5, np.float32)
    with cupyops.simulate():
        Kernel(text, "k", 1)[1](x, y, back, 5)
    assert (np.diff(y[:5].astype(np.int64)) > 0).all()
    assert y[5] == 1
    assert (back == x).all()


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
    y[0] = ONE; y[1] = limits<at::Half>::lowest(); z[0] = at::one();
    w[0] = which(::at::Half(0x3C00, ::at::Half::from_bits())); w[1] = __LINE__;
}"""
    torch = pytest.importorskip("torch")
    kernel = Kernel(text, "k", 1)
    y, z = torch.zeros(2, dtype=torch.float16), torch.zeros(1, dtype=torch.bfloat16)
    w = torch.zeros(2, dtype=torch.int32)
    with cupyops.simulate():
        kernel[1](y, z, w)
    assert [*y.tolist(), *z.tolist(), *w.tolist()] == [1, -65504, 1, 1, 13]
    pytest.importorskip("cupy")
    compile_text(kernel.final_text({}), "k", "sm_90", OPTIONS)
