// GELU, the Gaussian error linear unit (Hendrycks and Gimpel, 2016), and its derivative, element by element.
//
//   none:  y = x·Φ(x),     Φ(x) = ½·(1 + erf(x/√2))          the normal distribution function
//   tanh:  y = x·σ(2u),    u = √(2/π)·(x + 0.044715·x³)      since ½·(1 + tanh u) = σ(2u) = 1/(1 + e^(-2u))
//
//   grad_x = grad_y·dy/dx      none: dy/dx = Φ(x) + x·φ(x)      tanh: dy/dx = σ(2u) + x·σ(2u)·σ(-2u)·2u'
//
//   x, y, grad_y, grad_x: scalar_t (n), a floating dtype      arithmetic in acc_t
//
//   macro          values    set by
//   TANH           0, 1      the body: the form
//   BLOCK_THREADS  128       Elementwise: threads of a block
//   VECTORS        1, 4      Elementwise: accesses of a thread
//   NAIVE          1         tests: the naive kernels alone
#include "gelu.cuh"
#include "elementwise.cuh"

#ifdef NAIVE

// The naive kernels compute in double, with C++ functions that keep their relative accuracy in both tails.
__device__ __forceinline__ double cdf(double x) {
    if (TANH) return 1 / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    return 0.5 * erfc(-x * 0.70710678118654752440);
}

extern "C" __global__ void gelu_naive(
    const scalar_t* __restrict__ x,  // (n)
    scalar_t* __restrict__ y,        // (n)
    long long n) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double v = convert<acc_t>(x[i]);
    y[i] = convert<scalar_t>(v * cdf(v));
}

extern "C" __global__ void gelu_backward_naive(
    const scalar_t* __restrict__ grad_y,  // (n)
    const scalar_t* __restrict__ x,       // (n)
    scalar_t* __restrict__ grad_x,        // (n)
    long long n) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double v = convert<acc_t>(x[i]);
    const double slope = TANH ? 2 * 0.79788456080286535588 * (1 + 3 * 0.044715 * v * v) * cdf(v) * cdf(-v)
                              : 0.39894228040143267794 * exp(-0.5 * v * v);
    grad_x[i] = convert<scalar_t>(convert<acc_t>(grad_y[i]) * (cdf(v) + v * slope));
}

#else

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gelu_forward(
    const scalar_t* __restrict__ x,  // (n)
    scalar_t* __restrict__ y,        // (n)
    long long n) {
    map(n, [](scalar_t x) { return convert<scalar_t>(gelu(convert<acc_t>(x))); }, y, x);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gelu_backward(
    const scalar_t* __restrict__ grad_y,  // (n)
    const scalar_t* __restrict__ x,       // (n)
    scalar_t* __restrict__ grad_x,        // (n)
    long long n) {
    map(
        n,
        [](scalar_t grad_y, scalar_t x) {
            return convert<scalar_t>(convert<acc_t>(grad_y) * gelu_derivative(convert<acc_t>(x)));
        },
        grad_x, grad_y, x);
}

#endif
