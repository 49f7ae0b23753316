"""Holds what cupyops.explain counts to what Nsight Compute counted on a GPU, which explained.json records."""

import json
from pathlib import Path

import pytest

from cupyops.simulator import Simulator

from . import explained

RECORD = json.loads(Path(__file__).with_name("explained.json").read_text(encoding="utf-8"))


def test_the_record_has_enough_kernels_with_the_counts_of_the_gpu() -> None:
    assert len(explained.equal_kernels(RECORD)) >= explained.LEAST


def test_a_kernel_with_another_count_in_one_call_is_not_equal() -> None:
    name = next(iter(explained.equal_kernels(RECORD)))
    call = next(c for c in RECORD if c.endswith(f": {name}"))
    both = dict(RECORD[call]) | {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st": [1, 0]}
    assert name not in explained.equal_kernels({**RECORD, call: both})


@pytest.mark.thorough
@pytest.mark.simulator
def test_the_simulator_counts_what_it_counted_for_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulator, "multiprocessors", Simulator.multiprocessors)
    for name, launches in explained.counted(["gelu", "add2, broadcast", "add2, bfloat16"]).items():
        # The forward of few rows was another kernel when the record was made.
        compared = [one for one in launches if f"{name}: {one['kernel']}" in RECORD]
        assert compared
        for one in compared:
            recorded = RECORD[f"{name}: {one['kernel']}"]
            assert one["counters"] == {metric: recorded[metric][0] for metric in one["counters"]}
