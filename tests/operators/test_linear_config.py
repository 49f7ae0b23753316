"""The configs of a linear layer's kernels: conditions that every entry of the table must meet."""

import itertools
from typing import Any

import pytest

from cupyops.ops.linear.config import APART, GELU_SUMS, MOST_ODD, MOST_ODD_K, narrow_config
from cupyops.ops.linear.products import LEAST_APART_K
from cupyops.tiling.columns import SUMS, columns_launch

SIZES = (1, 2, 7, 8, 48, 64, 100, 768, 1023, 3072, 4096, 65_536)
ROWS = (0, 1, 5, 64, 1000, 16_384, 1_000_003)


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize(("capability", "multiprocessors"), [(70, 80), (80, 108), (90, 4), (90, 132)])
def test_every_plan_covers_its_matrix(itemsize: int, gelu: bool, capability: int, multiprocessors: int) -> None:
    for m, n in itertools.product(ROWS, SIZES):
        works = GELU_SUMS if gelu else SUMS
        config, groups, tiles = columns_launch(m, n, itemsize, capability, multiprocessors, works)
        assert n % config.vector_width == 0
        assert config.vector_width * itemsize <= 16
        assert config.block % config.width == 0
        strips = -(-n // (config.width * config.vector_width))
        assert tiles == strips * groups
        assert config.cluster == 1 or (capability >= 90 and groups == 1)
        assert config.cluster in (1, 2, 4, 8)
        # Every group has a row; partial sums outgrow neither the matrix nor the launch that adds them up.
        assert groups == 1 or groups * config.block // config.width <= m + config.block // config.width
        rest = columns_launch(groups, n, max(itemsize, 4), capability, multiprocessors, one_group=True)
        assert rest.groups == 1
        shared = config.block * config.vector_width * max(itemsize, 4) + config.width * config.vector_width * max(
            itemsize, 4
        )
        assert shared <= 48 * 1024


def test_the_shapes_that_were_measured() -> None:
    ways = {
        (16_384, 3072, 2): (128, 8, 8),
        (16_384, 768, 2): (512, 8, 8),
        (8192, 8192, 2): (128, 16, 8),
        (4096, 4096, 2): (128, 8, 8),
        (16_384, 768, 4): (128, 8, 8),
        (4096, 4096, 4): (128, 16, 4),
    }
    for (m, n, itemsize), way in ways.items():
        config = columns_launch(m, n, itemsize, 90, 132).config
        assert (config.block, config.width, config.cluster) == way
    assert columns_launch(16_384, 3072, 2, 90, 132, GELU_SUMS).groups == 22


@pytest.mark.parametrize(
    ("few", "rows", "k", "itemsize", "capability"),
    [
        (0, 4096, 4096, 2, 90),
        (9, 4096, 4096, 4, 90),
        (17, 64, 64, 4, 90),
        (8, 4096, 4096, 2, 90),
        (1, 4096, 4097, 2, 90),
    ]
    + [(1, 4096, 4096, 8, 90), (1, 4096, 4096, 2, 80), (1, 4096, 4096, 4, 100)],
)
def test_what_is_left_to_the_library(few: int, rows: int, k: int, itemsize: int, capability: int) -> None:
    assert narrow_config(True, few, rows, k, itemsize, capability) is None


def test_few_rows_are_ours_on_the_gpu_that_was_measured() -> None:
    for few, itemsize in ((1, 2), (4, 2), (1, 4), (8, 4)):
        for rows in (4096, 16_384):
            config = narrow_config(False, few, rows, 4096, itemsize, 90)
            assert config is not None
            assert (config.few, config.vector_width) == (few, 16 // itemsize)


def test_few_rows_of_a_small_product_are_ours_as_far_as_was_measured() -> None:
    def way(few: int, n: int, itemsize: int, k: int | None = None) -> tuple[int, int] | None:
        config = narrow_config(True, few, n, k or n, itemsize, 90, small=True)
        return config and (config.rows_each, config.split)

    assert [way(few, 64, size) for few in (1, 16) for size in (2, 4)] == [(1, 1)] * 4
    assert [way(8, n, 4) for n in (256, 512, 1024)] == [(1, 1), (2, 4), (2, 4)]
    assert [way(16, n, 4) for n in (512, 1024)] == [(1, 1)] * 2
    assert [way(16, n, 2) for n in (512, 1024)] == [(1, 1), None]
    assert [way(4, 64, 4, k) for k in (1024, 2048)] == [(1, 1), None]
    assert [way(few, 64, size) for few, size in ((17, 4), (4, 8))] == [None] * 2


def test_small_products_of_odd_rows_are_ours_and_larger_ones_the_librarys() -> None:
    def vector_width(few: int, n: int, k: int, itemsize: int) -> int | None:
        config = narrow_config(True, few, n, k, itemsize, 90, small=True)
        return config and config.vector_width

    assert [vector_width(1, 1, 2, itemsize) for itemsize in (2, 4, 8)] == [2, 2, None]
    assert [vector_width(8, 9, k, 2) for k in (1, 6, 12)] == [1, 2, 4]
    assert [vector_width(few, 9, 6, 4) for few in (8, 9)] == [2, None]
    assert [vector_width(1, 2, k, 4) for k in (MOST_ODD_K - 1, MOST_ODD_K + 1, MOST_ODD_K + 4)] == [1, None, 4]
    assert [vector_width(1, n, 1, 4) for n in (MOST_ODD, MOST_ODD + 1)] == [1, None]
    assert narrow_config(False, 1, 4096, 2, 4, 90) is None


@pytest.mark.parametrize(
    ("tf32", "faster", "slower"),
    [
        (
            False,
            [
                (16, 4096, 4096),
                (256, 1024, 1024),
                (128, 1024, 8192),
                (32, 256, 4096),
                (128, 4096, 1024),
                (256, 4096, 8192),
            ],
            [
                (16, 256, 4096),
                (2048, 1024, 4096),
                (16, 1024, 1024),
                (1024, 1024, 1024),
                (8192, 8192, 8192),
                (512, 4096, 512),
            ],
        ),
        (
            True,
            [(8192, 4096, 4096), (8192, 8192, 8192), (128, 256, 4096), (64, 1024, 8192)],
            [
                (4096, 4096, 4096),
                (16384, 1024, 4096),
                (4096, 4096, 8192),
                (16, 4096, 4096),
                (64, 4096, 8192),
                (256, 1024, 1024),
            ],
        ),
    ],
)
def test_the_bias_is_apart_where_that_was_faster(tf32: bool, faster: list[Any], slower: list[Any]) -> None:
    for shapes, wanted in ((faster, True), (slower, False)):
        for m, n, k in shapes:
            assert (k >= LEAST_APART_K and any(line.takes(m * n, k) for line in APART[tf32])) is wanted, (m, n, k)
    assert min(line.least_k for lines in APART.values() for line in lines) >= LEAST_APART_K
