// add2: out = a + alpha·b, with broadcasting and mixed dtypes, bit by bit what torch.add gives.
//
//   a: a_t, b: b_t, out: scalar_t      both operands are converted to scalar_t first, then the sum is made in acc_t:
//   floating: one fused multiply-add, rounded once to acc_t and once to scalar_t; integers: modulo 2^bits, as C's
//   unsigned arithmetic
//
// Three kernels: operands of one layout (add2), one operand a number of the host (add2_scalar), anything else
// (add2_strided).
#include "scalar.cuh"
#include "elementwise.cuh"

template <typename Acc> __device__ __forceinline__ scalar_t scaled_sum(Acc a, Acc b, Acc alpha) {
    if constexpr (Scalar<Acc>::is_integer) {
        typedef unsigned long long word;  // signed overflow is undefined in C++; unsigned wraps, and the low bits are the same
        return static_cast<scalar_t>(static_cast<word>(a) + static_cast<word>(alpha) * static_cast<word>(b));
    } else {
        return convert<scalar_t>(fma(b, alpha, a));
    }
}

// An operand as the sum wants it: rounded to the result's dtype, then widened.
template <typename T> __device__ __forceinline__ acc_t operand(T v) { return convert<acc_t>(convert<scalar_t>(v)); }
__device__ __forceinline__ acc_t operand(scalar_t v) { return convert<acc_t>(v); }

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) add2(
    const a_t* __restrict__ a,     // (n)
    const b_t* __restrict__ b,     // (n)
    scalar_t* __restrict__ out,    // (n)
    acc_t alpha,
    long long n) {
    map(n, [alpha](a_t a, b_t b) { return scaled_sum(operand(a), operand(b), alpha); }, out, a, b);
}

// out = a + alpha·value, or value + alpha·a where VALUE_FIRST. value is not rounded to scalar_t: PyTorch does not round
// it either.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) add2_scalar(
    const a_t* __restrict__ a,     // (n)
    scalar_t* __restrict__ out,    // (n)
    acc_t value,
    acc_t alpha,
    long long n) {
    map(n,
        [value, alpha](a_t a) {
            return VALUE_FIRST ? scaled_sum(value, operand(a), alpha) : scaled_sum(operand(a), value, alpha);
        },
        out, a);
}

// N consecutive elements of an operand whose innermost stride is 1 (one access where aligned), 0 (one element,
// repeated) or other.
template <int N, typename T> __device__ __forceinline__ Lanes<T, N> load_lanes(const T* p, long long stride) {
    if (stride == 1 && aligned<N>(p)) return *reinterpret_cast<const Lanes<T, N>*>(p);
    Lanes<T, N> lanes;
    if (stride == 0) {
        const T v = *p;
#pragma unroll
        for (int k = 0; k < N; ++k) lanes.lane[k] = v;
    } else {
#pragma unroll
        for (int k = 0; k < N; ++k) lanes.lane[k] = p[k * stride];
    }
    return lanes;
}

template <bool CONDITION, typename Yes, typename No> struct Select { typedef Yes type; };
template <typename Yes, typename No> struct Select<false, Yes, No> { typedef No type; };

// i / size for i < 2^31. A division takes the hardware tens of instructions; by a number known before the launch it is
// a multiplication and a shift (Granlund and Montgomery, 1994). divider = multiplier + 2^32·shift, from Python.
__device__ __forceinline__ unsigned divide(unsigned i, long long divider) {
    return (__umulhi(i, static_cast<unsigned>(divider)) + i) >> static_cast<unsigned>(divider >> 32);
}

// Each thread makes LANES elements of one innermost row, so one index computation serves them all. Counts and strides are
// 32 bits wide unless WIDE: 64-bit products take several instructions each.
extern "C" __global__ void __launch_bounds__(128) add2_strided(
    const a_t* __restrict__ a,     // a view: element (.., i1, i0) lies at a[i0·a_stride[0] + i1·a_stride[1] + ..]
    const b_t* __restrict__ b,     // a view
    scalar_t* __restrict__ out,    // (groups, LANES)
    acc_t alpha,
    long long groups,
    Int64s<NDIM> size,             // of out, innermost dimension first; there in groups of LANES
    Int64s<NDIM> divider,          // for each size
    Int64s<NDIM> a_stride,         // in elements; 0 where a is broadcast
    Int64s<NDIM> b_stride) {
    typedef Select<WIDE, long long, int>::type index_t;
    const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (thread >= groups) return;
    index_t rest = static_cast<index_t>(thread);
    long long at_a = 0, at_b = 0;
#pragma unroll
    for (int d = 0; d < NDIM; ++d) {
        index_t next = 0;
        if (d < NDIM - 1) next = WIDE ? rest / static_cast<index_t>(size[d]) : divide(rest, divider[d]);
        const index_t i = (rest - next * static_cast<index_t>(size[d])) * (d == 0 ? LANES : 1);
        at_a += static_cast<long long>(i) * static_cast<index_t>(a_stride[d]);
        at_b += static_cast<long long>(i) * static_cast<index_t>(b_stride[d]);
        rest = next;
    }
    const Lanes<a_t, LANES> av = load_lanes<LANES>(a + at_a, a_stride[0]);
    const Lanes<b_t, LANES> bv = load_lanes<LANES>(b + at_b, b_stride[0]);
    Lanes<scalar_t, LANES> result;
#pragma unroll
    for (int k = 0; k < LANES; ++k) result.lane[k] = scaled_sum(operand(av.lane[k]), operand(bv.lane[k]), alpha);
    reinterpret_cast<Lanes<scalar_t, LANES>*>(out)[thread] = result;
}
