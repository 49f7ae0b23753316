// Macros that hold in the author's text alone: CUDA's own headers, which are made for both sides, are read without them.
// No guard: it is read again behind each of those.
#undef __CUDA_ARCH__
#define __CUDA_ARCH__ 900
#define __CUDACC_RTC__ 1
#define CUPYOPS_NOT_COVERED_ASM _Pragma("GCC error \"inline PTX is not covered by the simulator; give the function a twin in C++ under #ifdef CUPYOPS_SIMULATOR\"")
#define asm CUPYOPS_NOT_COVERED_ASM asm
#define __asm__ CUPYOPS_NOT_COVERED_ASM asm
#define __asm CUPYOPS_NOT_COVERED_ASM asm
#define memcpy cupyops_memcpy
#define memset cupyops_memset
