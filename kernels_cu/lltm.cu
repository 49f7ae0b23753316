// One step of the long-long-term memory, a recurrent cell without a gate to forget (B rows, F features, S units):
//
//   z = [h, x]·Wᵀ + b    i = σ(z_i)    o = σ(z_o)    g = elu(z_g)    c' = c + g·i    h' = tanh(c')·o
//
//   x: scalar_t (B, F)      h, c, h', c': (B, S)      z, in the order i, o, g: (B, 3S)      W: (3S, S + F)      b: (3S)
//   arithmetic: acc_t
//
// What is kept for the gradient is z, which lies in memory anyway: the gates and their derivatives are made of it again in
// registers. The gradients stand in lltm.cuh; with dz = dL/dz, (3S) a row,
//
//   dL/d[h, x] = dz·W      dL/dW = Σ_rows dzᵀ·[h, x]      dL/db = Σ_rows dz
//
// Each direction in one kernel, the products included, where they are small; else what stands between the products.
// Gradients of the results may have any strides, 0 after a sum.
#include "lltm.cuh"
#include "packed.cuh"

// The step between the products: ABREAST accesses of VECTOR_WIDTH units by as many rows a block as make 256 threads

// 1: gates come without the bias, and leave with it.
#ifndef ADD_BIAS
#define ADD_BIAS 0
#endif

#ifndef ABREAST
#define ABREAST 32
#endif

constexpr long long DOWN = 256 / ABREAST;

struct Place {
    long long row, column;

    __device__ __forceinline__ Place() {
        row = blockIdx.y * DOWN + threadIdx.y;
        column = (blockIdx.x * static_cast<long long>(ABREAST) + threadIdx.x) * VECTOR_WIDTH;
    }
};

template <typename T> __device__ __forceinline__ bool whole(const T* p) {
    return reinterpret_cast<unsigned long long>(p) % (VECTOR_WIDTH * sizeof(T)) == 0;
}

// The rows [h, x] of which all products over the steps are made, with h of the step before.
extern "C" __global__ void __launch_bounds__(256) lltm_inputs(
    const scalar_t* __restrict__ first_h,  // (B, S)
    const scalar_t* __restrict__ h,        // (T, B, S) or null, of one step
    const scalar_t* __restrict__ x,        // (T, B, F)
    scalar_t* __restrict__ inputs,         // (T, B, K)
    long long T, long long B, long long F, long long S, long long K, long long columns, long long rows) {
    const Place place;
    if (place.column >= K) return;
    const bool of_h = place.column < S;
    const bool vectors = whole(first_h) && whole(h) && whole(x) && whole(inputs);
    for (long long n = place.row; n < T * B; n += gridDim.y * DOWN) {
        const long long at = n * S + place.column;
        const scalar_t* from = !of_h ? x + (n * F + place.column - S) : n < B ? first_h + at : h + (at - B * S);
        store_packed(inputs + n * K + place.column, load_packed(from, vectors), vectors);
    }
}

// The gradient of such rows of one step, each half where it belongs.
extern "C" __global__ void __launch_bounds__(256) lltm_inputs_backward(
    const scalar_t* __restrict__ grad_inputs,  // (B, K)
    scalar_t* __restrict__ grad_h,             // (B, S)
    scalar_t* __restrict__ grad_x,             // (B, F)
    long long B, long long F, long long S, long long K, long long columns, long long rows) {
    const Place place;
    if (place.column >= K) return;
    const bool of_h = place.column < S;
    const bool vectors = whole(grad_inputs) && whole(grad_h) && whole(grad_x);
    for (long long n = place.row; n < B; n += gridDim.y * DOWN) {
        scalar_t* to = of_h ? grad_h + (n * S + place.column) : grad_x + (n * F + place.column - S);
        store_packed(to, load_packed(grad_inputs + n * K + place.column, vectors), vectors);
    }
}

// A gradient of any strides: whether it is there at all, and its strides by row and column.
__device__ __forceinline__ acc_t view_at(const scalar_t* p, const Int64s<3>& view, long long b, long long s) {
    return view[0] ? convert<acc_t>(p[b * view[1] + s * view[2]]) : acc_t(0);
}

// Whether it can be read by whole accesses: it is absent, one number a row, or rows that begin where an access may.
__device__ __forceinline__ bool whole_rows(const scalar_t* p, const Int64s<3>& view) {
    return !view[0] || view[2] == 0 || (view[2] == 1 && view[1] % VECTOR_WIDTH == 0 && whole(p));
}

// VECTOR_WIDTH units of it; with VECTORS, whole_rows has said yes.
template <bool VECTORS>
__device__ __forceinline__ Packed<scalar_t> load_view(const scalar_t* p, const Int64s<3>& view, long long b, long long s) {
    if constexpr (VECTORS) {
        if (view[0] && view[2] == 1) return load_packed(p + (b * view[1] + s), true);
        return Packed<scalar_t>::of(view_at(p, view, b, s));
    } else {
        acc_t v[VECTOR_WIDTH];
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) v[k] = view_at(p, view, b, s + k);
        Packed<scalar_t> packed;
        packed.set(v);
        return packed;
    }
}

// Aligned rows and others have loops of their own, or the instructions of both are issued for each.
template <bool VECTORS>
__device__ __forceinline__ void step_rows(
    scalar_t* gates, const scalar_t* bias, const scalar_t* old_cell, scalar_t* new_h, scalar_t* new_cell, long long B,
    long long S) {
    const Place place;
    if (place.column >= S) return;
    Packed<scalar_t> biases[GATES];
    if (ADD_BIAS)
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) biases[gate] = load_packed(bias + gate * S + place.column, VECTORS);
    for (long long b = place.row; b < B; b += gridDim.y * DOWN) {
        scalar_t* const z_at = gates + b * GATES * S + place.column;
        const long long at = b * S + place.column;
        Packed<scalar_t> z[GATES];
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) z[gate] = load_packed(z_at + gate * S, VECTORS);
        const Packed<scalar_t> old = load_packed(old_cell + at, VECTORS);
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
        store_row<VECTORS>(new_h + at, packed);
        packed.set(c);
        store_row<VECTORS>(new_cell + at, packed);
    }
}

extern "C" __global__ void __launch_bounds__(256) lltm_step(
    const scalar_t* __restrict__ bias,      // (3, S) or null
    const scalar_t* __restrict__ old_cell,  // (B, S)
    scalar_t* __restrict__ gates,           // (B, 3, S)
    scalar_t* __restrict__ new_h,           // (B, S)
    scalar_t* __restrict__ new_cell,        // (B, S)
    long long B, long long S, long long columns, long long rows) {
    const bool vectors = whole(gates) && whole(bias) && whole(old_cell) && whole(new_h) && whole(new_cell);
    if (vectors || VECTOR_WIDTH == 1) step_rows<true>(gates, bias, old_cell, new_h, new_cell, B, S);
    else step_rows<false>(gates, bias, old_cell, new_h, new_cell, B, S);
}

template <bool VECTORS>
__device__ __forceinline__ void step_back_rows(
    const scalar_t* grad_h, const scalar_t* grad_cell, const scalar_t* __restrict__ grad_gates,
    const scalar_t* __restrict__ gates, const scalar_t* __restrict__ new_cell, scalar_t* __restrict__ grad_z,
    scalar_t* __restrict__ grad_old, acc_t (&sums)[GATES][VECTOR_WIDTH], const Int64s<3>& h_view, const Int64s<3>& cell_view,
    long long B, long long S, long long parts) {
    const Place place;
    if (place.column >= S) return;
    for (long long b = place.row; b < B; b += parts * DOWN) {
        const long long at = b * S + place.column, z_at = b * GATES * S + place.column;
        Packed<scalar_t> z[GATES];
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) z[gate] = load_packed(gates + z_at + gate * S, VECTORS);
        const Packed<scalar_t> cell = load_packed(new_cell + at, VECTORS);
        const Packed<scalar_t> dh = load_view<VECTORS>(grad_h, h_view, b, place.column);
        const Packed<scalar_t> given_dc = load_view<VECTORS>(grad_cell, cell_view, b, place.column);
        acc_t dc[VECTOR_WIDTH], out[GATES][VECTOR_WIDTH];
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) {
            acc_t dz[GATES];
            dc[k] = given_dc[k];
            Unit(z[0][k], z[1][k], z[2][k]).back(cell[k], dh[k], dc[k], dz);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) out[gate][k] = dz[gate];
        }
        Packed<scalar_t> packed;
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) {
            if (grad_gates != nullptr) {
                const Packed<scalar_t> more = load_packed(grad_gates + z_at + gate * S, VECTORS);
#pragma unroll
                for (int k = 0; k < VECTOR_WIDTH; ++k) out[gate][k] += more[k];
            }
            packed.set(out[gate]);
            store_packed(grad_z + z_at + gate * S, packed, VECTORS);
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) sums[gate][k] += out[gate][k];
        }
        if (grad_old != nullptr) {
            packed.set(dc);
            store_packed(grad_old + at, packed, VECTORS);
        }
    }
}

// Blocks stay, and each leaves its part of dL/db; or dL/db itself, where the rows are one part.
extern "C" __global__ void __launch_bounds__(256, 2) lltm_step_backward(
    const scalar_t* grad_h,     // a view, see the strides
    const scalar_t* grad_cell,  // a view
    const scalar_t* __restrict__ grad_gates,   // (B, 3, S) or null
    const scalar_t* __restrict__ gates,        // (B, 3, S)
    const scalar_t* __restrict__ new_cell,     // (B, S)
    scalar_t* __restrict__ grad_z,             // (B, 3, S)
    scalar_t* __restrict__ grad_old,           // (B, S) or null
    acc_t* __restrict__ partial,               // (parts, 3, S) or null
    scalar_t* __restrict__ grad_bias,          // (3, S) or null, in place of one part
    Int64s<3> h_view, Int64s<3> cell_view, long long B, long long S, long long parts, long long columns, long long rows) {
    __shared__ acc_t shared_sums[DOWN][ABREAST * VECTOR_WIDTH];
    acc_t sums[GATES][VECTOR_WIDTH];
#pragma unroll
    for (int gate = 0; gate < GATES; ++gate)
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) sums[gate][k] = 0;
    const bool vectors = whole(gates) && whole(new_cell) && whole(grad_z) && whole(grad_old) && whole(grad_gates) &&
                         whole_rows(grad_h, h_view) && whole_rows(grad_cell, cell_view);
    if (vectors || VECTOR_WIDTH == 1)
        step_back_rows<true>(
            grad_h, grad_cell, grad_gates, gates, new_cell, grad_z, grad_old, sums, h_view, cell_view, B, S, parts);
    else
        step_back_rows<false>(
            grad_h, grad_cell, grad_gates, gates, new_cell, grad_z, grad_old, sums, h_view, cell_view, B, S, parts);
    if (partial == nullptr && grad_bias == nullptr) return;
    for (int gate = 0; gate < GATES; ++gate) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) shared_sums[threadIdx.y][threadIdx.x * VECTOR_WIDTH + k] = sums[gate][k];
        __syncthreads();
        for (int n = static_cast<int>(threadIdx.y * ABREAST + threadIdx.x); n < ABREAST * VECTOR_WIDTH; n += 256) {
            const long long column = blockIdx.x * static_cast<long long>(ABREAST * VECTOR_WIDTH) + n;
            acc_t total = 0;
            for (int i = 0; i < DOWN; ++i) total += shared_sums[i][n];
            if (column >= S) continue;
            if (grad_bias != nullptr) grad_bias[gate * S + column] = convert<scalar_t>(total);
            else partial[(blockIdx.y * GATES + gate) * S + column] = total;
        }
    }
}

// sums[j] = Σ_p partial[p, j], in a fixed order: 32 columns a block, whose 32 warps take turns at the rows.
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

// A whole cell in one kernel

constexpr int TILE = 16;     // rows of a block
constexpr int CHUNK = 128;   // features of [h, x] that lie in shared memory at once
constexpr int WARPS = 4;     // of a block of the forward, and its units

__device__ __forceinline__ acc_t input_at(const scalar_t* x, const scalar_t* h, long long b, long long k, long long F, long long S) {
    return convert<acc_t>(k < S ? h[b * S + k] : x[b * F + (k - S)]);
}

// One warp makes the gates of one unit for all rows of the tile: its lanes take turns at the features.
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
        __syncthreads();  // the last chunk has been used
        for (int n = static_cast<int>(threadIdx.x); n < TILE * CHUNK; n += WARPS * 32) {
            const int r = n / CHUNK, k = n % CHUNK;
            const bool there = first_row + r < B && k < count;
            inputs[r][k] = there ? input_at(x, old_h, first_row + r, start + k, F, S) : acc_t(0);
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
        // Rounded, as a later gradient reads it.
        const scalar_t rounded = convert<scalar_t>(sums[gate] + convert<acc_t>(bias[gate * S + s]));
        gates[(b * GATES + gate) * S + s] = rounded;
        z[gate] = convert<acc_t>(rounded);
    }
    const Unit unit(z[0], z[1], z[2]);
    const acc_t c = unit.cell(convert<acc_t>(old_cell[b * S + s]));
    new_cell[b * S + s] = convert<scalar_t>(c);
    new_h[b * S + s] = convert<scalar_t>(unit.hidden(c));
}

// What the cell's backward reads to make dz of any row and unit.
struct Back {
    const scalar_t *grad_h, *grad_cell, *grad_gates, *gates, *new_cell;
    Int64s<3> h_view, cell_view;
    long long B, S;

    __device__ __forceinline__ void at(long long b, long long s, acc_t (&dz)[GATES], acc_t& dc) const {
        dz[0] = dz[1] = dz[2] = dc = 0;
        if (b >= B || s >= S) return;
        const scalar_t* z = gates + b * GATES * S + s;
        dc = view_at(grad_cell, cell_view, b, s);
        const acc_t dh = view_at(grad_h, h_view, b, s);
        Unit(convert<acc_t>(z[0]), convert<acc_t>(z[S]), convert<acc_t>(z[2 * S]))
            .back(convert<acc_t>(new_cell[b * S + s]), dh, dc, dz);
        if (grad_gates)
            for (int gate = 0; gate < GATES; ++gate) dz[gate] += convert<acc_t>(grad_gates[(b * GATES + gate) * S + s]);
    }
};

constexpr int BACK_ROWS = 4;    // of dL/d[h, x], by 32 columns, in a block
constexpr int BACK_UNITS = 4;   // of dL/dW, by 256 columns, in a block
constexpr int BACK_WARPS = 8;   // of a block, each with its share of the sum over the gates

// dL/d[h, x] = dz·W, and dL/dc. The warps take turns at the units; in the end their sums are added in order.
__device__ void back_to_inputs(
    const Back& back, const scalar_t* weights, scalar_t* grad_x, scalar_t* grad_old_h, scalar_t* grad_old_cell, long long F,
    long long K, long long block) {
    __shared__ acc_t dz[BACK_WARPS * 32][GATES][BACK_ROWS];
    __shared__ acc_t parts[BACK_WARPS][BACK_ROWS][32];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const long long S = back.S, column_blocks = (K + 31) / 32;
    const long long first_row = block / column_blocks * BACK_ROWS, k = block % column_blocks * 32 + lane;
    acc_t sums[BACK_ROWS];
#pragma unroll
    for (int r = 0; r < BACK_ROWS; ++r) sums[r] = 0;
    for (long long start = 0; start < S; start += BACK_WARPS * 32) {
        // Each thread a unit.
        const long long s = start + threadIdx.x;
#pragma unroll
        for (int r = 0; r < BACK_ROWS; ++r) {
            acc_t unit_dz[GATES], dc;
            back.at(first_row + r, s, unit_dz, dc);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) dz[threadIdx.x][gate][r] = unit_dz[gate];
            if (grad_old_cell && block % column_blocks == 0 && s < S && first_row + r < back.B)
                grad_old_cell[(first_row + r) * S + s] = convert<scalar_t>(dc);
        }
        __syncthreads();
        const int count = static_cast<int>(S - start < BACK_WARPS * 32 ? S - start : BACK_WARPS * 32);
        if (k < K)
#pragma unroll 8
            for (int u = warp; u < count; u += BACK_WARPS)
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) {
                    const acc_t w = convert<acc_t>(weights[(gate * S + start + u) * K + k]);
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
    if (k < S && grad_old_h) grad_old_h[b * S + k] = convert<scalar_t>(total);
    if (k >= S && grad_x) grad_x[b * F + k - S] = convert<scalar_t>(total);
}

// dL/dW = Σ_rows dzᵀ·[h, x] and dL/db = Σ_rows dz.
__device__ void back_to_weights(
    const Back& back, const scalar_t* x, const scalar_t* old_h, scalar_t* grad_weights, scalar_t* grad_bias, long long F,
    long long K, long long block) {
    __shared__ acc_t dz[TILE][BACK_UNITS][4];
    const int t = static_cast<int>(threadIdx.x);
    const long long S = back.S, column_blocks = (K + 255) / 256;
    const long long first_unit = block / column_blocks * BACK_UNITS, k = block % column_blocks * 256 + t;
    acc_t sums[BACK_UNITS][GATES], bias_sum = 0;
#pragma unroll
    for (int u = 0; u < BACK_UNITS; ++u) sums[u][0] = sums[u][1] = sums[u][2] = 0;
    for (long long first_row = 0; first_row < back.B; first_row += TILE) {
        acc_t v[TILE];
#pragma unroll
        for (int r = 0; r < TILE; ++r)
            v[r] = k < K && first_row + r < back.B ? input_at(x, old_h, first_row + r, k, F, S) : acc_t(0);
        __syncthreads();  // the last tile has been used
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
    if (grad_weights && k < K)
#pragma unroll
        for (int u = 0; u < BACK_UNITS; ++u)
            if (first_unit + u < S)
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate)
                    grad_weights[(gate * S + first_unit + u) * K + k] = convert<scalar_t>(sums[u][gate]);
    if (grad_bias && block % column_blocks == 0 && t < BACK_UNITS * GATES && first_unit + t / GATES < S)
        grad_bias[t % GATES * S + first_unit + t / GATES] = convert<scalar_t>(bias_sum);
}

// The first blocks make the gradients of the inputs, the others those of the weights; each makes the dz that it needs.
extern "C" __global__ void __launch_bounds__(BACK_WARPS * 32, 1) lltm_cell_backward(
    const scalar_t* grad_h,     // a view, see the strides
    const scalar_t* grad_cell,  // a view
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
    const Back back{grad_h, grad_cell, grad_gates, gates, new_cell, h_view, cell_view, B, S};
    if (blockIdx.x < input_blocks) back_to_inputs(back, weights, grad_x, grad_old_h, grad_old_cell, F, K, blockIdx.x);
    else back_to_weights(back, x, old_h, grad_weights, grad_bias, F, K, blockIdx.x - input_blocks);
}
