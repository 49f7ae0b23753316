// dL/dγ and dL/dβ in the persistent blocks of layer_norm_backward.cu, layer_norm_backward_wide.cu and
// layer_norm_backward_ring.cu: a thread keeps its columns, and adds up in registers over all rows of its group. Each
// block stores one row of sums in `partial`: acc_t (2, parts, N); then column_sums.cu adds up the rows of `partial` in a
// fixed order. Nothing is atomic.
//
// Macro              values         meaning                                                 set by
// WEIGHT_SHARED      0, 1           1: shared memory keeps γ, and registers are free for    LayerNormConfig.weight_shared
//                                   more resident blocks; 0: registers keep γ
// WEIGHT_REGISTERS   0 to VECTORS   how many of a thread's first accesses to γ registers    LayerNormConfig.weight_registers
//                                   keep, even with WEIGHT_SHARED
#pragma once

#include "layer_norm_backward.cuh"

#ifndef WEIGHT_SHARED
#define WEIGHT_SHARED 0
#endif
#ifndef WEIGHT_REGISTERS
#define WEIGHT_REGISTERS 0
#endif

// A thread's columns of γ, dL/dγ and dL/dβ.
struct ColumnGradients {
    static constexpr bool SHARED = WEIGHT_SHARED && WANT_X;
    static constexpr int HELD = SHARED ? WEIGHT_REGISTERS : VECTORS;  // accesses to γ in registers
    typedef KeptSlice<SHARED ? VECTORS - HELD : VECTORS> Kept;
    acc_t grad_weight[VECTORS][VECTOR_WIDTH], grad_bias[VECTORS][VECTOR_WIDTH];
    Packed<weight_t> weight[HELD > 0 ? HELD : 1];
    Kept kept;

    // With WEIGHT_SHARED, `memory` has room for the accesses of all threads to γ that registers do not keep. All threads
    // of the block construct.
    __device__ __forceinline__ ColumnGradients(const weight_t* weights, const Columns& columns, bool vectors, weight_t* memory)
        : kept{memory} {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) grad_weight[v][k] = grad_bias[v][k] = 0;
            if (WANT_X && columns.has(v) && !(SHARED && group_of_block() > 0)) {
                const Packed<weight_t> loaded = load_or(weights, 1, columns.of(v), vectors);
                if (v < HELD) weight[v < HELD ? v : 0] = loaded;
                else kept.store(v - HELD, loaded);
            }
        }
        if (SHARED && GROUPS > 1) __syncthreads();
    }

    __device__ __forceinline__ Packed<weight_t> weight_of(int v) const {
        if (v < HELD) return weight[v < HELD ? v : 0];
        // Without `opaque` the compiler would load γ before the loop over rows, and hold γ in registers.
        unsigned offset = 0;
        opaque(offset);
        return Kept{kept.memory + offset}.load(v - HELD);
    }

    // Adds this thread's v-th access to a row: to the columns' sums, and to the row's `sums` of w and of w·x̂.
    __device__ __forceinline__ void add(
        int v, const BackwardRow& row, const Packed<y_t>& g, const Packed<scalar_t>& s, acc_t (&sums)[2]) {
        if (WANT_AFFINE) row.sum_affine(g, s, grad_weight[v], grad_bias[v]);
        if (WANT_X) row.sum(g, s, weight_of(v), sums);
    }

    // Adds up the groups of a block, in their order, and stores the sums as row `part` of `partial`.
    __device__ __forceinline__ void store(acc_t* partial, const Columns& columns, long long part, long long parts) {
        __shared__ acc_t total[GROUPS > 1 ? 2 : 1][GROUPS > 1 ? SLICE : 1];
        for (int group = 0; group < GROUPS; ++group) {
            if (group_of_block() == group)
#pragma unroll
                for (int v = 0; v < VECTORS; ++v)
#pragma unroll
                    for (int k = 0; k < VECTOR_WIDTH; ++k) {
                        if constexpr (GROUPS > 1) {
                            acc_t& w = total[0][place_of(v) + k];
                            acc_t& b = total[1][place_of(v) + k];
                            w = grad_weight[v][k] += group ? w : acc_t(0);
                            b = grad_bias[v][k] += group ? b : acc_t(0);
                        }
                        if (group == GROUPS - 1 && columns.has(v)) {
                            partial[part * columns.n + columns.of(v) + k] = grad_weight[v][k];
                            partial[(parts + part) * columns.n + columns.of(v) + k] = grad_bias[v][k];
                        }
                    }
            if (GROUPS > 1) __syncthreads();
        }
    }
};
