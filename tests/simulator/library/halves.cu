// Functions of float16 and bfloat16 that CUDA's headers have for GPUs alone: each slot is one function of three numbers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define PUT(...) y[slot++ * N + i] = static_cast<double>(__VA_ARGS__)
#define BOTH(...)                                                             \
    {                                                                         \
        const auto two = __VA_ARGS__;                                         \
        PUT(WIDEN(two.x)), PUT(WIDEN(two.y));                                 \
    }
#define TO_INTEGERS(OF)                                                                                                   \
    PUT(__##OF##2short_rn(a)), PUT(__##OF##2short_rd(a)), PUT(__##OF##2short_ru(a)), PUT(__##OF##2short_rz(a));           \
    PUT(__##OF##2ushort_rn(a)), PUT(__##OF##2ushort_rd(a)), PUT(__##OF##2ushort_ru(a)), PUT(__##OF##2ushort_rz(a));       \
    PUT(__##OF##2int_rn(a)), PUT(__##OF##2int_rd(a)), PUT(__##OF##2int_ru(a)), PUT(__##OF##2int_rz(a));                   \
    PUT(__##OF##2uint_rn(a)), PUT(__##OF##2uint_rd(a)), PUT(__##OF##2uint_ru(a)), PUT(__##OF##2uint_rz(a));               \
    PUT(__##OF##2ll_rn(a)), PUT(__##OF##2ll_rd(a)), PUT(__##OF##2ll_ru(a)), PUT(__##OF##2ll_rz(a));                       \
    PUT(__##OF##2ull_rn(a)), PUT(__##OF##2ull_rd(a)), PUT(__##OF##2ull_ru(a)), PUT(__##OF##2ull_rz(a));
#define FROM_INTEGER(I, OF, TO)                                                                                           \
    {                                                                                                                     \
        const I k = static_cast<I>(v);                                                                                    \
        PUT(WIDEN(__##OF##2##TO##_rn(k))), PUT(WIDEN(__##OF##2##TO##_rz(k)));                                             \
        PUT(WIDEN(__##OF##2##TO##_rd(k))), PUT(WIDEN(__##OF##2##TO##_ru(k)));                                             \
    }
#define FUNCTIONS(NARROW, JOIN, OF)                                                                                       \
    const auto a = NARROW(x[3 * i]), b = NARROW(x[3 * i + 1]), c = NARROW(x[3 * i + 2]);                                  \
    const auto ab = JOIN(a, b), bc = JOIN(b, c), ca = JOIN(c, a);                                                         \
    const long long v = w[i];                                                                                             \
    int slot = 0;                                                                                                         \
    PUT(WIDEN(__hfma(a, b, c))), PUT(WIDEN(__hfma_sat(a, b, c))), PUT(WIDEN(__hfma_relu(a, b, c)));                       \
    BOTH(__hfma2(ab, bc, ca)) BOTH(__hfma2_sat(ab, bc, ca)) BOTH(__hfma2_relu(ab, bc, ca)) BOTH(__hcmadd(ab, bc, ca))     \
    TO_INTEGERS(OF)                                                                                                       \
    FROM_INTEGER(short, short, OF) FROM_INTEGER(unsigned short, ushort, OF) FROM_INTEGER(int, int, OF)                    \
    FROM_INTEGER(unsigned, uint, OF) FROM_INTEGER(long long, ll, OF) FROM_INTEGER(unsigned long long, ull, OF)            \
    double* const kept = y;                                                                                               \
    y = z, slot = 0;                                                                                                      \
    PUT(WIDEN(htanh(a))), PUT(WIDEN(htanh_approx(a))), PUT(WIDEN(hexp10(b)));                                             \
    BOTH(h2tanh(ab)) BOTH(h2tanh_approx(ab)) BOTH(h2exp10(bc))                                                            \
    y = kept;

// The values are in float64, so that each is exact.
extern "C" __global__ void halves(
    const float* x,      // (N, 3)
    const long long* w,  // (N)
    double* y,           // (SLOTS, N)
    double* z,           // (9, N)
    long long N) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= N) return;
#define WIDEN __half2float
    FUNCTIONS(__float2half_rn, __halves2half2, half)
#undef WIDEN
}

extern "C" __global__ void bfloats(
    const float* x,      // (N, 3)
    const long long* w,  // (N)
    double* y,           // (SLOTS, N)
    double* z,           // (9, N)
    long long N) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= N) return;
#define WIDEN __bfloat162float
    FUNCTIONS(__float2bfloat16_rn, __halves2bfloat162, bfloat16)
#undef WIDEN
}

// 8-bit floats: conversions of a number to bits, and of all bit patterns to numbers.
extern "C" __global__ void bytes(
    const float* x,  // (N, 3)
    int* y,          // (2, N)
    float* z,        // (2, 256)
    long long N) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= N) return;
    y[i] = __nv_cvt_float_to_fp8(x[3 * i], __NV_SATFINITE, __NV_E4M3);
    y[N + i] = __nv_cvt_float_to_fp8(x[3 * i], __NV_NOSAT, __NV_E5M2);
    if (i < 256) {
        __nv_fp8_e4m3 p;
        __nv_fp8_e5m2 q;
        p.__x = q.__x = static_cast<unsigned char>(i);
        z[i] = static_cast<float>(p), z[256 + i] = static_cast<float>(q);
    }
}
