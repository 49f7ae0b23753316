// Rows on their way: slices of the next STAGES rows of one or more arrays, fetched into shared memory by the copying
// hardware while the threads work on earlier ones (sm_90 and later). A warp asks for its own accesses to a row, and asks for
// the next as soon as it has taken those: it waits for no other warp, so that its part of a stage is never empty for long.
#pragma once

#include "bulk.cuh"
#include "rows.cuh"

#ifndef STAGES
#define STAGES 2
#endif

extern __shared__ __align__(128) unsigned char stage_memory[];

template <typename... In> struct Stages {
    static constexpr int ELEMENT_BYTES = (0 + ... + static_cast<int>(sizeof(In)));
    static constexpr int BYTES = SLICE * ELEMENT_BYTES;  // of a stage
    static constexpr int PIECE = 32 * VECTOR_WIDTH;             // elements of an access of a warp
    Arrivals* arrivals;                                  // of this warp, one a stage
    Columns columns;
    int elements;  // of this warp in a row

    __device__ __forceinline__ Stages(Arrivals (&all)[ROW_WARPS][STAGES], const Columns& columns)
        : arrivals(all[threadIdx.x / 32]), columns(columns), elements(0) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) elements += elements_of(v);
    }

    // Where this warp's v-th access begins in a slice, and how many elements of the row it has.
    __device__ __forceinline__ int place(int v) const { return (v * ROW_THREADS + static_cast<int>(threadIdx.x) / 32 * 32) * VECTOR_WIDTH; }

    __device__ __forceinline__ int elements_of(int v) const {
        const int left = columns.n - columns.start - place(v);
        return FULL ? PIECE : left < 0 ? 0 : left < PIECE ? left : PIECE;
    }

    // Whether pieces of rows of N elements, the first rows at these addresses, begin and end at multiples of 16 bytes: what
    // bulk copies go by. An access of VECTOR_WIDTH elements may be narrower where its type is narrower than that of the others.
    static __device__ __forceinline__ bool can_copy(long long N, const In*... rows) {
        return (... && ((reinterpret_cast<unsigned long long>(rows) | N * sizeof(In)) % 16 == 0));
    }

    // All threads.
    __device__ __forceinline__ void open() {
        if (threadIdx.x % 32 == 0)
            for (int i = 0; i < STAGES; ++i) arrival_init(arrivals + i, 1);
    }

    // All threads of a warp send for its part of the row of a turn, by the addresses of its slices, which are multiples of 16.
    // They have opened the stages, or taken the row that was there.
    __device__ __forceinline__ void request(unsigned turn, const In*... slices) {
        const int v = static_cast<int>(threadIdx.x) % 32;
        const unsigned stage = turn % STAGES;
        reads_before_copies();
        __syncwarp();
        if (v == 0) arrive_expecting(arrivals + stage, static_cast<unsigned>(elements * ELEMENT_BYTES));
        if (v >= VECTORS || elements_of(v) == 0) return;
        unsigned char* to = stage_memory + stage * BYTES;
        (..., (bulk_load(to + place(v) * sizeof(In), slices + place(v), static_cast<unsigned>(elements_of(v) * sizeof(In)),
                         arrivals + stage),
               to += SLICE * sizeof(In)));
    }

    __device__ __forceinline__ void wait(unsigned turn) const { arrival_wait(arrivals + turn % STAGES, turn / STAGES % 2); }

    // A thread's v-th access to the array before which OFFSET bytes an element stand.
    template <typename T, int OFFSET> __device__ __forceinline__ Packed<T> take(unsigned turn, int v) const {
        const unsigned char* slices = stage_memory + turn % STAGES * BYTES;
        return load_packed(reinterpret_cast<const T*>(slices + OFFSET * SLICE) + place_of(v), true);
    }
};
