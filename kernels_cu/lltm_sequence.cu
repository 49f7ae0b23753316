// All steps of an LLTM (lltm.cu) over a sequence in one launch. With z_t = x_t·W_xᵀ + b made for all steps before:
//
//   z_t += h_{t-1}·W_hᵀ    c_t = c_{t-1} + elu(z_g)·σ(z_i)    h_t = tanh(c_t)·σ(z_o)
//
// and back, dz_t of lltm.cuh from dL/dh_t + dz_{t+1}·W_h. What is a product over all steps at once is made afterwards.
//
//   z, dz: scalar_t (T, B, 3S)    h, c: (T, B, S)    the last h and c: (2, B, S)    W_h: the first S columns of (3S, K)
//   arithmetic, c from step to step, and the sums of dz: acc_t
//
// The weights stay in registers for all steps. A team of blocks has TILE = ROWS·GROUPS rows, a block of it UNITS units of
// each, and PARTS neighbouring lanes share a unit: lane p has the weights for the elements 4·(i·PARTS + p) + 0..3 of the row.
// The lanes' sums are added up so that each lane ends up with some of the rows, whose units it then makes.
//
// Who owns what, and the order of every sum, follow from STATE, UNITS and PARTS alone: a row's bits do not depend on how
// many rows there are.
#include "lltm.cuh"
#include "team.cuh"

constexpr int TILE = ROWS * GROUPS;
constexpr int STEPS = (BLOCKS * UNITS + 4 * PARTS - 1) / (4 * PARTS);  // of a thread through a row, 4 elements each
constexpr int WIDTH = STEPS * 4 * PARTS;                               // of a row in shared memory; 0 beyond STATE

struct alignas(16) Four {
    acc_t of[4];
};

struct alignas(8) Two {
    acc_t of[2];
};

extern __shared__ __align__(16) unsigned char row_memory[];

// The rows that all units of the next step need, in shared memory: BANDS vectors of WIDTH numbers a row.
template <int BANDS> struct Exchange {
    acc_t* memory;
    Arrivals* arrivals;  // of each buffer
    unsigned turn;       // meetings so far

    __device__ __forceinline__ Exchange(Arrivals* arrivals)
        : memory(reinterpret_cast<acc_t*>(row_memory)), arrivals(arrivals), turn(0) {
#if CLUSTER > 1
        if (threadIdx.x == 0) {
            arrival_init(arrivals, 1);
            arrival_init(arrivals + 1, 1);
        }
#endif
    }

    // Where the numbers of this turn stand.
    __device__ __forceinline__ acc_t* row(int r, int band) const {
        return memory + ((turn % BUFFERS * TILE + r) * BANDS + band) * WIDTH;
    }

    // A new tile: nothing stands anywhere.
    __device__ __forceinline__ void clear() const {
        sync_team_memory();
        for (int n = static_cast<int>(threadIdx.x); n < BUFFERS * TILE * BANDS * WIDTH; n += BLOCK_THREADS) memory[n] = 0;
        sync_team_memory();
    }

    // After each thread has put its own numbers of this turn where they stand: those of the other blocks, too. `rows` is
    // where all have also been written in global memory, of `count` rows.
    __device__ __forceinline__ void meet(const scalar_t* rows, long long count, int* counter, long long n) {
#if CLUSTER > 1
        constexpr int PIECES = TILE * BANDS * UNITS / 2;
        const int rank = rank_in_team();
        Arrivals* here = arrivals + turn % 2;
        __syncthreads();
        if (threadIdx.x == 0) arrive_expecting(here, (CLUSTER - 1) * PIECES * sizeof(Two));
        for (int piece = static_cast<int>(threadIdx.x); piece < PIECES * (CLUSTER - 1); piece += BLOCK_THREADS) {
            const int band = piece / (UNITS / 2) % (TILE * BANDS);
            Two* place = reinterpret_cast<Two*>(row(0, band) + rank * UNITS) + piece % (UNITS / 2);
            send(*place, place, (rank + 1 + piece / PIECES) % CLUSTER, here);
        }
        arrival_wait(here, (turn - 1) / 2 % 2);  // the first turn is 1
#elif TEAM > 1
        meet_at(counter, n);
        for (int piece = static_cast<int>(threadIdx.x); piece < TILE * BANDS * (STATE / 4); piece += BLOCK_THREADS) {
            const int band = piece / (STATE / 4), k = piece % (STATE / 4) * 4;
            if (band >= count * BANDS) break;
            const Vector<scalar_t, 4> four = load_four_from_l2(rows + static_cast<long long>(band) * STATE + k);
            Four wide;
            for (int q = 0; q < 4; ++q) wide.of[q] = convert<acc_t>(four.element[q]);
            *reinterpret_cast<Four*>(row(0, band) + k) = wide;
        }
        __syncthreads();
#else
        __syncthreads();
#endif
    }
};

// Which unit and part of it a thread has, and which row of a group its lane ends up with.
struct Share {
    int part, own, unit, row;  // `own` counts a block's units
    bool there, writes;

    __device__ __forceinline__ Share() {
        const int thread = static_cast<int>(threadIdx.x);
        part = thread % PARTS;
        own = thread / PARTS;
        unit = rank_in_team() * UNITS + own;
        row = part / (PARTS / ROWS);
        there = own < UNITS && unit < STATE;
        writes = there && part % (PARTS / ROWS) == 0;
    }

    __device__ __forceinline__ int element(int i) const { return 4 * (i * PARTS + part); }
};

// The weights of a thread.
struct Weights {
    Four of[GATES][STEPS];

    // weight(gate, k) for the elements k of this thread's part of a row.
    template <typename F> __device__ __forceinline__ Weights(const Share& mine, F weight) {
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate)
#pragma unroll
            for (int i = 0; i < STEPS; ++i)
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    const int k = mine.element(i) + q;
                    of[gate][i].of[q] = mine.there && k < STATE ? weight(gate, k) : acc_t(0);
                }
    }
};

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, 1) lltm_sequence(
    const scalar_t* __restrict__ weights,   // (3, S, K)
    const scalar_t* __restrict__ first_h,   // (B, S)
    const scalar_t* __restrict__ first_c,   // (B, S)
    scalar_t* __restrict__ gates,           // (T, B, 3, S)
    scalar_t* h,                            // (T, B, S)
    scalar_t* __restrict__ cells,           // (T, B, S)
    scalar_t* __restrict__ last,            // (2, B, S)
    int* counters,                          // (tiles) or null
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
        // Of the rows of a step, of which there are fewer than 2^31 elements; where a step begins is the same for all threads.
        const int row = static_cast<int>(first_row) + mine.row, rows = static_cast<int>(B);
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int place = (row + g * ROWS) * STATE + mine.unit, z_place = (row + g * ROWS) * GATES * STATE + mine.unit;
            const bool there = mine.there && row + g * ROWS < rows;
            c[g] = there ? convert<acc_t>(first_c[place]) : acc_t(0);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate)
                z[g][gate] = there ? convert<acc_t>(gates[z_place + gate * STATE]) : acc_t(0);
        }
        sync_team_memory();
        for (long long t = 0; t < T; ++t) {
            scalar_t* const h_t = h + t * B * STATE;
            scalar_t* const cells_t = cells + t * B * STATE;
            scalar_t* const gates_t = gates + t * B * GATES * STATE;
            const scalar_t* const gates_next = gates_t + B * GATES * STATE;
            acc_t made[GROUPS];
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                const int place = (row + g * ROWS) * STATE + mine.unit, z_place = (row + g * ROWS) * GATES * STATE + mine.unit;
                const bool there = mine.there && row + g * ROWS < rows;
                const acc_t given[GATES] = {z[g][0], z[g][1], z[g][2]};
                if (there && t + 1 < T)  // under way while this step is made
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
                    if (mine.writes) exchange.row(g * ROWS + mine.row, 0)[mine.unit] = made[g];
            exchange.meet(h_t + first_row * STATE, B - first_row, counters + tile, t + 1);
        }
    }
}

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
            const int place = (row + g * ROWS) * STATE + mine.unit, z_place = (row + g * ROWS) * GATES * STATE + mine.unit;
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
                const int place = (row + g * ROWS) * STATE + mine.unit, z_place = (row + g * ROWS) * GATES * STATE + mine.unit;
                const bool there = mine.there && row + g * ROWS < rows;
                const Unit unit(z[g][0], z[g][1], z[g][2]);
                acc_t dz[GATES];
                if (there && grad_cells) dc[g] += convert<acc_t>((grad_cells + step)[place]);
                unit.back(cell[g], dh[g] + more[g], dc[g], dz);
                if (there && grad_gates)
                    for (int gate = 0; gate < GATES; ++gate)
                        dz[gate] += convert<acc_t>((grad_gates + step * GATES)[z_place + gate * STATE]);
                if (there && t > 0) {  // under way while this step is made
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
                        exchange.row(g * ROWS + mine.row, gate)[mine.unit] = there ? convert<acc_t>(rounded) : acc_t(0);
                }
            }
            exchange.meet(grad_z_t + first_row * GATES * STATE, B - first_row, counters + tile, T - t);
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
