"""The shared headers that docs/headers.md describes without an example: one small kernel each, in the simulator."""

from typing import Any

import numpy as np
import pytest

import cupyops
from cupyops import Elementwise, Kernel, Rows, Threads

pytestmark = pytest.mark.simulator
rng = np.random.default_rng(0)


def simulated(kernel: Any, *args: Any) -> None:
    with cupyops.simulate(sanitize=True):
        kernel(*args)


def test_pytorch_math() -> None:
    text = r"""
#include "pytorch_math.cuh"
template <typename scalar_t>
__global__ void damped(const scalar_t* x /* (n) */, scalar_t* y /* (n) */, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] < 0 ? exp(x[i]) : x[i] * 0.5f + 1;
}
"""
    damped = Kernel(text, "damped", Threads("n"), dtypes=("float16",))
    x = rng.standard_normal(100).astype(np.float16)
    simulated(damped, x, y := np.empty_like(x), 100)
    wanted = np.where(x < 0, np.exp(x.astype(np.float32)), x.astype(np.float32) * 0.5 + 1)
    assert np.allclose(y, wanted, atol=1e-3)


def test_pytorch_threads() -> None:
    text = r"""
#include "pytorch_threads.cuh"
__global__ void histogram(const unsigned char* x /* (n) */, short* counts /* (4) */, float* most /* (1) */, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) gpuAtomicAdd(&counts[x[i]], 1);
    if (i < n) gpuAtomicMax(most, x[i]);
}
"""
    histogram = Kernel(text, "histogram", Threads("n"))
    x = rng.integers(0, 4, 100).astype(np.uint8)
    simulated(histogram, x, counts := np.zeros(4, np.int16), most := np.zeros(1, np.float32), 100)
    assert np.array_equal(counts, np.bincount(x, minlength=4))
    assert most[0] == x.max()


def test_pytorch_philox() -> None:
    text = r"""
#include "pytorch_philox.cuh"
__global__ void seeds(at::PhiloxCudaState state, uint64_t* y /* (2) */) {
    auto [seed, offset] = at::cuda::philox::unpack(state);
    y[0] = seed;
    y[1] = offset;
}
"""
    seeds = Kernel(text, "seeds", 1)
    simulated(seeds[1], (7, 4), y := np.zeros(2, np.uint64))
    assert y.tolist() == [7, 4]


def test_pointwise() -> None:
    text = r"""
#include "pointwise.cuh"
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) sin_and_cos(
    const scalar_t* x,  // (n)
    scalar_t* s,        // (n)
    scalar_t* c,        // (n) or null
    long long n) {
    scalar_t* const out[2] = {s, c};
    each(n, [](scalar_t x, scalar_t (&results)[2]) { results[0] = sin(x), results[1] = cos(x); }, out, x);
}
"""
    sin_and_cos = Kernel(text, "sin_and_cos", Elementwise("n"), dtypes=("float32",))
    x = rng.standard_normal(300).astype(np.float32)
    simulated(sin_and_cos, x, s := np.empty_like(x), c := np.empty_like(x), x.size)
    assert np.allclose(s * s + c * c, 1)


def test_vector() -> None:
    text = r"""
#include "scalar.cuh"
#include "packed.cuh"
extern "C" __global__ void reversed_in_fours(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    long long n) {
    const long long i = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * VECTOR_WIDTH;
    if (i >= n) return;
    const bool fast = aligned<VECTOR_WIDTH>(x) && aligned<VECTOR_WIDTH>(y);
    const Packed<scalar_t> four = load_packed(x + i, fast);
    acc_t values[VECTOR_WIDTH];
    for (int k = 0; k < VECTOR_WIDTH; ++k) values[k] = four[VECTOR_WIDTH - 1 - k];
    Packed<scalar_t> back;
    back.set(values);
    store_packed(y + i, back, fast);
}
"""
    fours = Kernel(text, "reversed_in_fours", Threads("n"), dtypes=("float32",), constants={"VECTOR_WIDTH": 4})
    x = np.arange(64, dtype=np.float32)
    simulated(fours, x, y := np.empty_like(x), x.size)
    assert np.array_equal(y, x.reshape(-1, 4)[:, ::-1].ravel())


def test_row_passes() -> None:
    text = r"""
#include "row_passes.cuh"
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) softmax(
    const scalar_t* x,  // (M, N)
    scalar_t* y,        // (M, N)
    long long M, long long N) {
    __shared__ PartsExchange<2> exchange;
    exchange.init();
    cluster_arrive();
    const long long row = row_of_group(blockIdx.x * GROUPS, M);  // groups beyond the last row reduce, and store nothing
    const bool mine = blockIdx.x * GROUPS + group_of_block() < M, fast = whole_accesses(x) && whole_accesses(y);
    Held<scalar_t> held;
    const auto load = [&](const Columns& at) { held.load(x + row * N, at, fast); };
    if (!STREAM) load(columns_of_block(N));
    cluster_wait();
    Team<2> team(exchange);
    acc_t found[] = {-INFINITY, 0};
    pass(N, load, [&](int v, int) {
        acc_t values[VECTOR_WIDTH];
        for (int k = 0; k < VECTOR_WIDTH; ++k) values[k] = held.of[v][k];
        add_exps(found[0], found[1], values);
    });
    team.reduce<Fold::Max, Fold::Exps>(found);
    pass(N, load, [&](int v, int column) {
        acc_t values[VECTOR_WIDTH];
        for (int k = 0; k < VECTOR_WIDTH; ++k) values[k] = exponential(held.of[v][k] - found[0]) / found[1];
        if (mine) store_vector(y + row * N + column, values, fast);
    });
}
"""
    macros = {"ROW_THREADS": 64, "VECTORS": 1, "VECTOR_WIDTH": 4}
    softmax = Kernel(text, "softmax", Rows("M", block=128, each=2), dtypes=("float32",), constants=macros)
    x = rng.standard_normal((3, 200)).astype(np.float32)
    simulated(softmax, x, y := np.empty_like(x), 3, 200)
    assert np.allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), atol=1e-6)


def test_columns() -> None:
    text = r"""
#include "columns.cuh"
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) column_sum(
    const scalar_t* x,  // (M, N)
    acc_t* sum,         // (N)
    long long strips, long long M, long long N) {
    sum_columns(N, 1, sum, [&](const Strip& strip, acc_t (&sums)[VECTOR_WIDTH]) {
        strip.add_rows(
            M, N, sums, [&](long long at) { return load_packed(x + at, aligned<VECTOR_WIDTH>(x)); },
            [](long long, const Packed<scalar_t>& row, acc_t (&sums)[VECTOR_WIDTH]) {
                for (int k = 0; k < VECTOR_WIDTH; ++k) sums[k] += row[k];
            });
    });
}
"""
    # A block has a strip of 16·4 = 64 columns, and 128/16 = 8 rows at once.
    macros = {"WIDTH": 16, "VECTOR_WIDTH": 4, "ROWS_EACH": 2}
    column_sum = Kernel(text, "column_sum", Rows("strips", block=128), dtypes=("float32",), constants=macros)
    x = rng.standard_normal((50, 100)).astype(np.float32)
    simulated(column_sum, x, total := np.empty(100, np.float32), 2, 50, 100)
    assert np.allclose(total, x.sum(0), atol=1e-4)


def test_fast_math() -> None:
    text = r"""
#include "extrema.cuh"
#include "fast_math.cuh"
extern "C" __global__ void sigmoid_above(
    const float* x,  // (n)
    float* y,        // (n)
    float least, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = larger(least, fast_reciprocal(1 + fast_exp2(-1.44269504f * x[i])));
}
"""
    sigmoid_above = Kernel(text, "sigmoid_above", Threads("n"))
    x = np.array([-3, 0, 3, np.nan], np.float32)
    simulated(sigmoid_above, x, y := np.empty_like(x), 0.25, 4)
    assert np.allclose(y, np.maximum(0.25, 1 / (1 + np.exp(-x))), equal_nan=True)


def test_cluster() -> None:
    text = r"""
#include "cluster.cuh"
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS) neighbour(
    float* y,  // (M, 2)
    long long M) {
    __shared__ float mine;
    const int rank = block_of_cluster();
    if (threadIdx.x == 0) mine = float(blockIdx.x);
    sync_cluster();
    if (threadIdx.x == 0) y[blockIdx.x] = *static_cast<float*>(__cluster_map_shared_rank(&mine, 1 - rank));
    sync_cluster();  // a block stays until the other has read its shared memory
}
"""
    neighbour = Kernel(text, "neighbour", Rows("M", block=32, blocks_per_row=2), since=90)
    simulated(neighbour, y := np.empty((3, 2), np.float32), 3)
    assert np.array_equal(y, [[1, 0], [3, 2], [5, 4]])


def test_team() -> None:
    text = r"""
#include "team.cuh"
extern "C" __global__ void next_block(
    const float* x,  // (TEAM)
    float* between,  // (TEAM)
    float* y,        // (TEAM)
    int* counter,    // (1)
    long long teams) {
    if (threadIdx.x == 0) between[blockIdx.x] = 2 * x[blockIdx.x];
    team_barrier(counter, 1);
    if (threadIdx.x == 0) y[blockIdx.x] = __ldcg(between + (blockIdx.x + 1) % TEAM);
}
"""
    next_block = Kernel(text, "next_block", Rows("teams", block=32), constants={"TEAM": 4}, cooperative=True)
    x, counter = np.arange(4, dtype=np.float32), np.zeros(1, np.int32)
    simulated(next_block, x, np.empty_like(x), y := np.empty_like(x), counter, 4)
    assert np.array_equal(y, [2, 4, 6, 0])


def test_tiles() -> None:
    text = r"""
#include "tiles.cuh"
extern "C" __global__ void add_bias(
    const scalar_t* x,     // (M, N)
    const scalar_t* bias,  // (N)
    scalar_t* y,           // (M, N)
    long long M, long long N) {
    for (Place at; at.row < M && at.column < N; at.row += gridDim.y * DOWN)
        y[at.row * N + at.column] = x[at.row * N + at.column] + bias[at.column];
}
"""
    add_bias = Kernel(text, "add_bias", Threads("N", "M", block=(32, 8, 1)), dtypes=("float32",))
    x, bias = rng.standard_normal((11, 40)).astype(np.float32), np.arange(40, dtype=np.float32)
    simulated(add_bias, x, bias, y := np.empty_like(x), 11, 40)
    assert np.array_equal(y, x + bias)


def test_bulk() -> None:
    text = r"""
#include "bulk.cuh"
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) reversed_rows(
    const float* x,  // (M, 64)
    float* y,        // (M, 64)
    long long M) {
    __shared__ alignas(16) float row[64];
    __shared__ Arrivals arrivals;
    if (threadIdx.x == 0) arrival_init(&arrivals, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        arrive_expecting(&arrivals, sizeof(row));
        bulk_load(row, x + blockIdx.x * 64, sizeof(row), &arrivals);
    }
    arrival_wait(&arrivals, 0);
    y[blockIdx.x * 64 + threadIdx.x] = row[63 - threadIdx.x];
}
"""
    reversed_rows = Kernel(text, "reversed_rows", Rows("M", block=64), since=90)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    simulated(reversed_rows, x, y := np.empty_like(x), 3)
    assert np.array_equal(y, x[:, ::-1])


def test_tensor_cores() -> None:
    text = r"""
#include "tensor_cores.cuh"
extern "C" __global__ void product(
    const scalar_t* a,  // (16, 32)
    const scalar_t* b,  // (8, 32): B transposed, so that a column of B is a row in memory
    float* c) {         // (16, 8)
    const int g = threadIdx.x / 4, q = threadIdx.x % 4;
    const Eight* rows = reinterpret_cast<const Eight*>(a);
    const Eight* columns = reinterpret_cast<const Eight*>(b);
    float sum[4] = {0, 0, 0, 0};
    multiply_add<scalar_t>(sum, rows[g * 4 + q], rows[(g + 8) * 4 + q], columns[g * 4 + q]);
    for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = sum[i];
}
"""
    product = Kernel(text, "product", 32, dtypes=("float16",), since=80)
    a, b = (rng.standard_normal((n, 32)).astype(np.float16) for n in (16, 8))
    with cupyops.simulate(sanitize=True):
        product[32](a, b, c := np.empty((16, 8), np.float32))
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32).T, atol=1e-4)


def test_pytorch() -> None:
    text = r"""
#include "pytorch.cuh"
template <typename scalar_t>
__global__ void add_transposed(
    const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> a,
    const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> b,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> y) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (j < y.size(1)) y[i][j] = a[i][j] + b[j][i];
}
"""
    add_transposed = Kernel(text, "add_transposed", 128, dtypes=("float32",))
    a, b = rng.standard_normal((7, 5)).astype(np.float32), rng.standard_normal((5, 7)).astype(np.float32)
    simulated(add_transposed.forall(5, 7), a, b, y := np.empty_like(a))
    assert np.array_equal(y, a + b.T)
    with cupyops.simulate():
        add_transposed.forall(7, 5)(a.T, b.T, z := np.empty_like(a).T)  # other strides
    assert np.array_equal(z, y.T)


def test_rows() -> None:
    text = r"""
#include "rows.cuh"
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) row_norm(
    const scalar_t* x,  // (M, N)
    acc_t* norm,        // (M)
    long long M, long long N) {
    const long long row = group_of_grid();
    const Columns columns = columns_of_block(N);
    acc_t sum[1] = {0};
    for (int v = 0; v < VECTORS; ++v)
        if (row < M && columns.has(v)) {
            const Packed<scalar_t> held = load_packed(x + row * N + columns.of(v), aligned<VECTOR_WIDTH>(x));
            for (int k = 0; k < VECTOR_WIDTH; ++k) sum[0] += held[k] * held[k];
        }
    warp_sum(sum);
    if (row < M && threadIdx.x % ROW_THREADS == 0) norm[row] = sqrt(sum[0]);
}
"""
    # A warp for each row of up to 32·2·4 = 256 elements, and four rows for each block.
    macros = {"ROW_THREADS": 32, "VECTORS": 2, "VECTOR_WIDTH": 4}
    row_norm = Kernel(text, "row_norm", Rows("M", block=128, each=4), dtypes=("float32",), constants=macros)
    x = rng.standard_normal((7, 200)).astype(np.float32)
    simulated(row_norm, x, norm := np.empty(7, np.float32), 7, 200)
    assert np.allclose(norm, np.linalg.norm(x, axis=1))
