// Undefines the macros of text_only.h before a header of CUDA or of the C++ library is included.
#undef __CUDA_ARCH__
#undef __CUDACC_RTC__
#undef __CUDACC__
#undef CUDART_VERSION
#undef __CUDACC_VER_MAJOR__
#undef __CUDACC_VER_MINOR__
#undef __CUDA_ARCH_LIST__
#undef __has_feature
#undef __has_extension
#undef asm
#undef __asm__
#undef __asm
#undef memcpy
#undef memset
#undef malloc
#undef free
// GCC's <memory> writes __attribute__((__noinline__)), and GCC 13 includes it in other headers.
#undef __noinline__
// CUDA 13's headers have these macros around deprecated types, and these names of four doubles.
#define __NV_SILENCE_DEPRECATION_BEGIN
#define __NV_SILENCE_DEPRECATION_END
#define double4_32a cupyops_double4_32a
#define double4_16a cupyops_double4_16a
#undef fopen
#undef freopen
#undef fclose
#undef fread
#undef fwrite
#undef fprintf
#undef fputs
#undef fgets
#undef fscanf
#undef scanf
#undef sscanf
#undef sprintf
#undef snprintf
#undef tmpfile
#undef popen
#undef system
#undef getenv
#undef alloca
