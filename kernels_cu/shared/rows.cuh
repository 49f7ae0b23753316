// Rows held in registers: a group of threads owns a row, loads the row once, reduces over the row, and writes it back.
//
// A group has ROW_THREADS threads of a block, in each block of a cluster. A block holds a slice of the row. A thread
// makes VECTORS accesses of VECTOR_WIDTH elements to the slice; the accesses of the group's threads interleave.
// VECTOR_WIDTH divides the length of a row, so an access lies wholly within the row or wholly beyond its end.
//
// The macros alone decide which thread owns which element, and the order of every sum. The bits of a row depend neither on the
// other rows nor on the row's address.
//
// Macro           values                 meaning                                                set by
// BLOCK_THREADS   32 to 1024             threads of a block                                     geometry (RowsConfig.block)
// CLUSTER         1 to 16                blocks on a row, see cluster.cuh                       geometry (RowsConfig.cluster)
// ROW_THREADS     2^i, or a multiple     threads of a block on a row                            RowsConfig.row_threads
//                 of 32
// VECTOR_WIDTH    1, 2, 4, 8             elements of an access, see packed.cuh                  RowsConfig.vector_width
// VECTORS         1 or more              accesses of a thread to a row                          RowsConfig.vectors
// MIN_BLOCKS      1 to 32                blocks resident on a multiprocessor: caps registers    RowsConfig.min_blocks
// FULL            0, 1                   1: a row fills all accesses, no bounds checks          RowsConfig.full
// INSIDE          0 to VECTORS           accesses of a thread that lie within a row that registers      ProgramConfig.inside
//                                        hold, whatever the thread: no bounds checks
// SPREAD          divides ROW_THREADS    this many threads share the accesses of one thread     ProgramConfig.spread
//                                        of the config for many rows, see row_passes.cuh
// FEW             0, 1                   1: for few rows. The grid has a block, or a cluster,   ProgramConfig.few_rows
//                                        for each row, and no block takes a second row
// UNIT            0 to VECTORS           accesses of a thread that are reduced together, see    ProgramConfig.unit
//                                        folds.cuh
#pragma once

#include "scalar.cuh"
#include "cluster.cuh"
#include "packed.cuh"

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 128
#endif
#ifndef ROW_THREADS
#define ROW_THREADS BLOCK_THREADS
#endif
#ifndef VECTORS
#define VECTORS 1
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#ifndef FULL
#define FULL 0
#endif
#ifndef INSIDE
#define INSIDE 0
#endif
#ifndef SPREAD
#define SPREAD 1
#endif
#ifndef FEW
#define FEW 0
#endif
#ifndef UNIT
#define UNIT 0
#endif

// `true` as a type: the argument for aligned arrays of functions whose last parameter is a template `Vectors`.
struct Always {
    __device__ __forceinline__ constexpr operator bool() const { return true; }
};

constexpr int GROUPS = BLOCK_THREADS / ROW_THREADS;          // groups of a block
constexpr int OWNERS = ROW_THREADS / SPREAD;                 // threads of a block that have a partial result of the row
constexpr int ROW_WARPS = OWNERS > 32 ? OWNERS / 32 : 1;     // their warps
constexpr int SLICE = ROW_THREADS * VECTORS * VECTOR_WIDTH;  // elements of a row that a block holds
constexpr int EACH_UNIT = UNIT > 0 ? UNIT : 1;               // accesses of a unit
// All groups of the grid have a row. The compiler does not know that thread numbers are below BLOCK_THREADS, and would compute
// the group and check the row before it loads.
constexpr bool ROW_EACH = FEW && GROUPS == 1;

__device__ __forceinline__ int group_of_block() { return ROW_EACH ? 0 : static_cast<int>(threadIdx.x) / ROW_THREADS; }

// The index of this thread's group among all groups of the grid.
__device__ __forceinline__ long long group_of_grid() {
    return blockIdx.x / CLUSTER * static_cast<long long>(GROUPS) + group_of_block();
}

// Returns the offset of a thread's v-th access in a slice.
__device__ __forceinline__ int place_of(int v) {
    const int thread = ROW_EACH ? static_cast<int>(threadIdx.x) : static_cast<int>(threadIdx.x) % ROW_THREADS;
    // The thread has every SPREAD-th unit of the accesses of the thread whose accesses it shares.
    if (UNIT > 0 && SPREAD > 1)
        return (((v / EACH_UNIT * SPREAD + thread / OWNERS) * EACH_UNIT + v % EACH_UNIT) * OWNERS + thread % OWNERS) *
               VECTOR_WIDTH;
    return (v * ROW_THREADS + thread) * VECTOR_WIDTH;
}

// The columns of one slice of a row of n elements.
struct Columns {
    int start, n;

    // The first column of this thread's v-th access, and whether the access lies within the row.
    __device__ __forceinline__ int of(int v) const { return start + place_of(v); }
    __device__ __forceinline__ bool has(int v) const { return FULL || v < INSIDE || of(v) < n; }
    // 1 / n: means multiply by 1 / n, since a division takes ten times as long as a product.
    __device__ __forceinline__ acc_t one_by_n() const { return acc_t(1) / acc_t(FULL ? CLUSTER * SLICE : n); }
};

// The columns of a slice that lies within the row: no bounds checks.
struct WholeColumns : Columns {
    __device__ __forceinline__ explicit WholeColumns(const Columns& at) : Columns(at) {}
    __device__ __forceinline__ constexpr bool has(int) const { return true; }
};

__device__ __forceinline__ Columns columns_of_block(long long n) { return {block_of_cluster() * SLICE, static_cast<int>(n)}; }

// Sums each of v[0] to v[COUNT - 1] over the threads of the group within a warp. All of these threads get the same
// bits.
template <int COUNT, int ALL> __device__ __forceinline__ void warp_sum_of(acc_t (&v)[ALL]) {
#pragma unroll
    for (int step = (ROW_THREADS < 32 ? ROW_THREADS : 32) / 2; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) v[i] += __shfl_xor_sync(0xffffffffu, v[i], step);
}

template <int COUNT> __device__ __forceinline__ void warp_sum(acc_t (&v)[COUNT]) { warp_sum_of<COUNT>(v); }

// Each warp on a row has a partial result of the row: a part. Every warp reads and combines all parts in the same
// order, so all warps get the same bits. In a warp, READERS threads read EACH_READS parts each, and sum over the
// READERS.
constexpr int PARTS = CLUSTER * ROW_WARPS;  // warps on one row
constexpr int READERS = PARTS > 16 ? 32 : PARTS > 8 ? 16 : PARTS > 4 ? 8 : PARTS > 2 ? 4 : PARTS;
constexpr int EACH_READS = (PARTS + READERS - 1) / READERS;

// Returns the index of the i-th part that this thread reads. An index from PARTS on names no part.
__device__ __forceinline__ int part_read(int i) { return static_cast<int>(threadIdx.x) % READERS + i * READERS; }

__device__ __forceinline__ acc_t readers_sum(acc_t v) {
#pragma unroll
    for (int step = READERS / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}
