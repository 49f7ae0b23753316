// The twin of kernels_cu/hardware/counters.cuh, by fences and accesses that the simulator sees.
#pragma once

__device__ __forceinline__ void count_at(int* counter) {
    __threadfence();
    atomicAdd(counter, 1);
}

__device__ __forceinline__ void wait_at(int* counter, int count) {
    while (*static_cast<volatile int*>(counter) < count) __nanosleep(20);
    __threadfence();
}
