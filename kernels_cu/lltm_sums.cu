// The gradient of an LLTM's bias from partial sums, or from the rows of dz: the sums of a matrix's columns.
//
//   sums[j] = Σ_p partial[p, j], in an order that depends on `parts` alone
//
//   partial: part_t (parts, N)    sums: scalar_t (N)    arithmetic: acc_t
//   scalar_t: float16, bfloat16, float32, float64    part_t: acc_t for partial sums, scalar_t for rows of dz
//
// Macro   values   meaning                                           set by
// NAIVE   1        compiles the naive kernel, and not the fast one   tests
#include "scalar.cuh"

#ifdef NAIVE

extern "C" __global__ void lltm_sums_naive(
    const part_t* partial,  // (parts, N)
    scalar_t* sums,         // (N)
    long long parts, long long N) {
    const long long column = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (column >= N) return;
    acc_t total = 0;
    for (long long p = 0; p < parts; ++p) total += convert<acc_t>(partial[p * N + column]);
    sums[column] = convert<scalar_t>(total);
}

#else

// A block has 32 columns. Each of its 32 warps adds up every 32nd row; then the first warp adds up the warps' sums.
extern "C" __global__ void __launch_bounds__(1024) lltm_sums(
    const part_t* __restrict__ partial,  // (parts, N)
    scalar_t* __restrict__ sums,         // (N)
    long long parts, long long N) {
    __shared__ acc_t warp_sums[32][33];
    const long long column = blockIdx.x * 32ll + threadIdx.x;
    acc_t mine = 0;
    if (column < N)
        for (long long p = threadIdx.y; p < parts; p += 32) mine += convert<acc_t>(partial[p * N + column]);
    warp_sums[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y > 0 || column >= N) return;
    acc_t total = 0;
    for (int i = 0; i < 32; ++i) total += warp_sums[i][threadIdx.x];
    sums[column] = convert<scalar_t>(total);
}

#endif
