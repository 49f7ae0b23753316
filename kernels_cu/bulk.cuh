// Copies that the hardware makes by itself, from global to shared memory, while the threads work on (sm_90 and later): one
// thread asks for a whole stretch, and a counter in shared memory tells when it has come.
#pragma once

// Counts arrivals, and bytes. Its phases take turns, 0 and 1: a phase ends when as many have arrived as arrival_init was
// told, and all bytes that arrive_expecting announced; arrival_wait names the one that it waits for the end of.
struct Arrivals {
    unsigned long long word;
};

__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

#if defined(CUPYOPS_SIMULATOR)

// Here the word holds what is missing (8 bits) of how many (8 bits), the phase (1 bit), and the bytes missing (32 bits).
// Who finds a phase ended knows of all that was done before the arrivals that ended it.
__device__ inline void arrival_change(Arrivals* a, int arrived, int bytes) {
    __threadfence();
    unsigned long long expected = 0, found = atomicAdd(&a->word, 0ull);
    do {
        expected = found;
        const int missing = static_cast<int>(found & 0xff) - arrived, of = static_cast<int>(found >> 8 & 0xff);
        const int left = static_cast<int>(static_cast<unsigned>(found >> 32)) + bytes;
        const bool over = missing == 0 && left == 0;
        found = atomicCAS(&a->word, expected,
                          static_cast<unsigned>(over ? of : missing) | static_cast<unsigned long long>(of) << 8 |
                              ((expected >> 16 & 1) ^ (over ? 1 : 0)) << 16 |
                              static_cast<unsigned long long>(static_cast<unsigned>(left)) << 32);
    } while (found != expected);
}
__device__ inline void arrival_init(Arrivals* a, unsigned count) { a->word = count | static_cast<unsigned long long>(count) << 8; }
__device__ inline void arrive(Arrivals* a) { arrival_change(a, 1, 0); }
__device__ inline void arrive_expecting(Arrivals* a, unsigned bytes) { arrival_change(a, 1, static_cast<int>(bytes)); }
__device__ inline void arrival_wait(Arrivals* a, unsigned phase) {
    while ((atomicAdd(&a->word, 0ull) >> 16 & 1) == phase) __nanosleep(1);
    __threadfence();
}
__device__ inline void reads_before_copies() {}
__device__ inline void bulk_load(void* shared, const void* global, unsigned bytes, Arrivals* a) {
    assert(bytes % 16 == 0);
    for (unsigned i = 0; i < bytes / 16; ++i) {
        static_cast<uint4*>(shared)[i] = static_cast<const uint4*>(global)[i];
        cupyops_touch_by_hardware(static_cast<uint4*>(shared) + i, 16, 1);  // not by this thread
    }
    arrival_change(a, 0, -static_cast<int>(bytes));
}
template <typename T> __device__ inline void send(const T& value, T* to, int block, Arrivals* a) {
    *static_cast<T*>(__cluster_map_shared_rank(to, block)) = value;
    arrival_change(static_cast<Arrivals*>(__cluster_map_shared_rank(a, block)), 0, -static_cast<int>(sizeof(T)));
}

#elif __CUDA_ARCH__ >= 900

__device__ __forceinline__ void arrival_init(Arrivals* a, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(a)), "r"(count) : "memory");
    // The copying hardware, and the other blocks of a cluster, must see it, too.
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void arrive(Arrivals* a) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(a)) : "memory");
}

__device__ __forceinline__ void arrive_expecting(Arrivals* a, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(a)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void arrival_wait(Arrivals* a, unsigned phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_address(a)), "r"(phase) : "memory");
}

// What this thread has read of shared memory has come before copies that are asked for later overwrite it: a load that is
// under way is not ordered with the copying hardware.
__device__ __forceinline__ void reads_before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Both addresses and the number of bytes are multiples of 16.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, unsigned bytes, Arrivals* a) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(a))
                 : "memory");
}

__device__ __forceinline__ unsigned shared_address_in(int block, const void* p) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(block));
    return there;
}

// Writes the value to the same place of another block of the cluster, where it counts as bytes that have come. An arrival
// there would have to be a release to the cluster, which first waits for all that this thread has written to global
// memory: that took a microsecond a row.
template <typename T> __device__ __forceinline__ void send(const T& value, T* to, int block, Arrivals* a) {
    const unsigned there = shared_address_in(block, to), arrivals = shared_address_in(block, a);
    const unsigned* words = reinterpret_cast<const unsigned*>(&value);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 8); ++i)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(there + 8 * i),
                     "r"(words[2 * i]), "r"(words[2 * i + 1]), "r"(arrivals)
                     : "memory");
}

#else

// Earlier GPUs have none of this; texts that use it are not compiled for them.
__device__ void arrival_init(Arrivals*, unsigned);
__device__ void arrive(Arrivals*);
__device__ void arrive_expecting(Arrivals*, unsigned);
__device__ void arrival_wait(Arrivals*, unsigned);
__device__ void reads_before_copies();
__device__ void bulk_load(void*, const void*, unsigned, Arrivals*);
template <typename T> __device__ void send(const T&, T*, int, Arrivals*);

#endif
