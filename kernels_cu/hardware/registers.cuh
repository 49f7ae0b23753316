// opaque(word): what the compiler may know of a register. A kernel that computes the same from registers twice, far apart, can
// so have it computed twice: the compiler would hold the results of the first time, and run out of registers.
#pragma once

// Makes the compiler forget how the word was computed, and so what it has computed from the word. Takes no instruction.
__device__ __forceinline__ void opaque(unsigned& word) { asm volatile("" : "+r"(word)); }
