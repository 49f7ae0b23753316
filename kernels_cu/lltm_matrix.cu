// All steps of an LLTM over a sequence in one launch, as lltm_sequence.cu, on tensor cores: rows of 16 bits, of so many units
// that a team takes blocks all over the GPU.
//
//   forward    z_t += h_{t-1}·W_hᵀ    of the 48 rows of W_h that are the gates of a block's 16 units
//   back       dh_t = dz_{t+1}·W_h    of the 16 columns of W_h that are a block's units
//
//   z, dz: scalar_t (T, B, 3S)    h, c: (T, B, S)    the last h and c: (2, B, S)    W_h: the first S columns of (3S, K)
//   arithmetic, c from step to step, and the sums of dz: acc_t, which is float32
//
// A team has STATE / 16 blocks and ROWS·GROUPS rows. The sums of a step run along the rows of h or dz, as the blocks of the
// team have left them in memory: the warps of a block take turns at slices of 32 elements, for which their lanes keep the
// weights in registers for all steps. What the warps have summed they leave in shared memory. Each thread then makes one
// unit of one row of every group, of the warps' sums in their order.
//
// What is summed in which order follows from STATE alone: a row's bits do not depend on how many rows there are.
#include "lltm.cuh"
#include "tensor_cores.cuh"
#include "team.cuh"

constexpr int UNITS = 16;                      // of a block
constexpr int WARPS = BLOCK_THREADS / 32;
constexpr int SLICE = 32;                      // elements of a row that a warp takes at once
constexpr int PRODUCT_ROWS = 8;                // rows of one product of tensor cores
constexpr int PRODUCTS = ROWS * GROUPS / PRODUCT_ROWS;
constexpr int LINE = UNITS + 4;                // of sums: lanes that write, or read, at once do it in banks of their own
constexpr int TABLES = GROUPS > 1 ? 2 : 1;     // of sums, which groups take turns at
static_assert(ROWS == 16 && BLOCK_THREADS == ROWS * UNITS, "a thread has a unit of a row");
static_assert(STATE % SLICE == 0 && TEAM * UNITS == STATE, "blocks have all their units");

extern __shared__ __align__(16) unsigned char sum_memory[];

// What is made of rows of LENGTH elements and of BANDS · 16 rows of weights.
template <int BANDS, int LENGTH> struct TeamProduct {
    static constexpr int SLICES = (LENGTH / SLICE + WARPS - 1) / WARPS;          // of a warp
    static constexpr bool EVEN = LENGTH / SLICE % WARPS == 0;                    // all have as many
    static constexpr int MOST_AHEAD = BANDS > 1 && GROUPS < 4 ? 4 : 2;           // products whose rows are on their way
    static constexpr int AHEAD = PRODUCTS < MOST_AHEAD ? PRODUCTS : MOST_AHEAD;
    typedef float Sums[BANDS][PRODUCT_ROWS][LINE];

    Eight upper[BANDS][SLICES], lower[BANDS][SLICES];
    int line, part, warp;

    // weight(band, unit, k)
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
        return Scalar<scalar_t>::narrow_two(
            convert<float>(weight(band, unit, k)), convert<float>(weight(band, unit, k + 1)));
    }

    // Where the lane's elements of the warp's i-th slice begin.
    __device__ __forceinline__ int element(int i) const { return (i * WARPS + warp) * SLICE + part * 8; }

    // The lane's row of a product: its elements, or 0 where there is no such row.
    __device__ __forceinline__ void fetch(Eight (&held)[SLICES], const scalar_t* row, bool there, bool whole) const {
#pragma unroll
        for (int i = 0; i < SLICES; ++i)
#pragma unroll
            for (int n = 0; n < 4; ++n) held[i].word[n] = 0;
        if (!there) return;
        if (whole) {
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

    // take(group, sums) for each group of `count` rows, with the sums of this thread's row and unit by band. `whole`: rows
    // begin where a whole access may.
    template <typename Take>
    __device__ __forceinline__ void of(const scalar_t* rows, long long count, bool whole, Take take) const {
        Sums(*const tables)[2][WARPS] = reinterpret_cast<Sums(*)[2][WARPS]>(sum_memory);
        const int row = static_cast<int>(threadIdx.x) / UNITS, unit = static_cast<int>(threadIdx.x) % UNITS;
        Eight held[AHEAD][SLICES];
        auto request = [&](int n) {
            const int at = n * PRODUCT_ROWS + line;
            fetch(held[n % AHEAD], rows + at * LENGTH, at < count, whole);
        };
#pragma unroll
        for (int n = 0; n < AHEAD; ++n) request(n);
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
            if (n + AHEAD < PRODUCTS) request(n + AHEAD);
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

// Rows of a step have fewer than 2^31 elements; where a step begins is the same for all threads.
struct Own {
    int unit, row, rows;  // of the GPU's units; of the first group; rows in all

    __device__ __forceinline__ Own(long long first_row, long long B) {
        unit = rank_in_team() * UNITS + static_cast<int>(threadIdx.x) % UNITS;
        row = static_cast<int>(first_row) + static_cast<int>(threadIdx.x) / UNITS;
        rows = static_cast<int>(B);
    }

    __device__ __forceinline__ bool there(int g) const { return row + g * ROWS < rows; }
    __device__ __forceinline__ int place(int g) const { return (row + g * ROWS) * STATE + unit; }
    __device__ __forceinline__ int z_place(int g) const { return (row + g * ROWS) * GATES * STATE + unit; }
};

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) lltm_matrix(
    const scalar_t* __restrict__ weights,   // (3, S, K)
    const scalar_t* __restrict__ first_h,   // (B, S)
    const scalar_t* __restrict__ first_c,   // (B, S)
    scalar_t* __restrict__ gates,           // (T, B, 3, S)
    scalar_t* h,                            // (T, B, S)
    scalar_t* __restrict__ cells,           // (T, B, S)
    scalar_t* __restrict__ last,            // (2, B, S)
    int* counters,                          // (tiles)
    long long T, long long B, long long S, long long K, long long tiles, long long teams, long long blocks) {
    const int first_unit = rank_in_team() * UNITS;
    const TeamProduct<GATES, STATE> product(
        [&](int gate, int unit, int k) { return weights[(gate * STATE + first_unit + unit) * K + k]; });
    for (long long tile = blockIdx.x / BLOCKS; tile < tiles; tile += teams) {
        const long long first_row = tile * ROWS * GROUPS;
        const Own own(first_row, B);
        acc_t c[GROUPS], z[GROUPS][GATES];
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            c[g] = own.there(g) ? convert<acc_t>(first_c[own.place(g)]) : acc_t(0);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate)
                z[g][gate] = own.there(g) ? convert<acc_t>(gates[own.z_place(g) + gate * STATE]) : acc_t(0);
        }
        for (long long t = 0; t < T; ++t) {
            scalar_t* const h_t = h + t * B * STATE;
            scalar_t* const cells_t = cells + t * B * STATE;
            scalar_t* const gates_t = gates + t * B * GATES * STATE;
            const scalar_t* const gates_next = gates_t + B * GATES * STATE;
            const scalar_t* const before = (t ? h_t - B * STATE : first_h) + first_row * STATE;
            product.of(before, B - first_row, t || aligned<8>(before), [&](int g, const float (&sums)[GATES]) {
                scalar_t rounded[GATES];
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) rounded[gate] = convert<scalar_t>(sums[gate] + z[g][gate]);
                if (!own.there(g)) return;
                if (t + 1 < T)  // on its way while the blocks meet
#pragma unroll
                    for (int gate = 0; gate < GATES; ++gate)
                        z[g][gate] = convert<acc_t>(gates_next[own.z_place(g) + gate * STATE]);
                const Unit unit(convert<acc_t>(rounded[0]), convert<acc_t>(rounded[1]), convert<acc_t>(rounded[2]));
                c[g] = unit.cell(c[g]);
                const scalar_t new_h = convert<scalar_t>(unit.hidden(c[g])), new_c = convert<scalar_t>(c[g]);
                h_t[own.place(g)] = new_h;
                cells_t[own.place(g)] = new_c;
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) gates_t[own.z_place(g) + gate * STATE] = rounded[gate];
                if (t + 1 == T) {
                    last[own.place(g)] = new_h;
                    (last + B * STATE)[own.place(g)] = new_c;
                }
            });
            if (t + 1 < T) meet_at(counters + tile, t + 1);
        }
        __syncthreads();  // the last sums have been read
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) lltm_matrix_backward(
    const scalar_t* __restrict__ grad_h,      // (T, B, S) or null
    const scalar_t* __restrict__ grad_last,   // (2, B, S) or null
    const scalar_t* __restrict__ grad_cells,  // (T, B, S) or null
    const scalar_t* __restrict__ grad_gates,  // (T, B, 3, S) or null
    const scalar_t* __restrict__ weights,     // (3, S, K)
    const scalar_t* __restrict__ gates,       // (T, B, 3, S)
    const scalar_t* __restrict__ cells,       // (T, B, S)
    scalar_t* grad_z,                         // (T, B, 3, S)
    scalar_t* __restrict__ grad_first_h,      // (B, S)
    scalar_t* __restrict__ grad_first_c,      // (B, S)
    acc_t* __restrict__ bias_sums,            // (parts, 3, S)
    int* counters,                            // (tiles)
    long long T, long long B, long long S, long long K, long long parts, long long tiles, long long teams, long long blocks) {
    const int first_unit = rank_in_team() * UNITS;
    const TeamProduct<1, GATES * STATE> product([&](int, int unit, int j) { return weights[j * K + first_unit + unit]; });
    for (long long tile = blockIdx.x / BLOCKS; tile < tiles; tile += teams) {
        const long long first_row = tile * ROWS * GROUPS;
        const Own own(first_row, B);
        acc_t dh[GROUPS], dc[GROUPS], bias_sum[GATES] = {0, 0, 0};
        acc_t z[GROUPS][GATES], cell[GROUPS], more[GROUPS];
        auto request = [&](int g, long long t) {
            const long long step = t * B * STATE;
            if (grad_h) more[g] = convert<acc_t>((grad_h + step)[own.place(g)]);
            cell[g] = convert<acc_t>((cells + step)[own.place(g)]);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate)
                z[g][gate] = convert<acc_t>((gates + step * GATES)[own.z_place(g) + gate * STATE]);
        };
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            dh[g] = dc[g] = more[g] = cell[g] = z[g][0] = z[g][1] = z[g][2] = 0;
            if (!own.there(g)) continue;
            if (grad_last) {
                dh[g] = convert<acc_t>(grad_last[own.place(g)]);
                dc[g] = convert<acc_t>((grad_last + B * STATE)[own.place(g)]);
            }
            request(g, T - 1);
        }
        for (long long t = T - 1; t >= 0; --t) {
            const long long step = t * B * STATE;
            scalar_t* const grad_z_t = grad_z + step * GATES;
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                if (!own.there(g)) continue;
                const Unit unit(z[g][0], z[g][1], z[g][2]);
                acc_t dz[GATES];
                if (grad_cells) dc[g] += convert<acc_t>((grad_cells + step)[own.place(g)]);
                unit.back(cell[g], dh[g] + more[g], dc[g], dz);
                if (grad_gates)
                    for (int gate = 0; gate < GATES; ++gate)
                        dz[gate] += convert<acc_t>((grad_gates + step * GATES)[own.z_place(g) + gate * STATE]);
                if (t > 0) request(g, t - 1);  // on its way while the blocks meet
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) {
                    bias_sum[gate] += dz[gate];
                    grad_z_t[own.z_place(g) + gate * STATE] = convert<scalar_t>(dz[gate]);
                }
            }
            meet_at(counters + tile, T - t);
            product.of(grad_z_t + first_row * GATES * STATE, B - first_row, true, [&](int g, const float (&sums)[1]) {
                dh[g] = sums[0];
            });
        }
#pragma unroll
        for (int g = 0; g < GROUPS; ++g)
            if (own.there(g)) {
                grad_first_h[own.place(g)] = convert<scalar_t>(dh[g]);
                grad_first_c[own.place(g)] = convert<scalar_t>(dc[g]);
            }
        const long long part = tile * ROWS + threadIdx.x / UNITS;
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) bias_sums[(part * GATES + gate) * STATE + own.unit] = bias_sum[gate];
    }
}
