// Replaces kernels_cu/hardware/bulk.cuh, which documents each function. The thread that issues a bulk copy performs the
// copy at once.
#pragma once

struct Arrivals {
    unsigned long long word;
};

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// The word holds the missing arrivals (8 bits), the arrivals of a phase (8 bits), the phase (1 bit) and the missing bytes (32
// bits). A thread that reads the end of a phase is ordered behind all writes before the arrivals of that phase.
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
