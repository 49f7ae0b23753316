// opaque(word): what the compiler may know of a register.
#pragma once

// Makes the compiler forget how the word was computed, and so what it has computed from the word. Takes no instruction.
__device__ __forceinline__ void opaque(unsigned& word) { asm volatile("" : "+r"(word)); }
