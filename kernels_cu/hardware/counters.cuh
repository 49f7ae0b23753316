// Counters in global memory, as barriers between blocks anywhere on the GPU:
// an addition with release semantics, and loads with acquire semantics.
#pragma once

// Adds 1 to the counter. A thread that reads the sum in wait_at may then read all writes of this thread's block before
// the block's last barrier.
__device__ __forceinline__ void count_at(int* counter) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

// Waits until the counter is at least `count`.
__device__ __forceinline__ void wait_at(int* counter, int count) {
    int there;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(counter) : "memory");
    while (there < count);
}
