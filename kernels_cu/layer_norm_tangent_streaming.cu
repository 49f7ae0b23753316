// The tangent of layer normalisation as in layer_norm_tangent.cu, for rows that fit no block: rows read twice.
//
//   ẏ = γ·rstd·(ẋ - mean(ẋ) - x̂·mean(ẋ·x̂)) + γ̇·x̂ + β̇,   x̂ = (x - mean)·rstd
//
//   x, ẋ: scalar_t (M, N)      ẏ: y_t (M, N)      γ, γ̇, β̇: weight_t (N), each may be absent      arithmetic in acc_t
//   The naive kernel is in layer_norm_tangent.cu.
//
// A block has a row and goes over the row slice by slice: once for the sums, once for ẏ.
//
// Macro      values   meaning                                           set by
// WEIGHTED   0, 1     0: γ, γ̇ and β̇ are absent; see layer_norm.cuh      LayerNormConfig.weighted
// The others: see rows.cuh.
#include "scalar.cuh"
#include "layer_norm_tangent.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_tangent_streaming(
    const scalar_t* __restrict__ tangent_x,       // (M, N)
    const scalar_t* __restrict__ x,               // (M, N)
    const acc_t* __restrict__ stats,              // (2, M)
    const weight_t* __restrict__ weight,          // (N) or null
    const weight_t* __restrict__ tangent_weight,  // (N) or null
    const weight_t* __restrict__ tangent_bias,    // (N) or null
    y_t* __restrict__ tangent_y,                  // (M, N)
    long long M, long long N) {
    __shared__ TwoSums parts[PARTS];
    const Operands of{tangent_x, x, stats, weight, tangent_weight, tangent_bias, tangent_y, M, N};
    const bool vectors = of.aligned();
    const long long at_row = blockIdx.x, first = at_row * N;
    const TangentRow row{stats[at_row], stats[M + at_row], acc_t(1) / acc_t(N)};
    acc_t sums[2] = {0, 0};
    for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n; columns.start += SLICE)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v))
                row.sum(
                    load_packed(tangent_x + first + columns.of(v), vectors), load_packed(x + first + columns.of(v), vectors),
                    sums);
    warp_sum(sums);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = {sums[0], sums[1]};
    __syncthreads();
    sum_parts(parts, sums);
    for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n; columns.start += SLICE)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v))
                row.store(
                    load_packed(tangent_x + first + columns.of(v), vectors), load_packed(x + first + columns.of(v), vectors),
                    sums, of, columns.of(v), tangent_y + first, vectors);
}
