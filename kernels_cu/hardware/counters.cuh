// Counters in global memory at which blocks all over the GPU wait for one another:
// an addition with release semantics, and loads with acquire semantics.
#pragma once

// One more has come to a counter; what its block has written before a barrier, whoever finds it counted may read.
__device__ __forceinline__ void count_at(int* counter) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

// So many have come.
__device__ __forceinline__ void wait_at(int* counter, int count) {
    int there;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(counter) : "memory");
    while (there < count);
}
