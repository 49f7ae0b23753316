// One unit of an LLTM cell at one step, and the sums that feed it.
//
//   i = σ(z_i)    o = σ(z_o)    g = elu(z_g)    c' = c + g·i    h' = tanh(c')·o
//
// With dC = dL/dc' + dL/dh'·o·(1 - tanh²(c')) a step back gives
//
//   dL/dz_i = dC·g·i·(1 - i)    dL/dz_o = dL/dh'·tanh(c')·o·(1 - o)    dL/dz_g = dC·i·elu'    dL/dc = dC
//
// where elu' = 1 for g > 0, else g + 1 = e^z: right at 0 and just below it, free of overflow, and NaN where z is.
#pragma once

#include "fast_math.cuh"
#include "scalar.cuh"

constexpr int GATES = 3;  // in the order of the rows of the weights: i, o, g

// 1 / d for d ≥ 1, or 0 beyond 2^126: within 2 ULP, without the division's way for subnormal numbers, which costs registers.
__device__ __forceinline__ float one_by(float d) { return __fdividef(1.0f, d); }
__device__ __forceinline__ double one_by(double d) { return 1.0 / d; }

// Results of 16 bits are made of single instructions: with the others a GPU takes longer to compute than to move rows.
constexpr bool COARSE = Scalar<scalar_t>::is_16_bit_float;
constexpr float LOG2_E = 1.442695041f;
constexpr float NEAR = 0.0625f;  // to 0, where what cancels is made of a series; the error beyond is below 2^-18 of a result

__device__ __forceinline__ acc_t sigmoid(acc_t z) {
    if constexpr (COARSE) return fast_reciprocal(1.0f + fast_exp2(-LOG2_E * z));
    else return one_by(acc_t(1) + exp(-z));
}

__device__ __forceinline__ acc_t elu(acc_t z) {
    if constexpr (COARSE) {
        const float near = z * fmaf(z, fmaf(z, fmaf(z, 1.0f / 24, 1.0f / 6), 0.5f), 1.0f);
        const float below = z > -NEAR ? near : fast_exp2(LOG2_E * z) - 1.0f;
        return z > 0.0f ? z : below;
    } else return z > acc_t(0) ? z : expm1(z);
}

__device__ __forceinline__ acc_t tangent(acc_t c) {
    if constexpr (COARSE) {
        const float near = c * fmaf(c * c, -1.0f / 3, 1.0f);
        const float far = fmaf(-2.0f, fast_reciprocal(1.0f + fast_exp2(2 * LOG2_E * c)), 1.0f);
        return fabsf(c) < NEAR ? near : far;
    } else return tanh(c);
}

struct Unit {
    acc_t i, o, g;

    __device__ __forceinline__ Unit(acc_t z_i, acc_t z_o, acc_t z_g) {
        i = sigmoid(z_i);
        o = sigmoid(z_o);
        g = elu(z_g);
    }

    __device__ __forceinline__ acc_t cell(acc_t old_cell) const { return fma(g, i, old_cell); }
    __device__ __forceinline__ acc_t hidden(acc_t new_cell) const { return tangent(new_cell) * o; }

    // From the gradients of the results, those of the three gates; the gradient of the cell becomes that of the old one.
    __device__ __forceinline__ void back(acc_t new_cell, acc_t grad_h, acc_t& grad_cell, acc_t (&grad_z)[GATES]) const {
        const acc_t t = tangent(new_cell);
        grad_cell = fma(grad_h * o, acc_t(1) - t * t, grad_cell);
        grad_z[0] = grad_cell * g * (i * (acc_t(1) - i));
        grad_z[1] = grad_h * t * (o * (acc_t(1) - o));
        grad_z[2] = grad_cell * i * (g > acc_t(0) ? acc_t(1) : g + acc_t(1));
    }
};

// Each of COUNT rows has EACH numbers in every one of ACROSS neighbouring lanes (powers of 2, COUNT ≤ ACROSS), whose sums over
// the lanes are wanted. Each exchange halves what a lane still has to sum, instead of summing all of it in every lane. In
// the end lane p of the ACROSS has the sums of row p / (ACROSS / COUNT), in v[0] and on.
//
// The pairs that are added are the same for every COUNT, and so are the bits of a row.
template <int COUNT, int ACROSS, int EACH> __device__ __forceinline__ void sum_over_lanes(acc_t (&v)[COUNT * EACH]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = COUNT / 2, step = ACROSS / 2; step > 0; half /= 2, step /= 2) {
        if (half > 0) {
            const bool upper = lane & step;
#pragma unroll
            for (int n = 0; n < COUNT / 2 * EACH; ++n)
                if (n < half * EACH) {
                    const acc_t given = upper ? v[n] : v[n + half * EACH];
                    const acc_t kept = upper ? v[n + half * EACH] : v[n];
                    v[n] = kept + __shfl_xor_sync(0xffffffffu, given, step);
                }
        } else {
#pragma unroll
            for (int n = 0; n < EACH; ++n) v[n] += __shfl_xor_sync(0xffffffffu, v[n], step);
        }
    }
}
