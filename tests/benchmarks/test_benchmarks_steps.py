"""How the steps of a model's variants are timed: turns, their order, and the figures of a row."""

import gc
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise, permutations
from typing import Any

import pytest
import torch

from benchmarks.models import steps
from benchmarks.models.steps import Steps, Timing, measure, order, prepared, rows, timed, variants_of
from tests.benchmarks.tiny_zoo import TINY

CPU = torch.device("cpu")


@pytest.mark.parametrize("mode", ["eager", "autocast"])
def test_every_variant_takes_every_step(mode: str) -> None:
    variants = variants_of(mode)
    found = measure(TINY, 4, mode, variants, CPU, rounds=3, warm_up=1)
    assert list(found) == variants == ["torch", "again", "optimize"]
    for timing in found.values():
        assert len(timing.wall) == len(timing.host) == 3
        row = timing.row()
        assert row["samples"] == 3
        assert 0 < row["least"] <= row["wall"] <= row["p90"]
        assert 0 < row["host"] <= row["p90"]
        assert row["gpu"] is row["requested_mib"] is row["peak_mib"] is None


class Counted(Steps):
    """Records whose step it is. The step makes enough objects for Python's collector to run."""

    def __init__(self, variant: str, record: Callable[[str], None], first: float = 0.0) -> None:
        self.variant, self.mode, self.device, self.taken = variant, "eager", CPU, 0
        self.record, self.first = record, first

    def step(self) -> torch.Tensor:
        self.record(self.variant)
        self.taken += 1
        many = [[i] for i in range(5000)]
        time.sleep(self.first if self.taken % 2 else 0.0)
        return torch.zeros(len(many))


@pytest.mark.thorough
def test_turns_are_balanced_and_nothing_is_collected_inside_a_turn() -> None:
    """If a variant always followed the same one, it would always meet that variant's caches, or pay for its garbage
    collection."""
    taken: list[str] = []
    kept: list[int] = []
    collected: list[int] = []

    def record(variant: str) -> None:
        taken.append(variant)
        kept.append(gc.get_freeze_count())

    def collecting(phase: str, info: Any) -> None:
        if phase == "start":
            collected.append(len(taken))

    gc.unfreeze()  # what PyTorch has frozen
    thresholds = gc.get_threshold()
    gc.set_threshold(700)
    gc.callbacks.append(collecting)
    try:
        timed({v: Counted(v, record) for v in ("torch", "fusions", "optimize")}, 4, warm_up=1)
    finally:
        gc.callbacks.remove(collecting)
        gc.set_threshold(*thresholds)
    assert taken[:3] == ["torch", "fusions", "optimize"]
    turns = [["torch", "fusions", "optimize"], ["optimize", "fusions", "torch"]]
    turns += [["fusions", "optimize", "torch"], ["torch", "optimize", "fusions"]]
    assert taken[3:] == [v for names in turns for v in names for _ in range(2)]
    assert {c for c in collected if c >= 3} == set(range(3, len(taken), 2))
    assert min(kept[3:]) > 1000
    assert gc.get_freeze_count() == 0
    assert gc.isenabled()


def test_the_first_step_of_a_turn_is_not_timed() -> None:
    """The first step after another variant meets that variant's host caches, unlike any step of a training loop."""
    found = timed({"torch": Counted("torch", lambda variant: None, first=0.25)}, 3, warm_up=0)["torch"]
    assert len(found.wall) == 3
    assert found.row()["p90"] < 250


@pytest.mark.parametrize("mode", ["compile", "graphs"])
def test_a_second_copy_of_a_model_has_a_graph_of_its_own(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo gives two copies one graph if they are compiled in the same way, and records the CUDA graphs of both in it."""
    asked: dict[str, dict[str, Any]] = {}
    for v in ("torch", "again", "optimize"):
        monkeypatch.setattr(torch, "compile", lambda model, _v=v, **how: asked.setdefault(_v, how))
        Steps(TINY.build(), TINY.loss, [], CPU, mode, v)
    monkeypatch.undo()
    made = {v: torch._TorchCompileInductorWrapper(h.get("mode"), h.get("options"), None) for v, h in asked.items()}  # type: ignore[attr-defined]
    assert made["torch"] == made["optimize"] != made["again"]
    patched = {v: wrapper.get_compiler_config() for v, wrapper in made.items()}
    assert patched["torch"] == patched["again"], "the second copy is compiled as the first"


def test_dynamo_compiles_a_variant_as_in_a_program_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo makes a size a symbol that differs from the size in an earlier call of the same code."""
    symbols: list[bool] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        symbols.append(any(isinstance(x, (int, torch.SymInt)) for x in inputs))
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(lambda x: x + 1, backend=backend)

    class Sized(Steps):
        def __init__(self, model: Any, loss: Any, inputs: Any, device: Any, mode: str, variant: str) -> None:
            self.variant, self.mode, self.device = variant, mode, device

        def step(self) -> torch.Tensor:
            found: torch.Tensor = compiled(torch.ones(len(self.variant)))
            return found

    monkeypatch.setattr(steps, "Steps", Sized)
    prepared(TINY, 4, "eager", ("torch", "optimize"), CPU)
    assert symbols == [False, False]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_each_variant_follows_each_other_equally_often(count: int) -> None:
    """With one cyclic order, PyTorch's model would always stand between the same two others."""
    names = list("abcde"[:count])
    rounds = [order(names, number) for number in range(2 * count)]
    assert all(sorted(turns) == sorted(names) for turns in rounds)
    for place in zip(*rounds, strict=True):
        assert {place.count(name) for name in names} == {2}
    followed = Counter(pair for turns in rounds for pair in pairwise(turns))
    assert set(followed) == set(permutations(names, 2))
    assert set(followed.values()) == {2}


def _timing(*turns: float) -> Timing:
    return Timing(list(turns), list(turns))


def test_a_speedup_is_the_median_of_the_rounds_and_not_of_the_times() -> None:
    """The machine is half as fast in every other round, and a step is late in three rounds."""
    slow = [1.0 + i % 2 for i in range(21)]
    again = _timing(*(x / 1.25 for x in slow[:18]), 9.0, 9.0, 9.0)
    found = rows({"torch": _timing(*slow), "again": again})
    assert found["again"]["speedup"] == found["again"]["speedup_low"] == found["again"]["speedup_high"] == 1.25
    assert found["again"]["samples"] == 21
    assert "speedup" not in found["torch"]
    assert "speedup" not in rows({"again": again})["again"]


@pytest.mark.parametrize(("count", "low"), [(1, 0), (5, 0), (6, 0), (14, 2), (60, 21)])
def test_the_limits_of_a_median_are_those_of_a_table(count: int, low: int) -> None:
    """Of 14 numbers the third and the twelfth, of 60 the 22nd and the 39th (tables of the sign test)."""
    walls = [float(i) for i in range(1, count + 1)]
    found = rows({"torch": _timing(*walls), "optimize": _timing(*[1.0] * count)})["optimize"]
    assert (found["speedup_low"], found["speedup_high"]) == (walls[low], walls[count - 1 - low])
