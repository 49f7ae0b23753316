// Replaces CUB's block_discontinuity.cuh: flags the items that differ from their neighbours, as FlagOp(a, b) says of neighbours a
// and b. FlagOp may take the number of b as a third argument. The first head and the last tail are flagged where no item beyond
// the block is given.
#pragma once

#include "../util_ptx.cuh"

namespace cub {

template <typename T, int BLOCK_DIM_X, int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockDiscontinuity {
    static constexpr int threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;
    template <typename F> static auto flag(F& f, const T& a, const T& b, int number, int) -> decltype(f(a, b, number)) { return f(a, b, number); }
    template <typename F> static auto flag(F& f, const T& a, const T& b, int, long) -> decltype(f(a, b)) { return f(a, b); }
    template <int N, typename Head, typename Tail, typename F>
    void flagged(Head* heads, const T* before, Tail* tails, const T* after, T (&in)[N], F f) {
        const int t = int(cupyops_thread());
        storage.first[t] = in[0], storage.last[t] = in[N - 1];
        __syncthreads();
        for (int i = 0; i < N; ++i) {
            const bool first = t == 0 && i == 0, last = t == threads - 1 && i == N - 1;
            const int number = t * N + i;
            if (heads) heads[i] = first && !before ? Head(1) : Head(flag(f, i ? in[i - 1] : first ? *before : storage.last[t - 1], in[i], number, 0));
            if (tails) tails[i] = last && !after ? Tail(1) : Tail(flag(f, in[i], i < N - 1 ? in[i + 1] : last ? *after : storage.first[t + 1], number + 1, 0));
        }
    }

   public:
    struct TempStorage {
        T first[threads], last[threads];
    };
    CUPYOPS_COLLECTIVE(BlockDiscontinuity)
    template <int N, typename Flag, typename F> CUPYOPS_MEMBER void FlagHeads(Flag (&heads)[N], T (&in)[N], F f) {
        flagged<N>(heads, nullptr, static_cast<Flag*>(nullptr), nullptr, in, f);
    }
    template <int N, typename Flag, typename F> CUPYOPS_MEMBER void FlagHeads(Flag (&heads)[N], T (&in)[N], F f, T before) {
        flagged<N>(heads, &before, static_cast<Flag*>(nullptr), nullptr, in, f);
    }
    template <int N, typename Flag, typename F> CUPYOPS_MEMBER void FlagTails(Flag (&tails)[N], T (&in)[N], F f) {
        flagged<N>(static_cast<Flag*>(nullptr), nullptr, tails, nullptr, in, f);
    }
    template <int N, typename Flag, typename F> CUPYOPS_MEMBER void FlagTails(Flag (&tails)[N], T (&in)[N], F f, T after) {
        flagged<N>(static_cast<Flag*>(nullptr), nullptr, tails, &after, in, f);
    }
    template <int N, typename Flag, typename F> CUPYOPS_MEMBER void FlagHeadsAndTails(Flag (&heads)[N], Flag (&tails)[N], T (&in)[N], F f) {
        flagged<N>(heads, nullptr, tails, nullptr, in, f);
    }
    template <int N, typename Flag, typename F>
    CUPYOPS_MEMBER void FlagHeadsAndTails(Flag (&heads)[N], Flag (&tails)[N], T after, T (&in)[N], F f) {
        flagged<N>(heads, nullptr, tails, &after, in, f);
    }
    template <int N, typename Flag, typename F>
    CUPYOPS_MEMBER void FlagHeadsAndTails(Flag (&heads)[N], T before, Flag (&tails)[N], T (&in)[N], F f) {
        flagged<N>(heads, &before, tails, nullptr, in, f);
    }
    template <int N, typename Flag, typename F>
    CUPYOPS_MEMBER void FlagHeadsAndTails(Flag (&heads)[N], T before, Flag (&tails)[N], T after, T (&in)[N], F f) {
        flagged<N>(heads, &before, tails, &after, in, f);
    }
};

}  // namespace cub
