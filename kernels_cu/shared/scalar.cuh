// Conversions between the types of elements in memory and the types of the arithmetic.
//
// cupyops puts a prelude before every text. The prelude defines:
//   scalar_t   the type of an element in memory    float, double, __half, __nv_bfloat16, char, short, int, long long ...
//   acc_t      the type of the arithmetic          float, or double for double, or the integer itself
#pragma once

template <typename T> struct Scalar {
    static constexpr bool is_integer = T(1) / T(2) == T(0);
    static constexpr bool is_16_bit_float = false;
    static __device__ __forceinline__ T widen(T v) { return v; }
    template <typename From> static __device__ __forceinline__ T narrow(From v) { return static_cast<T>(v); }
};

#ifdef __CUDA_FP16_TYPES_EXIST__
template <> struct Scalar<__half> {
    static constexpr bool is_integer = false;
    static constexpr bool is_16_bit_float = true;
    static __device__ __forceinline__ float widen(__half v) { return __half2float(v); }
    // Widens one of the two elements in a word: the lower (0) or the upper (1).
    static __device__ __forceinline__ float widen(unsigned word, int which) {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> (which * 16))));
    }
    static __device__ __forceinline__ unsigned narrow_two(float low, float high) {
        const __half2 two = __floats2half2_rn(low, high);
        const unsigned upper = __half_as_ushort(__high2half(two));
        return __half_as_ushort(__low2half(two)) | upper << 16;
    }
    // A double is rounded to float first and then to half, as in PyTorch, so the results are equal bit by bit.
    template <typename From> static __device__ __forceinline__ __half narrow(From v) {
        return __float2half_rn(static_cast<float>(v));
    }
};
#endif

#ifdef __CUDA_BF16_TYPES_EXIST__
template <> struct Scalar<__nv_bfloat16> {
    static constexpr bool is_integer = false;
    static constexpr bool is_16_bit_float = true;
    static __device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
    // Widens one of the two elements in a word: the lower (0) or the upper (1). The upper half of a float is a
    // bfloat16.
    static __device__ __forceinline__ float widen(unsigned word, int which) {
        return __uint_as_float(which ? word & 0xffff0000u : word << 16);
    }
    static __device__ __forceinline__ unsigned narrow_two(float low, float high) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
        const unsigned upper = __bfloat16_as_ushort(__high2bfloat16(two));
        return __bfloat16_as_ushort(__low2bfloat16(two)) | upper << 16;
    }
    template <typename From> static __device__ __forceinline__ __nv_bfloat16 narrow(From v) {
        return __float2bfloat16_rn(static_cast<float>(v));
    }
};
#endif

template <typename T> inline constexpr bool is_bfloat16 = false;
#ifdef __CUDA_BF16_TYPES_EXIST__
template <> inline constexpr bool is_bfloat16<__nv_bfloat16> = true;
#endif

// convert<To>(v): the value of v as To, rounded to nearest even.
template <typename To, typename From> __device__ __forceinline__ To convert(From v) {
    return Scalar<To>::narrow(Scalar<From>::widen(v));
}
