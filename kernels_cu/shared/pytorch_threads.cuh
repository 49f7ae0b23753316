// Functions of several threads of PyTorch's headers: atomic functions, and functions of warps and blocks. `pytorch.cuh` includes this
// header.
#pragma once

#include "pytorch.cuh"

namespace at {
template <bool WIDE> struct AtomicWord {
    typedef unsigned type;
};
template <> struct AtomicWord<true> {
    typedef unsigned long long type;
};
// Replaces the element at an address by change(element), and returns the former element. GPUs exchange 32 or 64 bits at once, so
// the exchange of a shorter element includes its neighbours.
template <typename T, typename Change> __device__ __forceinline__ T gpuAtomicChange(T* address, Change change) {
    typedef typename AtomicWord<sizeof(T) == 8>::type Word;
    const unsigned at_byte = sizeof(T) < 4 ? (unsigned)(size_t)address & 3 : 0, shift = 8 * at_byte;
    const Word mask = sizeof(T) < 4 ? ((Word(1) << 8 * (sizeof(T) & 3)) - 1) << shift : ~Word(0);
    Word* word = (Word*)((char*)address - at_byte);
    Word found = *(volatile Word*)word, before;
    T element;
    do {
        before = found;
        Word bits = (before & mask) >> shift;
        memcpy(&element, &bits, sizeof(T));
        const T next = change(element);
        bits = 0;
        memcpy(&bits, &next, sizeof(T));
        found = atomicCAS(word, before, (before & ~mask) | bits << shift);
    } while (found != before);
    return element;
}

// The sum by an exchange, for the types for which GPUs have no sum.
template <typename T> struct AtomicSum {
    static __device__ __forceinline__ T add(T* address, T value) {
        return gpuAtomicChange(address, [=](T a) { return T(a + value); });
    }
};
#define PYTORCH_SUM(T, AS) \
    template <> struct AtomicSum<T> { \
        static __device__ __forceinline__ T add(T* address, T value) { return (T)atomicAdd((AS*)address, (AS)value); } \
    };
PYTORCH_SUM(float, float)
PYTORCH_SUM(double, double)
PYTORCH_SUM(int, int)
PYTORCH_SUM(unsigned, unsigned)
PYTORCH_SUM(long, unsigned long long)
PYTORCH_SUM(long long, unsigned long long)
PYTORCH_SUM(unsigned long, unsigned long long)
PYTORCH_SUM(unsigned long long, unsigned long long)
#ifdef __CUDA_FP16_TYPES_EXIST__
PYTORCH_SUM(__half, __half)
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
PYTORCH_SUM(__nv_bfloat16, __nv_bfloat16)
#endif
#undef PYTORCH_SUM
template <typename T> struct AtomicSum<complex<T>> {
    static __device__ __forceinline__ complex<T> add(complex<T>* address, complex<T> value) {
        const T real = AtomicSum<T>::add(&address->real_, value.real_);
        return complex<T>(real, AtomicSum<T>::add(&address->imag_, value.imag_));
    }
};
}  // namespace at

template <typename T, typename Value> __device__ __forceinline__ T gpuAtomicAdd(T* address, Value value) {
    return at::AtomicSum<T>::add(address, T(value));
}
// PyTorch's atomicAdd of the types for which CUDA has none.
#define PYTORCH_ADD(T) \
    __device__ __forceinline__ void atomicAdd(T* address, T value) { at::AtomicSum<T>::add(address, value); }
PYTORCH_ADD(unsigned char)
PYTORCH_ADD(signed char)
PYTORCH_ADD(short)
PYTORCH_ADD(long)
PYTORCH_ADD(long long)
PYTORCH_ADD(bool)
#undef PYTORCH_ADD
template <typename T, typename Value> __device__ __forceinline__ void gpuAtomicAddNoReturn(T* address, Value value) {
    at::AtomicSum<T>::add(address, T(value));
}
template <typename T, typename Value> __device__ __forceinline__ T gpuAtomicMul(T* address, Value value) {
    return at::gpuAtomicChange(address, [=](T a) { return T(a * T(value)); });
}
// A NaN is the largest and the smallest number.
template <typename T, typename Value> __device__ __forceinline__ T gpuAtomicMax(T* address, Value value) {
    return at::gpuAtomicChange(address, [=](T a) { return T(value) != T(value) || a < T(value) ? T(value) : a; });
}
template <typename T, typename Value> __device__ __forceinline__ T gpuAtomicMin(T* address, Value value) {
    return at::gpuAtomicChange(address, [=](T a) { return T(value) != T(value) || T(value) < a ? T(value) : a; });
}

// The sum at an index of an array of n elements. PyTorch adds two 16-bit floats at once where it can; the sums are the same.
template <typename T, typename Index>
__device__ __forceinline__ void fastAtomicAdd(T* array, Index index, Index n, T value, bool fast = true) {
    at::AtomicSum<T>::add(array + index, value);
}
template <typename T, typename Index>
__device__ __forceinline__ void fastSpecializedAtomicAdd(T* array, Index index, Index n, T value) {
    at::AtomicSum<T>::add(array + index, value);
}
namespace at {
namespace native {
using ::fastAtomicAdd;
using ::fastSpecializedAtomicAdd;
}  // namespace native
}  // namespace at

template <typename T>
__device__ __forceinline__ T WARP_SHFL(T value, int lane, int width = 32, unsigned mask = 0xffffffffu) {
    return __shfl_sync(mask, value, lane, width);
}
template <typename T>
__device__ __forceinline__ T WARP_SHFL_XOR(T value, int lane_mask, int width = 32, unsigned mask = 0xffffffffu) {
    return __shfl_xor_sync(mask, value, lane_mask, width);
}
template <typename T>
__device__ __forceinline__ T WARP_SHFL_UP(T value, unsigned delta, int width = 32, unsigned mask = 0xffffffffu) {
    return __shfl_up_sync(mask, value, delta, width);
}
template <typename T>
__device__ __forceinline__ T WARP_SHFL_DOWN(T value, unsigned delta, int width = 32, unsigned mask = 0xffffffffu) {
    return __shfl_down_sync(mask, value, delta, width);
}
__device__ __forceinline__ unsigned WARP_BALLOT(int predicate, unsigned mask = 0xffffffffu) {
    return __ballot_sync(mask, predicate);
}
__device__ __forceinline__ unsigned ACTIVE_MASK() { return __activemask(); }

// The sum, or another reduction, of the values of a warp or of a block. `shared` has room for a value of each warp. The first
// thread of a block has the result.
namespace at {
namespace native {
namespace cuda_utils {
constexpr int kCUDABlockReduceNumThreads = 512, kCUDABlockReduceMaxThreads = 1024;
struct Block1D {
    static __device__ __forceinline__ int Tid() { return threadIdx.x; }
    static __device__ __forceinline__ int Warps() { return blockDim.x / C10_WARP_SIZE; }
};
template <typename T> __device__ __forceinline__ T WarpReduceSum(T value) {
#pragma unroll
    for (int offset = C10_WARP_SIZE / 2; offset > 0; offset >>= 1) value += WARP_SHFL_DOWN(value, offset);
    return value;
}
template <typename T> __device__ __forceinline__ T WarpReduceMax(T value) {
#pragma unroll
    for (int offset = C10_WARP_SIZE / 2; offset > 0; offset >>= 1) {
        const T other = WARP_SHFL_DOWN(value, offset);
        value = other != other || value < other ? other : value;
    }
    return value;
}
template <typename T, class Op> __device__ __forceinline__ T WarpReduce(T value, const Op& op) {
#pragma unroll
    for (int offset = C10_WARP_SIZE / 2; offset > 0; offset >>= 1) value = op.combine(value, op.warp_shfl_down(value, offset));
    return value;
}
template <typename T, typename OfWarp>
__device__ __forceinline__ T BlockReduceBy(T value, T identity, T* shared, OfWarp of_warp) {
    const int lane = threadIdx.x % C10_WARP_SIZE, warp = threadIdx.x / C10_WARP_SIZE;
    value = of_warp(value);
    __syncthreads();  // of a former use of `shared`
    if (lane == 0) shared[warp] = value;
    __syncthreads();
    value = threadIdx.x < blockDim.x / C10_WARP_SIZE ? shared[lane] : identity;
    return warp == 0 ? of_warp(value) : value;
}
template <typename T, typename B = Block1D> __device__ __forceinline__ T BlockReduceSum(T value, T* shared) {
    return BlockReduceBy(value, T(0), shared, [](T v) { return WarpReduceSum(v); });
}
template <typename T, typename B = Block1D> __device__ __forceinline__ T BlockReduceMax(T value, T* shared) {
    return BlockReduceBy(value, T(0), shared, [](T v) { return WarpReduceMax(v); });
}
template <typename T, class Op, typename B = Block1D>
__device__ __forceinline__ T BlockReduce(T value, const Op& op, const T& identity, T* shared) {
    return BlockReduceBy(value, identity, shared, [=](T v) { return WarpReduce(v, op); });
}
}  // namespace cuda_utils

// Several numbers that a thread loads and stores at once.
namespace memory {
template <typename T, int SIZE> struct alignas(sizeof(T) * SIZE) aligned_vector {
    T val[SIZE];
};
}  // namespace memory
}  // namespace native
}  // namespace at
