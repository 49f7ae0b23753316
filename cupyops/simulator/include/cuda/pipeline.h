// Replaces <cuda/pipeline>: stages of asynchronous copies, of one thread or of a block.
#pragma once

#include "barrier.h"

namespace cuda {

enum class pipeline_role { producer, consumer };

// The barriers of a pipeline's stages, in shared memory.
template <thread_scope SCOPE, unsigned char STAGES> struct pipeline_shared_state {
    static constexpr unsigned stages = STAGES;
    barrier<SCOPE> produced[STAGES], consumed[STAGES];
    pipeline_shared_state() = default;
    pipeline_shared_state(const pipeline_shared_state&) = delete;
};

template <thread_scope SCOPE> class pipeline {
    barrier<SCOPE>*produced, *consumed;
    unsigned stages, head = 0, tail = 0;  // stages that this thread has committed and released
    bool produces, consumes;

   public:
    pipeline(barrier<SCOPE>* full, barrier<SCOPE>* empty, unsigned count, bool is_producer, bool is_consumer)
        : produced(full), consumed(empty), stages(count), produces(is_producer), consumes(is_consumer) {}
    pipeline(pipeline&&) = default;
    pipeline(const pipeline&) = delete;
    // A stage is free at first: the first wait is for the phase before phase 0.
    CUPYOPS_MEMBER void producer_acquire() { consumed[head % stages].wait_parity(!(head / stages % 2)); }
    CUPYOPS_MEMBER void producer_commit() {
        produced[head % stages].arrive();
        ++head;
    }
    CUPYOPS_MEMBER void consumer_wait() { produced[tail % stages].wait_parity(tail / stages % 2); }
    CUPYOPS_MEMBER void consumer_release() {
        consumed[tail % stages].arrive();
        ++tail;
    }
    bool quit() { return true; }
    barrier<SCOPE>& cupyops_stage() { return produced[head % stages]; }
};

// A pipeline of one thread: groups of copies.
template <> class pipeline<thread_scope_thread> {
    unsigned head = 0, tail = 0;

   public:
    pipeline() = default;
    pipeline(pipeline&&) = default;
    pipeline(const pipeline&) = delete;
    void producer_acquire() {}
    CUPYOPS_MEMBER void producer_commit() {
        cupyops_copy_commit();
        ++head;
    }
    CUPYOPS_MEMBER void consumer_wait() {
        cupyops_copy_wait(head - tail - 1);
        ++tail;
    }
    void consumer_release() {}
    bool quit() { return true; }
};

inline pipeline<thread_scope_thread> make_pipeline() { return {}; }

namespace detail {

template <typename Group, thread_scope SCOPE, unsigned char STAGES>
inline pipeline<SCOPE> made(const Group& group, pipeline_shared_state<SCOPE, STAGES>* state, unsigned producers, unsigned consumers, bool is_producer, bool is_consumer) {
    if (group.thread_rank() == 0)
        for (unsigned i = 0; i < STAGES; ++i) init(&state->produced[i], producers), init(&state->consumed[i], consumers);
    group.sync();
    return pipeline<SCOPE>(state->produced, state->consumed, STAGES, is_producer, is_consumer);
}

}  // namespace detail

template <typename Group, thread_scope SCOPE, unsigned char STAGES>
CUPYOPS_INTRINSIC pipeline<SCOPE> make_pipeline(const Group& group, pipeline_shared_state<SCOPE, STAGES>* state) {
    return detail::made(group, state, unsigned(group.size()), unsigned(group.size()), true, true);
}
template <typename Group, thread_scope SCOPE, unsigned char STAGES>
CUPYOPS_INTRINSIC pipeline<SCOPE> make_pipeline(const Group& group, pipeline_shared_state<SCOPE, STAGES>* state, size_t producers) {
    const bool first = group.thread_rank() < producers;
    return detail::made(group, state, unsigned(producers), unsigned(group.size() - producers), first, !first);
}
template <typename Group, thread_scope SCOPE, unsigned char STAGES>
CUPYOPS_INTRINSIC pipeline<SCOPE> make_pipeline(const Group& group, pipeline_shared_state<SCOPE, STAGES>* state, pipeline_role role) {
    const bool first = role == pipeline_role::producer;
    const unsigned producers = unsigned(__syncthreads_count(first)), size = unsigned(group.size());
    return detail::made(group, state, producers, size - producers, first, !first);
}

template <unsigned char PRIOR> CUPYOPS_INTRINSIC void pipeline_consumer_wait_prior(pipeline<thread_scope_thread>&) { cupyops_copy_wait(PRIOR); }

// Copies of the stage that the thread fills.
template <typename T, typename Size> CUPYOPS_INTRINSIC void memcpy_async(T* to, const T* from, Size bytes, pipeline<thread_scope_thread>&) {
    cupyops_copy_issue(to, from, size_t(bytes), 0, nullptr);
}
template <typename T, typename Size, thread_scope SCOPE>
CUPYOPS_INTRINSIC void memcpy_async(T* to, const T* from, Size bytes, pipeline<SCOPE>& p) {
    cupyops_copy_issue(to, from, size_t(bytes), 0, &p.cupyops_stage());
}
template <typename Group, typename T, typename Size>
CUPYOPS_INTRINSIC void memcpy_async(const Group& group, T* to, const T* from, Size bytes, pipeline<thread_scope_thread>&) {
    const CupyopsShare share = cupyops_share(size_t(bytes), group.thread_rank(), group.size());
    cupyops_copy_issue(reinterpret_cast<char*>(to) + share.begin, reinterpret_cast<const char*>(from) + share.begin, share.bytes, 0, nullptr);
}
template <typename Group, typename T, typename Size, thread_scope SCOPE>
CUPYOPS_INTRINSIC void memcpy_async(const Group& group, T* to, const T* from, Size bytes, pipeline<SCOPE>& p) {
    memcpy_async(group, to, from, bytes, p.cupyops_stage());
}

}  // namespace cuda
