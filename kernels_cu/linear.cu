// Parts of a linear layer: the product with a matrix of few rows (linear_narrow), and the gradient of the bias
// (linear_bias_gradient). A library computes the large matrix products.
//
//   z = x·Wᵀ + b             z[m, n] = Σ_k x[m, k]·W[n, k] + b[n]             y = z, or y = gelu(z)
//   dL/db = Σ_m dL/dy        the sums of the columns of dL/dy
//
//   x: scalar_t (M, K)      W: scalar_t (N, K)      b: scalar_t (N)      y, z: scalar_t (M, N)      arithmetic in acc_t
//   dL/dy: x_t (M, N)       dL/db: scalar_t (N)
//
//   macro          values           set by
//   BLOCK_THREADS  128; 128 to 512  NarrowConfig; ColumnsConfig: threads of a block
//   VECTOR_WIDTH   1 to 8           both: elements of an access
//   ROWS_EACH      1 to 8           both: rows of a warp; rows that a thread has in flight
//   MIN_BLOCKS     1, 2, ...        both: blocks that are to fit a multiprocessor, which bounds the registers
//   FEW            1 to 16          NarrowConfig: rows of the small matrix
//   FEW_IS_X       0, 1             NarrowConfig: the small matrix is x, not W
//   SPLIT          1, 2, 4          NarrowConfig: warps that share a row of the large matrix
//   GELU           0, 1             the body of linear_gelu: y = gelu(z) is a result, too
//   TANH           0, 1             the body of linear_gelu: the form of GELU, see gelu.cu
//   WIDTH          2^i              ColumnsConfig: threads of a block side by side
//   CLUSTER        1 to 8           ColumnsConfig: blocks that add up their sums
//   NAIVE          1                tests: the naive kernels alone
#include "scalar.cuh"
#include "columns.cuh"
#include "gelu.cuh"

#ifdef NAIVE

extern "C" __global__ void linear_naive(
    const scalar_t* __restrict__ x,       // (M, K)
    const scalar_t* __restrict__ weight,  // (N, K)
    const scalar_t* __restrict__ bias,    // (B) or null
    scalar_t* __restrict__ z,             // (M, N)
    scalar_t* __restrict__ y,             // (M, N)
    long long M, long long N, long long K, long long B) {
    const long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, m = blockIdx.y;
    if (n >= N || m >= M) return;
    acc_t sum = 0;
    for (long long k = 0; k < K; ++k) sum += convert<acc_t>(x[m * K + k]) * convert<acc_t>(weight[n * K + k]);
    if (bias) sum += convert<acc_t>(bias[n]);
    z[m * N + n] = convert<scalar_t>(sum);
    y[m * N + n] = convert<scalar_t>(gelu(convert<acc_t>(z[m * N + n])));
}

extern "C" __global__ void linear_backward_naive(
    const x_t* __restrict__ grad_y,    // (M, N)
    scalar_t* __restrict__ grad_bias,  // (N)
    long long M, long long N) {
    const long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= N) return;
    acc_t sum = 0;
    for (long long m = 0; m < M; ++m) sum += convert<acc_t>(grad_y[m * N + n]);
    grad_bias[n] = convert<scalar_t>(sum);
}

#else

template <bool VECTORS, typename T>
__device__ __forceinline__ void add_elements(
    const Strip& strip, const T* __restrict__ grad_y, long long M, long long N, acc_t (&sums)[VECTOR_WIDTH]) {
    strip.add_rows(
        M, N, sums, [&](long long at) { return load_packed(grad_y + at, VECTORS); },
        [](long long, const Packed<T>& g, acc_t(&sums)[VECTOR_WIDTH]) {
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) sums[k] += g[k];
        });
}

// The sums of the columns of a matrix x_t (M, N). One group sums over all rows. Each of several groups sums over every
// groups-th stretch of rows, and a second launch of this kernel adds up the sums of the groups.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) linear_bias_gradient(
    const x_t* __restrict__ grad_y,  // (M, N)
    scalar_t* __restrict__ sums,     // (groups, N)
    long long M, long long N, long long groups, long long tiles) {
    const bool vectors = aligned<VECTOR_WIDTH>(grad_y);
    sum_columns(N, groups, sums, [&](const Strip& strip, acc_t(&sums)[VECTOR_WIDTH]) {
        if (vectors) add_elements<true>(strip, grad_y, M, N, sums);
        else add_elements<false>(strip, grad_y, M, N, sums);
    });
}

#ifndef FEW
#define FEW 1
#endif

#ifndef FEW_IS_X
#define FEW_IS_X 1
#endif

#ifndef SPLIT
#define SPLIT 1
#endif

#ifndef GELU
#define GELU 0
#endif

// The product of a large matrix `many` and a matrix `few` of FEW rows; the reads of `many` bound the time. With
// FEW_IS_X `few` is x and `many` is W; else `few` is W and `many` is x. SPLIT warps share ROWS_EACH rows of `many`:
// each warp takes a part of every row, and all rows of `few`. The bits of a row of `few` do not depend on FEW. With
// GELU z is rounded to scalar_t before gelu: the gradient reads the rounded z.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) linear_narrow(
    const scalar_t* __restrict__ many,  // (R, K)
    const scalar_t* __restrict__ few,   // (FEW, K)
    const scalar_t* __restrict__ bias,  // (B) or null
    scalar_t* __restrict__ z,           // (R, FEW)
    scalar_t* __restrict__ y,           // (R, FEW) or null
    long long R, long long K, long long B) {
    constexpr int WARPS = BLOCK_THREADS / 32, TEAMS = WARPS / SPLIT;
    __shared__ acc_t parts[WARPS][ROWS_EACH][FEW];
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int team = warp / SPLIT, part = warp % SPLIT;
    const long long first = (static_cast<long long>(blockIdx.x) * TEAMS + team) * ROWS_EACH;
    const bool vectors = aligned<VECTOR_WIDTH>(many) && aligned<VECTOR_WIDTH>(few);
    acc_t sums[ROWS_EACH][FEW];
#pragma unroll
    for (int i = 0; i < ROWS_EACH; ++i)
#pragma unroll
        for (int f = 0; f < FEW; ++f) sums[i][f] = 0;
    // A warp whose row lies beyond the last row reads the last row, and writes nothing.
    const scalar_t* row[ROWS_EACH];
#pragma unroll
    for (int i = 0; i < ROWS_EACH; ++i) row[i] = many + (first + i < R ? first + i : R - 1) * K;
#pragma unroll 4
    for (long long k = (part * 32 + lane) * VECTOR_WIDTH; k < K; k += SPLIT * 32 * VECTOR_WIDTH) {
        Packed<scalar_t> m[ROWS_EACH];
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i) m[i] = load_packed(row[i] + k, vectors);
#pragma unroll
        for (int f = 0; f < FEW; ++f) {
            const Packed<scalar_t> v = load_packed(few + f * K + k, vectors);
#pragma unroll
            for (int i = 0; i < ROWS_EACH; ++i)
#pragma unroll
                for (int j = 0; j < VECTOR_WIDTH; ++j) sums[i][f] = fma(m[i][j], v[j], sums[i][f]);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS_EACH; ++i)
#pragma unroll
        for (int f = 0; f < FEW; ++f) {
#pragma unroll
            for (int step = 16; step > 0; step /= 2) sums[i][f] += __shfl_xor_sync(0xffffffffu, sums[i][f], step);
            if (lane == 0) parts[warp][i][f] = sums[i][f];
        }
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < TEAMS * ROWS_EACH * FEW; e += BLOCK_THREADS) {
        const int f = e % FEW, i = e / FEW % ROWS_EACH, of = e / (FEW * ROWS_EACH);
        const long long r = (static_cast<long long>(blockIdx.x) * TEAMS + of) * ROWS_EACH + i;
        if (r >= R) continue;
        acc_t sum = 0;
        for (int p = 0; p < SPLIT; ++p) sum += parts[of * SPLIT + p][i][f];
        if (bias) sum += convert<acc_t>(bias[FEW_IS_X ? r : f]);
        const long long at = FEW_IS_X ? f * R + r : r * FEW + f;
        z[at] = convert<scalar_t>(sum);
        if constexpr (GELU) y[at] = convert<scalar_t>(gelu(convert<acc_t>(convert<scalar_t>(sum))));
    }
}

#endif
