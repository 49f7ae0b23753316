// Integer functions: each slot of y is one function of two words.
extern "C" __global__ void intrinsics(
    const unsigned* x,  // (N, 2)
    unsigned* y,        // (SLOTS, N)
    long long N) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= N) return;
    const unsigned a = x[2 * i], b = x[2 * i + 1];
    const int sa = static_cast<int>(a), sb = static_cast<int>(b);
    int slot = 0;
#define PUT(...) y[slot++ * N + i] = static_cast<unsigned>(__VA_ARGS__)
#define BOTH(NAME) PUT(NAME##2(a, b)), PUT(NAME##4(a, b))
    BOTH(__vadd), BOTH(__vsub), BOTH(__vaddss), BOTH(__vsubss), BOTH(__vaddus), BOTH(__vsubus);
    BOTH(__vabsdiffs), BOTH(__vabsdiffu), BOTH(__vavgs), BOTH(__vavgu), BOTH(__vhaddu);
    BOTH(__vmaxs), BOTH(__vmaxu), BOTH(__vmins), BOTH(__vminu);
    BOTH(__vcmpeq), BOTH(__vcmpne), BOTH(__vcmpges), BOTH(__vcmpgeu), BOTH(__vcmpgts), BOTH(__vcmpgtu);
    BOTH(__vcmples), BOTH(__vcmpleu), BOTH(__vcmplts), BOTH(__vcmpltu), BOTH(__vseteq), BOTH(__vsetgts);
    BOTH(__vsads), BOTH(__vsadu);
    PUT(__vabs2(a)), PUT(__vabs4(a)), PUT(__vabsss2(a)), PUT(__vabsss4(a)), PUT(__vneg2(a)), PUT(__vneg4(a)), PUT(__vnegss2(a)), PUT(__vnegss4(a));
    PUT(__dp4a(sa, sb, 7)), PUT(__dp4a(a, b, 7u)), PUT(__dp2a_lo(sa, sb, 7)), PUT(__dp2a_hi(sa, sb, 7)), PUT(__dp2a_lo(a, b, 7u)), PUT(__dp2a_hi(a, b, 7u));
    PUT(__byte_perm(a, b, 0x6A24)), PUT(__funnelshift_l(a, b, 37)), PUT(__funnelshift_r(a, b, 37)), PUT(__funnelshift_lc(a, b, 37)), PUT(__funnelshift_rc(a, b, 5));
    PUT(__brev(a)), PUT(__clz(sa)), PUT(__ffs(sa)), PUT(__popc(a)), PUT(__fns(a, b % 32, 2)), PUT(__fns(a, b % 32, -3));
    PUT(__mul24(sa, sb)), PUT(__umul24(a, b)), PUT(__mulhi(sa, sb)), PUT(__umulhi(a, b));
    PUT(__hadd(sa, sb)), PUT(__rhadd(sa, sb)), PUT(__uhadd(a, b)), PUT(__urhadd(a, b)), PUT(__sad(sa, sb, 5u)), PUT(__usad(a, b, 5u));
    PUT(__vimax3_s32(sa, sb, 9)), PUT(__vimin3_u32(a, b, 9u)), PUT(__viaddmax_s32(sa, sb, 9)), PUT(__vimin_s32_relu(sa, sb));
    PUT(__vimax3_s16x2(a, b, 0x00050005u)), PUT(__vimin3_u16x2(a, b, 0x90009000u)), PUT(__viaddmax_s16x2(a, b, 0x00050005u));
    PUT(__viaddmin_u16x2(a, b, 0x90009000u)), PUT(__viaddmax_s16x2_relu(a, b, 0xFF00FF00u)), PUT(__vimin3_s16x2_relu(a, b, 0x00050005u));
    bool high, low;
    const unsigned larger = __vibmax_s16x2(a, b, &high, &low), which = high * 2 + low;
    PUT(larger), PUT(which);
    const int least = __vibmin_s32(sa, sb, &low);
    PUT(least), PUT(low);
}
