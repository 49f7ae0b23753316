// Replaces CUDA's cooperative_groups.h: groups of threads, made of the simulator's barriers, warp functions and clusters.
// Not here, and therefore a compile error: tiles of more than 32 threads, multi_grid_group, and split barriers of a grid.
#pragma once

#include "copies.h"
#include "shuffles.h"

namespace cooperative_groups {

class thread_block;
class coalesced_group;
template <unsigned Size, typename Parent = void> class thread_block_tile;

namespace details {

template <typename T> using bare = std::remove_cv_t<std::remove_reference_t<T>>;
inline unsigned lanes_below() { return (1u << cupyops_lane()) - 1; }
inline unsigned tile_mask(unsigned size) { return size == 32 ? ~0u : ((1u << size) - 1) << (cupyops_lane() & ~(size - 1)); }

// The number of the bit with this rank among the set bits of a mask, or 32.
inline unsigned bit_of_rank(unsigned mask, unsigned rank) {
    for (unsigned lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1 && rank-- == 0) return lane;
    return 32;
}
// Moves the bits of a mask's lanes together, in the order of their ranks.
inline unsigned packed(unsigned mask, unsigned lanes) {
    unsigned result = 0;
    for (unsigned lane = 0, rank = 0; lane < 32; ++lane)
        if (mask >> lane & 1) result |= (lanes >> lane & 1) << rank++;
    return result;
}

template <typename Group> inline unsigned mask_of(const Group& group) { return group.cupyops_mask(); }

}  // namespace details

// A group of any kind. `lanes` is the mask of lanes of a warp; 0 stands for the whole block.
class thread_group {
    unsigned lanes;

   public:
    explicit thread_group(unsigned mask) : lanes(mask) {}
    inline thread_group(const thread_block&);
    inline thread_group(const coalesced_group&);
    template <unsigned Size, typename Parent> inline thread_group(const thread_block_tile<Size, Parent>&);
    CUPYOPS_MEMBER void sync() const {
        if (lanes) cupyops_warp(CUPYOPS_SYNCWARP, lanes, 0, 0, 32, nullptr);
        else cupyops_barrier(CUPYOPS_SYNC, 0);
    }
    unsigned long long num_threads() const { return lanes ? __popc(lanes) : cupyops_threads(); }
    unsigned long long size() const { return num_threads(); }
    unsigned long long thread_rank() const { return lanes ? __popc(lanes & details::lanes_below()) : cupyops_thread(); }
    unsigned cupyops_mask() const { return lanes; }
};

class thread_block {
   public:
    struct arrival_token {};
    CUPYOPS_MEMBER static void sync() { cupyops_barrier(CUPYOPS_SYNC, 0); }
    arrival_token barrier_arrive() const { return {}; }
    CUPYOPS_MEMBER void barrier_wait(arrival_token&&) const { cupyops_barrier(CUPYOPS_SYNC, 0); }
    static unsigned num_threads() { return cupyops_threads(); }
    static unsigned size() { return cupyops_threads(); }
    static unsigned thread_rank() { return cupyops_thread(); }
    static dim3 group_index() { return blockIdx; }
    static dim3 thread_index() { return threadIdx; }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }
inline thread_group::thread_group(const thread_block&) : lanes(0) {}

// Functions that tiles and coalesced groups have in common.
template <typename Self> class warp_group {
    const Self& self() const { return static_cast<const Self&>(*this); }

   public:
    CUPYOPS_MEMBER void sync() const { cupyops_warp(CUPYOPS_SYNCWARP, self().cupyops_mask(), 0, 0, 32, nullptr); }
    CUPYOPS_MEMBER int any(int predicate) const { return __any_sync(self().cupyops_mask(), predicate); }
    CUPYOPS_MEMBER int all(int predicate) const { return __all_sync(self().cupyops_mask(), predicate); }
    CUPYOPS_MEMBER unsigned ballot(int predicate) const {
        return details::packed(self().cupyops_mask(), __ballot_sync(self().cupyops_mask(), predicate));
    }
    template <typename T> CUPYOPS_MEMBER unsigned match_any(T value) const {
        return details::packed(self().cupyops_mask(), __match_any_sync(self().cupyops_mask(), value));
    }
    template <typename T> CUPYOPS_MEMBER unsigned match_all(T value, int& predicate) const {
        return details::packed(self().cupyops_mask(), __match_all_sync(self().cupyops_mask(), value, &predicate));
    }
};

// Threads of a warp that are named by a mask.
class coalesced_group : public warp_group<coalesced_group> {
    unsigned lanes, rank, groups;
    bool tiled;

   public:
    explicit coalesced_group(unsigned mask, unsigned meta_rank = 0, unsigned meta_size = 1, bool is_tiled = false)
        : lanes(mask), rank(meta_rank), groups(meta_size), tiled(is_tiled) {}
    unsigned cupyops_mask() const { return lanes; }
    bool cupyops_tiled() const { return tiled; }
    unsigned num_threads() const { return __popc(lanes); }
    unsigned size() const { return __popc(lanes); }
    unsigned thread_rank() const { return __popc(lanes & details::lanes_below()); }
    unsigned meta_group_rank() const { return rank; }
    unsigned meta_group_size() const { return groups; }
    template <typename T> CUPYOPS_MEMBER details::bare<T> shfl(T&& value, int rank) const {
        return cupyops_shuffled<details::bare<T>>(CUPYOPS_SHFL, lanes, value, details::bit_of_rank(lanes, rank), 32);
    }
    template <typename T> CUPYOPS_MEMBER details::bare<T> shfl_up(T&& value, int delta) const {
        const int from = int(thread_rank()) - delta;
        return shfl(static_cast<T&&>(value), from < 0 ? int(thread_rank()) : from);
    }
    template <typename T> CUPYOPS_MEMBER details::bare<T> shfl_down(T&& value, unsigned delta) const {
        const unsigned from = thread_rank() + delta;
        return shfl(static_cast<T&&>(value), from < size() ? int(from) : int(thread_rank()));
    }
};
inline thread_group::thread_group(const coalesced_group& g) : lanes(g.cupyops_mask()) {}

// Inlined, since __activemask() unites the lanes that wait at one call.
__attribute__((always_inline)) inline coalesced_group coalesced_threads() { return coalesced_group(cupyops_active_mask()); }

template <unsigned Size, typename Parent> class thread_block_tile : public warp_group<thread_block_tile<Size, Parent>> {
    static_assert(Size && !(Size & (Size - 1)), "the size of a tile must be a power of 2");
    static_assert(Size <= 32, "the simulator does not cover tiles of more than 32 threads");
    unsigned rank, groups;

   public:
    thread_block_tile(unsigned meta_rank, unsigned meta_size) : rank(meta_rank), groups(meta_size) {}
    template <typename Other>
    thread_block_tile(const thread_block_tile<Size, Other>& g) : rank(g.meta_group_rank()), groups(g.meta_group_size()) {}
    static unsigned cupyops_mask() { return details::tile_mask(Size); }
    static constexpr unsigned num_threads() { return Size; }
    static constexpr unsigned size() { return Size; }
    static unsigned thread_rank() { return cupyops_thread() & (Size - 1); }
    unsigned meta_group_rank() const { return rank; }
    unsigned meta_group_size() const { return groups; }
    template <typename T> CUPYOPS_MEMBER details::bare<T> shfl(T&& value, int rank) const {
        return cupyops_shuffled<details::bare<T>>(CUPYOPS_SHFL, cupyops_mask(), value, rank, Size);
    }
    template <typename T> CUPYOPS_MEMBER details::bare<T> shfl_up(T&& value, unsigned delta) const {
        return cupyops_shuffled<details::bare<T>>(CUPYOPS_SHFL_UP, cupyops_mask(), value, int(delta), Size);
    }
    template <typename T> CUPYOPS_MEMBER details::bare<T> shfl_down(T&& value, unsigned delta) const {
        return cupyops_shuffled<details::bare<T>>(CUPYOPS_SHFL_DOWN, cupyops_mask(), value, int(delta), Size);
    }
    template <typename T> CUPYOPS_MEMBER details::bare<T> shfl_xor(T&& value, unsigned lanes) const {
        return cupyops_shuffled<details::bare<T>>(CUPYOPS_SHFL_XOR, cupyops_mask(), value, int(lanes), Size);
    }
};
template <unsigned Size, typename Parent>
inline thread_group::thread_group(const thread_block_tile<Size, Parent>& g) : lanes(g.cupyops_mask()) {}

template <unsigned Size> inline thread_block_tile<Size, thread_block> tiled_partition(const thread_block&) {
    return {cupyops_thread() / Size, (cupyops_threads() + Size - 1) / Size};
}
template <unsigned Size, unsigned ParentSize, typename Parent>
inline thread_block_tile<Size, thread_block_tile<ParentSize, Parent>> tiled_partition(const thread_block_tile<ParentSize, Parent>& g) {
    static_assert(Size < ParentSize, "a tile must be smaller than its parent");
    return {g.thread_rank() / Size, ParentSize / Size};
}
CUPYOPS_INTRINSIC coalesced_group tiled_partition(const coalesced_group& parent, unsigned size) {
    if (!size || size > 32 || size & (size - 1)) cupyops_misuse("tiled_partition: the size of a tile is 1, 2, 4, 8, 16 or 32");
    if (parent.size() <= size) return parent;
    const unsigned first = parent.thread_rank() / size * size;
    unsigned mask = 0;
    for (unsigned r = first; r < first + size && r < parent.size(); ++r) mask |= 1u << details::bit_of_rank(parent.cupyops_mask(), r);
    return coalesced_group(mask, parent.thread_rank() / size, (parent.size() + size - 1) / size, parent.cupyops_tiled());
}
CUPYOPS_INTRINSIC thread_group tiled_partition(const thread_group& parent, unsigned size) {
    if (!size || size > 32 || size & (size - 1)) cupyops_misuse("tiled_partition: the size of a tile is 1, 2, 4, 8, 16 or 32");
    if (parent.cupyops_mask()) return tiled_partition(coalesced_group(parent.cupyops_mask()), size);
    const unsigned first = cupyops_thread() & ~(size - 1), left = cupyops_threads() - first, count = left < size ? left : size;
    return thread_group((count == 32 ? ~0u : (1u << count) - 1) << (first & 31));
}
CUPYOPS_INTRINSIC thread_group tiled_partition(const thread_block& parent, unsigned size) { return tiled_partition(thread_group(parent), size); }
inline thread_block_tile<1, void> this_thread() { return {0, 1}; }

template <typename Group> CUPYOPS_INTRINSIC coalesced_group binary_partition(const Group& group, bool predicate) {
    const unsigned mask = details::mask_of(group), set = __ballot_sync(mask, predicate);
    if (set == mask || !set) return coalesced_group(mask, 0, 1);
    return coalesced_group(predicate ? set : mask & ~set, predicate, 2);
}
template <typename Group, typename T> CUPYOPS_INTRINSIC coalesced_group labeled_partition(const Group& group, T label) {
    if (std::is_same<T, bool>::value) return binary_partition(group, bool(label));
    const unsigned mask = details::mask_of(group), same = __match_any_sync(mask, label), leader = __ffs(same) - 1;
    const unsigned leaders = __ballot_sync(mask, leader == cupyops_lane());
    return coalesced_group(same, __popc(leaders & ((1u << leader) - 1)), __popc(leaders));
}

// The grid. Its barrier needs a cooperative launch: Kernel(..., cooperative=True).
class grid_group {
   public:
    static bool is_valid() {
        unsigned long long launch;
        return cupyops_grid_begin(&launch) != 0;
    }
    CUPYOPS_MEMBER static void sync() {
        static unsigned long long of_launch, arrived;
        unsigned long long launch;
        if (!cupyops_grid_begin(&launch)) 
            cupyops_misuse("a barrier of the grid in a launch that is not cooperative; pass cooperative=True to Kernel");
        if (of_launch != launch) of_launch = launch, arrived = 0;
        __syncthreads();
        if (cupyops_thread() == 0) {
            __threadfence();
            const unsigned long long mine = atomicAdd(&arrived, 1ull), blocks = num_blocks();
            while (atomicAdd(&arrived, 0ull) < (mine / blocks + 1) * blocks) __nanosleep(1);
            __threadfence();
        }
        __syncthreads();
    }
    static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
    static unsigned long long block_rank() { return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }
    static unsigned long long num_threads() { return num_blocks() * cupyops_threads(); }
    static unsigned long long size() { return num_threads(); }
    static unsigned long long thread_rank() { return block_rank() * cupyops_threads() + cupyops_thread(); }
    static dim3 group_dim() { return gridDim; }
    static dim3 dim_blocks() { return gridDim; }
    static dim3 block_index() { return blockIdx; }
    static dim3 dim_threads() { return dim3(gridDim.x * blockDim.x, gridDim.y * blockDim.y, gridDim.z * blockDim.z); }
    static dim3 thread_index() {
        return dim3(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y, blockIdx.z * blockDim.z + threadIdx.z);
    }
    static dim3 dim_clusters() { return __clusterGridDimInClusters(); }
    static unsigned long long num_clusters() { return num_blocks() / __clusterSizeInBlocks(); }
    static dim3 cluster_index() { return __clusterIdx(); }
    static unsigned long long cluster_rank() {
        const dim3 all = __clusterGridDimInClusters(), at = __clusterIdx();
        return (1ull * at.z * all.y + at.y) * all.x + at.x;
    }
};
inline grid_group this_grid() { return {}; }

class cluster_group {
   public:
    struct arrival_token {};
    CUPYOPS_MEMBER static void sync() { cupyops_cluster_arrive(0), cupyops_cluster_wait(); }
    CUPYOPS_MEMBER static arrival_token barrier_arrive() {
        cupyops_cluster_arrive(0);
        return {};
    }
    CUPYOPS_MEMBER static void barrier_wait() { cupyops_cluster_wait(); }
    CUPYOPS_MEMBER static void barrier_wait(arrival_token&&) { cupyops_cluster_wait(); }
    static unsigned query_shared_rank(const void* p) { return cupyops_cluster_rank_of(p); }
    template <typename T> CUPYOPS_MEMBER static T* map_shared_rank(T* p, int rank) {
        return static_cast<T*>(__cluster_map_shared_rank(const_cast<const void*>(static_cast<const volatile void*>(p)), unsigned(rank)));
    }
    static dim3 block_index() { return __clusterRelativeBlockIdx(); }
    static unsigned block_rank() { return cupyops_cluster_rank(); }
    static dim3 thread_index() {
        const dim3 at = __clusterRelativeBlockIdx();
        return dim3(at.x * blockDim.x + threadIdx.x, at.y * blockDim.y + threadIdx.y, at.z * blockDim.z + threadIdx.z);
    }
    static unsigned thread_rank() { return cupyops_cluster_rank() * cupyops_threads() + cupyops_thread(); }
    static dim3 dim_blocks() { return __clusterDim(); }
    static unsigned num_blocks() { return __clusterSizeInBlocks(); }
    static dim3 dim_threads() {
        const dim3 all = __clusterDim();
        return dim3(all.x * blockDim.x, all.y * blockDim.y, all.z * blockDim.z);
    }
    static unsigned num_threads() { return num_blocks() * cupyops_threads(); }
    static unsigned size() { return num_threads(); }
};
inline cluster_group this_cluster() { return {}; }

template <typename Group> CUPYOPS_INTRINSIC void sync(const Group& group) { group.sync(); }
template <typename Group> inline auto thread_rank(const Group& group) -> decltype(group.thread_rank()) { return group.thread_rank(); }
template <typename Group> inline auto group_size(const Group& group) -> decltype(group.num_threads()) { return group.num_threads(); }

template <typename Group, typename Function, typename... A> inline void invoke_one(const Group& group, Function&& function, A&&... a) {
    if (group.thread_rank() == 0) function(static_cast<A&&>(a)...);
}

// The operators of reduce and scan.
#define CUPYOPS_GROUP_OPERATOR(NAME, EXPRESSION) \
    template <typename T> struct NAME { T operator()(T a, T b) const { return EXPRESSION; } };
CUPYOPS_GROUP_OPERATOR(plus, a + b)
CUPYOPS_GROUP_OPERATOR(less, b < a ? b : a)
CUPYOPS_GROUP_OPERATOR(greater, a < b ? b : a)
CUPYOPS_GROUP_OPERATOR(bit_and, a & b)
CUPYOPS_GROUP_OPERATOR(bit_or, a | b)
CUPYOPS_GROUP_OPERATOR(bit_xor, a ^ b)
#undef CUPYOPS_GROUP_OPERATOR

}  // namespace cooperative_groups
