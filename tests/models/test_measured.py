"""optimize(step=): of the kinds of change, those stay that save time in the model's own step."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from cupyops.torch import optimize
from cupyops.torch.models import measured
from cupyops.torch.models.classes import is_optimised

from .stand_ins import WIDTH, Attention, DiTBlock, GatedMlp, NoWeightLayerNorm

pytestmark = pytest.mark.usefixtures("one_thread")


class Block(nn.Module):
    """A linear layer, GELU, an addition and a norm; and a norm before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.RMSNorm(8), nn.LayerNorm(8)
        self.fc, self.act = nn.Linear(8, 8), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.fc(self.first(x)))
        return self.last(x + y)


class Head(nn.Module):
    """A language model's."""

    def __init__(self) -> None:
        super().__init__()
        self.lm_head = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.lm_head(x)
        return nn.functional.cross_entropy(logits.flatten(0, 1), torch.zeros(x[..., 0].numel(), dtype=torch.int64))


NEW_KINDS = {
    GatedMlp: "swiglu",
    Attention: "rotary_embedding",
    DiTBlock: "adaptive_layer_norm, add_adaptive_layer_norm",
    NoWeightLayerNorm: "layer_norm",
    Head: "linear_cross_entropy",
}
KINDS = {
    nn.RMSNorm: "rms_norm",
    nn.LayerNorm: "layer_norm",
    nn.GELU: "gelu",
    Block: "add_layer_norm, linear_gelu",
    **NEW_KINDS,
}


class Clock:
    """A clock that the steps of a model move: by its costs for each kind that the model has, and 10 ms.

    Attributes:
        steps: how many steps it has seen.
    """

    def __init__(self, costs: dict[str, float], noise: float = 0.0, drift: float = 0.0) -> None:
        self.costs, self.noise, self.drift, self.now, self.steps = costs, noise, drift, 0, 0

    def step(self, model: nn.Module) -> Callable[[], None]:
        def run() -> None:
            self.steps += 1
            has = {
                kind
                for m in model.modules()
                for cls, kind in KINDS.items()
                if isinstance(m, cls) and is_optimised(type(m))
            }
            wave = self.noise * ((self.steps * 7919) % 101 / 50 - 1) + self.drift * math.sin(self.steps / 160)
            self.now += round(1e6 * (10 + wave + sum(self.costs.get(kind, 0.0) for kind in has)))

        return run

    def perf_counter_ns(self) -> int:
        return self.now


def optimized(
    costs: dict[str, float], monkeypatch: pytest.MonkeyPatch, noise: float = 0.0, drift: float = 0.0
) -> tuple[nn.Module, Any]:
    model, clock = nn.Sequential(Block(), Block()), Clock(costs, noise, drift)
    monkeypatch.setattr(measured, "time", SimpleNamespace(perf_counter_ns=clock.perf_counter_ns))
    return model, optimize(model, step=clock.step(model))


def kept(model: nn.Module) -> set[str]:
    return {KINDS[type(m).__mro__[1]] for m in model.modules() if is_optimised(type(m))}


@pytest.mark.parametrize("slow", NEW_KINDS.values())
def test_every_kind_of_operator_is_undone_if_it_costs_time(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(GatedMlp(nn.SiLU()), Attention(), DiTBlock(), Head())
    clock = Clock({kind: 1.0 if kind == slow else -1.0 for kind in NEW_KINDS.values()})
    monkeypatch.setattr(measured, "time", SimpleNamespace(perf_counter_ns=clock.perf_counter_ns))
    report = optimize(model, lazy_logits=True, step=clock.step(model))
    assert {one.kind for one in report.measured} == {*NEW_KINDS.values(), measured.TOGETHER}
    assert kept(model) == {*NEW_KINDS.values()} - {slow}


def test_kinds_that_save_time_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"rms_norm": -1.0, "gelu": 0.5, "add_layer_norm, linear_gelu": -2.0, "layer_norm": 0.0}
    model, report = optimized(costs, monkeypatch)
    assert kept(model) == {"rms_norm", "add_layer_norm, linear_gelu"}
    assert {site.operator for site in report.replaced} == {"rms_norm", "add_layer_norm", "linear_gelu"}
    by_kind = {one.kind: one for one in report.measured}
    assert not by_kind["gelu"].kept
    assert by_kind["gelu"].after - by_kind["gelu"].before == pytest.approx(0.5)
    together = report.measured[-1]
    assert (together.kind, together.kept) == ("together", True)
    assert (together.before, together.after) == pytest.approx((10.0, 7.0))
    text = str(report)
    assert (
        "gelu: 9.000 ms without, 9.500 with" not in text
    )  # layer_norm or gelu goes first: the line has the rest in place
    assert "measured: gelu:" in text
    assert "a step:" in text


@pytest.mark.parametrize("costs", [{}, {"rms_norm": 0.3, "gelu": 0.1}], ids=["no difference", "slower"])
def test_what_saves_nothing_goes(costs: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    model, report = optimized(costs, monkeypatch)
    assert kept(model) == set()
    assert not report.replaced
    assert all(site.reason for site in report.skipped)
    report.undo()


def test_a_gain_below_the_noise_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept(optimized({"rms_norm": -0.02}, monkeypatch, noise=2.0)[0]) == set()
    assert kept(optimized({"rms_norm": -4.0}, monkeypatch, noise=2.0)[0]) == {"rms_norm"}


def test_a_machine_that_becomes_slower_and_faster_again_hides_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept(optimized({"rms_norm": -0.3}, monkeypatch, drift=3.0)[0]) == {"rms_norm"}
    assert kept(optimized({}, monkeypatch, drift=3.0)[0]) == set()


def test_undo_after_a_measured_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    model, report = optimized({"rms_norm": -1.0}, monkeypatch)
    assert kept(model) == {"rms_norm"}
    report.undo()
    assert kept(model) == set()


def test_steps_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "SECONDS_OF_A_PASS", 0.01)
    monkeypatch.setattr(measured, "SAMPLE_SECONDS", 0.001)
    model = nn.Sequential(Block(), nn.BatchNorm1d(8), nn.Dropout())
    parameter = next(model.parameters())
    gradient = parameter.grad = torch.ones_like(parameter)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8)
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)

    def step() -> None:
        model(x).square().sum().backward()
        optimizer.step()

    optimize(model, step=step)
    assert torch.equal(torch.rand(3), wanted)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert parameter.grad is gradient
    assert torch.equal(gradient, torch.ones_like(gradient))
    assert all(p.grad is None for p in model.parameters() if p is not parameter)


def test_an_error_of_a_step_undoes_all() -> None:
    model, calls = nn.Sequential(Block()), []

    def step() -> None:
        calls.append(None)
        if len(calls) > 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        optimize(model, step=step)
    assert kept(model) == set()


def test_a_model_without_a_change_runs_no_step() -> None:
    assert not optimize(nn.Linear(2, 2), step=lambda: pytest.fail("ran")).measured


def test_wrong_steps() -> None:
    model = nn.GELU()
    with pytest.raises(TypeError, match=r"optimize: `step` must be a function without arguments, got int"):
        optimize(model, step=3)  # type: ignore[arg-type]
    assert not is_optimised(type(model))
