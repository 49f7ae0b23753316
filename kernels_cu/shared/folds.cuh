// The reductions of row_passes.cuh: sums, extrema and sums of exponentials of a thread's part of a row, of lanes, and of the
// parts of a row.
//
// Macro   values      meaning                                                                set by
// UNIT    0 or more   accesses of a thread that are reduced together. The units are joined   the row program's config
//                     in their order. 0: an access is a unit where a thread holds the
//                     row, else there are no units
// LATE    0, 1, 2     1: the exponentials of a unit follow the maximum of the whole unit,    the row program's config
//                     for 16-bit elements, too. 2: they follow the maximum of all units
//                     of a thread, or with SPREAD of the threads that share them
// STREAM, PREFETCH, SPREAD: see row_passes.cuh. The others: see rows.cuh.
#pragma once

#include "extrema.cuh"
#include "fast_math.cuh"
#include "rows.cuh"

#ifndef STREAM
#define STREAM 0
#endif
#ifndef PREFETCH
#define PREFETCH 0
#endif
#ifndef LATE
#define LATE 0
#endif
#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

// e^x. For 16-bit scalar_t by a product and a single instruction: the relative error is about |x|·2^-24 + 2^-22, and results
// below 2^-126 are 0.
__device__ __forceinline__ acc_t exponential(acc_t x) {
    if constexpr (sizeof(scalar_t) == 2) return fast_exp2(x * acc_t(1.4426950408889634));
    else return exp(x);
}

// The operation that reduces the values of the threads on a row to one value. Exps follows a Max: the value is Σ exp(a
// - most), where `most` is the thread's greatest a, which is the value before. After the reduction, the value is that
// of the whole row.
enum class Fold { Sum, Max, Min, Exps };

template <Fold FOLD> __device__ __forceinline__ constexpr acc_t nothing() {
    return FOLD == Fold::Max ? acc_t(-INFINITY) : FOLD == Fold::Min ? acc_t(INFINITY) : acc_t(0);
}

// The number subtracted in exponents: the greatest a. -inf stands for no a, or for a's that are -inf only.
__device__ __forceinline__ acc_t origin_of(acc_t most) { return most == acc_t(-INFINITY) ? acc_t(0) : most; }

// Adds VECTOR_WIDTH numbers a to `most` = max a and `exps` = Σ exp(a - most), in one pass over a row. `first`: there are no
// numbers before. The compiler knows it.
__device__ __forceinline__ void add_exps(acc_t& most, acc_t& exps, const acc_t (&a)[VECTOR_WIDTH], bool first = false) {
    acc_t found = first ? a[0] : larger(most, a[0]);
#pragma unroll
    for (int k = 1; k < VECTOR_WIDTH; ++k) found = larger(found, a[k]);
    const acc_t origin = origin_of(found);
    exps = first ? acc_t(0) : exps * exponential(most - origin);
#pragma unroll
    for (int k = 0; k < VECTOR_WIDTH; ++k) exps += exponential(a[k] - origin);
    most = found;
}

// Σ exp(a - most) of a row whose greatest a is infinite is NaN, as the formula is.
__device__ __forceinline__ acc_t exps_of_row(acc_t most, acc_t exps) { return exps + (most - most); }

// Reduces each value over LANES neighbouring lanes. All of these lanes get the same bits.
template <int LANES, Fold... FOLDS> __device__ __forceinline__ void fold_lanes(acc_t (&v)[sizeof...(FOLDS)]) {
    constexpr int COUNT = sizeof...(FOLDS);
    constexpr Fold folds[COUNT] = {FOLDS...};
    acc_t own[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) own[i] = v[i];
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (folds[i] == Fold::Max) v[i] = larger(v[i], __shfl_xor_sync(0xffffffffu, v[i], step));
            if (folds[i] == Fold::Min) v[i] = smaller(v[i], __shfl_xor_sync(0xffffffffu, v[i], step));
        }
#pragma unroll
    for (int i = 1; i < COUNT; ++i)  // by fma, which no addition is contracted with: all lanes get the same bits
        if (folds[i] == Fold::Exps) v[i] = fma(v[i], exponential(own[i - 1] - origin_of(v[i - 1])), acc_t(0));
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (folds[i] == Fold::Sum || folds[i] == Fold::Exps) v[i] += __shfl_xor_sync(0xffffffffu, v[i], step);
}

// Joins the values v of a part of a row with the values of the part that follows.
template <Fold... FOLDS>
__device__ __forceinline__ void join(acc_t (&v)[sizeof...(FOLDS)], const acc_t (&next)[sizeof...(FOLDS)]) {
    constexpr int COUNT = sizeof...(FOLDS);
    constexpr Fold folds[COUNT] = {FOLDS...};
    acc_t own[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        own[i] = v[i];
        if (folds[i] == Fold::Max) v[i] = larger(v[i], next[i]);
        if (folds[i] == Fold::Min) v[i] = smaller(v[i], next[i]);
        if (folds[i] == Fold::Sum) v[i] += next[i];
    }
#pragma unroll
    for (int i = 1; i < COUNT; ++i)
        if (folds[i] == Fold::Exps) {
            // The part with the greater maximum stays as it is: e^0 is 1. The product is contracted by hand.
            const bool rises = own[i - 1] < next[i - 1];
            const acc_t scale = exponential((rises ? own[i - 1] : next[i - 1]) - origin_of(v[i - 1]));
            v[i] = rises ? fma(v[i], scale, next[i]) : fma(next[i], scale, v[i]);
        }
}

// Reduces values of each of READERS readers as fold_lanes does over lanes, but in one thread: without the latency of
// shuffles. The sums have the same order, and so the same bits.
template <Fold... FOLDS>
__device__ __forceinline__ void fold_readers(acc_t (&v)[sizeof...(FOLDS)], acc_t (&read)[READERS][sizeof...(FOLDS)]) {
    constexpr int COUNT = sizeof...(FOLDS);
    constexpr Fold folds[COUNT] = {FOLDS...};
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        if (folds[i] == Fold::Exps)
#pragma unroll
            for (int p = 0; p < READERS; ++p)
                read[p][i] = fma(read[p][i], exponential(read[p][i - 1] - origin_of(v[i - 1])), acc_t(0));
        acc_t tree[READERS];
#pragma unroll
        for (int p = 0; p < READERS; ++p) tree[p] = read[p][i];
#pragma unroll
        for (int step = READERS / 2; step > 0; step /= 2)
#pragma unroll
            for (int p = 0; p < step; ++p)
                tree[p] = folds[i] == Fold::Max   ? larger(tree[p], tree[p + step])
                          : folds[i] == Fold::Min ? smaller(tree[p], tree[p + step])
                                                  : tree[p] + tree[p + step];
        v[i] = tree[0];
    }
}

// Whether a thread's accesses are reduced in units, and the units are joined in their order, so that with SPREAD a unit can
// be another thread's. Rows that are prefetched, and streamed rows of several passes, are never spread.
constexpr bool UNITS_APART = UNIT > 0 || (!STREAM && !PREFETCH);
// Whether the exponentials of a unit follow the maximum of the whole unit. The maximum then rises once for all of its
// accesses. 16-bit elements in pairs would have to be widened twice.
constexpr bool UNIT_AT_ONCE = UNIT > 0 && (LATE || sizeof(scalar_t) == 4);
constexpr bool UNITS_AT_ONCE = UNIT > 0 && LATE == 2;  // a sum of exponentials then joins the next one by an addition
// Units of a thread, or of a turn. The last one may have fewer accesses.
constexpr int OWN_UNITS = (VECTORS + EACH_UNIT - 1) / EACH_UNIT;
static_assert(!UNITS_AT_ONCE || !STREAM, "a thread holds all of its units");
static_assert(UNIT == 0 || !STREAM || UNIT == VECTORS, "a turn of a streamed row is a unit");

// The values of a thread's part of a row.
template <Fold... FOLDS> struct Folded {
    static constexpr int COUNT = sizeof...(FOLDS), OWN = OWN_UNITS;
    static constexpr int APART = SPREAD > 1 ? OWN : 1, AT_ONCE = UNIT_AT_ONCE ? VECTORS : 1;
    acc_t total[APART][COUNT];  // with SPREAD of each unit, else of all units that have ended
    acc_t unit[UNIT > 0 ? OWN : 1][COUNT];
    acc_t exponents[COUNT][AT_ONCE][VECTOR_WIDTH];
    bool begun = false;

    __device__ __forceinline__ Folded() {
#pragma unroll
        for (int v = 0; v < APART; ++v) clear(total[v]);
        if (UNIT > 0) begin_turn();
    }

    static __device__ __forceinline__ void clear(acc_t (&values)[COUNT]) {
        const acc_t none[COUNT] = {nothing<FOLDS>()...};
#pragma unroll
        for (int i = 0; i < COUNT; ++i) values[i] = none[i];
    }

    __device__ __forceinline__ void begin_turn() {
#pragma unroll
        for (int u = 0; u < OWN; ++u) clear(unit[UNIT > 0 ? u : 0]);
        if (UNIT_AT_ONCE && !FULL)  // accesses beyond the end of the row
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
#pragma unroll
                for (int v = INSIDE; v < AT_ONCE; ++v)
#pragma unroll
                    for (int k = 0; k < VECTOR_WIDTH; ++k) exponents[i][v][k] = acc_t(-INFINITY);
    }

    // Returns the values to which the elements of the thread's v-th access are added.
    __device__ __forceinline__ acc_t (&begin_access(int v)) [COUNT] {
        if (UNIT > 0) return unit[UNIT > 0 ? v / EACH_UNIT : 0];
        if (!UNITS_APART) return total[0];
        clear(unit[0]);
        return unit[0];
    }

    // Adds the exponents a of the thread's v-th access to Σ e^a, the EXPS-th value, whose maximum is the value before.
    template <int EXPS> __device__
    __forceinline__ void add_exps(int v, const acc_t (&a)[VECTOR_WIDTH], acc_t (&access)[COUNT]) {
        if constexpr (UNIT_AT_ONCE) {
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) exponents[EXPS][v][k] = a[k];
        } else ::add_exps(access[EXPS - 1], access[EXPS], a, UNITS_APART && v % EACH_UNIT == 0);
    }

    // Ends the thread's v-th access.
    __device__ __forceinline__ void end_access(int v) {
        if (UNIT > 0 || !UNITS_APART) return;
        if (v == 0 || SPREAD > 1)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) total[SPREAD > 1 ? v : 0][i] = unit[0][i];
        else join<FOLDS...>(total[0], unit[0]);
    }

    // Ends the accesses of a turn. Every thread calls it, a thread without an access, too.
    __device__ __forceinline__ void end_turn() {
        if (UNIT == 0 || UNITS_AT_ONCE) return;
        constexpr Fold folds[COUNT] = {FOLDS...};
#pragma unroll
        for (int u = 0; u < OWN; ++u) {
            acc_t(&values)[COUNT] = unit[UNIT > 0 ? u : 0];
#pragma unroll
            for (int i = 1; i < COUNT; ++i)
                if (UNIT_AT_ONCE && folds[i] == Fold::Exps) exps_of_unit(values[i - 1], values[i], i, u * EACH_UNIT);
            if (SPREAD == 1 && begun) join<FOLDS...>(total[0], values);
            else
#pragma unroll
                for (int i = 0; i < COUNT; ++i) total[SPREAD > 1 ? u : 0][i] = values[i];
            begun = true;
        }
        if (STREAM) begin_turn();
    }

    // Returns the maximum of the exponents of all accesses of the i-th value.
    __device__ __forceinline__ acc_t most_of_units(int i) const {
        acc_t most = exponents[i][0][0];
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
#pragma unroll
            for (int k = v == 0; k < VECTOR_WIDTH; ++k) most = larger(most, exponents[i][v % AT_ONCE][k]);
        return most;
    }

    // Ends all units. most[i] is the maximum that the i-th value's exponentials follow.
    __device__ __forceinline__ void end_units(const acc_t (&most)[COUNT]) {
        constexpr Fold folds[COUNT] = {FOLDS...};
#pragma unroll
        for (int u = 0; u < OWN; ++u) {
            acc_t(&values)[COUNT] = unit[UNIT > 0 ? u : 0];
#pragma unroll
            for (int i = 1; i < COUNT; ++i)
                if (folds[i] == Fold::Exps) {
                    values[i - 1] = most[i];
                    values[i] = 0;
#pragma unroll
                    for (int v = u * EACH_UNIT; v < VECTORS && v < (u + 1) * EACH_UNIT; ++v)
#pragma unroll
                        for (int k = 0; k < VECTOR_WIDTH; ++k)
                            values[i] += exponential(exponents[i][v % AT_ONCE][k] - origin_of(most[i]));
                }
            acc_t(&all)[COUNT] = total[SPREAD > 1 ? u : 0];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                if (u == 0 || SPREAD > 1) all[i] = values[i];
                else if (folds[i] == Fold::Max) all[i] = larger(all[i], values[i]);
                else if (folds[i] == Fold::Min) all[i] = smaller(all[i], values[i]);
                else all[i] += values[i];
            }
        }
    }

    // Computes the maximum of the exponents of a unit, whose first access is `first`, and Σ exp(a - most).
    __device__ __forceinline__ void exps_of_unit(acc_t& most, acc_t& exps, int i, int first) {
        most = exponents[i][first % AT_ONCE][0];
#pragma unroll
        for (int v = 0; v < EACH_UNIT; ++v)
#pragma unroll
            for (int k = v == 0; k < VECTOR_WIDTH; ++k) most = larger(most, exponents[i][(first + v) % AT_ONCE][k]);
        const acc_t origin = origin_of(most);
        exps = 0;
#pragma unroll
        for (int v = 0; v < EACH_UNIT; ++v)
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) exps += exponential(exponents[i][(first + v) % AT_ONCE][k] - origin);
    }
};
