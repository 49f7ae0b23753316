// Includes CUDA's header of 8-bit floats, which converts them without a GPU for host compilers, after the headers of float16 and
// bfloat16 with their additions.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include "library_only.h"
#include_next <cuda_fp8.h>
#include "text_only.h"
