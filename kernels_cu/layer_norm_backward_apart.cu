// The gradients of layer normalisation as in layer_norm_backward.cu, in one launch without persistent blocks: for few rows, and
// for dL/dx alone.
//
//   dL/ds = rstd·(w - mean(w) - x̂·mean(w·x̂)),    dL/dγ = Σ_rows g·x̂,    dL/dβ = Σ_rows g,    g = dL/dy,  w = g·γ
//
//   g: y_t (M, N)      s, dL/ds: scalar_t (M, N)      γ, dL/dγ, dL/dβ: weight_t (N)      arithmetic in acc_t
//   The naive kernel is in layer_norm_backward.cu.
//
// The first `strips` clusters sum a strip of columns over all rows: dL/dγ and dL/dβ. Each group of the other blocks has
// one row: dL/ds. Both need only the statistics of the forward, so one launch computes both. The launch reads g and s
// twice; with few rows, L2 serves the second read. Without dL/dγ and dL/dβ there are no strips.
//
// Macro    values               meaning                                  set by
// WIDTH    a power of 2         threads side by side on a strip          columns.strip_width
// WANT_AFFINE, GRAD_SUM: see layer_norm_backward.cuh. WEIGHTED: see layer_norm.cuh. The others: see rows.cuh, columns.cuh.
#include "scalar.cuh"
#include "columns.cuh"
#include "exchange.cuh"
#include "layer_norm_backward.cuh"

constexpr int STRIP_ROWS = 4;  // rows of a strip that a thread has in flight

// Whether a thread's registers hold its elements of g, s, γ and grad_sum at once, and 16 other values, or 24 with bounds checks.
// Otherwise grad_sum is loaded where it is added: a spill of registers would take longer than the latency of this load. Each
// quarter of a multiprocessor has 16384 registers, for a whole number of warps.
constexpr int WARPS_OF_QUARTER = (BLOCK_THREADS * MIN_BLOCKS + 127) / 128;
constexpr int HELD = VECTORS * (Packed<y_t>::BYTES + 2 * Packed<scalar_t>::BYTES + WEIGHTED * Packed<weight_t>::BYTES) / 4;
constexpr bool MORE_HELD = HELD + (FULL ? 16 : 24) <= 16384 / 32 / WARPS_OF_QUARTER;

typedef Exchange<TwoSums, 1> RowExchange;

// The vectors that are summed over rows: dL/dγ and dL/dβ, each may be null.
struct AffineGradients {
    weight_t* weight;
    weight_t* bias;

    // Adds up the threads' sums of a strip that begins at the column `first`, and stores the strip.
    __device__ __forceinline__ void store(acc_t (&sums)[2][VECTOR_WIDTH], long long first, long long N) const {
        __shared__ acc_t lines[2][LINES][STRIP];
        sum_rows_of_warp(sums, lines);
        __syncthreads();
        for (int j = static_cast<int>(threadIdx.x); j < 2 * STRIP; j += BLOCK_THREADS) {
            acc_t total = 0;
#pragma unroll
            for (int i = 0; i < LINES; ++i) total += lines[j / STRIP][i][j % STRIP];
            weight_t* out = j < STRIP ? weight : bias;
            if (out && first + j % STRIP < N) out[first + j % STRIP] = convert<weight_t>(total);
        }
    }
};

// dL/dγ and dL/dβ of a strip of columns, over all rows.
template <typename Vectors>
__device__ __forceinline__ void backward_strip(const Operands& of, const AffineGradients& gradients, Vectors vectors) {
    const int thread = static_cast<int>(threadIdx.x), across = thread % WIDTH * VECTOR_WIDTH;
    const long long first = blockIdx.x * static_cast<long long>(STRIP), column = first + across;
    acc_t sums[2][VECTOR_WIDTH];
#pragma unroll
    for (int k = 0; k < VECTOR_WIDTH; ++k) sums[0][k] = sums[1][k] = 0;
    if (column < of.N)
        for (long long row = thread / WIDTH; row < of.M; row += STRIP_ROWS * HEIGHT) {
            Packed<y_t> g[STRIP_ROWS];
            Packed<scalar_t> s[STRIP_ROWS];
            BackwardRow rows[STRIP_ROWS];
#pragma unroll
            for (int i = 0; i < STRIP_ROWS; ++i) {
                // Beyond the end the last row is loaded again: a condition on each load would serialise the loads.
                const long long at = row + i * HEIGHT < of.M ? row + i * HEIGHT : of.M - 1;
                rows[i] = of.row(at, 0);
                g[i] = load_packed(of.grad_y + at * of.N + column, vectors);
                s[i] = load_packed(of.s + at * of.N + column, vectors);
            }
#pragma unroll
            for (int i = 0; i < STRIP_ROWS; ++i)
                if (row + i * HEIGHT < of.M) rows[i].sum_affine(g[i], s[i], sums[0], sums[1]);
        }
    gradients.store(sums, first, of.N);
}

// dL/ds of a row. All loads are in flight before the first value is used.
template <typename Vectors>
__device__ __forceinline__ void backward_row(const Operands& of, long long at_row, RowExchange& exchange, Vectors vectors) {
    const Columns columns = columns_of_block(of.N);
    const bool any = at_row < of.M;
    exchange.init();
    cluster_arrive();
    Packed<y_t> g[VECTORS];
    Packed<scalar_t> s[VECTORS], more[VECTORS];
    Packed<weight_t> weight[VECTORS];
    BackwardRow row{any ? of.stats[at_row] : acc_t(0), any ? of.stats[of.M + at_row] : acc_t(0), 0};
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v)) {
            const long long at = at_row * of.N + columns.of(v);
            g[v] = load_packed(of.grad_y + at, vectors);
            s[v] = load_packed(of.s + at, vectors);
            weight[v] = load_or(of.weight, 1, columns.of(v), vectors);
            if (MORE_HELD) more[v] = of.load_more(at, vectors);
        }
    row.one_by_n = columns.one_by_n();
    acc_t sums[2] = {0, 0};
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v)) row.sum(g[v], s[v], weight[v], sums);
    warp_sum(sums);
    if constexpr (PARTS > 1) {
        cluster_wait();
        sum_parts(exchange.all_gather({sums[0], sums[1]}, 0), sums);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v)) {
            const long long at = at_row * of.N + columns.of(v);
            if (!MORE_HELD) more[v] = of.load_more(at, vectors);
            row.store(g[v], s[v], weight[v], sums, more[v], of.grad_x + at, vectors);
        }
}

template <typename Vectors>
__device__ __forceinline__ void backward_apart(
    const Operands& of, const AffineGradients& gradients, long long strips, RowExchange& exchange, Vectors vectors) {
    if constexpr (WANT_AFFINE)
        if (blockIdx.x / CLUSTER < strips) {
            backward_strip(of, gradients, vectors);
            return;
        }
    backward_row(of, group_of_grid() - strips * GROUPS, exchange, vectors);
}

// Takes the operands one by one: the compiler forgets that the pointers in a struct passed by value point to global memory.
template <typename... Operand>
__device__ __noinline__ void unaligned_apart(
    weight_t* grad_weight, weight_t* grad_bias, long long strips, RowExchange& exchange, Operand... operands) {
    backward_apart(Operands{operands...}, {grad_weight, grad_bias}, strips, exchange, false);
}

// `strips` and `blocks` count clusters of blocks.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_backward_apart(
    const y_t* __restrict__ grad_y,         // (M, N)
    const scalar_t* __restrict__ s,         // (M, N)
    const acc_t* __restrict__ stats,        // (2, M)
    const weight_t* __restrict__ weight,    // (N) or null
    const scalar_t* __restrict__ grad_sum,  // (M, N) or null
    scalar_t* __restrict__ grad_x,          // (M, N) or null
    weight_t* __restrict__ grad_weight,     // (N) or null
    weight_t* __restrict__ grad_bias,       // (N) or null
    long long M, long long N, long long strips, long long blocks) {
    __shared__ RowExchange exchange;
    const Operands of{grad_y, s, stats, weight, grad_sum, grad_x, M, N};
    if (of.aligned()) backward_apart(of, {grad_weight, grad_bias}, strips, exchange, Always());
    else unaligned_apart(grad_weight, grad_bias, strips, exchange, grad_y, s, stats, weight, grad_sum, grad_x, M, N);
}
