// What a kernel of matrix products asks of sm_90a: boxes of matrices by the copying hardware (TMA), products by the matrix
// units (wgmma), and barriers between groups of threads and between blocks of a cluster. docs/hopper.md explains each.
#pragma once

#include "bulk.cuh"
#include "scalar.cuh"

// What the copying hardware knows of a matrix: address, shape, dtype, the box that it moves at a time, and the swizzle. The
// driver writes it (cupyops/launch/tensor_map.py), which alone knows what the words mean; for the simulator they are plain numbers.
struct alignas(64) TensorMap {
    unsigned long long word[16];
};

#if defined(CUPYOPS_SIMULATOR)

// What runs by itself on a GPU is done here when somebody waits for it, as late as it may be: who reads too early reads what
// was there before, and what is overwritten too early is lost. As early as it may be, the simulator is told what will be
// read: what is not there yet, or not for the hardware to see, is a fault. Boxes that come are here at once, since who does
// not wait for them has nothing that orders the accesses, which the simulator finds.
namespace twin {

__device__ inline unsigned thread() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }

// 16 bytes of shared memory, by the address that they would have without the swizzle.
__device__ inline char* swizzled(unsigned address) {
    return static_cast<char*>(__cvta_shared_to_generic(address ^ (address >> 7 & 7) << 4));
}

struct Box {
    char* matrix;
    long long rows, columns, box_rows, box_columns, itemsize, column, row;
    unsigned at;
};

CUPYOPS_UNCHECKED Box box(const TensorMap* map, int column, int row, unsigned at) {
    const unsigned long long* w = map->word;
    assert(at % 128 == 0);
    assert(w[4] * w[5] == 128);  // one row of the swizzle
    return {reinterpret_cast<char*>(w[0]), (long long)w[1], (long long)w[2], (long long)w[3], (long long)w[4], (long long)w[5],
            column, row, at};
}

// Between a matrix and the shared memory of a block of the cluster, or only looking at what would go out; the bytes of the box.
enum Way { IN, OUT, LOOK };
CUPYOPS_UNCHECKED int move(const Box& b, Way way, unsigned block) {
    const int each = 16 / (int)b.itemsize;
    for (int r = 0; r < b.box_rows; ++r)
        for (int c = 0; c < b.box_columns; c += each) {
            char* const shared = __cluster_map_shared_rank(swizzled(b.at + r * 128 + c * (int)b.itemsize), block);
            long long first = b.column + c, end = first + each;
            if (first < 0) first = 0;
            if (end > b.columns) end = b.columns;
            const bool inside = b.row + r >= 0 && b.row + r < b.rows && first < end;
            const size_t bytes = inside ? (end - first) * b.itemsize : 0;
            const size_t skipped = inside ? (first - b.column - c) * b.itemsize : 0;
            char* const global = b.matrix + ((b.row + r) * b.columns + first) * b.itemsize;
            if (way == IN) {
                if (bytes) cupyops_touch_by_hardware(global, bytes, 0);
                cupyops_touch_by_hardware(shared, 16, 1);
                __builtin_memset(shared, 0, 16);
                __builtin_memcpy(shared + skipped, global, bytes);
            } else if (bytes) {
                cupyops_touch_by_hardware(shared + skipped, bytes, 0);
                if (way == LOOK) continue;
                cupyops_touch_by_hardware(global, bytes, 1);
                __builtin_memcpy(global, shared + skipped, bytes);
            }
        }
    return (int)(b.box_rows * b.box_columns * b.itemsize);
}

CUPYOPS_UNCHECKED void load(const Box& b, unsigned block, Arrivals* a) {
    const int bytes = move(b, IN, block);
    arrival_change(__cluster_map_shared_rank(a, block), 0, -bytes);
}

// Boxes on their way out, of one thread, in groups that were committed: rings of those that are not done.
struct Stores {
    Box box[64];
    unsigned ends[64], asked, done, groups, finished;
};
CUPYOPS_UNCHECKED Stores& stores() { return *static_cast<Stores*>(cupyops_kept(thread(), sizeof(Stores))); }
CUPYOPS_UNCHECKED void store(const Box& b) {
    Stores& s = stores();
    assert(s.asked - s.done < 64);
    s.box[s.asked++ % 64] = b;
    move(b, LOOK, __clusterRelativeBlockRank());
}
CUPYOPS_UNCHECKED void commit() {
    Stores& s = stores();
    assert(s.groups - s.finished < 64);
    s.ends[s.groups++ % 64] = s.asked;
}
CUPYOPS_UNCHECKED void wait(unsigned pending) {
    for (Stores& s = stores(); s.groups - s.finished > pending; ++s.finished)
        for (; s.done != s.ends[s.finished % 64]; ++s.done) move(s.box[s.done % 64], OUT, __clusterRelativeBlockRank());
}

// A product of 128 threads, and those of them that are not done: rings, too, of products and of the groups committed.
typedef float (*Widen)(const char*);
struct Product {
    unsigned long long a, b;
    int accumulate;
    Widen widen;  // of an element
    float* sums[128];
};
struct Products {
    Product product[64];
    unsigned ends[64], asked[128], committed[128], all_asked, done, groups, finished, waiting;
    bool begun[128];
};
CUPYOPS_UNCHECKED Products& products() {
    return *static_cast<Products*>(cupyops_kept(1024 + thread() / 128, sizeof(Products)));
}

// 16 elements of so many rows, which a descriptor names; without a place for them, a look.
CUPYOPS_UNCHECKED void operand(float* to, int rows, unsigned long long named, Widen widen) {
    const unsigned start = (named & 0xffff) << 4, eight_rows = (named >> 32 & 0x3fff) << 4;
    assert((named >> 16 & 0x3fff) == 1 && named >> 62 == 1);
    for (int r = 0; r < rows; ++r)
        for (int k = 0; k < 16; ++k) {
            const char* at = swizzled(start + r / 8 * eight_rows + r % 8 * 128 + k / 8 * 16);
            if (k % 8 == 0) cupyops_touch_by_hardware(at, 16, 0);
            if (to) to[r * 16 + k] = widen(at + k % 8 * 2);
        }
}
CUPYOPS_UNCHECKED void perform(const Product& p) {
    float a[64 * 16], b[256 * 16];
    operand(a, 64, p.a, p.widen);
    operand(b, 256, p.b, p.widen);
    for (int t = 0; t < 128; ++t)
        for (int i = 0; i < 128; ++i) {
            const float* row = a + (t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8) * 16;
            const float* column = b + (i / 4 * 8 + t % 4 * 2 + i % 2) * 16;
            float sum = p.accumulate ? p.sums[t][i] : 0.0f;
            for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
            p.sums[t][i] = sum;
        }
}
CUPYOPS_UNCHECKED void products_begin() { products().begun[thread() % 128] = true; }
CUPYOPS_UNCHECKED void ask(float* sums, unsigned long long a, unsigned long long b, int accumulate, Widen widen) {
    Products& all = products();
    const unsigned t = thread() % 128, n = all.asked[t]++;
    assert(all.begun[t] && n - all.done < 64);
    Product& p = all.product[n % 64];
    if (n == all.all_asked) {
        ++all.all_asked;
        p.a = a, p.b = b, p.accumulate = accumulate, p.widen = widen;
        operand(nullptr, 64, a, widen);
        operand(nullptr, 256, b, widen);
    }
    assert(p.a == a && p.b == b && p.accumulate == accumulate);  // 128 threads ask for one product
    p.sums[t] = sums;
}
CUPYOPS_UNCHECKED void products_commit() {
    Products& all = products();
    const unsigned t = thread() % 128, n = all.committed[t]++;
    if (n == all.groups) {
        assert(n - all.finished < 64);
        ++all.groups;
        all.ends[n % 64] = all.asked[t];
    }
    assert(all.ends[n % 64] == all.asked[t]);
    all.begun[t] = false;
}
// Who leaves knows that the operands have been read, whoever of the 128 threads did it here.
CUPYOPS_UNCHECKED void products_wait(unsigned pending) {
    Products& all = products();
    if (++all.waiting == 128) {
        all.waiting = 0;
        for (; all.groups - all.finished > pending; ++all.finished)
            for (; all.done != all.ends[all.finished % 64]; ++all.done) perform(all.product[all.done % 64]);
    }
    cupyops_meet(16 + thread() / 128, 128, 1);
}

template <typename T> CUPYOPS_UNCHECKED float widened(const char* p) { return float(*reinterpret_cast<const T*>(p)); }

}  // namespace twin

template <int COUNT> __device__ inline void keep_registers() {}
template <int COUNT> __device__ inline void take_registers() {}
CUPYOPS_INTRINSIC void meet(int barrier, int threads) {
    assert(0 < barrier && barrier < 16 && threads % 32 == 0);
    cupyops_meet(barrier, threads, 0);
}
CUPYOPS_INTRINSIC void meet_cluster() {
    __syncwarp();
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
}
CUPYOPS_INTRINSIC void arrive_in(int block, Arrivals* a) { arrival_change(__cluster_map_shared_rank(a, block), 1, 0); }

CUPYOPS_INTRINSIC void load_box(unsigned to, const TensorMap* map, int column, int row, Arrivals* a) {
    twin::load(twin::box(map, column, row, to), __clusterRelativeBlockRank(), a);
}
CUPYOPS_INTRINSIC void load_box_for_both(unsigned to, const TensorMap* map, int column, int row, Arrivals* a) {
    for (int block = 0; block < 2; ++block) twin::load(twin::box(map, column, row, to), block, a);
}
CUPYOPS_INTRINSIC void store_box(const TensorMap* map, int column, int row, unsigned from) {
    twin::store(twin::box(map, column, row, from));
}
CUPYOPS_INTRINSIC void stores_commit() { twin::commit(); }
template <int PENDING> CUPYOPS_INTRINSIC void stores_have_read() { twin::wait(PENDING); }
CUPYOPS_INTRINSIC void stores_are_done() { twin::wait(0); }
CUPYOPS_INTRINSIC void show_to_copies() { cupyops_show(); }

CUPYOPS_INTRINSIC void store_matrices(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d) {
    assert(at % 16 == 0);
    const unsigned lane = twin::thread() % 32, values[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) {
        const unsigned row = __shfl_sync(0xffffffff, at, 8 * i + lane / 4);
        *static_cast<unsigned*>(__cvta_shared_to_generic(row + lane % 4 * 4)) = values[i];
    }
}

// Shared addresses take a bit more here, which a GPU's descriptors have no use for.
__device__ inline unsigned long long rows_at(unsigned address) { return address >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62; }
CUPYOPS_INTRINSIC void multiply_begin() { twin::products_begin(); }
CUPYOPS_INTRINSIC void multiply_commit() { twin::products_commit(); }
template <int PENDING> CUPYOPS_INTRINSIC void multiply_wait() { twin::products_wait(PENDING); }
template <typename T>
CUPYOPS_INTRINSIC void multiply(float (&d)[128], unsigned long long a, unsigned long long b, int accumulate) {
    static_assert(sizeof(T) == 2, "the matrix units take float32 for less");
    twin::ask(d, a, b, accumulate, twin::widened<T>);
}
__device__ inline void settle(float (&)[128]) {}

#else

// Registers of a thread. A group of 128 threads that has more to hold takes over what another one gives up.
template <int COUNT> __device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// A barrier with a number, from 1 on, for so many threads of the block.
__device__ __forceinline__ void meet(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void meet_cluster() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// In another block of the cluster, or in this one. Relaxed, where a release would first wait for all that the thread has
// written to global memory: it tells that the matrix units have read, and they have.
__device__ __forceinline__ void arrive_in(int block, Arrivals* a) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(shared_address_in(block, a)) : "memory");
}

// A box, by its first column and row, from global to shared memory. What lies outside the matrix comes as zeros, and counts
// as bytes all the same.
__device__ __forceinline__ void load_box(unsigned to, const TensorMap* map, int column, int row, Arrivals* a) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(a))
        : "memory");
}

// The same to one place in both blocks of a cluster, each of which counts the bytes.
__device__ __forceinline__ void load_box_for_both(unsigned to, const TensorMap* map, int column, int row, Arrivals* a) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(a)), "h"(static_cast<unsigned short>(3))
        : "memory");
}

// A box from shared to global memory. What lies outside the matrix is not written.
__device__ __forceinline__ void store_box(const TensorMap* map, int column, int row, unsigned from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column), "r"(row),
                 "r"(from)
                 : "memory");
}
__device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void stores_have_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void stores_are_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// What this thread has written to shared memory, the copying hardware will see.
__device__ __forceinline__ void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit elements, from a warp's registers to shared memory: lane 8·i + r has the address of row r
// of matrix i.
__device__ __forceinline__ void store_matrices(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// How the matrix units find rows of 64 elements in shared memory: the address, the 1024 bytes from 8 rows to the next 8,
// and that the 16-byte pieces of a row are swizzled (piece p of row r lies at p ^ r % 8).
__device__ __forceinline__ unsigned long long rows_at(unsigned address) {
    return static_cast<unsigned long long>((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// Products run while the threads go on. Between multiply_begin and multiply_commit they are asked for; multiply_wait waits
// until all but so many such groups are done, and only then may the sums be read, and the operands overwritten.
__device__ __forceinline__ void multiply_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Eight of the 128 registers that hold a thread's share of 64 x 256 sums.
#define SUMS_8(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_32(i) SUMS_8(i), SUMS_8(i + 8), SUMS_8(i + 16), SUMS_8(i + 24)
#define MULTIPLY(TYPES) \
    asm volatile( \
        "{\n" \
        ".reg .pred p;\n" \
        "setp.ne.b32 p, %130, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPES " {" \
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

// d (64 x 256) = a (64 x 16)·bᵀ (256 x 16), or that much more. Thread t of 128 holds of d the rows t / 32·16 + t % 32 / 4 and
// 8 further on, and in d[4·j] to d[4·j + 3] the columns 8·j + t % 4·2 and the next, of the one row and the other.
template <typename T>
__device__ __forceinline__ void multiply(float (&d)[128], unsigned long long a, unsigned long long b, int accumulate) {
    static_assert(sizeof(T) == 2, "the matrix units take float32 for less");
    if constexpr (is_bfloat16<T>) MULTIPLY("bf16.bf16");
    else MULTIPLY("f16.f16");
}

#undef MULTIPLY
#undef SUMS_32
#undef SUMS_8

// Nothing reads a sum before this point, and nothing that was to be done with it is put off beyond.
__device__ __forceinline__ void settle(float (&d)[128]) {
#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#endif
