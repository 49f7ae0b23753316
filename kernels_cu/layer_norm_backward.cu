// The gradients of layer normalisation (layer_norm.cu). With g = dL/dy and w = g·γ, what reaches s through the mean and the
// deviation is the part of w along 1 and along x̂, which the normalisation takes away:
//
//   dL/ds = rstd·(w - mean(w) - x̂·mean(w·x̂)),    dL/dγ = Σ_rows g·x̂,    dL/dβ = Σ_rows g
//
//   g: y_t (M, N)      s, dL/ds: scalar_t (M, N)      γ: weight_t (N)      arithmetic, and the parts of dL/dγ and dL/dβ: acc_t
//
// In registers, with stages, or streaming, as the forward. Each block leaves its part of dL/dγ and dL/dβ, and column_sums
// adds them up in a fixed order: nothing is atomic.
#include "layer_norm.cuh"

#ifndef WANT_X
#define WANT_X 1
#endif

#ifndef WANT_AFFINE
#define WANT_AFFINE 1
#endif

#ifndef GRAD_SUM
#define GRAD_SUM 0
#endif

// w = g·γ, rounded. A product that is fused with what follows has more digits, and would not cancel against its own mean.
__device__ __forceinline__ acc_t product(acc_t g, acc_t weight) {
    if constexpr (sizeof(acc_t) == 8) return __dmul_rn(g, weight);
    else return __fmul_rn(g, weight);
}

// A row of the backward: its statistics, and what one thread does with its elements.
struct BackwardRow {
    acc_t mean, rstd;

    // The sums of w and of w·x̂ grow by LANES elements.
    __device__ __forceinline__ void sum(
        const Packed<y_t>& g, const Packed<scalar_t>& s, const Packed<weight_t>& weight, acc_t (&sums)[2]) const {
#pragma unroll
        for (int k = 0; k < LANES; ++k) {
            const acc_t w = product(g[k], weight[k]);
            sums[0] += w;
            sums[1] = fma(w, (s[k] - mean) * rstd, sums[1]);
        }
    }

    // So do this thread's parts of dL/dγ and dL/dβ.
    __device__ __forceinline__ void sum_affine(
        const Packed<y_t>& g, const Packed<scalar_t>& s, acc_t (&grad_weight)[LANES], acc_t (&grad_bias)[LANES]) const {
#pragma unroll
        for (int k = 0; k < LANES; ++k) {
            grad_weight[k] = fma(g[k], (s[k] - mean) * rstd, grad_weight[k]);
            grad_bias[k] += g[k];
        }
    }

    // dL/ds of LANES elements, with mean(w) and mean(w·x̂); where s itself has been used further, that gradient, `more`, is
    // added.
    __device__ __forceinline__ void store(
        const Packed<y_t>& g, const Packed<scalar_t>& s, const Packed<weight_t>& weight, const acc_t (&means)[2],
        const Packed<scalar_t>& more, scalar_t* grad_x, bool vectors) const {
        acc_t out[LANES];
        const acc_t slope = -rstd * means[1];
#pragma unroll
        for (int k = 0; k < LANES; ++k) out[k] = rstd * fma(s[k] - mean, slope, product(g[k], weight[k]) - means[0]);
        if (GRAD_SUM)
#pragma unroll
            for (int k = 0; k < LANES; ++k) out[k] += more[k];
        Packed<scalar_t> packed;
        packed.set(out);
        store_packed(grad_x, packed, vectors);
    }
};

__device__ __forceinline__ Packed<scalar_t> load_more(const scalar_t* grad_sum, long long at, bool vectors) {
    if (GRAD_SUM) return load_packed(grad_sum + at, vectors);
    return {};
}

// A thread's columns of γ, dL/dγ and dL/dβ, over all rows of its group.
struct ColumnGradients {
    acc_t grad_weight[VECTORS][LANES], grad_bias[VECTORS][LANES];
    Packed<weight_t> weight[VECTORS];

    __device__ __forceinline__ ColumnGradients(const weight_t* weights, const Columns& columns, bool vectors) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
#pragma unroll
            for (int k = 0; k < LANES; ++k) grad_weight[v][k] = grad_bias[v][k] = 0;
            if (WANT_X && columns.has(v)) weight[v] = load_or(weights, 1, columns.of(v), vectors);
        }
    }

    __device__ __forceinline__ void take(
        int v, const BackwardRow& row, const Packed<y_t>& g, const Packed<scalar_t>& s, acc_t (&sums)[2]) {
        if (WANT_AFFINE) row.sum_affine(g, s, grad_weight[v], grad_bias[v]);
        if (WANT_X) row.sum(g, s, weight[v], sums);
    }

    // The sums over the groups of a block, in their order, to one row of `partial`.
    __device__ __forceinline__ void leave(acc_t* partial, const Columns& columns, long long part, long long parts) {
        __shared__ acc_t total[GROUPS > 1 ? 2 : 1][GROUPS > 1 ? SLICE : 1];
        for (int group = 0; group < GROUPS; ++group) {
            if (group_of_block() == group)
#pragma unroll
                for (int v = 0; v < VECTORS; ++v)
#pragma unroll
                    for (int k = 0; k < LANES; ++k) {
                        if constexpr (GROUPS > 1) {
                            acc_t& w = total[0][place_of(v) + k];
                            acc_t& b = total[1][place_of(v) + k];
                            w = grad_weight[v][k] += group ? w : acc_t(0);
                            b = grad_bias[v][k] += group ? b : acc_t(0);
                        }
                        if (group == GROUPS - 1 && columns.has(v)) {
                            partial[part * columns.n + columns.of(v) + k] = grad_weight[v][k];
                            partial[(parts + part) * columns.n + columns.of(v) + k] = grad_bias[v][k];
                        }
                    }
            if (GROUPS > 1) __syncthreads();
        }
    }
};

// Where the warps on a row, or the blocks of its cluster, tell each other its sums: two tables, since a thread may still be
// reading one when another is a barrier ahead.
#if CLUSTER > 1
typedef Meeting<TwoSums> Parts;
#else
typedef TwoSums Parts[2][GROUPS][PARTS];
#endif

// The rows of a group.
template <typename Vectors>
__device__ __forceinline__ void backward_rows(
    const y_t* grad_y, const scalar_t* s, const acc_t* stats, const weight_t* weight, const scalar_t* grad_sum,
    scalar_t* grad_x, acc_t* partial, long long M, long long N, long long parts, long long blocks, Parts& meeting,
    Vectors vectors) {
    Columns columns = columns_of_block(N);
    long long part = blockIdx.x / CLUSTER;
    if (!WANT_X) {
        const long long tiles = blocks / parts;
        columns.start = static_cast<int>(part % tiles) * SLICE;
        part /= tiles;
    }
    const long long groups = parts * GROUPS, first = part * GROUPS + group_of_block();
    const acc_t one_by_n = columns.one_by_n();
    ColumnGradients gradients(weight, columns, vectors);
    Packed<y_t> g[VECTORS], next_g[VECTORS];
    Packed<scalar_t> h[VECTORS], next_h[VECTORS], more[VECTORS];
    acc_t next_mean = 0, next_rstd = 0;
    auto fetch = [&](long long row) {
        if (row >= M) return;
        next_mean = stats[row];
        next_rstd = stats[M + row];
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            next_g[v] = load_packed(grad_y + row * N + columns.of(v), vectors);
            next_h[v] = load_packed(s + row * N + columns.of(v), vectors);
        }
    };
    fetch(first);
#if CLUSTER > 1
    if (threadIdx.x == 0) meeting.open();
    sync_row_blocks();
#endif
    unsigned turn = 0;
    // All groups of a block go round as often, since they share barriers.
    for (long long base = part * GROUPS; base < M; base += groups, ++turn) {
        const long long at_row = base + group_of_block();
        const BackwardRow row{next_mean, next_rstd};
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) g[v] = next_g[v], h[v] = next_h[v];
        fetch(at_row + groups);
        acc_t sums[2] = {0, 0};
        if (at_row < M)
#pragma unroll
            for (int v = 0; v < VECTORS; ++v)
                if (columns.has(v)) {
                    more[v] = load_more(grad_sum, at_row * N + columns.of(v), vectors);  // on its way while sums meet
                    gradients.take(v, row, g[v], h[v], sums);
                }
        if (!WANT_X) continue;
        warp_sum(sums);
#if CLUSTER > 1
        meeting.tell({sums[0], sums[1]}, turn);
        sum_parts(meeting.ask(turn), sums);
#else
        if constexpr (PARTS > 1) {
            TwoSums* mine = meeting[turn % 2][group_of_block()];
            if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32 % ROW_WARPS] = {sums[0], sums[1]};
            __syncthreads();
            sum_parts(mine, sums);
        }
#endif
        const acc_t means[2] = {sums[0] * one_by_n, sums[1] * one_by_n};
        if (at_row < M)
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) {
                if (!columns.has(v)) break;
                const long long at = at_row * N + columns.of(v);
                row.store(g[v], h[v], gradients.weight[v], means, more[v], grad_x + at, vectors);
            }
    }
    if (WANT_AFFINE) gradients.leave(partial, columns, part, parts);
}

__device__ __noinline__ void unaligned_rows(
    const y_t* grad_y, const scalar_t* s, const acc_t* stats, const weight_t* weight, const scalar_t* grad_sum,
    scalar_t* grad_x, acc_t* partial, long long M, long long N, long long parts, long long blocks, Parts& meeting) {
    backward_rows(grad_y, s, stats, weight, grad_sum, grad_x, partial, M, N, parts, blocks, meeting, false);
}

// As many groups as run at once, each taking every groups-th row. A thread keeps its columns, so its part of dL/dγ and
// dL/dβ grows in registers over all rows of the group. The next row is on its way while this one is summed.
//
// Without dL/dx nothing has to be summed over a row: each block has a slice, and so many blocks share a row.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_backward(
    const y_t* __restrict__ grad_y,         // (M, N)
    const scalar_t* __restrict__ s,         // (M, N)
    const acc_t* __restrict__ stats,        // (2, M)
    const weight_t* __restrict__ weight,    // (N) or null
    const scalar_t* __restrict__ grad_sum,  // (M, N) or null
    scalar_t* __restrict__ grad_x,          // (M, N) or null
    acc_t* __restrict__ partial,            // (2, parts, N) or null
    long long M, long long N, long long parts, long long blocks) {
    __shared__ Parts meeting;
    const bool vectors = all_aligned(grad_y, s, weight, grad_sum, grad_x);
    if (!ALIGNED_APART)
        backward_rows(grad_y, s, stats, weight, grad_sum, grad_x, partial, M, N, parts, blocks, meeting, vectors);
    else if (vectors)
        backward_rows(grad_y, s, stats, weight, grad_sum, grad_x, partial, M, N, parts, blocks, meeting, Always());
    else unaligned_rows(grad_y, s, stats, weight, grad_sum, grad_x, partial, M, N, parts, blocks, meeting);
}

// As layer_norm_forward_wide: the next row is summed while a row's sums meet. A row is read from its stage a second time,
// since registers hold dL/dγ and dL/dβ.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_backward_wide(
    const y_t* __restrict__ grad_y,         // (M, N)
    const scalar_t* __restrict__ s,         // (M, N)
    const acc_t* __restrict__ stats,        // (2, M)
    const weight_t* __restrict__ weight,    // (N) or null
    const scalar_t* __restrict__ grad_sum,  // (M, N) or null
    scalar_t* __restrict__ grad_x,          // (M, N)
    acc_t* __restrict__ partial,            // (2, parts, N) or null
    long long M, long long N, long long parts) {
    __shared__ Arrivals arrivals[ROW_WARPS][STAGES];
    __shared__ Meeting<TwoSums> meeting;
    typedef Stages<y_t, scalar_t> Inputs;
    // Where both are of one size, what is aligned for accesses is for copies.
    const bool vectors = sizeof(y_t) == sizeof(scalar_t)
                             ? all_aligned(grad_y, s, weight, grad_sum, grad_x)
                             : all_aligned(grad_y, s, weight, grad_sum, grad_x) && Inputs::can_copy(N, grad_y, s);
    const Columns columns = columns_of_block(N);
    const long long first = group_of_grid();
    const acc_t one_by_n = columns.one_by_n();
    Inputs stages(arrivals, columns);
    stages.open();
    if (threadIdx.x == 0) meeting.open();
    auto request = [&](unsigned turn) {
        const long long at = (first + turn * parts) * N + columns.start;
        if (vectors && first + turn * parts < M) stages.request(turn, grad_y + at, s + at);
    };
    for (unsigned turn = 0; turn < STAGES; ++turn) request(turn);
    ColumnGradients gradients(weight, columns, vectors);
    sync_row_blocks();
    auto load = [&](unsigned turn, long long at, int v, Packed<y_t>& g, Packed<scalar_t>& h) {
        g = vectors ? stages.template take<y_t, 0>(turn, v) : load_packed(grad_y + at, false);
        h = vectors ? stages.template take<scalar_t, sizeof(y_t)>(turn, v) : load_packed(s + at, false);
    };
    auto begin = [&](unsigned turn) {  // takes the row of a turn, and tells what it knows of it
        const long long at_row = first + turn * parts;
        if (at_row >= M) return;
        const BackwardRow row{stats[at_row], stats[M + at_row]};
        acc_t sums[2] = {0, 0};
        if (vectors) stages.wait(turn);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            Packed<y_t> g;
            Packed<scalar_t> h;
            load(turn, at_row * N + columns.of(v), v, g, h);
            gradients.take(v, row, g, h, sums);
        }
        warp_sum(sums);
        meeting.tell({sums[0], sums[1]}, turn);
    };
    begin(0);
    unsigned turn = 0;
    for (long long at_row = first; at_row < M; at_row += parts, ++turn) {
        Packed<scalar_t> more[VECTORS];
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) more[v] = load_more(grad_sum, at_row * N + columns.of(v), vectors);
        begin(turn + 1);
        acc_t sums[2];
        sum_parts(meeting.ask(turn), sums);
        const acc_t means[2] = {sums[0] * one_by_n, sums[1] * one_by_n};
        const BackwardRow row{stats[at_row], stats[M + at_row]};
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            const long long at = at_row * N + columns.of(v);
            Packed<y_t> g;
            Packed<scalar_t> h;
            load(turn, at, v, g, h);
            row.store(g, h, gradients.weight[v], means, more[v], grad_x + at, vectors);
        }
        request(turn + STAGES);
    }
    if (WANT_AFFINE) gradients.leave(partial, columns, first, parts);
}

// A row a block, slice after slice: once for the sums, once for dL/ds.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_backward_streaming(
    const y_t* __restrict__ grad_y,         // (M, N)
    const scalar_t* __restrict__ s,         // (M, N)
    const acc_t* __restrict__ stats,        // (2, M)
    const weight_t* __restrict__ weight,    // (N) or null
    const scalar_t* __restrict__ grad_sum,  // (M, N) or null
    scalar_t* __restrict__ grad_x,          // (M, N)
    long long M, long long N) {
    __shared__ TwoSums table[PARTS];
    const bool vectors = all_aligned(grad_y, s, weight, grad_sum, grad_x);
    const long long at_row = blockIdx.x;
    const BackwardRow row{stats[at_row], stats[M + at_row]};
    acc_t sums[2] = {0, 0};
    for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n; columns.start += SLICE)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) {
                const long long at = at_row * N + columns.of(v);
                row.sum(load_packed(grad_y + at, vectors), load_packed(s + at, vectors),
                        load_or(weight, 1, columns.of(v), vectors), sums);
            }
    warp_sum(sums);
    if (threadIdx.x % 32 == 0) table[threadIdx.x / 32] = {sums[0], sums[1]};
    __syncthreads();
    sum_parts(table, sums);
    const acc_t one_by_n = acc_t(1) / acc_t(N);
    const acc_t means[2] = {sums[0] * one_by_n, sums[1] * one_by_n};
    for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n; columns.start += SLICE)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) {
                const long long at = at_row * N + columns.of(v);
                row.store(load_packed(grad_y + at, vectors), load_packed(s + at, vectors),
                          load_or(weight, 1, columns.of(v), vectors), means, load_more(grad_sum, at, vectors), grad_x + at,
                          vectors);
            }
}
