// Sums of several rows over neighbouring lanes of a warp: one reduction of all rows takes fewer shuffles than a
// reduction of each row.
#pragma once

// Sums COUNT rows of EACH numbers over ACROSS neighbouring lanes (powers of 2, COUNT ≤ ACROSS). Before, each lane has its own
// term of every number. Each exchange halves the rows that a lane still sums. Afterwards lane p of the ACROSS has the sums of
// row p / (ACROSS / COUNT), in v[0] .. v[EACH - 1].
//
// COUNT does not change which pairs are added, so a row's bits do not depend on COUNT.
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
