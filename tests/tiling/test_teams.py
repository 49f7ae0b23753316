"""Distributing rows to teams of blocks: every row has a team, and all teams run at once."""

from dataclasses import dataclass

import pytest
import torch

from cupyops.arrays import LIBRARIES, host
from cupyops.errors import LaunchError
from cupyops.tiling.teams import TeamConfig

TEXT = """
#include "team.cuh"
extern "C" __global__ void IN_CLUSTERS count(scalar_t* x, int* counters, long long tiles, long long teams, long long blocks) {
    for (long long tile = blockIdx.x / BLOCKS; tile < tiles; tile += teams) x[tile] = WIDTH * ROWS * GROUPS;
}
"""


@dataclass(frozen=True)
class Cut(TeamConfig):
    width: int

    @property
    def block(self) -> int:
        return 64

    @property
    def most_rows(self) -> int:
        return 8


def test_the_kernel_of_each_kind_of_team() -> None:
    block, cluster, grid = (
        config.kernel(TEXT, "count", {"scalar_t": "float32"})
        for config in (Cut(3, rows=2), Cut(3, cluster=4), Cut(3, team=16, groups=2))
    )
    assert block.constants == {"BLOCK_THREADS": 64, "WIDTH": 3, "ROWS": 2, "GROUPS": 1}
    assert cluster.constants == {"BLOCK_THREADS": 64, "CLUSTER": 4, "WIDTH": 3, "ROWS": 1, "GROUPS": 1}
    assert grid.constants == {"BLOCK_THREADS": 64, "TEAM": 16, "WIDTH": 3, "ROWS": 1, "GROUPS": 2}
    assert [k.geometry.sizes for k in (block, cluster, grid)] == [("teams",), ("teams",), ("blocks",)]
    assert [k.hardware.cooperative for k in (block, cluster, grid)] == [False, False, True]
    assert [k.hardware.since for k in (block, cluster, grid)] == [0, 90, 0]


def test_as_many_rows_as_let_all_teams_run_at_once() -> None:
    config = Cut(3, cluster=2)
    assert [config.for_rows(count, 132).rows for count in (1, 66, 67, 132, 133, 10_000)] == [1, 1, 2, 2, 4, 8]
    assert Cut(3, team=200).for_rows(3, 132).rows == 4, "there is taken to be room for one"


@pytest.mark.parametrize(
    ("config", "count", "counts", "turns"),
    [
        (Cut(3, rows=2, groups=2), 9, (3, 3, 3), 1),
        (Cut(3, cluster=4, rows=2), 9, (5, 5, 20), 1),
        (Cut(3, team=16, rows=2), 9, (5, 5, 80), 1),
        (Cut(3, team=16, rows=2), 100, (50, 8, 128), 7),
    ],
    ids=str,
)
def test_a_launch(config: Cut, count: int, counts: tuple[int, int, int], turns: int) -> None:
    launch = config.launch(config.kernel(TEXT, "count", {"scalar_t": "float32"}), count, 132)
    assert launch.counts == counts
    assert launch.parts == counts[0] * config.rows
    assert config.turns(count, 132) == turns
    counters = launch.counters(LIBRARIES[torch.Tensor], torch.ones(1))
    if config.team == 1:
        assert counters is None
    else:
        assert (counters.dtype, counters.shape) == (torch.int32, (counts[0],))
        assert not counters.any()


def test_a_launch_that_fits_and_ones_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator has room for four blocks, or four clusters."""

    def fitted(config: Cut, count: int) -> tuple[int, int, int] | None:
        launch = config.fitted(lambda cut: cut.kernel(TEXT, "count", {"scalar_t": "float32"}), "float32", count, host())
        return launch and launch.counts

    assert fitted(Cut(3, team=2), 16) == (2, 2, 4)
    assert fitted(Cut(3, team=2), 17) is None, "it would take two turns"
    assert fitted(Cut(3, team=5), 1) is None, "it has no room for one team"
    assert fitted(Cut(3, cluster=2), 100) == (13, 13, 26)
    monkeypatch.setattr(Cut, "most_turns", 2)
    assert fitted(Cut(3, team=2), 17) == (3, 2, 4)

    def refused(*_: object) -> int:
        raise LaunchError("no cluster fits")

    monkeypatch.setattr("cupyops.launch.kernel.Kernel.resident_blocks", refused)
    assert fitted(Cut(3, cluster=2), 100) is None
