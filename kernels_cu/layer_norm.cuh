// Shared by all texts of layer normalisation: weight and bias that may be absent, a rounded product, and the check of several
// arrays' alignment for accesses of VECTOR_WIDTH elements.
//
// Macro      values   meaning                                                     set by
// WEIGHTED   0, 1     0: neither weight nor bias is there; the same bits, less    LayerNormConfig.weighted (layer_norm_config.backward_rows)
//                     to do
#pragma once

#include "rows.cuh"

#ifndef WEIGHTED
#define WEIGHTED 1
#endif

// Loads VECTOR_WIDTH elements of weight or bias. If the array is null, each element is `absent`.
__device__ __forceinline__ Packed<weight_t> load_or(const weight_t* p, acc_t absent, int column, bool vectors) {
    return WEIGHTED && p ? load_packed(p + column, vectors) : Packed<weight_t>::of(absent);
}

template <typename... T> __device__ __forceinline__ bool all_aligned(const T*... p) {
    return (aligned<VECTOR_WIDTH>(p) && ...);
}

// a·b, rounded: the compiler may not fuse the product with a later sum.
__device__ __forceinline__ acc_t product(acc_t a, acc_t b) {
    if constexpr (sizeof(acc_t) == 8) return __dmul_rn(a, b);
    else return __fmul_rn(a, b);
}
