// Layer normalisation as in layer_norm_forward.cu, for rows that fit neither registers nor shared memory: rows read twice.
//
//   y = x̂·γ + β,   x̂ = (s - mean)·rstd,   rstd = 1/√(var + eps),   mean and var over the N elements of a row of s
//
//   s: scalar_t (M, N)      arithmetic in acc_t      y: y_t (M, N)      γ, β: weight_t (N)      stats: acc_t (2, M)
//   The naive kernel is in layer_norm_forward.cu.
//
// A block has a row and goes over the row slice by slice: once for the moments, once for y.
//
// Macro       values   meaning                                                   set by
// RESIDUAL    0, 1     1: s is x + residual; see layer_norm_forward.cuh          LayerNormConfig.residual
// WEIGHTED    0, 1     1: there is a weight; see layer_norm.cuh                  LayerNormConfig.weighted
// The others: see rows.cuh.
#include "scalar.cuh"
#include "layer_norm_forward.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_forward_streaming(
    const x_t* __restrict__ x,                // (M, N)
    const residual_t* __restrict__ residual,  // (M, N) or null
    const weight_t* __restrict__ weight,      // (N) or null
    const weight_t* __restrict__ bias,        // (N) or null
    scalar_t* __restrict__ sum,               // (M, N): s; without a residual x itself, only read
    y_t* __restrict__ y,                      // (M, N)
    acc_t* __restrict__ stats,                // (2, M) or null
    long long M, long long N, acc_t eps) {
    __shared__ Moments parts[PARTS];
    const Operands of{x, residual, weight, bias, sum, y, stats, M, N, eps};
    const bool vectors = of.aligned();
    const long long row = blockIdx.x;
    Packed<scalar_t> held[1][VECTORS];
    Moments moments{0, 0, 0, 0};
    for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n; columns.start += SLICE) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) held[0][v] = of.load(row * N + columns.of(v), vectors);
        moments = join(moments, moments_of<y_t>(held[0], true, columns));
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = moments;
    __syncthreads();
    const acc_t one_by_n = acc_t(1) / acc_t(N);
    moments = combine(parts, acc_t(N), one_by_n);
    const Normalizer normalizer[1] = {Normalizer(moments, one_by_n, eps)};
    if (stats && threadIdx.x == 0) of.store_stats(row, moments, normalizer[0].rstd);
    const Affine affine(of, vectors);
    for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n; columns.start += SLICE) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) {
                const long long at = row * N + columns.of(v);
#if RESIDUAL
                held[0][v] = load_packed(sum + at, vectors);  // this thread stored these elements in the first pass
#else
                held[0][v] = load_packed(x + at, vectors);
#endif
            }
        write_normalized<1>(held, normalizer, 1, columns, affine, y + row * N, N);
    }
}
