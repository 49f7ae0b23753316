// The overloads of mathematical functions that CUDA has and the C++ library does not: a text has the same types in both.
#pragma once

template <typename T> constexpr bool cupyops_narrow = false;  // cuda_fp16.h and cuda_bf16.h have the types
template <typename T> using CupyopsInteger = typename CupyopsIf<std::is_integral<T>::value>::type;
template <typename T, typename... None> using CupyopsNarrow = typename CupyopsIf<cupyops_narrow<T> && !sizeof...(None)>::type;

// C has these for double alone. Templates, as in numbers.h.
#define CUPYOPS_BESSEL(NAME)                                            \
    template <int = 0> inline float NAME(float x) { return NAME##f(x); } \
    template <typename T, typename = CupyopsInteger<T>> inline double NAME(T x) { return NAME(double(x)); }
CUPYOPS_BESSEL(j0)
CUPYOPS_BESSEL(j1)
CUPYOPS_BESSEL(y0)
CUPYOPS_BESSEL(y1)
#undef CUPYOPS_BESSEL
template <int = 0> inline float jn(int n, float x) { return jnf(n, x); }
template <int = 0> inline float yn(int n, float x) { return ynf(n, x); }

// The C++ library has double here.
namespace std {
template <int = 0> inline float pow(float x, int n) { return float(pow(double(x), double(n))); }
}  // namespace std
using std::pow;

// CUDA has no such functions of integers.
template <typename T, typename = CupyopsInteger<T>> void jn(int, T) = delete;
template <typename T, typename = CupyopsInteger<T>> void yn(int, T) = delete;
template <typename T, typename = CupyopsInteger<T>> void remquo(T, T, int*) = delete;

// 16-bit floats convert to float, and are ambiguous beside the C++ library's functions of long double. A text's own template fits its
// arguments as well, and is preferred, since it has no pack of parameters. NVRTC's names in std are the same functions.
#define CUPYOPS_OF_NARROW(NAME, R)                                                                                     \
    namespace std {                                                                                                    \
    template <typename T, typename... None, typename = CupyopsNarrow<T, None...>> inline R NAME(const T& x, None...) { \
        return NAME(float(x));                                                                                         \
    }                                                                                                                  \
    }                                                                                                                  \
    using std::NAME;
#define CUPYOPS_OF_NARROW_AND(NAME, A)                                                                                 \
    namespace std {                                                                                                    \
    template <typename T, typename... None, typename = CupyopsNarrow<T, None...>> inline float NAME(const T& x, A a, None...) { \
        return NAME(float(x), a);                                                                                      \
    }                                                                                                                  \
    }                                                                                                                  \
    using std::NAME;
CUPYOPS_OF_NARROW(acos, float)
CUPYOPS_OF_NARROW(acosh, float)
CUPYOPS_OF_NARROW(asin, float)
CUPYOPS_OF_NARROW(asinh, float)
CUPYOPS_OF_NARROW(atan, float)
CUPYOPS_OF_NARROW(atanh, float)
CUPYOPS_OF_NARROW(cbrt, float)
CUPYOPS_OF_NARROW(ceil, float)
CUPYOPS_OF_NARROW(cos, float)
CUPYOPS_OF_NARROW(cosh, float)
CUPYOPS_OF_NARROW(erf, float)
CUPYOPS_OF_NARROW(erfc, float)
CUPYOPS_OF_NARROW(exp, float)
CUPYOPS_OF_NARROW(exp2, float)
CUPYOPS_OF_NARROW(expm1, float)
CUPYOPS_OF_NARROW(fabs, float)
CUPYOPS_OF_NARROW(floor, float)
CUPYOPS_OF_NARROW(ilogb, int)
CUPYOPS_OF_NARROW(lgamma, float)
CUPYOPS_OF_NARROW(llrint, long long)
CUPYOPS_OF_NARROW(llround, long long)
CUPYOPS_OF_NARROW(log, float)
CUPYOPS_OF_NARROW(log10, float)
CUPYOPS_OF_NARROW(log1p, float)
CUPYOPS_OF_NARROW(log2, float)
CUPYOPS_OF_NARROW(logb, float)
CUPYOPS_OF_NARROW(lrint, long)
CUPYOPS_OF_NARROW(lround, long)
CUPYOPS_OF_NARROW(nearbyint, float)
CUPYOPS_OF_NARROW(rint, float)
CUPYOPS_OF_NARROW(round, float)
CUPYOPS_OF_NARROW(sin, float)
CUPYOPS_OF_NARROW(sinh, float)
CUPYOPS_OF_NARROW(sqrt, float)
CUPYOPS_OF_NARROW(tan, float)
CUPYOPS_OF_NARROW(tanh, float)
CUPYOPS_OF_NARROW(tgamma, float)
CUPYOPS_OF_NARROW(trunc, float)
CUPYOPS_OF_NARROW_AND(frexp, int*)
CUPYOPS_OF_NARROW_AND(ldexp, int)
CUPYOPS_OF_NARROW_AND(scalbn, int)
CUPYOPS_OF_NARROW_AND(scalbln, long)
#undef CUPYOPS_OF_NARROW
#undef CUPYOPS_OF_NARROW_AND
namespace std {
template <typename T, typename... None, typename = CupyopsNarrow<T, None...>> inline float fma(const T& a, const T& b, const T& c, None...) {
    return fma(float(a), float(b), float(c));
}
template <typename T, typename... None, typename = CupyopsNarrow<T, None...>> inline float remquo(const T& a, const T& b, int* n, None...) {
    return remquo(float(a), float(b), n);
}
}  // namespace std
using std::fma;
using std::remquo;
// Of two: the other may be an integer or a float, and of copysign a double.
template <typename A, typename B, bool DOUBLE> constexpr bool cupyops_mixed =
    (cupyops_narrow<A> && (cupyops_narrow<B> || __is_same(B, float) || (DOUBLE ? __is_same(B, double) : std::is_integral<B>::value)))
    || (cupyops_narrow<B> && !cupyops_narrow<A> && (__is_same(A, float) || (DOUBLE ? __is_same(A, double) : std::is_integral<A>::value)));
template <typename A, typename B, bool DOUBLE, typename... None>
using CupyopsMixed = typename CupyopsIf<cupyops_mixed<A, B, DOUBLE> && !sizeof...(None)>::type;
#define CUPYOPS_OF_TWO(NAME)                                                                             \
    namespace std {                                                                                      \
    template <typename A, typename B, typename... None, typename = CupyopsMixed<A, B, false, None...>>   \
    inline float NAME(const A& a, const B& b, None...) { return NAME(float(a), float(b)); }              \
    }                                                                                                    \
    using std::NAME;
CUPYOPS_OF_TWO(atan2)
CUPYOPS_OF_TWO(fdim)
CUPYOPS_OF_TWO(fmax)
CUPYOPS_OF_TWO(fmin)
CUPYOPS_OF_TWO(fmod)
CUPYOPS_OF_TWO(hypot)
CUPYOPS_OF_TWO(nextafter)
CUPYOPS_OF_TWO(remainder)
#undef CUPYOPS_OF_TWO
template <typename T> using CupyopsWidened = typename std::conditional<cupyops_narrow<T>, float, T>::type;
namespace std {
template <typename A, typename B, typename... None, typename = CupyopsMixed<A, B, true, None...>>
inline auto copysign(const A& a, const B& b, None...) { return copysign(CupyopsWidened<A>(a), CupyopsWidened<B>(b)); }
}  // namespace std
using std::copysign;
