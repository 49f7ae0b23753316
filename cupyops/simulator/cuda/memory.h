// Loads and stores with a cache hint, shared memory, and atomic operations.
#pragma once

#define CUPYOPS_LOAD(NAME) template <typename T> CUPYOPS_INTRINSIC T NAME(const T* p) { return *p; }
CUPYOPS_LOAD(__ldg)
CUPYOPS_LOAD(__ldca)
CUPYOPS_LOAD(__ldcs)
CUPYOPS_LOAD(__ldlu)
#undef CUPYOPS_LOAD
// Loads that bypass the L1 cache. A thread may poll a flag with such a load, so the load lets other threads run.
template <typename T> CUPYOPS_LOOKED_AT T __ldcg(const T* p) { cupyops_look(p, sizeof(T)); return *p; }
template <typename T> CUPYOPS_LOOKED_AT T __ldcv(const T* p) { cupyops_look(p, sizeof(T)); return *p; }
#define CUPYOPS_STORE(NAME) template <typename T> CUPYOPS_INTRINSIC void NAME(T* p, T value) { *p = value; }
CUPYOPS_STORE(__stwb)
CUPYOPS_STORE(__stcg)
CUPYOPS_STORE(__stcs)
CUPYOPS_STORE(__stwt)
#undef CUPYOPS_STORE

// Dynamic shared memory; converts to a reference to any array, as `extern __shared__ T s[]` is an array.
struct CupyopsDynamic {
    template <typename T> operator T&() const { return *static_cast<T*>(cupyops_dynamic_shared()); }
};
template <typename T> struct CupyopsElement { static constexpr size_t bytes = sizeof(T); };
template <typename T, size_t N> struct CupyopsElement<T[N]> { static constexpr size_t bytes = CupyopsElement<T>::bytes; };

inline unsigned __isShared(const void* p) { return (unsigned)cupyops_is_shared(p); }
inline unsigned __isGlobal(const void* p) { return !cupyops_is_shared(p); }
inline size_t __cvta_generic_to_shared(const void* p) { return cupyops_shared_address(p); }
inline void* __cvta_shared_to_generic(size_t address) {
    char* const dynamic = static_cast<char*>(cupyops_dynamic_shared());
    return dynamic + (static_cast<long long>(address) - static_cast<long long>(cupyops_shared_address(dynamic)));
}
inline size_t __cvta_generic_to_global(const void* p) { return reinterpret_cast<size_t>(p); }
inline size_t __cvta_generic_to_local(const void* p) { return reinterpret_cast<size_t>(p); }
inline size_t __cvta_generic_to_constant(const void* p) { return reinterpret_cast<size_t>(p); }
inline void* __cvta_global_to_generic(size_t address) { return reinterpret_cast<void*>(address); }
inline void* __cvta_local_to_generic(size_t address) { return reinterpret_cast<void*>(address); }
inline void* __cvta_constant_to_generic(size_t address) { return reinterpret_cast<void*>(address); }
inline void __prefetch_global_l1(const void*) {}
inline void __prefetch_global_l2(const void*) {}

// Atomic operations. One thread runs at a time, so a plain read and write are atomic together. Integers wrap. Bytes are copied:
// the assignment of a struct such as __half2 may be a function with checks of its own.
inline void* cupyops_at(const volatile void* p) { return const_cast<void*>(p); }
template <typename T> struct CupyopsWord { typedef T type; };
template <> struct CupyopsWord<int> { typedef unsigned type; };
template <> struct CupyopsWord<long long> { typedef unsigned long long type; };
template <typename T> struct CupyopsSame { typedef T type; };
template <typename T> struct CupyopsSigned64 { static constexpr bool value = false; };
template <> struct CupyopsSigned64<long> { static constexpr bool value = sizeof(long) == 8; };
template <> struct CupyopsSigned64<long long> { static constexpr bool value = true; };
#define CUPYOPS_NOT_SIGNED_64(NAME) \
    static_assert(ANY || !CupyopsSigned64<T>::value, "CUDA has no " NAME " of signed 64-bit integers: cast the address to unsigned long long*")

// Replaces `old` by the expression NEXT of `old` and `value`. `value` converts to the memory's type, as in CUDA's
// overloads.
#define CUPYOPS_ATOMIC(NAME, NEXT)                                                                \
    template <typename T, bool ANY = false> CUPYOPS_UNCHECKED T NAME(T* p, typename CupyopsSame<T>::type value) { \
        CUPYOPS_##NAME##_TYPES;                                                                   \
        typedef typename CupyopsWord<T>::type word;                                               \
        cupyops_atomic(p, sizeof(T));                                                             \
        T old, next;                                                                              \
        __builtin_memcpy(static_cast<void*>(&old), cupyops_at(p), sizeof(T));                     \
        next = NEXT;                                                                              \
        __builtin_memcpy(cupyops_at(p), &next, sizeof(T));                                        \
        if (__builtin_memcmp(&old, &next, sizeof(T))) cupyops_changed();                          \
        (void)sizeof(word);                                                                       \
        return old;                                                                               \
    }                                                                                             \
    template <typename T> inline T NAME##_block(T* p, typename CupyopsSame<T>::type value) { return NAME(p, value); } \
    template <typename T> inline T NAME##_system(T* p, typename CupyopsSame<T>::type value) { return NAME(p, value); }
template <typename T> inline T cupyops_sum(T a, T b) {
    typedef typename CupyopsWord<T>::type word;
    return T(word(a) + word(b));
}
inline float2 cupyops_sum(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
inline float4 cupyops_sum(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
#define CUPYOPS_atomicAdd_TYPES CUPYOPS_NOT_SIGNED_64("atomicAdd")
#define CUPYOPS_atomicSub_TYPES static_assert(ANY || sizeof(T) == 4, "CUDA has atomicSub of int and unsigned alone: add the negative value")
#define CUPYOPS_atomicExch_TYPES CUPYOPS_NOT_SIGNED_64("atomicExch")
#define CUPYOPS_atomicMin_TYPES (void)0
#define CUPYOPS_atomicMax_TYPES (void)0
#define CUPYOPS_atomicAnd_TYPES CUPYOPS_NOT_SIGNED_64("atomicAnd")
#define CUPYOPS_atomicOr_TYPES CUPYOPS_NOT_SIGNED_64("atomicOr")
#define CUPYOPS_atomicXor_TYPES CUPYOPS_NOT_SIGNED_64("atomicXor")
#define CUPYOPS_atomicInc_TYPES (void)0
#define CUPYOPS_atomicDec_TYPES (void)0
CUPYOPS_ATOMIC(atomicAdd, cupyops_sum(old, value))
CUPYOPS_ATOMIC(atomicSub, T(word(old) - word(value)))
CUPYOPS_ATOMIC(atomicExch, value)
CUPYOPS_ATOMIC(atomicMin, value < old ? value : old)
CUPYOPS_ATOMIC(atomicMax, old < value ? value : old)
CUPYOPS_ATOMIC(atomicAnd, old & value)
CUPYOPS_ATOMIC(atomicOr, old | value)
CUPYOPS_ATOMIC(atomicXor, old ^ value)
CUPYOPS_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))
CUPYOPS_ATOMIC(atomicDec, old == T(0) || old > value ? value : T(old - 1))
#undef CUPYOPS_ATOMIC
template <typename T, bool ANY = false> CUPYOPS_UNCHECKED T atomicCAS(T* p, typename CupyopsSame<T>::type compare, typename CupyopsSame<T>::type value) {
    CUPYOPS_NOT_SIGNED_64("atomicCAS");
    cupyops_atomic(p, sizeof(T));
    T old;
    __builtin_memcpy(static_cast<void*>(&old), cupyops_at(p), sizeof(T));
    if (!(old == compare)) return old;
    __builtin_memcpy(cupyops_at(p), &value, sizeof(T));
    if (__builtin_memcmp(&old, &value, sizeof(T))) cupyops_changed();
    return old;
}
template <typename T> inline T atomicCAS_block(T* p, typename CupyopsSame<T>::type c, typename CupyopsSame<T>::type v) { return atomicCAS(p, c, v); }
template <typename T> inline T atomicCAS_system(T* p, typename CupyopsSame<T>::type c, typename CupyopsSame<T>::type v) { return atomicCAS(p, c, v); }

// memcpy and memset with access checks; the compiler would call the C library's functions, which have no checks.
CUPYOPS_UNCHECKED void* cupyops_memcpy(void* to, const void* from, size_t bytes) {
    if (bytes) cupyops_touch(from, bytes, 0), cupyops_touch(to, bytes, 1);
    return __builtin_memcpy(to, from, bytes);
}
CUPYOPS_UNCHECKED void* cupyops_memset(void* to, int value, size_t bytes) {
    if (bytes) cupyops_touch(to, bytes, 1);
    return __builtin_memset(to, value, bytes);
}
