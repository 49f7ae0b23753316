// The names that PyTorch's headers define for kernels of C++ extensions: packed accessors, types of the arithmetic, complex
// numbers and macros, and those of `pytorch_math.cuh` and `pytorch_threads.cuh`. A text that was written for
// <torch/extension.h> includes this header in its place.
//
// A kernel that takes an accessor by value is called with the array itself. The launch fills the accessor: the address of the
// first element, then the sizes, then the strides, in elements, as 32-bit or 64-bit integers (cupyops/launch/accessors.py).
#pragma once

#define C10_HOST
#define C10_DEVICE __device__
#define C10_HOST_DEVICE __device__
#define C10_RESTRICT __restrict__
#define C10_WARP_SIZE 32
#define C10_LAUNCH_BOUNDS_0 __launch_bounds__(256, 4)
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)
#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(threads, blocks)
#define C10_ALWAYS_INLINE __forceinline__
#define C10_LIKELY(condition) (condition)
#define C10_UNLIKELY(condition) (condition)
#define CUDA_KERNEL_ASSERT(condition) assert(condition)
#define CUDA_KERNEL_ASSERT_MSG(condition, message) assert(condition)

// The loop of a grid over n elements: a thread starts at its global index, and its step is the number of threads in the
// grid.
#ifndef CUDA_KERNEL_LOOP_TYPE
#define CUDA_KERNEL_LOOP_TYPE(i, n, index_t) \
    for (index_t i = index_t(blockIdx.x * (long long)blockDim.x + threadIdx.x), \
                 i##_step = index_t(gridDim.x * (long long)blockDim.x), i##_more = i < (n); \
         i##_more; i##_more = i < (n) - i##_step, i += i##_step)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
#endif

namespace at {

template <typename T> struct DefaultPtrTraits {
    typedef T* PtrType;
};
template <typename T> struct RestrictPtrTraits {
    typedef T* __restrict__ PtrType;
};

// A tensor of N dimensions whose sizes and strides are stored elsewhere: x[i] is the tensor of N - 1 dimensions at
// index i.
template <typename T, size_t N, template <typename U> class PtrTraits = DefaultPtrTraits, typename index_t = int64_t>
class TensorAccessor {
    typedef TensorAccessor<T, N - 1, PtrTraits, index_t> Inner;
    typename PtrTraits<T>::PtrType data_;
    const index_t *sizes_, *strides_;

public:
    __device__ __forceinline__ TensorAccessor(typename PtrTraits<T>::PtrType data, const index_t* sizes, const index_t* strides)
        : data_(data), sizes_(sizes), strides_(strides) {}
    __device__ __forceinline__ Inner operator[](index_t i) { return Inner(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1); }
    __device__ __forceinline__ const Inner operator[](index_t i) const {
        return Inner(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
    }
    __device__ __forceinline__ index_t size(index_t i) const { return sizes_[i]; }
    __device__ __forceinline__ index_t stride(index_t i) const { return strides_[i]; }
    __device__ __forceinline__ typename PtrTraits<T>::PtrType data() const { return data_; }
};

template <typename T, template <typename U> class PtrTraits, typename index_t>
class TensorAccessor<T, 1, PtrTraits, index_t> {
    typename PtrTraits<T>::PtrType data_;
    const index_t *sizes_, *strides_;

public:
    __device__ __forceinline__ TensorAccessor(typename PtrTraits<T>::PtrType data, const index_t* sizes, const index_t* strides)
        : data_(data), sizes_(sizes), strides_(strides) {}
    __device__ __forceinline__ T& operator[](index_t i) { return data_[strides_[0] * i]; }
    __device__ __forceinline__ const T& operator[](index_t i) const { return data_[strides_[0] * i]; }
    __device__ __forceinline__ index_t size(index_t i) const { return sizes_[i]; }
    __device__ __forceinline__ index_t stride(index_t i) const { return strides_[i]; }
    __device__ __forceinline__ typename PtrTraits<T>::PtrType data() const { return data_; }
};

// A tensor of N dimensions with its sizes and strides, the parameter of a kernel. The launch writes these three members.
template <typename T, size_t N, template <typename U> class PtrTraits = DefaultPtrTraits, typename index_t = int64_t>
class GenericPackedTensorAccessor {
    typedef TensorAccessor<T, N, PtrTraits, index_t> Unpacked;
    typename PtrTraits<T>::PtrType data_;
    index_t sizes_[N], strides_[N];

public:
    __device__ __forceinline__ decltype(auto) operator[](index_t i) { return Unpacked(data_, sizes_, strides_)[i]; }
    __device__ __forceinline__ decltype(auto) operator[](index_t i) const {
        const Unpacked unpacked(data_, sizes_, strides_);
        return unpacked[i];
    }
    __device__ __forceinline__ index_t size(index_t i) const { return sizes_[i]; }
    __device__ __forceinline__ index_t stride(index_t i) const { return strides_[i]; }
    __device__ __forceinline__ typename PtrTraits<T>::PtrType data() const { return data_; }
};

template <typename T, size_t N, template <typename U> class PtrTraits = DefaultPtrTraits, typename index_t = int64_t>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, N, PtrTraits, index_t>;
template <typename T, size_t N, template <typename U> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, PtrTraits, int32_t>;
template <typename T, size_t N, template <typename U> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, PtrTraits, int64_t>;

// A tensor of up to 25 dimensions, the parameter of a kernel. The launch writes its members.
#define MAX_TENSORINFO_DIMS 25
namespace cuda {
namespace detail {
template <typename T, typename IndexType> struct TensorInfo {
    T* data;
    IndexType sizes[MAX_TENSORINFO_DIMS], strides[MAX_TENSORINFO_DIMS];
    int dims;
    int unused;

    __device__ __forceinline__ bool isContiguous() const { return dims == 1 && strides[0] == 1; }
};

// The offset of the element with an index in row-major order. Dims is the number of dimensions, -1 if only the tensor knows it,
// and -2 for a contiguous tensor.
template <typename T, typename IndexType, int Dims> struct IndexToOffset {
    static __device__ __forceinline__ IndexType get(IndexType index, const TensorInfo<T, IndexType>& info) {
        if (Dims == -2) return index;
        IndexType offset = 0;
        for (int i = (Dims < 0 ? info.dims : Dims) - 1; i > 0; --i) {
            offset += index % info.sizes[i] * info.strides[i];
            index /= info.sizes[i];
        }
        return offset + index * info.strides[0];
    }
};

// The quotient and the remainder of integers by one divisor.
template <typename T> struct DivMod {
    T div, mod;
};
template <typename T> struct IntDivider {
    T divisor;

    IntDivider() = default;
    __device__ __forceinline__ IntDivider(T d) : divisor(d) {}
    __device__ __forceinline__ T div(T n) const { return n / divisor; }
    __device__ __forceinline__ T mod(T n) const { return n % divisor; }
    __device__ __forceinline__ DivMod<T> divmod(T n) const { return {n / divisor, n % divisor}; }
};
}  // namespace detail

template <typename T> __device__ __forceinline__ T ATenCeilDiv(T a, T b) { return (a + b - 1) / b; }

}  // namespace cuda

// Their names in the headers of PyTorch that need no library.
template <typename T, size_t N, template <typename U> class PtrTraits = DefaultPtrTraits, typename index_t = int64_t>
using HeaderOnlyTensorAccessor = TensorAccessor<T, N, PtrTraits, index_t>;
template <typename T, size_t N, template <typename U> class PtrTraits = DefaultPtrTraits, typename index_t = int64_t>
using HeaderOnlyGenericPackedTensorAccessor = GenericPackedTensorAccessor<T, N, PtrTraits, index_t>;

// The type of the arithmetic: float for 16-bit floats, else T.
template <typename T> struct OpMathType {
    typedef T type;
};
#ifdef __CUDA_FP16_TYPES_EXIST__
typedef __half Half;
template <> struct OpMathType<__half> {
    typedef float type;
};
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
typedef __nv_bfloat16 BFloat16;
template <> struct OpMathType<__nv_bfloat16> {
    typedef float type;
};
#endif

// A float of 8 bits, rounded to nearest even. MANTISSA bits are its fraction. A value beyond the largest one becomes BEYOND: the
// largest one of e4m3fn, as in PyTorch since 2.13 (before: NaN), infinity of e5m2.
template <int MANTISSA, int BIAS, unsigned BEYOND> struct Float8 {
    unsigned char x;
    struct from_bits_t {};
    static __host__ __device__ constexpr from_bits_t from_bits() { return from_bits_t(); }
    Float8() = default;
    __device__ constexpr Float8(unsigned char bits, from_bits_t) : x(bits) {}
    __device__ __forceinline__ Float8(float value) {
        const unsigned all = __float_as_uint(value), sign = all & 0x80000000u;
        unsigned bits = all ^ sign;
        if (bits >= 0x7f800000u) {
            bits = bits > 0x7f800000u ? 0x7fu : BEYOND;
        } else if (bits < (unsigned)(128 - BIAS) << 23) {  // a subnormal number: the sum rounds it
            const unsigned unit = (unsigned)(128 - BIAS + 23 - MANTISSA) << 23;
            bits = __float_as_uint(__uint_as_float(bits) + __uint_as_float(unit)) - unit;
        } else {
            bits += ((unsigned)(BIAS - 127) << 23) + (1u << (22 - MANTISSA)) - 1 + (bits >> (23 - MANTISSA) & 1);
            bits >>= 23 - MANTISSA;
            bits = bits < BEYOND ? bits : BEYOND;
        }
        x = (unsigned char)(bits | sign >> 24);
    }
    __device__ __forceinline__ operator float() const {
        const unsigned bits = x & 0x7fu, exponent = bits >> MANTISSA, fraction = bits & ((1u << MANTISSA) - 1);
        const bool special = MANTISSA == 3 ? bits == 0x7fu : bits >= BEYOND;
        const float value = special    ? __uint_as_float(0x7f800000u | fraction << (23 - MANTISSA))
                            : exponent ? __uint_as_float((exponent + 127 - BIAS) << 23 | fraction << (23 - MANTISSA))
                                       : (float)fraction * __uint_as_float((unsigned)(128 - BIAS - MANTISSA) << 23);
        return x & 0x80 ? -value : value;
    }
};
struct Float8_e4m3fn : Float8<3, 7, 0x7e> {
    using Float8::Float8;
};
struct Float8_e5m2 : Float8<2, 15, 0x7c> {
    using Float8::Float8;
};
template <> struct OpMathType<Float8_e4m3fn> {
    typedef float type;
};
template <> struct OpMathType<Float8_e5m2> {
    typedef float type;
};
template <typename T, bool ON_GPU> struct AccumulateType {
    typedef typename OpMathType<T>::type type;
};
template <typename T> using opmath_type = typename OpMathType<T>::type;
template <typename T, bool ON_GPU> using acc_type = typename OpMathType<T>::type;
enum class DeviceType : signed char { CPU = 0, CUDA = 1 };
template <typename T, DeviceType DEVICE> using acc_type_device = typename OpMathType<T>::type;

// The bounds of a number: the largest and the lowest finite value, and those with infinities.
template <typename T> struct numeric_limits;
#define PYTORCH_LIMITS(T, LOWEST, MAX, LOWER, UPPER) \
    template <> struct numeric_limits<T> { \
        static __device__ __forceinline__ T lowest() { return LOWEST; } \
        static __device__ __forceinline__ T max() { return MAX; } \
        static __device__ __forceinline__ T lower_bound() { return LOWER; } \
        static __device__ __forceinline__ T upper_bound() { return UPPER; } \
    };
PYTORCH_LIMITS(
    float, -__int_as_float(0x7f7fffff), __int_as_float(0x7f7fffff), -__int_as_float(0x7f800000), __int_as_float(0x7f800000))
PYTORCH_LIMITS(
    double, -__longlong_as_double(0x7fefffffffffffffll), __longlong_as_double(0x7fefffffffffffffll),
    -__longlong_as_double(0x7ff0000000000000ll), __longlong_as_double(0x7ff0000000000000ll))
PYTORCH_LIMITS(bool, false, true, false, true)
PYTORCH_LIMITS(unsigned char, 0, 255, 0, 255)
PYTORCH_LIMITS(signed char, -128, 127, -128, 127)
PYTORCH_LIMITS(short, -32768, 32767, -32768, 32767)
PYTORCH_LIMITS(int, -2147483647 - 1, 2147483647, -2147483647 - 1, 2147483647)
PYTORCH_LIMITS(long long, -9223372036854775807ll - 1, 9223372036854775807ll, -9223372036854775807ll - 1, 9223372036854775807ll)
#ifdef __CUDA_FP16_TYPES_EXIST__
PYTORCH_LIMITS(
    __half, __float2half(-65504.f), __float2half(65504.f), __float2half(-__int_as_float(0x7f800000)),
    __float2half(__int_as_float(0x7f800000)))
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
PYTORCH_LIMITS(
    __nv_bfloat16, __float2bfloat16(-__int_as_float(0x7f7f0000)), __float2bfloat16(__int_as_float(0x7f7f0000)),
    __float2bfloat16(-__int_as_float(0x7f800000)), __float2bfloat16(__int_as_float(0x7f800000)))
#endif
#undef PYTORCH_LIMITS

template <typename T> __device__ __forceinline__ T ceil_div(T a, T b) { return (a + b - 1) / b; }
template <typename T> __device__ __forceinline__ T load(const T* address) { return *address; }

// A complex number: the real part, then the imaginary part. An array of them is an array of T whose last dimension is 2, as
// torch.view_as_real(x) is.
// A complex variable without an initializer is 0, except for complex<Half>, as in PyTorch.
template <typename T> struct ComplexParts {
    T real_ = T(0), imag_ = T(0);
};
#ifdef __CUDA_FP16_TYPES_EXIST__
template <> struct ComplexParts<__half> {
    __half real_, imag_;
};
#endif
template <typename T> struct alignas(2 * sizeof(T)) complex : ComplexParts<T> {
    typedef T value_type;

    complex() = default;
    __device__ __forceinline__ complex(const T& real, const T& imag = T(0)) {
        this->real_ = real;
        this->imag_ = imag;
    }
    template <typename U> __device__ __forceinline__ complex(const complex<U>& z) : complex(T(z.real_), T(z.imag_)) {}
    __device__ __forceinline__ T real() const { return this->real_; }
    __device__ __forceinline__ T imag() const { return this->imag_; }
    __device__ __forceinline__ void real(T value) { this->real_ = value; }
    __device__ __forceinline__ void imag(T value) { this->imag_ = value; }
    __device__ __forceinline__ complex& operator+=(const complex& z) { return *this = *this + z; }
    __device__ __forceinline__ complex& operator-=(const complex& z) { return *this = *this - z; }
    __device__ __forceinline__ complex& operator*=(const complex& z) { return *this = *this * z; }
    __device__ __forceinline__ complex& operator/=(const complex& z) { return *this = *this / z; }

    friend __device__ __forceinline__ complex operator+(const complex& a) { return a; }
    friend __device__ __forceinline__ complex operator-(const complex& a) { return complex(-a.real_, -a.imag_); }
    friend __device__ __forceinline__ complex operator+(const complex& a, const complex& b) {
        return complex(a.real_ + b.real_, a.imag_ + b.imag_);
    }
    friend __device__ __forceinline__ complex operator-(const complex& a, const complex& b) {
        return complex(a.real_ - b.real_, a.imag_ - b.imag_);
    }
    friend __device__ __forceinline__ complex operator*(const complex& a, const complex& b) {
        return complex(a.real_ * b.real_ - a.imag_ * b.imag_, a.real_ * b.imag_ + a.imag_ * b.real_);
    }
    // The smaller part of b is divided by the larger one, so the squares of large numbers do not overflow (Smith 1962,
    // https://doi.org/10.1145/368637.368661).
    friend __device__ __forceinline__ complex operator/(const complex& a, const complex& b) {
        typedef typename OpMathType<T>::type acc;
        const acc c = acc(b.real_), d = acc(b.imag_), x = acc(a.real_), y = acc(a.imag_);
        if ((c < acc(0) ? -c : c) >= (d < acc(0) ? -d : d)) {
            const acc ratio = d / c, scale = acc(1) / (c + d * ratio);
            return complex(T((x + y * ratio) * scale), T((y - x * ratio) * scale));
        }
        const acc ratio = c / d, scale = acc(1) / (c * ratio + d);
        return complex(T((x * ratio + y) * scale), T((y * ratio - x) * scale));
    }
    friend __device__ __forceinline__ bool operator==(const complex& a, const complex& b) {
        return a.real_ == b.real_ && a.imag_ == b.imag_;
    }
    friend __device__ __forceinline__ bool operator!=(const complex& a, const complex& b) { return !(a == b); }
    friend __device__ __forceinline__ T real(const complex& a) { return a.real_; }
    friend __device__ __forceinline__ T imag(const complex& a) { return a.imag_; }
    friend __device__ __forceinline__ complex conj(const complex& a) { return complex(a.real_, -a.imag_); }
    friend __device__ __forceinline__ T norm(const complex& a) { return a.real_ * a.real_ + a.imag_ * a.imag_; }
    friend __device__ __forceinline__ T abs(const complex& a) { return hypot(a.real_, a.imag_); }
    friend __device__ __forceinline__ T arg(const complex& a) { return atan2(a.imag_, a.real_); }
    friend __device__ __forceinline__ complex exp(const complex& a) {
        const T size = exp(a.real_);
        return complex(size * cos(a.imag_), size * sin(a.imag_));
    }
    friend __device__ __forceinline__ complex log(const complex& a) { return complex(log(abs(a)), arg(a)); }

    // The shuffles of a warp, which CUDA has for numbers.
    friend __device__ __forceinline__ complex __shfl_sync(unsigned mask, const complex& a, int lane, int width = 32) {
        return complex(__shfl_sync(mask, a.real_, lane, width), __shfl_sync(mask, a.imag_, lane, width));
    }
    friend __device__ __forceinline__ complex __shfl_xor_sync(unsigned mask, const complex& a, int lanes, int width = 32) {
        return complex(__shfl_xor_sync(mask, a.real_, lanes, width), __shfl_xor_sync(mask, a.imag_, lanes, width));
    }
    friend __device__ __forceinline__ complex __shfl_up_sync(unsigned mask, const complex& a, unsigned delta, int width = 32) {
        return complex(__shfl_up_sync(mask, a.real_, delta, width), __shfl_up_sync(mask, a.imag_, delta, width));
    }
    friend __device__ __forceinline__ complex __shfl_down_sync(unsigned mask, const complex& a, unsigned delta, int width = 32) {
        return complex(__shfl_down_sync(mask, a.real_, delta, width), __shfl_down_sync(mask, a.imag_, delta, width));
    }
};

// The type of the parts of a number.
template <typename T> struct scalar_value_type {
    typedef T type;
};
template <typename T> struct scalar_value_type<complex<T>> {
    typedef T type;
};

}  // namespace at

namespace std {
template <typename T> __device__ __forceinline__ at::complex<T> exp(const at::complex<T>& a) {
    const T size = ::exp(a.real());
    return at::complex<T>(size * ::cos(a.imag()), size * ::sin(a.imag()));
}
template <typename T> __device__ __forceinline__ T abs(const at::complex<T>& a) { return ::hypot(a.real(), a.imag()); }
template <typename T> __device__ __forceinline__ at::complex<T> log(const at::complex<T>& a) {
    return at::complex<T>(::log(::hypot(a.real(), a.imag())), ::atan2(a.imag(), a.real()));
}
}  // namespace std

namespace torch {
using namespace at;
namespace headeronly = at;
}  // namespace torch
namespace c10 {
using namespace at;
}

#include "pytorch_math.cuh"
#include "pytorch_threads.cuh"
