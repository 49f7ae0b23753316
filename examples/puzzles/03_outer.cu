// y[i, j] = a[i] + b[j], by a grid of two dimensions: x counts columns, y counts rows.
extern "C" __global__ void puzzle(
    const scalar_t* a,  // (M)
    const scalar_t* b,  // (N)
    scalar_t* y,        // (M, N)
    long long M, long long N) {
    // YOUR CODE: compute the row and the column of this thread, and y there.
}
