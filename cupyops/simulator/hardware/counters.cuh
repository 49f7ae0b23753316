// The twin of kernels_cu/hardware/counters.cuh, by fences and accesses that the simulator sees.
#pragma once

// One more has come to a counter; what its block has written before a barrier, whoever finds it counted may read.
__device__ __forceinline__ void count_at(int* counter) {
    __threadfence();
    atomicAdd(counter, 1);
}

// So many have come.
__device__ __forceinline__ void wait_at(int* counter, int count) {
    while (*static_cast<volatile int*>(counter) < count) __nanosleep(20);
    __threadfence();
}
