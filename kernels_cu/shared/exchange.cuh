// All-gather among the warps on a row: each warp publishes its value for the row (a sum, moments), waits, and collects
// the values of all warps. The interface is the same for warps of one block and for warps of a cluster's blocks:
//
//   init()                 all threads, before a barrier of all the row's blocks (cluster_arrive, cluster_wait)
//   publish(known, turn)   all threads of a warp, each with the warp's value
//   wait(turn)             returns when all warps on the row have published
//   collect(turn)          the values of all PARTS warps
//   all_gather(known, turn)    the three in one
#pragma once

#include "bulk.cuh"
#include "rows.cuh"

// All-gather among the warps of a block, by tables in shared memory and one barrier of the block. A warp that is one
// barrier ahead writes to the next of TABLES tables, while other warps still read the current table.
template <typename Known, int TABLES> struct BlockExchange {
    Known table[TABLES][GROUPS][PARTS];

    __device__ __forceinline__ void init() {}

    __device__ __forceinline__ void publish(const Known& known, unsigned turn) {
        if (threadIdx.x % 32 == 0) table[turn % TABLES][group_of_block()][threadIdx.x / 32 % ROW_WARPS] = known;
    }

    __device__ __forceinline__ void wait(unsigned) const { __syncthreads(); }
    __device__ __forceinline__ const Known* collect(unsigned turn) const { return table[turn % TABLES][group_of_block()]; }

    __device__ __forceinline__ const Known* all_gather(const Known& known, unsigned turn) {
        Known* parts = table[turn % TABLES][group_of_block()];
        if (threadIdx.x % 32 == 0 && (SPREAD == 1 || threadIdx.x < OWNERS)) parts[threadIdx.x / 32 % ROW_WARPS] = known;
        __syncthreads();
        return parts;
    }
};

// All-gather among the warps of a block or of a cluster's blocks, by mbarriers (sm_90 and later). A warp may publish
// the next row's value before it waits for this row's values, which hides the latency of the exchange. A warp then
// publishes up to two rows ahead of the slowest warp, so four tables take turns.
template <typename Known> struct AsyncExchange {
    alignas(16) Known table[4][PARTS];
    Arrivals arrivals[4];

    __device__ __forceinline__ void init() {
        if (threadIdx.x == 0)
            for (int i = 0; i < 4; ++i) arrival_init(arrivals + i, CLUSTER > 1 ? 1 : PARTS);
    }

    __device__ __forceinline__ void publish(const Known& known, unsigned turn) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        Known* mine = &table[turn % 4][block_of_cluster() * ROW_WARPS + static_cast<int>(threadIdx.x) / 32];
#if CLUSTER > 1
        if (threadIdx.x == 0) arrive_expecting(arrivals + turn % 4, PARTS * sizeof(Known));
        if (lane < CLUSTER) send(known, mine, lane, arrivals + turn % 4);  // thread r of the warp writes to block r
#else
        if (lane == 0) {
            *mine = known;
            arrive(arrivals + turn % 4);
        }
#endif
    }

    __device__ __forceinline__ void wait(unsigned turn) { arrival_wait(arrivals + turn % 4, turn / 4 % 2); }
    __device__ __forceinline__ const Known* collect(unsigned turn) const { return table[turn % 4]; }

    __device__ __forceinline__ const Known* all_gather(const Known& known, unsigned turn) {
        publish(known, turn);
        wait(turn);
        return collect(turn);
    }
};

// Publishes, waits and collects at once.
#if CLUSTER > 1
template <typename Known, int TABLES> using Exchange = AsyncExchange<Known>;
#else
template <typename Known, int TABLES> using Exchange = BlockExchange<Known, TABLES>;
#endif
