// All steps of an LLTM over a sequence in one launch, with the weights in registers. On input z_t is x_t·W_xᵀ + b.
//
//   z_t += h_{t-1}·W_hᵀ    c_t = c_{t-1} + elu(z_g)·σ(z_i)    h_t = tanh(c_t)·σ(z_o)
//
//   T steps, B rows, S units    all arrays: scalar_t (float16, bfloat16, float32)    arithmetic, and c from step to step: acc_t
//   z: (T, B, 3S), in the order i, o, g    h, c: (T, B, S)    the last h and c: (2, B, S)    W_h: the first S columns of (3S, K)
//
// lltm_sequence.cuh describes which block has which rows and units.
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

// Each thread computes a row. c holds the cell states in acc_t from step to step.
extern "C" __global__ void lltm_sequence_naive(
    const scalar_t* weights,  // (3, S, K)
    const scalar_t* first_h,  // (B, S)
    const scalar_t* first_c,  // (B, S)
    scalar_t* gates,          // (T, B, 3, S)
    scalar_t* h,              // (T, B, S)
    scalar_t* cells,          // (T, B, S)
    scalar_t* last,           // (2, B, S)
    acc_t* c,                 // (B, S)
    long long T, long long B, long long S, long long K) {
    const long long b = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (b >= B) return;
    for (long long n = b * S; n < (b + 1) * S; ++n) c[n] = convert<acc_t>(first_c[n]);
    for (long long t = 0; t < T; ++t)
        for (long long s = 0; s < S; ++s) {
            const scalar_t* before = (t ? h + (t - 1) * B * S : first_h) + b * S;
            acc_t z[3];
            for (int gate = 0; gate < 3; ++gate) {
                scalar_t& stored = gates[((t * B + b) * 3 + gate) * S + s];
                acc_t sum = convert<acc_t>(stored);
                for (long long k = 0; k < S; ++k)
                    sum += convert<acc_t>(weights[(gate * S + s) * K + k]) * convert<acc_t>(before[k]);
                z[gate] = convert<acc_t>(stored = convert<scalar_t>(sum));
            }
            const NaiveUnit unit(z[0], z[1], z[2]);
            const long long n = b * S + s;
            c[n] += unit.g * unit.i;
            last[n] = h[t * B * S + n] = convert<scalar_t>(tanh(c[n]) * unit.o);
            last[B * S + n] = cells[t * B * S + n] = convert<scalar_t>(c[n]);
        }
}

#else

#include "lltm_sequence.cuh"

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, 1) lltm_sequence(
    const scalar_t* __restrict__ weights,  // (3, S, K)
    const scalar_t* __restrict__ first_h,  // (B, S)
    const scalar_t* __restrict__ first_c,  // (B, S)
    scalar_t* __restrict__ gates,          // (T, B, 3, S)
    scalar_t* h,                           // (T, B, S)
    scalar_t* __restrict__ cells,          // (T, B, S)
    scalar_t* __restrict__ last,           // (2, B, S)
    int* counters,                         // (tiles) or null
    long long T, long long B, long long S, long long K, long long tiles, long long teams, long long blocks) {
    __shared__ Arrivals arrivals[2];
    Exchange<1> exchange(arrivals);
    const Share mine;
    const Weights w(mine, [&](int gate, int k) { return convert<acc_t>(weights[(gate * STATE + mine.unit) * K + k]); });
    for (long long tile = blockIdx.x / BLOCKS; tile < tiles; tile += teams) {
        exchange.clear();
        const long long first_row = tile * TILE;
        for (int n = static_cast<int>(threadIdx.x); n < TILE * STATE; n += BLOCK_THREADS)
            if (first_row + n / STATE < B)
                exchange.row(n / STATE, 0)[n % STATE] = convert<acc_t>(first_h[first_row * STATE + n]);
        acc_t c[GROUPS], z[GROUPS][GATES];
        const int row = static_cast<int>(first_row) + mine.row, rows = static_cast<int>(B);
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int place = place_of(row + g * ROWS, mine.unit), z_place = z_place_of(row + g * ROWS, mine.unit);
            const bool there = mine.there && row + g * ROWS < rows;
            c[g] = there ? convert<acc_t>(first_c[place]) : acc_t(0);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate)
                z[g][gate] = there ? convert<acc_t>(gates[z_place + gate * STATE]) : acc_t(0);
        }
        sync_cluster();
        for (long long t = 0; t < T; ++t) {
            scalar_t* const h_t = h + t * B * STATE;
            scalar_t* const cells_t = cells + t * B * STATE;
            scalar_t* const gates_t = gates + t * B * GATES * STATE;
            const scalar_t* const gates_next = gates_t + B * GATES * STATE;
            acc_t made[GROUPS];
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                const int place = place_of(row + g * ROWS, mine.unit), z_place = z_place_of(row + g * ROWS, mine.unit);
                const bool there = mine.there && row + g * ROWS < rows;
                const acc_t given[GATES] = {z[g][0], z[g][1], z[g][2]};
                if (there && t + 1 < T)  // in flight during this step's product
#pragma unroll
                    for (int gate = 0; gate < GATES; ++gate) z[g][gate] = convert<acc_t>(gates_next[z_place + gate * STATE]);
                acc_t sums[ROWS * GATES];
#pragma unroll
                for (int n = 0; n < ROWS * GATES; ++n) sums[n] = 0;
#pragma unroll
                for (int i = 0; i < STEPS; ++i) {
                    const Four weight[GATES] = {w.of[0][i], w.of[1][i], w.of[2][i]};
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        const Four four = *reinterpret_cast<const Four*>(exchange.row(g * ROWS + r, 0) + mine.element(i));
#pragma unroll
                        for (int q = 0; q < 4; ++q)
#pragma unroll
                            for (int gate = 0; gate < GATES; ++gate)
                                sums[r * GATES + gate] = fma(weight[gate].of[q], four.of[q], sums[r * GATES + gate]);
                    }
                }
                sum_over_lanes<ROWS, PARTS, GATES>(sums);
                scalar_t rounded[GATES];
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) rounded[gate] = convert<scalar_t>(sums[gate] + given[gate]);
                const Unit unit(convert<acc_t>(rounded[0]), convert<acc_t>(rounded[1]), convert<acc_t>(rounded[2]));
                c[g] = unit.cell(c[g]);
                const scalar_t new_h = convert<scalar_t>(unit.hidden(c[g]));
                made[g] = there ? convert<acc_t>(new_h) : acc_t(0);
                if (there && mine.writes) {
#pragma unroll
                    for (int gate = 0; gate < GATES; ++gate) gates_t[z_place + gate * STATE] = rounded[gate];
                    h_t[place] = new_h;
                    cells_t[place] = convert<scalar_t>(c[g]);
                    if (t + 1 == T) {
                        last[place] = new_h;
                        (last + B * STATE)[place] = convert<scalar_t>(c[g]);
                    }
                }
            }
            if (t + 1 == T) break;
            ++exchange.turn;
            if (TEAM == 1)
#pragma unroll
                for (int g = 0; g < GROUPS; ++g)
                    if (mine.writes) exchange.publish(g * ROWS + mine.row, 0, mine.unit, made[g]);
            exchange.all_gather(h_t + first_row * STATE, B - first_row, counters + tile, t + 1);
        }
    }
}

#endif
