// Functions of 16-bit floats that CUDA's headers define only for NVIDIA's compilers: computed in float, rounded once.
#pragma once

#define CUPYOPS_HALF_FUNCTION(H, H2, WIDEN, NARROW, JOIN, LOW, HIGH, NAME, EXPRESSION)  \
    inline H h##NAME(H h) { const float x = WIDEN(h); return NARROW(EXPRESSION); }      \
    inline H2 h2##NAME(H2 h) { return JOIN(h##NAME(LOW(h)), h##NAME(HIGH(h))); }

#define CUPYOPS_HALVES(...)                                                   \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, sqrt, sqrtf(x))                        \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, rsqrt, rsqrtf(x))                      \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, rcp, 1.0f / x)                         \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, exp, expf(x))                          \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, exp2, exp2f(x))                        \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, log, logf(x))                          \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, log2, log2f(x))                        \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, log10, log10f(x))                      \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, sin, sinf(x))                          \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, cos, cosf(x))                          \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, floor, floorf(x))                      \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, ceil, ceilf(x))                        \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, trunc, truncf(x))                      \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, rint, rintf(x))
