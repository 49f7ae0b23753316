// c = a·bᵀ by tensor cores, in 16 bits. A warp computes 16 × 8 elements of c. M, N, K: multiples of 16, 8, 32.
#include "tensor_cores.cuh"

extern "C" __global__ void puzzle(
    const scalar_t* a,  // (M, K)
    const scalar_t* b,  // (N, K)
    scalar_t* c,        // (M, N)
    long long tiles, long long M, long long K, long long N) {
    const long long row = blockIdx.x / (N / 8) * 16, column = blockIdx.x % (N / 8) * 8;  // of the tile's first element
    const int g = threadIdx.x / 4, q = threadIdx.x % 4;
    float sum[4] = {0, 0, 0, 0};
    for (long long k = 0; k < K; k += 32) {
        // YOUR CODE: multiply_add of the rows g and g + 8 of a and of row g of b, each from column k + 8·q.
    }
    for (int i = 0; i < 4; ++i) c[(row + g + i / 2 * 8) * N + column + 2 * q + i % 2] = convert<scalar_t>(sum[i]);
}
