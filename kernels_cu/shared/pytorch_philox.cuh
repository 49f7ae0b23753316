// The state of PyTorch's Philox generator, the parameter of kernels with dropout: a seed and an offset, 64-bit integers without a
// sign. A call passes the tuple (seed, offset).
#pragma once

namespace at {
struct PhiloxCudaState {
    union Number {
        unsigned long long val;
        long long* ptr;  // while PyTorch captures a CUDA graph
    };
    Number seed_, offset_;
    unsigned offset_intragraph_;
    bool captured_;
};

namespace cuda {
namespace philox {
// The seed and the offset.
__device__ __forceinline__ std::tuple<uint64_t, uint64_t> unpack(PhiloxCudaState state) {
    if (state.captured_) {
        return std::tuple<uint64_t, uint64_t>(*state.seed_.ptr, *state.offset_.ptr + state.offset_intragraph_);
    }
    return std::tuple<uint64_t, uint64_t>(state.seed_.val, state.offset_.val);
}
}  // namespace philox
}  // namespace cuda
}  // namespace at

namespace torch {
using namespace at;
}
namespace c10 {
using namespace at;
}
