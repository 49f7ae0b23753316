// The functions of <cmath> for integers and for numbers of two types, which become double, as the host's library and nvcc with it have
// them. A function without a template is preferred where the types fit it, so float and double have CUDA's functions. A text gets those
// that it calls; a macro is applied to each of its names.

// CupyopsInteger, CupyopsNumber
template <class T> struct CupyopsInteger {};
template <class T> struct CupyopsNumber {};
#define CUPYOPS_NUMBER(T) \
    template <> struct CupyopsNumber<T> { \
        typedef double type; \
    };
#define CUPYOPS_INTEGER(T) \
    CUPYOPS_NUMBER(T) \
    template <> struct CupyopsInteger<T> { \
        typedef double type; \
    };
CUPYOPS_INTEGER(bool)
CUPYOPS_INTEGER(char)
CUPYOPS_INTEGER(signed char)
CUPYOPS_INTEGER(unsigned char)
CUPYOPS_INTEGER(wchar_t)
CUPYOPS_INTEGER(short)
CUPYOPS_INTEGER(unsigned short)
CUPYOPS_INTEGER(int)
CUPYOPS_INTEGER(unsigned int)
CUPYOPS_INTEGER(long)
CUPYOPS_INTEGER(unsigned long)
CUPYOPS_INTEGER(long long)
CUPYOPS_INTEGER(unsigned long long)
CUPYOPS_NUMBER(float)
CUPYOPS_NUMBER(double)

// acos, acosh, asin, asinh, atan, atanh, cbrt, ceil, cos, cosh, erf, erfc, exp, exp2, expm1, fabs, floor, j0, j1, lgamma,
// log, log10, log1p, log2, logb, nearbyint, rint, round, sin, sinh, sqrt, tan, tanh, tgamma, trunc, y0, y1
#define CUPYOPS_OF_ONE(name) \
    template <class T> __device__ __forceinline__ typename CupyopsInteger<T>::type name(T x) { return name((double)x); }

// atan2, copysign, fdim, fmax, fmin, fmod, hypot, nextafter, pow, remainder
#define CUPYOPS_OF_TWO(name) \
    template <class A, class B, class = typename CupyopsNumber<A>::type> \
    __device__ __forceinline__ typename CupyopsNumber<B>::type name(A a, B b) { \
        return name((double)a, (double)b); \
    }

// fma
template <class A, class B, class C, class = typename CupyopsNumber<A>::type, class = typename CupyopsNumber<B>::type>
__device__ __forceinline__ typename CupyopsNumber<C>::type fma(A a, B b, C c) {
    return fma((double)a, (double)b, (double)c);
}

// ilogb, isfinite, isinf, isnan, llrint, llround, lrint, lround, signbit
#define CUPYOPS_OF_ANOTHER_RESULT(name) \
    template <class T, class = typename CupyopsInteger<T>::type> \
    __device__ __forceinline__ auto name(T x) -> decltype(name((double)x)) { \
        return name((double)x); \
    }

// frexp
template <class T, class = typename CupyopsInteger<T>::type> __device__ __forceinline__ auto frexp(T x, int* y)
    -> decltype(frexp((double)x, y)) {
    return frexp((double)x, y);
}

// ldexp
template <class T, class = typename CupyopsInteger<T>::type> __device__ __forceinline__ auto ldexp(T x, int y)
    -> decltype(ldexp((double)x, y)) {
    return ldexp((double)x, y);
}

// scalbln
template <class T, class = typename CupyopsInteger<T>::type> __device__ __forceinline__ auto scalbln(T x, long y)
    -> decltype(scalbln((double)x, y)) {
    return scalbln((double)x, y);
}

// scalbn
template <class T, class = typename CupyopsInteger<T>::type> __device__ __forceinline__ auto scalbn(T x, int y)
    -> decltype(scalbn((double)x, y)) {
    return scalbn((double)x, y);
}
