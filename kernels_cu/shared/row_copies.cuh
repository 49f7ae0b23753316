// Bulk copies of a row into shared memory, for the passes of row_passes.cuh. Every pass then reads the row there.
//
// Macro        values      meaning                                                     set by
// ROW_SHARED   0 or more   elements of each array's row that a block has in shared     the row program's config
//                          memory; 0: none
// The others: see rows.cuh.
#pragma once

#include "bulk.cuh"
#include "rows.cuh"

#ifndef ROW_SHARED
#define ROW_SHARED 0
#endif

// Dynamic shared memory: sums over the rows, or a block's slices of the row.
extern __shared__ __align__(128) unsigned char rows_memory[];

// Copies a block's slices of a row of several arrays to shared memory, for rows that are aligned for accesses of 16 bytes. All
// threads of the block call copy() for the turns 0, 1 and on, and return when the row is there.
struct RowCopies {
    static_assert(ROW_SHARED == 0 || GROUPS == 1, "a block has one row");
    unsigned turn = 0;

    template <typename... In> __device__ __forceinline__ void copy(long long, bool, const In*...) {}

    template <typename... In> __device__ __forceinline__ void copy(long long n, Always, const In*... rows) {
        if constexpr (ROW_SHARED > 0) {
            __shared__ Arrivals arrival;
            if (turn > 0) {
                reads_before_copies();
                __syncthreads();
            }
            if (threadIdx.x == 0) {
                if (turn == 0) arrival_init(&arrival, 1);
                const long long mine = held_elements(n);
                arrive_expecting(&arrival, static_cast<unsigned>(mine * (0 + ... + static_cast<long long>(sizeof(In)))));
                unsigned char* to = rows_memory;
                (..., (copy_slices(rows, reinterpret_cast<In*>(to), n, &arrival), to += ROW_SHARED * sizeof(In)));
            }
            if (turn == 0) __syncthreads();
            arrival_wait(&arrival, turn++ % 2);
        }
    }

private:
    static __device__ __forceinline__ int elements_of(const Columns& at) {
        return at.n - at.start < SLICE ? at.n - at.start : SLICE;
    }

    static __device__ __forceinline__ long long held_elements(long long n) {
        long long count = 0;
        for (Columns at = columns_of_block(n); at.start < at.n; at.start += CLUSTER * SLICE) count += elements_of(at);
        return count;
    }

    template <typename T>
    static __device__ __forceinline__ void copy_slices(const T* row, T* to, long long n, Arrivals* arrival) {
        for (Columns at = columns_of_block(n); at.start < at.n; at.start += CLUSTER * SLICE, to += SLICE)
            bulk_load(to, row + at.start, static_cast<unsigned>(elements_of(at) * sizeof(T)), arrival);
    }
};
