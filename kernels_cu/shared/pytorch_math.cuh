// Mathematical functions of PyTorch's headers, and the arithmetic of 16-bit floats as PyTorch's types have it. `pytorch.cuh` includes
// this header.
#pragma once

namespace at {
template <typename T> __device__ __forceinline__ bool _isnan(T a) { return a != a; }
namespace cuda {
// Mathematical functions under one name for float and double.
namespace compat {
#define PYTORCH_COMPAT(NAME, F) \
    __device__ __forceinline__ float NAME(float a) { return ::F##f(a); } \
    __device__ __forceinline__ double NAME(double a) { return ::F(a); }
PYTORCH_COMPAT(abs, fabs)
PYTORCH_COMPAT(exp, exp)
PYTORCH_COMPAT(ceil, ceil)
PYTORCH_COMPAT(floor, floor)
PYTORCH_COMPAT(log, log)
PYTORCH_COMPAT(log1p, log1p)
PYTORCH_COMPAT(tanh, tanh)
PYTORCH_COMPAT(sqrt, sqrt)
PYTORCH_COMPAT(rsqrt, rsqrt)
PYTORCH_COMPAT(sin, sin)
PYTORCH_COMPAT(cos, cos)
PYTORCH_COMPAT(tan, tan)
PYTORCH_COMPAT(erf, erf)
PYTORCH_COMPAT(normcdf, normcdf)
#undef PYTORCH_COMPAT
#define PYTORCH_COMPAT(NAME, F) \
    __device__ __forceinline__ float NAME(float a, float b) { return ::F##f(a, b); } \
    __device__ __forceinline__ double NAME(double a, double b) { return ::F(a, b); }
PYTORCH_COMPAT(max, fmax)
PYTORCH_COMPAT(min, fmin)
PYTORCH_COMPAT(pow, pow)
PYTORCH_COMPAT(copysign, copysign)
#undef PYTORCH_COMPAT
}  // namespace compat
}  // namespace cuda
}  // namespace at

// Arithmetic of a 16-bit float and a number of another type, as PyTorch's Half and BFloat16 have it: with a float or a double, it is
// of that type, and with an integer, it is of the 16-bit float. CUDA's types have no such functions, and several conversions.
template <typename T, typename Number> struct Float16With {};
template <typename T> struct Float16With<T, float> {
    typedef float type;
};
template <typename T> struct Float16With<T, double> {
    typedef double type;
};
#define PYTORCH_INTEGER(INTEGER) \
    template <typename T> struct Float16With<T, INTEGER> { \
        typedef T type; \
    };
PYTORCH_INTEGER(int)
PYTORCH_INTEGER(unsigned)
PYTORCH_INTEGER(long)
PYTORCH_INTEGER(unsigned long)
PYTORCH_INTEGER(long long)
PYTORCH_INTEGER(unsigned long long)
#undef PYTORCH_INTEGER
#define PYTORCH_ARITHMETIC(T, op) \
    template <typename Number> \
    __device__ __forceinline__ typename Float16With<T, Number>::type operator op(const T& a, const Number& b) { \
        typedef typename Float16With<T, Number>::type type; \
        return type(float(a)) op type(b); \
    } \
    template <typename Number> \
    __device__ __forceinline__ typename Float16With<T, Number>::type operator op(const Number& a, const T& b) { \
        typedef typename Float16With<T, Number>::type type; \
        return type(a) op type(float(b)); \
    } \
    __device__ __forceinline__ float& operator op## = (float& a, const T& b) { return a op## = float(b); }
#define PYTORCH_COMPARISON(T, op) \
    template <typename Number, typename = typename Float16With<T, Number>::type> \
    __device__ __forceinline__ bool operator op(const T& a, const Number& b) { \
        return float(a) op b; \
    } \
    template <typename Number, typename = typename Float16With<T, Number>::type> \
    __device__ __forceinline__ bool operator op(const Number& a, const T& b) { \
        return a op float(b); \
    }
#define PYTORCH_FUNCTION(T, f) \
    __device__ __forceinline__ float f(const T& a) { return f(float(a)); }
#define PYTORCH_FUNCTION_OF_TWO(T, f) \
    __device__ __forceinline__ float f(const T& a, const T& b) { return f(float(a), float(b)); } \
    __device__ __forceinline__ float f(const T& a, float b) { return f(float(a), b); } \
    __device__ __forceinline__ float f(float a, const T& b) { return f(a, float(b)); }
#define PYTORCH_FLOAT16(T) \
    PYTORCH_ARITHMETIC(T, +) \
    PYTORCH_ARITHMETIC(T, -) \
    PYTORCH_ARITHMETIC(T, *) \
    PYTORCH_ARITHMETIC(T, /) \
    PYTORCH_COMPARISON(T, ==) \
    PYTORCH_COMPARISON(T, !=) \
    PYTORCH_COMPARISON(T, <) \
    PYTORCH_COMPARISON(T, <=) \
    PYTORCH_COMPARISON(T, >) \
    PYTORCH_COMPARISON(T, >=) \
    PYTORCH_FUNCTION(T, abs) \
    PYTORCH_FUNCTION(T, fabs) \
    PYTORCH_FUNCTION(T, exp) \
    PYTORCH_FUNCTION(T, log) \
    PYTORCH_FUNCTION(T, sqrt) \
    PYTORCH_FUNCTION(T, rsqrt) \
    PYTORCH_FUNCTION(T, tanh) \
    PYTORCH_FUNCTION(T, sin) \
    PYTORCH_FUNCTION(T, cos) \
    PYTORCH_FUNCTION(T, erf) \
    PYTORCH_FUNCTION(T, floor) \
    PYTORCH_FUNCTION(T, ceil) \
    PYTORCH_FUNCTION(T, round) \
    PYTORCH_FUNCTION_OF_TWO(T, pow) \
    PYTORCH_FUNCTION_OF_TWO(T, fmax) \
    PYTORCH_FUNCTION_OF_TWO(T, fmin) \
    PYTORCH_FUNCTION_OF_TWO(T, max) \
    PYTORCH_FUNCTION_OF_TWO(T, min)
#ifdef __CUDA_FP16_TYPES_EXIST__
PYTORCH_FLOAT16(__half)
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
PYTORCH_FLOAT16(__nv_bfloat16)
#endif
#undef PYTORCH_FLOAT16
#undef PYTORCH_ARITHMETIC
#undef PYTORCH_COMPARISON
#undef PYTORCH_FUNCTION
#undef PYTORCH_FUNCTION_OF_TWO
