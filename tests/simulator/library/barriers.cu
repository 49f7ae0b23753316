// cuda::barrier, cuda::pipeline, the primitives of cuda_pipeline.h, atomic references and parts of cuda::std.
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/std/array>
#include <cuda/std/limits>
#include <cuda/std/tuple>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;

// Adds the neighbours of each element of a row, which is copied in tiles of 64.
extern "C" __global__ void barriers(
    const float* x,  // (M, 256)
    float* y,        // (M, 5, 256)
    int* totals,     // (4)
    long long M) {
    __shared__ alignas(16) float s[2][64];
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    const auto block = cg::this_thread_block();
    const int t = threadIdx.x;
    const float* from = x + blockIdx.x * 256;
    float* to = y + blockIdx.x * 5 * 256;

    if (t == 0) init(&ready, blockDim.x);
    __syncthreads();
    for (int tile = 0; tile < 4; ++tile) {
        cuda::memcpy_async(block, s[0], from + tile * 64, cuda::aligned_size_t<16>(sizeof(float) * 64), ready);
#ifndef NO_WAIT
        ready.arrive_and_wait();
#endif
        to[tile * 64 + t] = s[0][t] + s[0][(t + 1) % 64];
        cuda::barrier<cuda::thread_scope_block>::arrival_token token = ready.arrive();
        ready.wait(std::move(token));
    }

    auto pipe = cuda::make_pipeline(block, &state);
    for (int tile = 0, next = 0; tile < 4; ++tile) {
        for (; next < 4 && next < tile + 2; ++next) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, s[next % 2], from + next * 64, sizeof(float) * 64, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        to[256 + tile * 64 + t] = s[tile % 2][t] + s[tile % 2][(t + 1) % 64];
        pipe.consumer_release();
    }
    block.sync();

    // Half of the threads fill the stages, and the other half reads them.
    auto roles = cuda::make_pipeline(block, &state, 32);
    for (int tile = 0; tile < 4; ++tile) {
        if (t < 32) {
            roles.producer_acquire();
            s[tile % 2][t] = from[tile * 64 + t];
            s[tile % 2][t + 32] = from[tile * 64 + t + 32];
            roles.producer_commit();
        } else {
            roles.consumer_wait();
            for (int i = t - 32; i < 64; i += 32) to[512 + tile * 64 + i] = s[tile % 2][63 - i];
            roles.consumer_release();
        }
    }
    block.sync();

    auto own = cuda::make_pipeline();
    own.producer_acquire();
    cuda::memcpy_async(&s[0][t], from + t, sizeof(float), own);
    own.producer_commit();
    own.consumer_wait();
    to[768 + t] = s[0][t];
    own.consumer_release();
    if (t < 16) __pipeline_memcpy_async(&s[1][4 * t], from + 4 * t, 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    to[1024 + t] = s[1][63 - t];

    cuda::atomic_ref<int, cuda::thread_scope_device> total(totals[0]), most(totals[1]);
    total.fetch_add(t, cuda::memory_order_relaxed);
    most.fetch_max(static_cast<int>(blockIdx.x));
    cuda::std::array<int, 3> list = {1, 2, 3};
    const auto pair = cuda::std::make_tuple(list[0], cuda::std::numeric_limits<short>::max());
    if (t == 0) {
        int expected = 0;
        cuda::atomic_ref<int, cuda::thread_scope_device>(totals[2]).compare_exchange_strong(expected, cuda::std::get<1>(pair));
        cuda::atomic_ref<int, cuda::thread_scope_device>(totals[3])++;
    }
}
