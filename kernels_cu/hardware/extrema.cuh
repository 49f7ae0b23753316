// larger(a, b) and smaller(a, b) return NaN if an argument is NaN, like PyTorch's maximum and minimum.
// For float on sm_80 and later each function is one instruction.
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
