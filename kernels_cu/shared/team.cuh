// Blocks that go through the steps of a sequence together: each makes its share of a row, and needs all of the row before
// the next step. A team is one block, a cluster of blocks (sm_90 and later), or blocks anywhere on the GPU, all of which
// run at once.
//
//   CLUSTER > 1    they write into one another's shared memory, where two buffers take turns
//   TEAM > 1       they leave their shares in global memory, wait for one another at a counter, and read
#pragma once

#include "bulk.cuh"
#include "counters.cuh"
#include "vector.cuh"

#ifndef CLUSTER
#define CLUSTER 1
#endif

#ifndef TEAM
#define TEAM 1
#endif

#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_CLUSTERS
#endif

constexpr int BLOCKS = CLUSTER * TEAM;         // of a team
constexpr int BUFFERS = TEAM > 1 ? 1 : 2;      // of a row in shared memory

__device__ __forceinline__ int rank_in_team() { return static_cast<int>(blockIdx.x % BLOCKS); }

// All threads of a cluster, or of a block, have come this far, and see what the others have done in shared memory.
__device__ __forceinline__ void sync_team_memory() {
#if CLUSTER > 1
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
#else
    __syncthreads();
#endif
}

// The n-th meeting at a counter that began at 0. What any thread of the team has written before, all may read from L2
// afterwards: not through L1, which may hold what was there. Each thread waits for itself, which is sooner than by a barrier
// behind one that does.
__device__ __forceinline__ void meet_at(int* counter, long long n) {
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
