// Includes CUDA's bfloat16 header, and adds the functions that the header defines only for NVIDIA's compilers.
#pragma once
#include <cuda_fp16.h>  // CUDA's header includes its own, without what is added here
#include "library_only.h"
#include_next <cuda_bf16.h>
#include "halves.h"
CUPYOPS_HALVES(__nv_bfloat16, __nv_bfloat162, __bfloat162float, __float2bfloat16_rn, __halves2bfloat162, __low2bfloat16, __high2bfloat16)
CUPYOPS_HALF_ARITHMETIC(__nv_bfloat16, bfloat16, __bfloat162float, __double2bfloat16)
CUPYOPS_HALF_FMA(__nv_bfloat16, __nv_bfloat162, __bfloat162float, __float2bfloat16_rn, __halves2bfloat162, __low2bfloat16, __high2bfloat16)
CUPYOPS_TO_BFLOAT16(short, short)
CUPYOPS_TO_BFLOAT16(unsigned short, ushort)
CUPYOPS_TO_BFLOAT16(int, int)
CUPYOPS_TO_BFLOAT16(unsigned, uint)
CUPYOPS_TO_BFLOAT16(long long, ll)
CUPYOPS_TO_BFLOAT16(unsigned long long, ull)
CUPYOPS_HALF_LIMITS(
    __nv_bfloat16, __nv_bfloat16_raw, 0x0080, 0x7f7f, 0xff7f, 0x3c00, 0x3f00, 0x7f80, 0x7fc0, 8, 2, 4, -125, 128, -37, 38)
CUPYOPS_SHUFFLES(__nv_bfloat16)
CUPYOPS_SHUFFLES(__nv_bfloat162)
CUPYOPS_LOADED(__nv_bfloat16)
CUPYOPS_LOADED(__nv_bfloat162)
template <> inline constexpr bool cupyops_narrow<__nv_bfloat16> = true;
template <> inline constexpr bool cupyops_float16<__nv_bfloat16> = true;
template <> inline constexpr bool cupyops_float16<__nv_bfloat162> = true;
#include "text_only.h"
