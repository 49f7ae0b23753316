// Calls the kernel with the arguments of a driver-style array of argument pointers.
#pragma once

template <int... I> struct CupyopsNumbers {};
template <int N, int... I> struct CupyopsCount : CupyopsCount<N - 1, N - 1, I...> {};
template <int... I> struct CupyopsCount<0, I...> { typedef CupyopsNumbers<I...> type; };

// Copies the argument first: the argument buffer has the alignment of numbers, and a struct may need a larger one.
template <typename A> struct CupyopsArgument {
    typedef A passed;
    CUPYOPS_UNCHECKED A of(const void* p) {
        alignas(A) char bytes[sizeof(A)];
        __builtin_memcpy(bytes, p, sizeof(A));
        return *reinterpret_cast<A*>(bytes);
    }
};
// A reference is passed as the address of its object.
template <typename A> struct CupyopsArgument<A&> {
    typedef A* passed;
    CUPYOPS_UNCHECKED A& of(const void* p) { return *CupyopsArgument<A*>::of(p); }
};
template <typename... A, int... I> CUPYOPS_UNCHECKED void cupyops_apply(void (*kernel)(A...), void** arguments, CupyopsNumbers<I...>) {
    kernel(CupyopsArgument<A>::of(arguments[I])...);
    CUPYOPS_ENDED();
}
template <typename... A> CUPYOPS_UNCHECKED void cupyops_call(void (*kernel)(A...), void** arguments) {
    cupyops_apply(kernel, arguments, typename CupyopsCount<sizeof...(A)>::type());
}
template <typename F> struct CupyopsParameters;
template <typename... A> struct CupyopsParameters<void(A...)> {
    static constexpr unsigned count = sizeof...(A), bytes[] = {unsigned(sizeof(typename CupyopsArgument<A>::passed))..., 0};
};
