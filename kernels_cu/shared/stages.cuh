// Prefetched rows: bulk copies bring slices of the next STAGES rows, of one or more arrays, into shared memory while the threads
// work on earlier rows (sm_90 and later). A warp requests its own accesses to a row, and requests the next row as soon as it
// has taken these accesses. No warp waits for another, so a warp's part of a stage is never empty for long.
//
// Macro    values      meaning                                set by
// STAGES   2, 3 ..     rows that are prefetched at once       RowsConfig.stages (cupyops/tiling/rows.py)
#pragma once

#include "bulk.cuh"
#include "rows.cuh"

#ifndef STAGES
#define STAGES 2
#endif

extern __shared__ __align__(128) unsigned char stage_memory[];

template <typename... In> struct Stages {
    static constexpr int ELEMENT_BYTES = (0 + ... + static_cast<int>(sizeof(In)));
    static constexpr int BYTES = SLICE * ELEMENT_BYTES;  // bytes of a stage
    static constexpr int PIECE = 32 * VECTOR_WIDTH;      // elements of an access of a warp
    Arrivals* arrivals;                                  // the mbarriers of this warp, one for each stage
    Columns columns;
    int elements;  // elements of a row that this warp requests

    __device__ __forceinline__ Stages(Arrivals (&all)[ROW_WARPS][STAGES], const Columns& columns)
        : arrivals(all[threadIdx.x / 32]), columns(columns), elements(0) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) elements += elements_of(v);
    }

    // The first element of this warp's v-th access in a slice, and the number of the access's elements within the row.
    __device__ __forceinline__ int place(int v) const {
        return (v * ROW_THREADS + static_cast<int>(threadIdx.x) / 32 * 32) * VECTOR_WIDTH;
    }

    __device__ __forceinline__ int elements_of(int v) const {
        const int left = columns.n - columns.start - place(v);
        return FULL ? PIECE : left < 0 ? 0 : left < PIECE ? left : PIECE;
    }

    // Returns whether bulk copies can load all rows: arrays of rows of N elements that begin at these addresses. Every
    // piece of a row must begin and end at a multiple of 16 bytes. Alignment to VECTOR_WIDTH elements is not enough:
    // with arrays of several types, an access to the narrower type has fewer bytes.
    static __device__ __forceinline__ bool can_copy(long long N, const In*... rows) {
        return (... && ((reinterpret_cast<unsigned long long>(rows) | N * sizeof(In)) % 16 == 0));
    }

    // Initialises the barriers; all threads call it.
    __device__ __forceinline__ void open() {
        if (threadIdx.x % 32 == 0)
            for (int i = 0; i < STAGES; ++i) arrival_init(arrivals + i, 1);
    }

    // Begins to copy a warp's part of the row of a turn. The addresses of the row's slices are multiples of 16. All
    // threads of the warp call request(), after open(), or after they have taken the row that was in this stage before.
    __device__ __forceinline__ void request(unsigned turn, const In*... slices) {
        const int v = static_cast<int>(threadIdx.x) % 32;
        const unsigned stage = turn % STAGES;
        reads_before_copies();
        __syncwarp();
        if (v == 0) arrive_expecting(arrivals + stage, static_cast<unsigned>(elements * ELEMENT_BYTES));
        if (v >= VECTORS || elements_of(v) == 0) return;
        unsigned char* to = stage_memory + stage * BYTES;
        (..., (bulk_load(
                   to + place(v) * sizeof(In), slices + place(v), static_cast<unsigned>(elements_of(v) * sizeof(In)),
                   arrivals + stage),
               to += SLICE * sizeof(In)));
    }

    __device__ __forceinline__ void wait(unsigned turn) const { arrival_wait(arrivals + turn % STAGES, turn / STAGES % 2); }

    // Returns a thread's v-th access to one of the arrays. OFFSET is the sum of the element sizes of the arrays before
    // it.
    template <typename T, int OFFSET> __device__ __forceinline__ Packed<T> take(unsigned turn, int v) const {
        const unsigned char* slices = stage_memory + turn % STAGES * BYTES;
        return load_packed(reinterpret_cast<const T*>(slices + OFFSET * SLICE) + place_of(v), true);
    }
};
