"""Forms of public kernels that the simulator once ran with other values, or took for faults."""

import ctypes
import subprocess
import sys

import numpy as np
import pytest

import cupyops
from cupyops import Kernel, LaunchError, Threads

pytestmark = pytest.mark.simulator


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
            with pytest.raises(LaunchError, match="not a multiple of 32 bytes"):
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
