"""Configs of rows: how rows are divided among threads."""

import pytest

from cupyops.tiling.config import CLUSTERS_SINCE
from cupyops.tiling.rows import RowsConfig


@pytest.mark.parametrize(
    ("n", "vector_width", "vectors", "cluster"), [(60, 4, 2, 1), (4096, 8, 2, 1), (65536, 4, 8, 8), (77, 1, 3, 1)]
)
def test_rows_are_cut_into_accesses(n: int, vector_width: int, vectors: int, cluster: int) -> None:
    config = RowsConfig.of(n, vector_width, vectors, block=128, cluster=cluster)
    assert config.slice * cluster >= n
    assert config.full == (config.slice * cluster == n)
    assert config.block % config.row_threads == 0
    assert config.block <= max(128, config.row_threads)
    assert config.groups == config.block // config.row_threads
    assert config.rows("M").cluster == config.persistent("blocks").cluster == cluster
    assert not {"BLOCK", "CLUSTER", "SHARED"} & set(config.constants)


def test_few_rows_have_a_block_each() -> None:
    few = RowsConfig(256, 64, 4, 2, rows_each=2, min_blocks=3).one_a_block(full=True)
    assert (few.block, few.row_threads, few.rows_each, few.min_blocks, few.full) == (64, 64, 1, 1, True)


def test_stages_need_bulk_copies() -> None:
    assert RowsConfig(256, 256, 4, 4, stages=3).since == CLUSTERS_SINCE
    assert RowsConfig(256, 256, 4, 4).since == 0
