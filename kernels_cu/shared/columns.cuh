// Sums over the rows of a matrix, column by column, in one pass over the memory and in a fixed order.
//
// A block has a strip of STRIP = WIDTH·VECTOR_WIDTH columns: WIDTH threads side by side, VECTOR_WIDTH columns each, HEIGHT
// rows at once. The CLUSTER blocks of a cluster share the rows of a strip, and `groups` clusters share them where one cluster
// per strip does not fill the GPU. Blocks of a cluster send their sums to each other (sm_90 and later), so one group needs no
// second kernel. With several groups, each group stores a row of sums.
//
// M, N and the launch's numbers alone decide which thread owns which row, and the order of every sum.
//
// Macro           values         meaning                                                set by
// BLOCK_THREADS   32 to 1024     threads of a block                                     geometry (ColumnsConfig.block)
// CLUSTER         1 to 8         blocks that share a strip's rows, see cluster.cuh      geometry (ColumnsConfig.cluster)
// VECTOR_WIDTH    1, 2, 4, 8     columns of a thread, see packed.cuh                    ColumnsConfig.vector_width
// WIDTH           a power of 2   threads of a block side by side                        ColumnsConfig.width, columns.strip_width
// ROWS_EACH       1 or more      rows that a thread has in flight                       ColumnsConfig.rows_each
// MIN_BLOCKS      1 to 32        blocks resident on a multiprocessor: caps registers    ColumnsConfig.min_blocks
#pragma once

#include "scalar.cuh"
#include "bulk.cuh"
#include "cluster.cuh"
#include "packed.cuh"

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 128
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef ROWS_EACH
#define ROWS_EACH 1
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif

constexpr int STRIP = WIDTH * VECTOR_WIDTH;                      // columns of a block
constexpr int HEIGHT = BLOCK_THREADS / WIDTH;                    // rows of a block at once
constexpr int LINES = WIDTH < 32 ? BLOCK_THREADS / 32 : HEIGHT;  // sums of a column that a block's warps have

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

    //   fetch(at)                   loads the operands of `use` for VECTOR_WIDTH elements that begin at `at`
    //   use(at, fetched, sums)      adds to sums[0..VECTOR_WIDTH), and may store other results
    //
    // ROWS_EACH fetches of a thread are in flight before the first is used.
    template <typename Fetch, typename Use>
    __device__ __forceinline__ void add_rows(long long M, long long N, acc_t (&sums)[VECTOR_WIDTH], Fetch fetch, Use use) const {
        if (column >= N) return;
        long long row = first_row;
        // The loop has a count, so that the compiler unrolls it, and fetches the rows of a turn before it uses the rows
        // of the turn before.
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

// Adds up the rows of a warp for COUNT sums of each column. The warp's first WIDTH lanes store the sums to `lines`.
template <int COUNT>
__device__ __forceinline__ void sum_rows_of_warp(acc_t (&sums)[COUNT][VECTOR_WIDTH], acc_t (&lines)[COUNT][LINES][STRIP]) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int rows = 16; rows >= WIDTH; rows /= 2)
#pragma unroll
        for (int k = 0; k < COUNT * VECTOR_WIDTH; ++k)
            sums[k / VECTOR_WIDTH][k % VECTOR_WIDTH] +=
                __shfl_xor_sync(0xffffffffu, sums[k / VECTOR_WIDTH][k % VECTOR_WIDTH], rows);
    if (WIDTH >= 32 || thread % 32 < WIDTH)
#pragma unroll
        for (int k = 0; k < COUNT * VECTOR_WIDTH; ++k)
            lines[k / VECTOR_WIDTH][thread / (WIDTH < 32 ? 32 : WIDTH)][thread % WIDTH * VECTOR_WIDTH + k % VECTOR_WIDTH] =
                sums[k / VECTOR_WIDTH][k % VECTOR_WIDTH];
}

struct ColumnPair {
    acc_t first, second;
};

// out[group, j] = the sum for column j over the group's rows. `add(strip, sums)` adds a thread's rows to `sums`.
template <typename Out, typename Add>
__device__ __forceinline__ void sum_columns(long long N, long long groups, Out* out, Add add) {
    constexpr int PAIRS = (STRIP + 1) / 2, SHARE = (PAIRS + CLUSTER - 1) / CLUSTER;  // pairs of columns: of a strip, of a block
    __shared__ acc_t lines[1][LINES][STRIP];
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
#endif
    cluster_arrive();  // the wait for the other blocks' counters overlaps with the pass over the rows
    acc_t sums[1][VECTOR_WIDTH];
#pragma unroll
    for (int k = 0; k < VECTOR_WIDTH; ++k) sums[0][k] = 0;
    add(strip, sums[0]);
    sum_rows_of_warp(sums, lines);
    __syncthreads();
    cluster_wait();
    for (int pair = thread; pair < PAIRS; pair += BLOCK_THREADS) {
        ColumnPair sum{0, 0};
#pragma unroll
        for (int i = 0; i < LINES; ++i) {
            sum.first += lines[0][i][2 * pair];
            if (STRIP > 1) sum.second += lines[0][i][(2 * pair + 1) % STRIP];
        }
#if CLUSTER > 1
        send(sum, &parts[block][pair % SHARE], pair / SHARE, &arrivals);
#else
        parts[0][pair] = sum;
#endif
    }
#if CLUSTER > 1
    // A block may not exit while other blocks send to its shared memory, so every block waits until all sums have
    // arrived.
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
