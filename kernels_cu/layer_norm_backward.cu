// The gradients of layer normalisation (layer_norm_forward.cu): persistent blocks, rows in registers.
//
//   dL/ds = rstd·(w - mean(w) - x̂·mean(w·x̂)),    dL/dγ = Σ_rows g·x̂,    dL/dβ = Σ_rows g,    g = dL/dy,  w = g·γ
//
//   g: y_t (M, N)      s, dL/ds: scalar_t (M, N)      γ: weight_t (N)      arithmetic, and the parts of dL/dγ and dL/dβ: acc_t
//   grad_sum: scalar_t (M, N), another gradient of s, is added to dL/ds.
//
// All blocks of the grid run at once. A group of threads takes every (parts·GROUPS)-th row, and adds up its columns of
// dL/dγ and dL/dβ in registers over all of these rows (layer_norm_column_gradients.cuh). The next row is loaded while
// this row is summed. Without dL/dx no sum over a row is needed: then `blocks / parts` blocks share a row, and each
// block takes a slice of the row.
//
// Other strategies: layer_norm_backward_wide.cu (next rows prefetched into shared memory), layer_norm_backward_ring.cu (next
// pieces of rows prefetched), layer_norm_backward_streaming.cu (rows read twice), layer_norm_backward_apart.cu (no persistent
// blocks: few rows, or dL/dx alone).
//
// Macro   values      meaning                                                     set by
// NAIVE   undefined   defined: the kernel of one thread a row, and a column       the tests
// WANT_X, WANT_AFFINE, GRAD_SUM: see layer_norm_backward.cuh. WEIGHT_SHARED: see layer_norm_column_gradients.cuh. WEIGHTED: see
// layer_norm.cuh. The others: see rows.cuh.
#include "scalar.cuh"

#ifdef NAIVE

extern "C" __global__ void layer_norm_backward_naive(
    const y_t* __restrict__ grad_y,         // (M, N)
    const scalar_t* __restrict__ s,         // (M, N)
    const acc_t* __restrict__ stats,        // (2, M)
    const weight_t* __restrict__ weight,    // (N) or null
    const scalar_t* __restrict__ grad_sum,  // (M, N) or null
    scalar_t* __restrict__ grad_x,          // (M, N)
    weight_t* __restrict__ grad_weight,     // (N)
    weight_t* __restrict__ grad_bias,       // (N)
    long long M, long long N, long long threads) {
    const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const auto g = [&](long long m, long long n) { return convert<acc_t>(grad_y[m * N + n]); };
    const auto w = [&](long long m, long long n) { return g(m, n) * (weight ? convert<acc_t>(weight[n]) : 1); };
    const auto normalized = [&](long long m, long long n) { return (convert<acc_t>(s[m * N + n]) - stats[m]) * stats[M + m]; };
    acc_t mean_w = 0, mean_wx = 0, sum_gx = 0, sum_g = 0;
    if (const long long m = thread; m < M) {
        for (long long n = 0; n < N; ++n) mean_w += w(m, n) / N, mean_wx += w(m, n) * normalized(m, n) / N;
        for (long long n = 0; n < N; ++n)
            grad_x[m * N + n] = convert<scalar_t>(
                stats[M + m] * (w(m, n) - mean_w - normalized(m, n) * mean_wx) +
                (grad_sum ? convert<acc_t>(grad_sum[m * N + n]) : 0));
    }
    if (const long long n = thread; n < N) {
        for (long long m = 0; m < M; ++m) sum_gx += g(m, n) * normalized(m, n), sum_g += g(m, n);
        grad_weight[n] = convert<weight_t>(sum_gx), grad_bias[n] = convert<weight_t>(sum_g);
    }
}

#else

#include "exchange.cuh"
#include "layer_norm_column_gradients.cuh"

// Two tables: a thread may still read one when another thread is one row, and so one barrier, ahead.
typedef Exchange<TwoSums, 2> RowExchange;

// Computes the gradients of the rows of a group.
template <typename Vectors>
__device__ __forceinline__ void backward_rows(
    const Operands& of, acc_t* partial, long long parts, long long blocks, RowExchange& exchange, Vectors vectors) {
    Columns columns = columns_of_block(of.N);
    long long part = blockIdx.x / CLUSTER;
    if (!WANT_X) {
        const long long tiles = blocks / parts;
        columns.start = static_cast<int>(part % tiles) * SLICE;
        part /= tiles;
    }
    const long long groups = parts * GROUPS, first = part * GROUPS + group_of_block();
    const acc_t one_by_n = columns.one_by_n();
    __shared__ __align__(16) weight_t slice[ColumnGradients::SHARED ? SLICE : 1];
    ColumnGradients gradients(of.weight, columns, vectors, slice);
    Packed<y_t> g[VECTORS], next_g[VECTORS];
    Packed<scalar_t> s[VECTORS], next_s[VECTORS], more[VECTORS];
    acc_t next_mean = 0, next_rstd = 0;
    auto fetch = [&](long long row) {
        if (row >= of.M) return;
        next_mean = of.stats[row];
        next_rstd = of.stats[of.M + row];
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            next_g[v] = load_packed(of.grad_y + row * of.N + columns.of(v), vectors);
            next_s[v] = load_packed(of.s + row * of.N + columns.of(v), vectors);
        }
    };
    fetch(first);
    exchange.init();
    cluster_arrive();
    cluster_wait();
    unsigned turn = 0;
    // All groups of a block take equally many turns, since they share barriers.
    for (long long base = part * GROUPS; base < of.M; base += groups, ++turn) {
        const long long at_row = base + group_of_block();
        const BackwardRow row{next_mean, next_rstd, one_by_n};
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) g[v] = next_g[v], s[v] = next_s[v];
        fetch(at_row + groups);
        acc_t sums[2] = {0, 0};
        if (at_row < of.M)
#pragma unroll
            for (int v = 0; v < VECTORS; ++v)
                if (columns.has(v)) {
                    more[v] = of.load_more(at_row * of.N + columns.of(v), vectors);  // in flight during the exchange
                    gradients.add(v, row, g[v], s[v], sums);
                }
        if (!WANT_X) continue;
        warp_sum(sums);
        if constexpr (PARTS > 1) { sum_parts(exchange.all_gather({sums[0], sums[1]}, turn), sums); }
        if (at_row < of.M)
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) {
                if (!columns.has(v)) break;
                const long long at = at_row * of.N + columns.of(v);
                row.store(g[v], s[v], gradients.weight_of(v), sums, more[v], of.grad_x + at, vectors);
            }
    }
    if (WANT_AFFINE) gradients.store(partial, columns, part, parts);
}

// Takes the operands one by one: the compiler forgets that the pointers in a struct passed by value point to global memory.
template <typename... Operand>
__device__ __noinline__ void unaligned_rows(
    acc_t* partial, long long parts, long long blocks, RowExchange& exchange, Operand... operands) {
    backward_rows(Operands{operands...}, partial, parts, blocks, exchange, false);
}

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_backward(
    const y_t* __restrict__ grad_y,         // (M, N)
    const scalar_t* __restrict__ s,         // (M, N)
    const acc_t* __restrict__ stats,        // (2, M)
    const weight_t* __restrict__ weight,    // (N) or null
    const scalar_t* __restrict__ grad_sum,  // (M, N) or null
    scalar_t* __restrict__ grad_x,          // (M, N) or null
    acc_t* __restrict__ partial,            // (2, parts, N) or null
    long long M, long long N, long long parts, long long blocks) {
    __shared__ RowExchange exchange;
    const Operands of{grad_y, s, stats, weight, grad_sum, grad_x, M, N};
    const bool vectors = of.aligned();
    if (!ALIGNED_APART) backward_rows(of, partial, parts, blocks, exchange, vectors);
    else if (vectors) backward_rows(of, partial, parts, blocks, exchange, Always());
    else unaligned_rows(partial, parts, blocks, exchange, grad_y, s, stats, weight, grad_sum, grad_x, M, N);
}

#endif
