// Replaces kernels_cu/hardware/tensor_cores.cuh: the lanes of a warp exchange their operands by shuffles.
#pragma once

#include "scalar.cuh"

struct alignas(16) Eight {
    unsigned word[4];
};

template <typename T>
CUPYOPS_INTRINSIC void multiply_add(float (&c)[4], const Eight& upper, const Eight& lower, const Eight& column) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4 * 4, first = lane % 4 * 8;
    for (int q = 0; q < 4; ++q)
        for (int n = 0; n < 4; ++n) {
            const unsigned a[2] = {
                __shfl_sync(0xffffffffu, upper.word[n], row + q), __shfl_sync(0xffffffffu, lower.word[n], row + q)};
            const unsigned b[2] = {
                __shfl_sync(0xffffffffu, column.word[n], first + q), __shfl_sync(0xffffffffu, column.word[n], first + 4 + q)};
            for (int which = 0; which < 2; ++which)
                for (int i = 0; i < 4; ++i)
                    c[i] = fmaf(Scalar<T>::widen(a[i / 2], which), Scalar<T>::widen(b[i % 2], which), c[i]);
        }
}
