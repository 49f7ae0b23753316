"""Layer normalisation: values and gradients against float64, hard rows, statistics, errors."""

import math
import re

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import add_layer_norm, layer_norm, layer_norm_backward
from cupyops.torch.check.nearby import filled
from tests.cases import FLOATS
from tests.support import alike

DTYPES = pytest.mark.parametrize("dtype", FLOATS)
# Rows for every way of a kernel: a few lanes, warps, blocks, odd lengths; on a GPU, clusters and streams, too.
SHORT = (1, 2, 7, 64, 100, 256, 768, 1000, 1023, 1024, 3000)
LONG = (4096, 5120, 8192, 12_288, 16_384, 20_001, 32_768, 50_000, 65_536, 100_003, 131_072, 262_144, 600_000)
LENGTHS = [pytest.param(n, "cpu", id=f"reference-{n}") for n in SHORT]
LENGTHS += [pytest.param(n, "cuda", id=f"cuda-{n}", marks=pytest.mark.gpu) for n in SHORT + LONG]
EACH_LENGTH = pytest.mark.parametrize(("n", "device"), LENGTHS)


def operands(m: int, n: int, dtype: torch.dtype, device: str, mean: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias that require gradients; x away from 0, so that a forgotten mean shows."""
    generator = torch.Generator().manual_seed(n)
    shapes = ((m, n), (n,), (n,))
    x, weight, bias = (torch.randn(shape, generator=generator) + mean for shape in shapes)
    x, weight, bias = (t.to(device, dtype).requires_grad_() for t in (x, weight, bias))
    return x, weight, bias


def assert_close_to_exact(ours: Tensor, theirs: Tensor, exact: Tensor, what: str) -> None:
    """The largest error is within twice PyTorch's and a rounding, both relative to the largest value."""
    scale = exact.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    # In float64, PyTorch's own is the exact value here, with the roundings that it has.
    rounding = torch.finfo(ours.dtype).eps * (2 if ours.dtype == torch.float64 else 1)
    error, allowed = ((t.double() - exact).abs().max() / scale for t in (ours, theirs))
    assert ours.dtype == theirs.dtype, what
    assert error <= 2 * (allowed + rounding), f"{what}: off by {float(error):.2e}, PyTorch by {float(allowed):.2e}"


@DTYPES
@EACH_LENGTH
def test_values_and_gradients_against_float64(n: int, device: str, dtype: torch.dtype) -> None:
    m = 37 if n < 4096 else 5
    ours = operands(m, n, dtype, device)
    theirs = [t.detach().requires_grad_() for t in ours]
    exact = [t.detach().double().requires_grad_() for t in ours]
    grad = torch.randn(m, n, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    y = layer_norm(ours[0], n, *ours[1:])
    y_theirs, y_exact = (F.layer_norm(x, (n,), w, b) for x, w, b in (theirs, exact))
    assert_close_to_exact(y, y_theirs, y_exact, "y")
    y.backward(grad)
    y_theirs.backward(grad)
    y_exact.backward(grad.double())
    for name, a, b, c in zip(("x", "weight", "bias"), ours, theirs, exact, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert c.grad is not None
        if n <= 2 and name == "x":  # 0 up to rounding, since one element equals its mean
            assert a.grad.abs().max() <= 2 * b.grad.abs().max() + 1e-3 * torch.finfo(dtype).eps ** 0.5
            continue
        assert_close_to_exact(a.grad, b.grad, c.grad, f"gradient of {name}")


@pytest.mark.gpu
@pytest.mark.parametrize("parameters", ["none", "own", "float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [32_768, 40_968, 57_344, 65_544, 100_003, 131_072, 196_616, 262_144])
def test_many_long_rows(n: int, dtype: torch.dtype, parameters: str) -> None:
    """A cluster takes row after row, with weights of each kind and without: the kernels are others, and their shared memory."""
    if parameters == "float32" and dtype is torch.float32:
        return
    m = 133
    x, weight, bias = operands(m, n, dtype, "cuda")
    grad = torch.randn(m, n, generator=torch.Generator().manual_seed(1)).to("cuda", dtype)
    given: list[Tensor] = []
    if parameters != "none":
        given = [
            t.detach().to(dtype if parameters == "own" else torch.float32).requires_grad_() for t in (weight, bias)
        ]
    exact = [t.detach().double().requires_grad_() for t in (x, *given)]
    y = layer_norm(x, n, *given)
    got = torch.autograd.grad(y, [x, *given], grad)
    right = F.layer_norm(exact[0], (n,), *exact[1:])
    rights = [right.detach(), *torch.autograd.grad(right, exact, grad.double())]
    eps = torch.finfo(dtype).eps
    for what, a, b in zip(("y", "x", "weight", "bias"), (y, *got), rights, strict=False):
        error = float((a.detach().double() - b).abs().max() / b.abs().max())
        assert error <= 4 * eps, f"{what}: off by {error:.2e}"
    few = x.detach()[:2].requires_grad_()
    y_few = layer_norm(few, n, *given)
    assert alike(y_few, y[:2])
    assert alike(torch.autograd.grad(y_few, few, grad[:2])[0], got[0][:2])


@pytest.mark.gpu
@pytest.mark.parametrize("parameters", ["none", "own", "float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [65_536, 65_544, 100_003, 131_068, 131_072, 196_616, 262_144])
def test_many_long_rows_of_a_sum(n: int, dtype: torch.dtype, parameters: str) -> None:
    """The same for a sum of two tensors, with gradients of both the norm and the sum, and of the norm only."""
    if parameters == "float32" and dtype is torch.float32:
        return
    m = 133
    x, weight, bias = operands(m, n, dtype, "cuda")
    residual, *grads = (
        torch.randn(m, n, generator=torch.Generator().manual_seed(i)).to("cuda", dtype) for i in (1, 2, 3)
    )
    given: list[Tensor] = []
    if parameters != "none":
        given = [
            t.detach().to(dtype if parameters == "own" else torch.float32).requires_grad_() for t in (weight, bias)
        ]
    y, s = add_layer_norm(x, residual, n, *given)
    assert alike(s, x + residual)
    exact = [t.detach().double().requires_grad_() for t in (s, *given)]
    right = F.layer_norm(exact[0], (n,), *exact[1:])
    eps = torch.finfo(dtype).eps
    for count in (1, 2):
        got = torch.autograd.grad((y, s)[:count], [x, *given], grads[:count], retain_graph=True)
        rights = torch.autograd.grad(
            (right, exact[0] * 1)[:count], exact, [g.double() for g in grads[:count]], retain_graph=True
        )
        for what, a, b in zip(("y", "x", "weight", "bias"), (y, *got), (right, *rights), strict=False):
            error = float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max())
            assert error <= 4 * eps, f"{what}, {count} gradients: off by {error:.2e}"
        few = x.detach()[:2].requires_grad_()
        results = add_layer_norm(few, residual[:2], n, *given)
        assert alike(results[0], y[:2])
        assert alike(torch.autograd.grad(results[:count], few, [g[:2] for g in grads[:count]])[0], got[0][:2])


@pytest.mark.sample(2)
@DTYPES
def test_float32_parameters_beside_16_bits(device: str, dtype: torch.dtype) -> None:
    if dtype in (torch.float32, torch.float64):
        return
    for n in (768, 1001):
        x, _, _ = operands(9, n, dtype, device)
        _, weight, bias = operands(9, n, torch.float32, device)
        y = layer_norm(x, n, weight, bias)
        assert y.dtype == dtype
        exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
        wanted = F.layer_norm(exact[0], (n,), *exact[1:])
        assert_close_to_exact(y, wanted.to(dtype), wanted, "y")
        y.backward(torch.ones_like(y))
        wanted.backward(torch.ones_like(wanted))
        assert weight.grad is not None
        assert weight.grad.dtype == torch.float32
        torch.testing.assert_close(weight.grad.double(), exact[1].grad, rtol=1e-2, atol=0.1)


def hard_rows(n: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, n, generator=generator, dtype=torch.float64)
    outlier = noise.clone()
    outlier[:, n // 3] = 1e4
    first = noise.clone()
    first[:, 0] = -1e4
    return {
        "mean 1e3, deviation 1e-2": 1e3 + 1e-2 * noise,
        "1e30": 1e30 * noise,
        "1e-30": 1e-30 * noise,
        "one outlier": outlier,
        "the first an outlier": first,
        "constant": torch.tensor([[5.0], [0.1], [-1000.0], [0.0]], dtype=torch.float64).expand(4, n).contiguous(),
    }


def exact_rows(x: Tensor, eps: float = 1e-5) -> Tensor:
    """The norm with more digits than float64 has, where the machine's C++ has such a type."""
    rows = x.double().cpu().numpy().astype(numpy.longdouble)
    centered = rows - rows.mean(axis=1, keepdims=True)
    normalized = centered / numpy.sqrt((centered**2).mean(axis=1, keepdims=True) + numpy.longdouble(eps))
    return torch.from_numpy(normalized.astype(numpy.float64)).to(x.device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", list(hard_rows(3)))
@pytest.mark.parametrize("n", [64, 768, 1000, 4096, 40_000])
@pytest.mark.gpu
def test_hard_rows(n: int, kind: str, dtype: torch.dtype) -> None:
    x = hard_rows(n)[kind].to("cuda", dtype)
    exact = exact_rows(x)
    ours, theirs = layer_norm(x, n), F.layer_norm(x, (n,))
    assert not (ours.isnan() & ~exact.isnan()).any()
    finite = theirs.isfinite()
    if not finite.any():
        return  # PyTorch's own are NaN; ours are not
    if kind == "constant":
        # 0, but for what rounding leaves of the mean: a few units of eps² of the elements, over √eps of the norm.
        limit = (
            x.double().abs() * (64 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps ** 2) / math.sqrt(1e-5)
        )
        assert (ours.double().abs() <= limit).all()
        return
    error = (ours.double() - exact).abs()[finite].max()
    allowed = (theirs.double() - exact).abs()[finite].max()
    assert error <= 2 * (allowed + torch.finfo(dtype).eps * exact.abs().max()), f"{float(error)}, {float(allowed)}"


@pytest.mark.sample(4)
@DTYPES
@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.1, -1e-3])
def test_eps(device: str, dtype: torch.dtype, eps: float) -> None:
    x = torch.randn(6, 50).to(device, dtype)
    tolerance = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-6
    torch.testing.assert_close(
        layer_norm(x, 50, eps=eps), F.layer_norm(x, (50,), eps=eps), rtol=tolerance, atol=tolerance, equal_nan=True
    )
    assert layer_norm(torch.zeros(2, 8, device=device, dtype=dtype), 8, eps=-1.0).isnan().all()


def test_special_values_stay_in_their_row(device: str) -> None:
    x = torch.randn(5, 300, device=device)
    x[1, 7], x[3, 100] = math.nan, math.inf
    y = layer_norm(x, 300)
    assert y[1].isnan().all()
    assert y[3].isnan().all()
    assert y[[0, 2, 4]].isfinite().all()


@pytest.mark.sample(16)
@DTYPES
@pytest.mark.parametrize("shape", [(4, 3, 5), (2, 0, 5), (2, 3, 0), (0,), (1,), (7,)])
@pytest.mark.parametrize("count", [1, 2])
def test_normalized_shapes_and_empties(device: str, dtype: torch.dtype, shape: tuple[int, ...], count: int) -> None:
    if count > len(shape):
        return
    normalized = shape[-count:]
    x = torch.randn(shape).to(device, dtype).requires_grad_()
    weight, bias = (torch.randn(normalized).to(device, dtype).requires_grad_() for _ in range(2))
    y = layer_norm(x, normalized, weight, bias)
    copies = [t.detach().requires_grad_() for t in (x, weight, bias)]
    wanted = F.layer_norm(copies[0], normalized, *copies[1:])
    tolerance = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(y, wanted, rtol=tolerance, atol=tolerance)
    y.sum().backward()
    wanted.sum().backward()
    for ours, theirs in zip((x, weight, bias), copies, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=tolerance, atol=512 * torch.finfo(dtype).eps)


# Which gradients are wanted changes a constant of the kernel alone, and tests/kernels/test_simulated_layer_norm.py has each.
@pytest.mark.sample(8)
@pytest.mark.parametrize("wanted", range(8))
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("n", [30, 1000])
def test_each_subset_of_parameters_and_gradients(device: str, weight: bool, bias: bool, n: int, wanted: int) -> None:
    given = operands(11, n, torch.float32, device)
    x, w, b = (t if t is given[0] or present else None for t, present in zip(given, (True, weight, bias), strict=True))
    for i, t in enumerate((x, w, b)):
        if t is not None:
            t.requires_grad_(bool(wanted >> i & 1))
    inputs = [t for t in (x, w, b) if t is not None and t.requires_grad]
    y = layer_norm(x, n, w, b)
    assert y.requires_grad == bool(inputs)
    if not inputs:
        return
    grad = torch.randn_like(y)
    copies = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in (x, w, b)]
    theirs = F.layer_norm(copies[0], (n,), *copies[1:])
    for ours, right in zip(
        torch.autograd.grad(y, inputs, grad),
        torch.autograd.grad(theirs, [t for t in copies if t is not None and t.requires_grad], grad),
        strict=True,
    ):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)


@pytest.mark.sample(3)
@DTYPES
def test_statistics(device: str, dtype: torch.dtype) -> None:
    x = (torch.randn(3, 4, 50) + 2).to(device, dtype)
    y, mean, rstd = layer_norm(x, (4, 50), return_stats=True)
    assert alike(y, layer_norm(x, (4, 50)))
    assert mean.shape == rstd.shape == (3, 1, 1)
    assert mean.dtype == rstd.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    wide = x.double()
    tolerance = 1e-6 if device == "cuda" and dtype != torch.float64 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(mean.double(), wide.mean((1, 2), keepdim=True), rtol=tolerance, atol=tolerance)
    rest = torch.rsqrt(wide.var((1, 2), unbiased=False, keepdim=True) + 1e-5)
    torch.testing.assert_close(rstd.double(), rest, rtol=tolerance, atol=tolerance)
    x.requires_grad_()
    y, mean, rstd = layer_norm(x, (4, 50), return_stats=True)
    assert y.requires_grad
    assert not mean.requires_grad
    assert not rstd.requires_grad


def test_statistics_of_rows_without_elements(device: str) -> None:
    """No kernel writes them."""
    with filled():
        _, mean, rstd = layer_norm(torch.ones(3, 0, device=device), 0, return_stats=True)
    assert mean.tolist() == [[0.0]] * 3
    assert rstd.isnan().all()


# The sum and its norm


@DTYPES
@EACH_LENGTH
def test_add_layer_norm_is_the_sum_and_its_norm(n: int, device: str, dtype: torch.dtype) -> None:
    m = 19 if n < 4096 else 3
    x, weight, bias = operands(m, n, dtype, device)
    residual = torch.randn(m, n, generator=torch.Generator().manual_seed(2)).to(device, dtype).requires_grad_()
    y, s = add_layer_norm(x, residual, n, weight, bias)
    assert alike(s, x + residual)
    if device == "cuda":
        norm = layer_norm(s.detach(), n, weight, bias)
        # The sums of a row of two arrays may have another order.
        torch.testing.assert_close(y, norm, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    grads = [torch.randn(m, n, generator=torch.Generator().manual_seed(i)).to(device, dtype) for i in (3, 4)]
    inputs = (x, residual, weight, bias)
    ours = torch.autograd.grad((y, s), inputs, grads)
    exact = [t.detach().double().requires_grad_() for t in (s, weight, bias)]
    wanted = torch.autograd.grad(
        (F.layer_norm(exact[0], (n,), *exact[1:]), exact[0] * 1), exact, [g.double() for g in grads]
    )
    for i, (got, right) in enumerate(zip(ours, (wanted[0], *wanted), strict=True)):
        if n == 1 and i < 3:
            continue  # 0 up to rounding
        tolerance = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(
            got.double(), right, rtol=tolerance, atol=tolerance * max(float(right.abs().max()), 16.0)
        )


@pytest.mark.sample(1)
def test_gradient_of_the_sum_or_of_the_norm_alone(device: str) -> None:
    x, weight, bias = operands(5, 40, torch.float64, device)
    residual = torch.randn(5, 40, dtype=torch.float64, device=device, requires_grad=True)
    for part in (0, 1):
        grads = torch.autograd.grad(add_layer_norm(x, residual, 40, weight, bias)[part].sum(), (x, residual))
        s = x + residual
        wanted = torch.autograd.grad((F.layer_norm(s, (40,), weight, bias), s)[part].sum(), (x, residual))
        for got, right in zip(grads, wanted, strict=True):
            torch.testing.assert_close(got, right)
    assert torch.autograd.gradcheck(lambda *t: add_layer_norm(t[0], t[1], 40, *t[2:]), (x, residual, weight, bias))
    assert torch.autograd.gradgradcheck(
        lambda *t: add_layer_norm(t[0], t[1], 6, *t[2:]),
        [t.detach()[..., :6].contiguous().requires_grad_() for t in (x[:2], residual[:2], weight, bias)],
    )


def test_mixed_summands(device: str) -> None:
    x = torch.randn(6, 96, device=device).bfloat16().requires_grad_()
    residual = torch.randn(6, 96, device=device, requires_grad=True)
    y, s = add_layer_norm(x, residual, 96)
    assert y.dtype == s.dtype == torch.float32
    assert alike(s, x + residual)
    torch.testing.assert_close(y, F.layer_norm(s, (96,)))
    (y.sum() + s.sum()).backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    assert residual.grad is not None
    assert residual.grad.dtype == torch.float32


# Errors


def test_shapes_are_refused_in_pytorchs_words(device: str) -> None:
    x = torch.ones(2, 3, device=device)
    ones = torch.ones(2, 3, device=device)
    of_same_shape = (
        "Expected {0} to be of same shape as normalized_shape, but got {0} of shape {1} and normalized_shape = {2}"
    )
    refused = [
        (((4,),), "Given normalized_shape=[4], expected input with shape [*, 4], but got input of size[2, 3]"),
        (((3,), ones[:, 0]), of_same_shape.format("weight", [2], [3])),
        (((3,), None, ones), of_same_shape.format("bias", [2, 3], [3])),
        (((),), "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element"),
    ]
    for arguments, words in refused:
        for function in (layer_norm, F.layer_norm):
            with pytest.raises(RuntimeError, match=re.escape(words)):
                function(x, *arguments)
    layer_norm(x, 3)  # and life goes on


def test_dtypes_that_do_not_belong_together_are_refused(device: str) -> None:
    x = torch.ones(2, 3, device=device)
    with pytest.raises(RuntimeError, match=r"expected scalar type float32 but found float64: `weight` and `bias` must"):
        layer_norm(x, 3, torch.ones(3, device=device, dtype=torch.float64))
    with pytest.raises(RuntimeError, match=r"expected scalar type float16 but found float32"):
        layer_norm(x.half(), 3, torch.ones(3, device=device).half(), torch.ones(3, device=device))
    with pytest.raises(
        TypeError, match=r"layer_norm: `x` must have dtype float16 or bfloat16 or float32 or float64, got int64"
    ):
        layer_norm(x.long(), 3)
    with pytest.raises(TypeError, match=r"layer_norm: `weight` must be a Tensor or None, got list"):
        layer_norm(x, 3, [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"add_layer_norm: `residual` must have shape \(2, 3\), got \(3,\)"):
        add_layer_norm(x, x[0], 3)
    layer_norm(x, 3)


def test_backward_refuses_operands_that_do_not_belong_together(device: str) -> None:
    x = torch.randn(4, 6, device=device)
    stats = torch.ones(2, 4, 1, device=device)
    with pytest.raises(ValueError, match=r"layer_norm_backward: `grad_y` must have shape \(4, 6\), got \(6, 4\)"):
        layer_norm_backward(x.t(), x, stats, 6)
    with pytest.raises(ValueError, match=r"`stats` must have shape \(2, 4, 1\), got \(4, 1\)"):
        layer_norm_backward(x, x, stats[0], 6)
    with pytest.raises(
        TypeError, match=r"`grad_y` must have dtype float16 or bfloat16 or float32 or float64, got int64"
    ):
        layer_norm_backward(x.long(), x, stats, 6)
    with pytest.raises(TypeError, match=r"`grad_sum` must have dtype float32, got float64"):
        layer_norm_backward(x, x, stats, 6, grad_sum=x.double())


@pytest.mark.gpu
def test_tensors_on_other_devices_are_refused() -> None:
    x = torch.ones(2, 3, device="cuda")
    with pytest.raises(ValueError, match=r"layer_norm: `weight` must be on the device of `x` .*, got .* on cpu"):
        layer_norm(x, 3, torch.ones(3))
    layer_norm(x, 3)
