// Replaces CUB's util_ptx.cuh: shuffles of values of any size, and the types and functions of one thread.
#pragma once

#include "../../cuda/copies.h"
#include "../../cuda/shuffles.h"

namespace cub {

template <int THREADS, typename T> CUPYOPS_INTRINSIC T ShuffleUp(T value, int offset, int first, unsigned mask) {
    const int from = int(cupyops_lane()) - offset;
    return cupyops_shuffled(CUPYOPS_SHFL, mask, value, from < (first | int(cupyops_lane() & ~(THREADS - 1))) ? int(cupyops_lane()) : from, 32);
}
template <int THREADS, typename T> CUPYOPS_INTRINSIC T ShuffleDown(T value, int offset, int last, unsigned mask) {
    const int from = int(cupyops_lane()) + offset;
    return cupyops_shuffled(CUPYOPS_SHFL, mask, value, from > (last | int(cupyops_lane() & ~(THREADS - 1))) ? int(cupyops_lane()) : from, 32);
}
template <int THREADS, typename T> CUPYOPS_INTRINSIC T ShuffleIndex(T value, int lane, unsigned mask) {
    return cupyops_shuffled(CUPYOPS_SHFL, mask, value, lane, THREADS);
}

// A value with its key, and the functors that choose one of two. Of equal values, the one with the smaller key is chosen.
template <typename K, typename V> struct KeyValuePair {
    typedef K Key;
    typedef V Value;
    K key;
    V value;
    KeyValuePair() = default;
    KeyValuePair(const K& k, const V& v) : key(k), value(v) {}
    bool operator!=(const KeyValuePair& other) const { return value != other.value || key != other.key; }
};
struct ArgMax {
    template <typename P> P operator()(const P& a, const P& b) const {
        return b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};
struct ArgMin {
    template <typename P> P operator()(const P& a, const P& b) const {
        return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};

// The bits of a number as an unsigned number that compares in the same order, and the way back.
template <typename T> struct Traits {
    typedef std::conditional_t<sizeof(T) == 1, unsigned char, std::conditional_t<sizeof(T) == 2, unsigned short, std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>>> UnsignedBits;
    static constexpr UnsignedBits HIGH_BIT = UnsignedBits(UnsignedBits(1) << (8 * sizeof(T) - 1));
    static UnsignedBits TwiddleIn(UnsignedBits key) {
        if (std::is_integral<T>::value) return std::is_signed<T>::value ? UnsignedBits(key ^ HIGH_BIT) : key;
        return UnsignedBits(key & HIGH_BIT ? ~key : key ^ HIGH_BIT);
    }
    static UnsignedBits TwiddleOut(UnsignedBits key) {
        if (std::is_integral<T>::value) return std::is_signed<T>::value ? UnsignedBits(key ^ HIGH_BIT) : key;
        return UnsignedBits(key & HIGH_BIT ? key ^ HIGH_BIT : ~key);
    }
};

enum CacheLoadModifier { LOAD_DEFAULT, LOAD_CA, LOAD_CG, LOAD_CS, LOAD_CV, LOAD_LDG, LOAD_VOLATILE };
enum CacheStoreModifier { STORE_DEFAULT, STORE_WB, STORE_CG, STORE_CS, STORE_WT, STORE_VOLATILE };
template <CacheLoadModifier, typename T> CUPYOPS_INTRINSIC T ThreadLoad(const T* at) { return *at; }
template <CacheStoreModifier, typename T> CUPYOPS_INTRINSIC void ThreadStore(T* at, T value) { *at = value; }

// The functions that the replacements of CUB's collectives share.
namespace detail {

struct Uninitialized {};
struct NullType {};

// The lanes of a logical warp of N threads: its first lane, the number of its lanes in the block, and their mask.
template <int N> struct LogicalWarp {
    unsigned first, count, rank, mask;
    LogicalWarp() {
        const unsigned lane = cupyops_lane(), start = cupyops_thread() - lane, left = cupyops_threads() - start;
        const unsigned lanes = left < 32 ? left : 32;
        first = lane / N * N;
        count = first + N <= lanes ? N : lanes - first;
        rank = lane - first;
        mask = (count == 32 ? ~0u : (1u << count) - 1) << first;
    }
    template <typename T> T at(const T& value, unsigned rank) const {
        return cupyops_shuffled(CUPYOPS_SHFL, mask, value, int(first + (rank < count ? rank : this->rank)), 32);
    }
    template <typename T> T before(const T& value, unsigned distance) const { return at(value, distance <= rank ? rank - distance : rank); }
    template <typename T> T behind(const T& value, unsigned distance) const { return at(value, rank + distance); }

    // The reduction of the first `valid` lanes, in the lane of rank 0.
    template <typename T, typename F> T reduced(T value, F combine, unsigned valid) const {
        for (unsigned step = 1; step < N; step *= 2) {
            const T other = behind(value, step);
            if (rank + step < (valid < count ? valid : count)) value = combine(value, other);
        }
        return value;
    }
    template <typename T, typename F> T scanned(T value, F combine) const {
        for (unsigned step = 1; step < N; step *= 2) {
            const T other = before(value, step);
            if (rank >= step) value = combine(other, value);
        }
        return value;
    }
};

struct Plus {
    template <typename T> T operator()(const T& a, const T& b) const { return T(a + b); }
};

}  // namespace detail

typedef detail::NullType NullType;

// The functions of a collective that has temporary storage in shared memory.
#define CUPYOPS_COLLECTIVE(NAME)                              \
   private:                                                   \
    TempStorage& storage;                                     \
                                                              \
   public:                                                    \
    explicit NAME(TempStorage& temporary) : storage(temporary) {}

}  // namespace cub
