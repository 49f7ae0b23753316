// The gradients of layer normalisation as in layer_norm_backward.cu, for wide rows: persistent blocks, the next rows prefetched
// into shared memory (sm_90 and later).
//
//   dL/ds = rstd·(w - mean(w) - x̂·mean(w·x̂)),    dL/dγ = Σ_rows g·x̂,    dL/dβ = Σ_rows g,    g = dL/dy,  w = g·γ
//
//   g: y_t (M, N)      s, dL/ds: scalar_t (M, N)      γ: weight_t (N)      arithmetic, and the parts of dL/dγ and dL/dβ: acc_t
//   The naive kernel is in layer_norm_backward.cu.
//
// The next row is summed while the warps exchange this row's sums. Of STAGES rows, one is stored and one is summed; with two
// stages, a row is summed as soon as it has been requested.
//
// A row is read from its stage twice, since the registers hold dL/dγ and dL/dβ (layer_norm_column_gradients.cuh).
//
// Macro    values      meaning                                       set by
// STAGES   2 or more   rows in flight in shared memory, stages.cuh   backward_config (cupyops/ops/layer_norm/backward_tables.py)
// WANT_AFFINE, GRAD_SUM: see layer_norm_backward.cuh. WEIGHTED: see layer_norm.cuh. The others: see rows.cuh.
#include "scalar.cuh"
#include "exchange.cuh"
#include "layer_norm_column_gradients.cuh"
#include "stages.cuh"

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_backward_wide(
    const y_t* __restrict__ grad_y,         // (M, N)
    const scalar_t* __restrict__ s,         // (M, N)
    const acc_t* __restrict__ stats,        // (2, M)
    const weight_t* __restrict__ weight,    // (N) or null
    const scalar_t* __restrict__ grad_sum,  // (M, N) or null
    scalar_t* __restrict__ grad_x,          // (M, N)
    acc_t* __restrict__ partial,            // (2, parts, N) or null
    long long M, long long N, long long parts) {
    static_assert(STAGES > 1, "the row that is summed ahead has a stage of its own");
    typedef Stages<y_t, scalar_t> Inputs;
    __shared__ Arrivals arrivals[ROW_WARPS][STAGES];
    __shared__ AsyncExchange<TwoSums> exchange;
    const Operands of{grad_y, s, stats, weight, grad_sum, grad_x, M, N};
    // If all elements have one size, rows that are aligned for vector accesses are aligned for bulk copies, too.
    const bool vectors = sizeof(y_t) == sizeof(scalar_t) ? of.aligned() : of.aligned() && Inputs::can_copy(N, grad_y, s);
    const Columns columns = columns_of_block(N);
    const long long first = group_of_grid();
    const acc_t one_by_n = columns.one_by_n();
    Inputs stages(arrivals, columns);
    stages.open();
    exchange.init();
    auto request = [&](unsigned turn) {
        const long long at = (first + turn * parts) * N + columns.start;
        if (vectors && first + turn * parts < M) stages.request(turn, grad_y + at, s + at);
    };
    for (unsigned turn = 0; turn < STAGES; ++turn) request(turn);
    ColumnGradients gradients(weight, columns, vectors, nullptr);
    sync_cluster();
    auto load = [&](unsigned turn, long long at, int v, Packed<y_t>& g, Packed<scalar_t>& h) {
        g = vectors ? stages.template take<y_t, 0>(turn, v) : load_packed(grad_y + at, false);
        h = vectors ? stages.template take<scalar_t, sizeof(y_t)>(turn, v) : load_packed(s + at, false);
    };
    auto begin = [&](unsigned turn) {  // sums the row of a turn, and publishes the warp's sums
        const long long at_row = first + turn * parts;
        if (at_row >= M) return;
        const BackwardRow row = of.row(at_row, one_by_n);
        acc_t sums[2] = {0, 0};
        if (vectors) stages.wait(turn);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            Packed<y_t> g;
            Packed<scalar_t> h;
            load(turn, at_row * N + columns.of(v), v, g, h);
            gradients.add(v, row, g, h, sums);
        }
        warp_sum(sums);
        exchange.publish({sums[0], sums[1]}, turn);
    };
    begin(0);
    unsigned turn = 0;
    for (long long at_row = first; at_row < M; at_row += parts, ++turn) {
        Packed<scalar_t> more[VECTORS];
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) more[v] = of.load_more(at_row * N + columns.of(v), vectors);
        begin(turn + 1);
        acc_t sums[2];
        exchange.wait(turn);
        sum_parts(exchange.collect(turn), sums);
        const BackwardRow row = of.row(at_row, one_by_n);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            const long long at = at_row * N + columns.of(v);
            Packed<y_t> g;
            Packed<scalar_t> h;
            load(turn, at, v, g, h);
            row.store(g, h, gradients.weight_of(v), sums, more[v], grad_x + at, vectors);
        }
        request(turn + STAGES);
    }
    if (WANT_AFFINE) gradients.store(partial, columns, first, parts);
}
