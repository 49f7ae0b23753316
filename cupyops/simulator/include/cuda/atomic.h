// Replaces <cuda/atomic>: atomic objects and references. An ordering is a fence before a release and after an acquire.
#pragma once

#include "../../cuda/copies.h"
#include "scope.h"

namespace cuda {

enum class memory_order { relaxed, consume, acquire, release, acq_rel, seq_cst };
inline constexpr memory_order memory_order_relaxed = memory_order::relaxed, memory_order_consume = memory_order::consume,
                              memory_order_acquire = memory_order::acquire, memory_order_release = memory_order::release,
                              memory_order_acq_rel = memory_order::acq_rel, memory_order_seq_cst = memory_order::seq_cst;

namespace detail {

inline void before(memory_order order) {
    if (order >= memory_order::release) __threadfence();
}
inline void behind(memory_order order) {
    if (order != memory_order::relaxed && order != memory_order::release) __threadfence();
}

// The operations of an atomic object at an address.
template <typename T> struct atomic_operations {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "the simulator covers atomic objects of 4 and 8 bytes");
    static __attribute__((noinline)) T load(T* p, memory_order order) {
        cupyops_look(p, sizeof(T));
        T value;
        __builtin_memcpy(&value, p, sizeof(T));
        behind(order);
        return value;
    }
    static __attribute__((noinline)) void store(T* p, T value, memory_order order) {
        before(order);
        *const_cast<volatile T*>(p) = value;
        behind(order);
    }
    static __attribute__((noinline)) T exchange(T* p, T value, memory_order order) {
        before(order);
        const T old = atomicExch<T, true>(p, value);
        behind(order);
        return old;
    }
    // Replaces the number if it is the expected one; otherwise the expected one becomes the number.
    static __attribute__((noinline)) bool compare(T* p, T& expected, T desired, memory_order order) {
        before(order);
        const T old = atomicCAS<T, true>(p, expected, desired);
        behind(order);
        const bool same = !__builtin_memcmp(&old, &expected, sizeof(T));
        if (!same) expected = old;
        return same;
    }
};

}  // namespace detail

#define CUPYOPS_FETCH(NAME, FUNCTION)                                                         \
    CUPYOPS_MEMBER T NAME(T value, memory_order order = memory_order::seq_cst) const { \
        detail::before(order);                                                                \
        const T old = FUNCTION<T, true>(where(), value);                                               \
        detail::behind(order);                                                                \
        return old;                                                                           \
    }
#define CUPYOPS_ATOMIC_MEMBERS                                                                                                               \
    CUPYOPS_MEMBER void store(T value, memory_order order = memory_order::seq_cst) const { Operations::store(where(), value, order); }       \
    CUPYOPS_MEMBER T load(memory_order order = memory_order::seq_cst) const { return Operations::load(where(), order); }                     \
    CUPYOPS_MEMBER operator T() const { return load(); }                                                                                     \
    CUPYOPS_MEMBER T exchange(T value, memory_order order = memory_order::seq_cst) const { return Operations::exchange(where(), value, order); } \
    CUPYOPS_MEMBER bool compare_exchange_strong(T& expected, T desired, memory_order order = memory_order::seq_cst) const {                  \
        return Operations::compare(where(), expected, desired, order);                                                                       \
    }                                                                                                                                        \
    CUPYOPS_MEMBER bool compare_exchange_strong(T& expected, T desired, memory_order order, memory_order) const {                            \
        return Operations::compare(where(), expected, desired, order);                                                                       \
    }                                                                                                                                        \
    CUPYOPS_MEMBER bool compare_exchange_weak(T& expected, T desired, memory_order order = memory_order::seq_cst) const {                    \
        return Operations::compare(where(), expected, desired, order);                                                                       \
    }                                                                                                                                        \
    CUPYOPS_MEMBER bool compare_exchange_weak(T& expected, T desired, memory_order order, memory_order) const {                              \
        return Operations::compare(where(), expected, desired, order);                                                                       \
    }                                                                                                                                        \
    CUPYOPS_FETCH(fetch_add, atomicAdd)                                                                                                      \
    CUPYOPS_FETCH(fetch_sub, atomicSub)                                                                                                      \
    CUPYOPS_FETCH(fetch_and, atomicAnd)                                                                                                      \
    CUPYOPS_FETCH(fetch_or, atomicOr)                                                                                                        \
    CUPYOPS_FETCH(fetch_xor, atomicXor)                                                                                                      \
    CUPYOPS_FETCH(fetch_min, atomicMin)                                                                                                      \
    CUPYOPS_FETCH(fetch_max, atomicMax)                                                                                                      \
    CUPYOPS_MEMBER T operator++() const { return T(fetch_add(T(1)) + T(1)); }                                                                \
    CUPYOPS_MEMBER T operator++(int) const { return fetch_add(T(1)); }                                                                       \
    CUPYOPS_MEMBER T operator--() const { return T(fetch_sub(T(1)) - T(1)); }                                                                \
    CUPYOPS_MEMBER T operator--(int) const { return fetch_sub(T(1)); }                                                                       \
    CUPYOPS_MEMBER T operator+=(T value) const { return T(fetch_add(value) + value); }                                                       \
    CUPYOPS_MEMBER T operator-=(T value) const { return T(fetch_sub(value) - value); }                                                       \
    CUPYOPS_MEMBER T operator=(T value) const {                                                                                              \
        store(value);                                                                                                                        \
        return value;                                                                                                                        \
    }

template <typename T, thread_scope SCOPE = thread_scope_system> class atomic_ref {
    typedef detail::atomic_operations<T> Operations;
    T* pointer;
    T* where() const { return pointer; }

   public:
    typedef T value_type;
    explicit atomic_ref(T& object) : pointer(&object) {}
    atomic_ref(const atomic_ref&) = default;
    CUPYOPS_ATOMIC_MEMBERS
};

template <typename T, thread_scope SCOPE = thread_scope_system> class atomic {
    typedef detail::atomic_operations<T> Operations;
    mutable T value;
    T* where() const { return &value; }

   public:
    typedef T value_type;
    atomic() = default;
    constexpr atomic(T initial) : value(initial) {}
    atomic(const atomic&) = delete;
    CUPYOPS_ATOMIC_MEMBERS
};
#undef CUPYOPS_FETCH
#undef CUPYOPS_ATOMIC_MEMBERS

inline void atomic_thread_fence(memory_order, thread_scope = thread_scope_system) { __threadfence(); }

}  // namespace cuda
