// Passes over rows, for kernels that reduce over a row and then compute the row's elements. cupyops.row_reduce
// generates kernels that use them. A group of ROW_THREADS threads holds a row in registers. Rows too long for the
// registers are loaded again in every pass. A group takes several rows, one after the other.
//
// Macro    values   meaning                                            set by
// STREAM   0, 1     1: a row does not fit the registers of a group     the row program's config
// The others: see rows.cuh.
#pragma once

#ifndef STREAM
#define STREAM 0
#endif
#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

#include "extrema.cuh"
#include "fast_math.cuh"
#include "scalar.cuh"
#include "rows.cuh"

// The elements of one array's row that a thread holds.
template <typename T> struct Held {
    Packed<T> of[VECTORS];

    __device__ __forceinline__ void load(const T* row, const Columns& at, bool vectors) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (at.has(v)) of[v] = load_packed(row + at.of(v), vectors);
    }
};

// Calls f(v, column) for each of this thread's accesses to a row of n elements; the v-th access begins at `column`.
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

// e^x. For 16-bit scalar_t by a product and a single instruction: the relative error is about |x|·2^-24 + 2^-22, and results
// below 2^-126 are 0.
__device__ __forceinline__ acc_t exponential(acc_t x) {
    if constexpr (sizeof(scalar_t) == 2) return fast_exp2(x * acc_t(1.4426950408889634));
    else return exp(x);
}

// Converts an index to int, the type of column numbers. An index outside the range of int stays outside the range of
// columns.
__device__ __forceinline__ int whole_number(long long i) {
    return static_cast<int>(i < -2147483647ll ? -2147483647ll : i > 2147483647ll ? 2147483647ll : i);
}

// Reductions over the group of threads on one row. All threads of the block call each function together. Every thread of a
// group gets the same bits, and the macros alone decide the order of a sum.
struct Group {
    unsigned turn = 0;

    template <typename F> __device__ __forceinline__ acc_t combine(acc_t v, acc_t nothing, F f) {
#pragma unroll
        for (int step = (ROW_THREADS < 32 ? ROW_THREADS : 32) / 2; step > 0; step /= 2)
            v = f(v, __shfl_xor_sync(0xffffffffu, v, step));
        if constexpr (ROW_WARPS > 1) {
            // Two tables alternate: a thread that writes to a table again has passed a barrier after all threads read the
            // table.
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

// Returns whether this thread stores the results of its group's row.
__device__ __forceinline__ bool first_of_row() { return threadIdx.x % ROW_THREADS == 0; }

// Sums of each column over the rows that a group takes. Each group of the grid stores one row of `partial`, (parts, N).
// The sums accumulate in registers, or with STREAM in `partial`, which then must be zero before the launch.
struct ColumnSums {
    acc_t held[VECTORS][VECTOR_WIDTH];
    acc_t* part;

    __device__ __forceinline__ ColumnSums(acc_t* partial, long long n)
        : part(partial ? partial + group_of_grid() * n : nullptr) {
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
