// The place of a thread in a matrix that two-dimensional blocks cover. cupyops/tiling/tiles.py computes the grid.
//
// A block has 256 threads: ABREAST side by side, with one access of VECTOR_WIDTH columns each, and 256 / ABREAST = DOWN rows.
// From DOWN rows a block goes on to the rows gridDim.y · DOWN further down. VECTOR_WIDTH divides the length of a row.
#pragma once

#include "scalar.cuh"
#include "packed.cuh"

#ifndef ABREAST
#define ABREAST 32
#endif

constexpr long long DOWN = 256 / ABREAST;

// The row and the column of a thread's first element.
struct Place {
    long long row, column;

    __device__ __forceinline__ Place() {
        row = blockIdx.y * DOWN + threadIdx.y;
        column = (blockIdx.x * static_cast<long long>(ABREAST) + threadIdx.x) * VECTOR_WIDTH;
    }
};
