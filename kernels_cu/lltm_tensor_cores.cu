// All steps of an LLTM over a sequence in one launch, like lltm_sequence.cu, on tensor cores: for weights that do not
// fit the registers of a block or a cluster. On input z_t is x_t·W_xᵀ + b.
//
//   z_t += h_{t-1}·W_hᵀ    c_t = c_{t-1} + elu(z_g)·σ(z_i)    h_t = tanh(c_t)·σ(z_o)
//
//   T steps, B rows, S units    all arrays: scalar_t (float16, bfloat16)    arithmetic, and c from step to step: acc_t (float32)
//   z: (T, B, 3S), in the order i, o, g    h, c: (T, B, S)    the last h and c: (2, B, S)    W_h: the first S columns of (3S, K)
//
// A block multiplies h_{t-1} by the 48 rows of W_h that are the gates of its 16 units, as lltm_tensor_cores.cuh
// describes.
//
// Macro           values          meaning                                           set by
// STATE           S, up to 1024   units of a row, a multiple of 32                  sequence_config (cupyops/ops/lltm/config.py)
// TEAM            S / 16          blocks of a team, anywhere on the GPU             sequence_config (cupyops/ops/lltm/config.py)
// BLOCK_THREADS   256             16 units of 16 rows                               TensorCoresConfig.block (cupyops/ops/lltm/config.py)
// ROWS            16              rows that a team has at once                      TensorCoresConfig.rows (cupyops/ops/lltm/config.py)
// GROUPS          1, 2, 4         groups of 16 rows, one after the other            TeamConfig.for_rows (cupyops/tiling/teams.py)
// The naive kernel is in lltm_sequence.cu.
#include "scalar.cuh"
#include "lltm_tensor_cores.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) lltm_tensor_cores(
    const scalar_t* __restrict__ weights,  // (3, S, K)
    const scalar_t* __restrict__ first_h,  // (B, S)
    const scalar_t* __restrict__ first_c,  // (B, S)
    scalar_t* __restrict__ gates,          // (T, B, 3, S)
    scalar_t* h,                           // (T, B, S)
    scalar_t* __restrict__ cells,          // (T, B, S)
    scalar_t* __restrict__ last,           // (2, B, S)
    int* counters,                         // (tiles)
    long long T, long long B, long long S, long long K, long long tiles, long long teams, long long blocks) {
    const int first_unit = rank_in_team() * UNITS;
    const TeamProduct<GATES, STATE> product(
        [&](int gate, int unit, int k) { return weights[(gate * STATE + first_unit + unit) * K + k]; });
    for (long long tile = blockIdx.x / BLOCKS; tile < tiles; tile += teams) {
        const long long first_row = tile * ROWS * GROUPS;
        const Own own(first_row, B);
        acc_t c[GROUPS], z[GROUPS][GATES];
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            c[g] = own.there(g) ? convert<acc_t>(first_c[own.place(g)]) : acc_t(0);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate)
                z[g][gate] = own.there(g) ? convert<acc_t>(gates[own.z_place(g) + gate * STATE]) : acc_t(0);
        }
        for (long long t = 0; t < T; ++t) {
            scalar_t* const h_t = h + t * B * STATE;
            scalar_t* const cells_t = cells + t * B * STATE;
            scalar_t* const gates_t = gates + t * B * GATES * STATE;
            const scalar_t* const gates_next = gates_t + B * GATES * STATE;
            const scalar_t* const before = (t ? h_t - B * STATE : first_h) + first_row * STATE;
            product.for_each_group(before, B - first_row, t || aligned<8>(before), [&](int g, const float (&sums)[GATES]) {
                scalar_t rounded[GATES];
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) rounded[gate] = convert<scalar_t>(sums[gate] + z[g][gate]);
                if (!own.there(g)) return;
                if (t + 1 < T)  // in flight during the team's barrier
#pragma unroll
                    for (int gate = 0; gate < GATES; ++gate)
                        z[g][gate] = convert<acc_t>(gates_next[own.z_place(g) + gate * STATE]);
                const Unit unit(convert<acc_t>(rounded[0]), convert<acc_t>(rounded[1]), convert<acc_t>(rounded[2]));
                c[g] = unit.cell(c[g]);
                const scalar_t new_h = convert<scalar_t>(unit.hidden(c[g])), new_c = convert<scalar_t>(c[g]);
                h_t[own.place(g)] = new_h;
                cells_t[own.place(g)] = new_c;
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) gates_t[own.z_place(g) + gate * STATE] = rounded[gate];
                if (t + 1 == T) {
                    last[own.place(g)] = new_h;
                    (last + B * STATE)[own.place(g)] = new_c;
                }
            });
            if (t + 1 < T) team_barrier(counters + tile, t + 1);
        }
        __syncthreads();  // all threads have read the last step's sums
    }
}
