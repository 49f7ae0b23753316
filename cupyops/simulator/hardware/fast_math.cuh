// The twin of kernels_cu/hardware/fast_math.cuh: exact to float's rounding, and flushes to 0 what the instructions flush.
#pragma once

inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }
inline float fast_exp2(float x) { return flushed(exp2f(x)); }
inline float fast_reciprocal(float x) { return flushed(1.0f / flushed(x)); }
