// Macros for the kernel's text alone. CUDA's headers, which also support host compilers, are included without the
// macros. This header has no include guard: it is included again after each CUDA header.
#if __has_include(<cupyops_of_text.h>)
#include <cupyops_of_text.h>  // hides the macros of the host's compiler; simulator/macros.py writes it
#endif
#undef __CUDA_ARCH__
#define __CUDA_ARCH__ 900
#undef __CUDACC__
#define __CUDACC__ 1
// NVRTC defines its version, and the architectures of the compilation.
#undef CUDART_VERSION
#define CUDART_VERSION 12090
#undef __CUDACC_VER_MAJOR__
#define __CUDACC_VER_MAJOR__ 12
#undef __CUDACC_VER_MINOR__
#define __CUDACC_VER_MINOR__ 9
#undef __CUDA_ARCH_LIST__
#define __CUDA_ARCH_LIST__ 900
#define __CUDACC_RTC__ 1
// The other macros of NVRTC, except __CUDACC_DEVICE_ATOMIC_BUILTINS__, whose functions the simulator does not have.
#undef __EXCEPTIONS
#define __EXCEPTIONS 1
#undef __cpp_exceptions
#define __cpp_exceptions 199711L
#undef __cpp_rtti
#define __cpp_rtti 199711L
#define __EDG__ 1
#define __EDG_VERSION__ 606
#define __SIGNED_CHARS__ 1
#define __ARRAY_OPERATORS 1
#define _BOOL 1
#define __CUDACC_VER_BUILD__ 86
#define __CUDART_API_VERSION CUDART_VERSION
#define __CUDA_RUNTIME_H__
#define __CUDA_FTZ 0
#define __CUDA_PREC_DIV 1
#define __CUDA_PREC_SQRT 1
#define __USE_FAST_MATH__ 0
#undef __has_feature
#define __has_feature(name) CUPYOPS_FEATURE_##name
#undef __has_extension
#define __has_extension(name) CUPYOPS_FEATURE_##name
#define CUPYOPS_NOT_COVERED_ASM _Pragma("GCC error \"inline PTX is not covered by the simulator; give the function a twin in C++ under #ifdef CUPYOPS_SIMULATOR\"")
#define asm CUPYOPS_NOT_COVERED_ASM asm
#define __asm__ CUPYOPS_NOT_COVERED_ASM asm
#define __asm CUPYOPS_NOT_COVERED_ASM asm
#define memcpy cupyops_memcpy
#define memset cupyops_memset
#define malloc cupyops_allocate
#define free cupyops_deallocate
#define __noinline__ __attribute__((noinline))
#undef __NV_SILENCE_DEPRECATION_BEGIN
#undef __NV_SILENCE_DEPRECATION_END
#undef double4_32a
#undef double4_16a
// NVRTC has no files, no processes and no environment: the host's functions of these names are hidden, and a text may define its own.
#define fopen cupyops_of_text_fopen
#define freopen cupyops_of_text_freopen
#define fclose cupyops_of_text_fclose
#define fread cupyops_of_text_fread
#define fwrite cupyops_of_text_fwrite
#define fprintf cupyops_of_text_fprintf
#define fputs cupyops_of_text_fputs
#define fgets cupyops_of_text_fgets
#define fscanf cupyops_of_text_fscanf
#define scanf cupyops_of_text_scanf
#define sscanf cupyops_of_text_sscanf
#define sprintf cupyops_of_text_sprintf
#define snprintf cupyops_of_text_snprintf
#define tmpfile cupyops_of_text_tmpfile
#define popen cupyops_of_text_popen
#define system cupyops_of_text_system
#define getenv cupyops_of_text_getenv
#undef alloca
#define alloca cupyops_of_text_alloca
// Of <math.h>.
#undef FP_NAN
#define FP_NAN cupyops_of_text_FP_NAN
#undef FP_INFINITE
#define FP_INFINITE cupyops_of_text_FP_INFINITE
#undef FP_ZERO
#define FP_ZERO cupyops_of_text_FP_ZERO
#undef FP_SUBNORMAL
#define FP_SUBNORMAL cupyops_of_text_FP_SUBNORMAL
#undef FP_NORMAL
#define FP_NORMAL cupyops_of_text_FP_NORMAL
#undef signgam
#define signgam cupyops_of_text_signgam
// Keywords of the host's compiler that NVRTC does not know or refuses in device code.
#define thread_local cupyops_of_text_thread_local
#define __thread cupyops_of_text___thread
#define _Complex cupyops_of_text__Complex
#define __float128 cupyops_of_text___float128
#define _Float16 cupyops_of_text__Float16
// The integers of 64 bits that NVRTC has under these names.
#undef int64_t
#define int64_t cupyops_int64_t
#undef uint64_t
#define uint64_t cupyops_uint64_t
#undef int_least64_t
#define int_least64_t cupyops_int_least64_t
#undef uint_least64_t
#define uint_least64_t cupyops_uint_least64_t
#undef int_fast64_t
#define int_fast64_t cupyops_int_fast64_t
#undef uint_fast64_t
#define uint_fast64_t cupyops_uint_fast64_t
#undef intptr_t
#define intptr_t cupyops_intptr_t
#undef uintptr_t
#define uintptr_t cupyops_uintptr_t
#undef intmax_t
#define intmax_t cupyops_intmax_t
#undef uintmax_t
#define uintmax_t cupyops_uintmax_t
