// A linear layer with GELU after it, y = gelu(z) with z = x·Wᵀ + b, and its gradient, without the matrix products: a pass over
// z forward, and a pass over z and dL/dy backward.
//
//   z = x·Wᵀ + b                y = gelu(z)
//   dL/dz = dL/dy·gelu'(z)      dL/db = Σ_m dL/dz, the sums of its columns      (then dL/dx = dL/dz·W, dL/dW = dL/dzᵀ·x)
//
//   y, z and their gradients: scalar_t (M, N)      b, dL/db: scalar_t (N)      arithmetic in acc_t
//
//   macro          values     set by
//   TANH           0, 1       the body: the form of GELU, see gelu.cu
//   VECTOR_WIDTH   1 to 8     Tiles, ColumnsConfig: elements of an access
//   ROWS_EACH      1, 2       the body, ColumnsConfig: rows that a thread has in flight
//   ABREAST        1 to 32    Tiles (forward): threads of a block side by side
//   BLOCK_THREADS  256        ColumnsConfig (backward): threads of a block
//   WIDTH          2^i        ColumnsConfig: threads of a block side by side
//   MIN_BLOCKS     1 to 4     ColumnsConfig: blocks that are to fit a multiprocessor, which bounds the registers
//   CLUSTER        1 to 8     ColumnsConfig: blocks that add up their sums
//   IN_PLACE       1          the body (backward): dL/dz is written over dL/dy
//   NAIVE          1          tests: the naive kernels alone
#include "gelu.cuh"
#include "columns.cuh"

#ifdef NAIVE

extern "C" __global__ void linear_gelu_naive(
    const scalar_t* __restrict__ bias,  // (N)
    scalar_t* __restrict__ z,           // (M, N)
    scalar_t* __restrict__ y,           // (M, N)
    long long M, long long N) {
    const long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, m = blockIdx.y;
    if (n >= N || m >= M) return;
    z[m * N + n] = convert<scalar_t>(convert<acc_t>(z[m * N + n]) + convert<acc_t>(bias[n]));
    y[m * N + n] = convert<scalar_t>(gelu(convert<acc_t>(z[m * N + n])));
}

extern "C" __global__ void linear_gelu_backward_naive(
    const scalar_t* __restrict__ grad_y,  // (M, N)
    const scalar_t* __restrict__ z,       // (M, N)
    scalar_t* __restrict__ grad_z,        // (M, N)
    acc_t* __restrict__ grad_bias,        // (N)
    long long M, long long N) {
    const long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= N) return;
    grad_bias[n] = 0;
    for (long long m = 0; m < M; ++m) {
        const acc_t grad = convert<acc_t>(grad_y[m * N + n]) * gelu_derivative(convert<acc_t>(z[m * N + n]));
        grad_z[m * N + n] = convert<scalar_t>(grad);
        grad_bias[n] += grad;
    }
}

#else

// The forward's block: 256 threads, ABREAST of them side by side.
#ifndef ABREAST
#define ABREAST 32
#endif

constexpr long long DOWN = 256 / ABREAST;

// A thread keeps the bias of its columns, and has ROWS_EACH rows in flight before it uses the first. Aligned rows take a
// separate loop: one loop would issue the instructions of both kinds of access for each row.
template <bool VECTORS>
__device__ __forceinline__ void finish_rows(
    const scalar_t* __restrict__ bias, scalar_t* __restrict__ z, scalar_t* __restrict__ y, long long M, long long N) {
    const long long column = (blockIdx.x * static_cast<long long>(ABREAST) + threadIdx.x) * VECTOR_WIDTH;
    const long long step = gridDim.y * DOWN;
    if (column >= N) return;
    const Packed<scalar_t> b = load_packed(bias + column, VECTORS);
    for (long long row = blockIdx.y * DOWN + threadIdx.y; row < M; row += ROWS_EACH * step) {
        Packed<scalar_t> held[ROWS_EACH];
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i)
            if (row + i * step < M) held[i] = load_packed(z + (row + i * step) * N + column, VECTORS);
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i) {
            if (row + i * step >= M) break;
            const long long at = (row + i * step) * N + column;
            acc_t v[VECTOR_WIDTH];
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) v[k] = held[i][k] + b[k];
            Packed<scalar_t> packed;
            packed.set(v);
            store_row<VECTORS>(z + at, packed);
            // z is rounded to scalar_t before gelu: the gradient reads the rounded z.
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) v[k] = gelu(packed[k]);
            packed.set(v);
            store_row<VECTORS>(y + at, packed);
        }
    }
}

// Before the launch z is x·Wᵀ; the kernel adds the bias.
extern "C" __global__ void __launch_bounds__(256) linear_gelu_forward(
    const scalar_t* __restrict__ bias,  // (N)
    scalar_t* __restrict__ z,           // (M, N)
    scalar_t* __restrict__ y,           // (M, N)
    long long M, long long N, long long columns, long long rows) {
    const bool vectors = aligned<VECTOR_WIDTH>(z) && aligned<VECTOR_WIDTH>(bias) && aligned<VECTOR_WIDTH>(y);
    if (vectors || VECTOR_WIDTH == 1) finish_rows<true>(bias, z, y, M, N);
    else finish_rows<false>(bias, z, y, M, N);
}

// Pointers that are __restrict__ let the compiler load the rows of the next turn in front of the stores of this one.
#ifdef IN_PLACE
#define APART
#else
#define APART __restrict__
#endif

struct GradientAndInput {
    Packed<scalar_t> grad_y, z;
};

// Computes the gradient of a strip of z, by vector accesses or element by element.
template <bool VECTORS>
__device__ __forceinline__ void add_gradient(
    const Strip& strip, const scalar_t* APART grad_y, const scalar_t* __restrict__ z, scalar_t* APART grad_z, long long M,
    long long N, acc_t (&sums)[VECTOR_WIDTH]) {
    strip.add_rows(
        M, N, sums,
        [&](long long at) { return GradientAndInput{load_packed(grad_y + at, VECTORS), load_packed(z + at, VECTORS)}; },
        [&](long long at, const GradientAndInput& in, acc_t(&sums)[VECTOR_WIDTH]) {
            acc_t out[VECTOR_WIDTH];
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) {
                out[k] = in.grad_y[k] * gelu_derivative(in.z[k]);
                sums[k] += out[k];
            }
            Packed<scalar_t> packed;
            packed.set(out);
            store_packed(grad_z + at, packed, VECTORS);
        });
}

// The sums add dL/dz before rounding. With one group, `sums` is the gradient of the bias. With several groups, each
// group writes a row of acc_t to `sums`, and linear_bias_gradient adds up the rows.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) linear_gelu_backward(
    const scalar_t* APART grad_y,    // (M, N)
    const scalar_t* __restrict__ z,  // (M, N)
    scalar_t* APART grad_z,          // (M, N)
    sum_t* __restrict__ sums,        // (groups, N)
    long long M, long long N, long long groups, long long tiles) {
    const bool vectors = aligned<VECTOR_WIDTH>(grad_y) && aligned<VECTOR_WIDTH>(z) && aligned<VECTOR_WIDTH>(grad_z);
    sum_columns(N, groups, sums, [&](const Strip& strip, acc_t(&sums)[VECTOR_WIDTH]) {
        if (vectors) add_gradient<true>(strip, grad_y, z, grad_z, M, N, sums);
        else add_gradient<false>(strip, grad_y, z, grad_z, M, N, sums);
    });
}

#endif
