// Replaces CUB's block_load.cuh.
#pragma once

#include "block_exchange.cuh"

namespace cub {

enum BlockLoadAlgorithm {
    BLOCK_LOAD_DIRECT,
    BLOCK_LOAD_STRIPED,
    BLOCK_LOAD_VECTORIZE,
    BLOCK_LOAD_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};

template <typename T, int BLOCK_DIM_X, int ITEMS_PER_THREAD, BlockLoadAlgorithm ALGORITHM = BLOCK_LOAD_DIRECT, int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockLoad {
    static constexpr int threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z, N = ITEMS_PER_THREAD;
    static constexpr bool exchanged = ALGORITHM >= BLOCK_LOAD_TRANSPOSE, striped = exchanged || ALGORITHM == BLOCK_LOAD_STRIPED;
    typedef BlockExchange<T, BLOCK_DIM_X, N, false, BLOCK_DIM_Y, BLOCK_DIM_Z> Exchange;
    static int place(int i) { return striped ? int(cupyops_thread()) + i * threads : int(cupyops_thread()) * N + i; }

   public:
    struct TempStorage {
        typename Exchange::TempStorage exchange;
    };
    CUPYOPS_COLLECTIVE(BlockLoad)
    template <typename I> CUPYOPS_MEMBER void Load(I from, T (&items)[N]) {
        for (int i = 0; i < N; ++i) items[i] = from[place(i)];
        if (exchanged) Exchange(storage.exchange).StripedToBlocked(items);
    }
    template <typename I> CUPYOPS_MEMBER void Load(I from, T (&items)[N], int valid_items) {
        for (int i = 0; i < N; ++i)
            if (place(i) < valid_items) items[i] = from[place(i)];
        if (exchanged) Exchange(storage.exchange).StripedToBlocked(items);
    }
    template <typename I, typename D> CUPYOPS_MEMBER void Load(I from, T (&items)[N], int valid_items, D otherwise) {
        for (int i = 0; i < N; ++i) items[i] = place(i) < valid_items ? T(from[place(i)]) : T(otherwise);
        if (exchanged) Exchange(storage.exchange).StripedToBlocked(items);
    }
};

}  // namespace cub
