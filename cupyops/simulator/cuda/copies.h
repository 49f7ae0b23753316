// Asynchronous copies from global to shared memory: cp.async, and the memcpy_async functions that use it. The header is
// included by the headers and translations that issue such copies.
//
// A copy runs when its thread waits for it, which is as late as on any GPU: a thread that reads the destination too early
// reads the old contents. The read of the source is checked at the issue, too, so that a fault there has the line of the
// copy.
#pragma once

#define CUPYOPS_MEMBER __attribute__((noinline))

struct CupyopsCopy {
    char* to;
    const char* from;
    unsigned bytes, zeros;  // the bytes copied, and the zero bytes written after them
    const void* barrier;    // the barrier that the copy completes at, or null for a copy of a group
};

// Memory of cupyops_kept() by number: copies of each thread from 2048 on, copies that complete at a barrier at 2047, carries of
// the threads at 2046.
enum { CUPYOPS_CARRIES = 2046, CUPYOPS_BARRIER_COPIES = 2047, CUPYOPS_THREAD_COPIES = 2048, CUPYOPS_COPIES = 256 };

// Two ring buffers: copies in flight, and the ends of committed groups. Beyond 256 copies in flight the oldest runs.
struct CupyopsCopies {
    CupyopsCopy copy[CUPYOPS_COPIES];
    unsigned ends[CUPYOPS_COPIES], issued, done, groups, finished;
};

inline unsigned cupyops_thread() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
inline unsigned cupyops_threads() { return blockDim.x * blockDim.y * blockDim.z; }

CUPYOPS_UNCHECKED void cupyops_copy_perform(const CupyopsCopy& c) {
    if (c.bytes) cupyops_touch(c.from, c.bytes, 0);
    if (c.bytes + c.zeros) cupyops_touch(c.to, c.bytes + c.zeros, 1);
    __builtin_memcpy(c.to, c.from, c.bytes);
    __builtin_memset(c.to + c.bytes, 0, c.zeros);
}
CUPYOPS_UNCHECKED CupyopsCopies& cupyops_copies(unsigned number) {
    return *static_cast<CupyopsCopies*>(cupyops_kept(number, sizeof(CupyopsCopies)));
}
CUPYOPS_UNCHECKED void cupyops_copy_issue(void* to, const void* from, size_t bytes, size_t zeros, const void* barrier) {
    if (!(bytes + zeros)) return;
    if (bytes) cupyops_touch(from, bytes, 0);
    CupyopsCopies& c = cupyops_copies(barrier ? CUPYOPS_BARRIER_COPIES : CUPYOPS_THREAD_COPIES + cupyops_thread());
    if (c.issued - c.done == CUPYOPS_COPIES) cupyops_copy_perform(c.copy[c.done++ % CUPYOPS_COPIES]);
    c.copy[c.issued++ % CUPYOPS_COPIES] = {
        static_cast<char*>(to), static_cast<const char*>(from), unsigned(bytes), unsigned(zeros), barrier};
}
// Ends a group of copies of this thread: cp.async.commit_group.
CUPYOPS_UNCHECKED void cupyops_copy_commit() {
    CupyopsCopies& c = cupyops_copies(CUPYOPS_THREAD_COPIES + cupyops_thread());
    if (c.groups - c.finished == CUPYOPS_COPIES) ++c.finished;
    c.ends[c.groups++ % CUPYOPS_COPIES] = c.issued;
}
// Completes the copies of this thread except those of the last `pending` groups: cp.async.wait_group.
CUPYOPS_UNCHECKED void cupyops_copy_wait(unsigned pending) {
    CupyopsCopies& c = cupyops_copies(CUPYOPS_THREAD_COPIES + cupyops_thread());
    for (; c.groups - c.finished > pending; ++c.finished)
        for (const unsigned end = c.ends[c.finished % CUPYOPS_COPIES]; int(end - c.done) > 0; ++c.done)
            cupyops_copy_perform(c.copy[c.done % CUPYOPS_COPIES]);
}
// Completes all copies of this thread: cp.async.wait_all.
CUPYOPS_UNCHECKED void cupyops_copy_wait_all() {
    cupyops_copy_commit();
    cupyops_copy_wait(0);
}
// Completes the copies of a barrier; the last thread to arrive calls it.
CUPYOPS_UNCHECKED void cupyops_copy_barrier(const void* barrier) {
    CupyopsCopies& c = cupyops_copies(CUPYOPS_BARRIER_COPIES);
    unsigned kept = c.done;
    for (unsigned i = c.done; i != c.issued; ++i) {
        const CupyopsCopy copy = c.copy[i % CUPYOPS_COPIES];
        if (copy.barrier == barrier) cupyops_copy_perform(copy);
        else c.copy[kept++ % CUPYOPS_COPIES] = copy;
    }
    c.issued = kept;
}

// The part of a copy that the thread number `rank` of `threads` issues, in multiples of 16 bytes.
struct CupyopsShare {
    size_t begin, bytes;
};
inline CupyopsShare cupyops_share(size_t bytes, size_t rank, size_t threads) {
    const size_t share = ((bytes + 15) / 16 + threads - 1) / threads * 16, begin = rank * share;
    if (begin >= bytes) return {0, 0};
    return {begin, begin + share < bytes ? share : bytes - begin};
}
