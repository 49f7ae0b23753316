// CUDA's math functions that <math.h> lacks. The C++ <math.h> has the other functions, with CUDA's overloads.
#pragma once
#include <fenv.h>

// The assignment `value = {};`. CUDA's headers overload it for pairs of 16-bit floats, and a host compiler finds it ambiguous.
template <typename T> inline void cupyops_empty(T& value) { value = T(); }
// What `value = {a, b}` assigns to. A pair of 16-bit floats has several assignments in CUDA's headers; this target has one.
template <typename T> inline T& cupyops_target(T& value) { return value; }
template <typename T> class CupyopsTarget {
    T& value;
    struct Own {};

public:
    CupyopsTarget(T& v, Own) : value(v) {}
    static CupyopsTarget of(T& v) { return CupyopsTarget(v, Own()); }
    T& operator=(const T& other) { return value = other; }
};

// Minimum and maximum, with the result types of CUDA's overloads for arguments of two types.
typedef unsigned long cupyops_ulong;
typedef long long cupyops_longlong;
typedef unsigned long long cupyops_ulonglong;
#define CUPYOPS_MIN_MAX(A, B, R)                                                             \
    inline constexpr R min(A a, B b) { return (R)b < (R)a ? (R)b : (R)a; }                   \
    inline constexpr R max(A a, B b) { return (R)a < (R)b ? (R)b : (R)a; }
CUPYOPS_MIN_MAX(int, int, int)
CUPYOPS_MIN_MAX(unsigned, unsigned, unsigned)
CUPYOPS_MIN_MAX(int, unsigned, unsigned)
CUPYOPS_MIN_MAX(unsigned, int, unsigned)
CUPYOPS_MIN_MAX(long, long, long)
CUPYOPS_MIN_MAX(cupyops_ulong, cupyops_ulong, cupyops_ulong)
CUPYOPS_MIN_MAX(long, cupyops_ulong, cupyops_ulong)
CUPYOPS_MIN_MAX(cupyops_ulong, long, cupyops_ulong)
CUPYOPS_MIN_MAX(cupyops_longlong, cupyops_longlong, cupyops_longlong)
CUPYOPS_MIN_MAX(cupyops_ulonglong, cupyops_ulonglong, cupyops_ulonglong)
CUPYOPS_MIN_MAX(cupyops_longlong, cupyops_ulonglong, cupyops_ulonglong)
CUPYOPS_MIN_MAX(cupyops_ulonglong, cupyops_longlong, cupyops_ulonglong)
#undef CUPYOPS_MIN_MAX
inline constexpr unsigned umin(unsigned a, unsigned b) { return min(a, b); }
inline constexpr unsigned umax(unsigned a, unsigned b) { return max(a, b); }
inline constexpr long long llmin(long long a, long long b) { return min(a, b); }
inline constexpr long long llmax(long long a, long long b) { return max(a, b); }
inline constexpr unsigned long long ullmin(unsigned long long a, unsigned long long b) { return min(a, b); }
inline constexpr unsigned long long ullmax(unsigned long long a, unsigned long long b) { return max(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrtf(float x) { return float(1.0 / sqrt(double(x))); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double cupyops_rcbrt(double x) { return 1.0 / cbrt(x); }
inline float rcbrtf(float x) { return float(1.0 / cbrt(double(x))); }
inline double cupyops_exp10(double x) { return pow(10.0, x); }
inline float cupyops_exp10(float x) { return float(pow(10.0, double(x))); }
#define exp10 cupyops_exp10
inline float cupyops_exp10f(float x) { return cupyops_exp10(x); }
#define exp10f cupyops_exp10f
inline void cupyops_sincos(double x, double* s, double* c) { *s = sin(x), *c = cos(x); }
inline void cupyops_sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline void cupyops_sincos(float x, float* s, float* c) { cupyops_sincosf(x, s, c); }
#define sincos cupyops_sincos
#define sincosf cupyops_sincosf
// x is reduced modulo 2 first, since remainder() is exact: for a large x, the rounding of pi * x would lose the phase.
inline double cupyops_sinpi(double x) { return x == trunc(x) && !isinf(x) ? copysign(0.0, x) : sin(3.14159265358979323846 * remainder(x, 2.0)); }
inline double cupyops_cospi(double x) { return fabs(remainder(x, 2.0)) == 0.5 ? 0.0 : cos(3.14159265358979323846 * remainder(x, 2.0)); }
inline float sinpif(float x) { return float(cupyops_sinpi(double(x))); }
inline float cospif(float x) { return float(cupyops_cospi(double(x))); }

// The cumulative normal distribution, erfc(-x/√2) / 2. The argument -x/√2 is rounded, and erfc amplifies its relative
// error by about x², so a first-order term corrects for the rounding error.
inline double cupyops_normcdf(double x) {
    if (!(fabs(x) < 39.0)) return x != x ? x : x > 0.0 ? 1.0 : 0.0;
    constexpr double HIGH = 0.70710678118654752440, LOW = -4.8336466567264567e-17;
    const double z = -x * HIGH, rest = fma(-x, HIGH, -z) - x * LOW;
    return 0.5 * (erfc(z) - 1.12837916709551257390 * exp(-z * z) * rest);
}
inline float normcdff(float x) { return float(cupyops_normcdf(double(x))); }
inline double cupyops_erfcx(double x) {
    if (x < -30.0) return INFINITY;
    if (x < 25.0) return exp(x * x) * (1.0 + fma(x, x, -(x * x))) * erfc(x);
    double rest = x;  // Laplace's continued fraction, evaluated from the innermost term
    for (int k = 20; k > 0; --k) rest = x + 0.5 * k / rest;
    return 0.56418958354775628695 / rest;
}
inline float erfcxf(float x) { return float(cupyops_erfcx(double(x))); }

// Lengths without overflow in between, and their reciprocals.
inline double norm(int n, const double* p) {
    double length = 0.0;
    for (int i = 0; i < n; ++i) length = hypot(length, p[i]);
    return length;
}
inline float normf(int n, const float* p) {
    double length = 0.0;
    for (int i = 0; i < n; ++i) length = hypot(length, double(p[i]));
    return float(length);
}
inline double norm3d(double a, double b, double c) { return hypot(hypot(a, b), c); }
inline double norm4d(double a, double b, double c, double d) { return hypot(hypot(a, b), hypot(c, d)); }
inline float norm3df(float a, float b, float c) { return float(norm3d(a, b, c)); }
inline float norm4df(float a, float b, float c, float d) { return float(norm4d(a, b, c, d)); }
inline double rhypot(double a, double b) { return 1.0 / hypot(a, b); }
inline double rnorm(int n, const double* p) { return 1.0 / norm(n, p); }
inline double rnorm3d(double a, double b, double c) { return 1.0 / norm3d(a, b, c); }
inline double rnorm4d(double a, double b, double c, double d) { return 1.0 / norm4d(a, b, c, d); }
inline float rhypotf(float a, float b) { return float(rhypot(a, b)); }
inline float rnorm3df(float a, float b, float c) { return float(rnorm3d(a, b, c)); }
inline float rnorm4df(float a, float b, float c, float d) { return float(rnorm4d(a, b, c, d)); }
inline float rnormf(int n, const float* p) {
    double length = 0.0;
    for (int i = 0; i < n; ++i) length = hypot(length, double(p[i]));
    return float(1.0 / length);
}
template <int = 0> inline void sincospi(double x, double* s, double* c) { *s = cupyops_sinpi(x), *c = cupyops_cospi(x); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }

// The inverses of erf and erfc, by Halley's iteration. Each solves for the function that is small at its argument: there,
// the argument has no rounding error, and neither has 1 - x.
inline double cupyops_erfinv_near_0(double p) {
    double x = 0.88622692545275801365 * p;
    for (int i = 0; i < 5; ++i) {
        const double step = (erf(x) - p) / (1.12837916709551257390 * exp(-x * x));
        x -= step / (1.0 + x * step);
    }
    return x;
}
inline double cupyops_erfcinv(double y) {
    if (!(y >= 0.0 && y <= 2.0)) return __builtin_nan("");
    if (y > 1.5) return -cupyops_erfcinv(2.0 - y);
    if (y >= 0.5) return cupyops_erfinv_near_0(1.0 - y);
    if (y == 0.0) return INFINITY;
    const double t = sqrt(-2.0 * log(0.5 * y));
    double x = 0.70710678118654752440 * (t - (2.30753 + 0.27061 * t) / (1.0 + t * (0.99229 + 0.04481 * t)));
    for (int i = 0; i < 5; ++i) {
        const double step = (erfc(x) - y) / (1.12837916709551257390 * exp(-x * x));
        x += step / (1.0 - x * step);
    }
    return x;
}
inline double cupyops_erfinv(double x) {
    if (!(fabs(x) <= 1.0)) return __builtin_nan("");
    return fabs(x) <= 0.5 ? cupyops_erfinv_near_0(x) : copysign(cupyops_erfcinv(1.0 - fabs(x)), x);
}
inline double cupyops_normcdfinv(double p) { return -1.41421356237309504880 * cupyops_erfcinv(2.0 * p); }
inline float erfinvf(float x) { return float(cupyops_erfinv(x)); }
inline float erfcinvf(float x) { return float(cupyops_erfcinv(x)); }
inline float normcdfinvf(float p) { return float(cupyops_normcdfinv(p)); }

// Modified Bessel functions of order 0 and 1, by their series, whose terms are all of one sign.
inline double cupyops_bessel_i(int order, double x) {
    if (!(fabs(x) < 720.0)) return x != x ? x : order && x < 0.0 ? -INFINITY : INFINITY;
    const long double quarter = 0.25L * x * x;
    long double term = order ? 0.5L * x : 1.0L, sum = term;
    for (int k = 1; fabsl(term) > 1e-21L * fabsl(sum); ++k) sum += term *= quarter / ((long double)k * (k + order));
    return double(sum);
}
inline double cupyops_cyl_bessel_i0(double x) { return cupyops_bessel_i(0, x); }
inline double cupyops_cyl_bessel_i1(double x) { return cupyops_bessel_i(1, x); }
inline float cyl_bessel_i0f(float x) { return float(cupyops_cyl_bessel_i0(x)); }
inline float cyl_bessel_i1f(float x) { return float(cupyops_cyl_bessel_i1(x)); }

// CUDA's functions of these names take a double or a float. Templates, since NVRTC prefers a text's own function of the same name, and so
// that an integer is as near to either. No function of these headers calls them: a compilation instantiates what a precompiled header calls.
#define CUPYOPS_OF_BOTH(NAME)                                                      \
    template <int = 0> inline double NAME(double x) { return cupyops_##NAME(x); } \
    template <int = 0> inline float NAME(float x) { return NAME##f(x); }
CUPYOPS_OF_BOTH(rcbrt)
CUPYOPS_OF_BOTH(sinpi)
CUPYOPS_OF_BOTH(cospi)
CUPYOPS_OF_BOTH(normcdf)
CUPYOPS_OF_BOTH(normcdfinv)
CUPYOPS_OF_BOTH(erfcx)
CUPYOPS_OF_BOTH(erfinv)
CUPYOPS_OF_BOTH(erfcinv)
CUPYOPS_OF_BOTH(cyl_bessel_i0)
CUPYOPS_OF_BOTH(cyl_bessel_i1)
#undef CUPYOPS_OF_BOTH
template <int = 0> inline void sincospi(float x, float* s, float* c) { sincospif(x, s, c); }

// CUDA's fast approximations. Here they are the accurate functions, whose errors lie within CUDA's documented bounds.
inline float __saturatef(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return cupyops_exp10(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline void __sincosf(float x, float* s, float* c) { cupyops_sincos(x, s, c); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }
inline double fdivide(double x, double y) { return x / y; }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }

// Arithmetic in a rounding mode. volatile keeps the compiler from moving the operation across the changes of mode. No templates: a
// compilation instantiates those that a precompiled header calls, whether the text uses them or not.
#define CUPYOPS_IN_MODE(MODE, T, VALUE) \
    const int before = fegetround();    \
    fesetround(MODE);                   \
    volatile T result = VALUE;          \
    fesetround(before);                 \
    return result;
#define CUPYOPS_ROUNDED(SUFFIX, MODE)                                                                                                              \
    inline float __fadd##SUFFIX(float a, float b) { volatile float x = a, y = b; CUPYOPS_IN_MODE(MODE, float, x + y) }                             \
    inline float __fsub##SUFFIX(float a, float b) { volatile float x = a, y = b; CUPYOPS_IN_MODE(MODE, float, x - y) }                             \
    inline float __fmul##SUFFIX(float a, float b) { volatile float x = a, y = b; CUPYOPS_IN_MODE(MODE, float, x * y) }                             \
    inline float __fdiv##SUFFIX(float a, float b) { volatile float x = a, y = b; CUPYOPS_IN_MODE(MODE, float, x / y) }                             \
    inline float __frcp##SUFFIX(float a) { volatile float x = a; CUPYOPS_IN_MODE(MODE, float, 1.0f / x) }                                          \
    inline float __fsqrt##SUFFIX(float a) { volatile float x = a; CUPYOPS_IN_MODE(MODE, float, sqrtf(x)) }                                         \
    inline float __fmaf##SUFFIX(float a, float b, float c) { volatile float x = a, y = b, z = c; CUPYOPS_IN_MODE(MODE, float, fmaf(x, y, z)) }     \
    inline float __fmaf_ieee##SUFFIX(float a, float b, float c) { return __fmaf##SUFFIX(a, b, c); }                                                \
    inline double __dadd##SUFFIX(double a, double b) { volatile double x = a, y = b; CUPYOPS_IN_MODE(MODE, double, x + y) }                        \
    inline double __dsub##SUFFIX(double a, double b) { volatile double x = a, y = b; CUPYOPS_IN_MODE(MODE, double, x - y) }                        \
    inline double __dmul##SUFFIX(double a, double b) { volatile double x = a, y = b; CUPYOPS_IN_MODE(MODE, double, x * y) }                        \
    inline double __ddiv##SUFFIX(double a, double b) { volatile double x = a, y = b; CUPYOPS_IN_MODE(MODE, double, x / y) }                        \
    inline double __drcp##SUFFIX(double a) { volatile double x = a; CUPYOPS_IN_MODE(MODE, double, 1.0 / x) }                                       \
    inline double __dsqrt##SUFFIX(double a) { volatile double x = a; CUPYOPS_IN_MODE(MODE, double, sqrt(x)) }                                      \
    inline double __fma##SUFFIX(double a, double b, double c) { volatile double x = a, y = b, z = c; CUPYOPS_IN_MODE(MODE, double, fma(x, y, z)) } \
    inline float __double2float##SUFFIX(double a) { volatile double x = a; CUPYOPS_IN_MODE(MODE, float, float(x)) }                                \
    inline float __int2float##SUFFIX(int a) { volatile int x = a; CUPYOPS_IN_MODE(MODE, float, float(x)) }                                         \
    inline float __uint2float##SUFFIX(unsigned a) { volatile unsigned x = a; CUPYOPS_IN_MODE(MODE, float, float(x)) }                              \
    inline float __ll2float##SUFFIX(long long a) { volatile long long x = a; CUPYOPS_IN_MODE(MODE, float, float(x)) }                              \
    inline float __ull2float##SUFFIX(unsigned long long a) { volatile unsigned long long x = a; CUPYOPS_IN_MODE(MODE, float, float(x)) }           \
    inline double __ll2double##SUFFIX(long long a) { volatile long long x = a; CUPYOPS_IN_MODE(MODE, double, double(x)) }                          \
    inline double __ull2double##SUFFIX(unsigned long long a) { volatile unsigned long long x = a; CUPYOPS_IN_MODE(MODE, double, double(x)) }
CUPYOPS_ROUNDED(_rn, FE_TONEAREST)
CUPYOPS_ROUNDED(_rz, FE_TOWARDZERO)
CUPYOPS_ROUNDED(_ru, FE_UPWARD)
CUPYOPS_ROUNDED(_rd, FE_DOWNWARD)
#undef CUPYOPS_ROUNDED
#undef CUPYOPS_IN_MODE
inline double __int2double_rn(int a) { return a; }
inline double __uint2double_rn(unsigned a) { return a; }

// Conversions to integers. A value out of range becomes the nearest integer of the type. NaN becomes the value that
// CUDA documents: 0, or the number whose highest bit alone is set.
template <typename I> inline I cupyops_to_integer(double rounded, I nan) {
    constexpr bool is_signed = I(-1) < I(0);
    constexpr int bits = int(sizeof(I)) * 8;
    const double limit = ldexp(1.0, is_signed ? bits - 1 : bits);
    constexpr I largest = is_signed ? I((1ull << (bits - 1)) - 1) : I(~0ull), smallest = is_signed ? I(1ull << (bits - 1)) : I(0);
    if (rounded != rounded) return nan;
    return rounded >= limit ? largest : rounded < (is_signed ? -limit : 0.0) ? smallest : I(rounded);
}
#define CUPYOPS_TO_INTEGER(NAME, FROM, I, NAN)                                                           \
    inline I __##FROM##2##NAME##_rn(FROM x) { return cupyops_to_integer<I>(nearbyint(double(x)), NAN); } \
    inline I __##FROM##2##NAME##_rz(FROM x) { return cupyops_to_integer<I>(trunc(double(x)), NAN); }     \
    inline I __##FROM##2##NAME##_ru(FROM x) { return cupyops_to_integer<I>(ceil(double(x)), NAN); }      \
    inline I __##FROM##2##NAME##_rd(FROM x) { return cupyops_to_integer<I>(floor(double(x)), NAN); }
CUPYOPS_TO_INTEGER(int, float, int, 0)
CUPYOPS_TO_INTEGER(uint, float, unsigned, 0)
CUPYOPS_TO_INTEGER(ll, float, long long, static_cast<long long>(1ull << 63))
CUPYOPS_TO_INTEGER(ull, float, unsigned long long, 1ull << 63)
CUPYOPS_TO_INTEGER(int, double, int, static_cast<int>(1u << 31))
CUPYOPS_TO_INTEGER(uint, double, unsigned, 1u << 31)
CUPYOPS_TO_INTEGER(ll, double, long long, static_cast<long long>(1ull << 63))
CUPYOPS_TO_INTEGER(ull, double, unsigned long long, 1ull << 63)
#undef CUPYOPS_TO_INTEGER

template <typename To, typename From> inline To cupyops_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
inline int __float_as_int(float x) { return cupyops_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return cupyops_bits<unsigned>(x); }
inline float __int_as_float(int x) { return cupyops_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return cupyops_bits<float>(x); }
inline long long __double_as_longlong(double x) { return cupyops_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cupyops_bits<double>(x); }
inline int __double2hiint(double x) { return int(cupyops_bits<unsigned long long>(x) >> 32); }
inline int __double2loint(double x) { return int(cupyops_bits<unsigned long long>(x)); }
inline double __hiloint2double(int high, int low) { return cupyops_bits<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low); }

// Integer functions. Shift amounts clamp and products wrap, as in the GPU's instructions.
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned long long __brevll(unsigned long long x) {
    unsigned long long y = 0;
    for (int i = 0; i < 64; ++i) y = y << 1 | (x >> i & 1);
    return y;
}
inline unsigned __brev(unsigned x) { return unsigned(__brevll(x) >> 32); }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
inline int __mul24(int a, int b) { return int((unsigned)((long long)(int((unsigned)a << 8) >> 8) * (int((unsigned)b << 8) >> 8))); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); }
inline unsigned __sad(int a, int b, unsigned c) { return (a > b ? (unsigned)a - (unsigned)b : (unsigned)b - (unsigned)a) + c; }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a > b ? a - b : b - a) + c; }
inline int __hadd(int a, int b) { return int(((long long)a + b) >> 1); }
inline int __rhadd(int a, int b) { return int(((long long)a + b + 1) >> 1); }
inline unsigned __uhadd(unsigned a, unsigned b) { return unsigned(((unsigned long long)a + b) >> 1); }
inline unsigned __urhadd(unsigned a, unsigned b) { return unsigned(((unsigned long long)a + b + 1) >> 1); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) { return unsigned(((unsigned long long)high << 32 | low) << (by & 31) >> 32); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) { return unsigned(((unsigned long long)high << 32 | low) >> (by & 31)); }
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) { return by >= 32 ? low : __funnelshift_l(low, high, by); }
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) { return by >= 32 ? high : __funnelshift_r(low, high, by); }
// Reads three bits of each of the selector's digits. The PTX instruction prmt has a fourth, and __byte_perm clears it.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= (unsigned(both >> 8 * (selector >> 4 * i & 7)) & 255) << 8 * i;
    return result;
}
inline int __dp4a(int a, int b, int c) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 4; ++i) sum += (unsigned)((signed char)((unsigned)a >> 8 * i) * (signed char)((unsigned)b >> 8 * i));
    return (int)sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
    return c;
}
