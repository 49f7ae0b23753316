// Replaces CUB's block_store.cuh.
#pragma once

#include "block_exchange.cuh"

namespace cub {

enum BlockStoreAlgorithm {
    BLOCK_STORE_DIRECT,
    BLOCK_STORE_STRIPED,
    BLOCK_STORE_VECTORIZE,
    BLOCK_STORE_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};

template <typename T, int BLOCK_DIM_X, int ITEMS_PER_THREAD, BlockStoreAlgorithm ALGORITHM = BLOCK_STORE_DIRECT, int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockStore {
    static constexpr int threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z, N = ITEMS_PER_THREAD;
    static constexpr bool exchanged = ALGORITHM >= BLOCK_STORE_TRANSPOSE, striped = exchanged || ALGORITHM == BLOCK_STORE_STRIPED;
    typedef BlockExchange<T, BLOCK_DIM_X, N, false, BLOCK_DIM_Y, BLOCK_DIM_Z> Exchange;
    static int place(int i) { return striped ? int(cupyops_thread()) + i * threads : int(cupyops_thread()) * N + i; }

   public:
    struct TempStorage {
        typename Exchange::TempStorage exchange;
    };
    CUPYOPS_COLLECTIVE(BlockStore)
    template <typename O> CUPYOPS_MEMBER void Store(O to, T (&items)[N]) { Store(to, items, threads * N); }
    template <typename O> CUPYOPS_MEMBER void Store(O to, T (&items)[N], int valid_items) {
        if (exchanged) Exchange(storage.exchange).BlockedToStriped(items);
        for (int i = 0; i < N; ++i)
            if (place(i) < valid_items) to[place(i)] = items[i];
    }
};

}  // namespace cub
