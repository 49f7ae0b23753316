// Bulk copies between global and shared memory (sm_90 and later). One thread issues the copy of a range of memory, and the
// threads go on with other work. A barrier in shared memory (an mbarrier) counts the bytes that have arrived; the thread that
// issued stores to global memory waits for them in groups.
#pragma once

// An mbarrier, which counts arrivals and bytes in phases 0, 1, 0, 1 and on. A phase ends after `count` arrivals
// (arrival_init) and all bytes that arrive_expecting announced. arrival_wait(a, phase) returns when the phase has
// ended.
struct Arrivals {
    unsigned long long word;
};

__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void arrival_init(Arrivals* a, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(a)), "r"(count) : "memory");
    // Bulk copies and the other blocks of a cluster see the initialised barrier, too.
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
        "}\n" ::"r"(shared_address(a)),
        "r"(phase)
        : "memory");
}

// Orders this thread's earlier loads from shared memory before bulk copies that are issued later and overwrite that memory:
// without the fence a load that is in flight is not ordered with a bulk copy.
__device__ __forceinline__ void reads_before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Issues the copy. Both addresses and the number of bytes are multiples of 16.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, unsigned bytes, Arrivals* a) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(a))
                 : "memory");
}

// Stores a range of shared memory to global memory. Both addresses and the number of bytes are multiples of 16.
// stores_commit closes a group of the thread's stores. stores_have_read waits until at most PENDING groups still read
// shared memory. stores_are_done waits until all groups have written global memory.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void stores_have_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void stores_are_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Makes what this thread has written to shared memory visible to bulk copies.
__device__ __forceinline__ void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ unsigned shared_address_in(int block, const void* p) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(block));
    return there;
}

// Writes the value to the same place in the shared memory of another block of the cluster; the other block's mbarrier
// counts the bytes. A plain store with an arrival would need a release at cluster scope. The release waits for all
// earlier writes of this thread to global memory, which took a microsecond a row.
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

// Declarations for GPUs before sm_90. No kernel that calls these functions is compiled for these GPUs.
__device__ void arrival_init(Arrivals*, unsigned);
__device__ void arrive(Arrivals*);
__device__ void arrive_expecting(Arrivals*, unsigned);
__device__ void arrival_wait(Arrivals*, unsigned);
__device__ void reads_before_copies();
__device__ void bulk_load(void*, const void*, unsigned, Arrivals*);
__device__ void bulk_store(void*, const void*, unsigned);
__device__ void stores_commit();
template <int PENDING> __device__ void stores_have_read();
__device__ void stores_are_done();
__device__ void show_to_copies();
template <typename T> __device__ void send(const T&, T*, int, Arrivals*);

#endif
