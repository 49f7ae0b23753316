// The gradient of all steps of an LLTM over a sequence in one launch, like lltm_sequence_backward.cu, on tensor cores.
// dv stands for dL/dv.
//
//   dh_t += dz_{t+1}·W_h    dC = dc_t + dh_t·o·(1 - tanh²(c_t))    dc_{t-1} += dC
//   dz_i = dC·g·i·(1 - i)    dz_o = dh_t·tanh(c_t)·o·(1 - o)    dz_g = dC·i·elu'(z_g)    db = Σ_t Σ_rows dz_t
//
//   a gradient of z itself, if there is one, is added to dz_t
//
//   T steps, B rows, S units    all arrays: scalar_t (float16, bfloat16)
//   arithmetic, dc from step to step, db: acc_t (float32)
//   z, dz: (T, B, 3S), in the order i, o, g    h, c: (T, B, S)    the last h and c: (2, B, S)
//   W_h: the first S columns of (3S, K)
//
// A block multiplies dz_{t+1} by the 16 columns of W_h that are its units, as lltm_tensor_cores.cuh describes. One part
// of db is the sum over the steps, and over the groups of a tile.
//
// Macro           values          meaning                                           set by
// STATE           S, up to 1024   units of a row, a multiple of 32                  sequence_config (cupyops/ops/lltm/config.py)
// TEAM            S / 16          blocks of a team, anywhere on the GPU             sequence_config (cupyops/ops/lltm/config.py)
// BLOCK_THREADS   256             16 units of 16 rows                               TensorCoresConfig.block (cupyops/ops/lltm/config.py)
// ROWS            16              rows that a team has at once                      TensorCoresConfig.rows (cupyops/ops/lltm/config.py)
// GROUPS          1, 2, 4         groups of 16 rows, one after the other            TeamConfig.for_rows (cupyops/tiling/teams.py)
// The naive kernel is in lltm_sequence_backward.cu.
#include "scalar.cuh"
#include "lltm_tensor_cores.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) lltm_tensor_cores_backward(
    const scalar_t* __restrict__ grad_h,      // (T, B, S) or null
    const scalar_t* __restrict__ grad_last,   // (2, B, S) or null
    const scalar_t* __restrict__ grad_cells,  // (T, B, S) or null
    const scalar_t* __restrict__ grad_gates,  // (T, B, 3, S) or null
    const scalar_t* __restrict__ weights,     // (3, S, K)
    const scalar_t* __restrict__ gates,       // (T, B, 3, S)
    const scalar_t* __restrict__ cells,       // (T, B, S)
    scalar_t* grad_z,                         // (T, B, 3, S)
    scalar_t* __restrict__ grad_first_h,      // (B, S)
    scalar_t* __restrict__ grad_first_c,      // (B, S)
    acc_t* __restrict__ bias_sums,            // (parts, 3, S)
    int* counters,                            // (tiles)
    long long T, long long B, long long S, long long K, long long parts, long long tiles, long long teams, long long blocks) {
    const int first_unit = rank_in_team() * UNITS;
    const TeamProduct<1, GATES * STATE> product([&](int, int unit, int j) { return weights[j * K + first_unit + unit]; });
    for (long long tile = blockIdx.x / BLOCKS; tile < tiles; tile += teams) {
        const long long first_row = tile * ROWS * GROUPS;
        const Own own(first_row, B);
        acc_t dh[GROUPS], dc[GROUPS], bias_sum[GATES] = {0, 0, 0};
        acc_t z[GROUPS][GATES], cell[GROUPS], more[GROUPS];
        auto prefetch = [&](int g, long long t) {
            const long long step = t * B * STATE;
            if (grad_h) more[g] = convert<acc_t>((grad_h + step)[own.place(g)]);
            cell[g] = convert<acc_t>((cells + step)[own.place(g)]);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate)
                z[g][gate] = convert<acc_t>((gates + step * GATES)[own.z_place(g) + gate * STATE]);
        };
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            dh[g] = dc[g] = more[g] = cell[g] = z[g][0] = z[g][1] = z[g][2] = 0;
            if (!own.there(g)) continue;
            if (grad_last) {
                dh[g] = convert<acc_t>(grad_last[own.place(g)]);
                dc[g] = convert<acc_t>((grad_last + B * STATE)[own.place(g)]);
            }
            prefetch(g, T - 1);
        }
        for (long long t = T - 1; t >= 0; --t) {
            const long long step = t * B * STATE;
            scalar_t* const grad_z_t = grad_z + step * GATES;
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                if (!own.there(g)) continue;
                const Unit unit(z[g][0], z[g][1], z[g][2]);
                acc_t dz[GATES];
                if (grad_cells) dc[g] += convert<acc_t>((grad_cells + step)[own.place(g)]);
                unit.back(cell[g], dh[g] + more[g], dc[g], dz);
                if (grad_gates)
                    for (int gate = 0; gate < GATES; ++gate)
                        dz[gate] += convert<acc_t>((grad_gates + step * GATES)[own.z_place(g) + gate * STATE]);
                if (t > 0) prefetch(g, t - 1);  // in flight during the team's barrier
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) {
                    bias_sum[gate] += dz[gate];
                    grad_z_t[own.z_place(g) + gate * STATE] = convert<scalar_t>(dz[gate]);
                }
            }
            team_barrier(counters + tile, T - t);
            product.for_each_group(
                grad_z_t + first_row * GATES * STATE, B - first_row, true,
                [&](int g, const float (&sums)[1]) { dh[g] = sums[0]; });
        }
#pragma unroll
        for (int g = 0; g < GROUPS; ++g)
            if (own.there(g)) {
                grad_first_h[own.place(g)] = convert<scalar_t>(dh[g]);
                grad_first_c[own.place(g)] = convert<scalar_t>(dc[g]);
            }
        const long long part = tile * ROWS + threadIdx.x / UNITS;
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) bias_sums[(part * GATES + gate) * STATE + own.unit] = bias_sum[gate];
    }
}
