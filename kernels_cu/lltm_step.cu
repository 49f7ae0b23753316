// One step of an LLTM cell, after the product that makes z: h' and c' of z and c.
//
//   i = σ(z_i)    o = σ(z_o)    g = elu(z_g)    c' = c + g·i    h' = tanh(c')·o
//
//   B rows, S units        all arrays: scalar_t (float16, bfloat16, float32, float64)        arithmetic: acc_t
//   z: (B, 3S), in the order i, o, g    bias: (3S)    c, c', h': (B, S)
//
// Macro          values          meaning                                           set by
// VECTOR_WIDTH   1, 2, 4, 8      units of an access; divides S                     TiledKernel.tiles (cupyops/tiling/tiles.py)
// ABREAST        1, 2, 4 .. 32   threads of a block side by side                   Tiles.over (cupyops/tiling/tiles.py)
// ADD_BIAS       0, 1            1: the kernel adds the bias to z, and stores z    STEP_WITH_BIAS (cupyops/ops/lltm/cell.py)
// NAIVE          1               compiles the naive kernel, and not the fast one   tests
#include "scalar.cuh"

#ifdef NAIVE

#include "lltm_naive.cuh"

extern "C" __global__ void lltm_step_naive(
    const scalar_t* bias,      // (3, S) or null
    const scalar_t* old_cell,  // (B, S)
    scalar_t* gates,           // (B, 3, S)
    scalar_t* new_h,           // (B, S)
    scalar_t* new_cell,        // (B, S)
    long long B, long long S) {
    const long long n = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x, b = n / S, s = n % S;
    if (n >= B * S) return;
    acc_t z[3];
    for (int gate = 0; gate < 3; ++gate) {
        scalar_t& stored = gates[(b * 3 + gate) * S + s];
        if (bias) stored = convert<scalar_t>(convert<acc_t>(stored) + convert<acc_t>(bias[gate * S + s]));
        z[gate] = convert<acc_t>(stored);
    }
    const NaiveUnit unit(z[0], z[1], z[2]);
    const acc_t c = convert<acc_t>(old_cell[n]) + unit.g * unit.i;
    new_cell[n] = convert<scalar_t>(c);
    new_h[n] = convert<scalar_t>(tanh(c) * unit.o);
}

#else

#include "lltm.cuh"
#include "tiles.cuh"

#ifndef ADD_BIAS
#define ADD_BIAS 0
#endif

struct Step {
    const scalar_t *bias, *old_cell;
    scalar_t *gates, *new_h, *new_cell;
    long long B, S;
};

// Aligned and unaligned rows take separate loops: one loop would issue the instructions of both kinds for each access.
template <bool VECTORS> __device__ __forceinline__ void step_rows(const Step& step) {
    const long long S = step.S;
    const Place place;
    if (place.column >= S) return;
    Packed<scalar_t> biases[GATES];
    if (ADD_BIAS)
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) biases[gate] = load_packed(step.bias + gate * S + place.column, VECTORS);
    for (long long b = place.row; b < step.B; b += gridDim.y * DOWN) {
        scalar_t* const z_at = step.gates + b * GATES * S + place.column;
        const long long at = b * S + place.column;
        Packed<scalar_t> z[GATES];
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) z[gate] = load_packed(z_at + gate * S, VECTORS);
        const Packed<scalar_t> old = load_packed(step.old_cell + at, VECTORS);
        if (ADD_BIAS)
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) {
                acc_t sums[VECTOR_WIDTH];
#pragma unroll
                for (int k = 0; k < VECTOR_WIDTH; ++k) sums[k] = z[gate][k] + biases[gate][k];
                z[gate].set(sums);
                store_row<VECTORS>(z_at + gate * S, z[gate]);
            }
        acc_t h[VECTOR_WIDTH], c[VECTOR_WIDTH];
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) {
            const Unit unit(z[0][k], z[1][k], z[2][k]);
            c[k] = unit.cell(old[k]);
            h[k] = unit.hidden(c[k]);
        }
        Packed<scalar_t> packed;
        packed.set(h);
        store_row<VECTORS>(step.new_h + at, packed);
        packed.set(c);
        store_row<VECTORS>(step.new_cell + at, packed);
    }
}

extern "C" __global__ void __launch_bounds__(256) lltm_step(
    const scalar_t* __restrict__ bias,      // (3, S) or null
    const scalar_t* __restrict__ old_cell,  // (B, S)
    scalar_t* __restrict__ gates,           // (B, 3, S)
    scalar_t* __restrict__ new_h,           // (B, S)
    scalar_t* __restrict__ new_cell,        // (B, S)
    long long B, long long S, long long columns, long long rows) {
    const Step step{bias, old_cell, gates, new_h, new_cell, B, S};
    const bool vectors = aligned<VECTOR_WIDTH>(gates) && aligned<VECTOR_WIDTH>(bias) && aligned<VECTOR_WIDTH>(old_cell) &&
                         aligned<VECTOR_WIDTH>(new_h) && aligned<VECTOR_WIDTH>(new_cell);
    if (vectors || VECTOR_WIDTH == 1) step_rows<true>(step);
    else step_rows<false>(step);
}

#endif
