// The instructions of inline PTX. cupyops/simulator/ptx.py translates an asm statement to calls of these functions. A
// register is an unsigned integer of its width, and a predicate a bool; a function's template argument is the
// instruction's type.
#pragma once

#include "copies.h"
#include "matrix.h"
#include "simd.h"

namespace cupyops_ptx {

typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef unsigned char u8, b8;
typedef unsigned short u16, b16;
typedef unsigned u32, b32;
typedef unsigned long long u64, b64;
typedef float f32;
typedef double f64;
typedef bool pred;
// Types of 16-bit floats, one or two in a register. Arithmetic is in float, rounded once.
template <typename F> struct narrow {
    u16 bits;
    narrow() = default;
    explicit narrow(float x) : bits(u16(F::narrow(x))) {}
    operator float() const { return F::widen(bits); }
};
typedef narrow<half_format> f16;
typedef narrow<bf16_format> bf16;
template <typename T> struct two { T x, y; };
typedef two<f16> f16x2;
typedef two<bf16> bf16x2;

template <size_t BYTES> struct Register;
template <> struct Register<1> { typedef u16 type; };
template <> struct Register<2> { typedef u16 type; };
template <> struct Register<4> { typedef u32 type; };
template <> struct Register<8> { typedef u64 type; };

// Reads the lowest bytes of a register as a number, and writes a number to a register; a signed number is extended.
template <typename T, typename R> inline T as(R value) {
    unsigned long long bits = (unsigned long long)value;
    T result;
    __builtin_memcpy(&result, &bits, sizeof(T));
    return result;
}
template <typename T> inline unsigned long long bits(T value) {
    if constexpr (T(-1) < T(0) && T(1) / T(2) == T(0)) return (unsigned long long)(long long)value;
    typename Register<sizeof(T)>::type result = 0;
    __builtin_memcpy(&result, &value, sizeof(T));  // a byte is zero-extended
    return result;
}
template <> inline unsigned long long bits<bool>(bool value) { return value; }
template <> inline unsigned long long bits<f16>(f16 value) { return value.bits; }
template <> inline unsigned long long bits<bf16>(bf16 value) { return value.bits; }
template <> inline unsigned long long bits<f16x2>(f16x2 value) { return value.x.bits | u32(value.y.bits) << 16; }
template <> inline unsigned long long bits<bf16x2>(bf16x2 value) { return value.x.bits | u32(value.y.bits) << 16; }

// An operand of an asm statement: the C++ value of a constraint's size as a register, and back.
template <typename R, typename T> inline R in(T value) {
    static_assert(sizeof(T) == sizeof(R), "the operand of an asm statement must have the size of its constraint");
    R result;
    __builtin_memcpy(&result, &value, sizeof(R));
    return result;
}
template <typename T, typename R> inline T out(R value) {
    static_assert(sizeof(T) == sizeof(R), "the operand of an asm statement must have the size of its constraint");
    T result;
    __builtin_memcpy(&result, &value, sizeof(T));
    return result;
}
template <typename T> struct Bare { typedef T type; };
template <typename T> struct Bare<T&> { typedef T type; };
template <typename T> struct Bare<T&&> { typedef T type; };
template <typename T> using bare = typename Bare<T>::type;  // also in templates

// Modifiers of floating-point instructions.
enum { FTZ = 1, SAT = 2, RZ = 4, RU = 8, RD = 16, NAN_WINS = 32, RELU = 64 };
template <int F> inline float finish(float x) {
    if (F & FTZ && fabsf(x) < 1.17549435e-38f) x = copysignf(0.0f, x);
    if (F & SAT) x = x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f;
    if (F & RELU) x = x > 0.0f || x != x ? x : 0.0f;
    return x;
}
template <int F> inline double finish(double x) { return x; }
template <int F> inline f16 finish(f16 x) { return f16(finish<F & ~FTZ>(float(x))); }
template <int F> inline bf16 finish(bf16 x) { return bf16(finish<F & ~FTZ>(float(x))); }
template <int F> inline float start(float x) { return F & FTZ && fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }
template <int F, typename T> inline T start(T x) { return x; }

// Computes in a rounding mode; volatile operands keep the compiler from moving the operation.
template <int F, typename T, typename Operation> inline T rounded(Operation operation) {
    if constexpr (!(F & (RZ | RU | RD))) return operation();
    const int before = fegetround();
    fesetround(F & RZ ? FE_TOWARDZERO : F & RU ? FE_UPWARD : FE_DOWNWARD);
    volatile T result = operation();
    fesetround(before);
    return result;
}

template <typename T> struct IsTwo { enum { value = 0 }; };
template <typename T> struct IsTwo<two<T>> { enum { value = 1 }; typedef T type; };
template <typename T> struct IsNarrow { enum { value = 0 }; };
template <typename T> struct IsNarrow<narrow<T>> { enum { value = 1 }; };

// Applies an operation on float, double or a 16-bit float to one number or to both of a pair.
template <typename T, int F, typename Operation, typename... R> inline T floats(Operation operation, R... r) {
    if constexpr (IsTwo<T>::value) {
        typedef typename IsTwo<T>::type H;
        return {floats<H, F>(operation, u16(r)...), floats<H, F>(operation, u16(u32(r) >> 16)...)};
    } else if constexpr (IsNarrow<T>::value) {
        return finish<F>(T(operation(float(as<T>(r))...)));
    } else {
        return finish<F>(rounded<F, T>([&] { return T(operation(start<F>(as<T>(r))...)); }));
    }
}
#define CUPYOPS_PTX_FLOAT(NAME, PARAMETERS, EXPRESSION, ...)                              \
    template <typename T, int F, typename... R> inline unsigned long long NAME(R... r) {  \
        return bits(floats<T, F>([](auto... all) {                                        \
            auto operation = [] PARAMETERS { return EXPRESSION; };                        \
            return operation(all...); }, r...));                                          \
    }
#define CUPYOPS_PTX_V(X) (*const_cast<const volatile decltype(X)*>(&X))
CUPYOPS_PTX_FLOAT(fadd, (auto a, auto b), CUPYOPS_PTX_V(a) + CUPYOPS_PTX_V(b))
CUPYOPS_PTX_FLOAT(fsub, (auto a, auto b), CUPYOPS_PTX_V(a) - CUPYOPS_PTX_V(b))
CUPYOPS_PTX_FLOAT(fmul, (auto a, auto b), CUPYOPS_PTX_V(a) * CUPYOPS_PTX_V(b))
CUPYOPS_PTX_FLOAT(fdiv, (auto a, auto b), CUPYOPS_PTX_V(a) / CUPYOPS_PTX_V(b))
CUPYOPS_PTX_FLOAT(frcp, (auto a), decltype(a)(1) / CUPYOPS_PTX_V(a))
// The overloads of ::fma are chosen by the type.
inline float fused(float a, float b, float c) { return ::fmaf(CUPYOPS_PTX_V(a), CUPYOPS_PTX_V(b), CUPYOPS_PTX_V(c)); }
inline double fused(double a, double b, double c) { return ::fma(CUPYOPS_PTX_V(a), CUPYOPS_PTX_V(b), CUPYOPS_PTX_V(c)); }
CUPYOPS_PTX_FLOAT(ffma, (auto a, auto b, auto c), fused(a, b, c))
CUPYOPS_PTX_FLOAT(fsqrt, (auto a), decltype(a)(::sqrt(CUPYOPS_PTX_V(a))))
CUPYOPS_PTX_FLOAT(frsqrt, (auto a), decltype(a)(1.0 / ::sqrt(double(a))))
CUPYOPS_PTX_FLOAT(fex2, (auto a), decltype(a)(::exp2(a)))
CUPYOPS_PTX_FLOAT(flg2, (auto a), decltype(a)(::log2(a)))
CUPYOPS_PTX_FLOAT(fsin, (auto a), decltype(a)(::sin(a)))
CUPYOPS_PTX_FLOAT(fcos, (auto a), decltype(a)(::cos(a)))
CUPYOPS_PTX_FLOAT(ftanh, (auto a), decltype(a)(::tanh(a)))
CUPYOPS_PTX_FLOAT(fabs_, (auto a), decltype(a)(::fabs(a)))
CUPYOPS_PTX_FLOAT(fneg, (auto a), -a)
CUPYOPS_PTX_FLOAT(fcopysign, (auto sign, auto a), decltype(a)(::copysign(a, sign)))
// Without .NaN the minimum and maximum are the other number. -0 is less than 0.
template <typename T> inline T least(T a, T b, bool nan) {
    if (a != a || b != b) return nan || (a != a && b != b) ? T(__builtin_nanf("")) : a != a ? b : a;
    return a < b || (a == b && ::copysign(1.0, double(a)) < 0) ? a : b;
}
CUPYOPS_PTX_FLOAT(fmin_, (auto a, auto b), least(a, b, false))
CUPYOPS_PTX_FLOAT(fmax_, (auto a, auto b), -least(-a, -b, false))
CUPYOPS_PTX_FLOAT(fmin_nan, (auto a, auto b), least(a, b, true))
CUPYOPS_PTX_FLOAT(fmax_nan, (auto a, auto b), -least(-a, -b, true))
#undef CUPYOPS_PTX_FLOAT

// Integers. Arithmetic wraps. A shift by the width or more gives 0, or copies of the sign.
template <typename T> struct Wider { typedef s32 type; };
template <> struct Wider<u16> { typedef u32 type; };
template <> struct Wider<s32> { typedef s64 type; };
template <> struct Wider<u32> { typedef u64 type; };
template <> struct Wider<s64> { typedef __int128 type; };
template <> struct Wider<u64> { typedef unsigned __int128 type; };
#define CUPYOPS_PTX_INTEGER(NAME, EXPRESSION)                                                    \
    template <typename T, typename A, typename B> inline unsigned long long NAME(A x, B y) {     \
        const T a = as<T>(x), b = as<T>(y);                                                      \
        return bits(T(EXPRESSION));                                                              \
    }
CUPYOPS_PTX_INTEGER(add, (unsigned long long)a + (unsigned long long)b)
CUPYOPS_PTX_INTEGER(sub, (unsigned long long)a - (unsigned long long)b)
CUPYOPS_PTX_INTEGER(mul_lo, (unsigned long long)a * (unsigned long long)b)
CUPYOPS_PTX_INTEGER(mul_hi, typename Wider<T>::type(a) * typename Wider<T>::type(b) >> 8 * sizeof(T))
CUPYOPS_PTX_INTEGER(div, a / b)
CUPYOPS_PTX_INTEGER(rem, a % b)
CUPYOPS_PTX_INTEGER(min_, a < b ? a : b)
CUPYOPS_PTX_INTEGER(max_, a < b ? b : a)
CUPYOPS_PTX_INTEGER(and_, a & b)
CUPYOPS_PTX_INTEGER(or_, a | b)
CUPYOPS_PTX_INTEGER(xor_, a ^ b)
CUPYOPS_PTX_INTEGER(mul24, T((unsigned long long)(T(a << 8) >> 8) * (unsigned long long)(T(b << 8) >> 8)))
#undef CUPYOPS_PTX_INTEGER
template <typename T, typename A, typename B> inline unsigned long long add_sat(A a, B b) {
    return bits(T(cupyops_to_integer<s32>(double(as<T>(a)) + double(as<T>(b)), 0)));
}
template <typename T, typename A, typename B> inline unsigned long long sub_sat(A a, B b) {
    return bits(T(cupyops_to_integer<s32>(double(as<T>(a)) - double(as<T>(b)), 0)));
}
template <typename T, typename A, typename B> inline unsigned long long mul_wide(A a, B b) {
    return bits(typename Wider<T>::type(typename Wider<T>::type(as<T>(a)) * as<T>(b)));
}
template <typename T, typename A, typename B> inline unsigned long long shl(A a, B by) {
    return u32(by) >= 8 * sizeof(T) ? 0 : bits(T((unsigned long long)as<T>(a) << u32(by)));
}
template <typename T, typename A, typename B> inline unsigned long long shr(A a, B by) {
    const u32 most = 8 * sizeof(T) - 1;
    if (u32(by) > most) return bits(T(as<T>(a) < T(0) ? -1 : 0));
    return bits(T(as<T>(a) >> u32(by)));
}
template <typename T, typename A> inline unsigned long long neg(A a) { return bits(T(0 - (unsigned long long)as<T>(a))); }
template <typename T, typename A> inline unsigned long long not_(A a) { return bits(T(~as<T>(a))); }
template <typename A> inline unsigned long long not_pred(A a) { return !a; }
template <typename T, typename A> inline unsigned long long cnot(A a) { return as<T>(a) == 0; }
template <typename T, typename A> inline unsigned long long abs_(A a) { return bits(T(as<T>(a) < T(0) ? 0 - (unsigned long long)as<T>(a) : as<T>(a))); }
template <typename T, typename A> inline unsigned long long popc(A a) { return __builtin_popcountll(bits(as<typename Register<sizeof(T)>::type>(a))); }
template <typename T, typename A> inline unsigned long long clz(A a) {
    const u64 x = as<T>(a);
    return x ? unsigned(__builtin_clzll(x)) - (64 - 8 * sizeof(T)) : 8 * sizeof(T);
}
template <typename T, typename A> inline unsigned long long brev(A a) { return __brevll(as<T>(a)) >> (64 - 8 * sizeof(T)); }
// The highest bit that differs from the sign, or all bits set if there is none; with SHIFT, the shift that moves it up.
template <typename T, bool SHIFT, typename A> inline unsigned long long bfind(A a) {
    const T x = as<T>(a);
    const u64 found = x < T(0) ? u64(~x) & (~0ull >> (64 - 8 * sizeof(T))) : u64(x);
    if (!found) return ~0u;
    const unsigned at = 63 - __builtin_clzll(found);
    return SHIFT ? 8 * sizeof(T) - 1 - at : at;
}
template <typename T, typename A, typename B, typename C> inline unsigned long long bfe(A a, B from, C count) {
    const int width = 8 * sizeof(T), first = int(u32(from) & 255), bits_ = int(u32(count) & 255);
    const u64 x = u64(s64(as<T>(a)));
    if (!bits_) return 0;
    const int last = first + bits_ - 1 < width - 1 ? first + bits_ - 1 : width - 1;
    const bool sign = T(-1) < T(0) && x >> last & 1;
    u64 result = sign ? ~0ull : 0;
    for (int i = 0; i < bits_ && i < width && first + i < width; ++i)
        result = (result & ~(1ull << i)) | (x >> (first + i) & 1) << i;
    return bits(T(result));
}
template <typename T, typename A, typename B, typename C, typename D> inline unsigned long long bfi(A a, B b, C from, D count) {
    u64 result = as<T>(b);
    for (u32 i = 0, first = u32(from) & 255, n = u32(count) & 255; i < n && first + i < 8 * sizeof(T); ++i)
        result = (result & ~(1ull << (first + i))) | (u64(as<T>(a)) >> i & 1) << (first + i);
    return bits(T(result));
}
template <typename A, typename B, typename C> inline unsigned long long lop3(A a, B b, C c, unsigned table) {
    u32 result = 0;
    for (int i = 0; i < 32; ++i) result |= (table >> ((u32(a) >> i & 1) << 2 | (u32(b) >> i & 1) << 1 | (u32(c) >> i & 1)) & 1) << i;
    return result;
}
// A digit of the selector beyond 7 fills the byte with the sign of the byte that it chooses.
inline unsigned long long prmt(unsigned a, unsigned b, unsigned selector) {
    unsigned result = __byte_perm(a, b, selector);
    for (int i = 0; i < 4; ++i)
        if (selector >> 4 * i & 8) result = (result & ~(255u << 8 * i)) | (result >> 8 * i & 128 ? 255u : 0u) << 8 * i;
    return result;
}
// The modes of prmt choose four bytes by the lowest two bits of the selector.
inline unsigned long long prmt_mode(int mode, unsigned a, unsigned b, unsigned selector) {
    static const unsigned short chosen[6][4] = {{0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123}, {0x0000, 0x1111, 0x2222, 0x3333},
                                                {0x3210, 0x3211, 0x3222, 0x3333}, {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
    return __byte_perm(a, b, chosen[mode][selector & 3]);
}
template <typename T, typename A, typename B, typename C> inline unsigned long long sad(A a, B b, C c) {
    const T x = as<T>(a), y = as<T>(b);
    return bits(T((x < y ? u64(y) - u64(x) : u64(x) - u64(y)) + u64(as<T>(c))));
}
template <typename T, typename A, typename B> inline unsigned long long dp4a(A a, B b, u32 c) { return bits(T(__dp4a(as<T>(a), as<T>(b), as<T>(c)))); }
// Addition and subtraction with a carry, which the next such instruction of the thread reads, in this statement or in
// another one.
CUPYOPS_UNCHECKED bool carry_of_thread() { return static_cast<bool*>(cupyops_kept(CUPYOPS_CARRIES, 1024))[cupyops_thread()]; }
CUPYOPS_UNCHECKED void keep_carry(bool carry) { static_cast<bool*>(cupyops_kept(CUPYOPS_CARRIES, 1024))[cupyops_thread()] = carry; }
template <typename T, typename A, typename B> inline unsigned long long carried(A a, B b, bool& carry, bool in) {
    const unsigned __int128 sum = (unsigned __int128)as<T>(a) + as<T>(b) + in;
    carry = (sum >> 8 * sizeof(T)) != 0;
    return u64(T(sum));
}
template <typename T, typename A, typename B> inline unsigned long long borrowed(A a, B b, bool& borrow, bool in) {
    const __int128 difference = (__int128)as<T>(a) - as<T>(b) - in;
    borrow = difference < 0;
    return u64(T(difference));
}

// Instructions on the halfwords or bytes of a word: results, or their sum with a third word.
enum { VADD, VSUB, VAVRG, VMIN, VMAX, VABSDIFF };
template <int COUNT, int OPERATION, bool D_SIGNED, bool A_SIGNED, bool B_SIGNED, bool SATURATE, bool SUM> inline unsigned long long video(u32 a, u32 b, u32 c) {
    constexpr int bits = 32 / COUNT;
    constexpr u32 mask = (1u << bits) - 1;
    u32 words = 0, sum = c;
    for (int i = 0; i < 32; i += bits) {
        const s32 x = A_SIGNED ? s32((a >> i & mask) << (32 - bits)) >> (32 - bits) : s32(a >> i & mask);
        const s32 y = B_SIGNED ? s32((b >> i & mask) << (32 - bits)) >> (32 - bits) : s32(b >> i & mask);
        s32 r = OPERATION == VADD ? x + y : OPERATION == VSUB ? x - y : OPERATION == VMIN ? (x < y ? x : y) : OPERATION == VMAX ? (x > y ? x : y)
              : OPERATION == VABSDIFF ? (x > y ? x - y : y - x) : x + y >= 0 ? (x + y + 1) >> 1 : (x + y) >> 1;
        if (SATURATE) r = D_SIGNED ? cupyops_clamped(r, -int(mask / 2) - 1, int(mask / 2)) : cupyops_clamped(r, 0, int(mask));
        words |= (u32(r) & mask) << i, sum += u32(r);
    }
    return SUM ? sum : words;
}

// Saturates two integers to BITS bits, and places them in the low bits, below the low bits of a third integer.
template <int BITS, bool SIGNED> inline unsigned long long pack_sat(s32 a, s32 b, u32 c) {
    constexpr int top = (1 << (SIGNED ? BITS - 1 : BITS)) - 1, low = SIGNED ? -top - 1 : 0;
    constexpr u32 mask = (1u << BITS) - 1;
    const u32 both = (u32(cupyops_clamped(a, low, top)) & mask) << BITS | (u32(cupyops_clamped(b, low, top)) & mask);
    return BITS == 16 ? both : both | c << (2 * BITS % 32);
}

// Comparisons.
enum { EQ, NE, LT, LE, GT, GE, UNORDERED_EQ, UNORDERED_NE, UNORDERED_LT, UNORDERED_LE, UNORDERED_GT, UNORDERED_GE, NUM, NOT_NUM };
template <typename T> inline auto plain(T x) {
    if constexpr (IsNarrow<T>::value) return float(x);
    else return x;
}
template <typename T, int C, typename A, typename B> inline bool compared(A x, B y) {
    const auto a = plain(as<T>(x)), b = plain(as<T>(y));
    const bool nan = a != a || b != b;
    if (C == NUM || C == NOT_NUM) return nan == (C == NOT_NUM);
    if (C >= UNORDERED_EQ && nan) return true;
    switch (C % 6) {
        case EQ: return a == b;
        case NE: return a != b && !nan;
        case LT: return a < b;
        case LE: return a <= b;
        case GT: return a > b;
        default: return a >= b;
    }
}

// Conversions. A float that does not fit an integer becomes the nearest one.
template <typename T> inline double exactly(T x) {
    if constexpr (IsNarrow<T>::value) return double(float(x));
    else return double(x);
}
enum { NEAREST, ZERO, DOWN, UP };
inline double to_whole(double x, int way) { return way == NEAREST ? nearbyint(x) : way == ZERO ? trunc(x) : way == DOWN ? floor(x) : ceil(x); }
template <typename D, typename S, int F, int WAY, typename A> inline unsigned long long convert(A a) {
    const S s = as<S>(a);
    constexpr bool from_integer = !IsNarrow<S>::value && S(3) / S(2) == S(1);
    constexpr bool to_integer = !IsNarrow<D>::value && D(3) / D(2) == D(1);
    if constexpr (from_integer && to_integer) {
        if (F & SAT) {
            const __int128 x = s, low = D(-1) < D(0) ? -((__int128)1 << (8 * sizeof(D) - 1)) : 0, high = ((__int128)1 << (8 * sizeof(D) - (D(-1) < D(0)))) - 1;
            return bits(D(x < low ? low : x > high ? high : x));
        }
        return bits(D(s));
    } else if constexpr (to_integer) {
        constexpr D nan = sizeof(S) == 8 || sizeof(D) == 8 ? D(1ull << (8 * sizeof(D) - 1)) : D(0);
        return bits(cupyops_to_integer<D>(to_whole(exactly(start<F>(s)), WAY), nan));
    } else if constexpr (IsNarrow<D>::value || IsNarrow<S>::value) {
        return bits(finish<F>(D(float(s))));  // a narrow number is exact as a float
    } else {
        volatile S exact = s;
        if constexpr (WAY != NEAREST && sizeof(D) == sizeof(S)) return bits(D(to_whole(exactly(s), WAY)));
        else return bits(finish<F>(rounded<F, D>([&] { return D(S(exact)); })));
    }
}
template <int F> inline unsigned long long to_tf32(u32 a) {
    return (a & 0x7F800000) == 0x7F800000 ? a : (a + 0x1000) & ~0x1FFFu;  // ties away from zero
}
template <typename H, int F> inline unsigned long long pack_halves(u32 upper, u32 lower) {
    return bits(finish<F>(H(as<f32>(lower)))) | bits(finish<F>(H(as<f32>(upper)))) << 16;
}

}  // namespace cupyops_ptx

#include "ptx_memory.h"
