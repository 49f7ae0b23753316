// Replaces CUDA's mma.h: matrix fragments of a warp. A lane has the elements of a matrix in row-major order, `share`
// elements each; on a GPU the order is not specified. The number of elements of x[] is the GPU's: some fragments have
// copies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../cuda/copies.h"
#include "../cuda/matrix.h"

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

namespace details {

// The rules by which the elements of a type are stored, multiplied and summed.
template <typename T> struct Element;
template <> struct Element<__half> {
    typedef __half type;
    static float widen(__half x) { return __half2float(x); }
    static __half narrow(float x) { return __float2half_rn(x); }
};
template <> struct Element<__nv_bfloat16> {
    typedef __nv_bfloat16 type;
    static float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
};
template <> struct Element<precision::tf32> {
    typedef float type;
    static float widen(float x) { return cupyops_ptx::tf32_format::widen(cupyops_bits<unsigned>(x)); }
};
template <> struct Element<float> {
    typedef float type;
    static float widen(float x) { return x; }
    static float narrow(float x) { return x; }
};
template <> struct Element<double> {
    typedef double type;
    static double widen(double x) { return x; }
    static double narrow(double x) { return x; }
};
template <> struct Element<signed char> {
    typedef signed char type;
    static int widen(signed char x) { return x; }
};
template <> struct Element<unsigned char> {
    typedef unsigned char type;
    static int widen(unsigned char x) { return x; }
};
template <> struct Element<int> {
    typedef int type;
    static long long widen(int x) { return x; }
    static int narrow(long long x) { return int(unsigned(x)); }
};

template <typename Use> constexpr int rows(int m, int k) { return std::is_same<Use, matrix_b>::value ? k : m; }
template <typename Use> constexpr int columns(int n, int k) { return std::is_same<Use, matrix_a>::value ? k : n; }

// The shapes that an element type has.
template <typename Use, int M, int N, int K, typename T> constexpr bool shape() {
    constexpr bool usual = (M == 16 && N == 16 && K == 16) || (M == 32 && N == 8 && K == 16) || (M == 8 && N == 32 && K == 16);
    constexpr bool sum = std::is_same<Use, accumulator>::value;
    if (std::is_same<T, double>::value) return M == 8 && N == 8 && K == 4;
    if (std::is_same<T, precision::tf32>::value) return !sum && M == 16 && N == 16 && K == 8;
    if (std::is_same<T, float>::value) return sum && (usual || (M == 16 && N == 16 && K == 8));
    if (std::is_same<T, int>::value) return sum && usual;
    return usual && (!sum || std::is_same<T, __half>::value);
}

}  // namespace details

template <typename Use, int M, int N, int K, typename T, typename Layout = void> class fragment {
    static_assert(details::shape<Use, M, N, K, T>(), "the simulator covers no fragment of this shape and element type");
    static_assert(std::is_same<Use, accumulator>::value == std::is_same<Layout, void>::value, "matrix_a and matrix_b have a layout, an accumulator has none");

   public:
    typedef typename details::Element<T>::type element_type;
    typedef element_type storage_element_type;
    static constexpr int cupyops_rows = details::rows<Use>(M, K), cupyops_columns = details::columns<Use>(N, K);
    static constexpr int share = cupyops_rows * cupyops_columns / 32;
    static constexpr int num_elements = std::is_same<T, __half>::value && !std::is_same<Use, accumulator>::value ? 16 : share;
    static constexpr int num_storage_elements = num_elements;
    element_type x[num_elements];
};

namespace details {

CUPYOPS_UNCHECKED void meet() { cupyops_warp(CUPYOPS_MATRIX, ~0u, 0, 0, 32, nullptr); }
template <typename T> inline void check(const T* p, unsigned ldm) {
#ifdef CUPYOPS_CHECKED  // the arrays are then copies whose memory begins where a GPU's allocations may
    if (reinterpret_cast<uintptr_t>(p) % 32) cupyops_misuse("wmma: the pointer to a matrix is not a multiple of 32 bytes");
#endif
    if (ldm * sizeof(T) % 16) cupyops_misuse("wmma: ldm elements are not a multiple of 16 bytes");
}
// The offset of an element of a lane in memory.
template <typename F> inline size_t place(int i, unsigned ldm, bool by_columns) {
    const unsigned number = cupyops_lane() * F::share + unsigned(i % F::share), r = number / F::cupyops_columns, c = number % F::cupyops_columns;
    return by_columns ? size_t(c) * ldm + r : size_t(r) * ldm + c;
}

}  // namespace details

template <typename Use, int M, int N, int K, typename T, typename Layout, typename V>
inline void fill_fragment(fragment<Use, M, N, K, T, Layout>& f, const V& value) {
    for (auto& x : f.x) x = typename details::Element<T>::type(value);
}

template <typename Use, int M, int N, int K, typename T, typename Layout>
CUPYOPS_INTRINSIC void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, const typename details::Element<T>::type* from, unsigned ldm) {
    details::check(from, ldm);
    details::meet();
    for (int i = 0; i < f.num_elements; ++i)
        f.x[i] = from[details::place<fragment<Use, M, N, K, T, Layout>>(i, ldm, std::is_same<Layout, col_major>::value)];
}
template <int M, int N, int K, typename T>
CUPYOPS_INTRINSIC void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const T* from, unsigned ldm, layout_t layout) {
    details::check(from, ldm);
    details::meet();
    for (int i = 0; i < f.num_elements; ++i) f.x[i] = from[details::place<fragment<accumulator, M, N, K, T>>(i, ldm, layout == mem_col_major)];
}
template <int M, int N, int K, typename T>
CUPYOPS_INTRINSIC void store_matrix_sync(T* to, const fragment<accumulator, M, N, K, T>& f, unsigned ldm, layout_t layout) {
    details::check(to, ldm);
    details::meet();
    for (int i = 0; i < f.num_elements; ++i) to[details::place<fragment<accumulator, M, N, K, T>>(i, ldm, layout == mem_col_major)] = f.x[i];
}

// d = a b + c. The sum of a float16 accumulator is rounded once.
template <int M, int N, int K, typename A, typename LA, typename LB, typename D, typename C>
CUPYOPS_UNCHECKED void mma_sync(
    fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, A, LA>& a, const fragment<matrix_b, M, N, K, A, LB>& b,
    const fragment<accumulator, M, N, K, C>& c, bool satf = false) {
    typedef fragment<matrix_a, M, N, K, A, LA> FA;
    typedef fragment<matrix_b, M, N, K, A, LB> FB;
    typedef fragment<accumulator, M, N, K, D> FD;
    struct Both {
        FA a;
        FB b;
    } all[32];
    cupyops_ptx::gather(Both{a, b}, all);
    D sums[FD::share];
    for (int i = 0; i < FD::share; ++i) {
        const int number = int(cupyops_lane()) * FD::share + i, row = number / N, column = number % N;
        auto sum = details::Element<C>::widen(c.x[i]);
        for (int k = 0; k < K; ++k) {
            const int left = row * K + k, right = k * N + column;
            const auto x = details::Element<A>::widen(all[left / FA::share].a.x[left % FA::share]);
            const auto y = details::Element<A>::widen(all[right / FB::share].b.x[right % FB::share]);
            sum += x * y;
        }
        if constexpr (std::is_same<D, int>::value)
            if (satf) sum = sum > 0x7FFFFFFFll ? 0x7FFFFFFFll : sum < -0x80000000ll ? -0x80000000ll : sum;
        sums[i] = details::Element<D>::narrow(sum);
    }
    for (int i = 0; i < FD::share; ++i) d.x[i] = sums[i];
}

// Rounds to the nearest number of tf32, ties away from zero.
inline float __float_to_tf32(float x) {
    const unsigned bits = cupyops_bits<unsigned>(x);
    return (bits & 0x7F800000) == 0x7F800000 ? x : cupyops_bits<float>((bits + 0x1000) & ~0x1FFFu);
}

}  // namespace wmma
}  // namespace nvcuda
