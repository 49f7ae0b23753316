// c = a·b. A block of 16 × 16 threads computes a tile of c, and reads each element of its strips of a and b once.
extern "C" __global__ void puzzle(
    const scalar_t* a,  // (M, K)
    const scalar_t* b,  // (K, N)
    scalar_t* c,        // (M, N)
    long long M, long long K, long long N) {
    __shared__ scalar_t of_a[16][16], of_b[16][16];
    const int down = threadIdx.y, across = threadIdx.x;
    const long long i = blockIdx.y * 16ll + down, j = blockIdx.x * 16ll + across;
    acc_t sum = 0;
    for (long long k = 0; k < K; k += 16) {
        // YOUR CODE: load a tile of a and a tile of b, with 0 outside the matrices, and add 16 products to `sum`.
    }
    if (i < M && j < N) c[i * N + j] = scalar_t(sum);
}
