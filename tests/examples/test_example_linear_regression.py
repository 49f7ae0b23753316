"""examples/linear_regression.py: gradients checked first, the line learned, the file that onnxruntime runs."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from examples import linear_regression
from examples.linear_regression import main

NUMBER = r"(-?\d+\.\d{4})"


@pytest.fixture
def _cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


class HalfGradientLinear(torch.autograd.Function):
    """A linear function with a gradient of W that is off by a factor."""

    @staticmethod
    def forward(ctx, x, weight, bias):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.T @ x / 2, grad.sum(0)


@pytest.mark.usefixtures("_cpu_only")
@pytest.mark.parametrize("backend", ["kernels", "torch"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_line_is_learned(backend: str, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backend", backend, "--seed", str(seed)]) == 0
    output = capsys.readouterr().out
    assert "gradients of x, W and b: as differences of values have them" in output
    steps = re.findall(r"^step ([ \d]{3}): loss = [ \d.]{9}$", output, re.M)
    assert [int(step) for step in steps] == [50, 100, 150, 200, 250, 300]
    found = {name: float(re.search(rf"^ ?{name} = {NUMBER}", output, re.M)[1]) for name in ("w1", "w2", "b")}  # type: ignore[index]
    assert found["w1"] == pytest.approx(2, abs=0.1)
    assert found["w2"] == pytest.approx(3, abs=0.1)
    assert found["b"] == pytest.approx(4, abs=0.1)
    assert float(re.search(rf"y\(3, 2\) = {NUMBER}", output)[1]) == pytest.approx(16, abs=0.3)  # type: ignore[index]


@pytest.mark.usefixtures("_cpu_only")
def test_backends_learn_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for backend in ("kernels", "torch"):
        main(["--backend", backend, "--seed", "5"])
        printed = capsys.readouterr().out
        outputs.append(printed[printed.index("gradients of") :])
    assert outputs[0] == outputs[1]


@pytest.mark.usefixtures("_cpu_only")
def test_a_wrong_gradient_is_noticed_before_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(linear_regression, "linear", HalfGradientLinear.apply)
    assert main([]) == 1
    output = capsys.readouterr().out
    assert "gradients of x, W and b: WRONG" in output
    assert "step" not in output


@pytest.mark.usefixtures("_cpu_only")
def test_a_line_that_is_not_learned_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    monkeypatch.setattr(linear_regression, "linear", wrong)
    monkeypatch.setattr(linear_regression, "STEPS", 50)
    assert main([]) == 1
    assert "The line was not learned" in capsys.readouterr().out


@pytest.mark.skipif(
    importlib.util.find_spec("cupyops.torch.onnx.export") is None or importlib.util.find_spec("onnxruntime") is None,
    reason="needs the ONNX export and onnxruntime",
)
@pytest.mark.usefixtures("_cpu_only")
@pytest.mark.parametrize("custom", [[], ["--custom-domain"]])
def test_the_file_answers_as_pytorch_does(
    tmp_path: Path, custom: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime

    path = tmp_path / "models" / "linear.onnx"
    assert main(["--export", str(path), *custom]) == 0
    line = re.search(rf"y\(3, 2\) = {NUMBER} from PyTorch, {NUMBER} from .*linear.onnx", capsys.readouterr().out)
    assert line is not None
    assert line[1] == line[2]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["x"]
    for batch in (1, 7):
        (y,) = session.run(["y"], {"x": torch.ones(batch, 2, dtype=torch.float64).numpy()})
        assert y.shape == (batch, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_the_line_is_learned_on_the_gpu(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cuda", "--backend", backend]) == 0
    assert "cuda:" in capsys.readouterr().out
