// Passes over rows, for kernels that are sums and maxima over a row and then its elements: what cupyops/programs/rows.py writes
// programs of. A group of ROW_THREADS threads holds a row in registers; where it is too long for that (STREAM), every
// pass loads it again. Groups may take several rows in turn.
#pragma once

#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

#include "extrema.cuh"
#include "fast_math.cuh"
#include "scalar.cuh"
#include "rows.cuh"

#ifndef STREAM
#define STREAM 0
#endif

#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif

// What a thread holds of a row of one array.
template <typename T> struct Held {
    Packed<T> of[VECTORS];

    __device__ __forceinline__ void load(const T* row, const Columns& at, bool vectors) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (at.has(v)) of[v] = load_packed(row + at.of(v), vectors);
    }
};

// f(v, column) for each of this thread's accesses to a row, which begin at `column`.
template <typename Load, typename F> __device__ __forceinline__ void pass(int n, const Load& load, const F& f) {
    for (int start = 0; start < n; start += SLICE) {
        const Columns at{start, n};
        if (STREAM) load(at);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (at.has(v)) f(v, at.of(v));
        if (!STREAM) break;
    }
}

__device__ __forceinline__ void store_vector(scalar_t* to, const acc_t (&values)[VECTOR_WIDTH], bool vectors) {
    Packed<scalar_t> packed;
    packed.set(values);
    store_packed(to, packed, vectors);
}

// e^x. Of 16 bits, by a single instruction behind a product: off by some |x|·2^-24 + 2^-22 of it, and 0 below 2^-126.
__device__ __forceinline__ acc_t exponential(acc_t x) {
    if constexpr (sizeof(scalar_t) == 2) return fast_exp2(x * acc_t(1.4426950408889634));
    else return exp(x);
}

// An index as the columns are counted; what is beyond an int is no column's in either.
__device__ __forceinline__ int whole_number(long long i) {
    return static_cast<int>(i < -2147483647ll ? -2147483647ll : i > 2147483647ll ? 2147483647ll : i);
}

// The threads on one row of a block: all of the block call each of these together. Every one gets the same bits, and the
// order of a sum follows from the constants alone.
struct Group {
    unsigned turn = 0;

    template <typename F> __device__ __forceinline__ acc_t combine(acc_t v, acc_t nothing, F f) {
#pragma unroll
        for (int step = (ROW_THREADS < 32 ? ROW_THREADS : 32) / 2; step > 0; step /= 2)
            v = f(v, __shfl_xor_sync(0xffffffffu, v, step));
        if constexpr (ROW_WARPS > 1) {
            // Two tables take turns: who writes to one again has passed the barrier behind which all have read it.
            __shared__ acc_t table[2][BLOCK_THREADS / 32];
            acc_t* parts = table[turn++ % 2] + group_of_block() * ROW_WARPS;
            if (threadIdx.x % 32 == 0) parts[threadIdx.x % ROW_THREADS / 32] = v;
            __syncthreads();
            v = threadIdx.x % READERS < ROW_WARPS ? parts[threadIdx.x % READERS] : nothing;
#pragma unroll
            for (int step = READERS / 2; step > 0; step /= 2) v = f(v, __shfl_xor_sync(0xffffffffu, v, step));
        }
        return v;
    }

    __device__ __forceinline__ acc_t sum(acc_t v) {
        return combine(v, acc_t(0), [](acc_t a, acc_t b) { return a + b; });
    }
    __device__ __forceinline__ acc_t max(acc_t v) { return combine(v, acc_t(-INFINITY), larger<acc_t>); }
    __device__ __forceinline__ acc_t min(acc_t v) { return combine(v, acc_t(INFINITY), smaller<acc_t>); }
};

// Whether this thread speaks for its row.
__device__ __forceinline__ bool first_of_row() { return threadIdx.x % ROW_THREADS == 0; }

// A sum over the rows that a group takes, column by column, to a row of its own of `partial`: (parts, N), a part each group.
// There it is kept where rows are too long for registers; it then is all 0 before.
struct ColumnSums {
    acc_t held[VECTORS][VECTOR_WIDTH];
    acc_t* part;

    __device__ __forceinline__ ColumnSums(acc_t* partial, long long n) : part(partial ? partial + group_of_grid() * n : nullptr) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) held[v][k] = 0;
    }

    __device__ __forceinline__ void add(int v, int k, int column, acc_t value) {
        if (!STREAM) held[v][k] += value;
        else if (part) part[column + k] += value;
    }

    __device__ __forceinline__ void store(int n) const {
        if (STREAM || !part) return;
        const Columns at{0, n};
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (at.has(v))
#pragma unroll
                for (int k = 0; k < VECTOR_WIDTH; ++k) part[at.of(v) + k] = held[v][k];
    }
};
