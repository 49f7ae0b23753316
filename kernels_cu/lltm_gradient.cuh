// The gradient of h' or c': an array of any strides, or absent. An absent gradient is zero. A stride is 0 in
// the gradient of a sum, which PyTorch expands from one number.
#pragma once

#include "lltm.cuh"
#include "packed.cuh"

struct Gradient {
    const scalar_t* first;
    Int64s<3> view;  // 1 for a gradient, 0 for an absent one; then the strides by row and by column, in elements

    __device__ __forceinline__ acc_t at(long long b, long long s) const {
        return view[0] ? convert<acc_t>(first[b * view[1] + s * view[2]]) : acc_t(0);
    }

    // Returns whether load<true>() may read the gradient: the gradient is absent, has one number for each row, or has
    // contiguous rows that are aligned for accesses of VECTOR_WIDTH elements.
    __device__ __forceinline__ bool vectors() const {
        return !view[0] || view[2] == 0 || (view[2] == 1 && view[1] % VECTOR_WIDTH == 0 && aligned<VECTOR_WIDTH>(first));
    }

    // Loads VECTOR_WIDTH units of row b, from unit s on.
    template <bool VECTORS> __device__ __forceinline__ Packed<scalar_t> load(long long b, long long s) const {
        if constexpr (VECTORS) {
            if (view[0] && view[2] == 1) return load_packed(first + (b * view[1] + s), true);
            return Packed<scalar_t>::of(at(b, s));
        } else {
            acc_t v[VECTOR_WIDTH];
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) v[k] = at(b, s + k);
            Packed<scalar_t> packed;
            packed.set(v);
            return packed;
        }
    }
};
