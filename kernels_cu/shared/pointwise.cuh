// each(n, f, out, in...): map of elementwise.cuh for several outputs. Calls f(in[i]..., results) for i in [0, n), and stores
// the results to out[0][i], out[1][i], and so on, at memory bandwidth. An output that is null is not stored.
#pragma once

#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

#include "elementwise.cuh"

template <int N, int GROUPS, int OUT, typename F, typename... In>
__device__ __forceinline__ void each_tile(F f, long long start, scalar_t* const (&out)[OUT], Share<In, N, GROUPS>... in) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        Vector<scalar_t, N> packs[OUT];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            scalar_t results[OUT];
            f(in.group[g].element[k]..., results);
#pragma unroll
            for (int o = 0; o < OUT; ++o) packs[o].element[k] = results[o];
        }
#pragma unroll
        for (int o = 0; o < OUT; ++o)
            if (out[o]) reinterpret_cast<Vector<scalar_t, N>*>(out[o] + start)[g * BLOCK_THREADS + threadIdx.x] = packs[o];
    }
}

template <int OUT, typename F, typename... In>
__device__ __forceinline__ void each(long long n, F f, scalar_t* const (&out)[OUT], const In* __restrict__... in) {
    constexpr int ACCESS = 16 / Widest<scalar_t, In...>::bytes;  // elements an access
    constexpr int EACH = VECTORS * ACCESS;                       // elements a thread
    const long long start = static_cast<long long>(blockIdx.x) * (BLOCK_THREADS * EACH);
    const bool whole = start + BLOCK_THREADS * EACH <= n;
    bool vectors = (aligned<ACCESS>(in) && ...);
#pragma unroll
    for (int o = 0; o < OUT; ++o) vectors = vectors && aligned<ACCESS>(out[o]);
    if (__builtin_expect(whole && vectors, 1)) {
        each_tile<ACCESS, VECTORS>(f, start, out, Share<In, ACCESS, VECTORS>::load(in + start)...);
    } else if (whole) {
        each_tile<1, EACH>(f, start, out, Share<In, 1, EACH>::load(in + start)...);
    } else {
        for (long long i = start + threadIdx.x; i < n; i += BLOCK_THREADS) {
            scalar_t results[OUT];
            f(in[i]..., results);
#pragma unroll
            for (int o = 0; o < OUT; ++o)
                if (out[o]) out[o][i] = results[o];
        }
    }
}
