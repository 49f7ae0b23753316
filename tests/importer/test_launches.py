"""Launches of translated host code, and the words of CUDA, in the simulator."""

import pytest
import torch

import cupyops
from cupyops.errors import LaunchError
from cupyops.importer import cublas, cuda, cuda_devices
from cupyops.importer.launches import Kernels
from cupyops.importer.memory import pointer_to
from cupyops.importer.numbers import NUMBERS
from cupyops.importer.references import Pointer, Variable
from cupyops.importer.words import _WORDS

float32, float16, int32 = (NUMBERS[n] for n in ("float32", "float16", "int32"))
dim3 = cuda.dim3

KERNELS = """
#include <cuda_fp16.h>
struct Line { float slope; int offset; float* out; };
extern "C" __global__ void scale(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
__global__ void quads(const float4* x, float4* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) { float4 v = x[i]; v.w = v.x; y[i] = v; }
}
__global__ void halves(const __half* x, __half* y) {
    y[threadIdx.x] = __float2half(2.f * __half2float(x[threadIdx.x]));
}
__global__ void biased(const float* x, const float* bias, float* y) {
    y[threadIdx.x] = x[threadIdx.x] + (bias ? bias[threadIdx.x] : 0.f);
}
__global__ void nothing(float* x) { if (x) *x = 1.f; }
__global__ void along(Line line, dim3 size, float2 add) {
    if (threadIdx.x < size.y) line.out[threadIdx.x] = line.slope * threadIdx.x + line.offset + add.y;
}
__global__ void untyped(void* p, bool flag, unsigned char byte) { if (flag) ((unsigned char*)p)[threadIdx.x] = byte; }
template <typename T, int N> __global__ void reversed(const T* x, T* y) {
    extern __shared__ float kept[];
    kept[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] = N * kept[blockDim.x - 1 - threadIdx.x];
}
"""
VARIABLES = """
__constant__ float W[4];
__device__ int counter;
__global__ void first(float* y) { y[threadIdx.x] = W[threadIdx.x]; atomicAdd(&counter, 1); }
__global__ void second(float* y) { y[threadIdx.x] = 10 * W[threadIdx.x]; atomicAdd(&counter, 1); }
template <int N> __global__ void third(float* y) { y[threadIdx.x] = N * W[threadIdx.x]; atomicAdd(&counter, N); }
"""


class Struct:
    def __init__(self, *values):
        self.values = values

    def as_argument(self):
        return self.values


def run(name, *arguments, grid=1, block=4, shared=0, kernels=None):
    found = kernels or KERNELS_OBJECT
    with cupyops.simulate():
        found[name][as_dim3(grid), as_dim3(block), shared, None](*arguments)


def as_dim3(value):
    return value if isinstance(value, dim3) else dim3(value)


def call(name, *arguments):
    with cupyops.simulate():
        return _WORDS[name].object(*arguments)


def reference(value, kind):
    return Pointer(Variable(value), 0, kind)


KERNELS_OBJECT = Kernels(KERNELS, "own.cu")


def pointers(*tensors, kind=float32):
    return [pointer_to(t, kind) for t in tensors]


def test_pointers_with_offsets_and_tensors_that_require_grad():
    x, y = torch.arange(8.0, requires_grad=True), torch.zeros(8, requires_grad=True)
    p, q = pointers(x, y)
    run("scale", p + 3, q + 2, 2.0, 5, grid=2)
    assert y.tolist() == [0, 0, 6, 8, 10, 12, 14, 0]
    y = torch.zeros(8)
    run("scale", pointer_to(torch.arange(9.0)[1:], float32), pointer_to(y[3:5], float32), 1.0, 3)
    assert y.tolist() == [0, 0, 0, 1, 2, 3, 0, 0]


def test_an_access_behind_the_memory_is_found():
    x, y = torch.zeros(8), torch.zeros(8)
    with pytest.raises(LaunchError, match=r"scale.*`y`"):
        run("scale", *pointers(x, y[4:]), 1.0, 6, grid=2)


def test_casts_to_vectors_and_halves():
    x, y = torch.arange(8.0), torch.zeros(8)
    p, q = pointers(x, y)
    run("quads", p.cast("float4"), q.cast("float4"), 2)
    assert y.tolist() == [0, 1, 2, 0, 4, 5, 6, 4]
    run("quads", p.cast("float4") + 1, q.cast("float4"), 1)
    assert y[:4].tolist() == [4, 5, 6, 4]
    with pytest.raises(ValueError, match=r"quads: `x` must begin at a multiple of 16 bytes"):
        run("quads", (p + 1).cast("float4"), q.cast("float4"), 1)
    x, y = torch.arange(6, dtype=torch.float16), torch.zeros(6, dtype=torch.float16)
    p, q = pointers(x[1:], y[1:], kind=float16)
    run("halves", p.cast("__half"), q.cast("__half"))
    assert y.tolist() == [0, 2, 4, 6, 8, 0]


def test_null_pointers():
    x, y = torch.ones(4), torch.zeros(4)
    run("biased", *pointers(x), None, *pointers(y))
    assert y.tolist() == [1, 1, 1, 1]
    run("biased", *pointers(x, x, y))
    assert y.tolist() == [2, 2, 2, 2]
    run("nothing", None)
    with cupyops.simulate():
        KERNELS_OBJECT["nothing"][dim3(1), dim3(1)](*pointers(y))
        KERNELS_OBJECT["nothing"][dim3(1), dim3(1), 8](*pointers(y))
    assert y[0] == 1
    with pytest.raises(LaunchError, match="biased"):
        run("biased", None, *pointers(x, y))


def test_structs_vectors_and_numbers_by_value():
    y = torch.zeros(4)
    float2 = _WORDS["make_float2"].object(0.0, 0.25)
    run("along", Struct(0.5, 3, pointer_to(y[1:], float32)), dim3(1, 3), float2)
    assert y.tolist() == [0, 3.25, 3.75, 4.25]
    run("along", Struct(0.5, 3, None), dim3(1, 0), float2)
    run("untyped", pointer_to(y, float32).cast(None) + 1, True, 63, block=3)
    assert y.view(torch.uint8)[:4].tolist() == [0, 63, 63, 63]


def test_host_memory_is_refused():
    with pytest.raises(ValueError, match=r"biased: `x` must be a pointer to device memory"):
        run("biased", Pointer([1.0], 0, float32), None, *pointers(torch.zeros(4)))


def test_templates_with_several_blocks_and_bytes_of_shared_memory():
    x = torch.arange(8.0)
    for name, block, factor, kind in (
        ("reversed<float, 2>", 4, 2, torch.float32),
        ("reversed<float, 2>", 2, 2, torch.float32),
        ("reversed<__half, 3>", 8, 3, torch.float16),
    ):
        y = torch.zeros(8, dtype=kind)
        number = float32 if kind == torch.float32 else float16
        run(name, *pointers(x.to(kind), y, kind=number), grid=8 // block, block=block, shared=4 * block)
        assert y.tolist() == (factor * x.view(-1, block).flip(1).flatten()).tolist(), name


def test_an_empty_grid_is_an_error_that_the_next_check_tells():
    y = torch.zeros(4)
    assert call("cudaGetLastError") == 0
    run("nothing", *pointers(y), grid=0)
    run("nothing", *pointers(y), block=dim3(4, 0))
    assert y[0] == 0
    assert call("cudaPeekAtLastError") == 9
    assert cuda_devices.error_string(call("cudaGetLastError")) == "invalid configuration argument"
    assert call("cudaGetLastError") == 0


def test_variables_are_shared_by_all_kernels():
    kernels, y = Kernels(VARIABLES, "variables.cu"), torch.zeros(4)
    host = [1.0, 2.0, 3.0, 4.0]
    assert call("cudaMemcpyToSymbol", kernels.variable("W"), Pointer(host, 0, float32).cast(None), 16) == 0
    run("first", *pointers(y), kernels=kernels)
    assert y.tolist() == host
    run("second", *pointers(y), kernels=kernels, block=2)
    assert y.tolist() == [10, 20, 3, 4]
    source = pointer_to(torch.tensor([7.0]), float32)
    call("cudaMemcpyToSymbol", kernels.variable("W"), source, 4, 8, 3)
    run("third<5>", *pointers(y), kernels=kernels)
    assert y.tolist() == [5, 10, 35, 20]
    found = reference(0, int32)
    call("cudaMemcpyFromSymbol", found.cast(None), kernels.variable("counter"), 4)
    assert found[0] == 4 + 2 + 20
    with pytest.raises(ValueError, match="16 bytes"):
        call("cudaMemcpyToSymbol", kernels.variable("W"), Pointer(host * 2, 0, float32), 32)
    with pytest.raises(KeyError, match="V"):
        call("cudaMemcpyToSymbol", kernels.variable("V"), Pointer(host, 0, float32), 4)
    with cupyops.simulate(sanitize=True):
        kernels["first"][dim3(1), dim3(4), 0, None](*pointers(y))
    assert y.tolist() == [1, 2, 7, 4]


def test_variables_of_a_text_with_templates_alone():
    text = "__constant__ int v; template <class T> __global__ void k(T* y) { y[threadIdx.x] = v; }"
    kernels, y = Kernels(text, "v.cu"), torch.zeros(2)
    call("cudaMemcpyToSymbolAsync", kernels.variable("v"), reference(5, int32), 4, 0, 1, None)
    run("k<float>", *pointers(y), kernels=kernels, block=2)
    assert y.tolist() == [5, 5]


def test_memory_of_the_runtime():
    place, y = reference(None, ("*", float32)), torch.zeros(4)
    assert call("cudaMalloc", None, place.cast(("*", None)), 16) == 0
    scratch = place[0]
    assert (scratch + 1).offset - scratch.offset == 4
    assert call("cudaMemsetAsync", scratch.cast(None), 0, 16, None) == 0
    run("biased", scratch, None, *pointers(y))
    assert y.tolist() == [0, 0, 0, 0]
    call("cudaMemcpy", scratch, Pointer([1.0, 2.0], 0, float32), 8, 1)
    run("biased", scratch, scratch, *pointers(y))
    assert y.tolist() == [2, 4, 0, 0]
    found = [0.0, 0.0]
    call("cudaMemcpyAsync", Pointer(found, 0, float32), scratch, 8, 2, None)
    assert found == [1, 2]
    assert call("cudaFree", scratch.cast(None)) == 0
    assert call("cudaFree", scratch) == 1
    assert call("cudaFree", None) == 0
    assert call("cudaGetLastError") == 1
    with pytest.raises(IndexError, match="`x`"):
        run("biased", scratch + 1, None, *pointers(y))


def test_properties_of_the_simulated_gpu():
    found = reference(cuda_devices.Properties(), None)
    assert call("cudaGetDeviceProperties", found, 0) == 0
    assert (found[0].multiProcessorCount, found[0].major, list(found[0].maxThreadsDim)) == (4, 9, [1024, 1024, 64])
    assert call("cudaGetDeviceProperties", found, 1) == 101
    assert call("cudaGetLastError") == 101
    number = reference(0, int32)
    call("cudaDeviceGetAttribute", number, _WORDS["cudaDevAttrMultiProcessorCount"].object, 0)
    assert number[0] == 4
    call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", number, KERNELS_OBJECT["scale"], 256, 0)
    assert number[0] == 8


def test_events_and_streams():
    stream, events = reference(None, None), [reference(None, None) for _ in range(2)]
    call("cudaStreamCreate", stream)
    for event in events:
        call("cudaEventCreate", event)
        call("cudaEventRecord", event[0], stream[0])
    elapsed = reference(0.0, float32)
    assert call("cudaEventElapsedTime", elapsed, events[0][0], events[1][0]) == 0
    assert elapsed[0] >= 0
    assert call("cudaStreamSynchronize", stream[0]) == call("cudaStreamDestroy", stream[0]) == 0


def test_a_launch_with_an_array_of_pointers_to_arguments():
    y = torch.zeros(4)
    p, q = pointers(torch.ones(4), y)
    places = [Pointer(Variable(v)) for v in (p, q, 3.0, 4)]
    call("cudaLaunchKernel", KERNELS_OBJECT["scale"], dim3(1), dim3(4), Pointer(places), 0, None)
    assert y.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("ta", [0, 1])
@pytest.mark.parametrize("tb", [0, 1])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_products_of_cublas(ta, tb, beta):
    m, n, k, lda, ldb, ldc = 3, 4, 5, 7, 6, 8
    a, b, c = (torch.randn(8, leading) for leading in (lda, ldb, ldc))  # row i is column i of the matrix
    op_a = a[:m, :k] if ta else a[:k, :m].T
    op_b = b[:k, :n] if tb else b[:n, :k].T
    expected = c.clone()
    expected[:n, :m] = (2 * op_a @ op_b + beta * c[:n, :m].T).T
    handle = reference(None, None)
    call("cublasCreate", handle)
    one, two = reference(2.0, float32), reference(beta, float32)
    pa, pb, pc = pointers(a, b, c)
    assert call("cublasSgemm", handle[0], ta, tb, m, n, k, one, pa, lda, pb, ldb, two, pc, ldc) == 0
    torch.testing.assert_close(c, expected)
    assert call("cublasSgemm", handle[0], ta, tb, m, n, k, one, pa, 1, pb, ldb, two, pc, ldc) == 7


def test_a_batch_of_products_and_a_product_with_a_vector():
    a, b, c = torch.randn(2, 3, 4), torch.randn(2, 5, 3), torch.zeros(2, 5, 4)
    one, zero = reference(1.0, float32), reference(0.0, float32)
    pa, pb, pc = pointers(a, b, c)
    handle = cublas._Cublas()
    call("cublasSgemmStridedBatched", handle, 0, 0, 4, 5, 3, one, pa, 4, 12, pb, 3, 15, zero, pc, 4, 20, 2)
    torch.testing.assert_close(c, b @ a)
    x, y = torch.randn(4), torch.zeros(3)
    call("cublasSgemv", handle, 1, 4, 3, one, pa, 4, *pointers(x), 1, zero, *pointers(y), 1)
    torch.testing.assert_close(y, a[0] @ x)


def test_the_direct_launch_passes_addresses_to_the_driver(monkeypatch):
    """A loaded kernel is launched without checks; what does not fit goes to the checked launch."""
    bound = KERNELS_OBJECT["scale"]._bind((4, 1, 1, 0, False))
    launched, packed = [], []

    class Loaded:
        function, shared, cooperative, buffers = 7, 0, False, [("memory", "addresses")]
        pack_into = staticmethod(lambda memory, at, *values: packed.append(values))

    monkeypatch.setattr("cupyops.launch.driver.launch_kernel", lambda: lambda *values: launched.append(values))
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)  # the index of a tensor's CPU
    bound.variants[-1] = Loaded
    p, q = pointers(torch.ones(4), torch.zeros(4))
    assert bound.launch((2, 1, 1), 5, (p + 1, None, 2.0, 3))
    assert launched == [(7, 2, 1, 1, 4, 1, 1, 0, 5, "addresses", 0)]
    assert packed == [(p.offset + 4, 0, 2.0, 3)]
    assert not bound.launch((2, 1, 1), 5, (p, q, 2.0))
    assert not bound.launch((1, 1 << 20, 1), 5, (p, q, 2.0, 3))
    bound.close_generated_launch()
    assert not bound.variants
