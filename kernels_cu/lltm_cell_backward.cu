// The gradient of one step of an LLTM cell in one kernel, with the matrix products with dz, for small cells.
// dv stands for dL/dv.
//
//   dC = dc' + dh'·o·(1 - tanh²(c'))
//   dz_i = dC·g·i·(1 - i)    dz_o = dh'·tanh(c')·o·(1 - o)    dz_g = dC·i·elu'(z_g)    dc = dC
//   d[h, x] = dz·W           dW = Σ_rows dzᵀ·[h, x]           db = Σ_rows dz
//
//   a gradient of z itself, if there is one, is added to dz
//
//   B rows, F features, S units, K = S + F    all arrays: scalar_t (float16, bfloat16, float32, float64)    arithmetic: acc_t
//   x, dx: (B, F)    h, c', dh, dc: (B, S)    z: (B, 3S), in the order i, o, g    W, dW: (3S, K)    db: (3S)
//   dh', dc': (B, S), of any strides or absent
//
// Macro   values   meaning                                           set by
// NAIVE   1        compiles the naive kernel, and not the fast one   tests
#include "scalar.cuh"

#ifdef NAIVE

#include "lltm_naive.cuh"

// One thread computes everything. The caller fills the results with zeros.
extern "C" __global__ void lltm_cell_backward_naive(
    const scalar_t* grad_h,      // (B, S)
    const scalar_t* grad_cell,   // (B, S)
    const scalar_t* grad_gates,  // (B, 3, S) or null
    const scalar_t* x,           // (B, F)
    const scalar_t* weights,     // (3, S, K)
    const scalar_t* old_h,       // (B, S)
    const scalar_t* new_cell,    // (B, S)
    const scalar_t* gates,       // (B, 3, S)
    acc_t* grad_inputs,          // (B, K)
    acc_t* grad_weights,         // (3, S, K)
    acc_t* grad_bias,            // (3, S)
    acc_t* grad_old_cell,        // (B, S)
    long long B, long long F, long long S, long long K) {
    if (blockIdx.x > 0 || threadIdx.x > 0) return;
    for (long long n = 0; n < B * S; ++n) {
        const long long b = n / S, s = n % S;
        const scalar_t* z = gates + b * 3 * S + s;
        acc_t dz[3], dc = convert<acc_t>(grad_cell[n]);
        NaiveUnit(convert<acc_t>(z[0]), convert<acc_t>(z[S]), convert<acc_t>(z[2 * S]))
            .back(convert<acc_t>(new_cell[n]), convert<acc_t>(grad_h[n]), dc, dz);
        grad_old_cell[n] = dc;
        for (int gate = 0; gate < 3; ++gate) {
            const long long j = gate * S + s;
            if (grad_gates) dz[gate] += convert<acc_t>(grad_gates[b * 3 * S + j]);
            grad_bias[j] += dz[gate];
            for (long long k = 0; k < K; ++k) {
                grad_inputs[b * K + k] += dz[gate] * convert<acc_t>(weights[j * K + k]);
                grad_weights[j * K + k] += dz[gate] * convert<acc_t>(k < S ? old_h[b * S + k] : x[b * F + k - S]);
            }
        }
    }
}

#else

#include "lltm_gradient.cuh"
#include "lltm_operand.cuh"

constexpr int BACK_ROWS = 4;   // rows of d[h, x] of a block, which computes 32 columns of them
constexpr int BACK_UNITS = 4;  // units of dW of a block, which computes 256 columns of them
constexpr int BACK_WARPS = 8;  // warps of a block; a warp adds up a share of the units

struct CellBackward {
    Gradient h, cell;
    const scalar_t *grad_gates, *gates, *new_cell, *weights;
    Operand operand;
    scalar_t *grad_x, *grad_weights, *grad_bias, *grad_old_h, *grad_old_cell;
    long long B, F, S, K;

    // Computes dz and dc of row b and unit s; both are 0 beyond the last row or unit.
    __device__ __forceinline__ void at(long long b, long long s, acc_t (&dz)[GATES], acc_t& dc) const {
        dz[0] = dz[1] = dz[2] = dc = 0;
        if (b >= B || s >= S) return;
        const scalar_t* z = gates + b * GATES * S + s;
        dc = cell.at(b, s);
        const acc_t dh = h.at(b, s);
        Unit(convert<acc_t>(z[0]), convert<acc_t>(z[S]), convert<acc_t>(z[2 * S]))
            .back(convert<acc_t>(new_cell[b * S + s]), dh, dc, dz);
        if (grad_gates)
            for (int gate = 0; gate < GATES; ++gate) dz[gate] += convert<acc_t>(grad_gates[(b * GATES + gate) * S + s]);
    }
};

// d[h, x] = dz·W, and dc. The warps take turns at the units; then their sums are added in order.
__device__ __forceinline__ void back_to_inputs(const CellBackward& back, long long block) {
    __shared__ acc_t dz[BACK_WARPS * 32][GATES][BACK_ROWS];
    __shared__ acc_t parts[BACK_WARPS][BACK_ROWS][32];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const long long S = back.S, K = back.K, column_blocks = (K + 31) / 32;
    const long long first_row = block / column_blocks * BACK_ROWS, k = block % column_blocks * 32 + lane;
    acc_t sums[BACK_ROWS];
#pragma unroll
    for (int r = 0; r < BACK_ROWS; ++r) sums[r] = 0;
    for (long long start = 0; start < S; start += BACK_WARPS * 32) {
        // Each thread computes dz of one unit.
        const long long s = start + threadIdx.x;
#pragma unroll
        for (int r = 0; r < BACK_ROWS; ++r) {
            acc_t unit_dz[GATES], dc;
            back.at(first_row + r, s, unit_dz, dc);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) dz[threadIdx.x][gate][r] = unit_dz[gate];
            if (back.grad_old_cell && block % column_blocks == 0 && s < S && first_row + r < back.B)
                back.grad_old_cell[(first_row + r) * S + s] = convert<scalar_t>(dc);
        }
        __syncthreads();
        const int count = static_cast<int>(S - start < BACK_WARPS * 32 ? S - start : BACK_WARPS * 32);
        if (k < K)
#pragma unroll 8
            for (int u = warp; u < count; u += BACK_WARPS)
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) {
                    const acc_t w = convert<acc_t>(back.weights[(gate * S + start + u) * K + k]);
#pragma unroll
                    for (int r = 0; r < BACK_ROWS; ++r) sums[r] = fma(dz[u][gate][r], w, sums[r]);
                }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < BACK_ROWS; ++r) parts[warp][r][lane] = sums[r];
    __syncthreads();
    const long long b = first_row + warp;
    if (warp >= BACK_ROWS || b >= back.B || k >= K) return;
    acc_t total = 0;
    for (int p = 0; p < BACK_WARPS; ++p) total += parts[p][warp][lane];
    if (k < S && back.grad_old_h) back.grad_old_h[b * S + k] = convert<scalar_t>(total);
    if (k >= S && back.grad_x) back.grad_x[b * back.F + k - S] = convert<scalar_t>(total);
}

// dW = Σ_rows dzᵀ·[h, x] and db = Σ_rows dz.
__device__ __forceinline__ void back_to_weights(const CellBackward& back, long long block) {
    __shared__ acc_t dz[TILE][BACK_UNITS][4];
    const int t = static_cast<int>(threadIdx.x);
    const long long S = back.S, K = back.K, column_blocks = (K + 255) / 256;
    const long long first_unit = block / column_blocks * BACK_UNITS, k = block % column_blocks * 256 + t;
    acc_t sums[BACK_UNITS][GATES], bias_sum = 0;
#pragma unroll
    for (int u = 0; u < BACK_UNITS; ++u) sums[u][0] = sums[u][1] = sums[u][2] = 0;
    for (long long first_row = 0; first_row < back.B; first_row += TILE) {
        acc_t v[TILE];
#pragma unroll
        for (int r = 0; r < TILE; ++r) v[r] = k < K && first_row + r < back.B ? back.operand.at(first_row + r, k) : acc_t(0);
        __syncthreads();  // all threads have read the previous tile
        if (t < TILE * BACK_UNITS) {
            acc_t unit_dz[GATES], dc;
            back.at(first_row + t / BACK_UNITS, first_unit + t % BACK_UNITS, unit_dz, dc);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) dz[t / BACK_UNITS][t % BACK_UNITS][gate] = unit_dz[gate];
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < TILE; ++r)
#pragma unroll
            for (int u = 0; u < BACK_UNITS; ++u)
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) sums[u][gate] = fma(dz[r][u][gate], v[r], sums[u][gate]);
        if (t < BACK_UNITS * GATES)
            for (int r = 0; r < TILE; ++r) bias_sum += dz[r][t / GATES][t % GATES];
    }
    if (back.grad_weights && k < K)
#pragma unroll
        for (int u = 0; u < BACK_UNITS; ++u)
            if (first_unit + u < S)
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate)
                    back.grad_weights[(gate * S + first_unit + u) * K + k] = convert<scalar_t>(sums[u][gate]);
    if (back.grad_bias && block % column_blocks == 0 && t < BACK_UNITS * GATES && first_unit + t / GATES < S)
        back.grad_bias[t % GATES * S + first_unit + t / GATES] = convert<scalar_t>(bias_sum);
}

// The first `input_blocks` blocks compute the gradients of the inputs. The other blocks compute the gradients of the
// weights. Each block recomputes the dz that it needs, so no block waits for another block.
extern "C" __global__ void __launch_bounds__(BACK_WARPS * 32, 1) lltm_cell_backward(
    const scalar_t* grad_h,                   // a view, see the strides
    const scalar_t* grad_cell,                // a view
    const scalar_t* __restrict__ grad_gates,  // (B, 3, S) or null
    const scalar_t* __restrict__ x,           // (B, F)
    const scalar_t* __restrict__ weights,     // (3, S, K)
    const scalar_t* __restrict__ old_h,       // (B, S)
    const scalar_t* __restrict__ new_cell,    // (B, S)
    const scalar_t* __restrict__ gates,       // (B, 3, S)
    scalar_t* __restrict__ grad_x,            // (B, F) or null
    scalar_t* __restrict__ grad_weights,      // (3, S, K) or null
    scalar_t* __restrict__ grad_bias,         // (3, S) or null
    scalar_t* __restrict__ grad_old_h,        // (B, S) or null
    scalar_t* __restrict__ grad_old_cell,     // (B, S) or null
    Int64s<3> h_view, Int64s<3> cell_view, long long B, long long F, long long S, long long K, long long input_blocks,
    long long blocks) {
    const CellBackward back{
        {grad_h, h_view},
        {grad_cell, cell_view},
        grad_gates,
        gates,
        new_cell,
        weights,
        {x, old_h, F, S},
        grad_x,
        grad_weights,
        grad_bias,
        grad_old_h,
        grad_old_cell,
        B,
        F,
        S,
        K};
    if (blockIdx.x < input_blocks) back_to_inputs(back, blockIdx.x);
    else back_to_weights(back, blockIdx.x - input_blocks);
}

#endif
