"""GELU: values against float64, special values, errors, module, arrays without PyTorch."""

import copy
import math
from decimal import Decimal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cupyops
from autograd_bridge import GELU, gelu, gelu_backward
from tests.accuracy import assert_as_accurate, spacing
from tests.support import EACH_FLOAT, alike

FORMS = pytest.mark.parametrize("approximate", ["none", "tanh"])
DTYPES = pytest.mark.parametrize("dtype", EACH_FLOAT)
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])

KAPPA, BETA = 0.044715, math.sqrt(2 / math.pi)


def exact(x: Tensor, approximate: str) -> Tensor:
    """GELU in float64, in forms that keep their relative accuracy."""
    x = x.double()
    if approximate == "none":
        return 0.5 * x * torch.special.erfc(-x * math.sqrt(0.5))
    return x * torch.sigmoid(2 * BETA * (x + KAPPA * x**3))


def exact_derivative(x: Tensor, approximate: str) -> Tensor:
    x = x.double()
    if approximate == "none":
        return 0.5 * torch.special.erfc(-x * math.sqrt(0.5)) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    u = BETA * (x + KAPPA * x**3)
    return torch.sigmoid(2 * u) + x * torch.sigmoid(2 * u) * torch.sigmoid(-2 * u) * 2 * BETA * (1 + 3 * KAPPA * x * x)


def sample(dtype: torch.dtype, device: str) -> Tensor:
    """Every number of a 16-bit dtype within ±14 (beyond, float64 runs out of exponent for the references); else a dense
    range of them."""
    if dtype in (torch.float16, torch.bfloat16):
        bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
        return bits[bits.abs() <= 14].to(device)
    dense = torch.linspace(-14, 14, 200_001, dtype=torch.float64)
    return torch.cat([dense, torch.randn(50_000, dtype=torch.float64), dense * 1e-5]).to(device, dtype)


@pytest.mark.sample(8)
@FORMS
@DTYPES
def test_forward_against_float64(device: str, dtype: torch.dtype, approximate: str) -> None:
    x = sample(dtype, device)
    assert_as_accurate(gelu(x, approximate), F.gelu(x, approximate=approximate), exact(x, approximate), order=x)


@pytest.mark.sample(8)
@FORMS
@DTYPES
def test_backward_against_float64(device: str, dtype: torch.dtype, approximate: str) -> None:
    x = sample(dtype, device).requires_grad_()
    gelu(x, approximate).backward(torch.ones_like(x))
    theirs = torch.ops.aten.gelu_backward(torch.ones_like(x), x.detach(), approximate=approximate)
    assert x.grad is not None
    assert_as_accurate(x.grad, theirs, exact_derivative(x.detach(), approximate), order=x.detach())


def test_one_element_that_errs_more_than_pytorch_near_it_is_named() -> None:
    x = torch.linspace(0.5, 1, 5_000)
    right = exact(x, "none")
    ulp = spacing(right, torch.float32)
    theirs, ours = right.float(), right.float()
    assert_as_accurate(ours, theirs, right, order=x)
    theirs[1000] += 10 * ulp[1000]
    for at, noticed in ((900, False), (1100, False), (899, True), (1101, True)):  # a fiftieth of them on either side
        wrong = ours.clone()
        wrong[at] += 15 * ulp[at]
        if noticed:
            with pytest.raises(
                AssertionError, match=f"1 of 5000 elements err too much; the worst at x = {float(x[at])}"
            ):
                assert_as_accurate(wrong, theirs, right, order=x)
        else:
            assert_as_accurate(wrong, theirs, right, order=x)


@FORMS
@HALVES
@pytest.mark.usefixtures("without_onednn")
def test_every_16_bit_number_is_as_pytorch_has_it(
    device: str, kernels: bool, dtype: torch.dtype, approximate: str
) -> None:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).to(device)
    ours, theirs = gelu(x, approximate), F.gelu(x, approximate=approximate)
    assert torch.equal(ours.isnan(), theirs.isnan())
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    ours = gelu_backward(torch.ones_like(x), x, approximate)
    if kernels:  # PyTorch's own tanh form gives NaN for huge numbers
        assert ours[x.isfinite()].isfinite().all(), "a finite number has a gradient that is not"


@FORMS
@DTYPES
@pytest.mark.usefixtures("without_onednn")
def test_special_values(device: str, kernels: bool, dtype: torch.dtype, approximate: str) -> None:
    tiny = torch.finfo(dtype).smallest_normal / 4
    x = torch.tensor(
        [math.nan, math.inf, -math.inf, 0.0, -0.0, tiny, -tiny, torch.finfo(dtype).max, torch.finfo(dtype).min]
    )
    x = x.to(device, dtype)
    ours, theirs = gelu(x, approximate), F.gelu(x, approximate=approximate)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    # PyTorch's own on a CPU loses the sign in some of its loops.
    assert torch.equal(torch.signbit(ours[3:5]), torch.signbit((x if kernels else theirs)[3:5])), "-0 must stay -0"
    of_nan, of_inf, of_minus_inf = gelu_backward(torch.ones_like(x), x, approximate)[:3].tolist()
    assert math.isnan(of_nan)
    assert math.isnan(of_inf + of_minus_inf) or (of_inf, of_minus_inf) == (1, 0), "PyTorch's own are NaN"


@pytest.mark.gpu
def test_negative_tail_keeps_its_accuracy() -> None:
    x = torch.tensor([-5.0, -5.5, -6.0, -8.0, -10.0, -12.0], device="cuda")
    torch.testing.assert_close(gelu(x).double(), exact(x, "none"), rtol=1e-5, atol=0)
    assert float(F.gelu(torch.tensor(-6.0))) > -5.9e-9, "PyTorch's form no longer cancels: the README says that it does"


def test_float64_keeps_its_relative_accuracy_in_the_tail(device: str, kernels: bool) -> None:
    """Decimal numbers give the density, since float64 rounds the square, and erfcx the ratio of both."""
    if not kernels:
        return  # PyTorch's form cancels
    x = torch.linspace(-37.5, -1, 500, dtype=torch.float64)
    power = torch.tensor([float((-(Decimal(v) ** 2) / 2).exp()) for v in x.tolist()], dtype=torch.float64)
    cdf = power * torch.special.erfcx(-x * math.sqrt(0.5)) / 2
    ours = x.to(device).requires_grad_()
    y = gelu(ours)
    y.sum().backward()
    assert ours.grad is not None
    torch.testing.assert_close(y.detach().cpu(), x * cdf, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.grad.cpu(), cdf + x * power / math.sqrt(2 * math.pi), rtol=1e-14, atol=0)
    far = torch.tensor([-39.0, -45.0, -1e300], dtype=torch.float64, device=device)
    assert not gelu(far).any()
    assert not gelu_backward(torch.ones_like(far), far).any()


@FORMS
def test_forward_and_backward_of_a_network_agree_with_pytorch(device: str, approximate: str) -> None:
    ours = nn.Sequential(nn.Linear(8, 16), GELU(approximate), nn.Linear(16, 4)).to(device)
    theirs = nn.Sequential(nn.Linear(8, 16), nn.GELU(approximate), nn.Linear(16, 4)).to(device)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(32, 8, device=device)
    for net in (ours, theirs):
        net(x).square().sum().backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_module_is_a_drop_in() -> None:
    module = GELU("tanh")
    assert isinstance(module, nn.GELU)
    assert repr(module) == repr(nn.GELU("tanh"))
    assert module.state_dict() == {}
    x = torch.randn(5)
    assert alike(copy.deepcopy(module)(x), module(x))


def test_unknown_form(device: str) -> None:
    with pytest.raises(RuntimeError, match=r"gelu: approximate argument must be either none or tanh, got 'erf'"):
        gelu(torch.ones(3, device=device), "erf")
    with pytest.raises(RuntimeError, match=r"approximate argument must be either none or tanh"):
        gelu(torch.ones(3, device=device, requires_grad=True), "erf")
    gelu(torch.ones(3, device=device))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.uint8])
def test_other_dtypes_are_refused_in_the_name_of_the_operator(device: str, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    words = rf"^gelu: `x` must have dtype float16 or bfloat16 or float32 or float64, got {name}$"
    with pytest.raises(TypeError, match=words):
        gelu(torch.ones(3, device=device).to(dtype))


def test_backward_refuses_other_shapes_and_dtypes(device: str) -> None:
    x = torch.ones(3, 4, device=device)
    with pytest.raises(ValueError, match=r"gelu_backward: `grad_y` must have shape \(3, 4\), got \(4, 3\)"):
        gelu_backward(x.t(), x)
    with pytest.raises(TypeError, match=r"`(grad_y|x)` must have dtype"):
        gelu_backward(x.double(), x)


@pytest.mark.gpu
@FORMS
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_cupy_arrays_get_the_same_bits(dtype: str, approximate: str) -> None:
    import cupy

    x = cupy.random.standard_normal((33, 65)).astype(dtype)
    for view in (x, x.T, x[:, 1:], x[::2], x[:0]):
        y = cupyops.gelu(view, approximate)
        assert isinstance(y, cupy.ndarray)
        assert alike(torch.from_dlpack(y), gelu(torch.from_dlpack(view), approximate))
        grad = cupyops.gelu_backward(cupy.ones_like(view), view, approximate)
        tensor = torch.from_dlpack(view)
        assert alike(torch.from_dlpack(grad), gelu_backward(torch.ones_like(tensor), tensor, approximate))


@pytest.mark.gpu
@DTYPES
def test_any_dlpack_array_comes_back_as_cupy(dtype: torch.dtype) -> None:
    import cupy

    x = torch.randn(100, device="cuda").to(dtype)
    y = cupyops.gelu(x)
    assert isinstance(y, cupy.ndarray)
    assert alike(torch.from_dlpack(y), gelu(x))
