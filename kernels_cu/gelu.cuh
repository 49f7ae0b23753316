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

// For float64: e^(-a²/2) and Φ(-a)·e^(a²/2) by two polynomials, without branches. In CUDA's erf nearly every warp takes both ways of
// a branch. A coefficient takes two moves into registers, which the elements of a thread share (VECTORS). Measured on an H200, in
// percent of a copy's bandwidth, with CUDA's erf and exp, and with these: the forward 63 and 76, the derivative 64 and 93.
template <int N> __device__ __forceinline__ double polynomial(const double (&coefficients)[N], double x) {
    double p = coefficients[0];
#pragma unroll
    for (int i = 1; i < N; ++i) p = fma(p, x, coefficients[i]);
    return p;
}

// Φ(-a)·e^(a²/2) = ½ - a·slope for a >= 0, and times_density(v) = v·e^(-a²/2), which is 0 beyond 37.5. Near 0, the results have
// the roundings of the last two operations alone.
struct Tail64 {
    double a;                     // at most 37.5
    double scale, growth, slope;  // e^(-a²/2) = scale·(1 + growth)

    __device__ __forceinline__ double times_density(double v) const { return fma(v, growth, v) * scale; }
};

__device__ __forceinline__ Tail64 tail_64_bit(double a) {
    constexpr double POWER[] = {
        2.5100472505694996e-08,
        2.7620201591031547e-07,
        2.7557268276905696e-06,
        2.4801521057868204e-05,
        0.00019841269863171557,
        0.0013888888917367081,
        0.008333333333330039,
        0.041666666666623824,
        0.16666666666666669,
        0.5,
        1.0};
    constexpr double G[] = {-1.1107592269178035e-09, -2.4507708371920906e-09, 8.868503521731319e-09,  2.4918675388531593e-08,
                            -5.195888582981044e-08,  -1.7707483803034862e-07, 3.4524768348417574e-07, 1.1614652181760527e-06,
                            -2.967420593993405e-06,  -6.851374244801871e-06,  3.072235885988294e-05,  1.7646322635504447e-05,
                            -0.00031923622484066885, 0.0005811347955777111,   0.0018050435222590536,  -0.014869143171860834,
                            0.05460371330797449,     -0.1435110600360527,     0.30272113770578224,    -0.5397006493502605,
                            0.8386492016549013};
    const bool far = a > 37.5;  // the power would be below 2^-1015; NaN is not far, and stays NaN
    a = far ? 37.5 : a;
    // a²/2 is -n·ln 2 and a rest of at most ln 2 / 2, whose power less 1 is a polynomial of degree 11.
    constexpr double SHIFT = 6755399441055744.0;  // 1.5·2^52: a sum with it is rounded to an integer
    const double square = a * a, rounded_off = fma(a, a, -square);
    const double shifted = fma(square, -HALF_LOG2_E, SHIFT), n = shifted - SHIFT;
    double rest = fma(n, -0.6931471803691238, -0.5 * square);  // ln 2 in two parts
    rest = fma(n, -1.9082149292705877e-10, rest);
    rest = fma(-0.5, rounded_off, rest);
    const double scale = __hiloint2double((1023 + __double2loint(shifted)) * (1 << 20), 0);  // 2^n
    // slope = G(s)/(a + 4.75) with s = 2a/(a + 4.75) - 1, where G has degree 20 and is fitted on [0, 38] within 2e-17.
    const double d = a + 4.75;
    double u = fast_reciprocal(float(d));  // 1/d within 2^-22; a step with the third power of the error follows
    const double error = fma(-d, u, 1.0);
    u = fma(u, fma(error, error, error), u);
    return {a, far ? 0.0 : scale, polynomial(POWER, rest) * rest, polynomial(G, fma(2.0 * a, u, -1.0)) * u};
}

__device__ __forceinline__ acc_t normal_cdf(acc_t x) {
    if constexpr (sizeof(acc_t) == 8) {
        const Tail64 tail = tail_64_bit(fabs(x));
        const double t = tail.times_density(fma(-tail.a, tail.slope, 0.5));
        return __double2hiint(x) < 0 ? t : 1.0 - t;
    } else {
        // Few elements lie this far out, and a warp takes the branch only when one of its elements does.
        if (!Scalar<scalar_t>::is_16_bit_float && x < -5.0f) return normcdff(x);
        const float t = Scalar<scalar_t>::is_16_bit_float ? tail_16_bit(fabsf(x)) : tail(fabsf(x));
        return x > acc_t(0) ? acc_t(1) - t : t;
    }
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
        const Tail64 tail = tail_64_bit(fabs(x));
        const double d = tail.times_density(fma(-tail.a, tail.slope + INV_SQRT_2PI, 0.5));  // Φ(-a) - a·φ(a)
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

__device__ __forceinline__ acc_t tanh_cdf(acc_t x) { return tanh_gate(x).open; }

// d/dx x·σ(2u) = σ(2u) + x·σ(2u)·σ(-2u)·2u',   2u' = 2·√(2/π)·(1 + 3·0.044715·x²)
__device__ __forceinline__ acc_t tanh_derivative(acc_t x) {
    const Gate gate = tanh_gate(x);
    // Beyond ±32 the second term is 0. x is clamped to ±32, since an x² that overflows would make the term 0·inf.
    const acc_t c = fmin(fmax(x, acc_t(-32)), acc_t(32));
    const acc_t slope = acc_t(2.0 * SQRT_2_OVER_PI) + acc_t(6.0 * SQRT_2_OVER_PI * KAPPA) * c * c;
    return gate.open + c * gate.open * gate.closed * slope;
}

__device__ __forceinline__ acc_t gelu(acc_t x) { return x * (TANH ? tanh_cdf(x) : normal_cdf(x)); }

__device__ __forceinline__ acc_t gelu_derivative(acc_t x) { return TANH ? tanh_derivative(x) : erf_derivative(x); }
