// What layer_norm.cu and layer_norm_backward.cu share: addresses of several arrays of scalar_t and others = aligned or not,
// and what stands for absent weights; arithmetic is in acc_t.
#pragma once

#include "scalar.cuh"
#include "rows.cuh"
#include "stages.cuh"

#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif

// 0 where γ and β are known to be absent: the bits are the same, with less to do.
#ifndef WEIGHTED
#define WEIGHTED 1
#endif

// γ or β where a thread has need of it, or what stands for an absent one.
__device__ __forceinline__ Packed<weight_t> load_or(const weight_t* p, acc_t absent, int column, bool vectors) {
    return WEIGHTED && p ? load_packed(p + column, vectors) : Packed<weight_t>::of(absent);
}

template <typename... T> __device__ __forceinline__ bool all_aligned(const T*... p) { return (aligned<VECTOR_WIDTH>(p) && ...); }
