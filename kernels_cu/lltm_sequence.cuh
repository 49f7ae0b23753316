// Shared by lltm_sequence.cu and lltm_sequence_backward.cu: the weights that a thread keeps in registers for all steps,
// and the exchange of a row's units among the blocks of a team.
//
// A team has TILE = ROWS·GROUPS rows. A block has UNITS units of each row. PARTS neighbouring lanes share a unit: lane p has
// the weights for the elements 4·(i·PARTS + p) + 0..3 of a row, i = 0, 1 .. . sum_over_lanes() adds up the lanes' sums of ROWS
// rows; each lane receives the sum of one of these rows, and computes the unit of that row.
//
// STATE, UNITS and PARTS alone decide which thread has which elements, and the order of every sum: a row's bits do not depend
// on how many rows there are.
#pragma once

#include "lltm_rows.cuh"
#include "team.cuh"
#include "warp_sums.cuh"

constexpr int TILE = ROWS * GROUPS;
constexpr int STEPS = (BLOCKS * UNITS + 4 * PARTS - 1) / (4 * PARTS);  // accesses of 4 elements of a thread to a row
constexpr int WIDTH = STEPS * 4 * PARTS;                               // elements of a row in shared memory; 0 from STATE on
constexpr int BUFFERS = TEAM > 1 ? 1 : 2;                              // copies of a tile in shared memory

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
    Arrivals* arrivals;  // an mbarrier for each buffer
    unsigned turn;       // all-gathers so far

    __device__ __forceinline__ Exchange(Arrivals* arrivals)
        : memory(reinterpret_cast<acc_t*>(row_memory)), arrivals(arrivals), turn(0) {
#if CLUSTER > 1
        if (threadIdx.x == 0) {
            arrival_init(arrivals, 1);
            arrival_init(arrivals + 1, 1);
        }
#endif
    }

    // Returns row r of the current turn's buffer.
    __device__ __forceinline__ acc_t* row(int r, int band) const {
        return memory + ((turn % BUFFERS * TILE + r) * BANDS + band) * WIDTH;
    }

    // Stores a unit of this block in shared memory; all_gather() then sends the unit to the other blocks of the
    // cluster.
    __device__ __forceinline__ void publish(int r, int band, int unit, acc_t value) const { row(r, band)[unit] = value; }

    // Begins a new tile: fills the buffers with zeros.
    __device__ __forceinline__ void clear() const {
        sync_cluster();
        for (int n = static_cast<int>(threadIdx.x); n < BUFFERS * TILE * BANDS * WIDTH; n += BLOCK_THREADS) memory[n] = 0;
        sync_cluster();
    }

    // Collects the units of the team's other blocks. Each thread must have published its own units: by publish(), or
    // with TEAM > 1 by stores to global memory. There `rows` is the tile's first row, `count` the number of rows from
    // the tile's first row to the matrix's last row, and `n` the number of the team's barrier.
    __device__ __forceinline__ void all_gather(const scalar_t* rows, long long count, int* counter, long long n) {
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
        team_barrier(counter, n);
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

// A thread's unit, its part of the unit's sum, and the row of a group whose sum its lane receives.
struct Share {
    int part, own, unit, row;  // `own` is the unit's number in the block
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
