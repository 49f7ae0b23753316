// GELU, the Gaussian error linear unit (Hendrycks and Gimpel, 2016), and its derivative, element by element.
//
//   none:  y = x·Φ(x),     Φ(x) = ½·(1 + erf(x/√2))          the normal distribution function
//   tanh:  y = x·σ(2u),    u = √(2/π)·(x + 0.044715·x³)      since ½·(1 + tanh u) = σ(2u) = 1/(1 + e^(-2u))
//
//   x, y, grad_y, grad_x: scalar_t[n]      arithmetic in acc_t      TANH: 0 or 1
#include "gelu.cuh"
#include "elementwise.cuh"

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
    map(n,
        [](scalar_t grad_y, scalar_t x) {
            return convert<scalar_t>(convert<acc_t>(grad_y) * gelu_derivative(convert<acc_t>(x)));
        },
        grad_x, grad_y, x);
}
