// y = factor·x + b. The grid has fewer threads than x has elements.
extern "C" __global__ void puzzle(
    const scalar_t* x,  // (n)
    const scalar_t* b,  // (n)
    scalar_t* y,        // (n)
    acc_t factor, long long n) {
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    // YOUR CODE: a loop from `first` that visits every element once, over all threads of the grid.
}
