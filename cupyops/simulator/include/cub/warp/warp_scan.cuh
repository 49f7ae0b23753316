// Replaces CUB's warp_scan.cuh.
#pragma once

#include "../util_ptx.cuh"

namespace cub {

template <typename T, int LOGICAL_WARP_THREADS = 32> class WarpScan {
    typedef detail::LogicalWarp<LOGICAL_WARP_THREADS> Warp;

   public:
    struct TempStorage {
        char unused;
    };
    explicit WarpScan(TempStorage&) {}
    CUPYOPS_MEMBER void InclusiveSum(T input, T& output) { output = Warp().scanned(input, detail::Plus()); }
    CUPYOPS_MEMBER void InclusiveSum(T input, T& output, T& aggregate) { InclusiveScan(input, output, detail::Plus(), aggregate); }
    CUPYOPS_MEMBER void ExclusiveSum(T input, T& output) { ExclusiveScan(input, output, T(0), detail::Plus()); }
    CUPYOPS_MEMBER void ExclusiveSum(T input, T& output, T& aggregate) { ExclusiveScan(input, output, T(0), detail::Plus(), aggregate); }
    template <typename F> CUPYOPS_MEMBER void InclusiveScan(T input, T& output, F combine) { output = Warp().scanned(input, combine); }
    template <typename F> CUPYOPS_MEMBER void InclusiveScan(T input, T& output, F combine, T& aggregate) {
        const Warp warp;
        output = warp.scanned(input, combine);
        aggregate = warp.at(output, warp.count - 1);
    }
    // Without a first value, the result of rank 0 is undefined.
    template <typename F> CUPYOPS_MEMBER void ExclusiveScan(T input, T& output, F combine) {
        const Warp warp;
        output = warp.before(warp.scanned(input, combine), 1);
    }
    template <typename F> CUPYOPS_MEMBER void ExclusiveScan(T input, T& output, T initial, F combine) {
        const Warp warp;
        const T before = warp.before(warp.scanned(input, combine), 1);
        output = warp.rank ? combine(initial, before) : initial;
    }
    template <typename F> CUPYOPS_MEMBER void ExclusiveScan(T input, T& output, T initial, F combine, T& aggregate) {
        const Warp warp;
        const T all = warp.scanned(input, combine), before = warp.before(all, 1);
        aggregate = warp.at(all, warp.count - 1);
        output = warp.rank ? combine(initial, before) : initial;
    }
    CUPYOPS_MEMBER T Broadcast(T input, unsigned lane) { return Warp().at(input, lane); }
};

}  // namespace cub
