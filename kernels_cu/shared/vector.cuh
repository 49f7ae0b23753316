// Vector<T, N>: N consecutive elements as one access of up to 16 bytes, for addresses that are a multiple of its size:
// those of which aligned<N> says so.
#pragma once

template <typename T, int N> struct alignas(N * sizeof(T)) Vector { T element[N]; };

// Bytes by which p is past such an address.
template <int N, typename T> __device__ __forceinline__ unsigned long long misaligned(const T* p) {
    return reinterpret_cast<unsigned long long>(p) % (N * sizeof(T));
}

template <int N, typename T> __device__ __forceinline__ bool aligned(const T* p) { return misaligned<N>(p) == 0; }
