// Shared by the backward texts of layer normalisation: the operands, and a thread's arithmetic on its elements of a
// row.
//
// Macro         values   meaning                                              set by
// WANT_X        0, 1     dL/dx is computed                                    LayerNormConfig.want_x (backward_kernel)
// WANT_AFFINE   0, 1     dL/dγ and dL/dβ are computed                         LayerNormConfig.want_affine (backward_kernel)
// GRAD_SUM      0, 1     grad_sum, another gradient of s, is added to dL/dx   LayerNormConfig.grad_sum (backward_kernel)
#pragma once

#include "layer_norm.cuh"

#ifndef WANT_X
#define WANT_X 1
#endif
#ifndef WANT_AFFINE
#define WANT_AFFINE 1
#endif
#ifndef GRAD_SUM
#define GRAD_SUM 0
#endif

// w = g·γ, rounded. Fused with the next operation w would have more digits, and would not cancel against mean(w).
__device__ __forceinline__ acc_t weighted(acc_t g, acc_t weight) { return WEIGHTED ? product(g, weight) : g; }

// A row's statistics and 1/N, and the arithmetic of a thread on its elements of the row.
struct BackwardRow {
    acc_t mean, rstd, one_by_n;

    // Adds VECTOR_WIDTH elements to the sums of w and of w·x̂.
    __device__ __forceinline__ void sum(
        const Packed<y_t>& g, const Packed<scalar_t>& s, const Packed<weight_t>& weight, acc_t (&sums)[2]) const {
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) {
            const acc_t w = weighted(g[k], weight[k]);
            sums[0] += w;
            sums[1] = fma(w, (s[k] - mean) * rstd, sums[1]);
        }
    }

    // Adds VECTOR_WIDTH elements to this thread's sums of dL/dγ and dL/dβ.
    __device__ __forceinline__ void sum_affine(
        const Packed<y_t>& g, const Packed<scalar_t>& s, acc_t (&grad_weight)[VECTOR_WIDTH],
        acc_t (&grad_bias)[VECTOR_WIDTH]) const {
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) {
            grad_weight[k] = fma(g[k], (s[k] - mean) * rstd, grad_weight[k]);
            grad_bias[k] += g[k];
        }
    }

    // Stores dL/ds of VECTOR_WIDTH elements to `grad_x`. `sums` holds the row's sums of w and of w·x̂; `more` holds
    // elements of grad_sum. Every fused operation is written out, so that all strategies give a row the same bits.
    __device__ __forceinline__ void store(
        const Packed<y_t>& g, const Packed<scalar_t>& s, const Packed<weight_t>& weight, const acc_t (&sums)[2],
        const Packed<scalar_t>& more, scalar_t* grad_x, bool vectors) const {
        acc_t out[VECTOR_WIDTH];
        const acc_t mean_of_w = product(sums[0], one_by_n), slope = -rstd * product(sums[1], one_by_n);
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) {
            const acc_t in_deviations = fma(s[k] - mean, slope, weighted(g[k], weight[k]) - mean_of_w);
            out[k] = GRAD_SUM ? fma(rstd, in_deviations, more[k]) : rstd * in_deviations;
        }
        Packed<scalar_t> packed;
        packed.set(out);
        store_packed(grad_x, packed, vectors);
    }
};

// The operands of a backward kernel that all strategies have, with the shapes of its declaration.
struct Operands {
    const y_t* grad_y;
    const scalar_t* s;
    const acc_t* stats;
    const weight_t* weight;
    const scalar_t* grad_sum;
    scalar_t* grad_x;
    long long M, N;

    __device__ __forceinline__ bool aligned() const { return all_aligned(grad_y, s, weight, grad_sum, grad_x); }
    __device__ __forceinline__ BackwardRow row(long long at_row, acc_t one_by_n) const {
        return {stats[at_row], stats[M + at_row], one_by_n};
    }
    // Loads VECTOR_WIDTH elements of grad_sum from the element `at` on.
    __device__ __forceinline__ Packed<scalar_t> load_more(long long at, bool vectors) const {
        if (GRAD_SUM) return load_packed(grad_sum + at, vectors);
        return {};
    }
};

// The sums of w and of w·x̂ over a warp's part of a row.
struct TwoSums {
    acc_t of[2];
};

// Adds up the sums of the PARTS warps on a row.
__device__ __forceinline__ void sum_parts(const TwoSums* parts, acc_t (&sums)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sums[i] = 0;
#pragma unroll
        for (int p = 0; p < EACH_READS; ++p) sums[i] += part_read(p) < PARTS ? parts[part_read(p)].of[i] : acc_t(0);
        sums[i] = readers_sum(sums[i]);
    }
}
