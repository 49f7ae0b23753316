#pragma once
#include <torch/extension.h>

#ifdef __CUDACC__
#define CELL_HOST_DEVICE __host__ __device__
#else
#define CELL_HOST_DEVICE
#endif
#define CELL_INLINE CELL_HOST_DEVICE __forceinline__

template <typename T>
CELL_INLINE T mix(T from, T to, T part) {
    return from + part * (to - from);
}

std::vector<torch::Tensor> cell_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor h);
