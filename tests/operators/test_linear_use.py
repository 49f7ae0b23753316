"""linear and linear_gelu as they are used: modules, PyTorch's machinery, determinism, sizes beyond 32 bits."""

import copy
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograd_bridge import Linear, LinearGELU, linear, linear_backward, linear_gelu, linear_gelu_backward
from cupyops.ops.linear import config as linear_config
from cupyops.torch.core.autocast import cast
from tests.operators.test_linear import BOTH, operands, with_gradients
from tests.support import alike


@pytest.fixture(autouse=True)
def _gradients_by_our_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_config, "LEAST_GRADIENT", 0)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"dtype": torch.float64}])
def test_modules_are_drop_ins(device: str, options: dict[str, object]) -> None:
    theirs = nn.Linear(5, 7, device=device, **options)  # type: ignore[arg-type]
    x = torch.randn(3, 4, 5, device=device, dtype=theirs.weight.dtype)
    ours = Linear(5, 7, device=device, **options)  # type: ignore[arg-type]
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, nn.Linear)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x), theirs(x))
    theirs.load_state_dict(copy.deepcopy(ours).state_dict())
    for approximate in ("none", "tanh"):
        fused = LinearGELU(5, 7, approximate=approximate, device=device, **options)  # type: ignore[arg-type]
        assert repr(fused) == repr(theirs).replace("Linear(", "LinearGELU(")[:-1] + f", approximate={approximate!r})"
        fused.load_state_dict(theirs.state_dict())
        wanted = F.gelu(theirs(x), approximate=approximate)
        torch.testing.assert_close(copy.deepcopy(fused)(x), wanted)


def test_modules_begin_as_pytorch_lets_them() -> None:
    layers = []
    for kind in (nn.Linear, Linear, LinearGELU):
        torch.manual_seed(3)
        layers.append(kind(5, 7))
    for layer in layers[1:]:
        assert all(alike(a, b) for a, b in zip(layer.parameters(), layers[0].parameters(), strict=True))


def test_small_gradients_are_pytorchs_own_and_large_ones_ours(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    if backend == "reference":
        pytest.skip("the reference is PyTorch's in any case")
    device = "cuda" if backend == "cuda" else "cpu"
    x, weight, bias = operands(6, 8, 4, torch.float32, device)
    nodes = []
    for least in (6 * 8, 6 * 8 + 1):
        monkeypatch.setattr(linear_config, "LEAST_GRADIENT", least)
        nodes.append(type(linear(x, weight, bias).grad_fn).__name__)
        assert "linear_function" not in type(linear(x, weight).grad_fn).__name__
        assert "linear_function" not in type(linear(x, weight, bias.detach()).grad_fn).__name__
    assert "linear_function" in nodes[0]
    assert "linear_function" not in nodes[1]


def test_a_small_layer_is_recorded_without_further_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body handles special cases and raises errors."""
    module = sys.modules["cupyops.torch.ops.linear"]
    monkeypatch.setattr(linear_config, "LEAST_GRADIENT", 2**40)
    asked: list[tuple[Tensor, ...]] = []
    monkeypatch.setattr(module, "linear_by_library", lambda *operands: asked.append(operands))
    x, weight, bias = operands(6, 8, 4, torch.float32, "cpu")
    record = module._record_linear
    for leading in ((6,), (2, 3), (1, 6)):
        assert alike(record(None, x.view(*leading, 4), weight, bias), F.linear(x.view(*leading, 4), weight, bias))
    assert alike(record(None, x[0], weight, bias), F.linear(x[0], weight, bias))
    assert alike(record(None, x, weight, None), F.linear(x, weight))
    assert not asked
    others = [
        *((x, weight[0], None), (x, weight, bias[:1]), (x, weight, bias[:, None]), (x, weight[0], bias)),
        *((x.double(), weight, bias), (x, weight, bias.double()), (x[:, :3], weight, bias)),
        tuple(t.detach().int() for t in (x, weight, bias)),
        (x[:, :1], torch.ones(2**16 + 1, 1), torch.ones(2**16 + 1)),
    ]
    for inputs in others:
        assert record(None, *inputs) is None
    assert len(asked) == len(others)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_pytorch_records_a_small_layer_with_gelu_in_16_bits(
    dtype: torch.dtype, approximate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator records layers of other sizes and dtypes, and special cases."""
    record = sys.modules["cupyops.torch.ops.linear_gelu"]._record_linear_gelu
    monkeypatch.setattr(linear_config, "LEAST_GRADIENT", 40 * 32 + 1)
    monkeypatch.setattr(linear_config, "LEAST_RECORDED", 40 * 32 - 1)
    x, weight, bias = operands(40, 32, 8, dtype, "cpu")
    asked: list[tuple[Tensor, ...]] = []

    def apply(*operands: Tensor) -> str:
        asked.append(operands)
        return "the operator"

    for given in (bias, None):
        for leading in ((40,), (5, 8)):
            rows = x.view(*leading, 8)
            y, z = record(apply, rows, weight, given, approximate)
            wanted = F.linear(rows, weight, given)
            assert alike(z, wanted)
            assert alike(y, F.gelu(wanted, approximate=approximate))
            assert "Gelu" in type(y.grad_fn).__name__
    assert not asked
    others = [
        *((x[:39], weight, bias), (torch.cat((x, x)), weight, bias), (x[:10], weight.repeat(4, 1), None)),
        *((x.repeat(2, 1), weight[:16], None), (x.float(), weight.float(), bias.float())),
        *((x, weight, bias.float()), (x, weight.float(), bias), (x[:, :7], weight, bias), (x, weight, bias[:1])),
        *((x, weight, bias[:, None]), (x, weight[0], None), (x, weight[0, 0], None)),
    ]
    for inputs in others:
        assert record(apply, *inputs, approximate) == "the operator"
    assert record(apply, x, weight, bias, "exact") == "the operator"
    assert len(asked) == len(others) + 1


@pytest.mark.sample(3)
@BOTH
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_with_parameters(
    device: str, dynamic: bool, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]
) -> None:
    torch.compiler.reset()
    _, weight, bias = operands(1, 8, 6, torch.float32, device)

    def run(x: Tensor) -> Tensor:
        return ours(x * 2, weight, bias).square() + ours(x, weight)

    compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for m in (3, 9, 17):
        x = torch.randn(m, 6, device=device, requires_grad=True)
        got = torch.autograd.grad(compiled(x).sum(), (x, weight, bias))
        wanted = torch.autograd.grad(
            (theirs(x * 2, weight, bias).square() + theirs(x, weight)).sum(), (x, weight, bias)
        )
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b)


@BOTH
def test_per_sample_gradients(device: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]) -> None:
    inputs = tuple(t.detach() for t in operands(6, 8, 4, torch.float64, device))

    def loss(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *t: (f(*t) ** 2).sum()

    got, wanted = (
        torch.func.vmap(torch.func.grad(loss(f), (0, 1, 2)), in_dims=(0, None, None))(*inputs) for f in (ours, theirs)
    )
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.sample(1)
def test_registered_operators_pass_opcheck_with_all_operands(device: str) -> None:
    x, weight, bias = operands(6, 8, 4, torch.float32, device)
    z = F.linear(x, weight, bias).detach().requires_grad_()
    ops = torch.ops.cupyops
    torch.library.opcheck(ops.linear.default, (x, weight, bias))
    torch.library.opcheck(ops.linear_gelu.default, (x, weight, bias, "tanh"))
    torch.library.opcheck(ops.linear_backward.default, (z, x, weight, True))
    torch.library.opcheck(ops.linear_backward.default, (z.detach(), None, weight.detach(), True))
    torch.library.opcheck(ops.linear_gelu_backward.default, (z, z, x, None, "none", True))


@BOTH
@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_autocast_is_in_the_lower_type(kind: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]) -> None:
    x, weight, bias = operands(40, 8, 4, torch.float32, kind)
    for lower in (torch.bfloat16, torch.float16):
        with torch.autocast(kind, dtype=lower):
            y, wanted = ours(x, weight, bias), theirs(x, weight, bias)
        assert y.dtype == wanted.dtype == lower
        torch.testing.assert_close(y, wanted, rtol=1e-2, atol=1e-2)
        grads = torch.autograd.grad(y, (x, weight, bias), torch.ones_like(y))
        for a, b in zip(grads, torch.autograd.grad(wanted, (x, weight, bias), torch.ones_like(y)), strict=True):
            assert a.dtype == torch.float32
            torch.testing.assert_close(a, b, rtol=2e-2, atol=5e-2)


@pytest.mark.gpu
def test_autocast_converts_a_parameter_once() -> None:
    """PyTorch's operators find the copy in autocast's cache. A copy that was cached under no_grad lacks a gradient."""
    weight = nn.Parameter(torch.randn(48, 32, device="cuda"))
    x = torch.randn(8, 32, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        first, again = cast(weight, torch.bfloat16), cast(weight, torch.bfloat16)
        assert first.dtype == torch.bfloat16
        assert first.data_ptr() == again.data_ptr()
        assert alike(first, weight.to(torch.bfloat16))
        (grad,) = torch.autograd.grad((first * again).sum(), weight)
        torch.testing.assert_close(grad, 2 * weight.detach(), rtol=1e-2, atol=1e-2)
        assert cast(x, torch.bfloat16).dtype == torch.bfloat16
        assert cast(x.double(), torch.bfloat16).dtype == torch.float64
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():
            linear_gelu(x, weight)
        y = linear_gelu(x, weight)
        assert torch.autograd.grad(y.sum(), weight)[0].dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("m", "n"), [(16_384, 3072), (16_384, 768), (5000, 64), (70_001, 3), (300, 1023), (8, 65_536)])
def test_bias_gradients_have_the_same_bits_over_runs_and_wherever_they_lie(m: int, n: int, dtype: torch.dtype) -> None:
    memory = torch.randn(m * n + 1, device="cuda").to(dtype)
    grad = memory[1:].view(m, n)
    z = torch.randn(m, n, device="cuda").to(dtype)
    aligned = grad.clone()
    first = linear_backward(aligned)[2], linear_gelu_backward(aligned, z)[2]
    exact = aligned.double().sum(0)
    torch.testing.assert_close(first[0].double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-5 * m**0.5)
    for _ in range(20):
        for g in (aligned, grad):
            assert alike(linear_backward(g)[2], first[0])
            assert alike(linear_gelu_backward(g, z)[2], first[1])


@pytest.mark.gpu
@BOTH
def test_a_captured_training_step_replays_with_new_data(
    ours: Callable[..., Tensor], theirs: Callable[..., Tensor]
) -> None:
    inputs = operands(64, 48, 32, torch.float32, "cuda")
    grad = torch.randn(64, 48, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        with_gradients(ours, inputs, grad)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = with_gradients(ours, inputs, grad)
    for _ in range(3):
        with torch.no_grad():
            for t in (*inputs, grad):
                t.normal_()
        graph.replay()
        # Leaves of their own: the first ones' gradients belong to the stream of the capture.
        leaves = [t.detach().requires_grad_() for t in inputs]
        for a, b in zip(captured, with_gradients(theirs, leaves, grad), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@BOTH
def test_on_a_side_stream_behind_work_of_its_own(ours: Callable[..., Tensor], theirs: Callable[..., Tensor]) -> None:
    inputs = operands(512, 48, 32, torch.float32, "cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        grad = torch.randn(512, 48, device="cuda")
        found = with_gradients(ours, inputs, grad)
        wanted = with_gradients(theirs, inputs, grad)
    side.synchronize()
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.large
@pytest.mark.gpu
def test_more_than_2_31_elements() -> None:
    m, n = 2**19 + 3, 4096 + 8
    grad = torch.ones(m, n, device="cuda", dtype=torch.bfloat16)
    grad[-1] = 3
    (_, _, bias) = linear_backward(grad)
    assert (bias == torch.tensor(m + 2).to(torch.bfloat16).cuda()).all()
    z = torch.full_like(grad, 30.0)  # the derivative is 1
    assert alike(linear_gelu_backward(grad, z)[2], bias)
