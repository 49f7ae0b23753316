// Rotary position embedding (Su et al., "RoFormer", 2021): the pairs (u, v) of a row of x turn by the angles of cos and sin.
//
//   y_u = u·cos_u - v·sin_u      y_v = v·cos_v + u·sin_v      the other columns are copied
//   grad_u = g_u·cos_u + g_v·sin_v      grad_v = g_v·cos_v - g_u·sin_u      (BACKWARD)
//
//   x, y: scalar_t (..., D), views with consecutive columns      cos, sin: table_t (..., 2·half)      arithmetic in acc_t
//
// A pair is the columns (i, half + i), or (2i, 2i + 1) with INTERLEAVED. A thread has EACH pairs of HEADS rows that have
// one row of cos and sin: it loads cos and sin once, and all rows before it uses the first.
//
//   macro          values          set by
//   EACH           1, 2, 4, 8      the body: pairs, or copied columns, of a row that a thread has
//   HEADS          1, 2, 4         the body: rows of a thread
//   INTERLEAVED    0, 1            the body
//   BACKWARD       0, 1            the body
//   NDIM, WIDE                     the body: strided.cuh
#include "scalar.cuh"
#include "strided.cuh"

// The 2·EACH elements of a thread in a row: u and v in turn with INTERLEAVED, else all u and then all v.
template <typename T> struct Pairs {
    Vector<T, EACH> part[2];

    __device__ __forceinline__ T& at(int k, int v) {
        return INTERLEAVED ? part[(2 * k + v) / EACH].element[(2 * k + v) % EACH] : part[v].element[k];
    }
    __device__ __forceinline__ static long long place(long long pack, long long half, int i) {
        return INTERLEAVED ? (2 * pack + i) * EACH : i * half + pack * EACH;
    }
    __device__ __forceinline__ void load(const T* row, long long pack, long long half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) part[i] = load_vector<EACH>(row + place(pack, half, i), 1);
    }
    __device__ __forceinline__ void store(T* row, long long pack, long long half) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) store_vector(row + place(pack, half, i), 1, part[i]);
    }
};

extern "C" __global__ void __launch_bounds__(128) rotary_embedding(
    const scalar_t* __restrict__ x,   // a view
    const table_t* __restrict__ cos,  // a view
    const table_t* __restrict__ sin,  // a view
    scalar_t* __restrict__ y,         // (count), a view of all of it
    long long half, long long heads, long long apart, long long x_apart, long long y_apart, long long groups, long long count,
    Int64s<NDIM> size, Int64s<NDIM> divider, Int64s<NDIM> x_stride, Int64s<NDIM> y_stride, Int64s<NDIM> cos_stride,
    Int64s<NDIM> sin_stride) {
    const long long group = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (group >= groups) return;
    const Int64s<NDIM> strides[] = {x_stride, y_stride, cos_stride, sin_stride};
    long long at[4];
    places_of<1, WIDE>(group, size, divider, strides, at);
    // The innermost dimension counts packs of a row, with strides of 0, and the next one the first of a thread's rows.
    const long long rows = WIDE ? group / size[0] : divide(static_cast<unsigned>(group), divider[0]);
    const long long pack = group - rows * size[0];
    const long long head = WIDE ? rows % size[1] : rows - divide(static_cast<unsigned>(rows), divider[1]) * size[1];
    const scalar_t* from = x + at[0];
    scalar_t* to = y + at[1];
    const long long copied = pack - half / EACH;
    if (copied >= 0) {
        const long long column = 2 * half + copied * EACH;
#pragma unroll
        for (int k = 0; k < HEADS; ++k)
            if (head + k * apart < heads)
                store_vector(to + k * y_apart + column, 1, load_vector<EACH>(from + k * x_apart + column, 1));
        return;
    }
    Pairs<scalar_t> of[HEADS];
#pragma unroll
    for (int k = 0; k < HEADS; ++k)
        if (head + k * apart < heads) of[k].load(from + k * x_apart, pack, half);
    Pairs<table_t> c, s;
    c.load(cos + at[2], pack, half);
    s.load(sin + at[3], pack, half);
#pragma unroll
    for (int k = 0; k < HEADS; ++k) {
        if (head + k * apart >= heads) break;
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const acc_t u = convert<acc_t>(of[k].at(e, 0)), v = convert<acc_t>(of[k].at(e, 1));
            const acc_t a = BACKWARD ? -convert<acc_t>(s.at(e, 1)) : convert<acc_t>(s.at(e, 0));
            const acc_t b = BACKWARD ? -convert<acc_t>(s.at(e, 0)) : convert<acc_t>(s.at(e, 1));
            of[k].at(e, 0) = convert<scalar_t>(u * convert<acc_t>(c.at(e, 0)) - v * a);
            of[k].at(e, 1) = convert<scalar_t>(v * convert<acc_t>(c.at(e, 1)) + u * b);
        }
        of[k].store(to + k * y_apart, pack, half);
    }
}
