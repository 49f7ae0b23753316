// One unit of an LLTM cell at one step, forward and backward.
//
//   i = σ(z_i)    o = σ(z_o)    g = elu(z_g)    c' = c + g·i    h' = tanh(c')·o
//
// With dC = dL/dc' + dL/dh'·o·(1 - tanh²(c')), the gradients are
//
//   dL/dz_i = dC·g·i·(1 - i)    dL/dz_o = dL/dh'·tanh(c')·o·(1 - o)    dL/dz_g = dC·i·elu'(z_g)    dL/dc = dC
//
// elu'(z) is 1 for g > 0, else g + 1 = e^z. That is exact at 0 and just below 0, cannot overflow, and is NaN where z is NaN.
#pragma once

#include "fast_math.cuh"
#include "scalar.cuh"

constexpr int GATES = 3;  // in the order of the rows of the weights: i, o, g

// 1 / d for d ≥ 1, within 2 ULP; 0 for d > 2^126. A division would handle subnormal numbers, too, and cost registers.
__device__ __forceinline__ float one_by(float d) { return __fdividef(1.0f, d); }
__device__ __forceinline__ double one_by(double d) { return 1.0 / d; }

// 16-bit results use single instructions of the special-function unit. With the exact functions, computing takes a GPU longer
// than moving the rows.
constexpr bool COARSE = Scalar<scalar_t>::is_16_bit_float;
constexpr float LOG2_E = 1.442695041f;
// Arguments closer to 0 use a series, since the difference of powers cancels there. Elsewhere the relative error is
// below 2^-18.
constexpr float NEAR = 0.0625f;

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

    // Computes grad_z = dL/dz from grad_h = dL/dh' and grad_cell = dL/dc'. Replaces grad_cell by dL/dc.
    __device__ __forceinline__ void back(acc_t new_cell, acc_t grad_h, acc_t& grad_cell, acc_t (&grad_z)[GATES]) const {
        const acc_t t = tangent(new_cell);
        grad_cell = fma(grad_h * o, acc_t(1) - t * t, grad_cell);
        grad_z[0] = grad_cell * g * (i * (acc_t(1) - i));
        grad_z[1] = grad_h * t * (o * (acc_t(1) - o));
        grad_z[2] = grad_cell * i * (g > acc_t(0) ? acc_t(1) : g + acc_t(1));
    }
};
