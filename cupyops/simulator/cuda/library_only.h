// Undoes text_only.h, for one of CUDA's headers.
#undef __CUDA_ARCH__
#undef __CUDACC_RTC__
#undef asm
#undef __asm__
#undef __asm
#undef memcpy
#undef memset
