// Where the elements of a sequence's step lie, for a row and a unit of an LLTM.
//
// A step has fewer than 2^31 elements, which cupyops/ops/lltm/sequence.py sees to: places within a step are int. The begin of a
// step is the same for all threads, and is long long.
#pragma once

#include "lltm.cuh"

// In h, c and their gradients: (B, S).
__device__ __forceinline__ int place_of(int row, int unit) { return row * STATE + unit; }

// In z and dz: (B, 3, S), of the first gate.
__device__ __forceinline__ int z_place_of(int row, int unit) { return row * GATES * STATE + unit; }
