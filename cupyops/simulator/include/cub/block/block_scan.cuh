// Replaces CUB's block_scan.cuh.
#pragma once

#include "../warp/warp_scan.cuh"

namespace cub {

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

template <typename T, int BLOCK_DIM_X, BlockScanAlgorithm ALGORITHM = BLOCK_SCAN_RAKING, int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockScan {
    static constexpr int threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z, warps = (threads + 31) / 32;
    // Selects the overloads that take a function of the block's aggregate, not an aggregate.
    template <typename P> using if_prefix = decltype(std::declval<P&>()(std::declval<T>()));

   public:
    struct TempStorage {
        T warp[warps];
        T prefix;
    };
    CUPYOPS_COLLECTIVE(BlockScan)

    CUPYOPS_MEMBER void InclusiveSum(T input, T& output) { InclusiveScan(input, output, detail::Plus()); }
    CUPYOPS_MEMBER void InclusiveSum(T input, T& output, T& aggregate) { InclusiveScan(input, output, detail::Plus(), aggregate); }
    CUPYOPS_MEMBER void ExclusiveSum(T input, T& output) { ExclusiveScan(input, output, T(0), detail::Plus()); }
    CUPYOPS_MEMBER void ExclusiveSum(T input, T& output, T& aggregate) { ExclusiveScan(input, output, T(0), detail::Plus(), aggregate); }
    // `prefix` is called by the first warp with the block's aggregate; it returns what precedes the block.
    template <typename P> CUPYOPS_MEMBER void InclusiveSum(T input, T& output, P& prefix) {
        InclusiveScan(input, output, detail::Plus(), prefix);
    }
    template <typename P> CUPYOPS_MEMBER void ExclusiveSum(T input, T& output, P& prefix) {
        ExclusiveScan(input, output, detail::Plus(), prefix);
    }
    template <int N, typename P> CUPYOPS_MEMBER void InclusiveSum(T (&input)[N], T (&output)[N], P& prefix) {
        InclusiveScan(input, output, detail::Plus(), prefix);
    }
    template <int N, typename P> CUPYOPS_MEMBER void ExclusiveSum(T (&input)[N], T (&output)[N], P& prefix) {
        ExclusiveScan(input, output, detail::Plus(), prefix);
    }
    template <int N> CUPYOPS_MEMBER void InclusiveSum(T (&input)[N], T (&output)[N]) { InclusiveScan(input, output, detail::Plus()); }
    template <int N> CUPYOPS_MEMBER void InclusiveSum(T (&input)[N], T (&output)[N], T& aggregate) {
        InclusiveScan(input, output, detail::Plus(), aggregate);
    }
    template <int N> CUPYOPS_MEMBER void ExclusiveSum(T (&input)[N], T (&output)[N]) { ExclusiveScan(input, output, T(0), detail::Plus()); }
    template <int N> CUPYOPS_MEMBER void ExclusiveSum(T (&input)[N], T (&output)[N], T& aggregate) {
        ExclusiveScan(input, output, T(0), detail::Plus(), aggregate);
    }

    template <typename F> CUPYOPS_MEMBER void InclusiveScan(T input, T& output, F combine) {
        T aggregate;
        InclusiveScan(input, output, combine, aggregate);
    }
    template <typename F> CUPYOPS_MEMBER void InclusiveScan(T input, T& output, F combine, T& aggregate) {
        T before;
        output = scanned(input, combine, before, aggregate);
    }
    template <typename F> CUPYOPS_MEMBER void ExclusiveScan(T input, T& output, T initial, F combine) {
        T aggregate;
        ExclusiveScan(input, output, initial, combine, aggregate);
    }
    template <typename F> CUPYOPS_MEMBER void ExclusiveScan(T input, T& output, T initial, F combine, T& aggregate) {
        T before;
        scanned(input, combine, before, aggregate);
        output = cupyops_thread() ? combine(initial, before) : initial;
    }
    // Without a first value, the result of thread 0 is undefined.
    template <typename F> CUPYOPS_MEMBER void ExclusiveScan(T input, T& output, F combine) {
        T aggregate, before;
        scanned(input, combine, before, aggregate);
        output = before;
    }
    template <typename F, typename P, typename = if_prefix<P>>
    CUPYOPS_MEMBER void InclusiveScan(T input, T& output, F combine, P& prefix) {
        T aggregate, before;
        const T own = scanned(input, combine, before, aggregate);
        output = combine(called(prefix, aggregate), own);
    }
    template <typename F, typename P, typename = if_prefix<P>>
    CUPYOPS_MEMBER void ExclusiveScan(T input, T& output, F combine, P& prefix) {
        T aggregate, before;
        scanned(input, combine, before, aggregate);
        const T first = called(prefix, aggregate);
        output = cupyops_thread() ? combine(first, before) : first;
    }
    template <int N, typename F> CUPYOPS_MEMBER void InclusiveScan(T (&input)[N], T (&output)[N], F combine) {
        T aggregate;
        InclusiveScan(input, output, combine, aggregate);
    }
    template <int N, typename F> CUPYOPS_MEMBER void InclusiveScan(T (&input)[N], T (&output)[N], F combine, T& aggregate) {
        T before;
        scanned(folded(input, combine), combine, before, aggregate);
        T sum = cupyops_thread() ? combine(before, input[0]) : input[0];
        for (int i = 0; i < N; ++i) {
            const T next = i + 1 < N ? input[i + 1] : input[i];
            output[i] = sum;
            if (i + 1 < N) sum = combine(sum, next);
        }
    }
    template <int N, typename F> CUPYOPS_MEMBER void ExclusiveScan(T (&input)[N], T (&output)[N], T initial, F combine) {
        T aggregate;
        ExclusiveScan(input, output, initial, combine, aggregate);
    }
    template <int N, typename F> CUPYOPS_MEMBER void ExclusiveScan(T (&input)[N], T (&output)[N], T initial, F combine, T& aggregate) {
        T before;
        scanned(folded(input, combine), combine, before, aggregate);
        T sum = cupyops_thread() ? combine(initial, before) : initial;
        for (int i = 0; i < N; ++i) {
            const T own = input[i];
            output[i] = sum;
            sum = combine(sum, own);
        }
    }
    template <int N, typename F, typename P, typename = if_prefix<P>>
    CUPYOPS_MEMBER void InclusiveScan(T (&input)[N], T (&output)[N], F combine, P& prefix) {
        T aggregate, before;
        scanned(folded(input, combine), combine, before, aggregate);
        const T first = called(prefix, aggregate);
        T sum = cupyops_thread() ? combine(first, before) : first;
        for (int i = 0; i < N; ++i) output[i] = sum = combine(sum, input[i]);
    }
    template <int N, typename F, typename P, typename = if_prefix<P>>
    CUPYOPS_MEMBER void ExclusiveScan(T (&input)[N], T (&output)[N], F combine, P& prefix) {
        T aggregate, before;
        scanned(folded(input, combine), combine, before, aggregate);
        const T first = called(prefix, aggregate);
        T sum = cupyops_thread() ? combine(first, before) : first;
        for (int i = 0; i < N; ++i) {
            const T own = input[i];
            output[i] = sum;
            sum = combine(sum, own);
        }
    }

   private:
    template <int N, typename F> static T folded(T (&input)[N], F combine) {
        T sum = input[0];
        for (int i = 1; i < N; ++i) sum = combine(sum, input[i]);
        return sum;
    }
    // Returns the inclusive result; writes the result before this thread, undefined for thread 0, and that of the block.
    template <typename F> T scanned(T input, F combine, T& before, T& aggregate) {
        const detail::LogicalWarp<32> warp;
        const unsigned own = cupyops_thread() / 32;
        T result = warp.scanned(input, combine);
        before = warp.before(result, 1);
        if (warp.rank == warp.count - 1) storage.warp[own] = result;
        __syncthreads();
        T earlier = storage.warp[0];
        aggregate = earlier;
        for (unsigned w = 1; w < warps; ++w) {
            aggregate = combine(aggregate, storage.warp[w]);
            if (w < own) earlier = aggregate;
        }
        if (own) {
            before = warp.rank ? combine(earlier, before) : earlier;
            result = combine(earlier, result);
        }
        return result;
    }
    template <typename P> T called(P& prefix, T aggregate) {
        if (cupyops_thread() < 32) {
            const T first = prefix(aggregate);
            if (cupyops_thread() == 0) storage.prefix = first;
        }
        __syncthreads();
        return storage.prefix;
    }
};

}  // namespace cub
