// The instructions of sm_90a that a matrix product is made of: bulk copies of boxes of matrices (TMA), products by the tensor
// cores (wgmma), and barriers of groups of threads and of the blocks of a cluster. docs/hopper.md explains each.
#pragma once

#include "bulk.cuh"
#include "scalar.cuh"

// A tensor map (CUtensorMap), which describes a matrix to TMA: address, shape, dtype, the box that a copy moves, and the
// swizzle. The driver writes the map; the format of its words is not documented.
struct alignas(64) TensorMap {
    unsigned long long word[16];
};

// Sets the number of registers of a thread. A group of 128 threads releases registers, and another group allocates
// them.
template <int COUNT> __device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// The named barrier 1 to 15 of `threads` threads of the block, a multiple of 32.
__device__ __forceinline__ void meet(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void meet_cluster() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Arrives at the barrier of a block of the cluster. The arrival is relaxed: a release would first wait for all that
// this thread has written to global memory. No write has to be released: the arrival reports that the tensor cores have
// read a stage.
__device__ __forceinline__ void arrive_in(int block, Arrivals* a) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(shared_address_in(block, a)) : "memory");
}

// Copies a box, named by its first column and row, from global to shared memory. Elements outside the matrix arrive as zeros, and
// count as bytes.
__device__ __forceinline__ void load_box(unsigned to, const TensorMap* map, int column, int row, Arrivals* a) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(a))
        : "memory");
}

// Copies a box like load_box, to one address in both blocks of a cluster. The barrier of each block counts the bytes.
__device__ __forceinline__ void load_box_for_both(unsigned to, const TensorMap* map, int column, int row, Arrivals* a) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(a)), "h"(static_cast<unsigned short>(3))
        : "memory");
}

// Copies a box from shared to global memory. Elements outside the matrix are not written. The functions of bulk_store close
// and await groups of these copies, too.
__device__ __forceinline__ void store_box(const TensorMap* map, int column, int row, unsigned from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column),
                 "r"(row), "r"(from)
                 : "memory");
}

// Stores four 8 x 8 matrices of 16-bit elements from the registers of a warp to shared memory: lane 8·i + r gives the address
// of row r of matrix i.
__device__ __forceinline__ void store_matrices(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// Returns the wgmma descriptor of rows of 64 elements in shared memory: the address, the stride of 1024 bytes between
// groups of 8 rows, and the swizzle of the 16-byte pieces of a row (piece p of row r lies at p ^ r % 8).
__device__ __forceinline__ unsigned long long rows_at(unsigned address) {
    return static_cast<unsigned long long>((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// Products run asynchronously. The products issued between multiply_begin and multiply_commit are a group. multiply_wait waits
// until at most PENDING groups are in flight. The sums of finished groups may be read, and their operands overwritten.
__device__ __forceinline__ void multiply_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Lists eight of the 128 registers that hold a thread's share of 64 x 256 sums.
#define SUMS_8(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_32(i) SUMS_8(i), SUMS_8(i + 8), SUMS_8(i + 16), SUMS_8(i + 24)
#define MULTIPLY(TYPES) \
    asm volatile( \
        "{\n" \
        ".reg .pred p;\n" \
        "setp.ne.b32 p, %130, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPES \
        " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
        "}, %128, %129, p, 1, 1, 0, 0;\n" \
        "}\n" \
        : SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_32(96) \
        : "l"(a), "l"(b), "r"(accumulate))

// d (64 x 256) = a (64 x 16)·bᵀ (256 x 16), or d += a·bᵀ with `accumulate`. Thread t of 128 holds two rows of d,
// r = t / 32·16 + t % 32 / 4 and r + 8, and of each the columns c = 8·j + t % 4·2 and c + 1: d[4·j] and d[4·j + 1] of row r,
// d[4·j + 2] and d[4·j + 3] of row r + 8.
template <typename T>
__device__ __forceinline__ void multiply(float (&d)[128], unsigned long long a, unsigned long long b, int accumulate) {
    static_assert(sizeof(T) == 2, "the product is of float16 or bfloat16");
    if constexpr (is_bfloat16<T>) MULTIPLY("bf16.bf16");
    else MULTIPLY("f16.f16");
}

#undef MULTIPLY
#undef SUMS_32
#undef SUMS_8

// Keeps the compiler from moving a read of a sum before this point, and a write of a sum past it.
__device__ __forceinline__ void settle(float (&d)[128]) {
#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
