// The gradients of layer normalisation (layer_norm.cu). With g = dL/dy and w = g·γ, what reaches s through the mean and the
// deviation is the part of w along 1 and along x̂, which the normalisation takes away:
//
//   dL/ds = rstd·(w - mean(w) - x̂·mean(w·x̂)),    dL/dγ = Σ_rows g·x̂,    dL/dβ = Σ_rows g
//
//   g: y_t (M, N)      s, dL/ds: scalar_t (M, N)      γ: weight_t (N)      arithmetic, and the parts of dL/dγ and dL/dβ: acc_t
//
// In registers, with stages, or streaming, as the forward. Each block leaves its part of dL/dγ and dL/dβ, and column_sums
// adds them up in a fixed order: nothing is atomic. Of few rows, and without dL/dγ and dL/dβ, no block stays (_apart).
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

// Of a strip of columns: threads side by side, and rows that a thread has on their way.
#ifndef WIDTH
#define WIDTH 8
#endif

#ifndef STRIP_ROWS
#define STRIP_ROWS 4
#endif

// Rounded, and not fused with what follows.
__device__ __forceinline__ acc_t product(acc_t a, acc_t b) {
    if constexpr (sizeof(acc_t) == 8) return __dmul_rn(a, b);
    else return __fmul_rn(a, b);
}

// w = g·γ. Fused with what follows it would have more digits, and not cancel against its own mean.
__device__ __forceinline__ acc_t weighted(acc_t g, acc_t weight) { return WEIGHTED ? product(g, weight) : g; }

// A row of the backward: its statistics, and what one thread does with its elements.
struct BackwardRow {
    acc_t mean, rstd;

    // The sums of w and of w·x̂ grow by VECTOR_WIDTH elements.
    __device__ __forceinline__ void sum(
        const Packed<y_t>& g, const Packed<scalar_t>& s, const Packed<weight_t>& weight, acc_t (&sums)[2]) const {
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) {
            const acc_t w = weighted(g[k], weight[k]);
            sums[0] += w;
            sums[1] = fma(w, (s[k] - mean) * rstd, sums[1]);
        }
    }

    // So do this thread's parts of dL/dγ and dL/dβ.
    __device__ __forceinline__ void sum_affine(
        const Packed<y_t>& g, const Packed<scalar_t>& s, acc_t (&grad_weight)[VECTOR_WIDTH], acc_t (&grad_bias)[VECTOR_WIDTH]) const {
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) {
            grad_weight[k] = fma(g[k], (s[k] - mean) * rstd, grad_weight[k]);
            grad_bias[k] += g[k];
        }
    }

    // dL/ds of VECTOR_WIDTH elements, with the sums of w and of w·x̂ over the row; where s itself has been used further, that
    // gradient, `more`, is added. What is fused is said: the ways of a row's length give it the same bits.
    __device__ __forceinline__ void store(
        const Packed<y_t>& g, const Packed<scalar_t>& s, const Packed<weight_t>& weight, const acc_t (&sums)[2],
        acc_t one_by_n, const Packed<scalar_t>& more, scalar_t* grad_x, bool vectors) const {
        acc_t out[VECTOR_WIDTH];
        const acc_t mean_of_w = product(sums[0], one_by_n), slope = -rstd * product(sums[1], one_by_n);
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) {
            const acc_t in_deviations = fma(s[k] - mean, slope, weighted(g[k], weight[k]) - mean_of_w);
            out[k] = GRAD_SUM ? fma(rstd, in_deviations, more[k]) : rstd * in_deviations;
        }
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
    acc_t grad_weight[VECTORS][VECTOR_WIDTH], grad_bias[VECTORS][VECTOR_WIDTH];
    Packed<weight_t> weight[VECTORS];

    __device__ __forceinline__ ColumnGradients(const weight_t* weights, const Columns& columns, bool vectors) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) grad_weight[v][k] = grad_bias[v][k] = 0;
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
                    for (int k = 0; k < VECTOR_WIDTH; ++k) {
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
        if (at_row < M)
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) {
                if (!columns.has(v)) break;
                const long long at = at_row * N + columns.of(v);
                row.store(g[v], h[v], gradients.weight[v], sums, one_by_n, more[v], grad_x + at, vectors);
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

constexpr int STRIP = WIDTH * VECTOR_WIDTH;           // columns of a block
constexpr int HEIGHT = BLOCK_THREADS / WIDTH;  // rows of a block at once
constexpr int LINES = BLOCK_THREADS / (WIDTH < 32 ? 32 : WIDTH);

typedef acc_t Lines[2][WANT_AFFINE ? LINES : 1][WANT_AFFINE ? STRIP : 1];

// dL/dγ and dL/dβ of a strip of columns, by all rows.
template <typename Vectors>
__device__ __forceinline__ void backward_strip(
    const y_t* grad_y, const scalar_t* s, const acc_t* stats, weight_t* grad_weight, weight_t* grad_bias, long long M,
    long long N, Lines& lines, Vectors vectors) {
    const int thread = static_cast<int>(threadIdx.x), across = thread % WIDTH * VECTOR_WIDTH;
    const long long first = blockIdx.x * static_cast<long long>(STRIP), column = first + across;
    acc_t sums[2][VECTOR_WIDTH];
#pragma unroll
    for (int k = 0; k < VECTOR_WIDTH; ++k) sums[0][k] = sums[1][k] = 0;
    if (column < N)
        for (long long row = thread / WIDTH; row < M; row += STRIP_ROWS * HEIGHT) {
            Packed<y_t> g[STRIP_ROWS];
            Packed<scalar_t> h[STRIP_ROWS];
            BackwardRow of[STRIP_ROWS];
#pragma unroll
            for (int i = 0; i < STRIP_ROWS; ++i) {
                // Beyond the last it is loaded again, since what is asked for each load holds up the others.
                const long long at = row + i * HEIGHT < M ? row + i * HEIGHT : M - 1;
                of[i] = {stats[at], stats[M + at]};
                g[i] = load_packed(grad_y + at * N + column, vectors);
                h[i] = load_packed(s + at * N + column, vectors);
            }
#pragma unroll
            for (int i = 0; i < STRIP_ROWS; ++i)
                if (row + i * HEIGHT < M) of[i].sum_affine(g[i], h[i], sums[0], sums[1]);
        }
    // The rows of a warp meet in its first threads, those of all warps in shared memory.
#pragma unroll
    for (int rows = 16; rows >= WIDTH; rows /= 2)
#pragma unroll
        for (int k = 0; k < 2 * VECTOR_WIDTH; ++k)
            sums[k / VECTOR_WIDTH][k % VECTOR_WIDTH] += __shfl_xor_sync(0xffffffffu, sums[k / VECTOR_WIDTH][k % VECTOR_WIDTH], rows);
    if (WIDTH >= 32 || thread % 32 < WIDTH)
#pragma unroll
        for (int k = 0; k < 2 * VECTOR_WIDTH; ++k)
            lines[k / VECTOR_WIDTH][thread / (WIDTH < 32 ? 32 : WIDTH)][across + k % VECTOR_WIDTH] = sums[k / VECTOR_WIDTH][k % VECTOR_WIDTH];
    __syncthreads();
    for (int j = thread; j < 2 * STRIP; j += BLOCK_THREADS) {
        acc_t total = 0;
#pragma unroll
        for (int i = 0; i < LINES; ++i) total += lines[j / STRIP][i][j % STRIP];
        weight_t* out = j < STRIP ? grad_weight : grad_bias;
        if (out && first + j % STRIP < N) out[first + j % STRIP] = convert<weight_t>(total);
    }
}

// dL/ds of a row. All that it needs is asked for before any of it is used.
template <typename Vectors>
__device__ __forceinline__ void backward_row(
    const y_t* grad_y, const scalar_t* s, const acc_t* stats, const weight_t* weights, const scalar_t* grad_sum,
    scalar_t* grad_x, long long M, long long N, long long at_row, Parts& meeting, Vectors vectors) {
    const Columns columns = columns_of_block(N);
    const bool any = at_row < M;
#if CLUSTER > 1
    if (threadIdx.x == 0) meeting.open();
    __cluster_barrier_arrive();
#endif
    Packed<y_t> g[VECTORS];
    Packed<scalar_t> h[VECTORS], more[VECTORS];
    Packed<weight_t> weight[VECTORS];
    const BackwardRow row{any ? stats[at_row] : acc_t(0), any ? stats[M + at_row] : acc_t(0)};
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v)) {
            const long long at = at_row * N + columns.of(v);
            g[v] = load_packed(grad_y + at, vectors);
            h[v] = load_packed(s + at, vectors);
            weight[v] = load_or(weights, 1, columns.of(v), vectors);
            more[v] = load_more(grad_sum, at, vectors);
        }
    const acc_t one_by_n = columns.one_by_n();
    acc_t sums[2] = {0, 0};
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v)) row.sum(g[v], h[v], weight[v], sums);
    warp_sum(sums);
#if CLUSTER > 1
    __cluster_barrier_wait();
    meeting.tell({sums[0], sums[1]}, 0);
    sum_parts(meeting.ask(0), sums);
#else
    if constexpr (PARTS > 1) {
        TwoSums* mine = meeting[0][group_of_block()];
        if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32 % ROW_WARPS] = {sums[0], sums[1]};
        __syncthreads();
        sum_parts(mine, sums);
    }
#endif
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v))
            row.store(g[v], h[v], weight[v], sums, one_by_n, more[v], grad_x + at_row * N + columns.of(v), vectors);
}

template <typename Vectors>
__device__ __forceinline__ void backward_apart(
    const y_t* grad_y, const scalar_t* s, const acc_t* stats, const weight_t* weight, const scalar_t* grad_sum,
    scalar_t* grad_x, weight_t* grad_weight, weight_t* grad_bias, long long M, long long N, long long strips,
    Parts& meeting, Lines& lines, Vectors vectors) {
    if constexpr (WANT_AFFINE)
        if (blockIdx.x / CLUSTER < strips) {
            backward_strip(grad_y, s, stats, grad_weight, grad_bias, M, N, lines, vectors);
            return;
        }
    const long long row = group_of_grid() - strips * GROUPS;
    backward_row(grad_y, s, stats, weight, grad_sum, grad_x, M, N, row, meeting, vectors);
}

__device__ __noinline__ void unaligned_apart(
    const y_t* grad_y, const scalar_t* s, const acc_t* stats, const weight_t* weight, const scalar_t* grad_sum,
    scalar_t* grad_x, weight_t* grad_weight, weight_t* grad_bias, long long M, long long N, long long strips,
    Parts& meeting, Lines& lines) {
    backward_apart(
        grad_y, s, stats, weight, grad_sum, grad_x, grad_weight, grad_bias, M, N, strips, meeting, lines, false);
}

// No block stays. The first have a strip of columns each, of which they make dL/dγ and dL/dβ by all rows; to each group of the
// others there is one row. Both need no more than the statistics, so one launch does it, at the price of reading g and s twice:
// of few rows the second time from L2. Without dL/dγ and dL/dβ there are no strips, and no registers are kept for them.
//
// strips, blocks: clusters of blocks.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_backward_apart(
    const y_t* __restrict__ grad_y,         // (M, N)
    const scalar_t* __restrict__ s,         // (M, N)
    const acc_t* __restrict__ stats,        // (2, M)
    const weight_t* __restrict__ weight,    // (N) or null
    const scalar_t* __restrict__ grad_sum,  // (M, N) or null
    scalar_t* __restrict__ grad_x,          // (M, N) or null
    weight_t* __restrict__ grad_weight,     // (N) or null
    weight_t* __restrict__ grad_bias,       // (N) or null
    long long M, long long N, long long strips, long long blocks) {
    __shared__ Parts meeting;
    __shared__ Lines lines;
    if (all_aligned(grad_y, s, weight, grad_sum, grad_x))
        backward_apart(
            grad_y, s, stats, weight, grad_sum, grad_x, grad_weight, grad_bias, M, N, strips, meeting, lines, Always());
    else
        unaligned_apart(
            grad_y, s, stats, weight, grad_sum, grad_x, grad_weight, grad_bias, M, N, strips, meeting, lines);
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
        const BackwardRow row{stats[at_row], stats[M + at_row]};
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            const long long at = at_row * N + columns.of(v);
            Packed<y_t> g;
            Packed<scalar_t> h;
            load(turn, at, v, g, h);
            row.store(g, h, gradients.weight[v], sums, one_by_n, more[v], grad_x + at, vectors);
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
    for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n; columns.start += SLICE)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) {
                const long long at = at_row * N + columns.of(v);
                row.store(load_packed(grad_y + at, vectors), load_packed(s + at, vectors),
                          load_or(weight, 1, columns.of(v), vectors), sums, one_by_n,
                          load_more(grad_sum, at, vectors), grad_x + at, vectors);
            }
}
