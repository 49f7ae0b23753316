// Integer functions on the halfwords or bytes of a word, and combinations of three operands. The translation includes this
// header if the text names one of the functions.
#pragma once

// Applies f to the `count` signed or unsigned parts of two words.
template <int COUNT, bool SIGNED, typename F> inline unsigned cupyops_parts(unsigned a, unsigned b, F f) {
    constexpr int bits = 32 / COUNT;
    constexpr unsigned mask = (1u << bits) - 1, sign = SIGNED ? 1u << (bits - 1) : 0;
    unsigned result = 0;
    for (int i = 0; i < 32; i += bits) {
        const int x = int((a >> i & mask) ^ sign) - int(sign), y = int((b >> i & mask) ^ sign) - int(sign);
        result |= (unsigned(f(x, y)) & mask) << i;
    }
    return result;
}
inline int cupyops_clamped(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

#define CUPYOPS_PARTS(NAME, SIGNED, N, EXPRESSION)                                      \
    inline unsigned NAME##N(unsigned a, unsigned b) {                                   \
        constexpr int top = (1 << (32 / N - 1)) - 1, most = 2 * top + 1, low = -top - 1; \
        (void)top, (void)most, (void)low;                                               \
        return cupyops_parts<N, SIGNED>(a, b, [=](int x, int y) -> int { return EXPRESSION; }); \
    }
#define CUPYOPS_PARTS_OF_ONE(NAME, N, EXPRESSION)                                       \
    inline unsigned NAME##N(unsigned a) {                                               \
        constexpr int top = (1 << (32 / N - 1)) - 1;                                    \
        (void)top;                                                                      \
        return cupyops_parts<N, true>(a, 0, [=](int x, int) -> int { return EXPRESSION; }); \
    }
#define CUPYOPS_COMPARED(NAME, SIGNED, N, OPERATOR)          \
    CUPYOPS_PARTS(__vcmp##NAME, SIGNED, N, x OPERATOR y ? -1 : 0) \
    CUPYOPS_PARTS(__vset##NAME, SIGNED, N, x OPERATOR y)
#define CUPYOPS_SIMD(N)                                                                 \
    CUPYOPS_PARTS(__vadd, false, N, x + y)                                              \
    CUPYOPS_PARTS(__vsub, false, N, x - y)                                              \
    CUPYOPS_PARTS(__vaddss, true, N, cupyops_clamped(x + y, low, top))                  \
    CUPYOPS_PARTS(__vsubss, true, N, cupyops_clamped(x - y, low, top))                  \
    CUPYOPS_PARTS(__vaddus, false, N, cupyops_clamped(x + y, 0, most))                  \
    CUPYOPS_PARTS(__vsubus, false, N, cupyops_clamped(x - y, 0, most))                  \
    CUPYOPS_PARTS(__vabsdiffs, true, N, x > y ? x - y : y - x)                          \
    CUPYOPS_PARTS(__vabsdiffu, false, N, x > y ? x - y : y - x)                         \
    CUPYOPS_PARTS(__vavgs, true, N, x + y >= 0 ? (x + y + 1) >> 1 : (x + y) >> 1)       \
    CUPYOPS_PARTS(__vavgu, false, N, (x + y + 1) >> 1)                                  \
    CUPYOPS_PARTS(__vhaddu, false, N, (x + y) >> 1)                                     \
    CUPYOPS_PARTS(__vmaxs, true, N, x > y ? x : y)                                      \
    CUPYOPS_PARTS(__vmaxu, false, N, x > y ? x : y)                                     \
    CUPYOPS_PARTS(__vmins, true, N, x < y ? x : y)                                      \
    CUPYOPS_PARTS(__vminu, false, N, x < y ? x : y)                                     \
    CUPYOPS_COMPARED(eq, false, N, ==)                                                  \
    CUPYOPS_COMPARED(ne, false, N, !=)                                                  \
    CUPYOPS_COMPARED(ges, true, N, >=)                                                  \
    CUPYOPS_COMPARED(geu, false, N, >=)                                                 \
    CUPYOPS_COMPARED(gts, true, N, >)                                                   \
    CUPYOPS_COMPARED(gtu, false, N, >)                                                  \
    CUPYOPS_COMPARED(les, true, N, <=)                                                  \
    CUPYOPS_COMPARED(leu, false, N, <=)                                                 \
    CUPYOPS_COMPARED(lts, true, N, <)                                                   \
    CUPYOPS_COMPARED(ltu, false, N, <)                                                  \
    CUPYOPS_PARTS_OF_ONE(__vabs, N, x < 0 ? -x : x)                                     \
    CUPYOPS_PARTS_OF_ONE(__vabsss, N, x < 0 ? (-x > top ? top : -x) : x)                \
    CUPYOPS_PARTS_OF_ONE(__vneg, N, -x)                                                 \
    CUPYOPS_PARTS_OF_ONE(__vnegss, N, -x > top ? top : -x)
CUPYOPS_SIMD(2)
CUPYOPS_SIMD(4)

// Sums of absolute differences.
#define CUPYOPS_SUMMED(NAME, DIFFERENCE, N)                                   \
    inline unsigned NAME##N(unsigned a, unsigned b) {                         \
        const unsigned d = DIFFERENCE##N(a, b), mask = (1u << 32 / N) - 1;    \
        unsigned sum = 0;                                                     \
        for (int i = 0; i < 32; i += 32 / N) sum += d >> i & mask;            \
        return sum;                                                           \
    }
CUPYOPS_SUMMED(__vsads, __vabsdiffs, 2)
CUPYOPS_SUMMED(__vsads, __vabsdiffs, 4)
CUPYOPS_SUMMED(__vsadu, __vabsdiffu, 2)
CUPYOPS_SUMMED(__vsadu, __vabsdiffu, 4)

// Dot products of two halfwords with two bytes.
#define CUPYOPS_DP2A(NAME, FIRST)                                                                       \
    inline int NAME(int a, int b, int c) {                                                              \
        unsigned sum = (unsigned)c;                                                                     \
        for (int i = 0; i < 2; ++i)                                                                     \
            sum += (unsigned)((short)((unsigned)a >> 16 * i) * (signed char)((unsigned)b >> (FIRST + 8 * i))); \
        return (int)sum;                                                                                \
    }                                                                                                   \
    inline unsigned NAME(unsigned a, unsigned b, unsigned c) {                                          \
        for (int i = 0; i < 2; ++i) c += (a >> 16 * i & 0xFFFF) * (b >> (FIRST + 8 * i) & 255);         \
        return c;                                                                                       \
    }
CUPYOPS_DP2A(__dp2a_lo, 0)
CUPYOPS_DP2A(__dp2a_hi, 16)

// The position of the offset-th set bit from `base` on, downwards if the offset is negative; ~0 if there is none.
inline unsigned __fns(unsigned mask, unsigned base, int offset) {
    if (offset == 0) return base < 32 && mask >> base & 1 ? base : ~0u;
    for (int at = int(base), step = offset > 0 ? 1 : -1; at >= 0 && at < 32; at += step)
        if (mask >> at & 1 && (offset -= step) == 0) return unsigned(at);
    return ~0u;
}

// Minima and maxima of three numbers, of a sum and a number, and the same with a floor of 0.
#define CUPYOPS_THREE(SUFFIX, T)                                                                                \
    inline T __vimax3_##SUFFIX(T a, T b, T c) { return max(max(a, b), c); }                                     \
    inline T __vimin3_##SUFFIX(T a, T b, T c) { return min(min(a, b), c); }                                     \
    inline T __viaddmax_##SUFFIX(T a, T b, T c) { return max(T((unsigned)a + (unsigned)b), c); }                \
    inline T __viaddmin_##SUFFIX(T a, T b, T c) { return min(T((unsigned)a + (unsigned)b), c); }
CUPYOPS_THREE(s32, int)
CUPYOPS_THREE(u32, unsigned)
inline int __vimax3_s32_relu(int a, int b, int c) { return max(__vimax3_s32(a, b, c), 0); }
inline int __vimin3_s32_relu(int a, int b, int c) { return max(__vimin3_s32(a, b, c), 0); }
inline int __viaddmax_s32_relu(int a, int b, int c) { return max(__viaddmax_s32(a, b, c), 0); }
inline int __viaddmin_s32_relu(int a, int b, int c) { return max(__viaddmin_s32(a, b, c), 0); }
inline int __vimax_s32_relu(int a, int b) { return max(max(a, b), 0); }
inline int __vimin_s32_relu(int a, int b) { return max(min(a, b), 0); }
// The same on two halfwords, where a sum wraps.
#define CUPYOPS_THREE_PARTS(SUFFIX, T)                                                                              \
    inline unsigned __vimax3_##SUFFIX(unsigned a, unsigned b, unsigned c) { return __vmax##T##2(__vmax##T##2(a, b), c); }   \
    inline unsigned __vimin3_##SUFFIX(unsigned a, unsigned b, unsigned c) { return __vmin##T##2(__vmin##T##2(a, b), c); }   \
    inline unsigned __viaddmax_##SUFFIX(unsigned a, unsigned b, unsigned c) { return __vmax##T##2(__vadd2(a, b), c); }      \
    inline unsigned __viaddmin_##SUFFIX(unsigned a, unsigned b, unsigned c) { return __vmin##T##2(__vadd2(a, b), c); }      \
    inline unsigned __vibmax_##SUFFIX(unsigned a, unsigned b, bool* high, bool* low) {                                      \
        const unsigned chosen = __vcmpge##T##2(a, b);                                                                       \
        *high = chosen >> 16, *low = chosen & 0xFFFF;                                                                       \
        return __vmax##T##2(a, b);                                                                                          \
    }                                                                                                                       \
    inline unsigned __vibmin_##SUFFIX(unsigned a, unsigned b, bool* high, bool* low) {                                      \
        const unsigned chosen = __vcmple##T##2(a, b);                                                                       \
        *high = chosen >> 16, *low = chosen & 0xFFFF;                                                                       \
        return __vmin##T##2(a, b);                                                                                          \
    }
CUPYOPS_THREE_PARTS(s16x2, s)
CUPYOPS_THREE_PARTS(u16x2, u)
#undef CUPYOPS_THREE_PARTS
inline unsigned __vimax3_s16x2_relu(unsigned a, unsigned b, unsigned c) { return __vmaxs2(__vimax3_s16x2(a, b, c), 0); }
inline unsigned __vimin3_s16x2_relu(unsigned a, unsigned b, unsigned c) { return __vmaxs2(__vimin3_s16x2(a, b, c), 0); }
inline unsigned __viaddmax_s16x2_relu(unsigned a, unsigned b, unsigned c) { return __vmaxs2(__viaddmax_s16x2(a, b, c), 0); }
inline unsigned __viaddmin_s16x2_relu(unsigned a, unsigned b, unsigned c) { return __vmaxs2(__viaddmin_s16x2(a, b, c), 0); }
inline unsigned __vimax_s16x2_relu(unsigned a, unsigned b) { return __vmaxs2(__vmaxs2(a, b), 0); }
inline unsigned __vimin_s16x2_relu(unsigned a, unsigned b) { return __vmaxs2(__vmins2(a, b), 0); }
// Which of two is chosen; the first, if they are equal.
#define CUPYOPS_CHOSEN(SUFFIX, T)                                                                    \
    inline T __vibmax_##SUFFIX(T a, T b, bool* first) { return (*first = a >= b) ? a : b; }          \
    inline T __vibmin_##SUFFIX(T a, T b, bool* first) { return (*first = a <= b) ? a : b; }
CUPYOPS_CHOSEN(s32, int)
CUPYOPS_CHOSEN(u32, unsigned)
#undef CUPYOPS_CHOSEN
#undef CUPYOPS_PARTS
#undef CUPYOPS_PARTS_OF_ONE
#undef CUPYOPS_COMPARED
#undef CUPYOPS_SIMD
#undef CUPYOPS_SUMMED
#undef CUPYOPS_DP2A
#undef CUPYOPS_THREE
