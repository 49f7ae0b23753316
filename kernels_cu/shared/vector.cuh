// Vector<T, N>: N consecutive elements that one access of up to 16 bytes loads or stores. The address must be a multiple of the
// size of the access, which aligned<N>(p) tests.
#pragma once

template <typename T, int N> struct alignas(N * sizeof(T)) Vector {
    T element[N];
};

// Returns the distance in bytes from the last aligned address to p.
template <int N, typename T> __device__ __forceinline__ unsigned long long misaligned(const T* p) {
    return reinterpret_cast<unsigned long long>(p) % (N * sizeof(T));
}

template <int N, typename T> __device__ __forceinline__ bool aligned(const T* p) { return misaligned<N>(p) == 0; }
