// Functions of 16-bit floats that CUDA's headers define only for NVIDIA's compilers: computed in float, rounded once.
#pragma once
#include <limits>

// Templates, since NVRTC prefers a text's own function of the same name: texts have functions that older headers lack.
#define CUPYOPS_HALF_FUNCTION(H, H2, WIDEN, NARROW, JOIN, LOW, HIGH, NAME, EXPRESSION)                    \
    template <int = 0> inline H h##NAME(H h) { const float x = WIDEN(h); return NARROW(EXPRESSION); }     \
    template <int = 0> inline H2 h2##NAME(H2 h) { return JOIN(h##NAME(LOW(h)), h##NAME(HIGH(h))); }
#define CUPYOPS_HALF_TARGET(H, H2, ...) \
    inline CupyopsTarget<H2> cupyops_target(H2& value) { return CupyopsTarget<H2>::of(value); }

#define CUPYOPS_HALVES(...)                                                   \
    CUPYOPS_HALF_TARGET(__VA_ARGS__)                                          \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, sqrt, sqrtf(x))                        \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, rsqrt, rsqrtf(x))                      \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, rcp, 1.0f / x)                         \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, exp, expf(x))                          \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, exp2, exp2f(x))                        \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, exp10, cupyops_exp10(x))               \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, tanh, tanhf(x))                        \
    CUPYOPS_HALF_FUNCTION(__VA_ARGS__, tanh_approx, tanhf(x))                 \
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
// Conversions to integers in the modes that CUDA's headers lack for host compilers; toward zero they have it.
#define CUPYOPS_HALF_TO_INTEGER(H, NAME, WIDEN, I, TO, NAN)                                                       \
    inline I __##NAME##2##TO##_rn(H h) { return cupyops_to_integer<I>(nearbyint(double(WIDEN(h))), NAN); }        \
    inline I __##NAME##2##TO##_rd(H h) { return cupyops_to_integer<I>(floor(double(WIDEN(h))), NAN); }            \
    inline I __##NAME##2##TO##_ru(H h) { return cupyops_to_integer<I>(ceil(double(WIDEN(h))), NAN); }
// A value that is clamped to [0, 1], with 0 for NaN, and one that is clamped to [0, infinity].
#define CUPYOPS_HALF_FMA(H, H2, WIDEN, NARROW, JOIN, LOW, HIGH)                                                   \
    inline H __hfma_sat(H a, H b, H c) { return NARROW(__saturatef(WIDEN(__hfma(a, b, c)))); }                    \
    inline H __hfma_relu(H a, H b, H c) {                                                                         \
        const float x = WIDEN(__hfma(a, b, c));                                                                   \
        return NARROW(x > 0.0f || x != x ? x : 0.0f);                                                             \
    }                                                                                                             \
    inline H2 __hfma2(H2 a, H2 b, H2 c) { return JOIN(__hfma(LOW(a), LOW(b), LOW(c)), __hfma(HIGH(a), HIGH(b), HIGH(c))); } \
    inline H2 __hfma2_sat(H2 a, H2 b, H2 c) { return JOIN(__hfma_sat(LOW(a), LOW(b), LOW(c)), __hfma_sat(HIGH(a), HIGH(b), HIGH(c))); } \
    inline H2 __hfma2_relu(H2 a, H2 b, H2 c) { return JOIN(__hfma_relu(LOW(a), LOW(b), LOW(c)), __hfma_relu(HIGH(a), HIGH(b), HIGH(c))); } \
    /* The complex number a b + c, by four products that each round once. */                                      \
    inline H2 __hcmadd(H2 a, H2 b, H2 c) {                                                                        \
        const H negative = NARROW(-WIDEN(HIGH(a)));                                                               \
        return JOIN(__hfma(negative, HIGH(b), __hfma(LOW(a), LOW(b), LOW(c))), __hfma(HIGH(a), LOW(b), __hfma(LOW(a), HIGH(b), HIGH(c)))); \
    }
#define CUPYOPS_HALF_ARITHMETIC(H, NAME, WIDEN, NARROW_DOUBLE)                                                    \
    inline H __hfma(H a, H b, H c) { return NARROW_DOUBLE(cupyops_fma_to_odd(WIDEN(a), WIDEN(b), WIDEN(c))); }    \
    CUPYOPS_HALF_TO_INTEGER(H, NAME, WIDEN, short, short, 0)                                                      \
    CUPYOPS_HALF_TO_INTEGER(H, NAME, WIDEN, unsigned short, ushort, 0)                                            \
    CUPYOPS_HALF_TO_INTEGER(H, NAME, WIDEN, int, int, 0)                                                          \
    CUPYOPS_HALF_TO_INTEGER(H, NAME, WIDEN, unsigned, uint, 0)                                                    \
    CUPYOPS_HALF_TO_INTEGER(H, NAME, WIDEN, long long, ll, static_cast<long long>(1ull << 63))                    \
    CUPYOPS_HALF_TO_INTEGER(H, NAME, WIDEN, unsigned long long, ull, 1ull << 63)

// Rounds an integer to the 8 binary digits of a bfloat16, toward zero, down or up.
template <typename I> inline float cupyops_to_eight_digits(I value, int way) {
    const bool negative = value < 0;
    const unsigned long long magnitude = negative ? 0ull - (unsigned long long)value : (unsigned long long)value;
    if (magnitude < 256) return float(value);
    const int shift = 56 - __builtin_clzll(magnitude);
    const bool exact = !(magnitude & ((1ull << shift) - 1)), away = way && (way < 0) == negative;
    const float rounded = ldexpf(float((magnitude >> shift) + (away && !exact)), shift);
    return negative ? -rounded : rounded;
}
#define CUPYOPS_TO_BFLOAT16(I, OF)                                                                                \
    inline __nv_bfloat16 __##OF##2bfloat16_rz(I i) { return __float2bfloat16_rn(cupyops_to_eight_digits(i, 0)); } \
    inline __nv_bfloat16 __##OF##2bfloat16_rd(I i) { return __float2bfloat16_rn(cupyops_to_eight_digits(i, -1)); } \
    inline __nv_bfloat16 __##OF##2bfloat16_ru(I i) { return __float2bfloat16_rn(cupyops_to_eight_digits(i, 1)); }

// The bounds of H, by their bits. RAW is the struct of a value's bits.
#define CUPYOPS_HALF_LIMITS(H, RAW, MIN, MAX, LOWEST, EPSILON, ROUND, INF, QNAN, DIGITS, DIGITS10, MAX10, E2, E2MAX, E10, E10MAX) \
    template <> struct std::numeric_limits<H> : std::numeric_limits<float> { \
        static constexpr H of(unsigned short bits) { \
            RAW raw = {}; \
            raw.x = bits; \
            return H(raw); \
        } \
        static constexpr H min() noexcept { return of(MIN); } \
        static constexpr H max() noexcept { return of(MAX); } \
        static constexpr H lowest() noexcept { return of(LOWEST); } \
        static constexpr H epsilon() noexcept { return of(EPSILON); } \
        static constexpr H round_error() noexcept { return of(ROUND); } \
        static constexpr H infinity() noexcept { return of(INF); } \
        static constexpr H quiet_NaN() noexcept { return of(QNAN); } \
        static constexpr H denorm_min() noexcept { return of(1); } \
        static constexpr int digits = DIGITS, digits10 = DIGITS10, max_digits10 = MAX10; \
        static constexpr int min_exponent = E2, max_exponent = E2MAX, min_exponent10 = E10, max_exponent10 = E10MAX; \
    };
