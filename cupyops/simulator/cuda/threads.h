// Barriers, warp functions, clusters and fences. Functions without a type parameter are macros: the runtime's caller is
// then the line of the text.
#pragma once

#define __syncthreads() void(cupyops_barrier(CUPYOPS_SYNC, 0))
// As in CUDA, the predicate is an int: 0.5 is false.
#define __syncthreads_count(p) cupyops_barrier(CUPYOPS_COUNT, static_cast<int>(p) != 0)
#define __syncthreads_and(p) cupyops_barrier(CUPYOPS_AND, static_cast<int>(p) != 0)
#define __syncthreads_or(p) cupyops_barrier(CUPYOPS_OR, static_cast<int>(p) != 0)
#define __activemask() cupyops_active_mask()

// A barrier with a number and the number of its threads; that of number 0 and of all threads is the barrier of __syncthreads().
CUPYOPS_INTRINSIC void __barrier_sync_count(unsigned barrier, unsigned threads) {
    if (barrier > 15 || threads % 32 || !threads) cupyops_misuse("a named barrier is 0 to 15, and its threads are whole warps");
    cupyops_meet(barrier, threads, 0);
}
template <int = 0> inline void __barrier_sync(unsigned barrier) {  // a template, as a text of questions has no blockDim
    if (barrier > 15) cupyops_misuse("a named barrier is 0 to 15");
    if (barrier == 0) cupyops_barrier(CUPYOPS_SYNC, 0);
    else cupyops_meet(barrier, blockDim.x * blockDim.y * blockDim.z, 0);
}
CUPYOPS_INTRINSIC void __syncwarp(unsigned mask = 0xFFFFFFFFu) { cupyops_warp(CUPYOPS_SYNCWARP, mask, 0, 0, 32, nullptr); }

// Packs a value of up to 8 bytes into the 64 bits that a shuffle moves.
template <typename T> inline unsigned long long cupyops_pack(T value) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return bits;
}
template <typename T> inline T cupyops_unpack(unsigned long long bits) {
    T value;
    __builtin_memcpy(static_cast<void*>(&value), &bits, sizeof(T));
    return value;
}
// Functions and no templates, as in CUDA: a shuffle of a short is one of an int, and one of a struct does not exist. The headers of
// 16-bit floats have theirs.
#define CUPYOPS_SHUFFLE(NAME, T, OPERATION, A)                                                                 \
    CUPYOPS_INTRINSIC T NAME(unsigned mask, T value, A by, int width = 32) {                                   \
        return cupyops_unpack<T>(cupyops_warp(OPERATION, mask, cupyops_pack(value), (int)by, width, nullptr)); \
    }
#define CUPYOPS_SHUFFLES(T)                                       \
    CUPYOPS_SHUFFLE(__shfl_sync, T, CUPYOPS_SHFL, int)            \
    CUPYOPS_SHUFFLE(__shfl_up_sync, T, CUPYOPS_SHFL_UP, unsigned) \
    CUPYOPS_SHUFFLE(__shfl_down_sync, T, CUPYOPS_SHFL_DOWN, unsigned) \
    CUPYOPS_SHUFFLE(__shfl_xor_sync, T, CUPYOPS_SHFL_XOR, int)
#define CUPYOPS_MATCHED(T)                                                                           \
    CUPYOPS_SHUFFLES(T)                                                                              \
    CUPYOPS_INTRINSIC unsigned __match_any_sync(unsigned mask, T value) {                            \
        return (unsigned)cupyops_warp(CUPYOPS_MATCH_ANY, mask, cupyops_pack(value), 0, 32, nullptr); \
    }                                                                                                \
    CUPYOPS_INTRINSIC unsigned __match_all_sync(unsigned mask, T value, int* predicate) {            \
        return (unsigned)cupyops_warp(CUPYOPS_MATCH_ALL, mask, cupyops_pack(value), 0, 32, predicate); \
    }
CUPYOPS_MATCHED(int)
CUPYOPS_MATCHED(unsigned)
CUPYOPS_MATCHED(long)
CUPYOPS_MATCHED(cupyops_ulong)
CUPYOPS_MATCHED(cupyops_longlong)
CUPYOPS_MATCHED(cupyops_ulonglong)
CUPYOPS_MATCHED(float)
CUPYOPS_MATCHED(double)
#undef CUPYOPS_MATCHED

CUPYOPS_INTRINSIC int __all_sync(unsigned mask, int p) { return (int)cupyops_warp(CUPYOPS_ALL, mask, p != 0, 0, 32, nullptr); }
CUPYOPS_INTRINSIC int __any_sync(unsigned mask, int p) { return (int)cupyops_warp(CUPYOPS_ANY, mask, p != 0, 0, 32, nullptr); }
CUPYOPS_INTRINSIC unsigned __ballot_sync(unsigned mask, int p) { return (unsigned)cupyops_warp(CUPYOPS_BALLOT, mask, p != 0, 0, 32, nullptr); }
#define CUPYOPS_REDUCE(NAME, T, OPERATION) \
    CUPYOPS_INTRINSIC T NAME(unsigned mask, T value) { return (T)cupyops_warp(OPERATION, mask, (unsigned)value, 0, 32, nullptr); }
CUPYOPS_REDUCE(__reduce_add_sync, int, CUPYOPS_REDUCE_ADD)
CUPYOPS_REDUCE(__reduce_add_sync, unsigned, CUPYOPS_REDUCE_ADD)
CUPYOPS_REDUCE(__reduce_min_sync, int, CUPYOPS_REDUCE_MIN)
CUPYOPS_REDUCE(__reduce_min_sync, unsigned, CUPYOPS_REDUCE_UMIN)
CUPYOPS_REDUCE(__reduce_max_sync, int, CUPYOPS_REDUCE_MAX)
CUPYOPS_REDUCE(__reduce_max_sync, unsigned, CUPYOPS_REDUCE_UMAX)
CUPYOPS_REDUCE(__reduce_and_sync, unsigned, CUPYOPS_REDUCE_AND)
CUPYOPS_REDUCE(__reduce_or_sync, unsigned, CUPYOPS_REDUCE_OR)
CUPYOPS_REDUCE(__reduce_xor_sync, unsigned, CUPYOPS_REDUCE_XOR)
#undef CUPYOPS_REDUCE

// Clusters.
#define __cluster_barrier_arrive() cupyops_cluster_arrive(0)
#define __cluster_barrier_arrive_relaxed() cupyops_cluster_arrive(1)
#define __cluster_barrier_wait() cupyops_cluster_wait()
#define __clusterDimIsSpecified() unsigned(cupyops_module.cluster[0] * cupyops_module.cluster[1] * cupyops_module.cluster[2] > 1)
extern "C" __attribute__((visibility("hidden"))) CupyopsModule cupyops_module;
inline dim3 __clusterDim() { return dim3(cupyops_module.cluster[0], cupyops_module.cluster[1], cupyops_module.cluster[2]); }
inline unsigned __clusterSizeInBlocks() { return cupyops_module.cluster[0] * cupyops_module.cluster[1] * cupyops_module.cluster[2]; }
inline unsigned __clusterRelativeBlockRank() { return cupyops_cluster_rank(); }
inline dim3 __clusterRelativeBlockIdx() {
    const unsigned rank = cupyops_cluster_rank(), *c = cupyops_module.cluster;
    return dim3(rank % c[0], rank / c[0] % c[1], rank / c[0] / c[1]);
}
inline dim3 __clusterGridDimInClusters() {
    const unsigned* c = cupyops_module.cluster;
    return dim3(gridDim.x / c[0], gridDim.y / c[1], gridDim.z / c[2]);
}
inline dim3 __clusterIdx() {
    const unsigned* c = cupyops_module.cluster;
    return dim3(blockIdx.x / c[0], blockIdx.y / c[1], blockIdx.z / c[2]);
}
inline void* __cluster_map_shared_rank(const void* p, unsigned rank) { return cupyops_cluster_map(p, rank); }
inline unsigned __cluster_query_shared_rank(const void* p) { return cupyops_cluster_rank_of(p); }

// A fence followed by an atomic or volatile write is a release: a thread that reads the written value by an atomic or
// volatile read is ordered after all accesses before the fence. A fence also lets other threads run, since a loop with
// a fence may wait for them.
#define __threadfence() cupyops_fence()
#define __threadfence_block() cupyops_fence()
#define __threadfence_system() cupyops_fence()
#define __threadfence_cluster() cupyops_fence()
#define __nanosleep(ns) (void(static_cast<unsigned>(ns)), cupyops_yield())

#include <ctime>  // before the macro of its function
inline long long clock64() { return (long long)cupyops_clock(); }
#define clock() static_cast<long>(clock64())
