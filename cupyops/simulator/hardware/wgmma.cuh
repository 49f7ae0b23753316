// Replaces kernels_cu/hardware/wgmma.cuh, which documents each function.
#pragma once

#include "bulk.cuh"
#include "scalar.cuh"

// A tensor map as cupyops/launch/tensor_map.py writes it for the simulator: each word is a plain number.
struct alignas(64) TensorMap {
    unsigned long long word[16];
};

// Asynchronous products run, like the stores of bulk.cuh, as late as a GPU may run them: when a thread waits for them. The
// reads of these operations are checked when they are issued. TMA loads run at once. A thread that does not wait for a load is not ordered behind it, and
// the simulator reports a race.
namespace twin {

__device__ inline unsigned thread() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }

// Returns the swizzled place of 16 bytes of shared memory, by their unswizzled address.
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
    assert(w[4] * w[5] == 128);  // a row of the box has the 128 bytes of a swizzle row
    return {
        reinterpret_cast<char*>(w[0]),
        (long long)w[1],
        (long long)w[2],
        (long long)w[3],
        (long long)w[4],
        (long long)w[5],
        column,
        row,
        at};
}

// Copies a box from a matrix into the shared memory of a block of the cluster (IN), copies a box back (OUT), or checks
// the reads of a store without copying (LOOK). Returns the bytes of the box.
enum Way { IN, OUT, LOOK };
CUPYOPS_UNCHECKED int move(const Box& b, Way way, unsigned block) {
    const int each = 16 / (int)b.itemsize;
    for (int r = 0; r < b.box_rows; ++r)
        for (int c = 0; c < b.box_columns; c += each) {
            auto* const shared =
                static_cast<char*>(__cluster_map_shared_rank(swizzled(b.at + r * 128 + c * (int)b.itemsize), block));
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
    arrival_change(static_cast<Arrivals*>(__cluster_map_shared_rank(a, block)), 0, -bytes);
}

CUPYOPS_UNCHECKED void move_box(const Store& b, bool copied) {
    const long long* n = b.of_box;
    move({b.global, n[0], n[1], n[2], n[3], n[4], n[5], n[6], b.bytes}, copied ? OUT : LOOK, __clusterRelativeBlockRank());
}
CUPYOPS_UNCHECKED void store(const Box& b) {
    issue_store(
        {move_box, b.matrix, nullptr, {b.rows, b.columns, b.box_rows, b.box_columns, b.itemsize, b.column, b.row}, b.at});
}

// A product of a warpgroup (128 threads), and two ring buffers for each warpgroup: the products in flight, and the ends
// of committed groups.
typedef float (*Widen)(const char*);
struct Product {
    unsigned long long a, b;
    int accumulate;
    Widen widen;  // converts an element to float
    float* sums[128];
};
struct Products {
    Product product[64];
    unsigned ends[64], issued[128], committed[128], all_issued, done, groups, finished, waiting;
    bool begun[128];
};
CUPYOPS_UNCHECKED Products& products() {
    return *static_cast<Products*>(cupyops_kept(1024 + thread() / 128, sizeof(Products)));
}

// Reads 16 elements of each row of a descriptor's operand into `to`; if `to` is null, checks the accesses alone.
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
CUPYOPS_UNCHECKED void issue(float* sums, unsigned long long a, unsigned long long b, int accumulate, Widen widen) {
    Products& all = products();
    const unsigned t = thread() % 128, n = all.issued[t]++;
    assert(all.begun[t] && n - all.done < 64);
    Product& p = all.product[n % 64];
    if (n == all.all_issued) {
        ++all.all_issued;
        p.a = a, p.b = b, p.accumulate = accumulate, p.widen = widen;
        operand(nullptr, 64, a, widen);
        operand(nullptr, 256, b, widen);
    }
    assert(p.a == a && p.b == b && p.accumulate == accumulate);  // the 128 threads issue one product
    p.sums[t] = sums;
}
CUPYOPS_UNCHECKED void products_commit() {
    Products& all = products();
    const unsigned t = thread() % 128, n = all.committed[t]++;
    if (n == all.groups) {
        assert(n - all.finished < 64);
        ++all.groups;
        all.ends[n % 64] = all.issued[t];
    }
    assert(all.ends[n % 64] == all.issued[t]);
    all.begun[t] = false;
}
// The last of the 128 threads to arrive performs the products, so it alone reads the operands. The barrier at the end
// orders all 128 threads after these reads.
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
CUPYOPS_INTRINSIC void arrive_in(int block, Arrivals* a) {
    arrival_change(static_cast<Arrivals*>(__cluster_map_shared_rank(a, block)), 1, 0);
}

CUPYOPS_INTRINSIC void load_box(unsigned to, const TensorMap* map, int column, int row, Arrivals* a) {
    twin::load(twin::box(map, column, row, to), __clusterRelativeBlockRank(), a);
}
CUPYOPS_INTRINSIC void load_box_for_both(unsigned to, const TensorMap* map, int column, int row, Arrivals* a) {
    for (int block = 0; block < 2; ++block) twin::load(twin::box(map, column, row, to), block, a);
}
CUPYOPS_INTRINSIC void store_box(const TensorMap* map, int column, int row, unsigned from) {
    twin::store(twin::box(map, column, row, from));
}

CUPYOPS_INTRINSIC void store_matrices(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d) {
    assert(at % 16 == 0);
    const unsigned lane = twin::thread() % 32, values[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) {
        const unsigned row = __shfl_sync(0xffffffff, at, 8 * i + lane / 4);
        *static_cast<unsigned*>(__cvta_shared_to_generic(row + lane % 4 * 4)) = values[i];
    }
}

// The simulator's shared addresses have more bits than a GPU's descriptor holds, so the address is not masked.
__device__ inline unsigned long long rows_at(unsigned address) { return address >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62; }
CUPYOPS_INTRINSIC void multiply_begin() { twin::products_begin(); }
CUPYOPS_INTRINSIC void multiply_commit() { twin::products_commit(); }
template <int PENDING> CUPYOPS_INTRINSIC void multiply_wait() { twin::products_wait(PENDING); }
template <typename T>
CUPYOPS_INTRINSIC void multiply(float (&d)[128], unsigned long long a, unsigned long long b, int accumulate) {
    static_assert(sizeof(T) == 2, "the product is of float16 or bfloat16");
    twin::issue(d, a, b, accumulate, twin::widened<T>);
}
__device__ inline void settle(float (&)[128]) {}
