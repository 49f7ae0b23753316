// Undefines the macros of text_only.h before a CUDA header is included.
#undef __CUDA_ARCH__
#undef __CUDACC_RTC__
#undef __CUDACC__
#undef asm
#undef __asm__
#undef __asm
#undef memcpy
#undef memset
