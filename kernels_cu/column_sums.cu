// Sums the columns of one or two short and wide matrices: the partial sums that the persistent blocks of
// layer_norm_backward.cu have stored.
//
//   first[j] = Σ_p partial[0, p, j],   second[j] = Σ_p partial[1, p, j]
//
//   partial: acc_t (2, parts, N)      first, second: scalar_t (N), each may be absent      arithmetic in acc_t
//
// A block of 32 x 32 threads has 32 columns. Each of its warps adds up every 32nd row; then one warp adds up the 32 sums of
// each column in order. The order of a sum depends on `parts` alone.
//
// Macro   values      meaning                                  set by
// NAIVE   undefined   defined: the kernel of one thread a column   the tests
#include "scalar.cuh"

#ifdef NAIVE

extern "C" __global__ void column_sums_naive(
    const acc_t* __restrict__ partial,  // (2, parts, N)
    scalar_t* __restrict__ first,       // (N)
    scalar_t* __restrict__ second,      // (N)
    long long parts, long long N) {
    const long long column = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (column >= N) return;
    acc_t a = 0, b = 0;
    for (long long p = 0; p < parts; ++p) a += partial[p * N + column], b += partial[(parts + p) * N + column];
    first[column] = convert<scalar_t>(a), second[column] = convert<scalar_t>(b);
}

#else

extern "C" __global__ void __launch_bounds__(1024) column_sums(
    const acc_t* __restrict__ partial,  // (2, parts, N)
    scalar_t* __restrict__ first,       // (N) or null
    scalar_t* __restrict__ second,      // (N) or null
    long long parts, long long N) {
    __shared__ acc_t sums[2][32][33];
    const long long column = blockIdx.x * 32ll + threadIdx.x;
    acc_t a = 0, b = 0;
    if (column < N)
#pragma unroll 8
        for (long long p = threadIdx.y; p < parts; p += 32) {
            a += partial[p * N + column];
            b += partial[(parts + p) * N + column];
        }
    sums[0][threadIdx.y][threadIdx.x] = a;
    sums[1][threadIdx.y][threadIdx.x] = b;
    __syncthreads();
    // The block's first warp adds up the sums of the first matrix; its second warp adds up the sums of the second
    // matrix.
    scalar_t* out = threadIdx.y == 0 ? first : second;
    if (threadIdx.y > 1 || out == nullptr || column >= N) return;
    acc_t total = 0;
    for (int i = 0; i < 32; ++i) total += sums[threadIdx.y][i][threadIdx.x];
    out[column] = convert<scalar_t>(total);
}

#endif
