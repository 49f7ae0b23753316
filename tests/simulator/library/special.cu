// CUDA's special functions: each slot is one function of four numbers.
extern "C" __global__ void special(
    const double* x,  // (N, 4)
    double* y,        // (SLOTS, N)
    float* z,         // (SLOTS, N)
    long long N) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= N) return;
    const double a = x[4 * i], b = x[4 * i + 1], c = x[4 * i + 2], d = x[4 * i + 3], list[4] = {a, b, c, d};
    const float e = static_cast<float>(a), f = static_cast<float>(b), g = static_cast<float>(c), h = static_cast<float>(d);
    const float short_list[4] = {e, f, g, h};
    int slot = 0;
#define PUT(WIDE, NARROW) y[slot * N + i] = WIDE, z[slot++ * N + i] = NARROW
    PUT(hypot(a, b), hypotf(e, f));
    PUT(rhypot(a, b), rhypotf(e, f));
    PUT(norm3d(a, b, c), norm3df(e, f, g));
    PUT(rnorm3d(a, b, c), rnorm3df(e, f, g));
    PUT(norm4d(a, b, c, d), norm4df(e, f, g, h));
    PUT(rnorm4d(a, b, c, d), rnorm4df(e, f, g, h));
    PUT(norm(4, list), normf(4, short_list));
    PUT(rnorm(3, list), rnormf(3, short_list));
    PUT(cyl_bessel_i0(a), cyl_bessel_i0f(e));
    PUT(cyl_bessel_i1(a), cyl_bessel_i1f(e));
    PUT(erfinv(d), erfinvf(h));
    PUT(erfcinv(1.0 - d), erfcinvf(1.0f - h));
    PUT(normcdfinv(0.5 + 0.5 * d), normcdfinvf(0.5f + 0.5f * h));
    PUT(normcdf(a), normcdff(e));
    PUT(erfcx(fabs(a)), erfcxf(fabsf(e)));
    PUT(rcbrt(a), rcbrtf(e));
    double s, t;
    float u, v;
    sincospi(a, &s, &t), sincospif(e, &u, &v);
    PUT(s, u), PUT(t, v);
    PUT(exp10(d), exp10f(h));
    PUT(lgamma(a), lgammaf(e));
    PUT(tgamma(c), tgammaf(g));
    PUT(j0(c), j0f(g)), PUT(j1(c), j1f(g)), PUT(jn(2, c), jnf(2, g));
    PUT(y0(c), y0f(g)), PUT(y1(c), y1f(g)), PUT(yn(2, c), ynf(2, g));
}
