// The names of CUB that have a header each, and what CUB had before version 3: function objects, numbers of threads, and macros.
// A text gets those that it uses.

// BlockAdjacentDifference, BlockDiscontinuity, BlockExchange, BlockHistogram, BlockLoad, BlockMergeSort, BlockRadixRank,
// BlockRadixSort, BlockReduce, BlockRunLengthDecode, BlockScan, BlockShuffle, BlockStore, WarpExchange, WarpLoad,
// WarpMergeSort, WarpReduce, WarpScan, WarpStore
#include <cub/cub.cuh>

// CUPYOPS_FUNCTOR
#define CUPYOPS_FUNCTOR(name, result) \
    struct name { \
        template <class A, class B> \
        __device__ __forceinline__ auto operator()(const A& a, const B& b) const -> decltype(result) { \
            return result; \
        } \
    };

// Sum
CUPYOPS_FUNCTOR(Sum, a + b)

// Max
CUPYOPS_FUNCTOR(Max, a < b ? b : a)

// Min
CUPYOPS_FUNCTOR(Min, b < a ? b : a)

// Equality
CUPYOPS_FUNCTOR(Equality, a == b)

// Inequality
CUPYOPS_FUNCTOR(Inequality, a != b)

// Difference
CUPYOPS_FUNCTOR(Difference, a - b)

// Division
CUPYOPS_FUNCTOR(Division, a / b)

// LaneId
__device__ __forceinline__ unsigned LaneId() {
    unsigned found;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(found));
    return found;
}

// WarpId
__device__ __forceinline__ unsigned WarpId() {
    unsigned found;
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(found));
    return found;
}

// CUB_MAX
#ifndef CUB_MAX
#define CUB_MAX(a, b) ((b) > (a) ? (b) : (a))
#endif

// CUB_MIN
#ifndef CUB_MIN
#define CUB_MIN(a, b) ((b) < (a) ? (b) : (a))
#endif
