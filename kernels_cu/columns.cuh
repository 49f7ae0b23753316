// Sums over the rows of a matrix, column by column, in one pass over its memory and in a fixed order.
//
// A block has a strip of STRIP = WIDTH·LANES columns: WIDTH threads side by side, LANES columns each, HEIGHT rows at
// once. The rows of a strip are dealt out among CLUSTER blocks of a cluster, and where that does not fill a GPU among
// `groups` such clusters. Blocks of a cluster add up their sums by way of each other's shared memory (sm_90 and later), so
// one group needs no second kernel; of several groups each leaves a row of sums.
//
// Who owns which row, and the order of every sum, follow from M, N and the launch's numbers alone.
#pragma once

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

constexpr int STRIP = WIDTH * LANES;             // columns of a block
constexpr int HEIGHT = BLOCK_THREADS / WIDTH;    // rows of a block at once

__device__ __forceinline__ int block_of_cluster() {
#if CLUSTER > 1
    return static_cast<int>(__clusterRelativeBlockRank());
#else
    return 0;
#endif
}

__device__ __forceinline__ void sync_cluster() {
#if CLUSTER > 1
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
#else
    __syncthreads();
#endif
}

// A shared variable of another block of the cluster.
__device__ __forceinline__ const acc_t* in_block(int block, const acc_t* mine) {
#if CLUSTER > 1
    return static_cast<const acc_t*>(__cluster_map_shared_rank(mine, block));
#else
    return mine;
#endif
}

// out[group, j] = Σ of what `use` adds for the column j over the group's rows.
//
//   fetch(at)                   what is to be had of LANES elements that begin at `at`
//   use(at, fetched, sums)      adds to sums[0..LANES), and does what else there is to do with them
//
// All of a thread's fetches are under way before the first is used.
template <typename Fetch, typename Use, typename Out>
__device__ __forceinline__ void sum_columns(long long M, long long N, long long groups, Out* out, Fetch fetch, Use use) {
    const long long tile = blockIdx.x / CLUSTER, strips = (N + STRIP - 1) / STRIP;
    const long long group = tile / strips, first_column = tile % strips * STRIP;
    const int across = static_cast<int>(threadIdx.x) % WIDTH, down = static_cast<int>(threadIdx.x) / WIDTH;
    const long long column = first_column + across * LANES, step = groups * CLUSTER * HEIGHT;
    acc_t sums[LANES];
#pragma unroll
    for (int k = 0; k < LANES; ++k) sums[k] = 0;
    if (column < N) {
        long long row = (group * CLUSTER + block_of_cluster()) * HEIGHT + down;
        for (; row + (ROWS_EACH - 1) * step < M; row += ROWS_EACH * step) {
            decltype(fetch(0ll)) held[ROWS_EACH];
#pragma unroll
            for (int i = 0; i < ROWS_EACH; ++i) held[i] = fetch((row + i * step) * N + column);
#pragma unroll
            for (int i = 0; i < ROWS_EACH; ++i) use((row + i * step) * N + column, held[i], sums);
        }
        for (; row < M; row += step) use(row * N + column, fetch(row * N + column), sums);
    }
    __shared__ acc_t rows[HEIGHT][STRIP];
    __shared__ acc_t total[STRIP];
#pragma unroll
    for (int k = 0; k < LANES; ++k) rows[down][across * LANES + k] = sums[k];
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.x); j < STRIP; j += BLOCK_THREADS) {
        acc_t sum = 0;
        for (int i = 0; i < HEIGHT; ++i) sum += rows[i][j];
        total[j] = sum;
    }
    sync_cluster();
    // Each block writes its share of the columns.
    for (int j = static_cast<int>(threadIdx.x) * CLUSTER + block_of_cluster(); j < STRIP; j += BLOCK_THREADS * CLUSTER) {
        acc_t sum = 0;
        for (int block = 0; block < CLUSTER; ++block) sum += *in_block(block, total + j);
        if (first_column + j < N) out[group * N + first_column + j] = convert<Out>(sum);
    }
    // Nobody's shared memory goes before all have read it.
    if (CLUSTER > 1) sync_cluster();
}
