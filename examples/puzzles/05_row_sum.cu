// The sum of each row. A block has a row.
extern "C" __global__ void puzzle(
    const scalar_t* x,  // (M, N)
    scalar_t* y,        // (M)
    long long M, long long N) {
    __shared__ acc_t part[BLOCK_THREADS];
    acc_t sum = 0;
    for (long long j = threadIdx.x; j < N; j += BLOCK_THREADS) sum += acc_t(x[blockIdx.x * N + j]);
    part[threadIdx.x] = sum;
    // YOUR CODE: add the parts of all threads to part[0], in log2(BLOCK_THREADS) steps.
    if (threadIdx.x == 0) y[blockIdx.x] = scalar_t(part[0]);
}
