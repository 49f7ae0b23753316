// Rows held in registers: a group of threads owns a row, loads it once, sums over it, and writes it back.
//
// A group is ROW_THREADS threads of a block, a power of 2 or whole warps, in each of CLUSTER blocks. Each block has a slice
// of the row; its threads take turns by accesses of VECTOR_WIDTH elements, VECTORS accesses each. VECTOR_WIDTH divides the length of a
// row, so an access lies within it or beyond it.
//
// Who owns which element, and the order of every sum, follow from these constants alone: a row's bits depend neither on
// its neighbours nor on its address.
#pragma once

#include "packed.cuh"
#include "bulk.cuh"

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 128
#endif

#ifndef ROW_THREADS
#define ROW_THREADS BLOCK_THREADS
#endif

#ifndef VECTORS
#define VECTORS 1
#endif

#ifndef CLUSTER
#define CLUSTER 1
#endif

// 1 where a row fills all accesses of its threads, so that none need be asked whether it lies within.
#ifndef FULL
#define FULL 0
#endif

// Of the threads on a row, so many parts have a slice each, as the blocks of a cluster do: one block then takes a row in the
// order in which a cluster takes it, and gives it the same bits.
#ifndef FOLDED
#define FOLDED 1
#endif

// 1 where aligned rows have code of their own, in which nothing is asked for each access and loads go out in one go, and
// other rows are a call away. It pays with most cuts; with some, registers run short.
#ifndef ALIGNED_APART
#define ALIGNED_APART 0
#endif

// Aligned, as a constant.
struct Always {
    __device__ __forceinline__ constexpr operator bool() const { return true; }
};

#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_CLUSTERS
#endif

constexpr int GROUPS = BLOCK_THREADS / ROW_THREADS;                  // groups of a block
constexpr int ROW_WARPS = ROW_THREADS > 32 ? ROW_THREADS / 32 : 1;  // warps of a block on one row
constexpr int SLICE = ROW_THREADS * VECTORS * VECTOR_WIDTH;                // elements of a row that a block holds

__device__ __forceinline__ int group_of_block() { return static_cast<int>(threadIdx.x) / ROW_THREADS; }

// Of all groups of the grid, the one that this thread belongs to.
__device__ __forceinline__ long long group_of_grid() {
    return blockIdx.x / CLUSTER * static_cast<long long>(GROUPS) + group_of_block();
}

__device__ __forceinline__ int block_of_row() {
#if CLUSTER > 1
    return static_cast<int>(__clusterRelativeBlockRank());
#else
    return 0;
#endif
}

// Where a thread's v-th access begins in a slice.
__device__ __forceinline__ int place_of(int v) {
    constexpr int SIDE_BY_SIDE = ROW_THREADS / FOLDED;
    const int thread = static_cast<int>(threadIdx.x) % ROW_THREADS;
    return ((thread / SIDE_BY_SIDE * VECTORS + v) * SIDE_BY_SIDE + thread % SIDE_BY_SIDE) * VECTOR_WIDTH;
}

// The columns of one slice of a row of n elements.
struct Columns {
    int start, n;

    __device__ __forceinline__ int of(int v) const { return start + place_of(v); }
    __device__ __forceinline__ bool has(int v) const { return FULL || of(v) < n; }
    // What means are taken by. A division takes ten times as long as a product.
    __device__ __forceinline__ acc_t one_by_n() const { return acc_t(1) / acc_t(FULL ? CLUSTER * SLICE : n); }
};

__device__ __forceinline__ Columns columns_of_block(long long n) { return {block_of_row() * SLICE, static_cast<int>(n)}; }

// All threads of the blocks on a row have come this far.
__device__ __forceinline__ void sync_row_blocks() {
#if CLUSTER > 1
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
#else
    __syncthreads();
#endif
}

// Each of the first COUNT becomes its sum over the threads of the group that are in one warp, the same bits in all of them.
template <int COUNT, int ALL> __device__ __forceinline__ void warp_sum_of(acc_t (&v)[ALL]) {
#pragma unroll
    for (int step = (ROW_THREADS < 32 ? ROW_THREADS : 32) / 2; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) v[i] += __shfl_xor_sync(0xffffffffu, v[i], step);
}

template <int COUNT> __device__ __forceinline__ void warp_sum(acc_t (&v)[COUNT]) { warp_sum_of<COUNT>(v); }

// What all warps on a row know, each warp reads for itself: the same order of sums, so the same bits.
constexpr int PARTS = CLUSTER * ROW_WARPS;  // warps on one row
constexpr int READERS = PARTS > 16 ? 32 : PARTS > 8 ? 16 : PARTS > 4 ? 8 : PARTS > 2 ? 4 : PARTS;  // lanes that read
constexpr int EACH_READS = (PARTS + READERS - 1) / READERS;                                       // parts a lane

__device__ __forceinline__ int part_read(int i) { return static_cast<int>(threadIdx.x) % READERS + i * READERS; }

__device__ __forceinline__ acc_t readers_sum(acc_t v) {
#pragma unroll
    for (int step = READERS / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

struct TwoSums {
    acc_t of[2];
};

__device__ __forceinline__ void sum_parts(const TwoSums* parts, acc_t (&sums)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sums[i] = 0;
#pragma unroll
        for (int p = 0; p < EACH_READS; ++p) sums[i] += part_read(p) < PARTS ? parts[part_read(p)].of[i] : acc_t(0);
        sums[i] = readers_sum(sums[i]);
    }
}

// Where the warps on a row tell each other what they know of it, those of the other blocks of a cluster, too (sm_90 and
// later). A warp may tell of the next row before it asks about this one, so that telling takes time that it has other
// work for. It then is up to two rows ahead of the slowest in what it tells, and four tables take turns.
template <typename Known> struct Meeting {
    alignas(16) Known table[4][PARTS];
    Arrivals arrivals[4];

    // One thread; nobody meets before all threads of the row's blocks know of it.
    __device__ __forceinline__ void open() {
        for (int i = 0; i < 4; ++i) arrival_init(arrivals + i, CLUSTER > 1 ? 1 : PARTS);
    }

    __device__ __forceinline__ void tell(const Known& known, unsigned turn) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        Known* mine = &table[turn % 4][block_of_row() * ROW_WARPS + static_cast<int>(threadIdx.x) / 32];
#if CLUSTER > 1
        if (threadIdx.x == 0) arrive_expecting(arrivals + turn % 4, PARTS * sizeof(Known));
        if (lane < CLUSTER) send(known, mine, lane, arrivals + turn % 4);  // lane r tells block r
#else
        if (lane == 0) {
            *mine = known;
            arrive(arrivals + turn % 4);
        }
#endif
    }

    // What all have told of this turn.
    __device__ __forceinline__ const Known* ask(unsigned turn) {
        arrival_wait(arrivals + turn % 4, turn / 4 % 2);
        return table[turn % 4];
    }
};

// a / b by 1 / b, which is at hand: a product, and what it lacks. A division of its own takes ten times as long.
__device__ __forceinline__ acc_t divide(acc_t a, acc_t b, acc_t one_by_b) {
    const acc_t q = a * one_by_b;
    return fma(fma(-q, b, a), one_by_b, q);
}

// What a warp knows of its elements of a row: how many, their mean (mean + rest, to more digits than one number holds),
// and the sum of the squares of their deviations from it.
struct Moments {
    acc_t count, mean, rest, squares;
};

// Of a thread's elements and those of its warp.
//
// Elements of 16 bits, where the result has no more, pass once, as deviations d from the warp's first element p:
//
//   mean = p + Σd/n    squares = Σd² - (Σd)²/n
//
// The difference loses the more digits the further p is from the mean: three bits where that is three deviations. Beyond,
// which is one row of some hundreds, they pass twice as wider ones do: what is left is ample for 11 bits, not for a result of
// more. Constant rows have deviations of exactly 0.
//
// Wider elements pass twice. The mean as summed is off by some roundings; the deviations from it tell by how much. So rows
// far from 0 keep their accuracy.
template <typename Result, typename T>
__device__ __forceinline__ Moments moments_of(const Packed<T> (&held)[VECTORS], bool any, const Columns& columns) {
    constexpr bool ONCE = sizeof(T) == 2 && sizeof(Result) == 2;
    constexpr int LANES_OF_ROW = ROW_THREADS < 32 ? ROW_THREADS : 32;
    constexpr int MOST = LANES_OF_ROW * VECTORS * VECTOR_WIDTH;
    // A power of 2 not above 1 over the number of elements: the sum cannot overflow, and scaling costs no rounding.
    constexpr acc_t SCALE = acc_t(1) / acc_t(4096);
    static_assert(MOST <= 4096, "more elements a warp than the sum is scaled for");
    acc_t pivot = 0;
    if constexpr (ONCE) {
        if (any && columns.has(0)) pivot = held[0][0];
        pivot = __shfl_sync(0xffffffffu, pivot, 0, LANES_OF_ROW);
    }
    int mine = 0;
    acc_t sum[3] = {0, 0, 0};  // of the elements or deviations, of squares, of elements that there are
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v)) {
            mine += VECTOR_WIDTH;
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) {
                const acc_t d = held[v][k] - pivot;
                sum[0] = fma(d, SCALE, sum[0]);
                if (ONCE) sum[1] = fma(d, d, sum[1]);
            }
        }
    Moments warp;
    if constexpr (FULL) {
        warp_sum_of<ONCE ? 2 : 1>(sum);
        warp.count = acc_t(MOST);
    } else {
        sum[2] = static_cast<acc_t>(mine);
        warp_sum_of<3>(sum);
        warp.count = sum[2];
    }
    // Of no elements, the mean is 0.
    const acc_t one_by_count = FULL ? acc_t(1) / acc_t(MOST) : warp.count > 0 ? acc_t(1) / warp.count : acc_t(0);
    const acc_t mean = divide(sum[0], warp.count * SCALE, one_by_count * (acc_t(1) / SCALE));
    warp.mean = pivot + mean;
    warp.rest = 0;
    bool again = true;
    if constexpr (ONCE) {
        const acc_t spare = mean * mean * warp.count;
        // Squares may be infinite where the elements are not; where they are, nothing is known.
        warp.squares = (spare < sum[1] ? sum[1] - spare : sum[1]) + (mean - mean);
        again = spare > acc_t(8) * warp.squares;
        if (!__any_sync(0xffffffffu, again)) return warp;
    }
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v))
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) {
                const acc_t d = held[v][k] - warp.mean;
                sum[1] += d;
                sum[0] = fma(d, d, sum[0]);
            }
    warp_sum_of<2>(sum);
    if (!again) return warp;  // it was another row of the warp: this one's bits do not depend on its neighbours
    warp.rest = sum[1] * one_by_count;
    const acc_t spare = sum[1] * warp.rest;
    warp.squares = spare < sum[0] ? sum[0] - spare : sum[0];
    return warp;
}

// The moments of all warps on a row as one's.
__device__ __forceinline__ Moments combine(const Moments* parts, acc_t n, acc_t one_by_n) {
    Moments row;
    row.count = n;
    row.mean = parts[0].mean;
    Moments mine[EACH_READS];
    acc_t sum = 0;
#pragma unroll
    for (int i = 0; i < EACH_READS; ++i) {
        if (part_read(i) < PARTS) mine[i] = parts[part_read(i)];
        else mine[i] = Moments{0, 0, 0, 0};
        mine[i].mean = mine[i].count > 0 ? (mine[i].mean - row.mean) + mine[i].rest : acc_t(0);
        sum = fma(mine[i].count, mine[i].mean, sum);
    }
    row.rest = readers_sum(sum) * one_by_n;
    sum = 0;
#pragma unroll
    for (int i = 0; i < EACH_READS; ++i) {
        const acc_t d = mine[i].mean - row.rest;
        sum += fma(mine[i].count * d, d, mine[i].squares);
    }
    row.squares = readers_sum(sum);
    return row;
}

// What is known of the elements so far, and of some more (Chan, Golub and LeVeque, 1979).
__device__ __forceinline__ Moments join(const Moments& a, const Moments& b) {
    if (!(a.count > 0)) return b;
    const acc_t count = a.count + b.count, share = b.count / count, d = ((b.mean - a.mean) - a.rest) + b.rest;
    return {count, a.mean, fma(d, share, a.rest), a.squares + fma(d * share * a.count, d, b.squares)};
}
