// each(n, f, out, in...): f(in[i]..., results) for i in [0, n), its results to out[0][i], out[1][i], ..., at the speed of
// memory, as map in elementwise.cuh. An output that is null is left out.
#pragma once

#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

#include "elementwise.cuh"

template <int N, int GROUPS, int OUT, typename F, typename... In>
__device__ __forceinline__ void each_tile(F f, long long start, scalar_t* const (&out)[OUT], Share<In, N, GROUPS>... in) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        Lanes<scalar_t, N> lanes[OUT];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            scalar_t results[OUT];
            f(in.group[g].lane[k]..., results);
#pragma unroll
            for (int o = 0; o < OUT; ++o) lanes[o].lane[k] = results[o];
        }
#pragma unroll
        for (int o = 0; o < OUT; ++o)
            if (out[o]) reinterpret_cast<Lanes<scalar_t, N>*>(out[o] + start)[g * BLOCK_THREADS + threadIdx.x] = lanes[o];
    }
}

template <int OUT, typename F, typename... In>
__device__ __forceinline__ void each(long long n, F f, scalar_t* const (&out)[OUT], const In* __restrict__... in) {
    constexpr int LANES = 16 / Widest<scalar_t, In...>::bytes;
    constexpr int EACH = VECTORS * LANES;  // elements a thread
    const long long start = static_cast<long long>(blockIdx.x) * (BLOCK_THREADS * EACH);
    const bool whole = start + BLOCK_THREADS * EACH <= n;
    bool vectors = (aligned<LANES>(in) && ...);
#pragma unroll
    for (int o = 0; o < OUT; ++o) vectors = vectors && aligned<LANES>(out[o]);
    if (__builtin_expect(whole && vectors, 1)) {
        each_tile<LANES, VECTORS>(f, start, out, Share<In, LANES, VECTORS>::load(in + start)...);
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
