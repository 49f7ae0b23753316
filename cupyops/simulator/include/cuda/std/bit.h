// Replaces <cuda/std/bit>. C++17 has no <bit>.
#pragma once

#include "../../../cuda/library_only.h"
#include <limits>
#include "../../../cuda/text_only.h"

namespace cuda {
namespace std {

template <class To, class From> constexpr To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "a bit_cast needs types of one size");
    return __builtin_bit_cast(To, from);
}

template <class T> constexpr int popcount(T x) { return __builtin_popcountll(x); }

template <class T> constexpr int bit_width(T x) { return x ? 64 - __builtin_clzll(x) : 0; }

template <class T> constexpr int countl_zero(T x) { return ::std::numeric_limits<T>::digits - cuda::std::bit_width(x); }

template <class T> constexpr int countr_zero(T x) { return x ? __builtin_ctzll(x) : ::std::numeric_limits<T>::digits; }

template <class T> constexpr int countl_one(T x) { return cuda::std::countl_zero(T(~x)); }

template <class T> constexpr int countr_one(T x) { return cuda::std::countr_zero(T(~x)); }

template <class T> constexpr bool has_single_bit(T x) { return x && !(x & (x - 1)); }

template <class T> constexpr T bit_floor(T x) { return x ? T(T(1) << (cuda::std::bit_width(x) - 1)) : T(0); }

template <class T> constexpr T bit_ceil(T x) { return x <= 1 ? T(1) : T(T(1) << cuda::std::bit_width(T(x - 1))); }

template <class T> constexpr T rotl(T x, int by) {
    constexpr int BITS = ::std::numeric_limits<T>::digits;
    const int n = (by % BITS + BITS) % BITS;
    return n ? T((x << n) | (x >> (BITS - n))) : x;
}

template <class T> constexpr T rotr(T x, int by) { return cuda::std::rotl(x, -by); }

}  // namespace std
}  // namespace cuda
