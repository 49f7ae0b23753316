// The tangent of layer normalisation, its derivative in forward mode: rows in registers.
//
//   ẏ = γ·rstd·(ẋ - mean(ẋ) - x̂·mean(ẋ·x̂)) + γ̇·x̂ + β̇,   x̂ = (x - mean)·rstd,   means over the N elements of a row
//
//   x, ẋ: scalar_t (M, N)      ẏ: y_t (M, N)      γ, γ̇, β̇: weight_t (N), each may be absent      arithmetic in acc_t
//   stats: acc_t (2, M), mean and rstd of the forward
//
// A group of threads loads a row of x and of ẋ into registers, sums over the registers, and writes ẏ. A block has several
// groups, or a cluster of blocks has one row. The matrix of the derivative by x, without γ, is symmetric, so that ẏ without
// γ is dL/dx for dL/dy = ẋ. Wide rows: layer_norm_tangent_wide.cu. Longer rows: layer_norm_tangent_streaming.cu.
//
// Macro      values      meaning                                            set by
// NAIVE      undefined   defined: the kernel of one thread a row            the tests
// WEIGHTED   0, 1        0: γ, γ̇ and β̇ are absent; see layer_norm.cuh       LayerNormConfig.weighted
// The others: see rows.cuh.
#include "scalar.cuh"

#ifdef NAIVE

extern "C" __global__ void layer_norm_tangent_naive(
    const scalar_t* __restrict__ tangent_x,       // (M, N)
    const scalar_t* __restrict__ x,               // (M, N)
    const acc_t* __restrict__ stats,              // (2, M)
    const weight_t* __restrict__ weight,          // (N) or null
    const weight_t* __restrict__ tangent_weight,  // (N) or null
    const weight_t* __restrict__ tangent_bias,    // (N) or null
    y_t* __restrict__ tangent_y,                  // (M, N)
    long long M, long long N) {
    const long long row = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, first = row * N;
    if (row >= M) return;
    const acc_t mean = stats[row], rstd = stats[M + row];
    acc_t sum = 0, product = 0;
    for (long long j = 0; j < N; ++j) {
        sum += convert<acc_t>(tangent_x[first + j]);
        product += convert<acc_t>(tangent_x[first + j]) * (convert<acc_t>(x[first + j]) - mean) * rstd;
    }
    for (long long j = 0; j < N; ++j) {
        const acc_t normalized = (convert<acc_t>(x[first + j]) - mean) * rstd;
        const acc_t moved = rstd * (convert<acc_t>(tangent_x[first + j]) - sum / N - normalized * product / N);
        const acc_t scale = weight ? convert<acc_t>(weight[j]) : 1;
        const acc_t by_weight = tangent_weight ? convert<acc_t>(tangent_weight[j]) : 0;
        const acc_t by_bias = tangent_bias ? convert<acc_t>(tangent_bias[j]) : 0;
        tangent_y[first + j] = convert<y_t>(scale * moved + by_weight * normalized + by_bias);
    }
}

#else

#include "exchange.cuh"
#include "layer_norm_tangent.cuh"

typedef Exchange<TwoSums, 1> RowExchange;

// ẏ of a group's row. All loads of x and ẋ are in flight before the first value is used.
template <typename Vectors>
__device__ __forceinline__ void tangent_row(const Operands& of, RowExchange& exchange, Vectors vectors) {
    const Columns columns = columns_of_block(of.N);
    const long long at_row = group_of_grid();
    const bool any = at_row < of.M;
    exchange.init();
    cluster_arrive();
    Packed<scalar_t> dx[VECTORS], x[VECTORS];
    const TangentRow row{any ? of.stats[at_row] : acc_t(0), any ? of.stats[of.M + at_row] : acc_t(0), columns.one_by_n()};
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v)) {
            const long long at = at_row * of.N + columns.of(v);
            dx[v] = load_packed(of.tangent_x + at, vectors);
            x[v] = load_packed(of.x + at, vectors);
        }
    acc_t sums[2] = {0, 0};
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v)) row.sum(dx[v], x[v], sums);
    warp_sum(sums);
    if constexpr (PARTS > 1) {
        cluster_wait();
        sum_parts(exchange.all_gather({sums[0], sums[1]}, 0), sums);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v)) row.store(dx[v], x[v], sums, of, columns.of(v), of.tangent_y + at_row * of.N, vectors);
}

// Takes the operands one by one: the compiler forgets that the pointers in a struct passed by value point to global memory.
template <typename... Operand> __device__ __noinline__ void unaligned_row(RowExchange& exchange, Operand... operands) {
    tangent_row(Operands{operands...}, exchange, false);
}

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_tangent(
    const scalar_t* __restrict__ tangent_x,       // (M, N)
    const scalar_t* __restrict__ x,               // (M, N)
    const acc_t* __restrict__ stats,              // (2, M)
    const weight_t* __restrict__ weight,          // (N) or null
    const weight_t* __restrict__ tangent_weight,  // (N) or null
    const weight_t* __restrict__ tangent_bias,    // (N) or null
    y_t* __restrict__ tangent_y,                  // (M, N)
    long long M, long long N) {
    __shared__ RowExchange exchange;
    const Operands of{tangent_x, x, stats, weight, tangent_weight, tangent_bias, tangent_y, M, N};
    if (of.aligned()) tangent_row(of, exchange, Always());
    else unaligned_row(exchange, tangent_x, x, stats, weight, tangent_weight, tangent_bias, tangent_y, M, N);
}

#endif
