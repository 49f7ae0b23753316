// Includes CUDA's header of 4-bit floats, which converts them without a GPU for host compilers, after the headers of float16 and
// bfloat16 with their additions.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp6.h>
#include "library_only.h"
#include_next <cuda_fp4.h>
#include "text_only.h"
