// Calls the kernel with the arguments of a driver-style array of argument pointers.
#pragma once
#include "../module/module.h"

// The functions from a pointer of arguments to the call of a kernel are inlined into one: most of a short kernel's compilation would
// be theirs.
#if defined(__clang__)
#define CUPYOPS_ENTRY static __attribute__((unused, disable_sanitizer_instrumentation, no_sanitize("undefined")))
#else
#define CUPYOPS_ENTRY static __attribute__((unused, no_sanitize("thread", "undefined")))
#endif
#define CUPYOPS_OF_ENTRY CUPYOPS_ENTRY __attribute__((always_inline)) inline

template <int... I> struct CupyopsNumbers {};
template <int N, int... I> struct CupyopsCount : CupyopsCount<N - 1, N - 1, I...> {};
template <int... I> struct CupyopsCount<0, I...> { typedef CupyopsNumbers<I...> type; };

// Copies the argument first: the argument buffer has the alignment of numbers, and a struct may need a larger one.
template <typename A> struct CupyopsArgument {
    typedef A passed;
    CUPYOPS_OF_ENTRY A of(const void* p) {
        alignas(A) char bytes[sizeof(A)];
        __builtin_memcpy(bytes, p, sizeof(A));
        return *reinterpret_cast<A*>(bytes);
    }
};
// A reference is passed as the address of its object.
template <typename A> struct CupyopsArgument<A&> {
    typedef A* passed;
    CUPYOPS_OF_ENTRY A& of(const void* p) { return *CupyopsArgument<A*>::of(p); }
};
template <typename... A, int... I> CUPYOPS_OF_ENTRY void cupyops_apply(void (*kernel)(A...), void** arguments, CupyopsNumbers<I...>) {
    kernel(CupyopsArgument<A>::of(arguments[I])...);
    CUPYOPS_ENDED();
}
template <typename... A> CUPYOPS_OF_ENTRY void cupyops_call(void (*kernel)(A...), void** arguments) {
    cupyops_apply(kernel, arguments, typename CupyopsCount<sizeof...(A)>::type());
}
template <typename F> struct CupyopsParameters;
template <typename... A> struct CupyopsParameters<void(A...)> {
    static constexpr unsigned count = sizeof...(A), bytes[] = {unsigned(sizeof(typename CupyopsArgument<A>::passed))..., 0};
};
// The attributes of a kernel: a sum, which attributes.h writes.
struct CupyopsCluster {
    unsigned x, y, z;
    constexpr CupyopsCluster(unsigned cx = 1, unsigned cy = 1, unsigned cz = 1) : x(cx), y(cy), z(cz) {}
};
struct CupyopsBounds {
    unsigned threads;
    constexpr CupyopsBounds(unsigned most, unsigned = 0, unsigned = 0) : threads(most) {}
};
struct CupyopsRegisters {
    constexpr CupyopsRegisters(unsigned) {}
};
struct CupyopsAttributes {
    unsigned x = 1, y = 1, z = 1, threads = 0;
    constexpr CupyopsAttributes operator+(CupyopsCluster c) const { return {c.x, c.y, c.z, threads}; }
    constexpr CupyopsAttributes operator+(CupyopsBounds b) const { return {x, y, z, b.threads}; }
    constexpr CupyopsAttributes operator+(CupyopsRegisters) const { return *this; }
    constexpr CupyopsAttributes operator+(const char*) const { return *this; }  // of `extern "C"`
};
template <typename P> constexpr CupyopsEntry cupyops_kernel(void (*entry)(void**), P, CupyopsAttributes given) {
    return {entry, P::bytes, P::count, {given.x, given.y, given.z}, given.threads};
}
