// Teams of blocks that go through the steps of a sequence together: each block computes its share of a row, and needs
// the whole row before the next step. cupyops/tiling/teams.py chooses the teams.
//
//   CLUSTER = 1, TEAM = 1   a team is one block
//   CLUSTER > 1             a team is a cluster (sm_90 and later): blocks write into one another's shared memory
//   TEAM > 1                a team is TEAM blocks anywhere on the GPU, which must all run at once: each block writes its share to
//                           global memory, waits for the other blocks at a counter, and reads the shares of all blocks
//
// A text takes its tiles by   for (tile = blockIdx.x / BLOCKS; tile < tiles; tile += teams)
#pragma once

#include "bulk.cuh"
#include "cluster.cuh"
#include "counters.cuh"
#include "vector.cuh"

#ifndef TEAM
#define TEAM 1
#endif

constexpr int BLOCKS = CLUSTER * TEAM;  // blocks of a team

__device__ __forceinline__ int rank_in_team() { return static_cast<int>(blockIdx.x % BLOCKS); }

// The n-th barrier, n = 1, 2 .., of a team of blocks anywhere on the GPU, at a counter that began at 0. After the
// barrier every thread may read all writes of the team before the barrier, from L2: L1 may hold older values. Every
// thread waits at the counter itself: this is faster than one waiting thread and a barrier of the block.
__device__ __forceinline__ void team_barrier(int* counter, long long n) {
    __syncthreads();
    if (threadIdx.x == 0) count_at(counter);
    wait_at(counter, static_cast<int>(n * TEAM));
    __syncwarp();
}

// Four elements from L2.
template <typename T> __device__ __forceinline__ Vector<T, 4> load_four_from_l2(const T* p) {
    Vector<T, 4> four;
    if constexpr (sizeof(T) == 2) *reinterpret_cast<uint2*>(&four) = __ldcg(reinterpret_cast<const uint2*>(p));
    else *reinterpret_cast<uint4*>(&four) = __ldcg(reinterpret_cast<const uint4*>(p));
    return four;
}
