// A product of one warp by tensor cores (sm_80 and later): 16 rows by 8 columns over 32 elements of 16 bits, summed in float32.
//
// Operands and sums are spread over the lanes of the warp; lane 4·g + q has the indices g = 0..7 and q = 0..3. The sum does not
// depend on which of the 32 elements a lane holds, as long as both operands agree. A lane holds the eight neighbouring elements
// from 8·q on: one access of 16 bytes loads them from a row.
#pragma once

#include "scalar.cuh"

// Eight neighbouring elements of 16 bits.
struct alignas(16) Eight {
    unsigned word[4];
};

// c += A·B. `upper` holds elements of row g of A, `lower` of row g + 8 of A, and `column` of column g of B. The four
// sums of a lane lie in the rows g, g, g + 8, g + 8 and the columns 2·q, 2·q + 1, 2·q, 2·q + 1.
#define CUPYOPS_MULTIPLY_ADD(TYPE, A, B, I) \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
        "{%0, %1, %2, %3};" \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
        : "r"(upper.word[I]), "r"(lower.word[I]), "r"(upper.word[I + 1]), "r"(lower.word[I + 1]), "r"(column.word[I]), \
          "r"(column.word[I + 1]))

template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const Eight& upper, const Eight& lower, const Eight& column) {
    static_assert(Scalar<T>::is_16_bit_float, "tensor cores multiply float16 and bfloat16");
    if constexpr (is_bfloat16<T>) {
        CUPYOPS_MULTIPLY_ADD("bf16", upper, lower, 0);
        CUPYOPS_MULTIPLY_ADD("bf16", upper, lower, 2);
    } else {
        CUPYOPS_MULTIPLY_ADD("f16", upper, lower, 0);
        CUPYOPS_MULTIPLY_ADD("f16", upper, lower, 2);
    }
}
#undef CUPYOPS_MULTIPLY_ADD
