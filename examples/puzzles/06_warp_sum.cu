// The sum of each row, without shared memory. A warp has a row, and a block has four warps.
extern "C" __global__ void puzzle(
    const scalar_t* x,  // (M, N)
    scalar_t* y,        // (M)
    long long M, long long N) {
    const long long row = blockIdx.x * 4ll + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= M) return;  // for all lanes of the warp alike
    acc_t sum = 0;
    for (long long j = lane; j < N; j += 32) sum += acc_t(x[row * N + j]);
    // YOUR CODE: add the sums of the 32 lanes, so that lane 0 has the sum of the row.
    if (lane == 0) y[row] = scalar_t(sum);
}
