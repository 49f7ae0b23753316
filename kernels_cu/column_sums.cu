// The sums over rows of one or two matrices that are short and wide: what blocks have summed up each for itself, as one.
//
//   sum[j] = Σ_p first[p, j],   the same of second      partial: acc_t (2, parts, N)      sums: scalar_t (N)
#include "scalar.cuh"

// 32 columns a block; its 32 warps take turns at the rows, and then their sums are added in order.
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
    // The first warp adds up the first matrix's, the second the second's.
    scalar_t* out = threadIdx.y == 0 ? first : second;
    if (threadIdx.y > 1 || out == nullptr || column >= N) return;
    acc_t total = 0;
    for (int i = 0; i < 32; ++i) total += sums[threadIdx.y][i][threadIdx.x];
    out[column] = convert<scalar_t>(total);
}
