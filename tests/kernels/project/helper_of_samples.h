// As a header of CUDA's samples: operators of vectors, beside functions of the host.
#pragma once

#include <stdlib.h>

#include <string>

inline void require(int code) {
    if (code) exit(code);
}
#define checkCudaErrors(value) require(int(value))
inline std::string name_of_device(int device) { return std::to_string(device); }
inline __host__ __device__ float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
