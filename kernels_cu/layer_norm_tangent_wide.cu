// The tangent of layer normalisation as in layer_norm_tangent.cu, for wide rows: persistent blocks, the next rows prefetched into
// shared memory (sm_90 and later).
//
//   ẏ = γ·rstd·(ẋ - mean(ẋ) - x̂·mean(ẋ·x̂)) + γ̇·x̂ + β̇,   x̂ = (x - mean)·rstd,   means over the N elements of a row
//
//   x, ẋ: scalar_t (M, N)      ẏ: y_t (M, N)      γ, γ̇, β̇: weight_t (N), each may be absent      arithmetic in acc_t
//   stats: acc_t (2, M), mean and rstd of the forward
//   The naive kernel is in layer_norm_tangent.cu.
//
// A block, or a cluster of blocks, takes every `groups`-th row. Bulk copies bring the next STAGES rows of x and of ẋ into shared
// memory while the warps exchange a row's sums and while ẏ is stored. Registers hold the current row. γ, γ̇ and β̇ are read where a
// row is stored: each block reads the same slice for all its rows, and L1 keeps the slice where the stages leave room for it.
//
// Macro       values      meaning                                           set by
// STAGES      1 or more   rows in flight in shared memory, stages.cuh       config_of (cupyops/ops/layer_norm/tangent.py)
// SUM_AHEAD   0, 1        1: the next row is summed before this row is      LayerNormConfig.sum_ahead
//                         stored, while the warps exchange sums
// WEIGHTED: see layer_norm.cuh. The others: see rows.cuh.
#include "scalar.cuh"
#include "exchange.cuh"
#include "layer_norm_tangent.cuh"
#include "stages.cuh"

#ifndef SUM_AHEAD
#define SUM_AHEAD 0
#endif

typedef Stages<scalar_t, scalar_t> Inputs;
typedef AsyncExchange<TwoSums> RowExchange;

// A thread's elements of a row in registers.
struct HeldRow {
    TangentRow row;
    Packed<scalar_t> dx[VECTORS], x[VECTORS];
};

// ẏ of every `groups`-th row. Rows that are not aligned are loaded without stages.
template <typename Vectors>
__device__ __forceinline__ void tangent_rows(
    const Operands& of, long long groups, RowExchange& exchange, Arrivals (&arrivals)[ROW_WARPS][STAGES], Vectors vectors) {
    const Columns columns = columns_of_block(of.N);
    const acc_t one_by_n = columns.one_by_n();
    const long long first = group_of_grid();
    Inputs stages(arrivals, columns);
    stages.open();
    exchange.init();
    auto request = [&](unsigned turn) {
        const long long row = first + turn * groups, at = row * of.N + columns.start;
        if (vectors && row < of.M) stages.request(turn, of.tangent_x + at, of.x + at);
    };
    for (unsigned turn = 0; turn < STAGES; ++turn) request(turn);
    auto statistics_of = [&](unsigned turn) {
        const long long row = first + turn * groups;
        return row < of.M ? TangentRow{of.stats[row], of.stats[of.M + row], one_by_n} : TangentRow{0, 0, one_by_n};
    };
    TangentRow coming = statistics_of(0);
    sync_cluster();
    auto begin = [&](unsigned turn, HeldRow& held) {  // loads a row, and publishes the warp's sums
        const long long row = first + turn * groups;
        if (row >= of.M) return;
        held.row = coming;
        if (vectors) stages.wait(turn);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            const long long at = row * of.N + columns.of(v);
            held.dx[v] = vectors ? stages.template take<scalar_t, 0>(turn, v) : load_packed(of.tangent_x + at, false);
            held.x[v] = vectors ? stages.template take<scalar_t, sizeof(scalar_t)>(turn, v) : load_packed(of.x + at, false);
        }
        request(turn + STAGES);
        acc_t sums[2] = {0, 0};
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            held.row.sum(held.dx[v], held.x[v], sums);
        }
        warp_sum(sums);
        exchange.publish({sums[0], sums[1]}, turn);
        coming = statistics_of(turn + 1);  // in flight while the warps exchange sums
    };
    HeldRow held, next;
    if (SUM_AHEAD) begin(0, next);
    unsigned turn = 0;
    for (long long row = first; row < of.M; row += groups, ++turn) {
        if (SUM_AHEAD) {
            held = next;
            begin(turn + 1, next);
        } else begin(turn, held);
        acc_t sums[2];
        exchange.wait(turn);
        sum_parts(exchange.collect(turn), sums);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            held.row.store(held.dx[v], held.x[v], sums, of, columns.of(v), of.tangent_y + row * of.N, vectors);
        }
    }
}

// Takes the operands one by one: the compiler forgets that the pointers in a struct passed by value point to global memory.
template <typename... Operand>
__device__ __noinline__ void unaligned_rows(
    RowExchange& exchange, Arrivals (&arrivals)[ROW_WARPS][STAGES], long long groups, Operand... operands) {
    tangent_rows(Operands{operands...}, groups, exchange, arrivals, false);
}

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_tangent_wide(
    const scalar_t* __restrict__ tangent_x,       // (M, N)
    const scalar_t* __restrict__ x,               // (M, N)
    const acc_t* __restrict__ stats,              // (2, M)
    const weight_t* __restrict__ weight,          // (N) or null
    const weight_t* __restrict__ tangent_weight,  // (N) or null
    const weight_t* __restrict__ tangent_bias,    // (N) or null
    y_t* __restrict__ tangent_y,                  // (M, N)
    long long M, long long N, long long groups) {
    static_assert(VECTOR_WIDTH * sizeof(scalar_t) % 16 == 0, "bulk copies have multiples of 16 bytes");
    __shared__ Arrivals arrivals[ROW_WARPS][STAGES];
    __shared__ RowExchange exchange;
    const Operands of{tangent_x, x, stats, weight, tangent_weight, tangent_bias, tangent_y, M, N};
    if (of.aligned()) tangent_rows(of, groups, exchange, arrivals, Always());
    else unaligned_rows(exchange, arrivals, groups, tangent_x, x, stats, weight, tangent_weight, tangent_bias, tangent_y, M, N);
}
