// map(n, f, out, in...): out[i] = f(in[i]...) for i in [0, n), at memory bandwidth.
//
// A block of BLOCK_THREADS threads takes a tile of consecutive elements. In a whole tile whose pointers are all
// aligned, each thread moves VECTORS groups of elements by accesses of up to 16 bytes, and issues all loads before the
// first use: the bytes in flight saturate the memory bandwidth. The last tile and unaligned pointers take a separate
// loop, element by element, in which neighbouring threads take neighbouring elements. Every loop calls the same f on
// the same values: alignment changes no bit of the result.
#pragma once

#include "vector.cuh"

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 128
#endif

#ifndef VECTORS
#define VECTORS 1
#endif

template <typename... T> struct Widest;
template <typename T> struct Widest<T> {
    static constexpr int bytes = sizeof(T);
};
template <typename T, typename... Rest> struct Widest<T, Rest...> {
    static constexpr int bytes = sizeof(T) > Widest<Rest...>::bytes ? sizeof(T) : Widest<Rest...>::bytes;
};

// The elements of a tile that one thread holds: GROUPS groups of N consecutive elements. Neighbouring threads hold neighbouring
// groups, so that the accesses of a warp coalesce; the groups of a thread lie BLOCK_THREADS groups apart.
template <typename T, int N, int GROUPS> struct Share {
    Vector<T, N> group[GROUPS];

    static __device__ __forceinline__ Share load(const T* tile) {
        Share share;
#pragma unroll
        for (int g = 0; g < GROUPS; ++g)
            share.group[g] = reinterpret_cast<const Vector<T, N>*>(tile)[g * BLOCK_THREADS + threadIdx.x];
        return share;
    }
};

template <int N, int GROUPS, typename F, typename Out, typename... In>
__device__ __forceinline__ void map_tile(F f, Out* tile, Share<In, N, GROUPS>... in) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        Vector<Out, N> result;
#pragma unroll
        for (int k = 0; k < N; ++k) result.element[k] = f(in.group[g].element[k]...);
        reinterpret_cast<Vector<Out, N>*>(tile)[g * BLOCK_THREADS + threadIdx.x] = result;
    }
}

template <typename F, typename Out, typename... In>
__device__ __forceinline__ void map(long long n, F f, Out* __restrict__ out, const In* __restrict__... in) {
    constexpr int ACCESS = 16 / Widest<Out, In...>::bytes;  // elements an access
    constexpr int EACH = VECTORS * ACCESS;                  // elements a thread
    const long long start = static_cast<long long>(blockIdx.x) * (BLOCK_THREADS * EACH);
    const bool whole = start + BLOCK_THREADS * EACH <= n;
    // One branch on all conditions, marked as likely, puts the aligned loop first in the code. A small launch then ends
    // without fetching the rest of the code, which took 3 % of a launch of a million elements.
    const bool fast = whole & ((misaligned<ACCESS>(out) | ... | misaligned<ACCESS>(in)) == 0);
    if (__builtin_expect(fast, 1)) {
        map_tile<ACCESS, VECTORS>(f, out + start, Share<In, ACCESS, VECTORS>::load(in + start)...);
    } else if (whole) {
        map_tile<1, EACH>(f, out + start, Share<In, 1, EACH>::load(in + start)...);
    } else {
        for (long long i = start + threadIdx.x; i < n; i += BLOCK_THREADS) out[i] = f(in[i]...);
    }
}
