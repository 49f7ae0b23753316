// Replaces CUB's block_reduce.cuh. The result is in thread 0. The temporary storage is real shared memory: a second use
// without a barrier before it is a race, as on a GPU.
#pragma once

#include "../warp/warp_reduce.cuh"

namespace cub {

enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };

template <typename T, int BLOCK_DIM_X, BlockReduceAlgorithm ALGORITHM = BLOCK_REDUCE_WARP_REDUCTIONS, int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockReduce {
    static constexpr int threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;

   public:
    struct TempStorage {
        T warps[(threads + 31) / 32];
    };
    CUPYOPS_COLLECTIVE(BlockReduce)
    CUPYOPS_MEMBER T Sum(T input) { return Reduce(input, detail::Plus()); }
    CUPYOPS_MEMBER T Sum(T input, int num_valid) { return Reduce(input, detail::Plus(), num_valid); }
    template <int ITEMS> CUPYOPS_MEMBER T Sum(T (&inputs)[ITEMS]) { return Reduce(inputs, detail::Plus()); }
    template <typename F> CUPYOPS_MEMBER T Reduce(T input, F combine) { return Reduce(input, combine, threads); }
    template <int ITEMS, typename F> CUPYOPS_MEMBER T Reduce(T (&inputs)[ITEMS], F combine) {
        T sum = inputs[0];
        for (int i = 1; i < ITEMS; ++i) sum = combine(sum, inputs[i]);
        return Reduce(sum, combine, threads);
    }
    template <typename F> CUPYOPS_MEMBER T Reduce(T input, F combine, int num_valid) {
        const detail::LogicalWarp<32> warp;
        const int thread = int(cupyops_thread()), first = thread / 32 * 32;
        T sum = warp.reduced(input, combine, num_valid > first ? unsigned(num_valid - first) : 0u);
        if (thread % 32 == 0) storage.warps[thread / 32] = sum;
        __syncthreads();
        if (thread == 0)
            for (int w = 1; w < (threads + 31) / 32 && w * 32 < num_valid; ++w) sum = combine(sum, storage.warps[w]);
        return sum;
    }
};

}  // namespace cub
