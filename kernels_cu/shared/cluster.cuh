// Clusters of thread blocks (sm_90 and later): blocks that run at the same time and reach one another's shared memory. A kernel
// declared with IN_CLUSTERS runs in clusters of CLUSTER blocks. With CLUSTER = 1 every function here compiles to nothing, except
// sync_cluster, which then is the block's barrier.
//
// Macro     values    meaning                                 set by
// CLUSTER   1 to 16   blocks of a cluster; 1: no clusters     `blocks_per_row` of the kernel's geometry
#pragma once

#ifndef CLUSTER
#define CLUSTER 1
#endif

#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_CLUSTERS
#endif

__device__ __forceinline__ int block_of_cluster() {
#if CLUSTER > 1
    return static_cast<int>(__clusterRelativeBlockRank());
#else
    return 0;
#endif
}

// The two halves of a cluster's barrier. Work between the two halves overlaps with the wait for the other blocks.
__device__ __forceinline__ void cluster_arrive() {
#if CLUSTER > 1
    __cluster_barrier_arrive();
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if CLUSTER > 1
    __cluster_barrier_wait();
#endif
}

// Barrier of all threads of a cluster, or of the block without clusters.
__device__ __forceinline__ void sync_cluster() {
#if CLUSTER > 1
    cluster_arrive();
    cluster_wait();
#else
    __syncthreads();
#endif
}
