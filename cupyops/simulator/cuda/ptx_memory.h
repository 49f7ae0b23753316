// The PTX instructions that access memory or that meet other threads; ptx.h includes this header.
#pragma once

namespace cupyops_ptx {

// Addresses of shared memory are offsets; all other addresses are pointers.
inline char* shared(unsigned long long address) { return static_cast<char*>(__cvta_shared_to_generic(unsigned(address))); }
inline char* generic(unsigned long long address) { return reinterpret_cast<char*>(address); }
inline unsigned long long to_shared(unsigned long long pointer) { return cupyops_shared_address(reinterpret_cast<void*>(pointer)); }
inline unsigned long long to_generic(unsigned long long address) { return reinterpret_cast<unsigned long long>(shared(address)); }

// The elements of one vector access, which must be aligned as a whole.
template <typename T, int N> struct alignas(sizeof(T) * N) Words {
    T at[N];
};
template <typename T, int N> CUPYOPS_INTRINSIC Words<T, N> load(const char* p) { return *reinterpret_cast<const Words<T, N>*>(p); }
template <typename T, int N> CUPYOPS_INTRINSIC void store(char* p, Words<T, N> words) { *reinterpret_cast<Words<T, N>*>(p) = words; }
// A load that sees other threads' writes (volatile, relaxed, acquire), and a store that they see.
template <typename T, int N> CUPYOPS_LOOKED_AT Words<T, N> load_strong(const char* p) {
    cupyops_look(p, sizeof(Words<T, N>));
    return *reinterpret_cast<const Words<T, N>*>(p);
}
template <typename T, int N> CUPYOPS_INTRINSIC void store_strong(char* p, Words<T, N> words) {
    for (int i = 0; i < N; ++i) reinterpret_cast<volatile T*>(p)[i] = words.at[i];
}

enum { ADD, MIN, MAX, AND, OR, XOR, INC, DEC, EXCH };
template <typename T, int OPERATION, typename B> CUPYOPS_INTRINSIC unsigned long long atomic(char* p, B operand) {
    T* const at = reinterpret_cast<T*>(p);
    const T value = as<T>(operand);
    if constexpr (OPERATION == ADD) return bits(atomicAdd<T, true>(at, value));
    if constexpr (OPERATION == MIN) return bits(atomicMin<T, true>(at, value));
    if constexpr (OPERATION == MAX) return bits(atomicMax<T, true>(at, value));
    if constexpr (OPERATION == AND) return bits(atomicAnd<T, true>(at, value));
    if constexpr (OPERATION == OR) return bits(atomicOr<T, true>(at, value));
    if constexpr (OPERATION == XOR) return bits(atomicXor<T, true>(at, value));
    if constexpr (OPERATION == INC) return bits(atomicInc<T, true>(at, value));
    if constexpr (OPERATION == DEC) return bits(atomicDec<T, true>(at, value));
    return bits(atomicExch<T, true>(at, value));
}
template <typename T, typename B, typename C> CUPYOPS_INTRINSIC unsigned long long atomic_cas(char* p, B compare, C value) {
    return bits(atomicCAS(reinterpret_cast<T*>(p), as<T>(compare), as<T>(value)));
}
CUPYOPS_INTRINSIC void fence() { __threadfence(); }

CUPYOPS_INTRINSIC void cp_async(char* to, const char* from, unsigned bytes, unsigned source_bytes) {
    if (reinterpret_cast<size_t>(to) % bytes || (source_bytes && reinterpret_cast<size_t>(from) % bytes))
        cupyops_misuse("cp.async: an address is not a multiple of the copy's size");
    if (source_bytes > bytes) cupyops_misuse("cp.async: the size of the source exceeds the size of the copy");
    cupyops_copy_issue(to, from, source_bytes, bytes - source_bytes, nullptr);
}
CUPYOPS_INTRINSIC void cp_async_commit() { cupyops_copy_commit(); }
CUPYOPS_INTRINSIC void cp_async_wait(unsigned pending) { cupyops_copy_wait(pending); }
CUPYOPS_INTRINSIC void cp_async_wait_all() { cupyops_copy_wait_all(); }

CUPYOPS_INTRINSIC void bar_sync() { cupyops_barrier(CUPYOPS_SYNC, 0); }
inline void bar_sync(unsigned barrier, unsigned threads) { __barrier_sync_count(barrier, threads); }
inline void bar_sync(unsigned barrier) { __barrier_sync(barrier); }
CUPYOPS_INTRINSIC void sync_warp(unsigned mask) { cupyops_warp(CUPYOPS_SYNCWARP, mask, 0, 0, 32, nullptr); }

// shfl.sync: `c` holds the last lane of a segment in bits 0 to 4 and the mask of the segments in bits 8 to 12. The
// predicate says whether the source lane lies in the segment.
CUPYOPS_INTRINSIC unsigned shfl(int operation, bool& inside, unsigned value, unsigned argument, unsigned c, unsigned mask) {
    const unsigned segment = c >> 8 & 31, clamp = c & 31, lane = cupyops_lane();
    const int width = int(32 - segment);
    const unsigned first = lane & segment, last = first | (clamp & ~segment & 31);
    switch (operation) {
        case CUPYOPS_SHFL: inside = (first | (argument & 31 & ~segment)) <= last; break;
        case CUPYOPS_SHFL_UP: inside = int(lane) - int(argument & 31) >= int(first); break;
        case CUPYOPS_SHFL_DOWN: inside = lane + (argument & 31) <= last; break;
        default: inside = (lane ^ (argument & 31)) <= last;
    }
    return unsigned(cupyops_warp(operation, mask, value, int(argument), width, nullptr));
}
CUPYOPS_INTRINSIC unsigned long long vote(int operation, bool predicate, unsigned mask) {
    return cupyops_warp(operation, mask, predicate, 0, 32, nullptr);
}
CUPYOPS_INTRINSIC bool vote_uniform(bool predicate, unsigned mask) {
    const unsigned set = unsigned(cupyops_warp(CUPYOPS_BALLOT, mask, predicate, 0, 32, nullptr));
    return set == 0 || set == unsigned(cupyops_warp(CUPYOPS_BALLOT, mask, 1, 0, 32, nullptr));
}
CUPYOPS_INTRINSIC unsigned match(int operation, bool& all, unsigned long long value, unsigned mask) {
    int predicate = 0;
    const unsigned lanes = unsigned(cupyops_warp(operation, mask, value, 0, 32, operation == CUPYOPS_MATCH_ALL ? &predicate : nullptr));
    all = predicate != 0;
    return lanes;
}
CUPYOPS_INTRINSIC unsigned redux(int operation, unsigned value, unsigned mask) {
    return unsigned(cupyops_warp(operation, mask, value, 0, 32, nullptr));
}
// elect.sync chooses one lane of the mask, which is here the lowest.
CUPYOPS_INTRINSIC unsigned elect(bool& chosen, unsigned mask) {
    const unsigned lanes = unsigned(cupyops_warp(CUPYOPS_BALLOT, mask, 1, 0, 32, nullptr)), leader = unsigned(__builtin_ctz(lanes));
    chosen = cupyops_lane() == leader;
    return leader;
}

// Special registers. The simulated GPU has 4 multiprocessors, and a block the slots of its number.
inline unsigned warp_number() { return cupyops_thread() / 32; }
inline unsigned lanes_up_to() { return cupyops_lane() == 31 ? ~0u : (2u << cupyops_lane()) - 1; }
inline unsigned multiprocessor() { return unsigned((1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) % 4; }

}  // namespace cupyops_ptx
