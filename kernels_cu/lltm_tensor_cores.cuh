// Shared by lltm_tensor_cores.cu and lltm_tensor_cores_backward.cu: the product of a step, of rows that the blocks of a
// team have published in global memory.
//
// A team has STATE / 16 blocks, of 16 units each, and ROWS·GROUPS rows. The warps of a block take turns at slices of 32
// elements of a row. A warp's lanes keep the weights of the warp's slices in registers for all steps, in the layout of
// tensor cores. The warps store their sums in shared memory. Each thread then adds up the warps' sums of one unit, for
// one row of every group.
//
// STATE alone decides the order of every sum: a row's bits do not depend on how many rows there are.
#pragma once

#include "lltm_rows.cuh"
#include "tensor_cores.cuh"
#include "team.cuh"

constexpr int UNITS = 16;  // units of a block
constexpr int WARPS = BLOCK_THREADS / 32;
constexpr int SLICE = 32;        // elements of a row that a warp multiplies at once
constexpr int PRODUCT_ROWS = 8;  // rows of one product of tensor cores
constexpr int PRODUCTS = ROWS * GROUPS / PRODUCT_ROWS;
constexpr int LINE = UNITS + 4;             // stride of a row of sums: the 4 extra words avoid bank conflicts
constexpr int TABLES = GROUPS > 1 ? 2 : 1;  // tables of sums in shared memory, which alternate by group
static_assert(ROWS == 16 && BLOCK_THREADS == ROWS * UNITS, "a thread has a unit of a row");
static_assert(STATE % SLICE == 0 && TEAM * UNITS == STATE, "every block has 16 units");

extern __shared__ __align__(16) unsigned char sum_memory[];

// The product rows · weightsᵀ, for rows of LENGTH elements and BANDS · 16 rows of weights.
template <int BANDS, int LENGTH> struct TeamProduct {
    static constexpr int SLICES = (LENGTH / SLICE + WARPS - 1) / WARPS;  // slices of a warp
    static constexpr bool EVEN = LENGTH / SLICE % WARPS == 0;            // all warps have SLICES slices
    static constexpr int MOST_AHEAD = BANDS > 1 && GROUPS < 4 ? 4 : 2;   // products whose rows are prefetched
    static constexpr int AHEAD = PRODUCTS < MOST_AHEAD ? PRODUCTS : MOST_AHEAD;
    typedef float Sums[BANDS][PRODUCT_ROWS][LINE];

    Eight upper[BANDS][SLICES], lower[BANDS][SLICES];
    int line, part, warp;

    // `weight(band, unit, k)` returns the weight of element k of a row for a unit of the block.
    template <typename Weight> __device__ __forceinline__ TeamProduct(Weight weight) {
        const int thread = static_cast<int>(threadIdx.x);
        warp = thread / 32;
        line = thread % 32 / 4;
        part = thread % 4;
#pragma unroll
        for (int band = 0; band < BANDS; ++band)
#pragma unroll
            for (int i = 0; i < SLICES; ++i)
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    upper[band][i].word[n] = two(weight, band, line, element(i) + 2 * n);
                    lower[band][i].word[n] = two(weight, band, line + 8, element(i) + 2 * n);
                }
    }

    template <typename Weight> static __device__ __forceinline__ unsigned two(Weight weight, int band, int unit, int k) {
        if (!EVEN && k >= LENGTH) return 0;
        return Scalar<scalar_t>::narrow_two(convert<float>(weight(band, unit, k)), convert<float>(weight(band, unit, k + 1)));
    }

    // The first of the lane's eight elements of the warp's i-th slice.
    __device__ __forceinline__ int element(int i) const { return (i * WARPS + warp) * SLICE + part * 8; }

    // Loads the lane's elements of its row of a product. If `there` is false, the row does not exist, and the elements are 0.
    __device__ __forceinline__ void fetch(Eight (&held)[SLICES], const scalar_t* row, bool there, bool vectors) const {
#pragma unroll
        for (int i = 0; i < SLICES; ++i)
#pragma unroll
            for (int n = 0; n < 4; ++n) held[i].word[n] = 0;
        if (!there) return;
        if (vectors) {
#pragma unroll
            for (int i = 0; i < SLICES; ++i)
                if (EVEN || element(i) < LENGTH) {
                    const uint4 four = __ldcg(reinterpret_cast<const uint4*>(row + element(i)));
                    held[i] = Eight{{four.x, four.y, four.z, four.w}};
                }
        } else {
#pragma unroll
            for (int i = 0; i < SLICES; ++i)
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    held[i].word[n] = two([&](int, int, int k) { return row[k]; }, 0, 0, element(i) + 2 * n);
        }
    }

    // Calls take(group, sums) for each group of the `count` rows, with the sums of this thread's row and unit by band.
    // If `vectors` is true, every row begins at a multiple of 16 bytes.
    template <typename Take>
    __device__ __forceinline__ void for_each_group(const scalar_t* rows, long long count, bool vectors, Take take) const {
        Sums(*const tables)[2][WARPS] = reinterpret_cast<Sums(*)[2][WARPS]>(sum_memory);
        const int row = static_cast<int>(threadIdx.x) / UNITS, unit = static_cast<int>(threadIdx.x) % UNITS;
        Eight held[AHEAD][SLICES];
        auto prefetch = [&](int n) {
            const int at = n * PRODUCT_ROWS + line;
            fetch(held[n % AHEAD], rows + at * LENGTH, at < count, vectors);
        };
#pragma unroll
        for (int n = 0; n < AHEAD; ++n) prefetch(n);
#pragma unroll
        for (int n = 0; n < PRODUCTS; ++n) {
            float sums[BANDS][4];
#pragma unroll
            for (int band = 0; band < BANDS; ++band) {
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[band][i] = 0;
#pragma unroll
                for (int i = 0; i < SLICES; ++i)
                    multiply_add<scalar_t>(sums[band], upper[band][i], lower[band][i], held[n % AHEAD][i]);
            }
            if (n + AHEAD < PRODUCTS) prefetch(n + AHEAD);
            Sums& mine = tables[n / 2 % TABLES][n % 2][warp];
#pragma unroll
            for (int band = 0; band < BANDS; ++band)
#pragma unroll
                for (int i = 0; i < 4; ++i) mine[band][2 * part + i % 2][line + i / 2 * 8] = sums[band][i];
            if (n % 2 == 0) continue;
            __syncthreads();
            const Sums* const all = tables[n / 2 % TABLES][row / PRODUCT_ROWS];
            float found[BANDS];
#pragma unroll
            for (int band = 0; band < BANDS; ++band) {
                found[band] = 0;
#pragma unroll
                for (int w = 0; w < WARPS; ++w) found[band] += all[w][band][row % PRODUCT_ROWS][unit];
            }
            take(n / 2, found);
        }
    }
};

// The elements of a thread: one unit, of one row of each group.
struct Own {
    int unit, row, rows;  // the unit among all units; the row in the first group; the number of all rows

    __device__ __forceinline__ Own(long long first_row, long long B) {
        unit = rank_in_team() * UNITS + static_cast<int>(threadIdx.x) % UNITS;
        row = static_cast<int>(first_row) + static_cast<int>(threadIdx.x) / UNITS;
        rows = static_cast<int>(B);
    }

    __device__ __forceinline__ bool there(int g) const { return row + g * ROWS < rows; }
    __device__ __forceinline__ int place(int g) const { return place_of(row + g * ROWS, unit); }
    __device__ __forceinline__ int z_place(int g) const { return z_place_of(row + g * ROWS, unit); }
};
