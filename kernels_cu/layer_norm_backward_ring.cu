// The gradients of layer normalisation as in layer_norm_backward.cu, for the longest rows: persistent blocks, and a ring of
// pieces of rows in shared memory (sm_90 and later).
//
//   dL/ds = rstd·(w - mean(w) - x̂·mean(w·x̂)),    dL/dγ = Σ_rows g·x̂,    dL/dβ = Σ_rows g,    g = dL/dy,  w = g·γ
//
//   g: y_t (M, N)      s, dL/ds: scalar_t (M, N)      γ: weight_t (N)      arithmetic, and the parts of dL/dγ and dL/dβ: acc_t
//   The naive kernel is in layer_norm_backward.cu.
//
// A piece is one access of all threads of a block to g and to s. Bulk copies bring the pieces of row after row into the RING
// places of the ring. A warp copies its own part of each piece, and waits for no other warp. As soon as a warp has stored
// dL/ds of a piece, the warp requests the piece that takes the same place. A stage of layer_norm_backward_wide.cu is a whole
// row, and stays in use until the row is stored. A ring of a row and a half has half a row in flight at all times; a stage of
// one row has nothing in flight while the row is summed.
//
// With SUM_AHEAD, the next row is summed while the warps exchange this row's sums. The ring then holds both rows. A ring of whole
// rows has one wait and one request for all pieces of a row, which take fewer instructions.
//
// A piece is read twice, since the registers hold dL/dγ and dL/dβ (layer_norm_column_gradients.cuh). Shared memory behind the
// ring keeps γ. The lanes of a warp hold the statistics of 32 rows: a load for each row would delay the row's sums. The ring has
// no place for grad_sum: a thread loads its elements where it stores dL/ds.
//
// Macro       values            meaning                                          set by
// RING        VECTORS or more   pieces that shared memory has room for           LayerNormConfig.ring
// SUM_AHEAD   0, 1              1: the next row is summed before this row is     LayerNormConfig.sum_ahead
//                               stored; RING is 2·VECTORS or more
// WANT_AFFINE, GRAD_SUM: see layer_norm_backward.cuh. WEIGHT_SHARED, WEIGHT_REGISTERS: see layer_norm_column_gradients.cuh.
// WEIGHTED, PIECES_APART: see layer_norm.cuh. The others: see rows.cuh.
#include "scalar.cuh"
#include "exchange.cuh"
#include "layer_norm_column_gradients.cuh"

#ifndef RING
#define RING VECTORS
#endif
#ifndef SUM_AHEAD
#define SUM_AHEAD 0
#endif

constexpr bool WHOLE_ROWS = RING % VECTORS == 0;
constexpr int AT_ONCE = WHOLE_ROWS ? VECTORS : 1;  // pieces of a wait and of a request

extern __shared__ __align__(128) unsigned char ring_memory[];

// A place of the ring, or the first place of a whole row, and the phase of its mbarriers.
struct Place {
    static constexpr int BEHIND_G = ROW_THREADS * VECTOR_WIDTH * sizeof(y_t);
    static constexpr int BYTES = BEHIND_G + ROW_THREADS * VECTOR_WIDTH * sizeof(scalar_t);  // of a piece
    unsigned index = 0, phase = 0;

    __device__ __forceinline__ void advance() {
        if ((index += AT_ONCE) == RING) index = 0, phase ^= 1;
    }

    // This thread's elements of g and of s in the piece `behind` places further.
    __device__ __forceinline__ y_t* g(int behind) const {
        return reinterpret_cast<y_t*>(ring_memory + (index + behind) * BYTES) + threadIdx.x * VECTOR_WIDTH;
    }
    __device__ __forceinline__ scalar_t* s(int behind) const {
        return reinterpret_cast<scalar_t*>(ring_memory + (index + behind) * BYTES + BEHIND_G) + threadIdx.x * VECTOR_WIDTH;
    }
};

// A thread's view of the ring.
struct Ring {
    const y_t* g;
    const scalar_t* s;
    Columns columns;
    Arrivals* arrivals;  // the mbarriers of this warp, one for each place
    bool copied;         // the rows are loaded by bulk copies; else each thread loads its own elements

    // Returns whether each row of N elements begins and ends at a multiple of 16 bytes, as bulk copies require.
    static __device__ __forceinline__ bool can_copy(long long N, const y_t* g, const scalar_t* s) {
        return ((reinterpret_cast<unsigned long long>(g) | N * sizeof(y_t)) |
                (reinterpret_cast<unsigned long long>(s) | N * sizeof(scalar_t))) %
                   16 ==
               0;
    }

    // Initialises the barriers; all threads call it.
    __device__ __forceinline__ void open() const {
        if (threadIdx.x % 32 == 0)
            for (int i = 0; i < RING; ++i) arrival_init(arrivals + i, 1);
    }

    // The elements of this warp's part of the v-th piece.
    __device__ __forceinline__ int column_of(int v) const {
        return columns.start + (v * ROW_THREADS + static_cast<int>(threadIdx.x) / 32 * 32) * VECTOR_WIDTH;
    }
    __device__ __forceinline__ int elements_of(int v) const {
        constexpr int PART = 32 * VECTOR_WIDTH;
        const int left = columns.n - column_of(v);
        return FULL || left > PART ? PART : left < 0 ? 0 : left;
    }

    // Begins to load a warp's part of AT_ONCE pieces, of which the first is the v-th of the row that begins at element `at_row`.
    // All threads of the warp call request(), after open(), or after they have read the pieces that were in these places before.
    // Each lane loads one array of one piece.
    __device__ __forceinline__ void request(const Place& place, int v, long long at_row) const {
        if (!copied) {
            for (int i = 0; i < AT_ONCE; ++i) load(place, i, v + i, at_row);
            return;
        }
        const int lane = static_cast<int>(threadIdx.x) % 32, piece = lane / 2;
        Arrivals* arrived = arrivals + place.index;
        int elements = 0;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) elements += elements_of(v + i);
        reads_before_copies();
        __syncwarp();
        if (lane == 0) arrive_expecting(arrived, static_cast<unsigned>(elements * (sizeof(y_t) + sizeof(scalar_t))));
        if (piece >= AT_ONCE) return;
        elements = elements_of(v + piece);
        if (elements == 0) return;
        const long long at = at_row + column_of(v + piece);
        const int behind = lane * VECTOR_WIDTH;  // a warp's part begins with the elements of the first lane
        if (lane % 2 == 0) bulk_load(place.g(piece) - behind, g + at, static_cast<unsigned>(elements * sizeof(y_t)), arrived);
        else bulk_load(place.s(piece) - behind, s + at, static_cast<unsigned>(elements * sizeof(scalar_t)), arrived);
    }

    // Loads this thread's elements of a piece one by one: such rows are rare, and registers are few.
    __device__ __forceinline__ void load(const Place& place, int behind, int v, long long at_row) const {
        if (!columns.has(v)) return;
#pragma unroll 1
        for (int k = 0; k < VECTOR_WIDTH; ++k) {
            place.g(behind)[k] = g[at_row + columns.of(v) + k];
            place.s(behind)[k] = s[at_row + columns.of(v) + k];
        }
    }

    __device__ __forceinline__ void wait(const Place& place) const {
        if (copied) arrival_wait(arrivals + place.index, place.phase);
    }
};

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) layer_norm_backward_ring(
    const y_t* __restrict__ grad_y,         // (M, N)
    const scalar_t* __restrict__ s,         // (M, N)
    const acc_t* __restrict__ stats,        // (2, M)
    const weight_t* __restrict__ weight,    // (N) or null
    const scalar_t* __restrict__ grad_sum,  // (M, N) or null
    scalar_t* __restrict__ grad_x,          // (M, N)
    acc_t* __restrict__ partial,            // (2, parts, N) or null
    long long M, long long N, long long parts) {
    static_assert(RING >= (1 + SUM_AHEAD) * VECTORS, "the ring holds the rows that are read");
    static_assert(2 * AT_ONCE <= 32, "a lane loads one array of a piece");
    __shared__ Arrivals arrivals[ROW_WARPS][RING];
    __shared__ AsyncExchange<TwoSums> exchange;
    const Operands of{grad_y, s, stats, weight, grad_sum, grad_x, M, N};
    const bool vectors = of.aligned() && Ring::can_copy(N, grad_y, s);
    const Columns columns = columns_of_block(N);
    const acc_t one_by_n = columns.one_by_n();
    const long long first = blockIdx.x / CLUSTER;
    const unsigned turns = static_cast<unsigned>((M - first + parts - 1) / parts);  // rows of this block
    const Ring ring{grad_y, s, columns, arrivals[threadIdx.x / 32], vectors};
    ring.open();
    exchange.init();
    auto request = [&](unsigned turn, int v, const Place& place) {
        if (turn < turns) ring.request(place, v, (first + turn * parts) * N);
    };
    Place summed, stored;  // of the next piece that is summed, and that is stored
    for (int i = 0; i < RING; i += AT_ONCE, stored.advance()) request(i / VECTORS, i % VECTORS, stored);
    ColumnGradients gradients(weight, columns, vectors, reinterpret_cast<weight_t*>(ring_memory + RING * Place::BYTES));
    sync_cluster();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    acc_t mean = 0, rstd = 0;  // of the rows of 32 turns, one in each lane
    BackwardRow next{0, 0, one_by_n};
    auto begin = [&](unsigned turn) {  // sums the row of a turn, and publishes the warp's sums
        if (turn >= turns) return;
        if (turn % 32 == 0 && turn + lane < turns) {
            const long long of_lane = first + (turn + lane) * parts;
            mean = stats[of_lane];
            rstd = stats[M + of_lane];
        }
        next.mean = __shfl_sync(0xffffffffu, mean, turn % 32);
        next.rstd = __shfl_sync(0xffffffffu, rstd, turn % 32);
        acc_t sums[2] = {0, 0};
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            // In all threads: with the wait in the branch, registers would run short.
            if (v % AT_ONCE == 0) ring.wait(summed);
            if (columns.has(v)) {
                const Packed<y_t> g = load_packed(summed.g(v % AT_ONCE), true);
                const Packed<scalar_t> h = load_packed(summed.s(v % AT_ONCE), true);
                gradients.add(v, next, g, h, sums);
            }
            if (v % AT_ONCE == AT_ONCE - 1) summed.advance();
        }
        warp_sum(sums);
        exchange.publish({sums[0], sums[1]}, turn);
    };
    for (unsigned step = 0; step < turns + SUM_AHEAD; ++step) {
        BackwardRow row = next;
        begin(step);
        if (SUM_AHEAD && step == 0) continue;  // no row has been summed before
        if (!SUM_AHEAD) row = next;
        const unsigned turn = step - SUM_AHEAD;
        const long long at_row = (first + turn * parts) * N;
        acc_t sums[2];
        exchange.wait(turn);
        sum_parts(exchange.collect(turn), sums);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (columns.has(v)) {
                const long long at = at_row + columns.of(v);
                const Packed<y_t> g = load_packed(stored.g(v % AT_ONCE), true);
                const Packed<scalar_t> h = load_packed(stored.s(v % AT_ONCE), true);
                row.store(g, h, gradients.weight_of(v), sums, of.load_more(at, vectors), grad_x + at, vectors);
            }
            if (v % AT_ONCE < AT_ONCE - 1) continue;
            const int first_piece = v + 1 - AT_ONCE + RING;  // that takes the place, counted from this row's first
            request(turn + first_piece / VECTORS, first_piece % VECTORS, stored);
            stored.advance();
        }
    }
    if (WANT_AFFINE) gradients.store(partial, columns, first, parts);
}
