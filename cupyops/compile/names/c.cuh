// Names of the C library, of g++ and of libraries' headers that kernels have under nvcc. A text gets those that it uses. The comment
// above a definition has the names that it defines.

#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fffffff)
#define HUGE_VALF __builtin_bit_cast(float, 0x7f800000)
#define HUGE_VAL __builtin_bit_cast(double, 0x7ff0000000000000LL)
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_RADIX 2
#define FLT_MAX_EXP 128
#define FLT_MIN_EXP (-125)
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#define DBL_DIG 15
#define FE_TONEAREST 0
#define FE_DOWNWARD 0x400
#define FE_UPWARD 0x800
#define FE_TOWARDZERO 0xc00
#define DBL_MANT_DIG 53
#define DBL_MAX_EXP 1024
#define DBL_MIN_EXP (-1021)
#define CHAR_BIT 8
#define CLOCKS_PER_SEC (sizeof(long) == 4 ? 1000 : 1000000)
#define CHAR_MIN (-128)
#define CHAR_MAX 127
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-2147483647 - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295U
#define LLONG_MIN (-9223372036854775807LL - 1)
#define LLONG_MAX 9223372036854775807LL
#define ULLONG_MAX 18446744073709551615ULL
#define SIZE_MAX ((size_t)-1)
#define LONG_MAX ((long)(~0ul >> 1))
#define LONG_MIN (-(long)(~0ul >> 1) - 1)
#define ULONG_MAX (~0ul)
#define INT8_MIN (-128)
#define INT8_MAX 127
#define UINT8_MAX 255
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define UINT16_MAX 65535
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define UINT32_MAX 4294967295U
#define INT64_MIN (-9223372036854775807LL - 1)
#define INT64_MAX 9223372036854775807LL
#define UINT64_MAX 18446744073709551615ULL

#define __CHAR_BIT__ 8
#define __SCHAR_MAX__ 127
#define __SHRT_MAX__ 32767
#define __INT_MAX__ 2147483647
#define __LONG_MAX__ ((long)(~0ul >> 1))
#define __LONG_LONG_MAX__ 9223372036854775807LL
#define __FLT_MAX__ 3.402823466e+38f
#define __FLT_MIN__ 1.175494351e-38f
#define __FLT_EPSILON__ 1.192092896e-07f
#define __DBL_MAX__ 1.7976931348623157e+308
#define __DBL_MIN__ 2.2250738585072014e-308
#define __DBL_EPSILON__ 2.2204460492503131e-16
#define __SIZEOF_SHORT__ sizeof(short)
#define __SIZEOF_INT__ sizeof(int)
#define __SIZEOF_LONG__ sizeof(long)
#define __SIZEOF_LONG_LONG__ sizeof(long long)
#define __SIZEOF_FLOAT__ sizeof(float)
#define __SIZEOF_DOUBLE__ sizeof(double)
#define __SIZEOF_POINTER__ sizeof(void*)

// cufftReal
typedef float cufftReal;

// cufftDoubleReal
typedef double cufftDoubleReal;

// cufftComplex
typedef float2 cufftComplex;

// cufftDoubleComplex
typedef double2 cufftDoubleComplex;

// CUtexObject
typedef unsigned long long CUtexObject;

// CUsurfObject
typedef unsigned long long CUsurfObject;

// CUtensorMap
typedef struct alignas(64) CUtensorMap_st {
    unsigned long long opaque[16];
} CUtensorMap;

// TORCH_CHECK
#ifndef TORCH_CHECK
#define TORCH_CHECK(condition, ...) ((condition) ? (void)0 : __trap())
#endif

// TORCH_INTERNAL_ASSERT
#ifndef TORCH_INTERNAL_ASSERT
#define TORCH_INTERNAL_ASSERT(condition, ...) ((condition) ? (void)0 : __trap())
#endif

// cudaGridDependencySynchronize
#ifndef __CUDACC_RDC__  // NVRTC has it in a text that is linked
static __device__ __forceinline__ void cudaGridDependencySynchronize() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

// cudaTriggerProgrammaticLaunchCompletion
#ifndef __CUDACC_RDC__  // NVRTC has it in a text that is linked
static __device__ __forceinline__ void cudaTriggerProgrammaticLaunchCompletion() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

// THCCeilDiv
template <class T> __host__ __device__ __forceinline__ T THCCeilDiv(T a, T b) { return (a + b - 1) / b; }

// __assert_fail
#ifdef CUPYOPS_SIMULATOR
#define __assert_fail cupyops_assert
#else
static __device__
__forceinline__ void __assert_fail(const char* expression, const char* file, unsigned line, const char* function) {
    __assertfail(expression, file, line, function, 1);
}
#endif

// register
#define register

// __asm__
#ifndef CUPYOPS_SIMULATOR
#define __asm__ asm
#endif

// __asm
#ifndef CUPYOPS_SIMULATOR
#define __asm asm
#endif

// offsetof
#ifndef CUPYOPS_SIMULATOR
#define offsetof(T, member) __INTADDR__(&(((T*)0)->member))
#endif

// __builtin_popcount, __builtin_popcountl, __builtin_popcountll
#ifndef CUPYOPS_SIMULATOR
template <class T> static __device__ __forceinline__ constexpr int cupyops_popcount(T x) {
    if (!__builtin_is_constant_evaluated()) return sizeof(T) == 8 ? __popcll(x) : __popc(x);
    int n = 0;
    for (int i = 0; i < 8 * sizeof(T); ++i) n += x >> i & 1;
    return n;
}
#define __builtin_popcount(x) cupyops_popcount((unsigned)(x))
#define __builtin_popcountl(x) cupyops_popcount((unsigned long long)(x))
#define __builtin_popcountll(x) cupyops_popcount((unsigned long long)(x))
#endif

// __builtin_clz, __builtin_clzl, __builtin_clzll
#ifndef CUPYOPS_SIMULATOR
template <class T> static __device__ __forceinline__ constexpr int cupyops_clz(T x) {
    if (!__builtin_is_constant_evaluated()) return sizeof(T) == 8 ? __clzll(x) : __clz(x);
    int n = 0;
    while (n < 8 * sizeof(T) && !(x >> (8 * sizeof(T) - 1 - n) & 1)) ++n;
    return n;
}
#define __builtin_clz(x) cupyops_clz((unsigned)(x))
#define __builtin_clzl(x) cupyops_clz((unsigned long long)(x))
#define __builtin_clzll(x) cupyops_clz((unsigned long long)(x))
#endif

// __builtin_ctz, __builtin_ctzl, __builtin_ctzll
#ifndef CUPYOPS_SIMULATOR
template <class T> static __device__ __forceinline__ constexpr int cupyops_ctz(T x) {
    if (!__builtin_is_constant_evaluated()) return sizeof(T) == 8 ? __ffsll(x) - 1 : __ffs(x) - 1;
    int n = 0;
    while (n < 8 * sizeof(T) && !(x >> n & 1)) ++n;
    return n;
}
#define __builtin_ctz(x) cupyops_ctz((unsigned)(x))
#define __builtin_ctzl(x) cupyops_ctz((unsigned long long)(x))
#define __builtin_ctzll(x) cupyops_ctz((unsigned long long)(x))
#endif

// __builtin_ffs, __builtin_ffsl, __builtin_ffsll
#ifndef CUPYOPS_SIMULATOR
template <class T> static __device__ __forceinline__ constexpr int cupyops_ffs(T x) {
    if (!__builtin_is_constant_evaluated()) return sizeof(T) == 8 ? __ffsll(x) : __ffs(x);
    int n = 0;
    while (x && !(x >> n++ & 1)) {}
    return n;
}
#define __builtin_ffs(x) cupyops_ffs((unsigned)(x))
#define __builtin_ffsl(x) cupyops_ffs((unsigned long long)(x))
#define __builtin_ffsll(x) cupyops_ffs((unsigned long long)(x))
#endif
