// Single instructions of the special-function unit, for results that are rounded to 16 bits: about 2^-22 relative
// error. The simulator has a twin of each, exact to float's rounding, that flushes what the instruction flushes.
#pragma once

#ifdef CUPYOPS_SIMULATOR
inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }
inline float fast_exp2(float x) { return flushed(exp2f(x)); }
inline float fast_reciprocal(float x) { return flushed(1.0f / flushed(x)); }
#else
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
#endif
