// Matrix products of one warp by mma.sync of numbers of 4 bits, of single bits and of float64, by the layouts of the PTX ISA.

// Eight numbers of 4 bits, `step` apart.
__device__ __forceinline__ unsigned nibbles(const int* at, int step) {
    unsigned word = 0;
    for (int i = 0; i < 8; ++i) word |= (at[i * step] & 15u) << 4 * i;
    return word;
}

// The rows of d are those of a. A product of 8 rows has zeros below.
extern "C" __global__ void mma_narrow(
    const int* a,          // (16, 64)
    const int* b,          // (64, 8)
    const unsigned* bits,  // (24, 8): 16 rows and 8 columns of 256 bits
    const double* x,       // (16, 16)
    const double* z,       // (16, 8)
    int* d,                // (6, 16, 8)
    double* e,             // (4, 16, 8)
    long long M) {
    const int t = threadIdx.x, g = t / 4, p = t % 4;
#define PUT(OF, WHICH, VALUES, COUNT) \
    for (int i = 0; i < COUNT; ++i) OF[WHICH * 128 + (g + i / 2 * 8) * 8 + 2 * p + i % 2] = VALUES[i]
    unsigned left[4], right[2];
    for (int r = 0; r < 4; ++r) left[r] = nibbles(a + (g + r % 2 * 8) * 64 + r / 2 * 32 + 8 * p, 1);
    for (int r = 0; r < 2; ++r) right[r] = nibbles(b + (r * 32 + 8 * p) * 8 + g, 8);
    int n[4] = {1, 1, 1, 1};
    asm volatile("mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(n[0]), "+r"(n[1]), "+r"(n[2]), "+r"(n[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
    PUT(d, 0, n, 4);
    int u[4] = {};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.u4.s4.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(u[0]), "+r"(u[1]), "+r"(u[2]), "+r"(u[3])
                 : "r"(left[0]), "r"(left[1]), "r"(right[0]));
    PUT(d, 1, u, 4);
    int s[2] = {};
    asm volatile("mma.sync.aligned.m8n8k32.row.col.s32.s4.u4.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+r"(s[0]), "+r"(s[1])
                 : "r"(left[0]), "r"(right[0]));
    PUT(d, 2, s, 2);

    const unsigned *row = bits + g * 8 + p, *below = row + 64, *column = bits + (16 + g) * 8 + p;
    int o[4] = {5, 5, 5, 5};
    asm volatile(
        "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(o[0]), "+r"(o[1]), "+r"(o[2]), "+r"(o[3])
        : "r"(row[0]), "r"(below[0]), "r"(row[4]), "r"(below[4]), "r"(column[0]), "r"(column[4]));
    PUT(d, 3, o, 4);
    int h[4] = {};
    asm volatile("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(h[0]), "+r"(h[1]), "+r"(h[2]), "+r"(h[3])
                 : "r"(row[0]), "r"(below[0]), "r"(column[0]));
    PUT(d, 4, h, 4);
    int q[2] = {};
    asm volatile("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.and.popc {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+r"(q[0]), "+r"(q[1])
                 : "r"(row[4]), "r"(column[4]));
    PUT(d, 5, q, 2);

    double w[8], v[4], f[4] = {}, m[4] = {2, 2, 2, 2}, k[4] = {}, l[2] = {};
    for (int r = 0; r < 8; ++r) w[r] = x[(g + r % 2 * 8) * 16 + r / 2 * 4 + p];
    for (int r = 0; r < 4; ++r) v[r] = z[(r * 4 + p) * 8 + g];
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+d"(l[0]), "+d"(l[1])
                 : "d"(w[0]), "d"(v[0]));
    PUT(e, 0, l, 2);
#if __CUDA_ARCH__ >= 900
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+d"(f[0]), "+d"(f[1]), "+d"(f[2]), "+d"(f[3])
                 : "d"(w[0]), "d"(w[1]), "d"(v[0]));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+d"(m[0]), "+d"(m[1]), "+d"(m[2]), "+d"(m[3])
                 : "d"(w[0]), "d"(w[1]), "d"(w[2]), "d"(w[3]), "d"(v[0]), "d"(v[1]));
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, "
        "{%0,%1,%2,%3};"
        : "+d"(k[0]), "+d"(k[1]), "+d"(k[2]), "+d"(k[3])
        : "d"(w[0]), "d"(w[1]), "d"(w[2]), "d"(w[3]), "d"(w[4]), "d"(w[5]), "d"(w[6]), "d"(w[7]), "d"(v[0]), "d"(v[1]),
          "d"(v[2]), "d"(v[3]));
#endif
    PUT(e, 1, f, 4);
    PUT(e, 2, m, 4);
    PUT(e, 3, k, 4);
}
