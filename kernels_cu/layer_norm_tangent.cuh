// Shared by the tangent texts of layer normalisation: the operands, and a thread's arithmetic on its elements of a row.
//
// With x̂ = (x - mean)·rstd, the tangent of x̂ is rstd·(ẋ - mean(ẋ) - x̂·mean(ẋ·x̂)). The two sums are over the row.
#pragma once

#include "layer_norm.cuh"

// The operands of a tangent kernel, with the shapes of its declaration.
struct Operands {
    const scalar_t* tangent_x;
    const scalar_t* x;
    const acc_t* stats;
    const weight_t* weight;
    const weight_t* tangent_weight;
    const weight_t* tangent_bias;
    y_t* tangent_y;
    long long M, N;

    __device__ __forceinline__ bool aligned() const {
        return all_aligned(tangent_x, x, weight, tangent_weight, tangent_bias, tangent_y);
    }
};

// The sums of ẋ and of ẋ·x̂ over a part of a row.
struct TwoSums {
    acc_t of[2];
};

// A row's statistics and 1/N, and the arithmetic of a thread on its elements of the row.
struct TangentRow {
    acc_t mean, rstd, one_by_n;

    // Adds VECTOR_WIDTH elements to the sums of ẋ and of ẋ·x̂.
    __device__ __forceinline__ void sum(const Packed<scalar_t>& dx, const Packed<scalar_t>& x, acc_t (&sums)[2]) const {
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) {
            sums[0] += dx[k];
            sums[1] = fma(dx[k], (x[k] - mean) * rstd, sums[1]);
        }
    }

    // Stores ẏ of the VECTOR_WIDTH elements that begin at the row's column `column`. `sums` holds the row's sums. Every fused
    // operation is written out, so that all strategies give a row the same bits.
    __device__ __forceinline__ void store(
        const Packed<scalar_t>& dx, const Packed<scalar_t>& x, const acc_t (&sums)[2], const Operands& of, int column,
        y_t* tangent_y, bool vectors) const {
        const Packed<weight_t> weight = load_or(of.weight, 1, column, vectors);
        const Packed<weight_t> by_weight = load_or(of.tangent_weight, 0, column, vectors);
        const Packed<weight_t> by_bias = load_or(of.tangent_bias, 0, column, vectors);
        const acc_t mean_of_dx = product(sums[0], one_by_n), slope = -rstd * product(sums[1], one_by_n);
        acc_t out[VECTOR_WIDTH];
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) {
            const acc_t deviation = x[k] - mean;
            const acc_t moved = rstd * fma(deviation, slope, dx[k] - mean_of_dx);
            out[k] = fma(moved, weight[k], fma(product(deviation, rstd), by_weight[k], by_bias[k]));
        }
        Packed<y_t> packed;
        packed.set(out);
        store_packed(tangent_y + column, packed, vectors);
    }
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
