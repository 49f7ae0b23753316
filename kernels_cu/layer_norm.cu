// Layer normalisation (Ba, Kiros and Hinton, 2016) of the rows of a matrix, or of the sum of two.
//
//   y = x̂·γ + β,   x̂ = (s - mean)·rstd,   rstd = 1/√(var + eps),   mean and var over the N elements of a row of s
//
//   s = x, or x + residual rounded to scalar_t      s: scalar_t (M, N)      arithmetic in acc_t      y: y_t (M, N)
//   γ weight, β bias: weight_t (N), each may be absent      stats: acc_t (2, M), mean and rstd, or null
//
// Three ways, by the length of a row: in registers, several rows a block, or one in a cluster of blocks
// (layer_norm_forward); blocks that stay, with the next rows on their way (_wide, sm_90 and later); and rows that fit
// nowhere, read twice (_streaming).
#include "layer_norm.cuh"

#ifndef ROWS_EACH
#define ROWS_EACH 1
#endif

#ifndef AFFINE_SHARED
#define AFFINE_SHARED 0
#endif

#ifndef RESIDUAL
#define RESIDUAL 0
#endif

// 1 where γ and β are asked for along with the row, of few rows: later they would take another way to memory, which nothing
// else hides.
#ifndef AFFINE_HELD
#define AFFINE_HELD 0
#endif

// γ and β. Blocks that stay for many rows keep their part in shared memory (AFFINE_SHARED): what L1 has left beside that
// would not hold it, and to read it from L2 for each row takes twice the bandwidth of the row.
struct Affine {
    const weight_t* weight;
    const weight_t* bias;
    bool vectors;
    weight_t* kept;  // (2, SLICE) in shared memory, or null

    __device__ __forceinline__ void keep(const Columns& columns) const {
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) {
                store_packed(kept + place_of(v), load_or(weight, 1, columns.of(v), vectors), true);
                store_packed(kept + SLICE + place_of(v), load_or(bias, 0, columns.of(v), vectors), true);
            }
    }

    __device__ __forceinline__ Packed<weight_t> weight_of(const Columns& columns, int v) const {
        if (AFFINE_SHARED) return load_packed(kept + place_of(v), true);
        return load_or(weight, 1, columns.of(v), vectors);
    }

    __device__ __forceinline__ Packed<weight_t> bias_of(const Columns& columns, int v) const {
        if (AFFINE_SHARED) return load_packed(kept + SLICE + place_of(v), true);
        return load_or(bias, 0, columns.of(v), vectors);
    }
};

// γ and β in registers.
struct HeldAffine {
    Packed<weight_t> weight[VECTORS], bias[VECTORS];
    bool vectors;

    __device__ __forceinline__ HeldAffine(
        const weight_t* weights, const weight_t* biases, const Columns& columns, bool vectors) : vectors(vectors) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) {
                weight[v] = load_or(weights, 1, columns.of(v), vectors);
                bias[v] = load_or(biases, 0, columns.of(v), vectors);
            }
    }

    __device__ __forceinline__ Packed<weight_t> weight_of(const Columns&, int v) const { return weight[v]; }
    __device__ __forceinline__ Packed<weight_t> bias_of(const Columns&, int v) const { return bias[v]; }
};

// What turns a row's elements into x̂: s - mean first, which is exact where it matters, and only then the factor.
struct Normalizer {
    acc_t mean, rstd, shift;  // shift: what the mean lacks, times -rstd

    __device__ __forceinline__ Normalizer() {}
    __device__ __forceinline__ Normalizer(const Moments& row, acc_t one_by_n, acc_t eps) : mean(row.mean) {
        rstd = rsqrt(fma(row.squares, one_by_n, eps));
        shift = -row.rest * rstd;
    }
};

__device__ __forceinline__ void store_stats(acc_t* stats, long long row, long long M, const Moments& moments, acc_t rstd) {
    stats[row] = moments.mean + moments.rest;
    stats[M + row] = rstd;
}

// y of R rows, the first at `y`.
template <int R, typename Affines>
__device__ __forceinline__ void write_normalized(
    const Packed<scalar_t> (&held)[R][VECTORS], const Normalizer (&of)[R], int rows, const Columns& columns,
    const Affines& affine, y_t* y, long long N) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        if (!columns.has(v)) break;
        const Packed<weight_t> weight = affine.weight_of(columns, v), bias = affine.bias_of(columns, v);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (r >= rows) break;
            acc_t out[VECTOR_WIDTH];
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k)
                out[k] = fma(fma(held[r][v][k] - of[r].mean, of[r].rstd, of[r].shift), weight[k], bias[k]);
            Packed<y_t> packed;
            packed.set(out);
            store_packed(y + r * N + columns.of(v), packed, affine.vectors);
        }
    }
}

// s where there is a residual: rounded to scalar_t and stored, as if the sum had been an operation of its own.
template <typename X, typename Residual>
__device__ __forceinline__ Packed<scalar_t> add_residual(
    const Packed<X>& x, const Packed<Residual>& residual, scalar_t* sum, bool vectors) {
    acc_t s[VECTOR_WIDTH];
#pragma unroll
    for (int k = 0; k < VECTOR_WIDTH; ++k) s[k] = x[k] + residual[k];
    Packed<scalar_t> packed;
    packed.set(s);
    store_packed(sum, packed, vectors);
    return packed;
}

template <typename X, typename Residual>
__device__ __forceinline__ Packed<scalar_t> load_sum(
    const X* x, const Residual* residual, scalar_t* sum, long long at, bool vectors) {
#if RESIDUAL
    return add_residual(load_packed(x + at, vectors), load_packed(residual + at, vectors), sum + at, vectors);
#else
    return load_packed(x + at, vectors);
#endif
}

// What the warps on a row, or the blocks of its cluster, tell each other of it.
#if CLUSTER > 1
typedef Meeting<Moments> Parts;
#else
typedef Moments Parts[ROWS_EACH][GROUPS][PARTS];
#endif

// The rows of a group.
template <typename Vectors>
__device__ __forceinline__ void forward_rows(
    const x_t* x, const residual_t* residual, const weight_t* weight, const weight_t* bias, scalar_t* sum, y_t* y,
    acc_t* stats, long long M, long long N, acc_t eps, Parts& parts, Vectors vectors) {
    const Columns columns = columns_of_block(N);
    const acc_t one_by_n = columns.one_by_n();
    const long long first = group_of_grid() * ROWS_EACH;
    const int rows = M - first < ROWS_EACH ? static_cast<int>(M - first) : ROWS_EACH;  // none, or less, in the last block
#if CLUSTER > 1
    if (threadIdx.x == 0) parts.open();
    __cluster_barrier_arrive();
#endif
    Packed<scalar_t> held[ROWS_EACH][VECTORS];
#pragma unroll
    for (int r = 0; r < ROWS_EACH; ++r)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (r < rows && columns.has(v))
                held[r][v] = load_sum(x, residual, sum, (first + r) * N + columns.of(v), vectors);
#if AFFINE_HELD
    const HeldAffine affine(weight, bias, columns, vectors);
#else
    const Affine affine{weight, bias, vectors, nullptr};
#endif
    Moments moments[ROWS_EACH];
#pragma unroll
    for (int r = 0; r < ROWS_EACH; ++r) moments[r] = moments_of<y_t>(held[r], r < rows, columns);
#if CLUSTER > 1
    __cluster_barrier_wait();
    parts.tell(moments[0], 0);
    moments[0] = combine(parts.ask(0), acc_t(columns.n), one_by_n);
#else
    if constexpr (PARTS > 1) {
        if (threadIdx.x % 32 == 0)
#pragma unroll
            for (int r = 0; r < ROWS_EACH; ++r) parts[r][group_of_block()][threadIdx.x / 32 % ROW_WARPS] = moments[r];
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS_EACH; ++r) moments[r] = combine(parts[r][group_of_block()], acc_t(columns.n), one_by_n);
    }
#endif
    Normalizer of[ROWS_EACH];
#pragma unroll
    for (int r = 0; r < ROWS_EACH; ++r) {
        of[r] = Normalizer(moments[r], one_by_n, eps);
        if (stats && r < rows && columns.of(0) == 0) store_stats(stats, first + r, M, moments[r], of[r].rstd);
    }
    write_normalized<ROWS_EACH>(held, of, rows, columns, affine, y + first * N, N);
}

__device__ __noinline__ void unaligned_rows(
    const x_t* x, const residual_t* residual, const weight_t* weight, const weight_t* bias, scalar_t* sum, y_t* y,
    acc_t* stats, long long M, long long N, acc_t eps, Parts& parts) {
    forward_rows(x, residual, weight, bias, sum, y, stats, M, N, eps, parts, false);
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
    __shared__ Parts parts;
    const bool vectors = all_aligned(x, residual, weight, bias, sum, y);
    if (!ALIGNED_APART) forward_rows(x, residual, weight, bias, sum, y, stats, M, N, eps, parts, vectors);
    else if (vectors) forward_rows(x, residual, weight, bias, sum, y, stats, M, N, eps, parts, Always());
    else unaligned_rows(x, residual, weight, bias, sum, y, stats, M, N, eps, parts);
}

// Blocks that stay. The next rows are on their way while a row's moments meet and while it is written.
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
    __shared__ Meeting<Moments> meeting;
#if RESIDUAL
    typedef Stages<x_t, residual_t> Inputs;
    const bool vectors = all_aligned(x, residual, weight, bias, sum, y) && Inputs::can_copy(N, x, residual);
#else
    typedef Stages<x_t> Inputs;
    const bool vectors = all_aligned(x, residual, weight, bias, sum, y);
#endif
    const Columns columns = columns_of_block(N);
    const acc_t one_by_n = columns.one_by_n();
    const long long first = group_of_grid();
    Inputs stages(arrivals, columns);
    stages.open();
    if (threadIdx.x == 0) meeting.open();
    auto request = [&](unsigned turn) {
        const long long row = first + turn * groups;
        if (!vectors || row >= M) return;
#if RESIDUAL
        stages.request(turn, x + row * N + columns.start, residual + row * N + columns.start);
#else
        stages.request(turn, x + row * N + columns.start);
#endif
    };
    for (unsigned turn = 0; turn < STAGES; ++turn) request(turn);
    const Affine affine{weight, bias, vectors, reinterpret_cast<weight_t*>(stage_memory + STAGES * Inputs::BYTES)};
    if (AFFINE_SHARED) affine.keep(columns);
    sync_row_blocks();
    Packed<scalar_t> held[1][VECTORS];
    unsigned turn = 0;
    for (long long row = first; row < M; row += groups, ++turn) {
        if (vectors) stages.wait(turn);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!columns.has(v)) break;
            const long long at = row * N + columns.of(v);
            if (!vectors) {
                held[0][v] = load_sum(x, residual, sum, at, false);
            } else {
#if RESIDUAL
                held[0][v] = add_residual(
                    stages.template take<x_t, 0>(turn, v), stages.template take<residual_t, sizeof(x_t)>(turn, v), sum + at, true);
#else
                held[0][v] = stages.template take<x_t, 0>(turn, v);
#endif
            }
        }
        request(turn + STAGES);
        meeting.tell(moments_of<y_t>(held[0], true, columns), turn);
        const Moments moments = combine(meeting.ask(turn), acc_t(columns.n), one_by_n);
        const Normalizer of[1] = {Normalizer(moments, one_by_n, eps)};
        if (stats && columns.of(0) == 0) store_stats(stats, row, M, moments, of[0].rstd);
        write_normalized<1>(held, of, 1, columns, affine, y + row * N, N);
    }
}

// A row a block, slice after slice: once for the moments, once for y.
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
    const bool vectors = all_aligned(x, residual, weight, bias, sum, y);
    const long long row = blockIdx.x;
    Packed<scalar_t> held[1][VECTORS];
    Moments moments{0, 0, 0, 0};
    for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n; columns.start += SLICE) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) held[0][v] = load_sum(x, residual, sum, row * N + columns.of(v), vectors);
        moments = join(moments, moments_of<y_t>(held[0], true, columns));
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = moments;
    __syncthreads();
    const acc_t one_by_n = acc_t(1) / acc_t(N);
    moments = combine(parts, acc_t(N), one_by_n);
    const Normalizer of[1] = {Normalizer(moments, one_by_n, eps)};
    if (stats && threadIdx.x == 0) store_stats(stats, row, M, moments, of[0].rstd);
    const Affine affine{weight, bias, vectors, nullptr};
    for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n; columns.start += SLICE) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (columns.has(v)) {
                const long long at = row * N + columns.of(v);
#if RESIDUAL
                held[0][v] = load_packed(sum + at, vectors);  // written by this thread
#else
                held[0][v] = load_packed(x + at, vectors);
#endif
            }
        write_normalized<1>(held, of, 1, columns, affine, y + row * N, N);
    }
}
