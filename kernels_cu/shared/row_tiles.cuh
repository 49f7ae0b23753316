// Tiles of rows in shared memory, for rows of any length (sm_90 and later). The rows of a dense matrix lie one after the other,
// so the rows of a tile are one contiguous range, whatever their length. Bulk copies bring the range and take the results back.
// Threads read and write single elements in shared memory only.
//
//     global memory   ...|row 8 ...... row 9 ...... row 10 ..... row 11 .....|...     ROWS_EACH = 4 rows of 197 elements
//                     ^16 bytes        a row begins anywhere                 ^        whole pieces of 16 bytes are loaded
//     shared memory   stage 0: this tile | stage 1: the next tile | ...               STAGES tiles of each team
//     a warp, or      reads its elements of a row, reduces, writes the results over them
//     the block       then one thread stores the whole pieces; the ends of the range are stored by elements
//
// A team computes a tile: the threads of a row, or a warp if several rows share one. Teams wait for no other team. A persistent
// team takes every TEAMS-th tile of the grid.
//
// Macro       values      meaning                                                   set by
// ROWS_EACH   1 or more   rows of a tile                                            RowsConfig.rows_each
// STAGES      1 or more   tiles of a team in shared memory, of which all but one    RowsConfig.stages
//                         are loaded while the team computes
// The others: see row_passes.cuh and rows.cuh.
#pragma once

#include "bulk.cuh"
#include "row_passes.cuh"

#ifndef ROWS_EACH
#define ROWS_EACH 1
#endif

constexpr int TEAM_THREADS = ROW_THREADS < 32 ? 32 : ROW_THREADS;
constexpr int TEAMS = BLOCK_THREADS / TEAM_THREADS;
constexpr int AT_ONCE_ROWS = TEAM_THREADS / ROW_THREADS;  // rows that a team computes at once
static_assert(TEAM_THREADS == 32 || TEAMS == 1, "a barrier of the block is one of the team");

// The mbarriers of a block's stages.
struct TileArrivals {
    Arrivals of[TEAMS][STAGES];
};

// The elements at a place in `rows_memory`.
template <typename T> __device__ __forceinline__ T* in_tile(int at) { return reinterpret_cast<T*>(rows_memory + at); }

// The tiles of a team. In: the element types of the arrays that are loaded, LOADED of them, and after them those of results
// that have a place of their own. A result may also be written over the elements of a loaded array.
template <int LOADED, bool STORES, typename... In> struct RowTiles {
    static constexpr int SLOTS = sizeof...(In);
    // With stores a stage is loaded again one turn later, when the stores have read it.
    static constexpr int LATER = STORES && STAGES > 1;
    const unsigned char* from[SLOTS];
    Arrivals* arrivals;
    int n, last, tile, tiles, step;  // last: the rows of the last tile
    unsigned turn = 0;
    int stages_at, stage_bytes;

    // All threads of the block.
    __device__ __forceinline__ RowTiles(TileArrivals& all, long long rows, long long n, const In*... arrays)
        : from{reinterpret_cast<const unsigned char*>(arrays)...}, n(static_cast<int>(n)) {
        const int team = static_cast<int>(threadIdx.x) / TEAM_THREADS;
        arrivals = all.of[team];
        stage_bytes = slot_at(SLOTS);
        stages_at = team * STAGES * stage_bytes;
        tiles = static_cast<int>((rows + ROWS_EACH - 1) / ROWS_EACH);
        last = static_cast<int>(rows - (tiles - 1ll) * ROWS_EACH);
        tile = static_cast<int>(blockIdx.x) * TEAMS + team;
        step = static_cast<int>(gridDim.x) * TEAMS;
        if (rank() == 0) {
            for (int i = 0; i < STAGES; ++i) arrival_init(arrivals + i, 1);
            for (int i = 0; i < STAGES - LATER; ++i) request(i);
        }
        sync();
    }

    static __device__ __forceinline__ int rank() { return static_cast<int>(threadIdx.x) % TEAM_THREADS; }

    static __device__ __forceinline__ void sync() {
        if (TEAM_THREADS == 32) __syncwarp();
        else __syncthreads();
    }

    __device__ __forceinline__ bool more() const { return tile < tiles; }
    __device__ __forceinline__ long long first() const { return tile * static_cast<long long>(ROWS_EACH); }
    __device__ __forceinline__ int count() const { return rows_of(tile); }

    // This thread's row of the rows r to r + AT_ONCE_ROWS - 1 of the tile, and whether the tile has the row. Without a row, it is
    // the last row of the tile.
    __device__ __forceinline__ long long row(int r) const { return first() + row_in_tile(r); }
    __device__ __forceinline__ bool has(int r) const { return AT_ONCE_ROWS == 1 || r + row_of_team() < count(); }

    // The row that this thread computes after row(r), or a row of the matrix if there is none.
    __device__ __forceinline__ long long row_ahead(int r) const {
        const bool here = r + AT_ONCE_ROWS < count();
        const long long of = here ? row(r + AT_ONCE_ROWS) : (tile + step) * static_cast<long long>(ROWS_EACH) + row_of_team();
        const long long end = (tiles - 1) * static_cast<long long>(ROWS_EACH) + last;
        return of < end ? of : end - 1;
    }

    // Returns the place of the tile in `rows_memory`, and that of row(r), given the place of the tile.
    __device__ __forceinline__ int place(int slot) const { return tile_at(slot, turn, tile); }
    template <typename T> __device__ __forceinline__ int row_at(int place, int r) const {
        return place + row_in_tile(r) * n * static_cast<int>(sizeof(T));
    }

    // Returns when the tile is in shared memory. All threads of the team.
    __device__ __forceinline__ void wait() {
        arrival_wait(arrivals + turn % STAGES, turn / STAGES % 2);
        if (tile > 0 && tile < tiles - 1) return;
        // The pieces of 16 bytes at the ends of an array may have bytes that are not the array's. Single elements are loaded.
#pragma unroll
        for (int s = 0; s < LOADED; ++s) {
            const Range all = range_of(s, tile), whole = loaded_of(all, tile);
            copy_ends(all, whole, [&](const unsigned char* p, long long bytes) {
                unsigned short* to = reinterpret_cast<unsigned short*>(rows_memory + tile_at(s, turn, tile) + (p - all.begin));
                for (long long i = rank(); i < bytes / 2; i += TEAM_THREADS)
                    to[i] = reinterpret_cast<const unsigned short*>(p)[i];
            });
        }
        sync();
    }

    // All threads of the team call it after the last access to the tile, then store() for each result, then next().
    __device__ __forceinline__ void computed() const {
        show_to_copies();
        sync();
    }

    // Stores a result that was written to a slot. `result` may be null.
    template <typename T> __device__ __forceinline__ void store(int slot, T* result) const {
        if (!result) return;
        unsigned char* const to = reinterpret_cast<unsigned char*>(result) + first() * n * sizeof(T);
        const unsigned char* const at = rows_memory + tile_at(slot, turn, tile);
        const Range all = {to, to + rows_of(tile) * n * static_cast<int>(sizeof(T))};
        Range whole = {up(all.begin), down(all.end)};
        // A result that lies at another offset from a piece of 16 bytes than its place has no whole pieces.
        if (((shared_address(at) ^ reinterpret_cast<unsigned long long>(to)) & 15) != 0 || whole.begin >= whole.end)
            whole = {all.begin, all.begin};
        else if (rank() == 0)
            bulk_store(
                const_cast<unsigned char*>(whole.begin), at + (whole.begin - all.begin),
                static_cast<unsigned>(whole.end - whole.begin));
        copy_ends(all, whole, [&](const unsigned char* p, long long bytes) {
            const T* own = reinterpret_cast<const T*>(at + (p - all.begin));
            T* there = reinterpret_cast<T*>(const_cast<unsigned char*>(p));
            for (long long i = rank(); i < bytes / static_cast<long long>(sizeof(T)); i += TEAM_THREADS) there[i] = own[i];
        });
    }

    // Goes on to the next tile, and requests the tile that comes STAGES turns after the stage that is free.
    __device__ __forceinline__ void next() {
        if (STORES && !LATER) computed();  // other threads store the ends of this stage
        if (rank() == 0) {
            if (STORES) {
                stores_commit();
                stores_have_read<LATER>();
            }
            request(STAGES - LATER);
        }
        ++turn;
        tile += step;
    }

    // Returns when shared memory is no longer read.
    __device__ __forceinline__ void end() const {
        if (STORES && rank() == 0) stores_have_read<0>();
    }

private:
    static __device__ __forceinline__ int row_of_team() {
        return AT_ONCE_ROWS == 1 ? 0 : static_cast<int>(threadIdx.x) % 32 / ROW_THREADS;
    }

    __device__ __forceinline__ int row_in_tile(int r) const { return has(r) ? r + row_of_team() : count() - 1; }

    struct Range {
        const unsigned char *begin, *end;
    };

    static __device__ __forceinline__ const unsigned char* down(const unsigned char* p) {
        return p - (reinterpret_cast<unsigned long long>(p) & 15);
    }
    static __device__ __forceinline__ const unsigned char* up(const unsigned char* p) { return down(p + 15); }

    __device__ __forceinline__ int rows_of(int of) const { return of < tiles - 1 ? ROWS_EACH : last; }

    static constexpr __device__ int size_of(int slot) {
        constexpr int sizes[] = {static_cast<int>(sizeof(In))...};
        return sizes[slot];
    }

    // The first byte of a slot in a stage. A slot has room for the pieces of 16 bytes around a tile.
    __device__ __forceinline__ int slot_at(int slot) const {
        int at = 0;
#pragma unroll
        for (int s = 0; s < slot; ++s) at += (ROWS_EACH * n * size_of(s) + 30) / 16 * 16;
        return at;
    }

    __device__ __forceinline__ Range range_of(int slot, int of) const {
        const unsigned char* begin = from[slot] + static_cast<long long>(of) * (ROWS_EACH * n * size_of(slot));
        return {begin, begin + rows_of(of) * n * size_of(slot)};
    }

    // The whole pieces of 16 bytes that a bulk copy loads: those around a tile, but none beyond the ends of the array.
    __device__ __forceinline__ Range loaded_of(const Range& all, int of) const {
        const Range whole = {of == 0 ? up(all.begin) : down(all.begin), of == tiles - 1 ? down(all.end) : up(all.end)};
        return whole.begin < whole.end ? whole : Range{all.begin, all.begin};
    }

    // The place of a tile in `rows_memory`: as far from a piece of 16 bytes as the tile is in global memory.
    __device__ __forceinline__ int tile_at(int slot, unsigned in_turn, int of) const {
        return stages_at + static_cast<int>(in_turn % STAGES) * stage_bytes + slot_at(slot) +
               static_cast<int>(reinterpret_cast<unsigned long long>(range_of(slot, of).begin) & 15);
    }

    // Calls copy(begin, bytes) for the parts of a range before and after its whole pieces.
    template <typename Copy>
    static __device__ __forceinline__ void copy_ends(const Range& all, const Range& whole, const Copy& copy) {
        if (all.begin < whole.begin) copy(all.begin, whole.begin - all.begin);
        if (whole.end < all.end) copy(whole.end, all.end - whole.end);
    }

    // Begins to load the tile that this team computes `later` turns from now. One thread of the team.
    __device__ __forceinline__ void request(int later) const {
        const int of = tile + later * step;
        if (of >= tiles) return;
        const unsigned in_turn = turn + later;
        Arrivals* arrival = arrivals + in_turn % STAGES;
        unsigned bytes = 0;
#pragma unroll
        for (int s = 0; s < LOADED; ++s) {
            const Range whole = loaded_of(range_of(s, of), of);
            bytes += static_cast<unsigned>(whole.end - whole.begin);
        }
        arrive_expecting(arrival, bytes);
#pragma unroll
        for (int s = 0; s < LOADED; ++s) {
            const Range all = range_of(s, of), whole = loaded_of(all, of);
            if (whole.begin < whole.end)
                bulk_load(
                    rows_memory + tile_at(s, in_turn, of) + (whole.begin - all.begin), whole.begin,
                    static_cast<unsigned>(whole.end - whole.begin), arrival);
        }
    }
};
