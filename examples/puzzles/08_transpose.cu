// y = xᵀ. A block of 16 × 16 threads has a tile. In x and in y, neighbouring threads access neighbouring elements.
extern "C" __global__ void puzzle(
    const scalar_t* x,  // (M, N)
    scalar_t* y,        // (N, M)
    long long M, long long N) {
    __shared__ scalar_t tile[16][17];  // 17: the elements of a column lie in different banks
    const long long i = blockIdx.y * 16ll + threadIdx.y, j = blockIdx.x * 16ll + threadIdx.x;
    if (i < M && j < N) tile[threadIdx.y][threadIdx.x] = x[i * N + j];
    // YOUR CODE: write the tile to y. This thread's element of y is not its element of x.
}
