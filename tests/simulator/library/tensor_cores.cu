// Matrix products of one warp: mma.sync with ldmatrix, and wmma. The numbers are small integers, so that every order of the
// sums gives the same result.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

#define LDMATRIX_X4(R0, R1, R2, R3, ADDRESS)                                              \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"     \
                 : "=r"(R0), "=r"(R1), "=r"(R2), "=r"(R3)                                  \
                 : "r"(ADDRESS))

// d = a b for a (16, 16) and b (16, 8), in float16, bfloat16, tf32 and int8.
extern "C" __global__ void mma_sync(
    const float* a,  // (16, 16)
    const float* b,  // (16, 8)
    float* d,        // (5, 16, 8)
    long long M) {
    __shared__ alignas(16) __half sa[16 * 16];
    __shared__ alignas(16) __half sb[16 * 8];
    const int t = threadIdx.x, g = t / 4, p = t % 4;
    for (int i = t; i < 256; i += 32) sa[i] = __float2half(a[i]);
    for (int i = t; i < 128; i += 32) sb[i] = __float2half(b[i]);
    __syncwarp();
    unsigned ra[4], rb[2];
    LDMATRIX_X4(ra[0], ra[1], ra[2], ra[3], shared_address(sa + t % 16 * 16 + t / 16 * 8));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(rb[0]), "=r"(rb[1]) : "r"(shared_address(sb + t % 16 * 8)));
    float c[4] = {};
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};\n"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#define PUT(WHICH, VALUES)                                                                      \
    for (int i = 0; i < 4; ++i) d[WHICH * 128 + (g + i / 2 * 8) * 8 + 2 * p + i % 2] = static_cast<float>(VALUES[i])
    PUT(0, c);

    // float16 accumulators, of the upper half of k
    unsigned h[2] = {0, 0};
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};" : "+r"(h[0]), "+r"(h[1]) : "r"(ra[2]), "r"(ra[3]), "r"(rb[1]));
    const __half* halves = reinterpret_cast<const __half*>(h);
    const float widened[4] = {__half2float(halves[0]), __half2float(halves[1]), __half2float(halves[2]), __half2float(halves[3])};
    PUT(1, widened);

    __nv_bfloat162 ba[4], bb[2];
    for (int r = 0; r < 4; ++r) {
        const float* at = a + (g + r % 2 * 8) * 16 + 2 * p + r / 2 * 8;
        ba[r] = __floats2bfloat162_rn(at[0], at[1]);
    }
    for (int r = 0; r < 2; ++r) bb[r] = __floats2bfloat162_rn(b[(2 * p + 8 * r) * 8 + g], b[(2 * p + 8 * r + 1) * 8 + g]);
    const unsigned *wa = reinterpret_cast<const unsigned*>(ba), *wb = reinterpret_cast<const unsigned*>(bb);
    float e[4] = {1, 1, 1, 1};
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(e[0]), "+f"(e[1]), "+f"(e[2]), "+f"(e[3])
        : "r"(wa[0]), "r"(wa[1]), "r"(wa[2]), "r"(wa[3]), "r"(wb[0]), "r"(wb[1]));
    PUT(2, e);

    float f[4] = {};
    for (int k = 0; k < 16; k += 8) {
        unsigned ta[4], tb[2];
        for (int r = 0; r < 4; ++r) ta[r] = __float_as_uint(a[(g + r % 2 * 8) * 16 + k + p + r / 2 * 4]);
        for (int r = 0; r < 2; ++r) tb[r] = __float_as_uint(b[(k + p + 4 * r) * 8 + g]);
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3])
            : "r"(ta[0]), "r"(ta[1]), "r"(ta[2]), "r"(ta[3]), "r"(tb[0]), "r"(tb[1]));
    }
    PUT(3, f);

    unsigned ia[2], ib = 0;
    for (int r = 0; r < 2; ++r) {
        ia[r] = 0;
        for (int i = 0; i < 4; ++i) ia[r] |= (static_cast<unsigned>(static_cast<int>(a[(g + 8 * r) * 16 + 4 * p + i])) & 255) << 8 * i;
    }
    for (int i = 0; i < 4; ++i) ib |= (static_cast<unsigned>(static_cast<int>(b[(4 * p + i) * 8 + g])) & 255) << 8 * i;
    int n[4] = {};
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(n[0]), "+r"(n[1]), "+r"(n[2]), "+r"(n[3])
        : "r"(ia[0]), "r"(ia[1]), "r"(ib));
    PUT(4, n);
}

// d = a b + c for the three shapes of wmma: a (m, 16), b (16, n) in columns.
template <int M, int N, typename T, typename Sum> __device__ void product(const float* a, const float* b, float* d, T* sa, T* sb, Sum* sd) {
    for (int i = threadIdx.x; i < M * 16; i += 32) sa[i] = T(a[i]);
    for (int i = threadIdx.x; i < N * 16; i += 32) sb[i % N * 16 + i / N] = T(b[i]);
    __syncwarp();
    wmma::fragment<wmma::matrix_a, M, N, 16, T, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, M, N, 16, T, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, M, N, 16, Sum> fd;
    wmma::fill_fragment(fd, Sum(3));
    wmma::load_matrix_sync(fa, sa, 16);
    wmma::load_matrix_sync(fb, sb, 16);
    wmma::mma_sync(fd, fa, fb, fd);
    for (int i = 0; i < fd.num_elements; ++i) fd.x[i] = fd.x[i] + fd.x[i];
    wmma::store_matrix_sync(sd, fd, N, wmma::mem_row_major);
#ifndef NO_SYNC_WARP
    __syncwarp();
#endif
    for (int i = threadIdx.x; i < M * N; i += 32) d[i] = float(sd[i]);
    __syncwarp();
}

extern "C" __global__ void wmma_shapes(
    const float* a,  // (32, 16)
    const float* b,  // (16, 32)
    float* d,        // (6, 256)
    long long M) {
    __shared__ alignas(32) __half sa[512];
    __shared__ alignas(32) __half sb[512];
    __shared__ alignas(32) float sd[256];
    __shared__ alignas(32) __half sh[256];
    __shared__ alignas(32) signed char ca[512];
    __shared__ alignas(32) signed char cb[512];
    __shared__ alignas(32) int cd[256];
    __shared__ alignas(32) __nv_bfloat16 ba[512];
    __shared__ alignas(32) __nv_bfloat16 bb[512];
    product<16, 16>(a, b, d, sa, sb, sd);
    product<32, 8>(a, b, d + 256, sa, sb, sd);
    product<8, 32>(a, b, d + 512, sa, sb, sd);
    product<16, 16>(a, b, d + 768, sa, sb, sh);
    product<16, 16>(a, b, d + 1024, ca, cb, cd);
    product<16, 16>(a, b, d + 1280, ba, bb, sd);
}
