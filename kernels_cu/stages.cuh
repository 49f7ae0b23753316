// Rows on their way: a block's slices of the next STAGES rows of one or more arrays, fetched into shared memory by the
// copying hardware while the threads work on earlier ones (sm_90 and later).
#pragma once

#include "rows.cuh"

#ifndef STAGES
#define STAGES 2
#endif

extern __shared__ __align__(128) unsigned char stage_memory[];

template <typename... In> struct Stages {
    static constexpr int ELEMENT_BYTES = (0 + ... + static_cast<int>(sizeof(In)));
    static constexpr int BYTES = SLICE * ELEMENT_BYTES;  // of a stage
    Arrivals* arrivals;
    int elements;

    __device__ __forceinline__ Stages(Arrivals* arrivals, const Columns& columns) : arrivals(arrivals) {
        const int left = columns.n - columns.start;
        elements = FULL ? SLICE : left < 0 ? 0 : left < SLICE ? left : SLICE;
    }

    // Whether slices of rows of N elements, the first rows at these addresses, begin and end at multiples of 16 bytes: what
    // bulk copies go by. An access of LANES elements may be narrower where its type is narrower than that of the others.
    static __device__ __forceinline__ bool can_copy(long long N, const In*... rows) {
        return (... && ((reinterpret_cast<unsigned long long>(rows) | N * sizeof(In)) % 16 == 0));
    }

    // One thread.
    __device__ __forceinline__ void open() {
        for (int i = 0; i < STAGES; ++i) arrival_init(arrivals + i, 1);
    }

    // One thread sends for the row of a turn, by the addresses of its slices, which are multiples of 16.
    __device__ __forceinline__ void request(unsigned turn, const In*... slices) {
        if (elements == 0) return;
        const unsigned stage = turn % STAGES;
        arrive_expecting(arrivals + stage, static_cast<unsigned>(elements * ELEMENT_BYTES));
        unsigned char* to = stage_memory + stage * BYTES;
        (..., (bulk_load(to, slices, static_cast<unsigned>(elements * sizeof(In)), arrivals + stage), to += SLICE * sizeof(In)));
    }

    __device__ __forceinline__ void wait(unsigned turn) const {
        if (elements) arrival_wait(arrivals + turn % STAGES, turn / STAGES % 2);
    }

    // A thread's v-th access to the array before which OFFSET bytes an element stand.
    template <typename T, int OFFSET> __device__ __forceinline__ Packed<T> take(unsigned turn, int v) const {
        const unsigned char* slices = stage_memory + turn % STAGES * BYTES;
        return load_packed(reinterpret_cast<const T*>(slices + OFFSET * SLICE) + place_of(v), true);
    }
};
