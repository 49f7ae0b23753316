// Shared by all texts of layer normalisation: weight and bias that may be absent, a rounded product, and the check of several
// arrays' alignment for accesses of VECTOR_WIDTH elements.
//
// Macro          values   meaning                                                 set by
// WEIGHTED       0, 1     0: there is no weight and no bias, and no arithmetic    LayerNormConfig.weighted
//                         for them; the bits are the same
// AFFINE_GIVEN   0, 1     1: weight and bias are not null, and no branch stands   LayerNormConfig.affine_given
//                         between their loads
// PIECES_APART   0, 1     1: shared memory has the first 16 bytes of all          LayerNormConfig.pieces_apart
//                         accesses to weight or bias, then the next 16 bytes
#pragma once

#include "registers.cuh"
#include "rows.cuh"

#ifndef WEIGHTED
#define WEIGHTED 1
#endif
#ifndef AFFINE_GIVEN
#define AFFINE_GIVEN 0
#endif
#ifndef PIECES_APART
#define PIECES_APART 0
#endif

// Loads VECTOR_WIDTH elements of weight or bias. If the array is null, each element is `absent`.
__device__ __forceinline__ Packed<weight_t> load_or(const weight_t* p, acc_t absent, int column, bool vectors) {
    return WEIGHTED && (AFFINE_GIVEN || p) ? load_packed(p + column, vectors) : Packed<weight_t>::of(absent);
}

template <typename... T> __device__ __forceinline__ bool all_aligned(const T*... p) {
    if constexpr (FEW) return (aligned<VECTOR_WIDTH>(p) & ...);  // one branch before the loads, not one for each array
    return (aligned<VECTOR_WIDTH>(p) && ...);
}

// ACCESSES of each thread of a block to its slice of weight or of bias, in shared memory. A thread loads only the accesses that
// the thread has stored.
//
// An access to weights wider than the row has 32 bytes, which take two loads of 16 bytes. If the two lie side by side, the
// threads of a load are 32 bytes apart, and shared memory serves half of its banks at a time. PIECES_APART stores the first
// 16 bytes of all accesses side by side.
template <int ACCESSES = VECTORS> struct KeptSlice {
    static constexpr int BYTES = Packed<weight_t>::BYTES, PIECES = PIECES_APART && BYTES % 16 == 0 ? BYTES / 16 : 1;
    static constexpr int ELEMENTS = ROW_THREADS * ACCESSES * VECTOR_WIDTH;
    weight_t* memory;  // (ELEMENTS)

    __device__ __forceinline__ void store(int v, const Packed<weight_t>& of) const {
        if constexpr (PIECES == 1) store_packed(memory + place_of(v), of, true);
        else
#pragma unroll
            for (int i = 0; i < PIECES; ++i)
                *piece(v, i) = make_uint4(of.word[4 * i], of.word[4 * i + 1], of.word[4 * i + 2], of.word[4 * i + 3]);
    }

    __device__ __forceinline__ Packed<weight_t> load(int v) const {
        if constexpr (PIECES == 1) return load_packed(memory + place_of(v), true);
        else {
            Packed<weight_t> packed;
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                const uint4 four = *piece(v, i);
                packed.word[4 * i] = four.x, packed.word[4 * i + 1] = four.y;
                packed.word[4 * i + 2] = four.z, packed.word[4 * i + 3] = four.w;
            }
            return packed;
        }
    }

    __device__ __forceinline__ uint4* piece(int v, int i) const {
        return reinterpret_cast<uint4*>(memory + (i * ELEMENTS + place_of(v)) / PIECES);
    }
};

// a·b, rounded: the compiler may not fuse the product with a later sum.
__device__ __forceinline__ acc_t product(acc_t a, acc_t b) {
    if constexpr (sizeof(acc_t) == 8) return __dmul_rn(a, b);
    else return __fmul_rn(a, b);
}
