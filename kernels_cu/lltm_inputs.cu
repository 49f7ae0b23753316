// Concatenates h and x to the operand of an LLTM's weight products, and splits the gradient of one step's operand.
//
//   inputs[t, b] = [h_{t-1}[b], x_t[b]]        [dL/dh[b], dL/dx[b]] = dL/dinputs[b]
//
//   T steps, B rows, S units, F features, K = S + F        all arrays: scalar_t (float16, bfloat16, float32, float64)
//   no arithmetic: the kernels copy, and nothing is converted to acc_t
//   h_{-1}: (B, S)    h: (T, B, S)    x: (T, B, F)    inputs: (T, B, K)
//
// Macro          values          meaning                                             set by
// VECTOR_WIDTH   1, 2, 4, 8      elements of an access; divides S and F              TiledKernel.tiles (cupyops/tiling/tiles.py)
// ABREAST        1, 2, 4 .. 32   threads of a block side by side                     Tiles.over (cupyops/tiling/tiles.py)
// NAIVE          1               compiles the naive kernels, and not the fast ones   tests
#include "scalar.cuh"

#ifdef NAIVE

extern "C" __global__ void lltm_inputs_naive(
    const scalar_t* first_h,  // (B, S)
    const scalar_t* h,        // (T, B, S) or null, of one step
    const scalar_t* x,        // (T, B, F)
    scalar_t* inputs,         // (T, B, K)
    long long T, long long B, long long F, long long S, long long K) {
    const long long n = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x, row = n / K, k = n % K;
    if (n >= T * B * K) return;
    inputs[n] = k >= S ? x[row * F + k - S] : row < B ? first_h[row * S + k] : h[(row - B) * S + k];
}

extern "C" __global__ void lltm_inputs_backward_naive(
    const scalar_t* grad_inputs,  // (B, K)
    scalar_t* grad_h,             // (B, S)
    scalar_t* grad_x,             // (B, F)
    long long B, long long F, long long S, long long K) {
    const long long n = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x, b = n / K, k = n % K;
    if (n >= B * K) return;
    (k < S ? grad_h[b * S + k] : grad_x[b * F + k - S]) = grad_inputs[n];
}

#else

#include "tiles.cuh"

extern "C" __global__ void __launch_bounds__(256) lltm_inputs(
    const scalar_t* __restrict__ first_h,  // (B, S)
    const scalar_t* __restrict__ h,        // (T, B, S) or null, of one step
    const scalar_t* __restrict__ x,        // (T, B, F)
    scalar_t* __restrict__ inputs,         // (T, B, K)
    long long T, long long B, long long F, long long S, long long K, long long columns, long long rows) {
    const Place place;
    if (place.column >= K) return;
    const bool of_h = place.column < S;
    const bool vectors =
        aligned<VECTOR_WIDTH>(first_h) && aligned<VECTOR_WIDTH>(h) && aligned<VECTOR_WIDTH>(x) && aligned<VECTOR_WIDTH>(inputs);
    for (long long n = place.row; n < T * B; n += gridDim.y * DOWN) {
        const long long at = n * S + place.column;
        const scalar_t* from = !of_h ? x + (n * F + place.column - S) : n < B ? first_h + at : h + (at - B * S);
        store_packed(inputs + n * K + place.column, load_packed(from, vectors), vectors);
    }
}

extern "C" __global__ void __launch_bounds__(256) lltm_inputs_backward(
    const scalar_t* __restrict__ grad_inputs,  // (B, K)
    scalar_t* __restrict__ grad_h,             // (B, S)
    scalar_t* __restrict__ grad_x,             // (B, F)
    long long B, long long F, long long S, long long K, long long columns, long long rows) {
    const Place place;
    if (place.column >= K) return;
    const bool of_h = place.column < S;
    const bool vectors = aligned<VECTOR_WIDTH>(grad_inputs) && aligned<VECTOR_WIDTH>(grad_h) && aligned<VECTOR_WIDTH>(grad_x);
    for (long long n = place.row; n < B; n += gridDim.y * DOWN) {
        scalar_t* to = of_h ? grad_h + (n * S + place.column) : grad_x + (n * F + place.column - S);
        store_packed(to, load_packed(grad_inputs + n * K + place.column, vectors), vectors);
    }
}

#endif
