// The gradient of all steps of an LLTM over a sequence in one launch, with the weights in registers.
// dv stands for dL/dv.
//
//   dh_t += dz_{t+1}·W_h    dC = dc_t + dh_t·o·(1 - tanh²(c_t))    dc_{t-1} += dC
//   dz_i = dC·g·i·(1 - i)    dz_o = dh_t·tanh(c_t)·o·(1 - o)    dz_g = dC·i·elu'(z_g)    db = Σ_t Σ_rows dz_t
//
//   a gradient of z itself, if there is one, is added to dz_t
//
//   T steps, B rows, S units    all arrays: scalar_t (float16, bfloat16, float32)    arithmetic, dc from step to step, db: acc_t
//   z, dz: (T, B, 3S), in the order i, o, g    h, c: (T, B, S)    the last h and c: (2, B, S)
//   W_h: the first S columns of (3S, K)
//
// The gradients of x and W are products over all steps at once, computed afterwards. lltm_sequence.cuh describes which
// block has which rows and units. One part of db is the sum over the steps, and over the rows of the same lanes.
//
// Macro           values          meaning                                           set by
// STATE           S, up to 1024   units of a row                                    sequence_config (cupyops/ops/lltm/config.py)
// UNITS           even            units of a block                                  sequence_config (cupyops/ops/lltm/config.py)
// PARTS           2, 4 .. 32      lanes that share a unit                           sequence_config (cupyops/ops/lltm/config.py)
// CLUSTER         1, 2, 4, 8      blocks of a team, where they are a cluster; or 1  sequence_config (cupyops/ops/lltm/config.py)
// TEAM            1, 2 ..         blocks of a team anywhere on the GPU; or 1        sequence_config (cupyops/ops/lltm/config.py)
// BLOCK_THREADS   32, 64 .. 512   UNITS · PARTS, to whole warps                     SequenceConfig.block (cupyops/ops/lltm/config.py)
// ROWS            1, 2, 4         rows that a team has at once, up to PARTS         TeamConfig.for_rows (cupyops/tiling/teams.py)
// GROUPS          1, in tests 2   groups of ROWS rows, one after the other          TeamConfig.for_rows (cupyops/tiling/teams.py)
// NAIVE           1               compiles the naive kernel, and not the fast one   tests
#include "scalar.cuh"

#ifdef NAIVE

#include "lltm_naive.cuh"

// Each thread computes a row. dc holds dL/dc in acc_t from step to step. `bias_sums` holds a part of db for each row;
// the caller fills it with zeros.
extern "C" __global__ void lltm_sequence_backward_naive(
    const scalar_t* grad_h,      // (T, B, S) or null
    const scalar_t* grad_last,   // (2, B, S) or null
    const scalar_t* grad_cells,  // (T, B, S) or null
    const scalar_t* grad_gates,  // (T, B, 3, S) or null
    const scalar_t* weights,     // (3, S, K)
    const scalar_t* gates,       // (T, B, 3, S)
    const scalar_t* cells,       // (T, B, S)
    scalar_t* grad_z,            // (T, B, 3, S)
    scalar_t* grad_first_h,      // (B, S)
    acc_t* dc,                   // (B, S)
    acc_t* bias_sums,            // (B, 3, S)
    long long T, long long B, long long S, long long K) {
    const long long b = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (b >= B) return;
    for (long long n = b * S; n < (b + 1) * S; ++n) dc[n] = grad_last ? convert<acc_t>(grad_last[B * S + n]) : acc_t(0);
    for (long long t = T - 1; t >= -1; --t)
        for (long long s = 0; s < S; ++s) {
            const long long n = b * S + s, at = t * B * S + n, z_at = (t * B + b) * 3 * S + s;
            acc_t dz[3], dh = t == T - 1 && grad_last ? convert<acc_t>(grad_last[n]) : acc_t(0);
            for (long long j = 0; j < 3 * S && t < T - 1; ++j)
                dh += convert<acc_t>(grad_z[((t + 1) * B + b) * 3 * S + j]) * convert<acc_t>(weights[j * K + s]);
            if (t < 0) {
                grad_first_h[n] = convert<scalar_t>(dh);
                continue;
            }
            if (grad_h) dh += convert<acc_t>(grad_h[at]);
            if (grad_cells) dc[n] += convert<acc_t>(grad_cells[at]);
            NaiveUnit(convert<acc_t>(gates[z_at]), convert<acc_t>(gates[z_at + S]), convert<acc_t>(gates[z_at + 2 * S]))
                .back(convert<acc_t>(cells[at]), dh, dc[n], dz);
            for (int gate = 0; gate < 3; ++gate) {
                if (grad_gates) dz[gate] += convert<acc_t>(grad_gates[z_at + gate * S]);
                grad_z[z_at + gate * S] = convert<scalar_t>(dz[gate]);
                bias_sums[(b * 3 + gate) * S + s] += dz[gate];
            }
        }
}

#else

#include "lltm_sequence.cuh"

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, 1) lltm_sequence_backward(
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
    int* counters,                            // (tiles) or null
    long long T, long long B, long long S, long long K, long long parts, long long tiles, long long teams, long long blocks) {
    __shared__ Arrivals arrivals[2];
    Exchange<GATES> exchange(arrivals);
    const Share mine;
    const Weights w(mine, [&](int gate, int k) { return convert<acc_t>(weights[(gate * STATE + k) * K + mine.unit]); });
    for (long long tile = blockIdx.x / BLOCKS; tile < tiles; tile += teams) {
        exchange.clear();
        const long long first_row = tile * TILE;
        const int row = static_cast<int>(first_row) + mine.row, rows = static_cast<int>(B);
        acc_t dh[GROUPS], dc[GROUPS], bias_sum[GATES] = {0, 0, 0};
        acc_t z[GROUPS][GATES], cell[GROUPS], more[GROUPS];
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int place = place_of(row + g * ROWS, mine.unit), z_place = z_place_of(row + g * ROWS, mine.unit);
            dh[g] = dc[g] = more[g] = cell[g] = z[g][0] = z[g][1] = z[g][2] = 0;
            if (!mine.there || row + g * ROWS >= rows) continue;
            if (grad_last) {
                dh[g] = convert<acc_t>(grad_last[place]);
                dc[g] = convert<acc_t>((grad_last + B * STATE)[place]);
            }
            if (grad_h) more[g] = convert<acc_t>((grad_h + (T - 1) * B * STATE)[place]);
            cell[g] = convert<acc_t>((cells + (T - 1) * B * STATE)[place]);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate)
                z[g][gate] = convert<acc_t>((gates + (T - 1) * B * GATES * STATE)[z_place + gate * STATE]);
        }
        for (long long t = T - 1; t >= 0; --t) {
            const long long step = t * B * STATE, before = step - B * STATE;
            scalar_t* const grad_z_t = grad_z + step * GATES;
            ++exchange.turn;
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                const int place = place_of(row + g * ROWS, mine.unit), z_place = z_place_of(row + g * ROWS, mine.unit);
                const bool there = mine.there && row + g * ROWS < rows;
                const Unit unit(z[g][0], z[g][1], z[g][2]);
                acc_t dz[GATES];
                if (there && grad_cells) dc[g] += convert<acc_t>((grad_cells + step)[place]);
                unit.back(cell[g], dh[g] + more[g], dc[g], dz);
                if (there && grad_gates)
                    for (int gate = 0; gate < GATES; ++gate)
                        dz[gate] += convert<acc_t>((grad_gates + step * GATES)[z_place + gate * STATE]);
                if (there && t > 0) {  // in flight during this step's product
                    if (grad_h) more[g] = convert<acc_t>((grad_h + before)[place]);
                    cell[g] = convert<acc_t>((cells + before)[place]);
#pragma unroll
                    for (int gate = 0; gate < GATES; ++gate)
                        z[g][gate] = convert<acc_t>((gates + before * GATES)[z_place + gate * STATE]);
                }
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) {
                    const scalar_t rounded = convert<scalar_t>(dz[gate]);
                    if (there) bias_sum[gate] += dz[gate];
                    if (there && mine.writes) grad_z_t[z_place + gate * STATE] = rounded;
                    if (TEAM == 1 && mine.writes)
                        exchange.publish(g * ROWS + mine.row, gate, mine.unit, there ? convert<acc_t>(rounded) : acc_t(0));
                }
            }
            exchange.all_gather(grad_z_t + first_row * GATES * STATE, B - first_row, counters + tile, T - t);
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                acc_t by_gate[ROWS][GATES], sums[ROWS];
#pragma unroll
                for (int r = 0; r < ROWS; ++r) by_gate[r][0] = by_gate[r][1] = by_gate[r][2] = 0;
#pragma unroll
                for (int i = 0; i < STEPS; ++i)
#pragma unroll
                    for (int gate = 0; gate < GATES; ++gate) {
                        const Four weight = w.of[gate][i];
#pragma unroll
                        for (int r = 0; r < ROWS; ++r) {
                            const Four four =
                                *reinterpret_cast<const Four*>(exchange.row(g * ROWS + r, gate) + mine.element(i));
#pragma unroll
                            for (int q = 0; q < 4; ++q) by_gate[r][gate] = fma(weight.of[q], four.of[q], by_gate[r][gate]);
                        }
                    }
#pragma unroll
                for (int r = 0; r < ROWS; ++r) sums[r] = by_gate[r][0] + by_gate[r][1] + by_gate[r][2];
                sum_over_lanes<ROWS, PARTS, 1>(sums);
                dh[g] = sums[0];
            }
        }
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const long long b = first_row + g * ROWS + mine.row;
            if (mine.writes && b < B) {
                grad_first_h[b * STATE + mine.unit] = convert<scalar_t>(dh[g]);
                grad_first_c[b * STATE + mine.unit] = convert<scalar_t>(dc[g]);
            }
        }
        if (mine.writes)
            for (int gate = 0; gate < GATES; ++gate)
                bias_sums[((tile * ROWS + mine.row) * GATES + gate) * STATE + mine.unit] = bias_sum[gate];
    }
}

#endif
