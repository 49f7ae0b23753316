// Matrix instructions of a warp: mma.sync, ldmatrix, stmatrix, movmatrix. The lanes of the warp meet, and each computes its
// part of the result from the operands of all lanes.
#pragma once

#include "formats.h"

namespace cupyops_ptx {

enum { MEETINGS = 1100 };  // numbers of cupyops_kept(), one for each warp
struct Meeting {
    const void* of[32];
};

// Gives every lane a copy of what each lane of the warp has, in `all`.
template <typename T> CUPYOPS_UNCHECKED void gather(const T& own, T (&all)[32]) {
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    Meeting* const meeting = static_cast<Meeting*>(cupyops_kept(MEETINGS + thread / 32, sizeof(Meeting)));
    meeting->of[thread % 32] = &own;
    cupyops_warp(CUPYOPS_MATRIX, ~0u, 0, 0, 32, nullptr);
    for (int lane = 0; lane < 32; ++lane) __builtin_memcpy(&all[lane], meeting->of[lane], sizeof(T));
    cupyops_warp(CUPYOPS_MATRIX, ~0u, 0, 0, 32, nullptr);  // before this point, no lane changes its value
}

template <typename F> inline unsigned element(const unsigned* words, int i) {
    constexpr int each = 32 / F::bits;
    return words[i / each] >> (i % each * F::bits) & unsigned((1ull << F::bits) - 1);
}

template <typename F> struct Sum { typedef float type; };
template <> struct Sum<s8_format> { typedef int type; };
template <> struct Sum<u8_format> { typedef int type; };
template <> struct Sum<s4_format> { typedef int type; };
template <> struct Sum<u4_format> { typedef int type; };

template <int A, int B> struct Operands {
    unsigned a[A], b[B];
};

// The product of an M x K and a K x 8 matrix. A register of a lane has `each` elements of one row of A or column of B. The
// lane's group (lane / 4) is the row of A and the column of B; its place in the group (lane % 4) chooses the elements.
template <typename FA, typename FB, int M, int K, int A, int B, typename T>
CUPYOPS_UNCHECKED void multiply_lanes(T (&c)[M / 4], const Operands<A, B>& own) {
    constexpr int each = 32 / FA::bits;
    static_assert(A * each * 32 == M * K && B * each * 32 == 8 * K, "the registers must hold the operands");
    Operands<A, B> all[32];
    gather(own, all);
    const unsigned lane = cupyops_lane(), group = lane / 4, place = lane % 4;
    for (int i = 0; i < M / 4; ++i) {
        const unsigned column = 2 * place + i % 2;
        T sum = c[i];
        for (int k = 0; k < K; ++k) {
            const int within = k % (4 * each), part = k / (4 * each), from = within / each, at = within % each;
            const auto& left = all[group * 4 + from];
            const auto& right = all[column * 4 + from];
            const auto x = FA::widen(element<FA>(left.a + (M == 16 ? 2 * part + i / 2 : part), at));
            const auto y = FB::widen(element<FB>(right.b + part, at));
            sum = T(sum + T(x) * T(y));
        }
        c[i] = sum;
    }
}

// Accumulators in float or int: one register for each element. FLAG SATURATE limits the sums of integers.
template <typename FA, typename FB, int M, int K, bool SATURATE = false, int A, int B>
CUPYOPS_UNCHECKED void mma(unsigned* d, const unsigned (&a)[A], const unsigned (&b)[B], const unsigned* c) {
    typedef typename Sum<FA>::type T;
    Operands<A, B> own;
    __builtin_memcpy(own.a, a, sizeof a), __builtin_memcpy(own.b, b, sizeof b);
    if constexpr (sizeof(T) == 4 && T(1) / T(2) == 0) {
        long long sums[M / 4];
        for (int i = 0; i < M / 4; ++i) sums[i] = int(c[i]);
        multiply_lanes<FA, FB, M, K>(sums, own);
        for (int i = 0; i < M / 4; ++i)
            d[i] = SATURATE ? unsigned(sums[i] > 0x7FFFFFFFll ? 0x7FFFFFFFll : sums[i] < -0x80000000ll ? -0x80000000ll : sums[i]) : unsigned(sums[i]);
    } else {
        float sums[M / 4];
        for (int i = 0; i < M / 4; ++i) sums[i] = float_of_bits(c[i]);
        multiply_lanes<FA, FB, M, K>(sums, own);
        for (int i = 0; i < M / 4; ++i) d[i] = cupyops_bits<unsigned>(sums[i]);
    }
}
// Accumulators in float16: two elements in a register. The sum is rounded once.
template <typename FA, typename FB, int M, int K, bool SATURATE = false, int A, int B>
CUPYOPS_UNCHECKED void mma_half(unsigned* d, const unsigned (&a)[A], const unsigned (&b)[B], const unsigned* c) {
    Operands<A, B> own;
    __builtin_memcpy(own.a, a, sizeof a), __builtin_memcpy(own.b, b, sizeof b);
    float sums[M / 4];
    for (int i = 0; i < M / 4; ++i) sums[i] = half_format::widen(element<half_format>(c, i));
    multiply_lanes<FA, FB, M, K>(sums, own);
    for (int i = 0; i < M / 8; ++i) d[i] = half_format::narrow(sums[2 * i]) | half_format::narrow(sums[2 * i + 1]) << 16;
}
// float64: a register of a lane has one element.
template <int M, int K, int A, int B>
CUPYOPS_UNCHECKED void mma_f64(
    unsigned long long* d, const unsigned long long (&a)[A], const unsigned long long (&b)[B], const unsigned long long* c) {
    struct Both {
        double a[A], b[B];
    } own, all[32];
    __builtin_memcpy(own.a, a, sizeof a), __builtin_memcpy(own.b, b, sizeof b);
    gather(own, all);
    const unsigned lane = cupyops_lane();
    for (unsigned i = 0; i < M / 4; ++i) {
        double sum = cupyops_bits<double>(c[i]);
        for (unsigned k = 0; k < K; ++k) {
            const double x = all[lane / 4 * 4 + k % 4].a[M == 16 ? 2 * (k / 4) + i / 2 : k / 4];
            sum = fma(x, all[(2 * (lane % 4) + i % 2) * 4 + k % 4].b[k / 4], sum);
        }
        d[i] = cupyops_bits<unsigned long long>(sum);
    }
}
// Single bits: the sum of the ones in the conjunction or in the exclusive disjunction of a row and a column.
template <bool AND, int M, int K, int A, int B>
CUPYOPS_UNCHECKED void mma_bits(unsigned* d, const unsigned (&a)[A], const unsigned (&b)[B], const unsigned* c) {
    Operands<A, B> own, all[32];
    __builtin_memcpy(own.a, a, sizeof a), __builtin_memcpy(own.b, b, sizeof b);
    gather(own, all);
    const unsigned lane = cupyops_lane();
    for (unsigned i = 0; i < M / 4; ++i) {
        d[i] = c[i];
        for (unsigned k = 0; k < K / 32; ++k) {
            const unsigned x = all[lane / 4 * 4 + k % 4].a[M == 16 ? 2 * (k / 4) + i / 2 : k / 4];
            const unsigned y = all[(2 * (lane % 4) + i % 2) * 4 + k % 4].b[k / 4];
            d[i] += __builtin_popcount(AND ? x & y : x ^ y);
        }
    }
}

// ldmatrix: the lanes 8i to 8i + 7 have the addresses of the rows of matrix i, eight elements of 16 bits each.
template <int COUNT, bool TRANSPOSED> CUPYOPS_UNCHECKED void ldmatrix(unsigned* d, const void* row) {
    const void* rows[32];
    gather(row, rows);
    const unsigned lane = cupyops_lane();
    for (unsigned m = 0; m < COUNT; ++m) {
        unsigned short pair[2];
        for (unsigned i = 0; i < 2; ++i) {
            const unsigned r = TRANSPOSED ? 2 * (lane % 4) + i : lane / 4, c = TRANSPOSED ? lane / 4 : 2 * (lane % 4) + i;
            const char* const at = static_cast<const char*>(rows[8 * m + r]);
            if (reinterpret_cast<size_t>(at) % 16) cupyops_misuse("ldmatrix: the address of a row is not a multiple of 16 bytes");
            cupyops_touch(at + 2 * c, 2, 0);
            __builtin_memcpy(&pair[i], at + 2 * c, 2);
        }
        d[m] = pair[0] | unsigned(pair[1]) << 16;
    }
}
template <int COUNT, bool TRANSPOSED> CUPYOPS_UNCHECKED void stmatrix(const void* row, const unsigned* s) {
    const void* rows[32];
    gather(row, rows);
    const unsigned lane = cupyops_lane();
    for (unsigned m = 0; m < COUNT; ++m)
        for (unsigned i = 0; i < 2; ++i) {
            const unsigned r = TRANSPOSED ? 2 * (lane % 4) + i : lane / 4, c = TRANSPOSED ? lane / 4 : 2 * (lane % 4) + i;
            char* const at = static_cast<char*>(const_cast<void*>(rows[8 * m + r]));
            if (reinterpret_cast<size_t>(at) % 16) cupyops_misuse("stmatrix: the address of a row is not a multiple of 16 bytes");
            cupyops_touch(at + 2 * c, 2, 1);
            const unsigned short value = (unsigned short)(s[m] >> 16 * i);
            __builtin_memcpy(at + 2 * c, &value, 2);
        }
}
// movmatrix: transposes an 8 x 8 matrix of 16-bit elements.
CUPYOPS_UNCHECKED unsigned movmatrix(unsigned own) {
    unsigned all[32];
    gather(own, all);
    const unsigned lane = cupyops_lane();
    unsigned result = 0;
    for (unsigned i = 0; i < 2; ++i) {
        const unsigned r = 2 * (lane % 4) + i, c = lane / 4;
        result |= (all[r * 4 + c / 2] >> 16 * (c % 2) & 0xFFFF) << 16 * i;
    }
    return result;
}

}  // namespace cupyops_ptx
