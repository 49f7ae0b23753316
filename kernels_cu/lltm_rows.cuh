// The offset of an element in the arrays of one time step, by row and unit of an LLTM.
//
// cupyops/ops/lltm/sequence.py limits a step to fewer than 2^31 elements, so an offset within a step is an int. The
// offset of the step itself is the same for all threads, and is a long long.
#pragma once

#include "lltm.cuh"

// The offset in h, c and their gradients: (B, S).
__device__ __forceinline__ int place_of(int row, int unit) { return row * STATE + unit; }

// The offset of the first gate in z and dz: (B, 3, S).
__device__ __forceinline__ int z_place_of(int row, int unit) { return row * GATES * STATE + unit; }
