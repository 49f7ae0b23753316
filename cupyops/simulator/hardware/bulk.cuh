// Replaces kernels_cu/hardware/bulk.cuh, which documents each function. The thread that issues a bulk load performs the
// load at once. Stores run as late as a GPU may run them: when the thread waits for them. A thread that reads a result too
// early reads the old contents; one that overwrites shared memory too early corrupts the result. The reads of a store are
// checked when it is issued, too: a read of memory that is unwritten, or not visible to the async proxy, is a fault.
#pragma once

struct Arrivals {
    unsigned long long word;
};

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// The word holds the missing arrivals (8 bits), the arrivals of a phase (8 bits), the phase (1 bit) and the missing bytes (32
// bits). A thread that reads the end of a phase is ordered after all writes before the arrivals of that phase.
__device__ inline void arrival_change(Arrivals* a, int arrived, int bytes) {
    __threadfence();
    unsigned long long expected = 0, found = atomicAdd(&a->word, 0ull);
    do {
        expected = found;
        const int missing = static_cast<int>(found & 0xff) - arrived, of = static_cast<int>(found >> 8 & 0xff);
        const int left = static_cast<int>(static_cast<unsigned>(found >> 32)) + bytes;
        const bool over = missing == 0 && left == 0;
        found = atomicCAS(
            &a->word, expected,
            static_cast<unsigned>(over ? of : missing) | static_cast<unsigned long long>(of) << 8 |
                ((expected >> 16 & 1) ^ (over ? 1 : 0)) << 16 |
                static_cast<unsigned long long>(static_cast<unsigned>(left)) << 32);
    } while (found != expected);
}
__device__ inline void arrival_init(Arrivals* a, unsigned count) {
    a->word = count | static_cast<unsigned long long>(count) << 8;
}
__device__ inline void arrive(Arrivals* a) { arrival_change(a, 1, 0); }
__device__ inline void arrive_expecting(Arrivals* a, unsigned bytes) { arrival_change(a, 1, static_cast<int>(bytes)); }
__device__ inline void arrival_wait(Arrivals* a, unsigned phase) {
    while ((atomicAdd(&a->word, 0ull) >> 16 & 1) == phase) __nanosleep(1);
    __threadfence();
}
__device__ inline void reads_before_copies() {}
__device__ inline void bulk_load(void* shared, const void* global, unsigned bytes, Arrivals* a) {
    assert(bytes % 16 == 0);
    CUPYOPS_BULK_COPY(1);
    for (unsigned i = 0; i < bytes / 16; ++i) {
        static_cast<uint4*>(shared)[i] = static_cast<const uint4*>(global)[i];
        cupyops_touch_by_hardware(static_cast<uint4*>(shared) + i, 16, 1);  // a write of the bulk copy, not of this thread
    }
    CUPYOPS_BULK_COPY(0);
    arrival_change(a, 0, -static_cast<int>(bytes));
}
template <typename T> __device__ inline void send(const T& value, T* to, int block, Arrivals* a) {
    *static_cast<T*>(__cluster_map_shared_rank(to, block)) = value;
    arrival_change(static_cast<Arrivals*>(__cluster_map_shared_rank(a, block)), 0, -static_cast<int>(sizeof(T)));
}

namespace twin {

// A store in flight. `move` copies it, or checks its reads alone.
struct Store {
    void (*move)(const Store&, bool copied);
    char* global;
    const char* shared;
    long long of_box[8];
    unsigned bytes;
};

// Two ring buffers for each thread: the stores in flight, and the ends of committed groups.
struct Stores {
    Store store[64];
    unsigned ends[64], issued, done, groups, finished;
};
CUPYOPS_UNCHECKED Stores& stores() {
    return *static_cast<Stores*>(
        cupyops_kept((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x, sizeof(Stores)));
}
CUPYOPS_UNCHECKED void issue_store(const Store& b) {
    Stores& s = stores();
    assert(s.issued - s.done < 64);
    s.store[s.issued++ % 64] = b;
    b.move(b, false);
}
CUPYOPS_UNCHECKED void commit() {
    Stores& s = stores();
    assert(s.groups - s.finished < 64);
    s.ends[s.groups++ % 64] = s.issued;
}
CUPYOPS_UNCHECKED void wait(unsigned pending) {
    for (Stores& s = stores(); s.groups - s.finished > pending; ++s.finished)
        for (; s.done != s.ends[s.finished % 64]; ++s.done) s.store[s.done % 64].move(s.store[s.done % 64], true);
}
CUPYOPS_UNCHECKED void move_range(const Store& b, bool copied) {
    for (unsigned i = 0; i < b.bytes; i += 16) {
        cupyops_touch_by_hardware(b.shared + i, 16, 0);
        if (!copied) continue;
        cupyops_touch_by_hardware(b.global + i, 16, 1);
        __builtin_memcpy(b.global + i, b.shared + i, 16);
    }
}

}  // namespace twin

CUPYOPS_INTRINSIC void bulk_store(void* global, const void* shared, unsigned bytes) {
    assert(bytes % 16 == 0 && reinterpret_cast<unsigned long long>(global) % 16 == 0 && shared_address(shared) % 16 == 0);
    twin::issue_store({twin::move_range, static_cast<char*>(global), static_cast<const char*>(shared), {}, bytes});
}
CUPYOPS_INTRINSIC void stores_commit() { twin::commit(); }
template <int PENDING> CUPYOPS_INTRINSIC void stores_have_read() { twin::wait(PENDING); }
CUPYOPS_INTRINSIC void stores_are_done() { twin::wait(0); }
CUPYOPS_INTRINSIC void show_to_copies() { cupyops_show(); }
