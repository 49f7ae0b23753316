"""Layer normalisation, its gradients and its tangent in the simulator: every program that an operand or a result asks for."""

import itertools
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from cupyops.ops.layer_norm.body import add_forward, backward, tangent

pytestmark = pytest.mark.simulator
EPS = 1e-3
FLAGS = (False, True)
# The dtype of the rows, and that of weight and bias.
PAIRS = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
    (torch.float64, torch.float64),
]
# Rows of a part of a warp, of single elements in tiles, of a warp, and of several.
LENGTHS = (1, 24, 37, 256, 1000)
EACH_LENGTH = pytest.mark.parametrize("n", LENGTHS)
EACH_PAIR = pytest.mark.parametrize("kinds", PAIRS)


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


def drawn(*shape: int, dtype: torch.dtype, mean: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator, dtype=torch.float64) + mean).to(dtype)


def assert_near(got: Tensor, exact: Tensor, what: object) -> None:
    """Raises unless the error, relative to the largest value, is at most some roundings of the arithmetic and one of
    the result."""
    acc = torch.float64 if got.dtype == torch.float64 else torch.float32
    scale = exact.abs().max().clamp_min(1)
    error = float((got.double() - exact.double()).abs().max() / scale)
    assert error <= 24 * torch.finfo(acc).eps + torch.finfo(got.dtype).eps, f"{what}: off by {error:.2e}"


@pytest.mark.sample(8)
@EACH_LENGTH
@EACH_PAIR
@pytest.mark.parametrize("affine", FLAGS)
@pytest.mark.parametrize("bias", FLAGS)
@pytest.mark.parametrize("residual", FLAGS)
@pytest.mark.parametrize("stats", FLAGS)
def test_forward(
    n: int, kinds: tuple[torch.dtype, torch.dtype], affine: bool, bias: bool, residual: bool, stats: bool
) -> None:
    """Has cases with and without weight, bias, residual and statistics, and with a result of another dtype."""
    dtype, parameters = kinds
    m = 5 if stats else 1
    x, r = drawn(m, n, dtype=dtype, mean=2), drawn(m + 1, n, dtype=dtype)[:m] if residual else None
    w = drawn(n, dtype=parameters, mean=1) if affine else None
    b = drawn(n, dtype=parameters) if bias else None
    result = ("float32", None, "float64")[affine + bias] if dtype != torch.float64 else None
    y, s, found = add_forward(x, r, w, b, (n,), EPS, result, stats)
    total = x if r is None else (x.double() + r.double()).to(dtype)
    assert s is None or torch.equal(s, total)
    exact = total.double()
    whole = F.layer_norm(exact, (n,), *(None if t is None else t.double() for t in (w, b)), EPS)
    assert y.dtype == (dtype if result is None else getattr(torch, result))
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    assert_near(y.to(dtype if result is None else acc), whole, result)
    assert (found is None) == (not stats)
    if stats:
        assert_near(found[0, :, 0], exact.mean(1), "mean")
        assert_near(found[1, :, 0], 1 / torch.sqrt(exact.var(1, correction=0) + EPS), "rstd")


def test_terms_of_two_dtypes() -> None:
    for n in (37, 256):
        x, r = drawn(3, n, dtype=torch.bfloat16), drawn(4, n, dtype=torch.float32)[:3]
        for a, b in ((x, r), (r, x)):
            y, s, _ = add_forward(a, b, None, None, (n,), EPS)
            assert torch.equal(s, a.float() + b.float())
            assert_near(y, F.layer_norm(s.double(), (n,), None, None, EPS), n)


def test_a_row_with_an_infinity_is_not_a_number() -> None:
    x = drawn(3, 40, dtype=torch.float32)
    x[1, 7] = float("inf")
    y, _, stats = add_forward(x, None, None, None, (40,), EPS)
    assert y.isnan().all(1).tolist() == stats[:, :, 0].isnan().all(0).tolist() == [False, True, False]


@pytest.mark.parametrize("n", [37, 256])
def test_the_rounding_of_the_mean_is_taken_off(n: int) -> None:
    """A constant row gives zeros, and a small deviation beside a large mean keeps its digits."""
    rows = torch.stack((torch.full((n,), 1000.3), drawn(n, dtype=torch.float32) * 1e-2 + 1e3))
    y = add_forward(rows, None, None, None, (n,), 1e-5)[0]
    assert y[0].abs().max() < 1e-7
    assert_near(y[1], F.layer_norm(rows[1].double(), (n,), None, None, 1e-5), "deviation")


def test_a_huge_element_gives_numbers() -> None:
    x = drawn(2, 96, dtype=torch.float32)
    x[1, 5] = torch.finfo(torch.float32).max
    y = add_forward(x, None, None, None, (96,), EPS)[0]
    assert y.isfinite().all()


@pytest.mark.sample(8)
@EACH_LENGTH
@EACH_PAIR
@pytest.mark.parametrize("want", [w for w in itertools.product(FLAGS, repeat=3) if any(w)])
@pytest.mark.parametrize("affine", FLAGS)
@pytest.mark.parametrize("added", FLAGS)
def test_backward(
    n: int, kinds: tuple[torch.dtype, torch.dtype], want: tuple[bool, ...], affine: bool, added: bool
) -> None:
    """Every set of wanted gradients, with and without a weight and a further gradient of x."""
    dtype, parameters = kinds
    m = 37
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    x, g, more = drawn(m, n, dtype=dtype, mean=1), drawn(m + 1, n, dtype=dtype)[:m], drawn(m + 2, n, dtype=dtype)[:m]
    exact = x.double()
    stats = torch.stack((exact.mean(1), 1 / torch.sqrt(exact.var(1, correction=0) + EPS))).to(acc)[..., None]
    xhat = (exact - stats[0].double()) * stats[1].double()
    w, add = drawn(n, dtype=parameters, mean=1) if affine else None, more if added else None
    found = backward(g, x, stats, w, add, (n,), EPS, *want)
    grad = g.double() * (1 if w is None else w.double())
    of_x = stats[1].double() * (grad - grad.mean(1, keepdim=True) - xhat * (grad * xhat).mean(1, keepdim=True))
    of_x = of_x + (0 if add is None else add.double())
    right = of_x, (g.double() * xhat).sum(0), g.double().sum(0)
    of_parameters = dtype if w is None else w.dtype
    for got, of, wanted, kind in zip(found, right, want, (dtype, of_parameters, of_parameters), strict=True):
        assert got.dtype == kind
        if wanted:
            assert_near(got, of, want)
        else:
            assert got.numel() == 0


def test_a_gradient_of_another_dtype() -> None:
    x, g = drawn(5, 64, dtype=torch.bfloat16), drawn(5, 64, dtype=torch.float32)
    stats = torch.stack((x.float().mean(1), torch.rsqrt(x.float().var(1, correction=0) + EPS)))[..., None]
    wide = x.double().requires_grad_()
    F.layer_norm(wide, (64,), None, None, EPS).backward(g.double())
    assert_near(backward(g, x, stats, None, None, (64,), EPS, True, False, False)[0], wide.grad, "grad_x")  # type: ignore[arg-type]


@pytest.mark.sample(4)
@pytest.mark.parametrize("n", [24, 37, 1000])
@pytest.mark.parametrize("affine", FLAGS)
@pytest.mark.parametrize("of_weight", FLAGS)
@pytest.mark.parametrize("of_bias", FLAGS)
@pytest.mark.parametrize("result", [None, "float64"])
def test_tangent(n: int, affine: bool, of_weight: bool, of_bias: bool, result: str | None) -> None:
    """Has cases with and without the weight and the tangents of weight and bias."""
    x, t = drawn(5, n, dtype=torch.float32, mean=1), drawn(6, n, dtype=torch.float32)[:5]
    w, tw = drawn(n, dtype=torch.float32, mean=1), drawn(n + 1, dtype=torch.float32)[:n]
    tb = drawn(n, dtype=torch.float32)
    stats = torch.stack((x.mean(1), torch.rsqrt(x.var(1, correction=0) + EPS)))[..., None]
    operands = [x.double(), (w if affine else torch.ones(n)).double(), torch.zeros(n).double()]
    tangents = [
        t.double(),
        *((of if there else torch.zeros(n)).double() for of, there in ((tw, of_weight), (tb, of_bias))),
    ]
    exact = torch.func.jvp(lambda x, w, b: F.layer_norm(x, (n,), w, b, EPS), tuple(operands), tuple(tangents))[1]
    given = w if affine else None, tw if of_weight else None, tb if of_bias else None
    got = tangent(t, x, stats, *given, (n,), EPS, result)
    assert got.dtype == (torch.float32 if result is None else torch.float64)
    assert_near(got.float(), exact, given)


def test_statistics_of_another_dtype_are_refused() -> None:
    """The launch raises before a kernel misreads them."""
    x = drawn(3, 40, dtype=torch.bfloat16)
    for dtype in (torch.bfloat16, torch.float64):
        stats = torch.ones(2, 3, 1, dtype=dtype)
        with pytest.raises(TypeError, match=r"layer_norm_backward: `stats` must have dtype float32"):
            backward(x, x, stats, None, None, (40,), EPS, True, True, True)
        with pytest.raises(TypeError, match=r"layer_norm_jvp: `stats` must have dtype float32"):
            tangent(x, x, stats, None, None, None, (40,), EPS)
