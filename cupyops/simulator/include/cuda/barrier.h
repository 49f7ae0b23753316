// Replaces <cuda/barrier>: barriers of any number of threads in shared memory, and memcpy_async that completes at one.
#pragma once

#include "../../cuda/copies.h"
#include "scope.h"

namespace cuda {

namespace detail {

// The word of a barrier: missing arrivals (20 bits), arrivals of a phase (20 bits), the number of the phase (24 bits).
constexpr unsigned long long COUNT = (1 << 20) - 1;
inline unsigned long long barrier_word(unsigned long long missing, unsigned long long all, unsigned long long phase) {
    return missing | all << 20 | phase << 40;
}
struct no_completion {
    void operator()() const {}
};

}  // namespace detail

template <thread_scope SCOPE, typename Completion = detail::no_completion> class barrier {
    unsigned long long word;
    Completion completion;

    // Changes the word by `arrived` arrivals and by `dropped` threads that leave the barrier. The last thread to arrive
    // completes the copies of the phase. The fence publishes what this thread has written.
    __attribute__((noinline)) unsigned long long changed(unsigned long long arrived, unsigned long long dropped) {
        __threadfence();
        unsigned long long expected, found = atomicAdd(&word, 0ull);
        do {
            expected = found;
            const unsigned long long missing = found & detail::COUNT, all = found >> 20 & detail::COUNT, phase = found >> 40;
            if (missing < arrived) cupyops_misuse("more threads arrive at a barrier than it expects, or it is not initialised");
            const bool last = missing == arrived;
            if (last) {
                cupyops_copy_barrier(this);
                completion();
                __threadfence();
            }
            const unsigned long long left = all - dropped;
            found = atomicCAS(&word, expected, last ? detail::barrier_word(left, left, phase + 1) : detail::barrier_word(missing - arrived, left, phase));
        } while (found != expected);
        return expected >> 40;
    }

   public:
    typedef unsigned long long arrival_token;
    barrier() = default;
    barrier(const barrier&) = delete;
    explicit barrier(ptrdiff_t expected, Completion done = Completion()) : word(detail::barrier_word(expected, expected, 0)), completion(done) {}
    friend void init(barrier* b, ptrdiff_t expected) { b->word = detail::barrier_word(expected, expected, 0); }
    friend void init(barrier* b, ptrdiff_t expected, Completion done) {
        b->word = detail::barrier_word(expected, expected, 0);
        b->completion = done;
    }
    CUPYOPS_MEMBER arrival_token arrive(ptrdiff_t update = 1) { return changed(update, 0); }
    CUPYOPS_MEMBER void wait(arrival_token&& token) {
        while (atomicAdd(&word, 0ull) >> 40 == token) __nanosleep(1);
        __threadfence();
    }
    CUPYOPS_MEMBER void wait_parity(bool parity) {
        while ((atomicAdd(&word, 0ull) >> 40 & 1) == parity) __nanosleep(1);
        __threadfence();
    }
    CUPYOPS_MEMBER void arrive_and_wait() {
        const unsigned long long token = changed(1, 0);
        while (atomicAdd(&word, 0ull) >> 40 == token) __nanosleep(1);
        __threadfence();
    }
    CUPYOPS_MEMBER void arrive_and_drop() { changed(1, 1); }
    static constexpr ptrdiff_t max() { return detail::COUNT; }
};

// A size whose multiple is known: the bytes of a memcpy_async, and the alignment of both sides.
template <size_t ALIGNMENT> struct aligned_size_t {
    static constexpr size_t align = ALIGNMENT;
    size_t value;
    explicit constexpr aligned_size_t(size_t size) : value(size) {}
    constexpr operator size_t() const { return value; }
};

// Copies bytes; the copy is complete when the phase of the barrier is. Each thread of a group copies a part.
template <typename T, typename Size, thread_scope SCOPE>
CUPYOPS_INTRINSIC void memcpy_async(T* to, const T* from, Size bytes, barrier<SCOPE>& b) {
    cupyops_copy_issue(to, from, size_t(bytes), 0, &b);
}
template <typename Group, typename T, typename Size, thread_scope SCOPE>
CUPYOPS_INTRINSIC void memcpy_async(const Group& group, T* to, const T* from, Size bytes, barrier<SCOPE>& b) {
    const CupyopsShare share = cupyops_share(size_t(bytes), group.thread_rank(), group.size());
    cupyops_copy_issue(reinterpret_cast<char*>(to) + share.begin, reinterpret_cast<const char*>(from) + share.begin, share.bytes, 0, &b);
}

}  // namespace cuda
