"""Thrust's random numbers as one thread draws them, ``thrust::default_random_engine rng(seed)``, with Thrust's values."""

from collections.abc import Collection

__all__ = ["RANDOM", "random_lines"]

# x = (a x + c) mod m. Two steps are a step of the same form, so a thread skips z steps by log2(z) of them.
_ENGINE = """template <class T, T a, T c, T m> class linear_congruential_engine {
    T x;
    static __host__ __device__ constexpr T next(unsigned long long factor, unsigned long long v, unsigned long long add) {
        const unsigned long long sum = factor * v + add;
        return static_cast<T>(m ? sum % m : sum);
    }
public:
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
};"""
_UNIFORM = """template <class T = {default}> class uniform_{name}_distribution {{
    T low, high;
public:
    using result_type = T;
    __host__ __device__ explicit uniform_{name}_distribution(T a = 0, T b = {high}) : low(a), high(b) {{}}
    template <class Engine> __host__ __device__ T operator()(Engine& engine) {{
        {real} v = static_cast<{real}>(engine() - Engine::min);
        v /= {real}(1) + static_cast<{real}>(Engine::max - Engine::min);
        return static_cast<T>(v * ({range}) + low);
    }}
    __host__ __device__ void reset() {{}}
    __host__ __device__ T a() const {{ return low; }}
    __host__ __device__ T b() const {{ return high; }}
}};"""
_OF_ENGINE = "using {} = linear_congruential_engine<unsigned, {}, 0, 2147483647>;"
RANDOM = {
    "linear_congruential_engine": _ENGINE,
    "minstd_rand0": _OF_ENGINE.format("minstd_rand0", 16807),
    "minstd_rand": _OF_ENGINE.format("minstd_rand", 48271),
    "default_random_engine": _OF_ENGINE.format("default_random_engine", 48271),
    "uniform_real_distribution": _UNIFORM.format(
        name="real", default="double", real="T", high="1", range="high - low"
    ),
    "uniform_int_distribution": _UNIFORM.format(
        name="int", default="int", real="double", high="T(-1) > T(0) ? T(-1) : T(~0ull >> (65 - 8 * sizeof(T)))", range="double(high) + 1 - low"
    ),
}  # fmt: skip


def random_lines(used: Collection[str]) -> list[str]:
    """Returns the lines in ``namespace thrust`` that define the random numbers of some names."""
    named = [name for name in RANDOM if name in used]
    engines = [name for name in named if "engine" in name or "minstd" in name]
    first = ["linear_congruential_engine"] if engines and "linear_congruential_engine" not in named else []
    return [RANDOM[name] for name in (*first, *named)]
