// Cooperative groups: each slot of y is one construct. tests/simulator/test_library.py has what NumPy says of each.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

struct Triple {
    int a, b, c;
};

// The sum of any group, by shared memory.
__device__ int summed(const cg::thread_group& g, int* s, int value) {
    const int rank = static_cast<int>(g.thread_rank());
    for (int i = static_cast<int>(g.size()) / 2; i > 0; i /= 2) {
        s[rank] = value;
        g.sync();
        if (rank < i) value += s[rank + i];
        g.sync();
    }
    return value;
}

extern "C" __global__ void groups(
    const int* x,  // (M, 64)
    int* y,        // (M, SLOTS, 64)
    long long M) {
    __shared__ alignas(16) int s[64];
    __shared__ int scratch[64];
    const cg::thread_block block = cg::this_thread_block();
    const int t = static_cast<int>(block.thread_rank());
    const long long row = blockIdx.x;
    int* to = y + row * SLOTS * 64 + t;

    cg::memcpy_async(block, s, x + row * 64, sizeof(int) * 64);
    cg::wait(block);
    const int v = s[t];
    to[0 * 64] = s[63 - t];

    const auto tile = cg::tiled_partition<16>(block);
    to[1 * 64] = cg::reduce(tile, v, cg::plus<int>());
    to[2 * 64] = cg::inclusive_scan(tile, v);
    to[3 * 64] = cg::exclusive_scan(tile, v, cg::greater<int>());
    to[4 * 64] = static_cast<int>(tile.ballot(v % 2));
    to[5 * 64] = tile.shfl_xor(v, 5) * 4 + tile.any(v > 100) * 2 + tile.all(v > -1000);

    const auto warp = cg::tiled_partition<32>(block);
    const auto part = cg::tiled_partition<8>(warp);
    to[6 * 64] = static_cast<int>(part.meta_group_rank() * 1000 + part.meta_group_size() * 100 + warp.meta_group_rank() * 10 + part.thread_rank());
    const Triple triple = warp.shfl_down(Triple{v, t, -v}, 3);
    to[7 * 64] = triple.a + triple.b * 1000 + triple.c;

    to[8 * 64] = 0;
    if (t % 3 == 0) {
        const cg::coalesced_group g = cg::coalesced_threads();
        const int sum = cg::reduce(g, t, cg::plus<int>());
        to[8 * 64] = static_cast<int>(g.size() * 100000 + g.thread_rank() * 1000) + g.shfl_up(sum, 1) + g.shfl(t, 0);
    }
    warp.sync();
    const auto same = cg::labeled_partition(warp, t % 5);
    to[9 * 64] = static_cast<int>(same.size() * 1000 + same.thread_rank() * 100 + same.meta_group_rank() * 10 + same.meta_group_size());
    const auto half = cg::binary_partition(warp, t % 32 < 10);
    to[10 * 64] = cg::inclusive_scan(half, 1) * 100 + static_cast<int>(half.size());
    block.sync();
    to[11 * 64] = summed(block, scratch, v);
    const cg::thread_group small = cg::tiled_partition(block, 4);
    to[12 * 64] = summed(small, scratch + t / 4 * 4, v);
    to[13 * 64] = static_cast<int>(block.group_index().x * 10000 + block.thread_index().x + block.dim_threads().x * 100);
}

// Each block publishes its maximum, and after the barrier of the grid every thread reads all of them.
extern "C" __global__ void grid(
    const int* x,  // (M, 64)
    int* peaks,    // (M)
    int* y,        // (M, 64)
    long long M) {
    const auto whole = cg::this_grid();
    const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    __shared__ int found[2];
    const int best = cg::reduce(warp, x[blockIdx.x * 64 + threadIdx.x], cg::greater<int>());
    if (warp.thread_rank() == 0) found[warp.meta_group_rank()] = best;
    __syncthreads();
    if (threadIdx.x == 0) peaks[blockIdx.x] = max(found[0], found[1]);
#ifndef NO_GRID_BARRIER
    whole.sync();
#endif
    int sum = 0;
    for (unsigned b = 0; b < whole.num_blocks(); ++b) sum += peaks[b];
    y[whole.thread_rank()] = sum + static_cast<int>(whole.block_rank());
    whole.sync();
}

#if __CUDA_ARCH__ >= 900
// Each block reads the values of the other block of its cluster.
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster(
    const int* x,  // (M, 64)
    int* y,        // (M, 64)
    long long M) {
    __shared__ int s[64];
    const auto both = cg::this_cluster();
    s[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
    both.sync();
    const int* other = both.map_shared_rank(s, static_cast<int>(both.block_rank() ^ 1));
    y[blockIdx.x * 64 + threadIdx.x] = other[threadIdx.x] * 10 + static_cast<int>(both.num_blocks());
    both.barrier_wait(both.barrier_arrive());
}
#endif
