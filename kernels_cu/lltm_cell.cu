// One step of an LLTM cell in one kernel, with its matrix product, for small cells.
//
//   z = [h, x]·Wᵀ + b    i = σ(z_i)    o = σ(z_o)    g = elu(z_g)    c' = c + g·i    h' = tanh(c')·o
//
//   B rows, F features, S units, K = S + F    all arrays: scalar_t (float16, bfloat16, float32, float64)    arithmetic: acc_t
//   x: (B, F)    h, c, h', c': (B, S)    z: (B, 3S), in the order i, o, g    W: (3S, K), the columns of h first    b: (3S)
//
// The kernel stores z for the gradient. The gradient recomputes the gates and their derivatives from z, in registers.
// h' and c' are computed from the rounded z that is stored, so forward and gradient use the same gates.
//
// Macro   values   meaning                                           set by
// NAIVE   1        compiles the naive kernel, and not the fast one   tests
#include "scalar.cuh"

#ifdef NAIVE

#include "lltm_naive.cuh"

extern "C" __global__ void lltm_cell_naive(
    const scalar_t* x,         // (B, F)
    const scalar_t* weights,   // (3, S, K)
    const scalar_t* bias,      // (3, S)
    const scalar_t* old_h,     // (B, S)
    const scalar_t* old_cell,  // (B, S)
    scalar_t* new_h,           // (B, S)
    scalar_t* new_cell,        // (B, S)
    scalar_t* gates,           // (B, 3, S)
    long long B, long long F, long long S, long long K) {
    const long long n = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x, b = n / S, s = n % S;
    if (n >= B * S) return;
    acc_t z[3];
    for (int gate = 0; gate < 3; ++gate) {
        acc_t sum = convert<acc_t>(bias[gate * S + s]);
        for (long long k = 0; k < K; ++k)
            sum +=
                convert<acc_t>(weights[(gate * S + s) * K + k]) * convert<acc_t>(k < S ? old_h[b * S + k] : x[b * F + k - S]);
        z[gate] = convert<acc_t>(gates[(b * 3 + gate) * S + s] = convert<scalar_t>(sum));
    }
    const NaiveUnit unit(z[0], z[1], z[2]);
    const acc_t c = convert<acc_t>(old_cell[n]) + unit.g * unit.i;
    new_cell[n] = convert<scalar_t>(c);
    new_h[n] = convert<scalar_t>(tanh(c) * unit.o);
}

#else

#include "lltm.cuh"
#include "lltm_operand.cuh"
#include "warp_sums.cuh"

constexpr int CHUNK = 128;  // features of [h, x] that lie in shared memory at once
constexpr int WARPS = 4;    // warps of a block; a warp computes one unit

// A warp computes the gates of one unit for all rows of a tile. Each lane takes every 32nd feature.
extern "C" __global__ void __launch_bounds__(WARPS * 32) lltm_cell(
    const scalar_t* __restrict__ x,         // (B, F)
    const scalar_t* __restrict__ weights,   // (3, S, K)
    const scalar_t* __restrict__ bias,      // (3, S)
    const scalar_t* __restrict__ old_h,     // (B, S)
    const scalar_t* __restrict__ old_cell,  // (B, S)
    scalar_t* __restrict__ new_h,           // (B, S)
    scalar_t* __restrict__ new_cell,        // (B, S)
    scalar_t* __restrict__ gates,           // (B, 3, S)
    long long B, long long F, long long S, long long K, long long threads, long long tiles) {
    __shared__ acc_t inputs[TILE][CHUNK];
    const Operand operand{x, old_h, F, S};
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const long long first_row = blockIdx.y * static_cast<long long>(TILE);
    const long long s = blockIdx.x * static_cast<long long>(WARPS) + threadIdx.x / 32;
    const scalar_t* row = weights + (s < S ? s : 0) * K;
    acc_t sums[TILE * GATES];
#pragma unroll
    for (int n = 0; n < TILE * GATES; ++n) sums[n] = 0;
    for (long long start = 0; start < K; start += CHUNK) {
        const int count = static_cast<int>(K - start < CHUNK ? K - start : CHUNK);
        acc_t w[CHUNK / 32][GATES];
#pragma unroll
        for (int i = 0; i < CHUNK / 32; ++i)
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) {
                const bool there = i * 32 + lane < count;
                w[i][gate] = there ? convert<acc_t>(row[gate * S * K + start + i * 32 + lane]) : acc_t(0);
            }
        __syncthreads();  // all warps have read the previous chunk
        for (int n = static_cast<int>(threadIdx.x); n < TILE * CHUNK; n += WARPS * 32) {
            const int r = n / CHUNK, k = n % CHUNK;
            const bool there = first_row + r < B && k < count;
            inputs[r][k] = there ? operand.at(first_row + r, start + k) : acc_t(0);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < CHUNK / 32; ++i) {
            if (i * 32 >= count) break;
#pragma unroll
            for (int r = 0; r < TILE; ++r) {
                const acc_t v = inputs[r][i * 32 + lane];
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) sums[r * GATES + gate] = fma(w[i][gate], v, sums[r * GATES + gate]);
            }
        }
    }
    sum_over_lanes<TILE, 32, GATES>(sums);
    const long long b = first_row + lane / 2;
    if (lane % 2 || b >= B || s >= S) return;
    acc_t z[GATES];
#pragma unroll
    for (int gate = 0; gate < GATES; ++gate) {
        const scalar_t rounded = convert<scalar_t>(sums[gate] + convert<acc_t>(bias[gate * S + s]));
        gates[(b * GATES + gate) * S + s] = rounded;
        z[gate] = convert<acc_t>(rounded);
    }
    const Unit unit(z[0], z[1], z[2]);
    const acc_t c = unit.cell(convert<acc_t>(old_cell[b * S + s]));
    new_cell[b * S + s] = convert<scalar_t>(c);
    new_h[b * S + s] = convert<scalar_t>(unit.hidden(c));
}

#endif
