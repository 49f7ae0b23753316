"""Products in 16 bits whose rows are not multiples of 16 bytes: the padded products, on tensors in host memory."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from autograd_bridge import linear
from cupyops.arrays import library_of
from cupyops.ops.linear import odd
from cupyops.ops.linear.odd import Odd, is_odd, odd_gradients, odd_product
from cupyops.ops.linear.products import gradients
from cupyops.simulator.numpy_arrays import NumpyLibrary

SIZES = [(5, 131, 133), (17, 136, 129), (3, 129, 136), (1, 9, 7)]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(odd, "ODD", Odd(least_size=1, least=1))


def operands(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(m + n + k)
    return torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype), torch.randn(n).to(dtype)


def close(got: Tensor, exact: Tensor) -> None:
    """Compares with a tolerance of one rounding of a float32 sum."""
    assert got.shape == exact.shape
    torch.testing.assert_close(got.double(), exact, rtol=2 * torch.finfo(got.dtype).eps, atol=1e-4 * exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_padded_product_is_the_product(m: int, n: int, k: int, dtype: torch.dtype, with_bias: bool) -> None:
    x, weight, bias = operands(m, n, k, dtype)
    before = [t.clone() for t in (x, weight, bias)]
    given = bias if with_bias else None
    y = odd_product(library_of(x), x, weight, given, (n, k), str(dtype).removeprefix("torch."))
    close(y, F.linear(x.double(), weight.double(), bias.double() if with_bias else None))
    assert all(torch.equal(a, b) for a, b in zip((x, weight, bias), before, strict=True))
    batched = odd_product(library_of(x), x.view(m, 1, k), weight, given, (n, k), str(dtype).removeprefix("torch."))
    assert torch.equal(batched, y.view(m, 1, n))
    assert y.is_contiguous(), "in host memory, as PyTorch's"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("wants", [(True, True), (True, False), (False, True)])
def test_padded_gradients_are_the_gradients(
    m: int, n: int, k: int, dtype: torch.dtype, wants: tuple[bool, bool]
) -> None:
    x, weight, _ = operands(m, n, k, dtype)
    grad = torch.randn(m, n).to(dtype)
    found = gradients(library_of(x), grad, (m,), x if wants[1] else None, weight if wants[0] else None)
    exact = grad.double() @ weight.double(), grad.double().T @ x.double()
    for got, wanted, want in zip(found, exact, wants, strict=True):
        if want:
            close(got, wanted)
            assert got.is_contiguous()
        else:
            assert got.numel() == 0


def test_values_that_are_not_finite_stay_in_their_rows_and_columns() -> None:
    """A zero times an infinity is not a number: what is appended to one operand meets what is appended to the other."""
    x, weight, bias = operands(5, 131, 133, torch.float16)
    x[1, 3], weight[7, 2], bias[9] = float("inf"), float("nan"), float("-inf")
    library, grad = library_of(x), torch.randn(5, 131).half()
    grad[2, 130] = float("inf")
    y = odd_product(library, x, weight, bias, (131, 133), "float16")
    wanted = F.linear(x.double(), weight.double(), bias.double())
    assert torch.equal(y.isfinite(), wanted.isfinite())
    grad_x, grad_weight = odd_gradients(library, grad, x, weight)
    assert torch.equal(grad_x.isfinite(), (grad.double() @ weight.double()).isfinite())
    assert torch.equal(grad_weight.isfinite(), (grad.double().T @ x.double()).isfinite())


def test_a_part_of_a_padded_product_is_no_view() -> None:
    """PyTorch refuses to write to a view that a Function has made."""
    library = library_of(torch.empty(()))
    with torch.no_grad():
        y = library.part(torch.randn(6, 16), (2, 3, 13))
    assert y._base is None
    assert (y.shape, y.stride()) == ((2, 3, 13), (48, 16, 1))
    y += torch.ones(13, requires_grad=True)
    assert y.requires_grad


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_traced_product_has_the_strides_of_a_real_one(device: str) -> None:
    """A compiled program reads its operands by the strides that were traced."""
    with FakeTensorMode():
        x, weight = (torch.empty(*s, device=device, dtype=torch.bfloat16) for s in ((4, 8, 136), (129, 136)))
        y = torch.ops.cupyops.linear(x, weight, None)
    row = 136 if device == "cuda" else 129
    assert (y.shape, y.stride()) == ((4, 8, 129), (8 * row, row, 1))


def test_other_arrays_are_padded_alike() -> None:
    library, x = NumpyLibrary(), np.arange(6.0).reshape(2, 3)
    padded = library.padded(x, 4, 8)
    assert padded.shape == (4, 8)
    assert padded.sum() == x.sum()
    assert (library.part(padded, (2, 3)) == x).all()
    ours = library_of(torch.empty(()))
    assert torch.equal(ours.padded(torch.from_numpy(x), 4, 8), torch.from_numpy(padded))


@pytest.mark.parametrize(
    ("dtype", "n", "k", "wanted"),
    [
        ("bfloat16", 50257, 768, True),
        ("float16", 1024, 588, True),
        ("bfloat16", 50256, 768, False),
        ("float32", 50257, 768, False),
        ("float64", 50257, 768, False),
        ("bfloat16", 257, 768, False),
        ("bfloat16", 1, 2**20, False),
        ("bfloat16", 2**20, 1, False),
    ],
)
def test_the_rule(dtype: str, n: int, k: int, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(odd, "ODD", Odd())
    assert is_odd(dtype, n, k) is wanted
    monkeypatch.setattr(odd, "ODD", None)
    assert is_odd(dtype, n, k) is False


@pytest.mark.parametrize("wrong", ["columns", "dtype"])
def test_what_does_not_fit_is_left_to_the_library(wrong: str) -> None:
    x, weight, bias = operands(5, 131, 133, torch.bfloat16)
    x = x[:, :100] if wrong == "columns" else x.half()
    dtype = str(x.dtype).removeprefix("torch.")
    assert odd_product(library_of(x), x, weight, bias, (131, 133), dtype) is None


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "k"), [(50257, 768), (1000, 1003), (1003, 1000), (1001, 1003)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_on_a_gpu(n: int, k: int, with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(odd, "ODD", Odd())
    x, weight, bias = (t.cuda() for t in operands(512, n, k, torch.bfloat16))
    tensors: list[Any] = [x.view(4, 128, k), weight, bias][: 3 if with_bias else 2]
    tensors = [t.detach().requires_grad_() for t in tensors]
    y = linear(*tensors)
    assert y.stride(-2) % 8 == 0
    assert y._base is None
    exact = [t.detach().double().requires_grad_() for t in tensors]
    wanted = F.linear(*exact)
    grad = torch.randn_like(wanted).to(torch.bfloat16)
    close(y.detach(), wanted.detach())
    for got, e in zip(
        torch.autograd.grad(y, tensors, grad), torch.autograd.grad(wanted, exact, grad.double()), strict=True
    ):
        close(got, e)
    y.add_(1)
