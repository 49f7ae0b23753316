// Names of Thrust that kernels have: those of CUDA's C++ library, by its headers, and functions, each below a comment with its names. A
// text gets those that it uses.

// maximum, minimum
#include <cuda/functional>

// abs, arg, complex, conj, cos, cosh, exp, log, norm, polar, pow, sin, sinh, sqrt, tan, tanh
#include <cuda/std/complex>

// bit_and, bit_not, bit_or, bit_xor, divides, equal_to, greater, greater_equal, less, less_equal, logical_and, logical_not,
// logical_or, minus, modulus, multiplies, negate, not_equal_to, plus
#include <cuda/std/functional>

// get, ignore, make_tuple, tie, tuple, tuple_element, tuple_size
#include <cuda/std/tuple>

// make_pair, pair, swap
#include <cuda/std/utility>

// unary_function
template <class A, class R> struct unary_function {
    typedef A argument_type;
    typedef R result_type;
};

// binary_function
template <class A, class B, class R> struct binary_function {
    typedef A first_argument_type;
    typedef B second_argument_type;
    typedef R result_type;
};

// max
template <class T> __host__ __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T, class F> __host__ __device__ constexpr const T& max(const T& a, const T& b, F less) {
    return less(a, b) ? b : a;
}

// min
template <class T> __host__ __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T, class F> __host__ __device__ constexpr const T& min(const T& a, const T& b, F less) {
    return less(b, a) ? b : a;
}

// identity
template <class T = void> struct identity {
    __host__ __device__ constexpr const T& operator()(const T& x) const { return x; }
};

// sequential_policy, seq, device
struct sequential_policy {
    typedef int sequential;
};
constexpr sequential_policy seq{}, device{};
#define CUPYOPS_WITH_POLICY(name) \
    template <class P, class... A, typename P::sequential = 0> __host__ __device__ constexpr auto name(const P&, A... a) { \
        return name(a...); \
    }

// copy
template <class I, class O> __host__ __device__ constexpr O copy(I first, I last, O out) {
    for (; first != last; ++first, ++out) *out = *first;
    return out;
}
CUPYOPS_WITH_POLICY(copy)

// count
template <class I, class T> __host__ __device__ constexpr long long count(I first, I last, const T& value) {
    long long found = 0;
    for (; first != last; ++first) found += *first == value;
    return found;
}
CUPYOPS_WITH_POLICY(count)

// exclusive_scan
template <class I, class O, class T, class F> __host__ __device__ constexpr O exclusive_scan(
    I first, I last, O out, T sum, F add) {
    for (; first != last; ++first, ++out) {
        const T next = add(sum, *first);
        *out = sum;
        sum = next;
    }
    return out;
}
template <class I, class O, class T> __host__ __device__ constexpr O exclusive_scan(I first, I last, O out, T sum) {
    return exclusive_scan(first, last, out, sum, [](const T& a, const T& b) { return T(a + b); });
}
template <class I, class O> __host__ __device__ constexpr O exclusive_scan(I first, I last, O out) {
    return first == last ? out : exclusive_scan(first, last, out, decltype (*first - *first)(0));
}
CUPYOPS_WITH_POLICY(exclusive_scan)

// fill
template <class I, class T> __host__ __device__ constexpr void fill(I first, I last, const T& value) {
    for (; first != last; ++first) *first = value;
}
CUPYOPS_WITH_POLICY(fill)

// find
template <class I, class T> __host__ __device__ constexpr I find(I first, I last, const T& value) {
    while (first != last && !(*first == value)) ++first;
    return first;
}
CUPYOPS_WITH_POLICY(find)

// for_each
template <class I, class F> __host__ __device__ constexpr I for_each(I first, I last, F f) {
    for (; first != last; ++first) f(*first);
    return first;
}
CUPYOPS_WITH_POLICY(for_each)

// inclusive_scan
template <class I, class O, class F> __host__ __device__ constexpr O inclusive_scan(I first, I last, O out, F add) {
    if (first == last) return out;
    auto sum = *first;
    *out = sum;
    for (++first, ++out; first != last; ++first, ++out) *out = sum = add(sum, *first);
    return out;
}
template <class I, class O> __host__ __device__ constexpr O inclusive_scan(I first, I last, O out) {
    return inclusive_scan(first, last, out, [](const auto& a, const auto& b) { return a + b; });
}
CUPYOPS_WITH_POLICY(inclusive_scan)

// lower_bound
template <class I, class T, class F> __host__ __device__ constexpr I lower_bound(I first, I last, const T& value, F less) {
    auto left = last - first;
    while (left > 0) {
        const auto half = left / 2;
        if (less(first[half], value)) first += half + 1, left -= half + 1;
        else left = half;
    }
    return first;
}
template <class I, class T> __host__ __device__ constexpr I lower_bound(I first, I last, const T& value) {
    return lower_bound(first, last, value, [](const auto& a, const auto& b) { return a < b; });
}
CUPYOPS_WITH_POLICY(lower_bound)

// max_element
template <class I, class F> __host__ __device__ constexpr I max_element(I first, I last, F less) {
    I found = first;
    for (; first != last; ++first)
        if (less(*found, *first)) found = first;
    return found;
}
template <class I> __host__ __device__ constexpr I max_element(I first, I last) {
    return max_element(first, last, [](const auto& a, const auto& b) { return a < b; });
}
CUPYOPS_WITH_POLICY(max_element)

// min_element
template <class I, class F> __host__ __device__ constexpr I min_element(I first, I last, F less) {
    I found = first;
    for (; first != last; ++first)
        if (less(*first, *found)) found = first;
    return found;
}
template <class I> __host__ __device__ constexpr I min_element(I first, I last) {
    return min_element(first, last, [](const auto& a, const auto& b) { return a < b; });
}
CUPYOPS_WITH_POLICY(min_element)

// reduce
template <class I, class T, class F> __host__ __device__ constexpr T reduce(I first, I last, T sum, F add) {
    for (; first != last; ++first) sum = add(sum, *first);
    return sum;
}
template <class I, class T> __host__ __device__ constexpr T reduce(I first, I last, T sum) {
    for (; first != last; ++first) sum = sum + *first;
    return sum;
}
template <class I> __host__ __device__ constexpr auto reduce(I first, I last) {
    auto sum = *first;
    sum = 0;
    return reduce(first, last, sum);
}
CUPYOPS_WITH_POLICY(reduce)

// reverse
template <class I> __host__ __device__ constexpr void reverse(I first, I last) {
    while (first != last && first != --last) {
        const auto value = *first;
        *first = *last;
        *last = value;
        ++first;
    }
}
CUPYOPS_WITH_POLICY(reverse)

// sequence
template <class I, class T> __host__ __device__ constexpr void sequence(I first, I last, T value) {
    for (; first != last; ++first) *first = value, value = value + 1;
}
template <class I> __host__ __device__ constexpr void sequence(I first, I last) { sequence(first, last, 0); }
CUPYOPS_WITH_POLICY(sequence)

// sort
template <class I, class F> __host__ __device__ constexpr void sort(I first, I last, F less) {
    for (I i = first; i != last; ++i) {
        const auto value = *i;
        I j = i;
        for (; j != first && less(value, *(j - 1)); --j) *j = *(j - 1);
        *j = value;
    }
}
template <class I> __host__ __device__ constexpr void sort(I first, I last) {
    sort(first, last, [](const auto& a, const auto& b) { return a < b; });
}
CUPYOPS_WITH_POLICY(sort)

// sort_by_key
template <class K, class V, class F> __host__ __device__ constexpr void sort_by_key(K first, K last, V values, F less) {
    for (auto i = last - last + 1; i < last - first; ++i) {
        const auto key = first[i];
        const auto value = values[i];
        auto j = i;
        for (; j > 0 && less(key, first[j - 1]); --j) first[j] = first[j - 1], values[j] = values[j - 1];
        first[j] = key, values[j] = value;
    }
}
template <class K, class V> __host__ __device__ constexpr void sort_by_key(K first, K last, V values) {
    sort_by_key(first, last, values, [](const auto& a, const auto& b) { return a < b; });
}
CUPYOPS_WITH_POLICY(sort_by_key)

// stable_sort
template <class I, class F> __host__ __device__ constexpr void stable_sort(I first, I last, F less) {
    for (I i = first; i != last; ++i) {
        const auto value = *i;
        I j = i;
        for (; j != first && less(value, *(j - 1)); --j) *j = *(j - 1);
        *j = value;
    }
}
template <class I> __host__ __device__ constexpr void stable_sort(I first, I last) {
    stable_sort(first, last, [](const auto& a, const auto& b) { return a < b; });
}
CUPYOPS_WITH_POLICY(stable_sort)

// transform
template <class I, class O, class F> __host__ __device__ constexpr O transform(I first, I last, O out, F f) {
    for (; first != last; ++first, ++out) *out = f(*first);
    return out;
}
template <class I, class J, class O, class F> __host__ __device__ constexpr O transform(I first, I last, J other, O out, F f) {
    for (; first != last; ++first, ++other, ++out) *out = f(*first, *other);
    return out;
}
CUPYOPS_WITH_POLICY(transform)

// upper_bound
template <class I, class T, class F> __host__ __device__ constexpr I upper_bound(I first, I last, const T& value, F less) {
    auto left = last - first;
    while (left > 0) {
        const auto half = left / 2;
        if (!less(value, first[half])) first += half + 1, left -= half + 1;
        else left = half;
    }
    return first;
}
template <class I, class T> __host__ __device__ constexpr I upper_bound(I first, I last, const T& value) {
    return upper_bound(first, last, value, [](const auto& a, const auto& b) { return a < b; });
}
CUPYOPS_WITH_POLICY(upper_bound)

// binary_search
template <class I, class T, class F> __host__ __device__ constexpr bool binary_search(I first, I last, const T& value, F less) {
    const I at = lower_bound(first, last, value, less);
    return at != last && !less(value, *at);
}
template <class I, class T> __host__ __device__ constexpr bool binary_search(I first, I last, const T& value) {
    return binary_search(first, last, value, [](const auto& a, const auto& b) { return a < b; });
}
CUPYOPS_WITH_POLICY(binary_search)

// linear_congruential_engine
template <class T, T a, T c, T m> struct linear_congruential_engine {
    T x;
    static __host__ __device__ constexpr T next(unsigned long long factor, unsigned long long v, unsigned long long add) {
        const unsigned long long sum = factor * v + add;
        return static_cast<T>(m ? sum % m : sum);
    }
    using result_type = T;
    static constexpr T multiplier = a, increment = c, modulus = m, min = c == 0 ? 1 : 0, max = m - 1, default_seed = 1;
    __host__ __device__ explicit linear_congruential_engine(T s = default_seed) { seed(s); }
    __host__ __device__ void seed(T s = default_seed) {
        x = next(1, s, 0);
        if (next(1, c, 0) == 0 && x == 0) x = 1;
    }
    __host__ __device__ T operator()() { return x = next(a, x, c); }
    __host__ __device__ void discard(unsigned long long z) {
        T factor = a, add = c;
        for (; z; z >>= 1) {
            if (z & 1) x = next(factor, x, add);
            add = next(factor, add, add);
            factor = next(factor, factor, 0);
        }
    }
};

// minstd_rand0
using minstd_rand0 = linear_congruential_engine<unsigned, 16807, 0, 2147483647>;

// minstd_rand
using minstd_rand = linear_congruential_engine<unsigned, 48271, 0, 2147483647>;

// default_random_engine
using default_random_engine = linear_congruential_engine<unsigned, 48271, 0, 2147483647>;

// uniform_real_distribution
template <class T = double> struct uniform_real_distribution {
    T low, high;
    using result_type = T;
    __host__ __device__ explicit uniform_real_distribution(T a = 0, T b = 1) : low(a), high(b) {}
    template <class Engine> __host__ __device__ T operator()(Engine& engine) {
        T v = static_cast<T>(engine() - Engine::min);
        v /= T(1) + static_cast<T>(Engine::max - Engine::min);
        return static_cast<T>(v * (high - low) + low);
    }
    __host__ __device__ void reset() {}
    __host__ __device__ T a() const { return low; }
    __host__ __device__ T b() const { return high; }
};

// uniform_int_distribution
template <class T = int> struct uniform_int_distribution {
    T low, high;
    using result_type = T;
    __host__
    __device__ explicit uniform_int_distribution(T a = 0, T b = T(-1) > T(0) ? T(-1) : T(~0ull >> (65 - 8 * sizeof(T))))
        : low(a), high(b) {}
    template <class Engine> __host__ __device__ T operator()(Engine& engine) {
        double v = static_cast<double>(engine() - Engine::min);
        v /= double(1) + static_cast<double>(Engine::max - Engine::min);
        return static_cast<T>(v * (double(high) + 1 - low) + low);
    }
    __host__ __device__ void reset() {}
    __host__ __device__ T a() const { return low; }
    __host__ __device__ T b() const { return high; }
};
