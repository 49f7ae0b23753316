"""softmax and log_softmax: test data; and tests compared with PyTorch's of values, gradients, dimensions, extremes, dtypes, errors."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from autograd_bridge import log_softmax, softmax
from tests.support import FLOATS, with_floats

from .data import (
    COLUMNS,
    ROW,
    ROWS,
    Arguments,
    Case,
    FamilyData,
    LaunchCase,
    dtype_name,
    launch_case,
    model_of,
    random,
)

CASES = [
    Case(
        name,
        lambda x, ours=ours: ours(x, -1),
        lambda x, theirs=theirs: theirs(x, -1),
        getattr(torch.ops.cupyops, name).default,
        lambda x: (x,),
        1,
        elementwise=False,
    )
    for name, ours, theirs in (
        ("softmax", softmax, torch.softmax),
        ("log_softmax", log_softmax, torch.log_softmax),
    )
]
X = random(ROWS, COLUMNS)


def _samples() -> list[Arguments]:
    return [(X,), (3 * X[:1],)]


def _launches() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for n in (100, 1024, 4544, 32768, 131072):
            x, about = ((16, n), dtype), f"{dtype_name(dtype)} {n}"
            yield launch_case("softmax", about, lambda x: softmax(x, -1), x)
            yield launch_case("log_softmax", about, lambda x: log_softmax(x, -1), x)


MODELS = {
    "softmax": model_of(lambda x: softmax(x, -1), ROW),
    "log_softmax": model_of(lambda x: log_softmax(x, 1), (4, 8, 3)),
}
DATA = FamilyData(CASES, {"softmax": _samples, "log_softmax": _samples}, _launches, MODELS)

# Tests

BOTH = pytest.mark.parametrize(
    ("ours", "theirs"), [(softmax, torch.softmax), (log_softmax, torch.log_softmax)], ids=["softmax", "log_softmax"]
)
# Rows of a few threads, filled and not; of a block with a tail; of a cluster.
LENGTHS = (3, 64, 1030, 40_000)


def eps_of(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


@pytest.mark.sample(4)
@BOTH
@pytest.mark.parametrize(("n", "dtype"), with_floats(LENGTHS, each=1))
def test_values_and_gradients_against_float64(
    device: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor], dtype: torch.dtype, n: int
) -> None:
    x = torch.randn(3, n).to(device, dtype).requires_grad_()
    double = x.detach().double().requires_grad_()
    y, wanted = ours(x, -1), theirs(double, -1)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), wanted, rtol=32 * eps_of(dtype), atol=0.1 * eps_of(dtype))
    grad = torch.randn_like(y)
    (got,), (exact,) = torch.autograd.grad(y, x, grad), torch.autograd.grad(wanted, double, grad.double())
    assert got.dtype == dtype
    near = 4 * eps_of(dtype) * exact.abs().max().item() * (1 if ours is softmax else 8)
    torch.testing.assert_close(got.double(), exact, rtol=32 * eps_of(dtype), atol=near)


@pytest.mark.sample(5)
@BOTH
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_any_dimension(device: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor], dim: int) -> None:
    x = torch.randn(3, 4, 5, device=device, dtype=torch.float64, requires_grad=True)
    for of in (lambda t: t, lambda t: t.transpose(0, 2)):
        y, wanted = ours(of(x), dim), theirs(of(x), dim)
        torch.testing.assert_close(y, wanted)
        assert y.is_contiguous() or not wanted.is_contiguous()
        grad = torch.randn_like(wanted)
        torch.testing.assert_close(torch.autograd.grad(y, x, grad), torch.autograd.grad(wanted, x, grad))


@BOTH
def test_numbers_and_nothing(device: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]) -> None:
    for shape in ((), (1,), (0,), (3, 0), (0, 3)):
        x = torch.full(shape, 2.0, device=device)
        for dim in (0, -1):
            torch.testing.assert_close(ours(x, dim), theirs(x, dim))


@BOTH
def test_extremes_are_pytorchs(device: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]) -> None:
    """-inf masks an element. A row of -inf, and a row with inf or NaN, is NaN, though a sum in one pass begins with -inf."""
    inf, nan = float("inf"), float("nan")
    rows = [[-inf, 1, 2, -inf], [-inf] * 4, [inf, 1, 2, 3], [nan, 1, 2, 3], [3e38, -3e38, 3e38, 0], [1e4, 1e4, -1e4, 0]]
    x = torch.tensor(rows, device=device).repeat(1, 25)
    torch.testing.assert_close(ours(x, -1), theirs(x, -1), equal_nan=True)


@pytest.mark.sample(2)
@BOTH
def test_the_dtype_is_that_of_the_argument_or_of_autocast(
    device: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]
) -> None:
    x = torch.randn(3, 8, device=device).bfloat16()
    for dtype in (None, torch.float32, torch.float64, torch.float16):
        y, wanted = ours(x, -1, dtype), theirs(x, -1, dtype=dtype)
        assert y.dtype == wanted.dtype
        torch.testing.assert_close(y, wanted)
    with torch.autocast(device, torch.bfloat16):
        assert ours(x, -1).dtype == theirs(x, -1).dtype
    assert ours(torch.arange(3, device=device), 0, torch.float32).dtype == torch.float32


@BOTH
def test_second_derivatives_vmap_and_forward_mode(
    device: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]
) -> None:
    x = torch.randn(3, 5, device=device, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ours(x, 0), x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: ours(x, 1), x)
    torch.testing.assert_close(torch.func.vmap(lambda r: ours(r, 0))(x), theirs(x, 1))


@pytest.mark.sample(1)
@BOTH
def test_compiled_is_as_eager(device: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda x: ours(x, 1), fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 5):
        x = torch.randn(rows, 7, 3, device=device, requires_grad=True)
        torch.testing.assert_close(compiled(x), theirs(x, 1))
        (got,), (wanted,) = (torch.autograd.grad(f(x).square().sum(), x) for f in (compiled, lambda x: theirs(x, 1)))
        torch.testing.assert_close(got, wanted)


@BOTH
@pytest.mark.parametrize(
    ("of", "kind", "words"),
    [
        (lambda f: f([1.0], 0), TypeError, "softmax: `x` must be a Tensor, got list"),
        (lambda f: f(torch.arange(3), 0), TypeError, "softmax: `x` must be a floating tensor, got torch.int64"),
        (lambda f: f(torch.ones(2, 3), 2), IndexError, r"\(expected to be in range of \[-2, 1\], but got 2\)"),
        (lambda f: f(torch.ones(()), -2), IndexError, r"\(expected to be in range of \[-1, 0\], but got -2\)"),
    ],
)
def test_what_is_no_row_is_refused(
    ours: Callable[..., Tensor], theirs: Any, of: Callable[..., Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        of(ours)
