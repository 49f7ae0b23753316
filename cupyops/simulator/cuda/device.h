// Defines CUDA's keywords, types and functions for the host compiler; included before every text.
//
// A CUDA thread is a fibre of cupyops/simulator/runtime. Barriers, warp functions and atomics call the runtime. A CUDA
// function without a definition here is a compile error that names the function.
#pragma once
#define CUPYOPS_SIMULATOR 1

// The twins of CUDA's headers in include/ need these two. They are read after text_only.h, which hides the macros of these headers.
#include <type_traits>
#include <utility>
// CUDA has none of the C++ library's special functions, such as std::riemann_zeta, and they take half of the time in which
// the compiler loads these headers. <utility> has defined the macro by which <math.h> includes them.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// The integers of 64 bits are long long for NVRTC, and may be long for the host. text_only.h gives a text those of NVRTC.
typedef long long cupyops_int64_t;
typedef unsigned long long cupyops_uint64_t;
typedef long long cupyops_int_least64_t;
typedef unsigned long long cupyops_uint_least64_t;
typedef long long cupyops_int_fast64_t;
typedef unsigned long long cupyops_uint_fast64_t;
typedef long long cupyops_intptr_t;
typedef unsigned long long cupyops_uintptr_t;
typedef long long cupyops_intmax_t;
typedef unsigned long long cupyops_uintmax_t;
namespace std {
using ::cupyops_int64_t;
using ::cupyops_uint64_t;
using ::cupyops_int_least64_t;
using ::cupyops_uint_least64_t;
using ::cupyops_int_fast64_t;
using ::cupyops_uint_fast64_t;
using ::cupyops_intptr_t;
using ::cupyops_uintptr_t;
using ::cupyops_intmax_t;
using ::cupyops_uintmax_t;
}  // namespace std

#include "abi.h"

#define __device__
#define __host__
#define __global__
#define __constant__
#define __managed__
#define __forceinline__ inline
#define __restrict __restrict__
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __block_size__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __device_builtin__
#define __cudart_builtin__
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")

// A CUDA function. The function is not inlined: the call stack of a fault then has the line of the text that calls it.
#define CUPYOPS_INTRINSIC static __attribute__((noinline, unused))
// A computation without compiler-inserted checks, and a CUDA function without them: the function calls the runtime's access checks itself.
#if defined(__clang__)
#define CUPYOPS_QUIET __attribute__((noinline, disable_sanitizer_instrumentation, no_sanitize("undefined"), flatten))
#define CUPYOPS_UNCHECKED static __attribute__((noinline, unused, disable_sanitizer_instrumentation, no_sanitize("undefined")))
#else
#define CUPYOPS_QUIET __attribute__((noinline, no_sanitize("thread", "undefined"), optimize("O2")))
#define CUPYOPS_UNCHECKED static __attribute__((noinline, unused, no_sanitize("thread", "undefined")))
#endif
// A CUDA function that calls the runtime's access check itself; the compiler inserts the alignment check alone.
#define CUPYOPS_LOOKED_AT static __attribute__((noinline, unused, no_sanitize("thread")))

#pragma GCC visibility push(hidden)
#include "vectors.h"

inline constexpr int warpSize = 32;
extern "C" {
// As in CUDA. The compiler does not check reads of constants, and a thread sees one value of each.
extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;
}
#pragma GCC visibility pop

#include "numbers.h"
#include "threads.h"
#include "memory.h"
#include "overloads.h"
#include "entry.h"

#include <cstdio>  // before the macro of its function
#define printf cupyops_printf
#undef assert
#define assert(e) ((e) ? void(0) : cupyops_assert(#e, __FILE__, __LINE__, __func__))
#define __trap cupyops_trap
#define __brkpt() void(0)
#define __prof_trigger(n) void(static_cast<unsigned>(n))
#if !defined(__clang__)
#define __builtin_assume(e) void(0)
#endif
#define __exit cupyops_exit

#include "compiler_features.h"
#include "text_only.h"
