// Undefines the macros of text_only.h before a CUDA header is included.
#undef __CUDA_ARCH__
#undef __CUDACC_RTC__
#undef __CUDACC__
#undef CUDART_VERSION
#undef __CUDACC_VER_MAJOR__
#undef __CUDACC_VER_MINOR__
#undef __CUDA_ARCH_LIST__
#undef asm
#undef __asm__
#undef __asm
#undef memcpy
#undef memset
