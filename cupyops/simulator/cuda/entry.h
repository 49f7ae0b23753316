// From the table of arguments, as the driver is given it, to a call of the kernel.
#pragma once

template <int... I> struct CupyopsNumbers {};
template <int N, int... I> struct CupyopsCount : CupyopsCount<N - 1, N - 1, I...> {};
template <int... I> struct CupyopsCount<0, I...> { typedef CupyopsNumbers<I...> type; };

// The table knows no alignment beyond that of numbers.
template <typename A> CUPYOPS_UNCHECKED A cupyops_argument(const void* p) {
    alignas(A) char bytes[sizeof(A)];
    __builtin_memcpy(bytes, p, sizeof(A));
    return *reinterpret_cast<A*>(bytes);
}
template <typename... A, int... I> CUPYOPS_UNCHECKED void cupyops_apply(void (*kernel)(A...), void** arguments, CupyopsNumbers<I...>) {
    kernel(cupyops_argument<A>(arguments[I])...);
}
template <typename... A> CUPYOPS_UNCHECKED void cupyops_call(void (*kernel)(A...), void** arguments) {
    cupyops_apply(kernel, arguments, typename CupyopsCount<sizeof...(A)>::type());
}
template <typename F> struct CupyopsParameters;
template <typename... A> struct CupyopsParameters<void(A...)> {
    static constexpr unsigned count = sizeof...(A), bytes[] = {unsigned(sizeof(A))..., 0};
};
