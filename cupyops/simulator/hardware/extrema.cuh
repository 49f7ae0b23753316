// The twin of kernels_cu/hardware/extrema.cuh: the same values, without the instructions of sm_80.
#pragma once

template <typename T> __device__ __forceinline__ T larger(T a, T b) { return b > a || b != b ? b : a; }
template <typename T> __device__ __forceinline__ T smaller(T a, T b) { return b < a || b != b ? b : a; }
