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

// a * b + c as a double whose last bit is odd if it is not exact: a second rounding, to 16 bits, is then right. The product
// of two 16-bit floats is exact.
inline double cupyops_fma_to_odd(double a, double b, double c) {
    const double product = a * b, sum = product + c, part = sum - product;
    const double error = (product - (sum - part)) + (c - part);
    if (!(error != 0.0) || !isfinite(sum) || (cupyops_bits<unsigned long long>(sum) & 1)) return sum;
    return nextafter(sum, error > 0.0 ? INFINITY : -INFINITY);
}
// Saturates, and is 0 for NaN.
inline int cupyops_to_int(float x) { return x >= 2147483648.0f ? 2147483647 : x >= -2147483648.0f ? int(x) : x == x ? -2147483647 - 1 : 0; }
#define CUPYOPS_HALF_ARITHMETIC(H, NAME, WIDEN, NARROW_DOUBLE)                                                              \
    inline H __hfma(H a, H b, H c) { return NARROW_DOUBLE(cupyops_fma_to_odd(WIDEN(a), WIDEN(b), WIDEN(c))); }              \
    inline int __##NAME##2int_rn(H h) { return cupyops_to_int(rintf(WIDEN(h))); }                                                  \
    inline int __##NAME##2int_rd(H h) { return cupyops_to_int(floorf(WIDEN(h))); }                                                  \
    inline int __##NAME##2int_ru(H h) { return cupyops_to_int(ceilf(WIDEN(h))); }
