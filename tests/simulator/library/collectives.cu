// CUB's collectives of a block and of a warp: each slot of y is one of them.
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cuda/functional>

struct Running {
    int before;
    __device__ int operator()(int aggregate) {
        const int old = before;
        before += aggregate;
        return old;
    }
};

// Whether two neighbours differ; every seventh item counts as different.
struct Differ {
    __device__ bool operator()(int a, int b, int number) const { return a != b || number % 7 == 0; }
};

extern "C" __global__ void collectives(
    const int* x,    // (M, 256)
    const float* f,  // (M, 256)
    int* y,          // (M, 14, 256)
    float* z,        // (M, 256)
    long long M) {
    typedef cub::BlockReduce<int, 64> Reduce;
    typedef cub::BlockScan<int, 64> Scan;
    typedef cub::BlockLoad<int, 64, 4, cub::BLOCK_LOAD_TRANSPOSE> Load;
    typedef cub::BlockStore<int, 64, 4, cub::BLOCK_STORE_TRANSPOSE> Store;
    typedef cub::BlockRadixSort<int, 64, 4, int> Sort;
    typedef cub::BlockRadixSort<float, 64, 4> SortFloats;
    typedef cub::BlockExchange<int, 64, 4> Exchange;
    typedef cub::BlockDiscontinuity<int, 64> Discontinuity;
    typedef cub::WarpReduce<int> WarpReduce;
    typedef cub::WarpScan<int, 16> WarpScan;
    __shared__ union {
        typename Reduce::TempStorage reduce;
        typename Scan::TempStorage scan;
        typename Load::TempStorage load;
        typename Store::TempStorage store;
        typename Sort::TempStorage sort;
        typename SortFloats::TempStorage floats;
        typename Exchange::TempStorage exchange;
        typename Discontinuity::TempStorage discontinuity;
    } temp;
    __shared__ typename WarpReduce::TempStorage warp_reduce[2];
    __shared__ typename WarpScan::TempStorage warp_scan[4];
    const int t = threadIdx.x;
    const int* from = x + blockIdx.x * 256;
    int* to = y + blockIdx.x * 14 * 256;
    int items[4], places[4], sum;

    Load(temp.load).Load(from, items);
    __syncthreads();
    for (int i = 0; i < 4; ++i) to[4 * t + i] = items[i];

    sum = Reduce(temp.reduce).Sum(items);
    if (t == 0) to[256] = sum;
#ifndef NO_BARRIER
    __syncthreads();
#endif
    sum = Reduce(temp.reduce).Reduce(items[0], cuda::maximum<>{}, 50);
    if (t == 0) to[257] = sum;
    __syncthreads();

    Scan(temp.scan).InclusiveSum(items[0], sum);
    to[2 * 256 + t] = sum;
    __syncthreads();
    int all;
    Scan(temp.scan).ExclusiveSum(items, places, all);
    __syncthreads();
    for (int i = 0; i < 4; ++i) to[3 * 256 + 4 * t + i] = places[i] + 10000 * (all != 0);
    Running running{1000};
    Scan(temp.scan).ExclusiveSum(items[1], sum, running);
    to[4 * 256 + t] = sum;
    __syncthreads();
    Scan(temp.scan).ExclusiveScan(items[2], sum, -500, cuda::maximum<>{});
    to[5 * 256 + t] = sum;
    __syncthreads();

    Exchange(temp.exchange).BlockedToStriped(items, places);
    for (int i = 0; i < 4; ++i) to[6 * 256 + 4 * t + i] = places[i];
    __syncthreads();
    for (int i = 0; i < 4; ++i) places[i] = 4 * t + i;
    int keys[4] = {items[0], items[1], items[2], items[3]};
    Sort(temp.sort).Sort(keys, places);
    for (int i = 0; i < 4; ++i) to[7 * 256 + 4 * t + i] = keys[i], to[8 * 256 + 4 * t + i] = places[i];
    __syncthreads();
    float numbers[4];
    for (int i = 0; i < 4; ++i) numbers[i] = f[blockIdx.x * 256 + 4 * t + i];
    SortFloats(temp.floats).SortDescending(numbers);
    for (int i = 0; i < 4; ++i) z[blockIdx.x * 256 + 4 * t + i] = numbers[i];

    sum = WarpReduce(warp_reduce[t / 32]).Sum(items[0]);
    if (t % 32 == 0) to[9 * 256 + t / 32] = sum;
    WarpScan(warp_scan[t / 16]).ExclusiveSum(items[0], sum);
    to[10 * 256 + t] = sum;
    __syncthreads();
    Store(temp.store).Store(to + 11 * 256, items, 250);
    __syncthreads();

    bool heads[4], tails[4];
    int thirds[4];
    for (int i = 0; i < 4; ++i) thirds[i] = (4 * t + i) / 3 % 2;
    Discontinuity(temp.discontinuity).FlagHeads(heads, thirds, Differ());
    for (int i = 0; i < 4; ++i) to[12 * 256 + 4 * t + i] = heads[i];
    __syncthreads();
    Discontinuity(temp.discontinuity).FlagHeadsAndTails(heads, 0, tails, 1, thirds, Differ());
    for (int i = 0; i < 4; ++i) to[13 * 256 + 4 * t + i] = heads[i] + 2 * tails[i];
}
