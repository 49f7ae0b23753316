// Replaces CUDA's cuda_pipeline_primitives.h: cp.async as functions.
#pragma once

#include "../cuda/copies.h"

CUPYOPS_INTRINSIC void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0) {
    if ((size != 4 && size != 8 && size != 16) || zeros > size) cupyops_misuse("__pipeline_memcpy_async copies 4, 8 or 16 bytes");
    if (reinterpret_cast<uintptr_t>(to) % size || reinterpret_cast<uintptr_t>(from) % size)
        cupyops_misuse("__pipeline_memcpy_async: an address is not a multiple of the copy's size");
    cupyops_copy_issue(to, from, size - zeros, zeros, nullptr);
}
CUPYOPS_INTRINSIC void __pipeline_commit() { cupyops_copy_commit(); }
CUPYOPS_INTRINSIC void __pipeline_wait_prior(size_t prior) { cupyops_copy_wait(unsigned(prior)); }
