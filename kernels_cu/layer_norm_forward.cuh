// Shared by the forward texts of layer normalisation: the operands, s = x + residual, weight and bias, and y from a
// row's moments.
//
// Macro         values   meaning                                             set by
// RESIDUAL      0, 1     s = x + residual; 0: s = x                          LayerNormConfig.residual (forward_kernel)
#pragma once

#include "layer_norm.cuh"
#include "moments.cuh"

#ifndef RESIDUAL
#define RESIDUAL 0
#endif

// Adds the residual to x. The sum s is rounded to scalar_t and stored, so s has the bits of a separate addition.
template <typename X, typename Residual>
__device__ __forceinline__ Packed<scalar_t> add_residual(
    const Packed<X>& x, const Packed<Residual>& residual, scalar_t* sum, bool vectors) {
    acc_t s[VECTOR_WIDTH];
#pragma unroll
    for (int k = 0; k < VECTOR_WIDTH; ++k) s[k] = x[k] + residual[k];
    Packed<scalar_t> packed;
    packed.set(s);
    store_packed(sum, packed, vectors);
    return packed;
}

// The operands of a forward kernel, with the shapes of its declaration.
struct Operands {
    const x_t* x;
    const residual_t* residual;
    const weight_t* weight;
    const weight_t* bias;
    scalar_t* sum;
    y_t* y;
    acc_t* stats;
    long long M, N;
    acc_t eps;

    __device__ __forceinline__ bool aligned() const { return all_aligned(x, residual, weight, bias, sum, y); }

    // Loads VECTOR_WIDTH elements of s from the element `at` on. With RESIDUAL, stores them to `sum`.
    __device__ __forceinline__ Packed<scalar_t> load(long long at, bool vectors) const {
#if RESIDUAL
        return add_residual(load_packed(x + at, vectors), load_packed(residual + at, vectors), sum + at, vectors);
#else
        return load_packed(x + at, vectors);
#endif
    }

    __device__ __forceinline__ void store_stats(long long row, const Moments& moments, acc_t rstd) const {
        stats[row] = moments.mean + moments.rest;
        stats[M + row] = rstd;
    }
};

// Weight and bias, loaded where they are used.
struct Affine {
    const weight_t* weight;
    const weight_t* bias;
    bool vectors;

    __device__ __forceinline__ Affine(const Operands& of, bool vectors) : weight(of.weight), bias(of.bias), vectors(vectors) {}

    __device__ __forceinline__ Packed<weight_t> weight_of(const Columns& columns, int v) const {
        return load_or(weight, 1, columns.of(v), vectors);
    }
    __device__ __forceinline__ Packed<weight_t> bias_of(const Columns& columns, int v) const {
        return load_or(bias, 0, columns.of(v), vectors);
    }
};

// x̂ = (s - mean)·rstd + shift of a row. s - mean comes first, since the subtraction is exact where digits cancel.
// `shift` corrects for the rounding of the mean: -rstd times the exact mean minus the rounded mean.
struct Normalizer {
    acc_t mean, rstd, shift;

    __device__ __forceinline__ Normalizer() {}
    __device__ __forceinline__ Normalizer(const Moments& row, acc_t one_by_n, acc_t eps) : mean(row.mean) {
        rstd = rsqrt(fma(row.squares, one_by_n, eps));
        shift = -row.rest * rstd;
    }
};

// Stores y of the first `rows` of R rows, which begin at `y` and are N elements apart. `Affines` has weight_of and bias_of.
template <int R, typename Affines>
__device__ __forceinline__ void write_normalized(
    const Packed<scalar_t> (&held)[R][VECTORS], const Normalizer (&of)[R], int rows, const Columns& columns,
    const Affines& affine, y_t* y, long long N) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        if (!columns.has(v)) break;
        const Packed<weight_t> weight = affine.weight_of(columns, v), bias = affine.bias_of(columns, v);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (r >= rows) break;
            acc_t out[VECTOR_WIDTH];
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k)
                out[k] = fma(fma(held[r][v][k] - of[r].mean, of[r].rstd, of[r].shift), weight[k], bias[k]);
            Packed<y_t> packed;
            packed.set(out);
            store_packed(y + r * N + columns.of(v), packed, affine.vectors);
        }
    }
}
