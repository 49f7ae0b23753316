"""Layer normalisation that nobody differentiates: the same bits, and no statistics."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from autograd_bridge import LayerNorm, layer_norm
from cupyops import simulator
from cupyops.arrays import LIBRARIES
from cupyops.ops.layer_norm.body import add_forward, inference
from cupyops.torch import export_onnx
from cupyops.torch.ops import layer_norm as module
from tests.models.test_compiled import operators_of
from tests.onnx.onnx_support import Model, run
from tests.operators.test_layer_norm import operands
from tests.support import alike

RECORDING, INFERENCE = "cupyops::layer_norm", "cupyops::layer_norm_inference"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that calls take."""
    seen: list[str] = []

    def spy(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            # The dispatch of a call in the simulator begins anew once the call is simulated from begin to end.
            if not simulator.in_call():
                seen.append(name)
            return call(*args)

        return noted

    monkeypatch.setattr(module._layer_norm, "_dispatch", spy(RECORDING, module._layer_norm._dispatch))
    monkeypatch.setattr(module._layer_norm_inference, "call", spy(INFERENCE, module._layer_norm_inference.call))
    for call, name, operator in (
        (module._y, "body", INFERENCE),
        (module._y, "apply", RECORDING),
        (module._layer_norm.call, "body", RECORDING),
        (module._layer_norm.call, "dispatch", RECORDING),
    ):
        monkeypatch.setitem(call.__globals__, name, spy(operator, call.__globals__[name]))
    return seen


def test_a_call_that_records_nothing_takes_the_way_without_statistics(device: str, taken: list[str]) -> None:
    x, weight, bias = operands(5, 96, torch.float32, device)
    y = layer_norm(x, 96, weight, bias)
    with torch.no_grad():
        assert alike(layer_norm(x, 96, weight, bias), y)
    with torch.inference_mode():
        assert alike(layer_norm(x, 96, weight, bias), y)
    assert alike(layer_norm(x.detach(), 96, weight.detach(), bias.detach()), y)
    assert taken == [RECORDING, *[INFERENCE] * 3]
    assert y.requires_grad


def test_each_tensor_that_requires_grad_records(device: str, taken: list[str]) -> None:
    given = [t.detach() for t in operands(5, 96, torch.float32, device)]
    for i in range(3):
        tensors = [t.clone().requires_grad_(i == j) for j, t in enumerate(given)]
        assert layer_norm(tensors[0], 96, *tensors[1:]).requires_grad
    assert not layer_norm(given[0], 96).requires_grad
    assert taken == [*[RECORDING] * 3, INFERENCE]


def test_statistics_that_are_asked_for_are_given(device: str, taken: list[str]) -> None:
    x = torch.randn(5, 96, device=device)
    y, mean, rstd = layer_norm(x, 96, return_stats=True)
    assert alike(y, layer_norm(x, 96))
    torch.testing.assert_close(mean, x.mean(1, keepdim=True))
    assert rstd.shape == (5, 1)
    assert taken == [RECORDING, INFERENCE]


def test_the_module_in_evaluation(device: str, taken: list[str]) -> None:
    norm, x = LayerNorm(16, device=device), torch.randn(3, 16, device=device)
    norm(x)
    norm.requires_grad_(False)
    norm(x)
    assert taken == [RECORDING, INFERENCE]


def test_what_is_transformed_or_traced_may_record_later(device: str, taken: list[str]) -> None:
    x = torch.randn(4, 8, device=device)
    torch.func.vmap(lambda row: layer_norm(row, 8))(x)
    torch.func.grad(lambda x: layer_norm(x, 8).square().sum())(x)
    assert set(taken) == {RECORDING}
    with torch.no_grad():
        found = operators_of(lambda x: layer_norm(x, 8) * 2, x)
        torch.testing.assert_close(torch.compile(lambda x: layer_norm(x, 8) * 2)(x), F.layer_norm(x, (8,)) * 2)
    assert torch.ops.cupyops.layer_norm.default in found
    assert torch.ops.cupyops.layer_norm_inference.default not in found


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.float64])
def test_the_operator_gives_the_same_bits_and_the_same_gradients(device: str, dtype: torch.dtype | None) -> None:
    x, weight, bias = operands(5, 40, torch.float32, device)
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    y = torch.ops.cupyops.layer_norm_inference(x, weight, bias, (40,), 1e-5, name)
    wanted = layer_norm(x, 40, weight, bias, dtype=dtype)
    assert alike(y, wanted)
    grad = torch.randn(5, 40, device=device).to(y.dtype)
    inputs = (x, weight, bias)
    for a, b in zip(torch.autograd.grad(y, inputs, grad), torch.autograd.grad(wanted, inputs, grad), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.sample(1)
def test_opcheck(device: str) -> None:
    x, weight, bias = operands(5, 40, torch.float32, device)
    operator = torch.ops.cupyops.layer_norm_inference.default
    torch.library.opcheck(operator, (x.detach(), weight.detach(), None, (40,), 1e-5))
    torch.library.opcheck(operator, (x, weight, bias, (40,), 1e-5, "bfloat16"))


def test_exported(tmp_path: Path) -> None:
    model = Model(lambda w, x: torch.ops.cupyops.layer_norm_inference(x, w, None, (8,), 1e-5), weight=torch.rand(8))
    x = torch.randn(3, 8)
    export_onnx(model, (x,), tmp_path / "model.onnx")
    (got,) = run(tmp_path / "model.onnx", x)
    torch.testing.assert_close(got, model(x))


def test_what_is_refused_is_refused_in_the_same_words(device: str) -> None:
    x = torch.ones(2, 3, device=device)
    with torch.no_grad():
        with pytest.raises(
            RuntimeError, match=re.escape("Given normalized_shape=[4], expected input with shape [*, 4]")
        ):
            layer_norm(x, 4)
        with pytest.raises(TypeError, match="`x` must have dtype float16 or bfloat16 or float32 or float64, got int64"):
            layer_norm(x.long(), 3)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            with pytest.raises(TypeError, match=r"^layer_norm: `x` must be a Tensor, got list"):
                layer_norm([1.0], 1)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"^layer_norm: `weight` must be a Tensor or None, got list"):
                layer_norm(x, 3, [1.0, 1.0, 1.0])  # type: ignore[arg-type]


# In the simulator


@pytest.fixture
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what bodies allocate."""
    shapes: list[tuple[int, ...]] = []
    library = type(LIBRARIES[Tensor])
    empty, empty_like = library.empty, torch.empty_like

    def noted(self: Any, shape: Any, dtype: str, like: Any) -> Any:
        shapes.append(tuple(shape))
        return empty(self, shape, dtype, like)

    def noted_like(x: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return empty_like(x)

    monkeypatch.setattr(library, "empty", noted)
    monkeypatch.setattr(library, "empty_like", staticmethod(noted_like))
    return shapes


@pytest.mark.simulator
@pytest.mark.usefixtures("_simulated")
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("m", "n", "dtype"),
    [(9, 96, torch.float16), (3, 1023, torch.float32), (3, 40_960, torch.bfloat16), (1, 70_001, torch.float32)],
    ids=["registers", "odd", "wide", "streaming"],
)
def test_no_statistics_are_allocated(m: int, n: int, dtype: torch.dtype, allocated: list[tuple[int, ...]]) -> None:
    x, weight, bias = (t.detach() for t in operands(m, n, dtype, "cpu"))
    y = inference(x, weight, bias, (n,), 1e-5)
    assert allocated == [(m, n)]
    with_stats, _, stats = add_forward(x, None, weight, bias, (n,), 1e-5)
    assert allocated == [(m, n)] * 2 + [(2, m, 1)]
    assert stats.shape == (2, m, 1)
    assert alike(y, with_stats)


@pytest.mark.simulator
@pytest.mark.usefixtures("_simulated")
def test_of_no_elements() -> None:
    for shape in ((0, 4), (3, 0)):
        assert inference(torch.ones(shape), None, None, shape[1:], 1e-5).shape == shape


@pytest.mark.simulator
@pytest.mark.usefixtures("_simulated")
def test_arrays_without_pytorch() -> None:
    import numpy

    x = numpy.random.default_rng(0).standard_normal((4, 96)).astype("float32")
    y, mean, _ = cupyops.layer_norm(x, 96, return_stats=True)
    assert (cupyops.layer_norm(x, 96) == y).all()
    assert mean.shape == (4, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [64, 1023, 8192, 40_000, 65_536, 262_144, 300_001])
def test_same_bits_on_a_gpu(n: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        x, weight, bias = operands(7, n, dtype, "cuda")
        y = layer_norm(x, n, weight, bias)
        with torch.no_grad():
            torch.cuda.synchronize()
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            again = layer_norm(x, n, weight, bias)
            assert torch.cuda.memory_stats()["allocation.all.allocated"] == before + 1, "memory for y alone"
        assert alike(again, y)


@pytest.mark.gpu
def test_autocast_is_in_float32_here_too() -> None:
    x, norm = torch.randn(4, 32, device="cuda", dtype=torch.float16), LayerNorm(32, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = norm(x)
        with torch.no_grad():
            assert alike(norm(x), y)
    assert y.dtype == torch.float32
