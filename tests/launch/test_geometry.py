"""The number of blocks of each policy: enough for every element, none without elements, never more than the hardware
allows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cupyops import Elementwise, GridStride, Rows, Threads
from cupyops.launch.geometry import Geometry, Target

FLOAT32 = Target(itemsize=4, multiprocessors=132)
BEYOND_32_BITS = (2**31 - 1, 2**31, 2**31 + 1, 2**32 + 7, 3 * 2**35 + 1)
COUNTS = (0, 1, 2, 255, 256, 257, 511, 512, 513, 12345, *BEYOND_32_BITS)


def blocks(geometry: Geometry, *sizes: int, target: Target = FLOAT32) -> tuple[int, int, int]:
    return geometry.grid_for(target)(*sizes)


@pytest.mark.sample(60)
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize(("block", "vectors"), [(128, 1), (256, 4), (32, 3)])
def test_elementwise_has_just_enough_tiles(n: int, itemsize: int, block: int, vectors: int) -> None:
    tile = block * vectors * 16 // itemsize
    grid = blocks(Elementwise("n", block, vectors), n, target=Target(itemsize, 1))
    assert grid[1:] == (1, 1)
    assert (grid[0] - 1) * tile < n <= grid[0] * tile or n == grid[0] == 0


def test_elementwise_tells_the_text_its_tile() -> None:
    policy = Elementwise("n", block=64, vectors=2)
    assert policy.constants == {"BLOCK_THREADS": 64, "VECTORS": 2}
    assert (policy.threads, policy.sizes, policy.any_layout) == ((64, 1, 1), ("n",), True)


@pytest.mark.parametrize("rows", [0, 1, 3, 65536, 2**31 - 1])
def test_rows_has_one_block_a_row(rows: int) -> None:
    assert blocks(Rows("M"), rows) == (rows, 1, 1)
    assert Rows("M", block=512).constants == {"BLOCK_THREADS": 512}
    assert (Rows("M", block=512).threads, Rows("M").sizes, Rows("M").any_layout) == ((512, 1, 1), ("M",), False)


@pytest.mark.parametrize("n", COUNTS)
def test_grid_stride_has_no_more_blocks_than_run_at_once(n: int) -> None:
    policy = GridStride("n", block=256, blocks_per_multiprocessor=8)
    assert blocks(policy, n) == (min(-(-n // 256), 132 * 8), 1, 1)
    assert blocks(policy, n, target=Target(8, 1)) == (min(-(-n // 256), 8), 1, 1)
    assert (policy.constants, policy.threads, policy.any_layout) == ({"BLOCK_THREADS": 256}, (256, 1, 1), False)


@pytest.mark.parametrize("n", COUNTS)
def test_threads_in_one_dimension(n: int) -> None:
    grid = blocks(Threads("n"), n)
    assert grid[1:] == (1, 1)
    assert (grid[0] - 1) * 256 < n <= grid[0] * 256 or n == grid[0] == 0


def test_threads_in_three_dimensions() -> None:
    policy = Threads("N", "M", "B", block=(32, 4, 2))
    assert (policy.sizes, policy.threads, policy.constants) == (("N", "M", "B"), (32, 4, 2), {})
    assert blocks(policy, 33, 4, 1) == (2, 1, 1)
    assert blocks(policy, 32, 5, 3) == (1, 2, 2)
    assert blocks(policy, 2**35, 1, 1) == (2**30, 1, 1)
    assert blocks(Threads("N", "M", block=(32, 8, 1)), 100, 17) == (4, 3, 1)


@pytest.mark.parametrize("sizes", [(0, 5, 5), (5, 0, 5), (5, 5, 0), (0, 70_000 * 8, 5), (0, 0, 10**9)])
def test_threads_without_work_plan_nothing(sizes: tuple[int, int, int]) -> None:
    assert 0 in blocks(Threads("x", "y", "z", block=(8, 8, 1)), *sizes)


def test_a_square_is_counted_by_one_size() -> None:
    policy = Threads("n", "n", block=(32, 8, 1))
    assert policy.sizes == ("n",)
    assert blocks(policy, 64) == (2, 8, 1)


@pytest.mark.parametrize(("y", "z"), [(65535 * 8, 1), (8, 65535)])
def test_threads_up_to_the_limit(y: int, z: int) -> None:
    assert blocks(Threads("x", "y", "z", block=(32, 8, 1)), 1, y, z) == (1, -(-y // 8), z)


@pytest.mark.parametrize(("y", "z", "grid"), [(65535 * 8 + 1, 1, "1 x 65536 x 1"), (8, 65536, "1 x 1 x 65536")])
def test_threads_beyond_the_limit_are_refused(y: int, z: int, grid: str) -> None:
    with pytest.raises(
        ValueError, match=rf"a grid of {grid} blocks: CUDA has at most 65535 .* larger blocks than \(32, 8, 1\)"
    ):
        blocks(Threads("x", "y", "z", block=(32, 8, 1)), 1, y, z)


@pytest.mark.parametrize("block", [(), (32, 8, 1, 1)])
def test_a_block_has_three_dimensions_at_most(block: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"Threads: `block` must be threads in x, y, z, such as \(32, 8, 1\), got"):
        Threads("n", block=block)


@pytest.mark.parametrize(
    ("block", "threads"),
    [
        (128, (128, 1, 1)),
        ((128,), (128, 1, 1)),
        ((32, 8), (32, 8, 1)),
        (np.int64(64), (64, 1, 1)),
        ([8, 4, 2], (8, 4, 2)),
    ],
)
def test_what_a_block_leaves_out_is_one(block: Any, threads: tuple[int, ...]) -> None:
    policy = Threads("n", block=block)
    assert policy == Threads("n", block=threads)
    assert (policy.block, policy.threads, hash(policy)) == (threads, threads, hash(Threads("n", block=threads)))
    assert all(type(n) is int for n in policy.threads)
    assert blocks(policy, 1000) == (-(-1000 // threads[0]), 1, 1)


NUMBERS: list[tuple[Callable[[Any], Geometry], str]] = [
    (lambda n: Threads("n", block=n), "Threads: `block`"),
    (lambda n: Threads("n", block=(32, n)), "Threads: `block`"),
    (lambda n: Rows("M", n), "Rows: `block`"),
    (lambda n: Rows("M", each=n), "Rows: `each`"),
    (lambda n: Rows("M", blocks_per_row=n), "Rows: `blocks_per_row`"),
    (lambda n: GridStride("n", n), "GridStride: `block`"),
    (lambda n: GridStride("n", blocks_per_multiprocessor=n), "GridStride: `blocks_per_multiprocessor`"),
    (lambda n: Elementwise("n", n), "Elementwise: `block`"),
    (lambda n: Elementwise("n", vectors=n), "Elementwise: `vectors`"),
]


@pytest.mark.parametrize(("policy", "words"), NUMBERS)
def test_numbers_of_a_policy_are_integers_of_at_least_one(policy: Callable[[Any], Geometry], words: str) -> None:
    for value in (0, -1, np.int32(0)):
        with pytest.raises(ValueError, match=f"^{words} must be at least 1, got {int(value)}$"):
            policy(value)
    for value in (1.0, True, np.True_, "128", None, np.float32(2)):
        with pytest.raises(TypeError, match=f"^{words} must be an integer, got .+$"):
            policy(value)
    assert policy(np.int64(2)) == policy(2)


def test_z_without_y_is_refused() -> None:
    with pytest.raises(ValueError, match="Threads: z='B' needs a y before it"):
        Threads("n", None, "B")


@pytest.mark.parametrize(
    ("policy", "sizes"),
    [
        (Elementwise("n"), (1000,)),
        (Rows("M"), (7,)),
        (GridStride("n"), (10**6,)),
        (Threads("N", "M", block=(32, 8, 1)), (33, 9)),
    ],
)
def test_the_expressions_are_what_the_planner_plans(policy: Geometry, sizes: tuple[int, ...]) -> None:
    """The generated launch evaluates them itself."""
    scope = dict(zip(policy.sizes, sizes, strict=True), unit=policy.unit(FLOAT32))
    assert tuple(eval(b, scope) for b in policy.blocks) == blocks(policy, *sizes)
