// Packed<T>: VECTOR_WIDTH consecutive elements in the registers in which they were loaded, with two 16-bit elements a register.
// An element is widened where it is used: a row in flight takes half the registers that it would take in acc_t.
#pragma once

#include "vector.cuh"

#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 1
#endif

template <typename T> struct Packed {
    static constexpr int BYTES = VECTOR_WIDTH * sizeof(T), WORDS = (BYTES + 3) / 4;
    unsigned word[WORDS];

    __device__ __forceinline__ acc_t operator[](int k) const {
        if constexpr (sizeof(T) == 2) return Scalar<T>::widen(word[k / 2], k % 2);
        else if constexpr (sizeof(T) == 4) return __uint_as_float(word[k]);
        else return __hiloint2double(static_cast<int>(word[2 * k + 1]), static_cast<int>(word[2 * k]));
    }

    __device__ __forceinline__ void set(const acc_t (&v)[VECTOR_WIDTH]) {
        if constexpr (sizeof(T) == 2) {
#pragma unroll
            for (int i = 0; i < WORDS; ++i)
                word[i] = Scalar<T>::narrow_two(v[2 * i], VECTOR_WIDTH > 1 ? v[(2 * i + 1) % VECTOR_WIDTH] : acc_t(0));
        } else if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) word[k] = __float_as_uint(static_cast<float>(v[k]));
        } else {
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) {
                word[2 * k] = static_cast<unsigned>(__double2loint(v[k]));
                word[2 * k + 1] = static_cast<unsigned>(__double2hiint(v[k]));
            }
        }
    }

    static __device__ __forceinline__ Packed of(acc_t all) {
        acc_t v[VECTOR_WIDTH];
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) v[k] = all;
        Packed packed;
        packed.set(v);
        return packed;
    }
};

// Loads a vector. With `aligned` the address is a multiple of the access size, and accesses of up to 16 bytes load the
// vector. Without `aligned` each element has a load.
template <typename T> __device__ __forceinline__ Packed<T> load_packed(const T* p, bool aligned) {
    typedef Packed<T> P;
    P packed;
    if constexpr (P::BYTES % 16 == 0) {
        if (aligned) {
#pragma unroll
            for (int i = 0; i < P::WORDS; i += 4) {
                const uint4 four = reinterpret_cast<const uint4*>(p)[i / 4];
                packed.word[i] = four.x, packed.word[i + 1] = four.y, packed.word[i + 2] = four.z, packed.word[i + 3] = four.w;
            }
            return packed;
        }
    } else if constexpr (P::BYTES == 8) {
        if (aligned) {
            const uint2 two = *reinterpret_cast<const uint2*>(p);
            packed.word[0] = two.x, packed.word[1] = two.y;
            return packed;
        }
    }
    if constexpr (sizeof(T) == 2) {
        const unsigned short* halves = reinterpret_cast<const unsigned short*>(p);
#pragma unroll
        for (int i = 0; i < P::WORDS; ++i)
            packed.word[i] =
                halves[2 * i] | (VECTOR_WIDTH > 1 ? static_cast<unsigned>(halves[(2 * i + 1) % VECTOR_WIDTH]) << 16 : 0u);
    } else {
        const unsigned* words = reinterpret_cast<const unsigned*>(p);
#pragma unroll
        for (int i = 0; i < P::WORDS; ++i) packed.word[i] = words[i];
    }
    return packed;
}

template <typename T> __device__ __forceinline__ void store_packed(T* p, const Packed<T>& packed, bool aligned) {
    typedef Packed<T> P;
    if constexpr (P::BYTES % 16 == 0) {
        if (aligned) {
#pragma unroll
            for (int i = 0; i < P::WORDS; i += 4)
                reinterpret_cast<uint4*>(p)[i / 4] =
                    make_uint4(packed.word[i], packed.word[i + 1], packed.word[i + 2], packed.word[i + 3]);
            return;
        }
    } else if constexpr (P::BYTES == 8) {
        if (aligned) {
            *reinterpret_cast<uint2*>(p) = make_uint2(packed.word[0], packed.word[1]);
            return;
        }
    }
    if constexpr (sizeof(T) == 2) {
        unsigned short* halves = reinterpret_cast<unsigned short*>(p);
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) halves[k] = static_cast<unsigned short>(packed.word[k / 2] >> (k % 2 * 16));
    } else {
        unsigned* words = reinterpret_cast<unsigned*>(p);
#pragma unroll
        for (int i = 0; i < P::WORDS; ++i) words[i] = packed.word[i];
    }
}

// Stores a vector by one instruction. The compiler splits an assignment in a loop over rows into an instruction a word.
template <bool ALIGNED, typename T> __device__ __forceinline__ void store_row(T* p, const Packed<T>& packed) {
    constexpr int BYTES = Packed<T>::BYTES;
    if constexpr (ALIGNED && BYTES == 16)
        __stwb(reinterpret_cast<uint4*>(p), make_uint4(packed.word[0], packed.word[1], packed.word[2], packed.word[3]));
    else if constexpr (ALIGNED && BYTES == 8) __stwb(reinterpret_cast<uint2*>(p), make_uint2(packed.word[0], packed.word[1]));
    else store_packed(p, packed, ALIGNED);
}
