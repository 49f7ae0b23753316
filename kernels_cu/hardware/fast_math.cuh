// fast_exp2(x) and fast_reciprocal(x): single instructions of the special-function unit, with a relative error of about
// 2^-22, for results that are rounded to 16 bits.
#pragma once

// 2^x; results below 2^-126 are 0.
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x; 1 / inf is 0.
__device__ __forceinline__ float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
