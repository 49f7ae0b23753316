// opaque(word): hides from the compiler how a register was computed. A kernel that computes a value twice, far apart, then
// computes it twice. The compiler would otherwise keep the first result in a register, and could run out of registers.
#pragma once

// After a call, the compiler may assume nothing about the word. Neither function emits an instruction.
__device__ __forceinline__ void opaque(unsigned& word) { asm volatile("" : "+r"(word)); }
__device__ __forceinline__ void opaque(int& word) { asm volatile("" : "+r"(word)); }
