"""Layer normalisation whose result has a dtype of its own: its bits, its gradients, machinery, errors."""

import itertools
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from autograd_bridge import AddLayerNorm, LayerNorm, add_layer_norm, layer_norm, layer_norm_backward
from cupyops.torch import export_onnx
from tests.cases import FLOATS
from tests.onnx.onnx_support import Model, run
from tests.operators.test_layer_norm import operands
from tests.support import alike

OTHERS = [(a, b) for a, b in itertools.product(FLOATS, FLOATS) if a != b]
PAIRS = pytest.mark.parametrize(("dtype", "result"), OTHERS, ids=lambda d: str(d).removeprefix("torch."))
# On a GPU, rows for every way of a kernel; elsewhere the simulated kernels' own tests go them.
LENGTHS = [pytest.param(96, "cpu", id="reference-96")]
LENGTHS += [
    pytest.param(n, "cuda", id=f"cuda-{n}", marks=pytest.mark.gpu)
    for n in (96, 1001, 8192, 8196, 20_480, 65_536, 100_003)
]
EACH_LENGTH = pytest.mark.parametrize(("n", "device"), LENGTHS)


@PAIRS
@EACH_LENGTH
def test_y_is_rounded_once_and_its_gradient_taken_as_it_comes(
    n: int, device: str, dtype: torch.dtype, result: torch.dtype
) -> None:
    x, weight, bias = operands(5, n, dtype, device)
    inputs = (x, weight, bias)
    y = layer_norm(x, n, weight, bias, dtype=result)
    grad = torch.randn(5, n, generator=torch.Generator().manual_seed(1)).to(device, result)
    found = torch.autograd.grad(y, inputs, grad)
    assert y.dtype == result
    assert [g.dtype for g in found] == [dtype] * 3
    if dtype.itemsize >= 4:
        assert alike(y, layer_norm(x, n, weight, bias).to(result))
    exact = [t.detach().double().requires_grad_() for t in inputs]
    wanted = F.layer_norm(exact[0], (n,), *exact[1:])
    digits = torch.float32 if result == torch.float64 else result
    assert (y.double() - wanted).abs().max() <= 4 * torch.finfo(digits).eps * wanted.abs().max()
    for got, right in zip(found, torch.autograd.grad(wanted, exact, grad.double()), strict=True):
        digits = torch.float32 if dtype == torch.float64 else dtype
        assert (got.double() - right).abs().max() <= 8 * torch.finfo(digits).eps * right.abs().max()


def test_a_result_of_its_own_is_what_the_rounded_one_was_rounded_from(device: str) -> None:
    """Rounded to 16 bits, the float32 result is the 16-bit result, up to the last bits of the statistics, which are
    summed in another order."""
    x, weight, bias = (t.detach() for t in operands(7, 200, torch.bfloat16, device))
    wide = layer_norm(x, 200, weight, bias, dtype=torch.float32)
    narrow = layer_norm(x, 200, weight, bias)
    torch.testing.assert_close(wide.bfloat16(), narrow, rtol=2**-7, atol=2**-19)
    assert not alike(wide, narrow.float()), "rounded to x's dtype on the way"
    assert alike(layer_norm(x, 200, weight, bias, dtype=x.dtype), narrow)


def test_the_sum_and_the_statistics_keep_their_dtypes(device: str) -> None:
    x, weight, bias = operands(6, 96, torch.float32, device)
    branch = torch.randn(6, 96).to(device, torch.bfloat16).requires_grad_()
    y, s = add_layer_norm(branch, x, 96, weight, bias, dtype=torch.bfloat16)
    plain, sum_of = add_layer_norm(branch, x, 96, weight, bias)
    assert y.dtype == torch.bfloat16
    assert alike(y, plain.bfloat16())
    assert alike(s, sum_of)
    grads = torch.randn(6, 96).to(device, torch.bfloat16), torch.randn(6, 96).to(device)
    inputs = (branch, x, weight, bias)
    ours = torch.autograd.grad((y, s), inputs, grads)
    # As if the cast had been an operation of its own; the sums over a row of fewer bytes may have another order.
    for a, b in zip(ours, torch.autograd.grad((plain, sum_of), inputs, (grads[0].float(), grads[1])), strict=True):
        torch.testing.assert_close(a, b)
    _, mean, rstd = layer_norm(x, 96, dtype=torch.float16, return_stats=True)
    assert mean.dtype == rstd.dtype == torch.float32


def test_gradients_of_gradients(device: str) -> None:
    x, weight, bias = operands(3, 6, torch.float32, device)
    wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    assert torch.autograd.gradcheck(lambda *t: layer_norm(t[0], 6, *t[1:], dtype=torch.float64), wide)
    assert torch.autograd.gradgradcheck(lambda *t: layer_norm(t[0], 6, *t[1:], dtype=torch.float64), wide)
    found = []
    for given in ((x, weight, bias), wide):
        y = layer_norm(given[0], 6, *given[1:], dtype=torch.float64)
        (grad,) = torch.autograd.grad(y.square().sum(), given[0], create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), given))
    assert all(a.dtype == torch.float32 for a in found[0])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def test_modules_compiled(device: str) -> None:
    torch.compiler.reset()
    norm, both = LayerNorm(16, device=device), AddLayerNorm(16, device=device)

    def run(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        y, s = both(norm(x, dtype=torch.bfloat16), r, dtype=torch.float16)
        return y, s

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    x, r = (torch.randn(5, 16, device=device, requires_grad=True) for _ in range(2))
    got, wanted = compiled(x, r), run(x, r)
    assert [t.dtype for t in got] == [torch.float16, torch.float32]
    inputs = [x, r, *norm.parameters(), *both.parameters()]
    for results in zip(
        (*got, *torch.autograd.grad([t.float().sum() for t in got], inputs)),
        (*wanted, *torch.autograd.grad([t.float().sum() for t in wanted], inputs)),
        strict=True,
    ):
        torch.testing.assert_close(*results)


def test_batched(device: str) -> None:
    x, weight, bias = (t.detach() for t in operands(6, 10, torch.float32, device))
    found = torch.func.vmap(lambda row: layer_norm(row, 10, weight, bias, dtype=torch.float16))(x)
    torch.testing.assert_close(found, layer_norm(x, 10, weight, bias, dtype=torch.float16))


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_exported(dtype: torch.dtype, tmp_path: Path) -> None:
    weight = torch.rand(8).to(dtype)

    def results(weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        y = layer_norm(x, 8, weight, dtype=torch.float32)
        return y, *add_layer_norm(x, x, 8, None, weight, dtype=torch.float16)

    model, x = Model(results, weight=weight), torch.randn(3, 8).to(dtype)
    export_onnx(model, (x,), tmp_path / "model.onnx")
    for got, wanted in zip(run(tmp_path / "model.onnx", x), model(x), strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=1e-6 if wanted.dtype.itemsize > 2 else 2e-3, atol=1e-5)


def test_dtypes_that_are_none_are_refused(device: str) -> None:
    x = torch.ones(2, 3, device=device)
    words = "layer_norm: `dtype` must be float16 or bfloat16 or float32 or float64, got int32"
    with pytest.raises(TypeError, match=re.escape(words)):
        layer_norm(x, 3, dtype=torch.int32)
    with pytest.raises(TypeError, match=re.escape(words)):
        add_layer_norm(x, x, 3, dtype=torch.int32)
    with pytest.raises(TypeError, match=r"add_layer_norm: `dtype` must be a torch.dtype or None, got str"):
        add_layer_norm(x, x, 3, dtype="float16")  # type: ignore[arg-type]
    layer_norm(x, 3)


@pytest.mark.simulator
def test_arrays_without_pytorch() -> None:
    import numpy

    x = numpy.random.default_rng(0).standard_normal((4, 96)).astype("float32")
    with cupyops.simulate(sanitize=True):
        for dtype in ("float16", numpy.float16, numpy.dtype("float16")):
            y = cupyops.layer_norm(x, 96, dtype=dtype)
            assert y.dtype == numpy.float16
            assert (y == cupyops.layer_norm(x, 96).astype("float16")).all()
        y, s = cupyops.add_layer_norm(x, x, 96, dtype="float64")
        assert (y.dtype, s.dtype) == ("float64", "float32")
        with pytest.raises(TypeError, match=r"`dtype` must be float16 or .*, got complex64"):
            cupyops.layer_norm(x, 96, dtype=numpy.complex64)
        stats = numpy.ones((2, 4, 1), "float32")
        grad_x, *_ = cupyops.layer_norm_backward(y, x, stats, 96)
        assert grad_x.dtype == numpy.float32


@pytest.mark.gpu
def test_autocast_leaves_the_dtype_asked_for() -> None:
    x = torch.randn(4, 32, device="cuda", dtype=torch.float16)
    norm = LayerNorm(32, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = norm(x, dtype=torch.bfloat16)
        assert alike(y, norm(x).bfloat16())
        assert add_layer_norm(x, x, 32, norm.weight, dtype=torch.bfloat16)[0].dtype == torch.bfloat16


def test_a_gradient_of_another_dtype_than_the_rows(device: str) -> None:
    x = torch.randn(3, 700, device=device)
    stats = torch.stack((x.mean(1, keepdim=True), torch.rsqrt(x.var(1, unbiased=False, keepdim=True) + 1e-5)))
    for grad in (torch.randn(3, 700, device=device).double(), torch.randn(3, 700, device=device).bfloat16()):
        found = layer_norm_backward(grad, x, stats, 700)
        for a, b in zip(found, layer_norm_backward(grad.float(), x, stats, 700), strict=True):
            assert a.dtype == torch.float32
            torch.testing.assert_close(a, b)


def test_the_sum_of_inputs_with_other_strides_is_dense_on_a_cpu_as_a_compiled_graph_expects() -> None:
    x = torch.randn(2, 8, 3).transpose(1, 2)
    y, s = add_layer_norm(x, x, 8)
    assert y.is_contiguous()
    assert s.is_contiguous()
    torch.testing.assert_close(s, x + x, rtol=0, atol=0)
