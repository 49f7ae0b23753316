// The operand [h, x] of a small cell's products, (B, S + F). A kernel reads each element from h or from x, so no other
// kernel has to concatenate h and x first.
#pragma once

#include "scalar.cuh"

constexpr int TILE = 16;  // rows of [h, x] that a block holds at once

struct Operand {
    const scalar_t *x, *h;  // (B, F), (B, S)
    long long F, S;

    __device__ __forceinline__ acc_t at(long long b, long long k) const {
        return convert<acc_t>(k < S ? h[b * S + k] : x[b * F + (k - S)]);
    }
};
