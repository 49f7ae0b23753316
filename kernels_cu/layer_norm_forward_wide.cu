// Layer normalisation as in layer_norm_forward.cu, for wide rows: persistent blocks, the next rows prefetched (sm_90 and
// later).
//
//   y = x̂·γ + β,   x̂ = (s - mean)·rstd,   rstd = 1/√(var + eps),   mean and var over the N elements of a row of s
//
//   s: scalar_t (M, N)      arithmetic in acc_t      y: y_t (M, N)      γ, β: weight_t (N)      stats: acc_t (2, M)
//   The naive kernel is in layer_norm_forward.cu.
//
// A block, or a cluster of blocks, takes every `groups`-th row. Bulk copies bring the next STAGES rows into shared memory while
// the warps exchange a row's moments and while the row is written.
//
// Macro              values      meaning                                        set by
// STAGES             1 or more   rows in flight in shared memory, stages.cuh    forward_config (cupyops/ops/layer_norm/config.py)
// AFFINE_REGISTERS   0, 1, 2     2: registers keep weight and bias; 1: weight   LayerNormConfig.affine_registers
//                                alone; shared memory keeps the rest
// SUM_AHEAD          0, 1        1: the next row is summed before this row is   LayerNormConfig.sum_ahead
//                                stored, while the warps exchange moments
// RESIDUAL: see layer_norm_forward.cuh. WEIGHTED: see layer_norm.cuh. The others: see rows.cuh.
#include "scalar.cuh"
#include "exchange.cuh"
#include "layer_norm_forward.cuh"
#include "stages.cuh"

// Rows of x, and of the residual where there is one, prefetched by bulk copies. `at` is an element of s.
#if RESIDUAL
using Inputs = Stages<x_t, residual_t>;

__device__ __forceinline__ bool can_prefetch(const Operands& of) {
    return of.aligned() && Inputs::can_copy(of.N, of.x, of.residual);
}
__device__ __forceinline__ void prefetch(Inputs& stages, unsigned turn, const Operands& of, long long at) {
    stages.request(turn, of.x + at, of.residual + at);
}
__device__ __forceinline__ Packed<scalar_t> take(const Inputs& stages, unsigned turn, int v, const Operands& of, long long at) {
    return add_residual(stages.take<x_t, 0>(turn, v), stages.take<residual_t, sizeof(x_t)>(turn, v), of.sum + at, true);
}
#else
using Inputs = Stages<x_t>;

__device__ __forceinline__ bool can_prefetch(const Operands& of) { return of.aligned(); }
__device__ __forceinline__ void prefetch(Inputs& stages, unsigned turn, const Operands& of, long long at) {
    stages.request(turn, of.x + at);
}
__device__ __forceinline__ Packed<scalar_t> take(const Inputs& stages, unsigned turn, int v, const Operands&, long long) {
    return stages.take<x_t, 0>(turn, v);
}
#endif

#ifndef SUM_AHEAD
#define SUM_AHEAD 0
#endif
#ifndef AFFINE_REGISTERS
#define AFFINE_REGISTERS 0
#endif

// The block's slice of weight and bias, in registers or in shared memory behind the stages. L1 has too little room left for the
// slice, and reading the slice from L2 for every row takes twice the bandwidth of the row.
struct KeptAffine {
    static constexpr bool WEIGHT_HELD = AFFINE_REGISTERS > 0, BIAS_HELD = AFFINE_REGISTERS > 1;
    Packed<weight_t> weight[WEIGHT_HELD ? VECTORS : 1], bias[BIAS_HELD ? VECTORS : 1];
    KeptSlice<> kept;  // shared memory: the bias; before the bias, the weight if registers do not keep the weight
    bool vectors;

    __device__ __forceinline__ KeptAffine(const Operands& of, const Columns& columns, bool vectors)
        : kept{reinterpret_cast<weight_t*>(stage_memory + STAGES * Inputs::BYTES)}, vectors(vectors) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) {
                const Packed<weight_t> w = load_or(of.weight, 1, columns.of(v), vectors);
                const Packed<weight_t> b = load_or(of.bias, 0, columns.of(v), vectors);
                if (WEIGHT_HELD) weight[WEIGHT_HELD ? v : 0] = w;
                else kept.store(v, w);
                if (BIAS_HELD) bias[BIAS_HELD ? v : 0] = b;
                else kept_bias().store(v, b);
            }
    }

    __device__ __forceinline__ KeptSlice<> kept_bias() const { return {kept.memory + (WEIGHT_HELD ? 0 : SLICE)}; }
    __device__ __forceinline__ Packed<weight_t> weight_of(const Columns&, int v) const {
        if constexpr (WEIGHT_HELD) return weight[v];
        else return kept.load(v);
    }
    __device__ __forceinline__ Packed<weight_t> bias_of(const Columns&, int v) const {
        if constexpr (BIAS_HELD) return bias[v];
        else return kept_bias().load(v);
    }
};

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_forward_wide(
    const x_t* __restrict__ x,                // (M, N)
    const residual_t* __restrict__ residual,  // (M, N) or null
    const weight_t* __restrict__ weight,      // (N) or null
    const weight_t* __restrict__ bias,        // (N) or null
    scalar_t* __restrict__ sum,               // (M, N): s; without a residual x itself, only read
    y_t* __restrict__ y,                      // (M, N)
    acc_t* __restrict__ stats,                // (2, M) or null
    long long M, long long N, long long groups, acc_t eps) {
    __shared__ Arrivals arrivals[ROW_WARPS][STAGES];
    __shared__ AsyncExchange<Moments> exchange;
    const Operands of{x, residual, weight, bias, sum, y, stats, M, N, eps};
    const bool vectors = can_prefetch(of);
    const Columns columns = columns_of_block(N);
    const acc_t one_by_n = columns.one_by_n();
    const long long first = group_of_grid();
    Inputs stages(arrivals, columns);
    stages.open();
    exchange.init();
    auto request = [&](unsigned turn) {
        const long long row = first + turn * groups;
        if (vectors && row < M) prefetch(stages, turn, of, row * N + columns.start);
    };
    for (unsigned turn = 0; turn < STAGES; ++turn) request(turn);
    const KeptAffine affine(of, columns, vectors);
    sync_cluster();
    auto begin = [&](unsigned turn, Packed<scalar_t>(&row_of)[1][VECTORS]) {  // loads a row, and publishes the warp's moments
        const long long row = first + turn * groups;
        if (row >= M) return;
        if (vectors) stages.wait(turn);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            const long long at = row * N + columns.of(v);
            if (!vectors) row_of[0][v] = of.load(at, false);
            else row_of[0][v] = take(stages, turn, v, of, at);
        }
        request(turn + STAGES);
        exchange.publish(moments_of<y_t>(row_of[0], true, columns), turn);
    };
    Packed<scalar_t> held[1][VECTORS], next[1][VECTORS];
    if (SUM_AHEAD) begin(0, next);
    unsigned turn = 0;
    for (long long row = first; row < M; row += groups, ++turn) {
        if (SUM_AHEAD) {
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) held[0][v] = next[0][v];
            begin(turn + 1, next);
        } else begin(turn, held);
        exchange.wait(turn);
        const Moments moments = combine(exchange.collect(turn), acc_t(columns.n), one_by_n);
        const Normalizer normalizer[1] = {Normalizer(moments, one_by_n, eps)};
        if (stats && columns.of(0) == 0) of.store_stats(row, moments, normalizer[0].rstd);
        write_normalized<1>(held, normalizer, 1, columns, affine, y + row * N, N);
    }
}
