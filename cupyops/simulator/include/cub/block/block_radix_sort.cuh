// Replaces CUB's block_radix_sort.cuh: a stable sort by the bits of the keys. Thread 0 sorts what all threads have stored.
#pragma once

#include "../util_ptx.cuh"

namespace cub {

template <typename KeyT, int BLOCK_DIM_X, int ITEMS_PER_THREAD, typename ValueT = NullType> class BlockRadixSort {
    static constexpr int N = ITEMS_PER_THREAD, count = BLOCK_DIM_X * N, bits = 8 * sizeof(KeyT);
    typedef std::conditional_t<sizeof(KeyT) == 1, unsigned char, std::conditional_t<sizeof(KeyT) == 2, unsigned short, std::conditional_t<sizeof(KeyT) == 4, unsigned, unsigned long long>>> Word;
    static constexpr bool with_values = !std::is_same<ValueT, NullType>::value;

    // The key as an unsigned number of the same order.
    static Word ordered(const KeyT& key) {
        Word word;
        __builtin_memcpy(&word, &key, sizeof word);
        const Word top = Word(1) << (bits - 1);
        if (std::is_integral<KeyT>::value) return std::is_signed<KeyT>::value ? Word(word ^ top) : word;
        if (word == top) word = 0;  // -0 equals 0
        return word & top ? Word(~word) : Word(word ^ top);
    }

   public:
    struct TempStorage {
        KeyT keys[count];
        ValueT values[with_values ? count : 1];
    };
    CUPYOPS_COLLECTIVE(BlockRadixSort)
#define CUPYOPS_SORT(NAME, DESCENDING, STRIPED)                                                                              \
    CUPYOPS_MEMBER void NAME(KeyT (&keys)[N], int begin_bit = 0, int end_bit = bits) {                                       \
        sorted(keys, static_cast<ValueT(*)[N]>(nullptr), begin_bit, end_bit, DESCENDING, STRIPED);                           \
    }                                                                                                                        \
    template <typename V = ValueT> CUPYOPS_MEMBER void NAME(KeyT (&keys)[N], V (&values)[N], int begin_bit = 0, int end_bit = bits) { \
        sorted(keys, &values, begin_bit, end_bit, DESCENDING, STRIPED);                                                      \
    }
    CUPYOPS_SORT(Sort, false, false)
    CUPYOPS_SORT(SortDescending, true, false)
    CUPYOPS_SORT(SortBlockedToStriped, false, true)
    CUPYOPS_SORT(SortDescendingBlockedToStriped, true, true)
#undef CUPYOPS_SORT

   private:
    // Called by thread 0, whose accesses are those of all threads that sort together on a GPU.
    CUPYOPS_MEMBER void sort_all(int begin_bit, int end_bit, bool descending) {
        KeyT keys[count];
        ValueT values[with_values ? count : 1];
        int places[2][count], *order = places[0], *next = places[1];
        for (int i = 0; i < count; ++i) keys[i] = storage.keys[i], order[i] = i;
        const Word mask = end_bit - begin_bit >= bits ? Word(~Word(0)) : Word(((unsigned long long)1 << (end_bit - begin_bit)) - 1);
        const auto word = [&](int i) { return Word(Word(ordered(keys[i]) >> begin_bit) & mask); };
        for (int length = 1; length < count; length *= 2) {  // a merge sort
            for (int start = 0; start < count; start += 2 * length) {
                const int middle = start + length < count ? start + length : count, end = middle + length < count ? middle + length : count;
                for (int to = start, left = start, right = middle; to < end; ++to) {
                    const bool second = left == middle || (right < end && (descending ? word(order[left]) < word(order[right]) : word(order[right]) < word(order[left])));
                    next[to] = order[second ? right++ : left++];
                }
            }
            std::swap(order, next);
        }
        for (int i = 0; i < (with_values ? count : 0); ++i) values[i] = storage.values[i];
        for (int i = 0; i < count; ++i) {
            storage.keys[i] = keys[order[i]];
            if (with_values) storage.values[i] = values[order[i]];
        }
    }
    void sorted(KeyT (&keys)[N], ValueT (*values)[N], int begin_bit, int end_bit, bool descending, bool striped) {
        const int thread = int(cupyops_thread());
        for (int i = 0; i < N; ++i) {
            storage.keys[thread * N + i] = keys[i];
            if (with_values) storage.values[thread * N + i] = (*values)[i];
        }
        __syncthreads();
        if (thread == 0) sort_all(begin_bit, end_bit, descending);
        __syncthreads();
        for (int i = 0; i < N; ++i) {
            const int place = striped ? thread + i * BLOCK_DIM_X : thread * N + i;
            keys[i] = storage.keys[place];
            if (with_values) (*values)[i] = storage.values[place];
        }
    }
};

}  // namespace cub
