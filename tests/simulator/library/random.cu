// cuRAND's generators: the first numbers of some sequences.
#include <curand_kernel.h>

template <typename State> __device__ void draw(unsigned* bits, float* numbers, double* wide, int i) {
    State state;
    curand_init(1234ULL + 77777777777ULL * (i % 3), i, i * 5, &state);
    for (int k = 0; k < 6; ++k) bits[k] = curand(&state);
    for (int k = 0; k < 3; ++k) numbers[k] = curand_uniform(&state);
    for (int k = 0; k < 3; ++k) numbers[3 + k] = curand_normal(&state);
    const float2 pair = curand_normal2(&state);
    numbers[6] = pair.x, numbers[7] = pair.y;
    wide[0] = curand_uniform_double(&state);
    wide[1] = curand_normal_double(&state);
    bits[6] = curand(&state);
    skipahead(100003, &state);
    bits[7] = curand(&state);
}

extern "C" __global__ void draws(
    unsigned* bits,  // (2, 64, 8)
    float* numbers,  // (3, 64, 8)
    double* wide,    // (2, 64, 2)
    long long M) {
    const int t = threadIdx.x;
    draw<curandStateXORWOW_t>(bits + t * 8, numbers + t * 8, wide + t * 2, t);
    draw<curandStatePhilox4_32_10_t>(bits + (64 + t) * 8, numbers + (64 + t) * 8, wide + (64 + t) * 2, t);
    curandStatePhilox4_32_10_t state;
    curand_init(99, t, 3, &state);
    const float4 u = curand_uniform4(&state), n = curand_normal4(&state);
    float* to = numbers + (128 + t) * 8;
    to[0] = u.x, to[1] = u.y, to[2] = u.z, to[3] = u.w, to[4] = n.x, to[5] = n.y, to[6] = n.z, to[7] = n.w;
}
