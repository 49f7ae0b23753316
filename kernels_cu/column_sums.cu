// Sums the columns of one or two short and wide matrices: the partial sums that persistent blocks have stored.
//
//   first[j] = Σ_p partial[0, p, j],   second[j] = Σ_p partial[1, p, j]
//
//   partial: acc_t (MATRICES, parts, N)      first, second: scalar_t (N), each may be absent      arithmetic in acc_t
//
// A block of WIDTH x AT_ONCE threads has WIDTH columns. The threads of a column add up every AT_ONCE-th row; then one thread
// adds up their sums in order. The order of a sum depends on `parts` and AT_ONCE alone.
//
// Macro      values        meaning                                      set by
// MATRICES   1, 2          matrices                                     cupyops/tiling/partial_sums.py
// WIDTH      32 to 1024    columns of a block                           cupyops/tiling/partial_sums.py
// AT_ONCE    1 to 32       rows that a block reads at once              cupyops/tiling/partial_sums.py
// NAIVE      undefined     defined: the kernel of one thread a column   the tests
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

constexpr int THREADS = WIDTH * AT_ONCE;

extern "C" __global__ void __launch_bounds__(THREADS) column_sums(
    const acc_t* __restrict__ partial,  // (MATRICES, parts, N)
    scalar_t* __restrict__ first,       // (N) or null
    scalar_t* __restrict__ second,      // (N) or null
    long long parts, long long N) {
    const long long column = static_cast<long long>(blockIdx.x) * WIDTH + threadIdx.x;
    acc_t found[MATRICES] = {};
    if (column < N)
#pragma unroll 8
        for (long long p = threadIdx.y; p < parts; p += AT_ONCE)
#pragma unroll
            for (int m = 0; m < MATRICES; ++m) found[m] += partial[(m * parts + p) * N + column];
#if AT_ONCE > 1
    __shared__ acc_t sums[MATRICES][AT_ONCE][WIDTH + 1];
#pragma unroll
    for (int m = 0; m < MATRICES; ++m) sums[m][threadIdx.y][threadIdx.x] = found[m];
    __syncthreads();
    // The first threads of the columns add up the sums of the first matrix, the second ones those of the second matrix.
    scalar_t* out = threadIdx.y == 0 ? first : second;
    if (threadIdx.y >= MATRICES || out == nullptr || column >= N) return;
    acc_t total = 0;
    for (int i = 0; i < AT_ONCE; ++i) total += sums[threadIdx.y][i][threadIdx.x];
    out[column] = convert<scalar_t>(total);
#else
    if (column >= N) return;
    if (first != nullptr) first[column] = convert<scalar_t>(found[0]);
    if (MATRICES > 1 && second != nullptr) second[column] = convert<scalar_t>(found[MATRICES - 1]);
#endif
}

#endif
