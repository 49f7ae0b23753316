// Misuses of CUDA's libraries, one for each value of `fault`. The simulator reports each at the line of its number.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cub/block/block_reduce.cuh>
#include <cuda/barrier>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;

#define STORE(TO, VALUE) asm volatile("st.shared.f32 [%0], %1;" ::"r"(TO), "f"(VALUE))
#define LDMATRIX(R, FROM) asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(R) : "r"(FROM))

extern "C" __global__ void k(
    const float* x,  // (64)
    float* y,        // (64)
    long long M, int fault) {
    __shared__ alignas(16) float s[64];
    __shared__ typename cub::BlockReduce<float, 64>::TempStorage storage;
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    const int t = threadIdx.x;
    const auto block = cg::this_thread_block();
    const auto tile = cg::tiled_partition<32>(block);
    unsigned address, r;
    asm("{ .reg .u64 p; cvta.to.shared.u64 p, %1; cvt.u32.u64 %0, p; }" : "=r"(address) : "l"(s));
    float v = x[t], w[4];
    if (t == 0) init(&bar, 64);
    if (fault == 3 || fault == 11 || fault == 13) s[t] = v;
    __syncthreads();
    switch (fault) {
        case 0:
            if (t < 40) block.sync();  // 0: divergence
            break;
        case 1:
            if (t % 32 < 20) v = cg::reduce(tile, v, cg::plus<float>());  // 1: divergence
            break;
        case 2:
            if (t == 5) return;
            tile.sync();  // 2: a lane has ended
            break;
        case 3:
            s[t] = 2 * v;  // 3: a race, since a tile's barrier orders one warp
            tile.sync();
            v = s[63 - t];
            break;
        case 4:
            cg::memcpy_async(block, s, x, 256);
            __syncthreads();
            v = s[t];  // 4: no wait
            break;
        case 5:
            if (t < 32) v = cub::BlockReduce<float, 64>(storage).Sum(v);  // 5: divergence
            break;
        case 6:
            if (t < 63) bar.arrive_and_wait();  // 6: a thread does not arrive
            break;
        case 7:
            bar.arrive(3);  // 7: too many arrivals
            break;
        case 8:
            __pipeline_memcpy_async(s + t, x + t, 8);  // 8: misaligned
            break;
        case 9:
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address + 4 * t), "l"(x + t + 1));  // 9: bounds
            break;
        case 10:
            STORE(address + 4 * t + 4, v);  // 10: bounds
            break;
        case 11:
            LDMATRIX(r, address + 2);  // 11: misaligned
            break;
        case 12:
            if (t % 32 < 31) asm volatile("bar.warp.sync 0xffffffff;");  // 12: divergence
            break;
        case 13:
            STORE(address + 4 * t, v);  // 13: a race
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address + 4 * (t ^ 1)));
            break;
        case 14:
            asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"  // 14: misaligned
                         : "=f"(w[0]), "=f"(w[1]), "=f"(w[2]), "=f"(w[3])
                         : "l"(x + 1));
            break;
    }
    y[t] = v;
}
