// Layer normalisation (Ba, Kiros and Hinton, 2016) of the rows of a matrix, or of the sum of two: rows in registers.
//
//   y = x̂·γ + β,   x̂ = (s - mean)·rstd,   rstd = 1/√(var + eps),   mean and var over the N elements of a row of s
//
//   s = x, or x + residual rounded to scalar_t      s: scalar_t (M, N)      arithmetic in acc_t      y: y_t (M, N)
//   γ weight, β bias: weight_t (N), each may be absent      stats: acc_t (2, M), mean and rstd, or null
//
// A group of threads loads ROWS_EACH rows into registers, reduces over the registers, and writes the rows normalised. A block
// has several groups, or a cluster of blocks has one row. Longer rows: layer_norm_forward_wide.cu (persistent blocks, next rows
// prefetched) and layer_norm_forward_streaming.cu (rows read twice).
//
// Macro         values        meaning                                              set by
// ROWS_EACH     1 or more     rows of a group at once; 1 in a cluster              forward_config (cupyops/ops/layer_norm/config.py)
// AFFINE_HELD   0, 1          1: weight and bias are loaded along with the row,    LayerNormConfig.few_rows_forward
//                             for few rows; loading them later would add a
//                             second, exposed memory latency. No block takes
//                             a second row (FEW)
// NAIVE         undefined     defined: the kernel of one thread a row              the tests
// RESIDUAL: see layer_norm_forward.cuh. WEIGHTED, AFFINE_GIVEN: see
// layer_norm.cuh. The others: see rows.cuh.
#include "scalar.cuh"

#ifdef NAIVE

extern "C" __global__ void layer_norm_forward_naive(
    const x_t* __restrict__ x,                // (M, N)
    const residual_t* __restrict__ residual,  // (M, N) or null
    const weight_t* __restrict__ weight,      // (N) or null
    const weight_t* __restrict__ bias,        // (N) or null
    scalar_t* __restrict__ sum,               // (M, N): s; without a residual x itself, only read
    y_t* __restrict__ y,                      // (M, N)
    acc_t* __restrict__ stats,                // (2, M)
    long long M, long long N, acc_t eps) {
    const long long row = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, first = row * N, end = first + N;
    if (row >= M) return;
    if (residual)
        for (long long i = first; i < end; ++i) sum[i] = convert<scalar_t>(convert<acc_t>(x[i]) + convert<acc_t>(residual[i]));
    acc_t mean = 0, var = 0;
    for (long long i = first; i < end; ++i) mean += convert<acc_t>(sum[i]) / N;
    for (long long i = first; i < end; ++i) var += (convert<acc_t>(sum[i]) - mean) * (convert<acc_t>(sum[i]) - mean) / N;
    const acc_t rstd = 1 / sqrt(var + eps);
    for (long long i = first; i < end; ++i) {
        const acc_t scale = weight ? convert<acc_t>(weight[i - first]) : 1, shift = bias ? convert<acc_t>(bias[i - first]) : 0;
        y[i] = convert<y_t>((convert<acc_t>(sum[i]) - mean) * rstd * scale + shift);
    }
    stats[row] = mean, stats[M + row] = rstd;
}

#else

#ifndef ROWS_EACH
#define ROWS_EACH 1
#endif
#ifndef AFFINE_HELD
#define AFFINE_HELD 0
#endif
#define FEW AFFINE_HELD

#include "exchange.cuh"
#include "layer_norm_forward.cuh"

// Weight and bias in registers; the constructor loads them.
struct HeldAffine {
    Packed<weight_t> weight[VECTORS], bias[VECTORS];
    bool vectors;

    __device__ __forceinline__ HeldAffine(const Operands& of, const Columns& columns, bool vectors) : vectors(vectors) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) {
                weight[v] = load_or(of.weight, 1, columns.of(v), vectors);
                bias[v] = load_or(of.bias, 0, columns.of(v), vectors);
            }
    }

    __device__ __forceinline__ Packed<weight_t> weight_of(const Columns&, int v) const { return weight[v]; }
    __device__ __forceinline__ Packed<weight_t> bias_of(const Columns&, int v) const { return bias[v]; }
};

typedef Exchange<Moments, ROWS_EACH> RowExchange;  // a table for each row of a group

// Normalises the ROWS_EACH rows of a group.
template <typename Vectors>
__device__ __forceinline__ void forward_rows(const Operands& of, RowExchange& exchange, Vectors vectors) {
    const Columns columns = columns_of_block(of.N);
    const acc_t one_by_n = columns.one_by_n();
    const long long first = group_of_grid() * ROWS_EACH;
    // The last groups of the grid may have fewer rows, or none.
    const int rows = !ROW_EACH && of.M - first < ROWS_EACH ? static_cast<int>(of.M - first) : ROWS_EACH;
    exchange.init();
    cluster_arrive();
    Packed<scalar_t> held[ROWS_EACH][VECTORS];
#pragma unroll
    for (int r = 0; r < ROWS_EACH; ++r)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (r < rows && columns.has(v)) held[r][v] = of.load((first + r) * of.N + columns.of(v), vectors);
#if AFFINE_HELD
    const HeldAffine affine(of, columns, vectors);
#else
    const Affine affine(of, vectors);
#endif
    Moments moments[ROWS_EACH];
#pragma unroll
    for (int r = 0; r < ROWS_EACH; ++r) moments[r] = moments_of<y_t>(held[r], r < rows, columns);
    if constexpr (PARTS > 1) {
        cluster_wait();
#pragma unroll
        for (int r = 0; r < ROWS_EACH; ++r) exchange.publish(moments[r], r);
        exchange.wait(0);
#pragma unroll
        for (int r = 0; r < ROWS_EACH; ++r) moments[r] = combine(exchange.collect(r), acc_t(columns.n), one_by_n);
    }
    Normalizer normalizer[ROWS_EACH];
#pragma unroll
    for (int r = 0; r < ROWS_EACH; ++r) {
        normalizer[r] = Normalizer(moments[r], one_by_n, of.eps);
        if (of.stats && r < rows && columns.of(0) == 0) of.store_stats(first + r, moments[r], normalizer[r].rstd);
    }
    write_normalized<ROWS_EACH>(held, normalizer, rows, columns, affine, of.y + first * of.N, of.N);
}

// Takes the operands one by one: the compiler forgets that the pointers in a struct passed by value point to global memory.
template <typename... Operand> __device__ __noinline__ void unaligned_rows(RowExchange& exchange, Operand... operands) {
    forward_rows(Operands{operands...}, exchange, false);
}

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_forward(
    const x_t* __restrict__ x,                // (M, N)
    const residual_t* __restrict__ residual,  // (M, N) or null
    const weight_t* __restrict__ weight,      // (N) or null
    const weight_t* __restrict__ bias,        // (N) or null
    scalar_t* __restrict__ sum,               // (M, N): s; without a residual x itself, only read
    y_t* __restrict__ y,                      // (M, N)
    acc_t* __restrict__ stats,                // (2, M) or null
    long long M, long long N, acc_t eps) {
    __shared__ RowExchange exchange;
    const Operands of{x, residual, weight, bias, sum, y, stats, M, FEW && FULL ? CLUSTER * SLICE : N, eps};
    const bool vectors = of.aligned();
    if (!ALIGNED_APART) forward_rows(of, exchange, vectors);
    else if (vectors) forward_rows(of, exchange, Always());
    else unaligned_rows(exchange, x, residual, weight, bias, sum, y, stats, M, N, eps);
}

#endif
