// CUDA's vector types, with CUDA's alignment: the compiler's checks then find misaligned accesses, which fault on a
// GPU.
#pragma once
#define __VECTOR_TYPES_H__
#define __VECTOR_FUNCTIONS_H__
#define __VECTOR_FUNCTIONS_HPP__
#define __DEVICE_TYPES_H__
enum cudaRoundMode { cudaRoundNearest, cudaRoundZero, cudaRoundPosInf, cudaRoundMinInf };

// The functions are templates, since NVRTC prefers a text's own function of the same name.
#define CUPYOPS_VECTORS(T, NAME, A2, A4)                                                                           \
    struct NAME##1 { T x; };                                                                                       \
    struct alignas(A2) NAME##2 { T x, y; };                                                                        \
    struct NAME##3 { T x, y, z; };                                                                                 \
    struct alignas(A4) NAME##4 { T x, y, z, w; };                                                                  \
    template <int = 0> inline constexpr NAME##1 make_##NAME##1(T x) { return NAME##1{x}; }                         \
    template <int = 0> inline constexpr NAME##2 make_##NAME##2(T x, T y) { return NAME##2{x, y}; }                 \
    template <int = 0> inline constexpr NAME##3 make_##NAME##3(T x, T y, T z) { return NAME##3{x, y, z}; }         \
    template <int = 0> inline constexpr NAME##4 make_##NAME##4(T x, T y, T z, T w) { return NAME##4{x, y, z, w}; }

CUPYOPS_VECTORS(signed char, char, 2, 4)
CUPYOPS_VECTORS(unsigned char, uchar, 2, 4)
CUPYOPS_VECTORS(short, short, 4, 8)
CUPYOPS_VECTORS(unsigned short, ushort, 4, 8)
CUPYOPS_VECTORS(int, int, 8, 16)
CUPYOPS_VECTORS(unsigned int, uint, 8, 16)
CUPYOPS_VECTORS(long, long, 16, 16)
CUPYOPS_VECTORS(unsigned long, ulong, 16, 16)
CUPYOPS_VECTORS(long long, longlong, 16, 16)
CUPYOPS_VECTORS(unsigned long long, ulonglong, 16, 16)
CUPYOPS_VECTORS(float, float, 8, 16)
CUPYOPS_VECTORS(double, double, 16, 16)
#undef CUPYOPS_VECTORS
// library_only.h has CUDA 13's names of these.
struct alignas(16) cupyops_double4_16a { double x, y, z, w; };
struct alignas(32) cupyops_double4_32a { double x, y, z, w; };

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};
