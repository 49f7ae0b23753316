"""How the rows of a program are distributed among threads, blocks and clusters."""

import pytest

from cupyops.dtypes import DTYPES
from cupyops.programs.row_config import Work, config_of
from cupyops.tiling.config import THREADS_AT_ONCE

WORKS = {
    "one array": lambda size: Work((size,)),
    "several": lambda size: Work((size, size, 4), (size,), kept=1),
    "sums": lambda size: Work((size, size), (4,), sums=2),
    "no reduction": lambda size: Work((size,), passes=1, reductions=0),
}
MANY = (
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    96,
    100,
    768,
    1000,
    1023,
    1152,
    4096,
    5000,
    8192,
    12345,
    16384,
    50257,
    65536,
    262144,
    10**6,
)


@pytest.mark.parametrize("capability", [75, 80, 89, 90, 120])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_config_covers_its_row_and_fits_the_registers(dtype: str, capability: int) -> None:
    for n in MANY:
        for work in (make(DTYPES[dtype].itemsize) for make in WORKS.values()):
            config = config_of(n, dtype, work, capability)
            held = config.row_threads * config.vector_width * config.vectors * config.cluster
            assert config.block <= 1024
            assert config.block % config.row_threads == 0
            assert config.row_threads % 32 == 0 or config.row_threads & (config.row_threads - 1) == 0
            assert config.cluster == 1 or (capability >= 90 and config.groups == 1 and config.row_threads % 32 == 0)
            assert n % config.vector_width == 0
            assert config.stream or held >= n
            assert not config.full or (n % held == 0 if config.stream else n == held)
            assert config.min_blocks >= 1
            assert config.min_blocks * config.block <= THREADS_AT_ONCE.get(capability, 2048)
            assert not config.stream or not (config.prefetch or config.columns_held)


def test_long_rows_are_in_clusters_where_a_gpu_has_them() -> None:
    one = Work((2,))
    ways = {
        n: (config_of(n, "bfloat16", one, 90).cluster, config_of(n, "bfloat16", one, 80).stream) for n in (8192, 131072)
    }
    assert ways == {8192: (1, False), 131072: (8, True)}


def test_a_row_of_a_warp_needs_no_barrier() -> None:
    """Up to the registers of 32 threads; a block has several of these rows."""
    for n in (96, 192, 768, 1024, 1600, 2048):
        config = config_of(n, "bfloat16", Work((2,)), 90)
        assert config.row_threads <= 32
        assert config.groups >= 4


def test_sums_over_rows_prefetch_the_next_row() -> None:
    config = config_of(4096, "bfloat16", Work((2, 2), (2,), sums=1), 90)
    assert config.prefetch
    assert config.columns_held
    assert not config_of(4096, "bfloat16", Work((2, 2), (2,)), 90).prefetch


def test_rows_in_clusters_prefetch_the_next_row() -> None:
    config = config_of(65536, "bfloat16", Work((2,)), 90)
    assert config.cluster > 1
    assert config.prefetch


def test_one_pass_holds_no_row_but_a_thread_has_many_accesses() -> None:
    for n in (768, 4096, 32768, 262144):
        config = config_of(n, "bfloat16", Work((2,), passes=1), 90)
        assert config.stream
        assert n / config.vector_width / config.row_threads / config.cluster >= 6


def test_sums_of_rows_that_no_cluster_holds_are_in_shared_memory() -> None:
    one, many = (config_of(262144, "float32", Work((4, 4), (4,), sums=sums), 90) for sums in (1, 3))
    assert one.stream
    assert one.shared == one.sums_shared * 4
    assert one.sums_shared * one.cluster >= 262144
    assert many.sums_shared == 0


def test_wide_columns_take_registers_where_they_are_held() -> None:
    narrow, wide = (config_of(4096, "bfloat16", Work((2, 2), (size,), sums=3), 90) for size in (2, 4))
    assert wide.vectors * wide.min_blocks <= narrow.vectors * narrow.min_blocks
