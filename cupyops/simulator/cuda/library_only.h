// Undefines the macros of text_only.h before a header of CUDA or of the C++ library is included.
#undef __CUDA_ARCH__
#undef __CUDACC_RTC__
#undef __CUDACC__
#undef CUDART_VERSION
#undef __CUDACC_VER_MAJOR__
#undef __CUDACC_VER_MINOR__
#undef __CUDA_ARCH_LIST__
#undef __has_feature
#undef __has_extension
#undef asm
#undef __asm__
#undef __asm
#undef memcpy
#undef memset
#undef malloc
#undef free
// GCC's <memory> writes __attribute__((__noinline__)), and GCC 13 includes it in other headers.
#undef __noinline__
// CUDA 13's headers have these macros around deprecated types, and these names of four doubles.
#define __NV_SILENCE_DEPRECATION_BEGIN
#define __NV_SILENCE_DEPRECATION_END
#define double4_32a cupyops_double4_32a
#define double4_16a cupyops_double4_16a
#undef fopen
#undef freopen
#undef fclose
#undef fread
#undef fwrite
#undef fprintf
#undef fputs
#undef fgets
#undef fscanf
#undef scanf
#undef sscanf
#undef sprintf
#undef snprintf
#undef tmpfile
#undef popen
#undef system
#undef getenv
#undef alloca
#undef FP_NAN
#undef FP_INFINITE
#undef FP_ZERO
#undef FP_SUBNORMAL
#undef FP_NORMAL
#undef signgam
#undef __EXCEPTIONS
#undef __cpp_exceptions
#undef __cpp_rtti
#undef __EDG__
#undef __EDG_VERSION__
#undef __SIGNED_CHARS__
#undef __ARRAY_OPERATORS
#undef _BOOL
#undef __CUDACC_VER_BUILD__
#undef __CUDART_API_VERSION
#undef __CUDA_RUNTIME_H__
#undef __CUDA_FTZ
#undef __CUDA_PREC_DIV
#undef __CUDA_PREC_SQRT
#undef __USE_FAST_MATH__
#undef thread_local
#undef __thread
#undef _Complex
#undef __float128
#undef _Float16
#undef int64_t
#undef uint64_t
#undef int_least64_t
#undef uint_least64_t
#undef int_fast64_t
#undef uint_fast64_t
#undef intptr_t
#undef uintptr_t
#undef intmax_t
#undef uintmax_t
#if __has_include(<cupyops_of_library.h>)
#include <cupyops_of_library.h>
#endif
#ifdef __clang__
// The text's replaced those of the compiler, which cannot come back. The library asks for them.
#define __has_feature(name) 0
#define __has_extension(name) 0
#endif
