// Copies that the hardware makes by itself, from global to shared memory, while the threads work on (sm_90 and later): one
// thread asks for a whole stretch, and a counter in shared memory tells when it has come.
#pragma once

// Counts arrivals, and bytes. Its phases take turns, 0 and 1: a phase ends when as many have arrived as arrival_init was
// told, and all bytes that arrive_expecting announced; arrival_wait names the one that it waits for the end of.
struct Arrivals {
    unsigned long long word;
};

__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

#if __CUDA_ARCH__ >= 900

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
