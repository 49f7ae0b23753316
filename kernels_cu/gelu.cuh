// gelu(x) and gelu_derivative(x) of one number, in acc_t: x·Φ(x), or x·σ(2u) with TANH; gelu.cu has the formulas.
//
// PyTorch computes Φ as ½·(1 + erf), which cancels to 0 below x ≈ -5.5. The forms here keep their relative accuracy there.
#pragma once

#include "scalar.cuh"
#include "fast_math.cuh"

#ifndef TANH
#define TANH 0
#endif

// t = Φ(-a) for a >= 0 is the tail of both signs: Φ(x) = 1 - t for x > 0, else t. The tail is computed as a power of 2 whose
// exponent is a polynomial: the arithmetic is hidden behind the memory traffic of an elementwise kernel, where an exact erf of
// about 26 instructions an element is not.

// For results of 16 bits: the exponent has degree 7 and is fitted to log2 Φ(-a) on [0, 6.5] within 7e-6. Beyond 6.5 the
// exponent goes on falling, and at 16 the power is 0.
__device__ __forceinline__ float tail_16_bit(float a) {
    a = fminf(a, 16.0f);
    float q = -1.757777435e-6f;
    q = fmaf(q, a, 5.993659955e-5f);
    q = fmaf(q, a, -9.163630981e-4f);
    q = fmaf(q, a, 8.447386167e-3f);
    q = fmaf(q, a, -5.382450335e-2f);
    q = fmaf(q, a, -4.586157052e-1f);
    q = fmaf(q, a, -1.151180167f);
    q = fmaf(q, a, -1.000003873f);
    return fast_exp2(q);
}

// For float32: t = e^(-a²/2)·2^R(a), where R(a) = log2(Φ(-a)·e^(a²/2)) varies slowly. R has degree 12 and is fitted on
// [0, 9.5]. The relative error of t is below 1e-8 near 0, 1e-6 at 5 and 5e-4 at 9.5: it is smaller where t is larger.
constexpr double HALF_LOG2_E = 0.72134752044448170368;
constexpr double SQRT_HALF = 0.70710678118654752440;

__device__ __forceinline__ float tail(float a) {
    a = fminf(a, 16.0f);
    float r = -1.342122443e-10f;
    r = fmaf(r, a, 6.917824740e-9f);
    r = fmaf(r, a, -1.576689140e-7f);
    r = fmaf(r, a, 2.094385903e-6f);
    r = fmaf(r, a, -1.788780949e-5f);
    r = fmaf(r, a, 1.002065450e-4f);
    r = fmaf(r, a, -3.298787501e-4f);
    r = fmaf(r, a, 6.357975120e-5f);
    r = fmaf(r, a, 6.901939322e-3f);
    r = fmaf(r, a, -5.242601855e-2f);
    r = fmaf(r, a, 2.621251323e-1f);
    r = fmaf(r, a, -1.151104287f);
    r = fmaf(r, a, -9.999999969e-1f);
    return fast_exp2(fmaf(float(-HALF_LOG2_E), a * a, r));
}

// float64. The coefficients are read from constant memory, which a multiplication does in the same instruction: as literals they
// took a move each. There are no branches, since in CUDA's erf nearly every warp takes both ways.
static __constant__ double POWER_64[] = {
    2.5100472505694996e-08, 2.7620201591031547e-07, 2.7557268276905696e-06, 2.4801521057868204e-05, 0.00019841269863171557,
    0.0013888888917367081, 0.008333333333330039, 0.041666666666623824, 0.16666666666666669, 0.5,
    1, 1};
static __constant__ double TAIL_64[] = {
    -2.7517862328593165e-09, -7.051877346540272e-09, 1.7008548834266813e-08, 6.679853658292275e-08, -5.401008899840677e-08,
    -4.1999421492636873e-07, 9.555175452637341e-08, 2.464394848146297e-06, -6.576149808273884e-08, -1.5328762035552725e-05,
    3.672239293299155e-06, 0.00010374017834489824, -0.00011010291826442789, -0.0006805532785328938, 0.0020866515215275474,
    0.0014555278229739788, -0.02630654284465975, 0.09821364445282794, -0.23701621464761588, 0.43268247901420775,
    -0.6329363131921145, 0.7614595266200178};

template <int N> __device__ __forceinline__ double polynomial(const double (&coefficients)[N], double x) {
    double p = coefficients[0];
#pragma unroll
    for (int i = 1; i < N; ++i) p = fma(p, x, coefficients[i]);
    return p;
}

// e^(-a²/2), and Φ(-a)·e^(a²/2), for a >= 0. The power is 0 beyond 37.5.
struct Tail64 {
    double power, ratio;
};

__device__ __forceinline__ Tail64 tail_64_bit(double a) {
    const bool far = a > 37.5;  // the power would be below 2^-1015; NaN is not far, and stays NaN
    a = far ? 37.5 : a;
    // a²/2 is n·ln 2 and a rest of at most ln 2 / 2, whose power is a polynomial of degree 11.
    constexpr double SHIFT = 6755399441055744.0;  // 1.5·2^52: a sum with it is rounded to an integer
    const double square = a * a, rounded_off = fma(a, a, -square);
    const double shifted = fma(square, -HALF_LOG2_E, SHIFT), n = shifted - SHIFT;
    double rest = fma(n, -0.6931471803691238, -0.5 * square);  // ln 2 in two parts
    rest = fma(n, -1.9082149292705877e-10, rest);
    rest = fma(-0.5, rounded_off, rest);
    const double p = polynomial(POWER_64, rest);
    const double power = __hiloint2double(__double2hiint(p) + (__double2loint(shifted) << 20), __double2loint(p));
    // (a + 4.375)·Φ(-a)·e^(a²/2) is a polynomial of degree 21 in (a - 4.375)/(a + 4.375), fitted on [0, 40] within 3e-17.
    const double d = a + 4.375;
    double u = fast_reciprocal(float(d));  // 1/d within 2^-22; a step with the third power of the error follows
    const double error = fma(-d, u, 1.0);
    u = fma(u, fma(error, error, error), u);
    return {far ? 0.0 : power, polynomial(TAIL_64, (a - 4.375) * u) * u};
}

__device__ __forceinline__ acc_t normal_cdf(acc_t x) {
    // Few elements lie this far out, and a warp takes the branch only when one of its elements does.
    if constexpr (sizeof(acc_t) == 8) {
        const Tail64 t = tail_64_bit(fabs(x));
        return __double2hiint(x) < 0 ? t.power * t.ratio : fma(-t.power, t.ratio, 1.0);
    } else if (!Scalar<scalar_t>::is_16_bit_float && x < -5.0f) return normcdff(x);
    const float t = Scalar<scalar_t>::is_16_bit_float ? tail_16_bit(fabsf(x)) : tail(fabsf(x));
    return x > acc_t(0) ? acc_t(1) - t : t;
}

constexpr double INV_SQRT_2PI = 0.39894228040143267794;

// φ(x) = e^(-x²/2)/√(2π), the derivative of Φ.
__device__ __forceinline__ acc_t normal_pdf(acc_t x) { return acc_t(INV_SQRT_2PI) * exp(acc_t(-0.5) * x * x); }

// Φ(x) + x·φ(x)
__device__ __forceinline__ acc_t erf_derivative(acc_t x) {
    if constexpr (Scalar<scalar_t>::is_16_bit_float) {
        // With a = |x| and d = Φ(-a) - a·φ(a), the derivative is d for x <= 0 and 1 - d for x > 0. d = e^(-a²/2)·P(a), where P
        // has degree 11 and is fitted on [0, 13.5]: within 2e-5 below 1.2, where d crosses 0; within 1.1e-4 of P below 5.8,
        // where float16 underflows; within 1.1e-3 of P beyond. The power is the square of `root` = e^(-a²/4), since fast_exp2
        // returns 0 for powers that bfloat16 still represents.
        const float a = fminf(fabsf(x), 14.0f);
        float p = -9.198426743e-10f;
        p = fmaf(p, a, 6.407422333e-08f);
        p = fmaf(p, a, -1.932142062e-06f);
        p = fmaf(p, a, 3.319530620e-05f);
        p = fmaf(p, a, -3.607216132e-04f);
        p = fmaf(p, a, 2.612813894e-03f);
        p = fmaf(p, a, -1.303945900e-02f);
        p = fmaf(p, a, 4.621462092e-02f);
        p = fmaf(p, a, -1.209540338e-01f);
        p = fmaf(p, a, 2.453421992e-01f);
        p = fmaf(p, a, -7.971751634e-01f);
        p = fmaf(p, a, 4.999821026e-01f);
        const float root = fast_exp2(float(-0.5 * HALF_LOG2_E) * x * x);
        const float d = p * root * root;
        return x > 0.0f ? 1.0f - d : d;
    } else if constexpr (sizeof(acc_t) == 8) {
        const double a = fabs(x);
        const Tail64 t = tail_64_bit(a);
        const double d = t.power * fma(-INV_SQRT_2PI, a, t.ratio);  // Φ(-a) - a·φ(a)
        return __double2hiint(x) < 0 ? d : 1.0 - d;
    } else {
        return normal_cdf(x) + x * normal_pdf(x);
    }
}

constexpr double SQRT_2_OVER_PI = 0.79788456080286535588;
constexpr double KAPPA = 0.044715;

// open = σ(2u) and closed = σ(-2u) = 1 - σ(2u). Both are computed from e = e^(-2|u|), which cannot overflow, and keep their
// relative accuracy.
struct Gate {
    acc_t open, closed;
};

__device__ __forceinline__ Gate tanh_gate(acc_t x) {
    const acc_t two_u = x * (acc_t(2.0 * SQRT_2_OVER_PI) + acc_t(2.0 * SQRT_2_OVER_PI * KAPPA) * x * x);
    acc_t e, large;
    if constexpr (Scalar<scalar_t>::is_16_bit_float) {
        constexpr float LOG2_E = 1.4426950408889634f;
        e = fast_exp2(-LOG2_E * fabsf(two_u));
        large = fast_reciprocal(1.0f + e);
    } else {
        e = exp(-fabs(two_u));
        large = acc_t(1) / (acc_t(1) + e);
    }
    const acc_t small = e * large;
    return x > acc_t(0) ? Gate{large, small} : Gate{small, large};
}

__device__ __forceinline__ acc_t gelu(acc_t x) {
    if constexpr (TANH) return x * tanh_gate(x).open;
    else return x * normal_cdf(x);
}

// none:  d/dx x·Φ(x)  = Φ(x) + x·φ(x)
// tanh:  d/dx x·σ(2u) = σ(2u) + x·σ(2u)·σ(-2u)·2u',   2u' = 2·√(2/π)·(1 + 3·0.044715·x²)
__device__ __forceinline__ acc_t gelu_derivative(acc_t x) {
    if constexpr (TANH) {
        const Gate gate = tanh_gate(x);
        // Beyond ±32 the second term is 0. x is clamped to ±32, since an x² that overflows would make the term 0·inf.
        const acc_t c = fmin(fmax(x, acc_t(-32)), acc_t(32));
        const acc_t slope = acc_t(2.0 * SQRT_2_OVER_PI) + acc_t(6.0 * SQRT_2_OVER_PI * KAPPA) * c * c;
        return gate.open + c * gate.open * gate.closed * slope;
    } else {
        return erf_derivative(x);
    }
}
