// The gradient of layer normalisation by its input as in layer_norm_backward.cu, for rows that fit no block: rows read twice.
//
//   dL/ds = rstd·(w - mean(w) - x̂·mean(w·x̂)),    g = dL/dy,  w = g·γ
//
//   g: y_t (M, N)      s, dL/ds: scalar_t (M, N)      γ: weight_t (N)      arithmetic in acc_t
//   The naive kernel is in layer_norm_backward.cu.
//
// A block has a row and goes over the row slice by slice: once for the sums, once for dL/ds. The kernels of
// layer_norm_backward.cu and layer_norm_backward_apart.cu compute dL/dγ and dL/dβ of such rows.
//
// Macro       values   meaning                                                   set by
// GRAD_SUM    0, 1     1: dL/ds has a further term; see layer_norm_backward.cuh  LayerNormConfig.grad_sum
// WEIGHTED    0, 1     1: there is a weight; see layer_norm.cuh                  LayerNormConfig.weighted
// The others: see rows.cuh.
#include "scalar.cuh"
#include "layer_norm_backward.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_backward_streaming(
    const y_t* __restrict__ grad_y,         // (M, N)
    const scalar_t* __restrict__ s,         // (M, N)
    const acc_t* __restrict__ stats,        // (2, M)
    const weight_t* __restrict__ weight,    // (N) or null
    const scalar_t* __restrict__ grad_sum,  // (M, N) or null
    scalar_t* __restrict__ grad_x,          // (M, N)
    long long M, long long N) {
    __shared__ TwoSums parts[PARTS];
    const Operands of{grad_y, s, stats, weight, grad_sum, grad_x, M, N};
    const bool vectors = of.aligned();
    const long long at_row = blockIdx.x;
    BackwardRow row = of.row(at_row, 0);
    acc_t sums[2] = {0, 0};
    for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n; columns.start += SLICE)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) {
                const long long at = at_row * N + columns.of(v);
                row.sum(
                    load_packed(grad_y + at, vectors), load_packed(s + at, vectors), load_or(weight, 1, columns.of(v), vectors),
                    sums);
            }
    warp_sum(sums);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = {sums[0], sums[1]};
    __syncthreads();
    sum_parts(parts, sums);
    row.one_by_n = acc_t(1) / acc_t(N);
    for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n; columns.start += SLICE)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) {
                const long long at = at_row * N + columns.of(v);
                row.store(
                    load_packed(grad_y + at, vectors), load_packed(s + at, vectors), load_or(weight, 1, columns.of(v), vectors),
                    sums, of.load_more(at, vectors), grad_x + at, vectors);
            }
}
