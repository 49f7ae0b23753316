// The gradient of one step of an LLTM cell, before the products with dz. dv stands for dL/dv.
//
//   dC = dc' + dh'·o·(1 - tanh²(c'))
//   dz_i = dC·g·i·(1 - i)    dz_o = dh'·tanh(c')·o·(1 - o)    dz_g = dC·i·elu'(z_g)    dc = dC    db = Σ_rows dz
//
//   a gradient of z itself, if there is one, is added to dz
//
//   B rows, S units        all arrays: scalar_t (float16, bfloat16, float32, float64), partial: acc_t        arithmetic: acc_t
//   z, dz: (B, 3S), in the order i, o, g    c', dc: (B, S)    dh', dc': (B, S), of any strides or absent    db: (3S)
//
// Macro          values          meaning                                           set by
// VECTOR_WIDTH   1, 2, 4         units of an access; divides S                     TiledKernel.tiles (cupyops/tiling/tiles.py)
// ABREAST        1, 2, 4 .. 32   threads of a block side by side                   Tiles.over (cupyops/tiling/tiles.py)
// NAIVE          1               compiles the naive kernel, and not the fast one   tests
#include "scalar.cuh"

#ifdef NAIVE

#include "lltm_naive.cuh"

extern "C" __global__ void lltm_step_backward_naive(
    const scalar_t* grad_h,      // (B, S)
    const scalar_t* grad_cell,   // (B, S)
    const scalar_t* grad_gates,  // (B, 3, S) or null
    const scalar_t* gates,       // (B, 3, S)
    const scalar_t* new_cell,    // (B, S)
    acc_t* grad_z,               // (B, 3, S)
    acc_t* grad_old,             // (B, S)
    acc_t* grad_bias,            // (3, S)
    long long B, long long S) {
    const long long s = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (s >= S) return;
    for (int gate = 0; gate < 3; ++gate) grad_bias[gate * S + s] = 0;
    for (long long b = 0; b < B; ++b) {
        const scalar_t* z = gates + b * 3 * S + s;
        acc_t dz[3], dc = convert<acc_t>(grad_cell[b * S + s]);
        NaiveUnit(convert<acc_t>(z[0]), convert<acc_t>(z[S]), convert<acc_t>(z[2 * S]))
            .back(convert<acc_t>(new_cell[b * S + s]), convert<acc_t>(grad_h[b * S + s]), dc, dz);
        grad_old[b * S + s] = dc;
        for (int gate = 0; gate < 3; ++gate) {
            const long long at = (b * 3 + gate) * S + s;
            grad_z[at] = dz[gate] + (grad_gates ? convert<acc_t>(grad_gates[at]) : acc_t(0));
            grad_bias[gate * S + s] += grad_z[at];
        }
    }
}

#else

#include "lltm_gradient.cuh"
#include "tiles.cuh"

struct StepBackward {
    Gradient h, cell;
    const scalar_t *grad_gates, *gates, *new_cell;
    scalar_t *grad_z, *grad_old;
    long long B, S, parts;
};

// Adds the dz of a thread's rows to `sums`. Aligned and unaligned rows take separate loops, as in lltm_step.cu.
template <bool VECTORS>
__device__ __forceinline__ void step_back_rows(const StepBackward& step, acc_t (&sums)[GATES][VECTOR_WIDTH]) {
    const long long S = step.S;
    const Place place;
    if (place.column >= S) return;
    for (long long b = place.row; b < step.B; b += step.parts * DOWN) {
        const long long at = b * S + place.column, z_at = b * GATES * S + place.column;
        Packed<scalar_t> z[GATES];
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) z[gate] = load_packed(step.gates + z_at + gate * S, VECTORS);
        const Packed<scalar_t> cell = load_packed(step.new_cell + at, VECTORS);
        const Packed<scalar_t> dh = step.h.load<VECTORS>(b, place.column);
        const Packed<scalar_t> given_dc = step.cell.load<VECTORS>(b, place.column);
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
            if (step.grad_gates != nullptr) {
                const Packed<scalar_t> more = load_packed(step.grad_gates + z_at + gate * S, VECTORS);
#pragma unroll
                for (int k = 0; k < VECTOR_WIDTH; ++k) out[gate][k] += more[k];
            }
            packed.set(out[gate]);
            store_packed(step.grad_z + z_at + gate * S, packed, VECTORS);
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) sums[gate][k] += out[gate][k];
        }
        if (step.grad_old != nullptr) {
            packed.set(dc);
            store_packed(step.grad_old + at, packed, VECTORS);
        }
    }
}

// The blocks are persistent: each block goes through the rows of its part, keeps the sums of dz in registers, and
// writes the sums once. With several parts, blocks write to `partial`, and lltm_sums adds up the parts. With one part,
// blocks write to `grad_bias`.
extern "C" __global__ void __launch_bounds__(256, 2) lltm_step_backward(
    const scalar_t* grad_h,                   // a view, see the strides
    const scalar_t* grad_cell,                // a view
    const scalar_t* __restrict__ grad_gates,  // (B, 3, S) or null
    const scalar_t* __restrict__ gates,       // (B, 3, S)
    const scalar_t* __restrict__ new_cell,    // (B, S)
    scalar_t* __restrict__ grad_z,            // (B, 3, S)
    scalar_t* __restrict__ grad_old,          // (B, S) or null
    acc_t* __restrict__ partial,              // (parts, 3, S) or null
    scalar_t* __restrict__ grad_bias,         // (3, S) or null, in place of one part
    Int64s<3> h_view, Int64s<3> cell_view, long long B, long long S, long long parts, long long columns, long long rows) {
    __shared__ acc_t shared_sums[DOWN][ABREAST * VECTOR_WIDTH];
    acc_t sums[GATES][VECTOR_WIDTH];
#pragma unroll
    for (int gate = 0; gate < GATES; ++gate)
#pragma unroll
        for (int k = 0; k < VECTOR_WIDTH; ++k) sums[gate][k] = 0;
    const StepBackward step{
        {grad_h, h_view}, {grad_cell, cell_view}, grad_gates, gates, new_cell, grad_z, grad_old, B, S, parts};
    const bool vectors = aligned<VECTOR_WIDTH>(gates) && aligned<VECTOR_WIDTH>(new_cell) && aligned<VECTOR_WIDTH>(grad_z) &&
                         aligned<VECTOR_WIDTH>(grad_old) && aligned<VECTOR_WIDTH>(grad_gates) && step.h.vectors() &&
                         step.cell.vectors();
    if (vectors || VECTOR_WIDTH == 1) step_back_rows<true>(step, sums);
    else step_back_rows<false>(step, sums);
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

#endif
