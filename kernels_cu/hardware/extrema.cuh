// larger(a, b) and smaller(a, b), of which a NaN wins, as in PyTorch's maximum and minimum:
// one instruction for float on sm_80 and later.
#pragma once

template <typename T> __device__ __forceinline__ T larger(T a, T b) { return b > a || b != b ? b : a; }
template <typename T> __device__ __forceinline__ T smaller(T a, T b) { return b < a || b != b ? b : a; }

#if __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ float larger(float a, float b) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
template <> __device__ __forceinline__ float smaller(float a, float b) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
#endif
