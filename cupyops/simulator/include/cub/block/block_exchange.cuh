// Replaces CUB's block_exchange.cuh: rearranges the items of a block through shared memory. Blocked means that a thread has
// neighbouring items; striped means that neighbouring threads have them.
#pragma once

#include "../util_ptx.cuh"

namespace cub {

template <typename T, int BLOCK_DIM_X, int ITEMS_PER_THREAD, bool WARP_TIME_SLICING = false, int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockExchange {
    static constexpr int threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z, N = ITEMS_PER_THREAD;
    static int blocked(int i) { return int(cupyops_thread()) * N + i; }
    static int striped(int i) { return int(cupyops_thread()) + i * threads; }
    static int warp_striped(int i) {
        const int warp = int(cupyops_thread()) / 32, width = threads - warp * 32 < 32 ? threads - warp * 32 : 32;
        return warp * 32 * N + i * width + int(cupyops_thread()) % 32;
    }
    template <typename Out, typename Place, typename From> void moved(const T (&in)[N], Out (&out)[N], Place place, From from) {
        T own[N];
        for (int i = 0; i < N; ++i) own[i] = in[i];
        for (int i = 0; i < N; ++i) storage.items[place(i)] = own[i];
        __syncthreads();
        for (int i = 0; i < N; ++i) out[i] = storage.items[from(i)];
    }

   public:
    struct TempStorage {
        T items[threads * N];
    };
    CUPYOPS_COLLECTIVE(BlockExchange)
#define CUPYOPS_EXCHANGE(NAME, PLACE, FROM)                                                                  \
    template <typename Out> CUPYOPS_MEMBER void NAME(const T (&in)[N], Out (&out)[N]) { moved(in, out, PLACE, FROM); } \
    CUPYOPS_MEMBER void NAME(T (&items)[N]) { moved(items, items, PLACE, FROM); }
    CUPYOPS_EXCHANGE(BlockedToStriped, blocked, striped)
    CUPYOPS_EXCHANGE(StripedToBlocked, striped, blocked)
    CUPYOPS_EXCHANGE(BlockedToWarpStriped, blocked, warp_striped)
    CUPYOPS_EXCHANGE(WarpStripedToBlocked, warp_striped, blocked)
#undef CUPYOPS_EXCHANGE
    template <typename Out, typename Rank> CUPYOPS_MEMBER void ScatterToBlocked(const T (&in)[N], Out (&out)[N], Rank (&ranks)[N]) {
        moved(in, out, [&](int i) { return int(ranks[i]); }, blocked);
    }
    template <typename Out, typename Rank> CUPYOPS_MEMBER void ScatterToStriped(const T (&in)[N], Out (&out)[N], Rank (&ranks)[N]) {
        moved(in, out, [&](int i) { return int(ranks[i]); }, striped);
    }
};

}  // namespace cub
