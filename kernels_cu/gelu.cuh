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

__device__ __forceinline__ acc_t normal_cdf(acc_t x) {
    // Few elements lie this far out, and a warp takes the branch only when one of its elements does.
    if constexpr (sizeof(acc_t) == 8) return x < -3.0 ? normcdf(x) : fma(0.5, erf(x * SQRT_HALF), 0.5);
    else if (!Scalar<scalar_t>::is_16_bit_float && x < -5.0f) return normcdff(x);
    const float t = Scalar<scalar_t>::is_16_bit_float ? tail_16_bit(fabsf(x)) : tail(fabsf(x));
    return x > acc_t(0) ? acc_t(1) - t : t;
}

constexpr double INV_SQRT_2PI = 0.39894228040143267794;

// φ(x) = e^(-x²/2)/√(2π), the derivative of Φ.
__device__ __forceinline__ acc_t normal_pdf(acc_t x) { return acc_t(INV_SQRT_2PI) * exp(acc_t(-0.5) * x * x); }

// Φ and φ of float64 from one power, without branches: elements that a thread computes side by side then share the constants. In
// CUDA's erf nearly every warp takes a branch both ways. Measured on an H200, in percent of a copy's bandwidth, the derivative with
// CUDA's erf and exp, and with these: 64, 78. The forward, which needs no φ: 63, 60.
struct Normal64 {
    double cdf, power;  // Φ(x), e^(-x²/2)
};

// e^(-a²/2) of 0 <= a <= 40; 0 below 2^-1020. a²/2 is n·ln 2 and a rest of at most ln 2 / 2. The power of the rest is a polynomial
// of degree 11.
__device__ __forceinline__ double half_square_power(double a) {
    constexpr double SHIFT = 6755399441055744.0;  // 1.5·2^52: a sum with it is rounded to an integer
    const double square = a * a, rounded_off = fma(a, a, -square);
    const double shifted = fma(square, -HALF_LOG2_E, SHIFT), n = shifted - SHIFT;
    double r = fma(n, -0.6931471803691238, -0.5 * square);  // ln 2 in two parts
    r = fma(n, -1.9082149292705877e-10, r);
    r = fma(-0.5, rounded_off, r);
    double p = 2.5100472505694996e-08;
    p = fma(p, r, 2.7620201591031547e-07);
    p = fma(p, r, 2.7557268276905696e-06);
    p = fma(p, r, 2.4801521057868204e-05);
    p = fma(p, r, 0.00019841269863171557);
    p = fma(p, r, 0.0013888888917367081);
    p = fma(p, r, 0.008333333333330039);
    p = fma(p, r, 0.041666666666623824);
    p = fma(p, r, 0.16666666666666669);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1);
    p = fma(p, r, 1);
    const int power = __double2loint(shifted);
    const double scaled = __hiloint2double(__double2hiint(p) + power * (1 << 20), __double2loint(p));
    return power < -1020 ? 0.0 : scaled;
}

// For |x| < 1, Φ(x) = ½ + x·E(x²), where E has degree 9. Beyond, the tail is e^(-a²/2)·R(a) with a = |x|, where R falls as 0.4/a:
// (a + 4.25)·R(a) is a polynomial of degree 18 in s = (a - 4.25)/(a + 4.25), fitted on [1, 40]. Both are fitted within 1e-16.
__device__ __forceinline__ Normal64 normal_64_bit(double x) {
    x = fmin(fmax(x, -40.0), 40.0);
    const double a = fabs(x), power = half_square_power(a), square = a * a, d = a + 4.25;
    double center = -9.0261099045655835e-11;
    center = fma(center, square, 2.2270765391721188e-09);
    center = fma(center, square, -4.1173089319651837e-08);
    center = fma(center, square, 6.659316904081042e-07);
    center = fma(center, square, -9.444639808676774e-06);
    center = fma(center, square, 0.00011543468323083616);
    center = fma(center, square, -0.0011873282148079404);
    center = fma(center, square, 0.0099735570099833831);
    center = fma(center, square, -0.066490380066903859);
    center = fma(center, square, 0.39894228040143265);
    double u = fast_reciprocal(float(d));  // 1/d within 2^-22; a step with the third power of the error follows
    const double error = fma(-d, u, 1.0);
    u = fma(u, fma(error, error, error), u);
    const double s = (a - 4.25) * u;
    double tail = 6.0625886821690251e-08;
    tail = fma(tail, s, -1.1850168313823837e-07);
    tail = fma(tail, s, -3.4615212122114064e-07);
    tail = fma(tail, s, 6.5805982356530603e-07);
    tail = fma(tail, s, 2.0388853656391057e-06);
    tail = fma(tail, s, -3.1940922531245725e-06);
    tail = fma(tail, s, -1.2633203503381527e-05);
    tail = fma(tail, s, 2.0649920177044856e-05);
    tail = fma(tail, s, 7.8008458154260057e-05);
    tail = fma(tail, s, -0.00019212340409182941);
    tail = fma(tail, s, -0.00040445664703000914);
    tail = fma(tail, s, 0.002149382754359008);
    tail = fma(tail, s, -0.00074533791127948253);
    tail = fma(tail, s, -0.01935832408271854);
    tail = fma(tail, s, 0.08527207614438076);
    tail = fma(tail, s, -0.22051601745263077);
    tail = fma(tail, s, 0.4182275258225493);
    tail = fma(tail, s, -0.62512977708345008);
    tail = fma(tail, s, 0.75955420826720699);
    tail = tail * u * power;
    const double beyond = x > 0.0 ? 1.0 - tail : tail;
    // A sum, since the compiler makes a branch of a choice between two long expressions. Where a < 1, both differ by little.
    const double is_center = a < 1.0 ? 1.0 : 0.0;
    return {fma(is_center, fma(x, center, 0.5) - beyond, beyond), power};
}

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
        const Normal64 normal = normal_64_bit(x);
        return fma(x, INV_SQRT_2PI * normal.power, normal.cdf);
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
