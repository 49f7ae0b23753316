// Sums over the rows of a matrix, column by column, in one pass over its memory and in a fixed order.
//
// A block has a strip of STRIP = WIDTH·VECTOR_WIDTH columns: WIDTH threads side by side, VECTOR_WIDTH columns each, HEIGHT rows at
// once. The rows of a strip are dealt out among CLUSTER blocks of a cluster, and where that does not fill a GPU among
// `groups` such clusters. Blocks of a cluster send their sums to each other (sm_90 and later), so one group needs no
// second kernel; of several groups each leaves a row of sums.
//
// Who owns which row, and the order of every sum, follow from M, N and the launch's numbers alone.
#pragma once

#include "bulk.cuh"
#include "packed.cuh"

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 128
#endif

#ifndef WIDTH
#define WIDTH 1
#endif

// Rows that a thread has on their way at once.
#ifndef ROWS_EACH
#define ROWS_EACH 1
#endif

#ifndef CLUSTER
#define CLUSTER 1
#endif

#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif

#if CLUSTER > 1
#define STRIP_CLUSTER __cluster_dims__(CLUSTER, 1, 1)
#else
#define STRIP_CLUSTER
#endif

constexpr int STRIP = WIDTH * VECTOR_WIDTH;             // columns of a block
constexpr int HEIGHT = BLOCK_THREADS / WIDTH;    // rows of a block at once

__device__ __forceinline__ int block_of_cluster() {
#if CLUSTER > 1
    return static_cast<int>(__clusterRelativeBlockRank());
#else
    return 0;
#endif
}

// The columns of a block, and which of their rows a thread takes.
struct Strip {
    long long group, first_column, column, first_row, step;

    __device__ __forceinline__ Strip(long long N, long long groups) {
        const long long tile = blockIdx.x / CLUSTER, strips = (N + STRIP - 1) / STRIP;
        const int across = static_cast<int>(threadIdx.x) % WIDTH, down = static_cast<int>(threadIdx.x) / WIDTH;
        group = tile / strips;
        first_column = tile % strips * STRIP;
        column = first_column + across * VECTOR_WIDTH;
        first_row = (group * CLUSTER + block_of_cluster()) * HEIGHT + down;
        step = groups * CLUSTER * HEIGHT;
    }

    //   fetch(at)                   what is to be had of VECTOR_WIDTH elements that begin at `at`
    //   use(at, fetched, sums)      adds to sums[0..VECTOR_WIDTH), and does what else there is to do with them
    //
    // All of a thread's fetches are under way before the first is used.
    template <typename Fetch, typename Use>
    __device__ __forceinline__ void add_rows(long long M, long long N, acc_t (&sums)[VECTOR_WIDTH], Fetch fetch, Use use) const {
        if (column >= N) return;
        long long row = first_row;
        // Counted, so that the compiler unrolls it and asks for rows before it has used those of the turn before.
        const int turns = static_cast<int>(row < M ? ((M - row - 1) / step + 1) / ROWS_EACH : 0);
        for (int turn = 0; turn < turns; ++turn, row += ROWS_EACH * step) {
            decltype(fetch(0ll)) held[ROWS_EACH];
#pragma unroll
            for (int i = 0; i < ROWS_EACH; ++i) held[i] = fetch((row + i * step) * N + column);
#pragma unroll
            for (int i = 0; i < ROWS_EACH; ++i) use((row + i * step) * N + column, held[i], sums);
        }
        for (; row < M; row += step) use(row * N + column, fetch(row * N + column), sums);
    }
};

struct ColumnPair {
    acc_t first, second;
};

// out[group, j] = Σ of what `add(strip, sums)` adds for the column j over the group's rows.
template <typename Out, typename Add>
__device__ __forceinline__ void sum_columns(long long N, long long groups, Out* out, Add add) {
    constexpr int PAIRS = (STRIP + 1) / 2, SHARE = (PAIRS + CLUSTER - 1) / CLUSTER;  // of columns; those of a block
    constexpr int LINES = WIDTH < 32 ? BLOCK_THREADS / 32 : HEIGHT;
    __shared__ acc_t lines[LINES][STRIP];
    __shared__ ColumnPair parts[CLUSTER][SHARE];
    const Strip strip(N, groups);
    const int thread = static_cast<int>(threadIdx.x), block = block_of_cluster();
    const int own = PAIRS - block * SHARE < SHARE ? PAIRS - block * SHARE : SHARE;
#if CLUSTER > 1
    __shared__ Arrivals arrivals;
    if (thread == 0) {
        arrival_init(&arrivals, 1);
        arrive_expecting(&arrivals, own > 0 ? own * CLUSTER * sizeof(ColumnPair) : 0);
    }
    // That the others count arrivals is known long before the first is sent.
    __cluster_barrier_arrive();
#endif
    acc_t sums[VECTOR_WIDTH];
#pragma unroll
    for (int k = 0; k < VECTOR_WIDTH; ++k) sums[k] = 0;
    add(strip, sums);
    // The rows of a warp meet in its first threads.
#pragma unroll
    for (int rows = 16; rows >= WIDTH; rows /= 2)
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], rows);
    if (WIDTH >= 32 || thread % 32 < WIDTH) {
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) lines[thread / (WIDTH < 32 ? 32 : WIDTH)][thread % WIDTH * VECTOR_WIDTH + k] = sums[k];
    }
    __syncthreads();
#if CLUSTER > 1
    __cluster_barrier_wait();
#endif
    for (int pair = thread; pair < PAIRS; pair += BLOCK_THREADS) {
        ColumnPair sum{0, 0};
#pragma unroll
        for (int i = 0; i < LINES; ++i) {
            sum.first += lines[i][2 * pair];
            if (STRIP > 1) sum.second += lines[i][(2 * pair + 1) % STRIP];
        }
#if CLUSTER > 1
        send(sum, &parts[block][pair % SHARE], pair / SHARE, &arrivals);
#else
        parts[0][pair] = sum;
#endif
    }
#if CLUSTER > 1
    // Nobody leaves whom others still send to: each waits for all of its own.
    arrival_wait(&arrivals, 0);
#else
    __syncthreads();
#endif
    // Each block writes its share of the columns.
    const long long first = strip.first_column + block * SHARE * 2;
    for (int j = thread; j < 2 * own && block * SHARE * 2 + j < STRIP; j += BLOCK_THREADS) {
        acc_t sum = 0;
#pragma unroll
        for (int part = 0; part < CLUSTER; ++part) sum += j % 2 ? parts[part][j / 2].second : parts[part][j / 2].first;
        if (first + j < N) out[strip.group * N + first + j] = convert<Out>(sum);
    }
}
