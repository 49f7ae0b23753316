"""Configs of rows: how rows are divided among threads, by tables and by the room of shared memory."""

import pytest

from cupyops.tiling.config import CLUSTERS_SINCE
from cupyops.tiling.rows import RowsChoice, RowsConfig, choice_of


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


def test_a_table_is_read_by_its_first_line_that_is_long_enough() -> None:
    table = (RowsChoice(8, 2, 128), RowsChoice(64, 4, rows_each=2), RowsChoice(512, 8, 1, 2, cluster=2, stages=1))
    assert [choice_of(table, accesses) for accesses in (1, 8, 9, 512, 513)] == [table[0], *table, None]
    config = RowsConfig.cut(4 * 500, 4, table[2])
    assert (config.vectors, config.min_blocks, config.cluster, config.stages) == (8, 2, 2, 1)


def test_stages_take_the_room_that_there_is() -> None:
    config = RowsConfig(256, 256, 4, 4, stages=3, min_blocks=2)  # slices of 4096
    assert config.since == CLUSTERS_SINCE
    assert RowsConfig(256, 256, 4, 4).since == 0
    staged = config.staged(4, 8, 90)
    assert staged is not None
    assert (staged.min_blocks, staged.stages, staged.shared) == (2, 3, 4096 * (3 * 4 + 8))
    wider = config.staged(8, 16, 90)
    assert wider is not None
    assert (wider.min_blocks, wider.stages, wider.shared) == (2, 1, 4096 * (8 + 16))
    less = config.staged(8, 8, 120)
    assert less is not None
    assert (less.min_blocks, less.stages) == (1, 1)
    assert config.staged(16, 16, 120) is None


def test_few_rows_are_cut_apart_and_a_cluster_is_folded_where_a_block_has_room() -> None:
    many = RowsConfig(256, 64, 4, 2, rows_each=2, min_blocks=3)
    few = many.one_a_block(aligned_apart=True)
    assert (few.block, few.row_threads, few.rows_each, few.min_blocks, few.aligned_apart) == (64, 64, 1, 1, True)
    cluster = RowsConfig(128, 128, 4, 2, cluster=8)
    folded = cluster.fold(2**15)
    assert (folded.block, folded.row_threads, folded.cluster, folded.folded) == (1024, 1024, 1, 8)
    assert cluster.fold(2**15 + 1) == cluster
    assert RowsConfig(256, 256, 4, 2, cluster=8).fold(2**10).cluster == 8, "more threads than a block has"
