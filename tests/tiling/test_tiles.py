"""Rows in two-dimensional blocks: each element once, by as wide accesses as rows allow."""

import numpy as np
import pytest

import cupyops
from cupyops.arrays import host
from cupyops.tiling.tiles import THREADS, TiledKernel, Tiles

TEXT = """
#include "tiles.cuh"
extern "C" __global__ void add_one(const scalar_t* x, scalar_t* y, long long M, long long N, long long columns, long long rows) {
    const Place place;
    const long long column = place.column;
    if (column >= N) return;
    for (long long row = place.row; row < M; row += gridDim.y * DOWN)
        for (int k = 0; k < VECTOR_WIDTH; ++k) y[row * N + column + k] = x[row * N + column + k] + scalar_t(1);
}
"""
ADD_ONE = TiledKernel(TEXT, "add_one", {4: 4, 8: 1}, dtypes=("float32", "float64"))


@pytest.mark.parametrize("vector_width", [1, 2, 4])
@pytest.mark.parametrize("n", [4, 8, 36, 128, 1000, 4100])
def test_blocks_cover_a_row(n: int, vector_width: int) -> None:
    tiles = Tiles.over(n, vector_width)
    columns, rows = tiles.sizes(n, 77)
    assert (columns * vector_width, rows) == (n, 77)
    assert tiles.abreast * tiles.down == THREADS
    idle = -columns % tiles.abreast
    assert all(idle <= -columns % other for other in (8, 16, 32) if columns >= 8)


def test_a_grid_has_only_so_many_blocks_down() -> None:
    assert Tiles(4, 32).sizes(128, 10**9) == (32, 8 * 65535)


@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (8, 1), (9, 2), (80, 10), (1000, 66)])
def test_persistent_blocks_are_no_more_than_run_at_once(rows: int, parts: int) -> None:
    tiles = Tiles(4, 32)
    assert tiles.persistent(256, rows, 132) == (parts, 64, 8 * parts)
    assert tiles.persistent(10**6, rows, 132)[0] == 1


@pytest.mark.parametrize(("rows", "turns"), [(1, 1), (64, 1), (65, 2), (256, 4)])
@pytest.mark.parametrize("n", [1, 3, 12, 1000])
def test_blocks_of_a_few_rows_have_all_of_them(rows: int, turns: int, n: int) -> None:
    kernel, (parts, columns, down) = ADD_ONE.alone("float32", rows, n)
    vector_width, abreast = kernel.constants["VECTOR_WIDTH"], kernel.constants["ABREAST"]
    assert (parts, columns * vector_width) == (1, n)
    assert down == THREADS // abreast  # one block down
    assert -(-rows // down) <= turns
    assert kernel is ADD_ONE.alone("float32", 1, n)[0]
    assert ADD_ONE.persistent("float32", rows, n, host(), few=rows) == ADD_ONE.alone("float32", rows, n)
    assert ADD_ONE.persistent("float32", rows, n, host(), few=rows - 1) == ADD_ONE.persistent(
        "float32", rows, n, host()
    )


def test_one_kernel_for_each_way_to_cut() -> None:
    assert ADD_ONE.kernel("float32", 128) is ADD_ONE.kernel("float32", 256)
    assert ADD_ONE.tiles("float32", 24, 6) == Tiles(2, 16)
    assert ADD_ONE.tiles("float64", 24, 6) == Tiles(1, 32)
    kernel, threads = ADD_ONE.launch("float32", 5, 24, 6)
    assert (kernel.constants, threads) == ({"VECTOR_WIDTH": 2, "ABREAST": 16}, (15, 5))


@pytest.mark.simulator
@pytest.mark.parametrize(("m", "n"), [(70, 136), (3, 7), (1, 1)])
def test_each_element_once(m: int, n: int) -> None:
    x = np.arange(m * n, dtype=np.float32).reshape(m, n)
    with cupyops.simulate(sanitize=True):
        for kernel, threads in (
            ADD_ONE.launch("float32", m, n),
            ADD_ONE.persistent("float32", m, n, host()),
            ADD_ONE.alone("float32", m, n),
        ):
            y = np.zeros_like(x)
            kernel(x, y, m, n, *threads[-2:])
            assert (y == x + 1).all()
