// y = gelu(z), z = x·Wᵀ + b, by the tensor cores of sm_90a: a matrix product whose epilogue adds the bias and applies GELU.
//
//   z[m, n] = Σ_k x[m, k]·W[n, k] + b[n]      y = gelu(z)
//
//   x: scalar_t (M, K)      W: scalar_t (N, K)      b: scalar_t (N) or null      y, z: scalar_t (M, N)
//   scalar_t: float16 or bfloat16      sums and gelu in acc_t = float, gelu of z before z is rounded
//
//   macro          values    set by
//   STAGES         2 to 4    Sm90Config: slices of x and W that a block has room for
//   PIECES         1, 2      Sm90Config: pieces of z and of y that a group of threads has room for
//   PAIRS_M        1 to 8    Sm90Config: pairs of tiles along M that are made one after the other
//   BLOCK_THREADS  384       Sm90Config: threads of a block, three groups of 128
//   CLUSTER        2         Sm90Config: blocks that share rows of W
//   TANH           0, 1      the body: the form of GELU, see gelu.cu
//   NAIVE          1         tests: the naive kernel alone
//
// The parts, which docs/hopper.md explains:
//
//   tile        128 x 256 elements of z, which a block computes from slices of 64 columns of x and W
//   producer    one thread issues the bulk copies (TMA) of the slices, STAGES slices ahead
//   consumers   two groups of 128 threads; the registers of a group hold the sums of 64 x 256 elements
//   cluster     two blocks with the same columns of z: each block fetches half of their rows of W for both blocks
//   persistent  the grid has as many blocks as run at once, and each block computes tile after tile: the slices of the next tile
//               are in flight during the epilogue of this tile
#include "gelu.cuh"
#include "wgmma.cuh"

#ifdef NAIVE

extern "C" __global__ void linear_gelu_sm90_naive(
    const scalar_t* __restrict__ x,       // (M, K)
    const scalar_t* __restrict__ weight,  // (N, K)
    const scalar_t* __restrict__ bias,    // (B) or null
    scalar_t* __restrict__ z,             // (M, N)
    scalar_t* __restrict__ y,             // (M, N)
    long long M, long long N, long long K, long long B) {
    const long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, m = blockIdx.y;
    if (n >= N || m >= M) return;
    acc_t sum = 0;
    for (long long k = 0; k < K; ++k) sum += convert<acc_t>(x[m * K + k]) * convert<acc_t>(weight[n * K + k]);
    if (bias) sum += convert<acc_t>(bias[n]);
    z[m * N + n] = convert<scalar_t>(sum);
    y[m * N + n] = convert<scalar_t>(gelu(sum));
}

#else

// The slices of x and W that fit a block's shared memory.
#ifndef STAGES
#define STAGES 4
#endif

// The pieces of z and of y, 64 x 64 elements each, that a group of threads holds in shared memory while bulk copies
// store them.
#ifndef PIECES
#define PIECES 1
#endif

// The pairs of tiles along M that are computed one after the other, while the L2 cache holds their rows of W.
#ifndef PAIRS_M
#define PAIRS_M 8
#endif

constexpr int TILE_M = 128, TILE_N = 256, TILE_K = 64, PIECE = 64;
constexpr int X_BYTES = TILE_M * TILE_K * 2, STAGE_BYTES = X_BYTES + TILE_N * TILE_K * 2, PIECE_BYTES = PIECE * PIECE * 2;

// Clusters take pairs of tiles in this order: PAIRS_M pairs along M, then the same rows at the next tile along N.
struct Place {
    int m, n;
};

__device__ __forceinline__ Place place_of(int pair, int pairs_m, int tiles_n) {
    const int group = PAIRS_M * tiles_n, first = pair / group * PAIRS_M, in = pair % group;
    const int height = pairs_m - first < PAIRS_M ? pairs_m - first : PAIRS_M;
    return {first + in % height, in / height};
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BLOCK_THREADS, 1) linear_gelu_sm90(
    const scalar_t* __restrict__ x,       // (M, K)
    const scalar_t* __restrict__ weight,  // (N, K)
    const scalar_t* __restrict__ bias,    // (B) or null
    scalar_t* __restrict__ z,             // (M, N)
    scalar_t* __restrict__ y,             // (M, N)
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
    const __grid_constant__ TensorMap z_map, const __grid_constant__ TensorMap y_map, long long M, long long N, long long K,
    long long B, long long clusters) {
    extern __shared__ unsigned char memory[];
    __shared__ Arrivals full[STAGES], empty[STAGES];  // the slices of a stage have arrived; both blocks have read them
    const unsigned slices = (shared_address(memory) + 1023) & ~1023u, pieces = slices + STAGES * STAGE_BYTES;
    const int group = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
    const int rank = static_cast<int>(__clusterRelativeBlockRank());
    const int slices_k = static_cast<int>((K + TILE_K - 1) / TILE_K), tiles_n = static_cast<int>((N + TILE_N - 1) / TILE_N);
    const int pairs_m = static_cast<int>((M + 2 * TILE_M - 1) / (2 * TILE_M));
    const int pairs = pairs_m * tiles_n, first_pair = static_cast<int>(blockIdx.x) / 2, step = static_cast<int>(clusters);
    if (threadIdx.x == 0)
        for (int s = 0; s < STAGES; ++s) {
            arrival_init(full + s, 1);
            arrival_init(empty + s, 4);  // two groups of each of two blocks
        }
    meet_cluster();
    unsigned turn = 0;  // the number of slices so far; it gives the stage, and the phase of the stage's mbarriers
    if (group == 0) {
        keep_registers<40>();
        if (thread == 0)
            for (int pair = first_pair; pair < pairs; pair += step) {
                const Place place = place_of(pair, pairs_m, tiles_n);
                const int row = (place.m * 2 + rank) * TILE_M, row_of_weight = place.n * TILE_N + rank * (TILE_N / 2);
                for (int k = 0; k < slices_k; ++k, ++turn) {
                    const unsigned stage = turn % STAGES, to = slices + stage * STAGE_BYTES;
                    arrival_wait(empty + stage, turn / STAGES % 2 ^ 1);
                    arrive_expecting(full + stage, STAGE_BYTES);
                    load_box(to, &x_map, k * TILE_K, row, full + stage);
                    const unsigned half_of_weight = to + X_BYTES + rank * (TILE_N / 2 * TILE_K * 2);
                    load_box_for_both(half_of_weight, &weight_map, k * TILE_K, row_of_weight, full + stage);
                }
            }
    } else {
        take_registers<232>();
        const int lane = thread % 32, warp = thread / 32, half = group - 1;
        const unsigned own_pieces = pieces + half * PIECES * 2 * PIECE_BYTES;
        // The offset of this lane's row in a piece, for store_matrices. The 16 bytes from column 8·j on lie at j ^ row
        // % 8. Lanes from 16 on address the next 16 bytes.
        const unsigned row_at = (warp * 16 + lane % 16) * (PIECE * 2) + (lane / 16 ^ lane % 8) * 16;
        float sums[128];
        for (int pair = first_pair; pair < pairs; pair += step) {
            const Place place = place_of(pair, pairs_m, tiles_n);
            for (int k = 0; k < slices_k; ++k, ++turn) {
                const unsigned stage = turn % STAGES, at = slices + stage * STAGE_BYTES;
                arrival_wait(full + stage, turn / STAGES % 2);
                const unsigned long long of_x = rows_at(at + half * (X_BYTES / 2)), of_weight = rows_at(at + X_BYTES);
                multiply_begin();
#pragma unroll
                for (int i = 0; i < TILE_K / 16; ++i)  // a step is 32 bytes; descriptors count 16 bytes
                    multiply<scalar_t>(sums, of_x + 2 * i, of_weight + 2 * i, k > 0 || i > 0);
                multiply_commit();
                multiply_wait<1>();
                // The tensor cores have read the previous slice: the slice's stage is free, in both blocks.
                if (k > 0 && thread < 2) arrive_in(thread, empty + (turn - 1) % STAGES);
            }
            const int row = (place.m * 2 + rank) * TILE_M + half * 64, first = place.n * TILE_N;
            unsigned biases[TILE_N / 8];  // two biases a word, of the columns of this thread; N is even
#pragma unroll
            for (int j = 0; j < TILE_N / 8; ++j) {
                const int column = first + j * 8 + lane % 4 * 2;
                biases[j] = bias && column < N ? *reinterpret_cast<const unsigned*>(bias + column) : 0;
            }
            multiply_wait<0>();
            if (thread < 2) arrive_in(thread, empty + (turn - 1) % STAGES);
            settle(sums);
            // The epilogue moves 64 columns at a time through shared memory.
#pragma unroll
            for (int c = 0; c < TILE_N / PIECE; ++c) {
                unsigned zs[PIECE / 4], ys[PIECE / 4];  // two elements a word; 8 columns take a word of each of two rows
#pragma unroll
                for (int j = 0; j < PIECE / 8; ++j) {
                    const unsigned two = biases[c * (PIECE / 8) + j];
                    const float b0 = Scalar<scalar_t>::widen(two, 0), b1 = Scalar<scalar_t>::widen(two, 1);
                    const float* s = sums + (c * (PIECE / 8) + j) * 4;
                    const float z0 = s[0] + b0, z1 = s[1] + b1, z2 = s[2] + b0, z3 = s[3] + b1;
                    zs[2 * j] = Scalar<scalar_t>::narrow_two(z0, z1);
                    zs[2 * j + 1] = Scalar<scalar_t>::narrow_two(z2, z3);
                    ys[2 * j] = Scalar<scalar_t>::narrow_two(gelu(z0), gelu(z1));
                    ys[2 * j + 1] = Scalar<scalar_t>::narrow_two(gelu(z2), gelu(z3));
                }
                const unsigned z_piece = own_pieces + c % PIECES * 2 * PIECE_BYTES, y_piece = z_piece + PIECE_BYTES;
                // Waits until the bulk copies of the pieces' former contents have read them.
                if (thread == 0) stores_have_read<PIECES - 1>();
                meet(group, 128);
#pragma unroll
                for (int j = 0; j < PIECE / 8; j += 2) {
                    const unsigned at = row_at ^ j * 16;
                    store_matrices(z_piece + at, zs[2 * j], zs[2 * j + 1], zs[2 * j + 2], zs[2 * j + 3]);
                    store_matrices(y_piece + at, ys[2 * j], ys[2 * j + 1], ys[2 * j + 2], ys[2 * j + 3]);
                }
                show_to_copies();
                meet(group, 128);
                if (thread == 0) {
                    store_box(&z_map, first + c * PIECE, row, z_piece);
                    store_box(&y_map, first + c * PIECE, row, y_piece);
                    stores_commit();
                }
            }
        }
        if (thread == 0) stores_are_done();
    }
    // A block may not exit before the other block has sent its last arrival and slice.
    meet_cluster();
}

#endif
