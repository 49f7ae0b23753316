// Inline PTX of numbers: each slot of y is one instruction of two words.
#define REVERSE(TO, WORD) \
    asm("brev.b32 %0, %1;" : "=r"(TO) : "r"(WORD)) /* in a macro of two lines */

__device__ __forceinline__ unsigned lane() {
    unsigned r;
    asm("mov.u32 %0, %%laneid;" : "=r"(r));
    return r;
}

// Adds 128-bit numbers by a chain of carries.
__device__ __forceinline__ uint4 add_wide(uint4 a, uint4 b) {
    uint4 r;
    asm("add.cc.u32 %0, %4, %8;\n\t"
        "addc.cc.u32 %1, %5, %9;\n\t"  // the carry goes on
        "addc.cc.u32 %2, %6, %10;\n\t"
        "addc.u32 %3, %7, %11;\n\t"
        : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(b.z), "r"(b.w));
    return r;
}

extern "C" __global__ void ptx(
    const unsigned* x,  // (N, 2)
    unsigned* y,        // (SLOTS, N)
    long long N) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= N) return;
    const unsigned a = x[2 * i], b = x[2 * i + 1];
    int slot = 0;
    unsigned r, s;
#define PUT(VALUE) y[slot++ * N + i] = VALUE
    asm("bfind.u32 %0, %1;" : "=r"(r) : "r"(a));
    PUT(r);
    asm("bfind.shiftamt.s32 %0, %1;" : "=r"(r) : "r"(a));
    PUT(r);
    asm("bfe.u32 %0, %1, %2, 7;" : "=r"(r) : "r"(a), "r"(b % 40));
    PUT(r);
    asm("bfe.s32 %0, %1, 20, 31;" : "=r"(r) : "r"(a));
    PUT(r);
    asm("bfi.b32 %0, %1, %2, 5, 12;" : "=r"(r) : "r"(a), "r"(b));
    PUT(r);
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "r"(b), "r"(0x0F0F3C3Cu));
    PUT(r);
    asm("prmt.b32 %0, %1, %2, 0xD41A;" : "=r"(r) : "r"(a), "r"(b));
    PUT(r);
    asm("prmt.b32.f4e %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(a ^ b));
    PUT(r);
    asm("mad.hi.u32 %0, %1, %2, 5;" : "=r"(r) : "r"(a), "r"(b));
    PUT(r);
    asm("shf.l.wrap.b32 %0, %1, %2, 9;" : "=r"(r) : "r"(a), "r"(b));
    PUT(r);
    asm("{\n\t"
        ".reg .pred p, q;\n\t"
        "setp.lt.u32 p|q, %1, %2;\n\t"
        "@p sub.u32 %0, %2, %1;\n\t"
        "@!p sub.u32 %0, %1, %2;\n\t"
        "selp.u32 %0, %0, 77, q;\n\t"
        "}"
        : "=r"(r)
        : "r"(a), "r"(b));
    PUT(r);
    asm volatile(
        "{ .reg .u32 n; .reg .pred p;\n"
        "  mov.u32 n, 0; mov.u32 %0, %1;\n"
        "AGAIN:\n"
        "  shr.u32 %0, %0, 1; add.u32 n, n, 1; setp.ne.u32 p, %0, 0;\n"
        "  @p bra AGAIN;\n"
        "  mov.u32 %0, n; }"
        : "=r"(r)
        : "r"(a));
    PUT(r);
    asm("{ .reg .u64 w; mul.wide.u32 w, %2, %3; mov.b64 {%0, %1}, w; }" : "=r"(r), "=r"(s) : "r"(a), "r"(b));
    PUT(r ^ s);
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, low}; }" : "=r"(r) : "r"(a));
    PUT(r);
    const uint4 sum = add_wide(make_uint4(a, b, a, b), make_uint4(b, a, ~a, ~b));
    PUT(sum.x ^ sum.y * 3 ^ sum.z * 5 ^ sum.w * 7);
    asm("popc.b32 %0, %1;" : "=r"(r) : "r"(a));
    asm("clz.b32 %0, %1;" : "=r"(s) : "r"(a));
    PUT(r * 100 + s);
    const float f = __uint_as_float((a & 0x007FFFFF) | 0x3F800000), g = __uint_as_float((b & 0x007FFFFF) | 0x40000000);
    float h;
    asm("fma.rn.f32 %0, %1, %2, 0f3F000000;" : "=f"(h) : "f"(f), "f"(g));
    PUT(__float_as_uint(h));
    asm("add.rz.f32 %0, %1, %2;" : "=f"(h) : "f"(f), "f"(g));
    PUT(__float_as_uint(h));
    asm("max.f32 %0, %1, 1.5;" : "=f"(h) : "f"(f));
    PUT(__float_as_uint(h));
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(f));
    PUT(r);
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(f), "f"(g));
    PUT(r);
    unsigned short narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(f * 0.0001f));
    PUT(narrow);
    asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(r) : "f"(-1000.0f * f));
    PUT(r);
    REVERSE(r, a);
    PUT(r);
    PUT(lane() == threadIdx.x % 32);
    const int tenth = static_cast<int>(a) / 8388608, other = static_cast<int>(b) / 8388608;  // of -256 to 255
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(tenth), "r"(other), "r"(a));
    PUT(r);
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;" : "=r"(r) : "r"(tenth), "r"(other));
    PUT(r);
    asm("vabsdiff4.u32.u32.u32.add %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(7));
    PUT(r);
    asm("vadd2.s32.s32.s32.sat %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0));
    PUT(r);
    asm("vmax4.u32.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0));
    PUT(r);
    asm("cvt.pack.sat.s16.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    PUT(r);
}

// Loads and stores with hints, atomic operations, asynchronous copies and shuffles.
extern "C" __global__ void memory(
    const float* x,  // (M, 64)
    float* y,        // (M, 64)
    int* count,      // (2)
    long long M) {
    __shared__ alignas(16) float s[64];
    const float* from = x + blockIdx.x * 64;
    float* to = y + blockIdx.x * 64;
    const int t = threadIdx.x;
    unsigned address;
    asm("{ .reg .u64 p; cvta.to.shared.u64 p, %1; cvt.u32.u64 %0, p; }" : "=r"(address) : "l"(s));
    if (t < 16) {
        const int bytes = t < 15 ? 16 : 8;  // the last copy ends with zeros
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(address + 16 * t), "l"(from + 4 * t), "n"(16), "r"(bytes));
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    asm volatile("bar.sync 0;" ::: "memory");
    float own, other, hinted;
    asm volatile("ld.shared.f32 %0, [%1+4];" : "=f"(own) : "r"(address + 4 * (t % 63)));
    asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(hinted) : "l"(from + t));
    asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 0x1f, -1;" : "=f"(other) : "f"(own));
    unsigned votes;
    asm volatile("{ .reg .pred p; setp.gt.f32 p, %1, 0f00000000; vote.sync.ballot.b32 %0, p, 0xffffffff; }" : "=r"(votes) : "f"(own));
    asm volatile("st.global.cs.f32 [%0], %1;" ::"l"(to + t), "f"(own + 2 * other + 100 * hinted + (votes & 1)));
    asm volatile("red.global.add.s32 [%0], %1;" ::"l"(count), "r"(t) : "memory");
    int before;
    asm volatile("atom.global.max.s32 %0, [%1], %2;" : "=r"(before) : "l"(count + 1), "r"(t) : "memory");
    if (t % 4 == 0) {
        float4 four;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w) : "r"(address + 4 * t));
        if (four.x != s[t] || four.w != s[t + 3]) to[t] = -1;
    }
}
