"""examples/add_model.py: the 20 lines, the decay that only a right gradient gives, and the command line."""

import math
import re

import pytest
import torch
from torch import Tensor

from cupyops import simulate
from examples import add_model
from examples.add_model import EXPECTED_DECAY, AddModel, main, measured_decay, train

# fmt: off
PUBLISHED = [
    1996.658, 727.122, 264.796, 96.431, 35.117, 12.789, 4.657, 1.696, 0.618, 0.225,
    0.082, 0.030, 0.011, 0.004, 0.001, 0.001, 0.000, 0.000, 0.000, 0.000,
]
# fmt: on


@pytest.fixture(autouse=True)
def _cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


class HalfGradientAdd(torch.autograd.Function):
    """An addition with the fault that the example is there to show: a gradient off by a factor."""

    @staticmethod
    def forward(ctx: object, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    @staticmethod
    def backward(ctx: object, grad_out: Tensor) -> tuple[Tensor, Tensor]:
        return grad_out / 2, grad_out


def model(n: int = 1024, seed: int = 0) -> AddModel:
    return AddModel(n, generator=torch.Generator().manual_seed(seed))


def test_log_is_the_published_one_to_all_decimals() -> None:
    trained = model()
    with torch.no_grad():  # the published run's draw is unknown, its first loss is not
        scale = math.sqrt(1996.658 / trained().sum().item())
        trained.a.mul_(scale)
        trained.b.mul_(scale)
    lines: list[str] = []
    train(trained, lines.append)
    assert lines == [
        f"epoch {epoch:3d}: loss = {loss:8.3f}" for epoch, loss in zip(range(0, 500, 25), PUBLISHED, strict=True)
    ]


@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_main_prints_twenty_lines_and_the_decay(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backend", backend, "--device", "cpu"]) == 0
    output = capsys.readouterr().out
    assert len(re.findall(r"^epoch [ \d]{3}: loss = [ \d]{4}\.\d{3}$", output, re.M)) == 20
    assert re.search(r"measured decay per 25 epochs: 0\.36417\d; 0\.98\^50 = 0\.364170", output)


@pytest.mark.simulator
def test_a_run_on_a_cpu_says_what_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*options: str) -> list[str]:
        assert main(["--device", "cpu", *options]) == 0
        return capsys.readouterr().out.splitlines()[1:3]

    backend = "backend: PyTorch's operations: on a CPU they run in place of the kernels of autograd_bridge.add2"
    first, second = told()
    assert first == backend
    assert re.fullmatch(r"kernels: add2, simulated on one batch: the same bits as PyTorch, in \d+\.\d s", second)
    with simulate():
        assert told()[0] == "backend: kernels (autograd_bridge.add2) in the simulator"
    assert told("--backend", "torch")[0] == "backend: torch (torch.add)"
    monkeypatch.setenv("CUPYOPS_CXX", "/nonexistent")
    assert told()[1].startswith(
        "kernels: not simulated: the simulator compiles kernels with the machine's C++ compiler"
    )


def test_backends_agree_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for backend in ("kernels", "torch"):
        main(["--backend", backend, "--seed", "7"])
        outputs.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")])
    assert outputs[0] == outputs[1]


def test_wrong_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(add_model, "add2", HalfGradientAdd.apply)
    assert main([]) == 1
    assert "The decay is wrong" in capsys.readouterr().out


def test_decay_is_taken_over_all_printed_losses() -> None:
    assert measured_decay([8.0, 4.0, 1.0]) == pytest.approx(math.sqrt(1 / 8))
    assert measured_decay(train(model(), lambda _: None)) == pytest.approx(EXPECTED_DECAY, rel=1e-6)


@pytest.mark.parametrize("losses", [[1.0, 0.0], [1.0, math.nan, 0.5], [math.inf, 1.0], [1.0, -1.0]])
def test_decay_of_a_broken_run_is_nan_and_not_a_number_or_a_crash(losses: list[float]) -> None:
    assert math.isnan(measured_decay(losses))


def test_parameters_follow_the_standard_normal_and_the_seed() -> None:
    drawn = model(100_000)
    for parameter in (drawn.a, drawn.b):
        assert abs(parameter.mean().item()) < 0.02
        assert abs(parameter.std().item() - 1) < 0.02
    assert not torch.equal(drawn.a, drawn.b)
    assert torch.equal(model(10, seed=3).a, model(10, seed=3).a)
    assert not torch.equal(model(10, seed=3).a, model(10, seed=4).a)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_decay_on_the_gpu(backend: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.undo()
    assert main(["--device", "cuda", "--backend", backend]) == 0
    assert "cuda:" in capsys.readouterr().out
