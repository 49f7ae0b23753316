// The gradient of y = gelu(z), z = x·Wᵀ + b, up to the matrix products: one pass over what the layer's output takes.
//
//   dL/dz = dL/dy·gelu'(z)      dL/db = Σ_m dL/dz, the sums of its columns      (then dL/dx = dL/dz·W, dL/dW = dL/dzᵀ·x)
//
//   dL/dy, z, dL/dz: scalar_t (M, N)      dL/db: scalar_t (N)      arithmetic in acc_t      TANH: 0 or 1, see gelu.cu
#include "gelu.cuh"
#include "columns.cuh"

struct GradientAndInput {
    Packed<scalar_t> grad_y, z;
};

// The gradient of a strip of z, by whole accesses or element by element.
template <bool VECTORS>
__device__ __forceinline__ void add_gradient(
    const Strip& strip, const scalar_t* __restrict__ grad_y, const scalar_t* __restrict__ z,
    scalar_t* __restrict__ grad_z, long long M, long long N, acc_t (&sums)[LANES]) {
    strip.add_rows(
        M, N, sums,
        [&](long long at) { return GradientAndInput{load_packed(grad_y + at, VECTORS), load_packed(z + at, VECTORS)}; },
        [&](long long at, const GradientAndInput& in, acc_t (&sums)[LANES]) {
            acc_t out[LANES];
#pragma unroll
            for (int k = 0; k < LANES; ++k) {
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
    const bool vectors = aligned<LANES>(grad_y) && aligned<LANES>(z) && aligned<LANES>(grad_z);
    sum_columns(N, groups, sums, [&](const Strip& strip, acc_t (&sums)[LANES]) {
        if (vectors) add_gradient<true>(strip, grad_y, z, grad_z, M, N, sums);
        else add_gradient<false>(strip, grad_y, z, grad_z, M, N, sums);
    });
}
