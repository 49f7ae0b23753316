// y = gelu(z), z = x·Wᵀ + b, and its gradient, but for the matrix products: one pass each over what the layer's output takes.
//
//   z = x·Wᵀ + b                y = gelu(z)
//   dL/dz = dL/dy·gelu'(z)      dL/db = Σ_m dL/dz, the sums of its columns      (then dL/dx = dL/dz·W, dL/dW = dL/dzᵀ·x)
//
//   y, z and their gradients: scalar_t (M, N)      b, dL/db: scalar_t (N)      arithmetic in acc_t      TANH: 0 or 1, see gelu.cu
#include "gelu.cuh"
#include "columns.cuh"

// The forward's: ABREAST accesses of VECTOR_WIDTH columns by as many rows a block as make 256 threads
#ifndef ABREAST
#define ABREAST 32
#endif

constexpr long long DOWN = 256 / ABREAST;

// A thread keeps the bias of its columns, and has ROWS_EACH rows on their way before it uses the first. Aligned rows and
// others have loops of their own, or the instructions of both are issued for each.
template <bool VECTORS>
__device__ __forceinline__ void finish_rows(
    const scalar_t* __restrict__ bias, scalar_t* __restrict__ z, scalar_t* __restrict__ y, long long M, long long N) {
    const long long column = (blockIdx.x * static_cast<long long>(ABREAST) + threadIdx.x) * VECTOR_WIDTH, step = gridDim.y * DOWN;
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
            // Of z as it is kept, and as the gradient will read it.
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) v[k] = gelu(packed[k]);
            packed.set(v);
            store_row<VECTORS>(y + at, packed);
        }
    }
}

// z comes as x·Wᵀ, and leaves with the bias.
extern "C" __global__ void __launch_bounds__(256) linear_gelu_forward(
    const scalar_t* __restrict__ bias,  // (N)
    scalar_t* __restrict__ z,           // (M, N)
    scalar_t* __restrict__ y,           // (M, N)
    long long M, long long N, long long columns, long long rows) {
    const bool vectors = aligned<VECTOR_WIDTH>(z) && aligned<VECTOR_WIDTH>(bias) && aligned<VECTOR_WIDTH>(y);
    if (vectors || VECTOR_WIDTH == 1) finish_rows<true>(bias, z, y, M, N);
    else finish_rows<false>(bias, z, y, M, N);
}

struct GradientAndInput {
    Packed<scalar_t> grad_y, z;
};

// The gradient of a strip of z, by whole accesses or element by element.
template <bool VECTORS>
__device__ __forceinline__ void add_gradient(
    const Strip& strip, const scalar_t* __restrict__ grad_y, const scalar_t* __restrict__ z,
    scalar_t* __restrict__ grad_z, long long M, long long N, acc_t (&sums)[VECTOR_WIDTH]) {
    strip.add_rows(
        M, N, sums,
        [&](long long at) { return GradientAndInput{load_packed(grad_y + at, VECTORS), load_packed(z + at, VECTORS)}; },
        [&](long long at, const GradientAndInput& in, acc_t (&sums)[VECTOR_WIDTH]) {
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

// The sums are of dL/dz before it is rounded. `sums` is the gradient of the bias, of one group, or of several acc_t, which
// linear_bias_gradient adds up.
extern "C" __global__ void STRIP_CLUSTER __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) linear_gelu_backward(
    const scalar_t* __restrict__ grad_y,  // (M, N)
    const scalar_t* __restrict__ z,       // (M, N)
    scalar_t* __restrict__ grad_z,        // (M, N)
    sum_t* __restrict__ sums,             // (groups, N)
    long long M, long long N, long long groups, long long tiles) {
    const bool vectors = aligned<VECTOR_WIDTH>(grad_y) && aligned<VECTOR_WIDTH>(z) && aligned<VECTOR_WIDTH>(grad_z);
    sum_columns(N, groups, sums, [&](const Strip& strip, acc_t (&sums)[VECTOR_WIDTH]) {
        if (vectors) add_gradient<true>(strip, grad_y, z, grad_z, M, N, sums);
        else add_gradient<false>(strip, grad_y, z, grad_z, M, N, sums);
    });
}
