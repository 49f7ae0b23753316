"""Our modules issue the same collectives as those of nn, for 64 and 1024 ranks, counted in one process."""

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autograd_bridge import AddLayerNorm
from benchmarks.scale.collectives import Layout, Traffic, counted, layouts, table, transfer
from benchmarks.scale.models import characters
from cupyops.torch import Operator

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]

LAYERS = 2
SMALL = characters(LAYERS, 8, 64, 64, 2, name="small")


@pytest.mark.thorough
def test_shards_of_parameters_are_gathered_twice_and_their_gradients_scattered_once() -> None:
    """A block is gathered in the forward and in the backward, and the rest of the model once; no rank sends more."""
    for ranks in (64, 1024):
        found = counted(SMALL, "cupyops", Layout("fsdp", ranks))
        kinds = {kind: sum(n for t, n in found.items() if t.kind == kind) for kind in ("all-gather", "reduce-scatter")}
        assert kinds == {"all-gather": 2 * LAYERS + 1, "reduce-scatter": LAYERS + 1}
        assert {t.ranks for t in found} == {ranks}
        assert sum(found.values()) == sum(kinds.values())


@pytest.mark.thorough
def test_an_all_reduce_of_ddp_has_every_gradient_once() -> None:
    found = counted(SMALL, "cupyops", Layout("ddp", 1024))
    parameters = sum(p.numel() for p in SMALL.build("cupyops").parameters())
    assert sum(t.size * n for t, n in found.items()) == 4 * parameters
    assert {(t.kind, t.ranks) for t in found} == {("all-reduce", 1024)}
    assert transfer(found) == pytest.approx(2 * 4 * parameters * 1023 / 1024, abs=2)


@pytest.mark.thorough
@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [64, 1024])
def test_our_modules_issue_the_collectives_of_nns(ranks: int) -> None:
    for layout in layouts(ranks):
        ours, theirs = (counted(SMALL, variant, layout) for variant in ("cupyops", "torch"))
        assert ours == theirs, layout
        sizes = {(layout.data, False), (layout.tensor, True)}
        assert {(t.ranks, t.inside) for t in ours} == {(n, inside) for n, inside in sizes if n > 1}


def twice(x: Tensor) -> Tensor:
    return x * 2


def whole(x: Tensor) -> list[Any]:
    """The fault: a rule without a split, so that DTensor gathers what is sharded."""
    return []


without_rule = Operator("test_collectives::twice(Tensor x) -> Tensor y", twice, reference=twice, sharding=whole)
with_rule = Operator("test_collectives::doubled(Tensor x) -> Tensor y", twice, reference=twice, elementwise=True)


def exchanged(operator: Any) -> Any:
    """Makes the first residual addition of a model call the operator."""

    class Exchanged(AddLayerNorm):
        def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return super().forward(x, operator(residual) - residual)

    def change(model: Any) -> None:
        model.blocks[0].norm1.__class__ = Exchanged

    return change


@pytest.mark.thorough
def test_a_module_whose_operator_has_no_rule_asks_for_more() -> None:
    layout = Layout("fsdp", 8, 8)
    right = counted(SMALL, "cupyops", layout)
    assert counted(SMALL, "cupyops", layout, exchanged(with_rule)) == right
    more = counted(SMALL, "cupyops", layout, exchanged(without_rule)) - right
    assert sum(more.values()) >= 1
    assert {(t.kind, t.ranks) for t in more} == {("all-gather", 8)}


def test_a_collective_that_has_no_name_here_is_an_error() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        found = SMALL.loss(model, batch)
        torch.distributed.gather(found.detach(), [found.detach()] * torch.distributed.get_world_size())
        return found

    with pytest.raises(NotImplementedError, match="c10d::gather_ is counted nowhere; add it to KINDS"):
        counted(dataclasses.replace(SMALL, loss=loss), "torch", Layout("ddp", 64))


def test_ring_algorithms_send_all_but_a_share() -> None:
    assert transfer(Counter({Traffic("all-reduce", 4, 800): 2, Traffic("all-gather", 2, 100): 1})) == 2 * 1200 + 50


def test_the_table_parts_what_leaves_a_machine() -> None:
    rows = [line.split(" | ") for line in table(SMALL, (64,)).splitlines()]
    assert len(rows) == 2 + 3 * 2
    assert all(row[0].startswith("| 64") for row in rows[2:])
    assert "all-reduce" in rows[2][3]
    assert rows[2][4:] == ["0.00 GB", "0.00 GB |"]
