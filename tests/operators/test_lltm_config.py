"""The configs of the LLTM's sequences: within a GPU's limits, and equal for a row in every batch."""

from dataclasses import replace

import pytest

from cupyops.ops.lltm.config import SequenceConfig, TensorCoresConfig, sequence_config

STATES = [*range(1, 300), *range(300, 1100, 7), 512, 768, 1024, 4096]
EACH_WAY = pytest.mark.parametrize("forward", [True, False])
GENERATIONS = pytest.mark.parametrize("capability", [70, 80, 90, 100])


@EACH_WAY
@GENERATIONS
def test_a_plan_holds_every_unit_and_weight_once(forward: bool, capability: int) -> None:
    for state in STATES:
        config = sequence_config(state, forward, capability)
        assert not isinstance(config, TensorCoresConfig), "float32 has no tensor cores of its own"
        if config is None:
            assert state > (128 if capability >= 90 else 64)
            continue
        blocks = config.cluster * config.team
        assert config.backward is not forward
        assert config.units * blocks >= state
        assert config.units * (blocks - 1) < state, "a block without a unit"
        assert config.steps * 4 * config.parts >= state
        assert 32 % config.parts == 0, "a unit's lanes are in one warp"
        assert config.units % 2 == 0, "what a block sends goes by two"
        assert config.rows & (config.rows - 1) == 0
        assert config.rows <= config.parts
        assert config.team == 1 or state % 4 == 0, "four elements are read at once"


@EACH_WAY
@GENERATIONS
def test_a_plan_fits_a_multiprocessor(forward: bool, capability: int) -> None:
    for state in STATES:
        config = sequence_config(state, forward, capability)
        if config is None:
            continue
        assert isinstance(config, SequenceConfig)
        for rows in (1, config.most_rows):
            config = replace(config, rows=rows)
            assert config.block <= 512
            registers = min(255, 65536 // config.block // 8 * 8)
            assert config.weights + 40 <= registers
            assert config.shared <= (96 if capability < 80 else 160) * 1024
            assert config.cluster <= 8
            assert config.cluster == 1 or capability >= 90


@EACH_WAY
def test_every_kind_is_used(forward: bool) -> None:
    kinds = {state: sequence_config(state, forward, 90) for state in (16, 64, 66, 128, 256, 512, 1024, 1028)}
    found = {state: None if p is None else (p.cluster > 1, p.team > 1) for state, p in kinds.items()}
    block, cluster, grid = (False, False), (True, False), (False, True)
    assert found == {16: block, 64: block, 66: cluster, 128: cluster, 256: cluster, 512: grid, 1024: grid, 1028: None}
    earlier = sequence_config(256, forward, 80)
    assert earlier is not None
    assert earlier.team == 16


@EACH_WAY
def test_the_number_of_rows_changes_what_a_team_takes_and_nothing_else(forward: bool) -> None:
    """Who owns what decides a row's bits."""
    for state in (32, 128, 256, 512, 1024):
        config = sequence_config(state, forward, 90)
        assert config is not None
        for batch in (1, 16, 64, 1000, 100_000):
            chosen = config.for_rows(batch, 132)
            assert replace(chosen, rows=1) == config
            teams = 132 // (config.cluster * config.team)
            assert chosen.rows == 1 or -(-batch // (chosen.rows // 2)) > teams
            assert chosen.rows == config.most_rows or -(-batch // chosen.rows) <= teams


@EACH_WAY
@GENERATIONS
def test_rows_of_16_bits_that_a_team_all_over_the_gpu_has_go_on_tensor_cores(forward: bool, capability: int) -> None:
    for state in STATES:
        wide, half = (sequence_config(state, forward, capability, itemsize) for itemsize in (4, 2))
        if wide is None or wide.team == 1 or state % 32 or capability < 80:
            assert half == wide
            continue
        assert half == TensorCoresConfig(state, not forward, team=state // 16)
        assert half.since == 80
        assert half.block == 16 * half.rows, "a thread a unit and row"


@EACH_WAY
def test_groups_of_rows_on_tensor_cores(forward: bool) -> None:
    config = TensorCoresConfig(1024, not forward, team=64)
    chosen = [config.for_rows(batch, 132) for batch in (1, 16, 32, 33, 64, 65, 128, 129, 5000)]
    assert [c.groups for c in chosen] == [1, 1, 1, 2, 2, 4, 4, 4, 4]
    assert all(replace(c, groups=1) == config for c in chosen)
    assert [c.turns(b, 132) for c, b in zip(chosen, (1, 16, 32, 33, 64, 65, 128, 129, 5000), strict=True)] == [
        *(1, 1, 1, 1, 1, 1, 1, 2, 40)
    ]
    # Sums by warp and gate of 16 rows of 16 units, in lines of 20; a second table only for a second group.
    one = 8 * (3 if forward else 1) * 16 * 20 * 4
    assert [c.shared for c in (chosen[0], chosen[3], chosen[5])] == [one, 2 * one, 2 * one]


def test_turns_of_teams_all_over_the_gpu() -> None:
    config = SequenceConfig(512, 16, 16, team=32, rows=4)
    assert [config.turns(batch, 132) for batch in (1, 16, 17, 64, 65)] == [1, 1, 2, 4, 5]
    assert config.turns(8, 32) == 2
    # The sizes of the benchmark that are to go in one launch.
    for state, batch in ((512, 16), (768, 16), (1024, 16)):
        for forward in (True, False):
            chosen = sequence_config(state, forward, 90)
            assert chosen is not None
            assert chosen.for_rows(batch, 132).turns(batch, 132) <= chosen.most_turns


def test_bytes_of_shared_memory() -> None:
    # Two buffers of 2 rows of 24 units, padded to 32; the gates of the backward beside each other.
    config = SequenceConfig(24, 6, 8, cluster=4, rows=2)
    assert config.steps == 1
    assert config.shared == 2 * 2 * 32 * 4
    assert replace(config, backward=True).shared == 3 * config.shared
    assert SequenceConfig(24, 12, 4, team=2, rows=2).shared == 2 * 32 * 4
