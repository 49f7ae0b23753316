// Mean and variance of a row that a group of rows.cuh holds in registers: a warp computes the moments of its elements
// (moments_of), every warp combines the moments of all warps on the row (combine), and rows longer than a block's registers
// join the moments of their slices (join).
#pragma once

#include "rows.cuh"

// a / b, given 1 / b: a product and one Newton correction. A division takes ten times as long.
__device__ __forceinline__ acc_t divide(acc_t a, acc_t b, acc_t one_by_b) {
    const acc_t q = a * one_by_b;
    return fma(fma(-q, b, a), one_by_b, q);
}

// The number of some elements, their mean as the unrounded sum mean + rest, and the sum of squared deviations from the mean.
struct Moments {
    acc_t count, mean, rest, squares;
};

// The moments of a warp's elements of a row. `any` is false for a group without a row.
//
// 16-bit elements whose result has 16 bits take one pass, over the deviations d from the warp's first element p:
//
//   mean = p + Σd/n    squares = Σd² - (Σd)²/n
//
// Cancellation in the difference grows with the distance of p from the mean: it costs three bits at three standard
// deviations. At a larger distance, in one row of some hundreds, the warp takes a second pass. The remaining accuracy
// is ample for a result with 11 bits of precision, and too low for a wider result. The deviations of constant rows are
// exactly 0.
//
// Wider elements take two passes. The rounded mean has rounding errors; the sum of the deviations from the rounded mean
// gives the correction `rest`. With the correction, rows whose mean is far from 0 keep their accuracy.
template <typename Result, typename T>
__device__ __forceinline__ Moments moments_of(const Packed<T> (&held)[VECTORS], bool any, const Columns& columns) {
    constexpr bool ONCE = sizeof(T) == 2 && sizeof(Result) == 2;
    constexpr int LANES_OF_ROW = ROW_THREADS < 32 ? ROW_THREADS : 32;
    constexpr int MOST = LANES_OF_ROW * VECTORS * VECTOR_WIDTH;
    // A power of 2, at most 1 over the number of elements: the scaled sum cannot overflow, and scaling by it is exact.
    constexpr acc_t SCALE = acc_t(1) / acc_t(4096);
    static_assert(MOST <= 4096, "more elements a warp than the sum is scaled for");
    acc_t pivot = 0;
    if constexpr (ONCE) {
        if (any && columns.has(0)) pivot = held[0][0];
        pivot = __shfl_sync(0xffffffffu, pivot, 0, LANES_OF_ROW);
    }
    int mine = 0;
    acc_t sum[3] = {0, 0, 0};  // sum of elements or deviations, sum of squares, number of elements
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v)) {
            mine += VECTOR_WIDTH;
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) {
                const acc_t d = held[v][k] - pivot;
                sum[0] = fma(d, SCALE, sum[0]);
                if (ONCE) sum[1] = fma(d, d, sum[1]);
            }
        }
    Moments warp;
    if constexpr (FULL) {
        warp_sum_of<ONCE ? 2 : 1>(sum);
        warp.count = acc_t(MOST);
    } else {
        sum[2] = static_cast<acc_t>(mine);
        warp_sum_of<3>(sum);
        warp.count = sum[2];
    }
    // A warp without elements has a mean of 0.
    const acc_t one_by_count = FULL ? acc_t(1) / acc_t(MOST) : warp.count > 0 ? acc_t(1) / warp.count : acc_t(0);
    const acc_t mean = divide(sum[0], warp.count * SCALE, one_by_count * (acc_t(1) / SCALE));
    warp.mean = pivot + mean;
    warp.rest = 0;
    bool again = true;
    if constexpr (ONCE) {
        const acc_t spare = mean * mean * warp.count;
        // Squares may overflow where the elements are finite; infinite or NaN elements make the squares NaN.
        warp.squares = (spare < sum[1] ? sum[1] - spare : sum[1]) + (mean - mean);
        again = spare > acc_t(8) * warp.squares;
        if (!__any_sync(0xffffffffu, again)) return warp;
    }
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (any && columns.has(v))
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) {
                const acc_t d = held[v][k] - warp.mean;
                sum[1] += d;
                sum[0] = fma(d, d, sum[0]);
            }
    warp_sum_of<2>(sum);
    if (!again) return warp;  // another row of the warp needed the pass; a row's bits do not depend on other rows
    warp.rest = sum[1] * one_by_count;
    const acc_t spare = sum[1] * warp.rest;
    warp.squares = spare < sum[0] ? sum[0] - spare : sum[0];
    return warp;
}

// Sums the values of all readers in the order of readers_sum.
__device__ __forceinline__ acc_t tree_sum(acc_t (&v)[READERS]) {
#pragma unroll
    for (int step = READERS / 2; step > 0; step /= 2)
#pragma unroll
        for (int p = 0; p < step; ++p) v[p] += v[p + step];
    return v[0];
}

// Combines the moments of the PARTS warps on a row of n elements in every thread: for few rows, whose threads would wait for
// each of the shuffles between readers. The bits are those of `combine`.
__device__ __forceinline__ Moments combine_alone(const Moments* parts, acc_t n, acc_t one_by_n) {
    Moments row, of[READERS];
    acc_t sum[READERS];
    row.count = n;
    row.mean = parts[0].mean;
#pragma unroll
    for (int p = 0; p < READERS; ++p) {
        of[p] = p < PARTS ? parts[p < PARTS ? p : 0] : Moments{0, 0, 0, 0};
        of[p].mean = of[p].count > 0 ? (of[p].mean - row.mean) + of[p].rest : acc_t(0);
        sum[p] = fma(of[p].count, of[p].mean, acc_t(0));  // the rounded product, which no sum is fused with
    }
    row.rest = tree_sum(sum) * one_by_n;
#pragma unroll
    for (int p = 0; p < READERS; ++p) {
        const acc_t d = of[p].mean - row.rest;
        sum[p] = fma(of[p].count * d, d, of[p].squares);
    }
    row.squares = tree_sum(sum);
    return row;
}

// Combines the moments of the PARTS warps on a row of n elements.
__device__ __forceinline__ Moments combine(const Moments* parts, acc_t n, acc_t one_by_n) {
    if constexpr (ROW_EACH && PARTS <= 16) return combine_alone(parts, n, one_by_n);
    Moments row;
    row.count = n;
    row.mean = parts[0].mean;
    Moments mine[EACH_READS];
    acc_t sum = 0;
#pragma unroll
    for (int i = 0; i < EACH_READS; ++i) {
        if (part_read(i) < PARTS) mine[i] = parts[part_read(i)];
        else mine[i] = Moments{0, 0, 0, 0};
        mine[i].mean = mine[i].count > 0 ? (mine[i].mean - row.mean) + mine[i].rest : acc_t(0);
        sum = fma(mine[i].count, mine[i].mean, sum);
    }
    row.rest = readers_sum(sum) * one_by_n;
    sum = 0;
#pragma unroll
    for (int i = 0; i < EACH_READS; ++i) {
        const acc_t d = mine[i].mean - row.rest;
        sum += fma(mine[i].count * d, d, mine[i].squares);
    }
    row.squares = readers_sum(sum);
    return row;
}

// Returns the moments of the union of two sets of elements (Chan, Golub and LeVeque, 1979).
__device__ __forceinline__ Moments join(const Moments& a, const Moments& b) {
    if (!(a.count > 0)) return b;
    const acc_t count = a.count + b.count, share = b.count / count, d = ((b.mean - a.mean) - a.rest) + b.rest;
    return {count, a.mean, fma(d, share, a.rest), a.squares + fma(d * share * a.count, d, b.squares)};
}
