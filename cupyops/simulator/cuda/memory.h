// Loads and stores with a cache hint, shared memory, and atomic operations.
#pragma once

// The types of which CUDA has these functions. cuda_fp16.h and cuda_bf16.h add theirs.
template <typename T> constexpr bool cupyops_loaded = false;
template <typename T> struct CupyopsSame { typedef T type; };  // a parameter of this type takes what converts to T
template <bool> struct CupyopsIf {};
template <> struct CupyopsIf<true> { typedef void type; };
template <typename T> using CupyopsLoaded = typename CupyopsIf<cupyops_loaded<T>>::type;
#define CUPYOPS_LOADED(T) template <> inline constexpr bool cupyops_loaded<T> = true;
#define CUPYOPS_LOADED_VECTORS(NAME) CUPYOPS_LOADED(NAME##2) CUPYOPS_LOADED(NAME##4)
CUPYOPS_LOADED(char) CUPYOPS_LOADED(signed char) CUPYOPS_LOADED(unsigned char)
CUPYOPS_LOADED(short) CUPYOPS_LOADED(unsigned short) CUPYOPS_LOADED(int) CUPYOPS_LOADED(unsigned)
CUPYOPS_LOADED(long) CUPYOPS_LOADED(unsigned long) CUPYOPS_LOADED(long long) CUPYOPS_LOADED(unsigned long long)
CUPYOPS_LOADED(float) CUPYOPS_LOADED(double) CUPYOPS_LOADED(double2) CUPYOPS_LOADED(longlong2) CUPYOPS_LOADED(ulonglong2)
CUPYOPS_LOADED_VECTORS(char) CUPYOPS_LOADED_VECTORS(uchar) CUPYOPS_LOADED_VECTORS(short) CUPYOPS_LOADED_VECTORS(ushort)
CUPYOPS_LOADED_VECTORS(int) CUPYOPS_LOADED_VECTORS(uint) CUPYOPS_LOADED_VECTORS(float)
#undef CUPYOPS_LOADED_VECTORS

#define CUPYOPS_LOAD(NAME) template <typename T, typename = CupyopsLoaded<T>> CUPYOPS_INTRINSIC T NAME(const T* p) { return *p; }
CUPYOPS_LOAD(__ldg)
CUPYOPS_LOAD(__ldca)
CUPYOPS_LOAD(__ldcs)
CUPYOPS_LOAD(__ldlu)
#undef CUPYOPS_LOAD
// Loads that bypass the L1 cache. A thread may poll a flag with such a load, so the load lets other threads run.
template <typename T, typename = CupyopsLoaded<T>> CUPYOPS_LOOKED_AT T __ldcg(const T* p) { cupyops_look(p, sizeof(T)); return *p; }
template <typename T, typename = CupyopsLoaded<T>> CUPYOPS_LOOKED_AT T __ldcv(const T* p) { cupyops_look(p, sizeof(T)); return *p; }
#define CUPYOPS_STORE(NAME) \
    template <typename T, typename = CupyopsLoaded<T>> CUPYOPS_INTRINSIC void NAME(T* p, typename CupyopsSame<T>::type value) { *p = value; }
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
inline unsigned __isCtaShared(const void* p) { return __isShared(p); }
inline unsigned __isClusterShared(const void* p) { return __isShared(p); }
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
// The types of which CUDA has an atomic function, on the simulated architecture. cuda_fp16.h and cuda_bf16.h add theirs.
template <typename T, typename... Ts> constexpr bool cupyops_among = (__is_same(T, Ts) || ...);
template <typename T> constexpr bool cupyops_float16 = false;
template <typename T> constexpr bool cupyops_16_bytes = sizeof(T) == 16 && alignof(T) == 16 && __is_trivially_copyable(T);
#define CUPYOPS_ATOMIC_TYPES(NAME, TYPES, SCOPED, ADVICE)                                                        \
    template <typename T> constexpr bool cupyops_has_##NAME = TYPES;                                             \
    template <typename T> constexpr bool cupyops_has_##NAME##_block = SCOPED;                                    \
    template <typename T> constexpr bool cupyops_has_##NAME##_system = SCOPED;                                   \
    template <typename T, bool HAS> constexpr void cupyops_ask_##NAME() { static_assert(HAS, ADVICE); }
#define CUPYOPS_CAST "; cast the address of a 64-bit integer to unsigned long long*"
typedef unsigned short cupyops_ushort;
#define CUPYOPS_ADDED cupyops_among<T, int, unsigned, cupyops_ulonglong, float, double, float2, float4>
CUPYOPS_ATOMIC_TYPES(atomicAdd, (CUPYOPS_ADDED || cupyops_float16<T>), (CUPYOPS_ADDED),
    "CUDA has no atomicAdd of signed 64-bit integers, nor of this type: it has int, unsigned, unsigned long long, float, double, float2, "
    "float4 and, without _block and _system, 16-bit floats and their pairs" CUPYOPS_CAST)
#define CUPYOPS_EXCHANGED (cupyops_among<T, int, unsigned, cupyops_ulonglong, float> || cupyops_16_bytes<T>)
CUPYOPS_ATOMIC_TYPES(atomicExch, CUPYOPS_EXCHANGED, CUPYOPS_EXCHANGED,
    "CUDA has no atomicExch of this type: it has int, unsigned, unsigned long long, float and 16 aligned bytes" CUPYOPS_CAST)
#define CUPYOPS_COMPARED (cupyops_among<T, int, unsigned, cupyops_ulonglong> || cupyops_16_bytes<T>)
CUPYOPS_ATOMIC_TYPES(atomicCAS, (CUPYOPS_COMPARED || cupyops_among<T, cupyops_ushort>), CUPYOPS_COMPARED,
    "CUDA has no atomicCAS of this type: it has int, unsigned, unsigned long long, 16 aligned bytes and, without _block and _system, "
    "unsigned short" CUPYOPS_CAST)
#define CUPYOPS_OF(NAME, WORDS, ...) \
    CUPYOPS_ATOMIC_TYPES(NAME, (cupyops_among<T, __VA_ARGS__>), (cupyops_among<T, __VA_ARGS__>), "CUDA has " #NAME " of " WORDS " alone")
#define CUPYOPS_OF_INTEGERS(NAME) \
    CUPYOPS_OF(NAME, "int, unsigned, long long and unsigned long long", int, unsigned, cupyops_longlong, cupyops_ulonglong)
CUPYOPS_OF(atomicSub, "int and unsigned", int, unsigned)
CUPYOPS_OF(atomicInc, "unsigned", unsigned)
CUPYOPS_OF(atomicDec, "unsigned", unsigned)
CUPYOPS_OF_INTEGERS(atomicMin)
CUPYOPS_OF_INTEGERS(atomicMax)
CUPYOPS_OF_INTEGERS(atomicAnd)
CUPYOPS_OF_INTEGERS(atomicOr)
CUPYOPS_OF_INTEGERS(atomicXor)
#undef CUPYOPS_OF_INTEGERS
#undef CUPYOPS_OF
#undef CUPYOPS_COMPARED
#undef CUPYOPS_EXCHANGED
#undef CUPYOPS_ADDED
#undef CUPYOPS_CAST
#undef CUPYOPS_ATOMIC_TYPES

// Replaces `old` by the expression NEXT of `old` and `value`. `value` converts to the memory's type, as in CUDA's
// overloads.
#define CUPYOPS_ATOMIC(NAME, NEXT)                                                                \
    template <typename T, bool ANY = false> CUPYOPS_UNCHECKED T NAME(T* p, typename CupyopsSame<T>::type value) { \
        cupyops_ask_##NAME<T, ANY || cupyops_has_##NAME<T>>();                                    \
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
    template <typename T> inline T NAME##_block(T* p, typename CupyopsSame<T>::type value) {                     \
        cupyops_ask_##NAME<T, cupyops_has_##NAME##_block<T>>();                                   \
        return NAME<T, true>(p, value);                                                           \
    } \
    template <typename T> inline T NAME##_system(T* p, typename CupyopsSame<T>::type value) {                     \
        cupyops_ask_##NAME<T, cupyops_has_##NAME##_system<T>>();                                   \
        return NAME<T, true>(p, value);                                                           \
    }
template <typename T> inline T cupyops_sum(T a, T b) {
    typedef typename CupyopsWord<T>::type word;
    return T(word(a) + word(b));
}
inline float2 cupyops_sum(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
inline float4 cupyops_sum(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
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
    cupyops_ask_atomicCAS<T, ANY || cupyops_has_atomicCAS<T>>();
    cupyops_atomic(p, sizeof(T));
    T old;
    __builtin_memcpy(static_cast<void*>(&old), cupyops_at(p), sizeof(T));
    if (__builtin_memcmp(&old, &compare, sizeof(T))) return old;  // as a GPU does, by the bits
    __builtin_memcpy(cupyops_at(p), &value, sizeof(T));
    if (__builtin_memcmp(&old, &value, sizeof(T))) cupyops_changed();
    return old;
}
template <typename T> inline T atomicCAS_block(T* p, typename CupyopsSame<T>::type c, typename CupyopsSame<T>::type v) {
    cupyops_ask_atomicCAS<T, cupyops_has_atomicCAS_block<T>>();
    return atomicCAS<T, true>(p, c, v);
}
template <typename T> inline T atomicCAS_system(T* p, typename CupyopsSame<T>::type c, typename CupyopsSame<T>::type v) {
    cupyops_ask_atomicCAS<T, cupyops_has_atomicCAS_system<T>>();
    return atomicCAS<T, true>(p, c, v);
}

// memcpy and memset with access checks; the compiler would call the C library's functions, which have no checks.
CUPYOPS_UNCHECKED void* cupyops_memcpy(void* to, const void* from, size_t bytes) {
    if (bytes) cupyops_touch(from, bytes, 0), cupyops_touch(to, bytes, 1);
    return __builtin_memcpy(to, from, bytes);
}
CUPYOPS_UNCHECKED void* cupyops_memset(void* to, int value, size_t bytes) {
    if (bytes) cupyops_touch(to, bytes, 1);
    return __builtin_memset(to, value, bytes);
}
