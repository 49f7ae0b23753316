// Operands of different layouts, broadcast to one shape: the operands' offsets for an element of the result
// (places_of), and vector loads if the layout allows them (load_vector). cupyops/tiling/broadcasting.py computes sizes,
// dividers and strides.
#pragma once

#include "vector.cuh"

// N consecutive elements of an operand. With an innermost stride of 1 one access loads aligned elements; with a stride of 0 one
// element is loaded and repeated; else each element has a load.
template <int N, typename T> __device__ __forceinline__ Vector<T, N> load_vector(const T* p, long long stride) {
    if (stride == 1 && aligned<N>(p)) return *reinterpret_cast<const Vector<T, N>*>(p);
    Vector<T, N> vector;
    if (stride == 0) {
        const T v = *p;
#pragma unroll
        for (int k = 0; k < N; ++k) vector.element[k] = v;
    } else {
#pragma unroll
        for (int k = 0; k < N; ++k) vector.element[k] = p[k * stride];
    }
    return vector;
}

// Stores N consecutive elements of a view, by one access if they are aligned and the innermost stride is 1.
template <int N, typename T> __device__ __forceinline__ void store_vector(T* p, long long stride, const Vector<T, N>& vector) {
    if (stride == 1 && aligned<N>(p)) {
        *reinterpret_cast<Vector<T, N>*>(p) = vector;
        return;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) p[k * stride] = vector.element[k];
}

template <bool CONDITION, typename Yes, typename No> struct Select {
    typedef Yes type;
};
template <typename Yes, typename No> struct Select<false, Yes, No> {
    typedef No type;
};

// Returns i / size for i < 2^31, by a multiplication and a shift (Granlund and Montgomery, 1994): a division takes tens
// of instructions. Python computes divider = multiplier + 2^32·shift from the size before the launch.
__device__ __forceinline__ unsigned divide(unsigned i, long long divider) {
    return (__umulhi(i, static_cast<unsigned>(divider)) + i) >> static_cast<unsigned>(divider >> 32);
}

// Sets at[o] to the offset of a group's first element in operand o. A group is PER_GROUP consecutive elements of the
// result.
//
//   size, divider    of the result's dimensions, innermost first; the innermost size counts groups
//   strides          in elements; 0 where an operand is broadcast
//   LARGE            counts and strides take 64 bits; else 32, since a 64-bit product takes several instructions
template <int PER_GROUP, bool LARGE, int DIMS, int OPERANDS>
__device__ __forceinline__ void places_of(
    long long group, const Int64s<DIMS>& size, const Int64s<DIMS>& divider, const Int64s<DIMS> (&strides)[OPERANDS],
    long long (&at)[OPERANDS]) {
    typedef typename Select<LARGE, long long, int>::type index_t;
    index_t rest = static_cast<index_t>(group);
#pragma unroll
    for (int o = 0; o < OPERANDS; ++o) at[o] = 0;
#pragma unroll
    for (int d = 0; d < DIMS; ++d) {
        index_t next = 0;
        if (d < DIMS - 1) next = LARGE ? rest / static_cast<index_t>(size[d]) : divide(rest, divider[d]);
        const index_t i = (rest - next * static_cast<index_t>(size[d])) * (d == 0 ? PER_GROUP : 1);
#pragma unroll
        for (int o = 0; o < OPERANDS; ++o) at[o] += static_cast<long long>(i) * static_cast<index_t>(strides[o][d]);
        rest = next;
    }
}
