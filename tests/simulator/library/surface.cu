// Names of CUDA's libraries that the other texts do not use. The text compiles; its values are of no interest.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
#include <cub/util_ptx.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/functional>
#include <cuda/pipeline>
#include <cuda/std/array>
#include <cuda/std/atomic>
#include <cuda/std/cmath>
#include <cuda/std/complex>
#include <cuda/std/cstddef>
#include <cuda/std/cstdint>
#include <cuda/std/functional>
#include <cuda/std/limits>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
#include <math_constants.h>

namespace cg = cooperative_groups;

struct Done {
    int* count;
    __device__ void operator()() const { ++*count; }
};

__device__ float constants(int i) {
    const float values[] = {CUDART_NEG_ZERO_F, CUDART_ZERO_F, CUDART_ONE_F, CUDART_MIN_DENORM_F, CUDART_MAX_NORMAL_F, CUDART_SQRT_HALF_F,
                            CUDART_SQRT_TWO_F, CUDART_THIRD_F, CUDART_PIO4_F, CUDART_PIO2_F, CUDART_3PIO4_F, CUDART_2_OVER_PI_F, CUDART_PI_F,
                            CUDART_L2E_F, CUDART_L2T_F, CUDART_LG2_F, CUDART_LGE_F, CUDART_LN2_F, CUDART_LNT_F, CUDART_INF_F, CUDART_NAN_F};
    const double wide[] = {CUDART_NEG_ZERO, CUDART_ZERO, CUDART_ONE, CUDART_MIN_DENORM, CUDART_SQRT_HALF, CUDART_SQRT_TWO,
                           CUDART_THIRD, CUDART_PIO4, CUDART_PIO2, CUDART_3PIO4, CUDART_2_OVER_PI, CUDART_PI, CUDART_L2E, CUDART_L2T,
                           CUDART_LG2, CUDART_LGE, CUDART_LN2, CUDART_LNT, CUDART_INF, CUDART_NAN};
    return values[i] + static_cast<float>(wide[i]);
}

__device__ int standard(int i) {
    namespace s = cuda::std;
    static_assert(s::is_same_v<s::int8_t, signed char> && s::is_integral_v<s::uint64_t> && s::is_floating_point_v<float> && s::is_arithmetic_v<int>, "");
    static_assert(s::is_signed_v<s::intptr_t> && s::is_unsigned_v<s::uintptr_t> && s::is_pointer_v<int*> && s::is_trivially_copyable_v<s::byte>, "");
    static_assert(s::is_same<s::conditional_t<true, s::size_t, s::ptrdiff_t>, s::make_unsigned_t<long>>::value || true, "");
    static_assert(s::true_type::value && !s::false_type::value && s::integral_constant<int, 3>::value == 3, "");
    typedef s::enable_if_t<true, s::decay_t<s::remove_reference_t<int&>>> Int;
    typedef s::remove_const_t<s::remove_cv_t<const s::make_signed_t<unsigned>>> Same;
    typedef s::common_type_t<Int, Same> Common;
    const s::nullptr_t none = nullptr;
    s::array<Common, 4> list = {4, 3, 2, 1};
    s::pair<int, float> pair = s::make_pair(1, 2.0f);
    s::tuple<int, int> both = s::make_tuple(list[0], list[1]);
    int a = 0, b = 0;
    s::tie(a, b) = both;
    s::tie(a, s::ignore) = both;
    s::swap(a, b);
    b = s::exchange(a, 5) + s::apply([](int x, int y) { return x + y; }, both) + s::get<2>(list);
    const auto more = s::tuple_cat(both, s::make_tuple(pair.first));
    b += static_cast<int>(s::tuple_size<decltype(more)>::value) + (none == nullptr) + static_cast<int>(s::make_index_sequence<3>::size());
    const float x = static_cast<float>(i) + 1.0f;
    const float sum = s::abs(x) + s::fabs(x) + s::sqrt(x) + s::exp(x) + s::log(x) + s::log2(x) + s::log10(x) + s::pow(x, x) + s::sin(x) + s::cos(x) +
                      s::tan(x) + s::sinh(x) + s::cosh(x) + s::tanh(x) + s::asin(0.5f) + s::acos(0.5f) + s::atan(x) + s::atan2(x, x) + s::floor(x) +
                      s::ceil(x) + s::round(x) + s::trunc(x) + s::fmin(x, x) + s::fmax(x, x) + s::fmod(x, x) + s::hypot(x, x);
    b += s::isnan(sum) + s::isinf(sum) + s::isfinite(sum) + s::numeric_limits<int>::max() % 7;
    b += s::plus<>{}(1, 2) + s::minus<>{}(1, 2) + s::multiplies<int>{}(1, 2) + s::divides<>{}(1, 2) + s::bit_and<>{}(1, 2) + s::bit_or<>{}(1, 2) + s::bit_xor<>{}(1, 2);
    b += s::less<>{}(1, 2) + s::less_equal<int>{}(1, 2) + s::greater<>{}(1, 2) + s::greater_equal<>{}(1, 2) + s::equal_to<>{}(1, 2);
    return b + cuda::maximum<int>{}(1, 2) + cuda::minimum<>{}(1, 2);
}

__device__ int atomics(int* p) {
    cuda::atomic_ref<int, cuda::thread_scope_block> a(*p);
    int old = a.load(cuda::memory_order_acquire), other = a.exchange(1, cuda::memory_order_acq_rel);
    a.store(3, cuda::memory_order_release);
    other += a.fetch_sub(1) + a.fetch_and(7) + a.fetch_or(8) + a.fetch_xor(1) + a.fetch_min(5) + a.fetch_max(6);
    other += ++a + a-- + --a + (a += 2) + (a -= 1);
    while (!a.compare_exchange_weak(old, 5, cuda::memory_order_seq_cst, cuda::memory_order_relaxed)) {}
    cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_device);
    cuda::std::atomic_ref<int> b(*p);
    return other + b.fetch_add(1, cuda::std::memory_order_relaxed);
}

extern "C" __global__ void surface(
    const int* x,  // (64)
    int* y,        // (64)
    long long M) {
    const auto block = cg::this_thread_block();
    const int t = threadIdx.x;
    __shared__ int count;
    __shared__ alignas(16) int s[64];
    __shared__ cuda::atomic<int, cuda::thread_scope_block> shared_atomic;
    __shared__ cuda::barrier<cuda::thread_scope_block, Done> counted;
    __shared__ cuda::barrier<cuda::thread_scope_block> plain;
    __shared__ typename cub::BlockReduce<int, 64, cub::BLOCK_REDUCE_RAKING>::TempStorage reduce;
    __shared__ typename cub::BlockScan<int, 64, cub::BLOCK_SCAN_WARP_SCANS>::TempStorage scan;
    __shared__ typename cub::BlockLoad<int, 64, 1, cub::BLOCK_LOAD_STRIPED>::TempStorage load;
    __shared__ typename cub::BlockStore<int, 64, 1, cub::BLOCK_STORE_VECTORIZE>::TempStorage store;
    __shared__ typename cub::BlockExchange<int, 64, 1>::TempStorage exchange;
    __shared__ typename cub::BlockRadixSort<int, 64, 1>::TempStorage sort;
    __shared__ typename cub::WarpReduce<int, 8>::TempStorage warp_reduce[8];
    __shared__ typename cub::WarpScan<int>::TempStorage warp_scan[2];
    if (t == 0) {
        count = 0;
        s[0] = 1;
        shared_atomic.store(0);
        init(&counted, 64, Done{&count});
        init(&plain, 64);
    }
    block.sync();
    int v = x[t] + standard(t) + static_cast<int>(constants(0)) + (t == 0 ? atomics(s) : 0);
    shared_atomic.fetch_add(1);
    ++shared_atomic;
    counted.arrive_and_wait();
    v += count;
    if (t % 2) plain.arrive_and_drop();
    else plain.arrive_and_wait();

    int item[1] = {v}, rank[1] = {63 - t};
    cub::BlockLoad<int, 64, 1, cub::BLOCK_LOAD_STRIPED>(load).Load(x, item, 60, -1);
    v += cub::BlockReduce<int, 64, cub::BLOCK_REDUCE_RAKING>(reduce).Sum(item[0], 40);
    int out, all;
    cub::BlockScan<int, 64, cub::BLOCK_SCAN_WARP_SCANS>(scan).InclusiveScan(v, out, cuda::maximum<>{}, all);
    block.sync();
    cub::BlockScan<int, 64, cub::BLOCK_SCAN_WARP_SCANS>(scan).ExclusiveSum(v, out, all);
    cub::BlockExchange<int, 64, 1>(exchange).ScatterToBlocked(item, item, rank);
    block.sync();
    cub::BlockExchange<int, 64, 1>(exchange).StripedToBlocked(item);
    cub::BlockRadixSort<int, 64, 1>(sort).SortBlockedToStriped(item, 0, 16);
    cub::WarpScan<int>(warp_scan[t / 32]).InclusiveScan(v, out, cuda::minimum<>{}, all);
    v += cub::WarpReduce<int, 8>(warp_reduce[t / 8]).Reduce(v, cuda::maximum<>{}, 5) + cub::WarpScan<int>(warp_scan[t / 32]).Broadcast(v, 3);
    v += cub::ShuffleUp<32>(v, 1, 0, 0xffffffffu) + cub::ShuffleDown<32>(v, 1, 31, 0xffffffffu) + cub::ShuffleIndex<32>(v, 2, 0xffffffffu);

    const cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    v += cg::reduce(warp, v, cg::bit_or<int>()) + cg::reduce(warp, v, cg::less<int>()) + cg::reduce(warp, v, cg::bit_and<int>());
    v += warp.match_any(t % 3) != 0;
    int same;
    v += warp.match_all(3, same) != 0;
    const auto tile = cg::tiled_partition(cg::coalesced_threads(), 8);
    v += static_cast<int>(tile.meta_group_rank() + cg::thread_rank(tile) + cg::group_size(block));
    cg::sync(warp);
    block.barrier_wait(block.barrier_arrive());
    cg::invoke_one(block, [&] { y[0] = 0; });
    block.sync();
    cg::memcpy_async(block, s, 32, x, 64);
    cg::wait_prior<0>(block);
    item[0] = v + s[t % 32];
    cub::BlockStore<int, 64, 1, cub::BLOCK_STORE_VECTORIZE>(store).Store(y, item);
}
