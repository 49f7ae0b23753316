// add2: out = a + alpha·b, with broadcasting and mixed dtypes. The result equals torch.add bit by bit.
//
//   out[i] = a[i] + alpha·b[i]
//
//   a: a_t (n)      b: b_t (n)      out: scalar_t (n), the promoted dtype      alpha: acc_t
//   Both operands are rounded to scalar_t. Then the sum is made in acc_t:
//   floating: one fused multiply-add, rounded once to acc_t and once to scalar_t
//   integers: modulo 2^bits, as C's unsigned arithmetic
//
//   macro          values              set by
//   BLOCK_THREADS  256; scalar: 128    Elementwise: threads of a block
//   VECTORS        1                   Elementwise: accesses of a thread
//   VALUE_FIRST    0, 1                add2_scalar: out = value + alpha·a
//   NDIM           1, 2, ...           add2_strided: dimensions of the loop
//   VECTOR_WIDTH   1 to 16             add2_strided: elements of a thread, which divide a row
//   WIDE           0, 1                add2_strided: counts and strides take 64 bits
//   NAIVE          1                   tests: the naive kernel alone
//
// Three kernels: operands of one layout (add2), one operand a number of the host (add2_scalar), anything else
// (add2_strided).
#include "scalar.cuh"
#include "elementwise.cuh"
#include "strided.cuh"

template <typename Acc> __device__ __forceinline__ scalar_t scaled_sum(Acc a, Acc b, Acc alpha) {
    if constexpr (Scalar<Acc>::is_integer) {
        typedef unsigned long long word;  // signed overflow is undefined in C++; unsigned wraps, and the low bits are the same
        return static_cast<scalar_t>(static_cast<word>(a) + static_cast<word>(alpha) * static_cast<word>(b));
    } else {
        return convert<scalar_t>(fma(b, alpha, a));
    }
}

// Converts an operand for the sum: rounds the operand to the result's dtype, then widens it to acc_t.
template <typename T> __device__ __forceinline__ acc_t operand(T v) { return convert<acc_t>(convert<scalar_t>(v)); }
__device__ __forceinline__ acc_t operand(scalar_t v) { return convert<acc_t>(v); }

#ifdef NAIVE

extern "C" __global__ void add2_naive(
    const a_t* __restrict__ a,   // (n)
    const b_t* __restrict__ b,   // (n)
    scalar_t* __restrict__ out,  // (n)
    acc_t alpha, long long n) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[i] = scaled_sum(operand(a[i]), operand(b[i]), alpha);
}

#else

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) add2(
    const a_t* __restrict__ a,   // (n)
    const b_t* __restrict__ b,   // (n)
    scalar_t* __restrict__ out,  // (n)
    acc_t alpha, long long n) {
    map(n, [alpha](a_t a, b_t b) { return scaled_sum(operand(a), operand(b), alpha); }, out, a, b);
}

// out = a + alpha·value, or value + alpha·a with VALUE_FIRST. value is not rounded to scalar_t, since PyTorch does not round
// a host number either.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) add2_scalar(
    const a_t* __restrict__ a,   // (n)
    scalar_t* __restrict__ out,  // (n)
    acc_t value, acc_t alpha, long long n) {
    map(
        n,
        [value, alpha](a_t a) {
            return VALUE_FIRST ? scaled_sum(value, operand(a), alpha) : scaled_sum(operand(a), value, alpha);
        },
        out, a);
}

// A thread makes VECTOR_WIDTH elements of one innermost row: one computation of indices serves all of them.
extern "C" __global__ void __launch_bounds__(128) add2_strided(
    const a_t* __restrict__ a,   // a view: element (.., i1, i0) lies at a[i0·a_stride[0] + i1·a_stride[1] + ..]
    const b_t* __restrict__ b,   // a view
    scalar_t* __restrict__ out,  // (groups, VECTOR_WIDTH)
    acc_t alpha, long long groups,
    Int64s<NDIM> size,      // of out, innermost dimension first, which counts groups of VECTOR_WIDTH elements
    Int64s<NDIM> divider,   // for each size
    Int64s<NDIM> a_stride,  // in elements; 0 where a is broadcast
    Int64s<NDIM> b_stride) {
    const long long group = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (group >= groups) return;
    const Int64s<NDIM> strides[] = {a_stride, b_stride};
    long long at[2];
    places_of<VECTOR_WIDTH, WIDE>(group, size, divider, strides, at);
    const Vector<a_t, VECTOR_WIDTH> av = load_vector<VECTOR_WIDTH>(a + at[0], a_stride[0]);
    const Vector<b_t, VECTOR_WIDTH> bv = load_vector<VECTOR_WIDTH>(b + at[1], b_stride[0]);
    Vector<scalar_t, VECTOR_WIDTH> result;
#pragma unroll
    for (int k = 0; k < VECTOR_WIDTH; ++k)
        result.element[k] = scaled_sum(operand(av.element[k]), operand(bv.element[k]), alpha);
    reinterpret_cast<Vector<scalar_t, VECTOR_WIDTH>*>(out)[group] = result;
}

#endif
