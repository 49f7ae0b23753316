// Includes CUDA's float16 header, and adds the functions that the header defines only for NVIDIA's compilers.
#pragma once
#include "library_only.h"
#include_next <cuda_fp16.h>
#include "halves.h"
CUPYOPS_HALVES(__half, __half2, __half2float, __float2half_rn, __halves2half2, __low2half, __high2half)
CUPYOPS_HALF_ARITHMETIC(__half, half, __half2float, __double2half)
CUPYOPS_HALF_FMA(__half, __half2, __half2float, __float2half_rn, __halves2half2, __low2half, __high2half)
CUPYOPS_HALF_LIMITS(__half, __half_raw, 0x0400, 0x7bff, 0xfbff, 0x1400, 0x3800, 0x7c00, 0x7e00, 11, 3, 5, -13, 16, -4, 4)
CUPYOPS_SHUFFLES(__half)
CUPYOPS_SHUFFLES(__half2)
CUPYOPS_LOADED(__half)
CUPYOPS_LOADED(__half2)
template <> inline constexpr bool cupyops_narrow<__half> = true;
template <> inline constexpr bool cupyops_float16<__half> = true;
template <> inline constexpr bool cupyops_float16<__half2> = true;
#include "text_only.h"
