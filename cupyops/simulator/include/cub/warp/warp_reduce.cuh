// Replaces CUB's warp_reduce.cuh. The result is in the lane of rank 0.
#pragma once

#include "../util_ptx.cuh"

namespace cub {

template <typename T, int LOGICAL_WARP_THREADS = 32> class WarpReduce {
    typedef detail::LogicalWarp<LOGICAL_WARP_THREADS> Warp;

   public:
    struct TempStorage {
        char unused;
    };
    explicit WarpReduce(TempStorage&) {}
    CUPYOPS_MEMBER T Sum(T input) { return Reduce(input, detail::Plus()); }
    CUPYOPS_MEMBER T Sum(T input, int valid_items) { return Reduce(input, detail::Plus(), valid_items); }
    template <typename F> CUPYOPS_MEMBER T Reduce(T input, F combine) { return Warp().reduced(input, combine, 32); }
    template <typename F> CUPYOPS_MEMBER T Reduce(T input, F combine, int valid_items) {
        return Warp().reduced(input, combine, unsigned(valid_items));
    }
};

}  // namespace cub
