"""Each kernel of layer normalisation for itself in the simulator, held to the naive kernels of the texts, under configs of the
tests' own: rows as short as a way allows reach every packing, every branch, and the second use of every stage and table in
milliseconds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from cupyops import Threads
from cupyops.ops.layer_norm.body import COLUMN_SUMS, backward_kernel, forward_kernel
from cupyops.ops.layer_norm.config import LayerNormConfig
from tests.naive import naive_kernel
from tests.operators.test_layer_norm import exact_rows, hard_rows
from tests.support import alike

pytestmark = pytest.mark.simulator

EPS = 1e-3  # as large as a variance of 1 lets one see

# In float64, so that the naive kernels' own rounding does not count.
NAIVE_FORWARD = naive_kernel("layer_norm_forward", "layer_norm_forward_naive", Threads("M"), dtypes=["float64"])
NAIVE_BACKWARD = naive_kernel(
    "layer_norm_backward", "layer_norm_backward_naive", Threads("threads"), dtypes=["float64"]
)
NAIVE_COLUMN_SUMS = naive_kernel("column_sums", "column_sums_naive", Threads("N"), dtypes=["float64"])


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


@dataclass(frozen=True)
class Way:
    """A config, and the rows that are sent along it.

    Attributes:
        config: of a forward or of a backward.
        n: elements of a row.
        dtype: of the rows; ``weights``: of weight and bias, where they differ from it; ``result``: of y and its gradient.
    """

    config: LayerNormConfig
    n: int
    dtype: torch.dtype = torch.float32
    weights: torch.dtype | None = None
    result: torch.dtype | None = None

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def rounded(self) -> torch.dtype:
        """What y has the digits of: those of the arithmetic, where the result could hold more."""
        if self.result == torch.float64 and self.dtype != torch.float64:
            return torch.float32
        return self.result or self.dtype

    @property
    def columns(self) -> tuple[Tensor, Tensor]:
        """Weight and bias."""
        generator = torch.Generator().manual_seed(self.n)
        weight, bias = (torch.randn(self.n, generator=generator) + 1 for _ in range(2))
        return weight.to(self.weights or self.dtype), bias.to(self.weights or self.dtype)


def staged(way: Way, input_bytes: int, weight_bytes: int = 0) -> Way:
    """The way with the shared memory that its stages take, and that weight and bias take in a forward."""
    config = way.config
    return replace(way, config=replace(config, shared=config.slice * (config.stages * input_bytes + 2 * weight_bytes)))


# 37 rows: groups of a block that have all their rows, some of them, none. Of 21 rows a persistent cluster takes eleven or ten,
# so that the four tables of an exchange are used a third time, and their counters pass through both phases.
FORWARD = {
    "a part of a warp": Way(LayerNormConfig(64, 8, 4, 2, rows_each=2), 60),
    "a row for each access": Way(LayerNormConfig(64, 8, 4, 2, rows_each=2, full=True), 64),
    "three warps": Way(LayerNormConfig(192, 96, 4, 1, rows_each=2), 380, torch.float16, torch.float32),
    "vectors of eight": Way(LayerNormConfig(128, 16, 8, 2), 248, torch.bfloat16),
    "pairs": Way(LayerNormConfig(32, 32, 2, 2), 126, torch.float64),
    "odd": Way(LayerNormConfig(64, 32, 1, 3, rows_each=2), 77, torch.float16),
    "aligned apart": Way(LayerNormConfig(64, 64, 8, 2, rows_each=2, aligned_apart=True), 1000, torch.float16),
    "cluster of aligned apart": Way(LayerNormConfig(64, 64, 4, 1, cluster=2, aligned_apart=True, full=True), 512),
    "cluster of forty warps": Way(LayerNormConfig(160, 160, 4, 1, cluster=8), 4 * 1200 + 4),
    "wide": staged(Way(LayerNormConfig(64, 64, 4, 2, kind="wide", cluster=4, stages=2), 1028), 4, 4),
    "wide and full": staged(
        Way(LayerNormConfig(32, 32, 8, 1, kind="wide", cluster=2, stages=3, full=True), 512, torch.float16), 2, 2
    ),
    "wide in one block": staged(Way(LayerNormConfig(96, 96, 4, 1, kind="wide", stages=2), 372), 4, 4),
    "wide in sixteen blocks": staged(Way(LayerNormConfig(32, 32, 4, 1, kind="wide", cluster=16, stages=1), 1980), 4, 4),
    "streaming": Way(LayerNormConfig(64, 64, 4, 2, kind="streaming"), 1204),
    "streaming odd": Way(LayerNormConfig(160, 160, 1, 2, kind="streaming"), 701, torch.float64),
    "of fewer bits": Way(LayerNormConfig(64, 8, 4, 2, rows_each=2), 60, result=torch.bfloat16),
    "of more bits": Way(LayerNormConfig(128, 16, 8, 2), 248, torch.bfloat16, result=torch.float32),
    "odd of fewer bits": Way(LayerNormConfig(64, 32, 1, 3), 77, torch.float64, result=torch.float16),
    "cluster of fewer bits": Way(LayerNormConfig(64, 64, 4, 1, cluster=4), 4 * 250, result=torch.float16),
    "wide of fewer bits": staged(
        Way(LayerNormConfig(64, 64, 4, 2, kind="wide", cluster=4, stages=2), 1028, result=torch.bfloat16), 4, 4
    ),
    "wide of more bits": staged(
        Way(LayerNormConfig(32, 32, 8, 1, kind="wide", cluster=2, stages=3), 504, torch.float16, result=torch.float64),
        2,
        2,
    ),
    "streaming of fewer bits": Way(
        LayerNormConfig(64, 64, 2, 2, kind="streaming"), 1202, torch.float64, result=torch.float32
    ),
}
BACKWARD = {
    "a part of a warp": Way(LayerNormConfig(64, 8, 4, 2), 60),
    "a row for each access": Way(LayerNormConfig(64, 8, 4, 2, full=True), 64),
    "three warps": Way(LayerNormConfig(192, 96, 4, 1), 380, torch.float16, torch.float32),
    "one group": Way(LayerNormConfig(64, 64, 2, 2), 250, torch.float64),
    "odd": Way(LayerNormConfig(64, 16, 1, 3), 45, torch.bfloat16),
    "aligned apart": Way(LayerNormConfig(64, 32, 4, 2, aligned_apart=True), 252, torch.float16),
    "cluster of aligned apart": Way(LayerNormConfig(64, 64, 4, 1, cluster=2, aligned_apart=True), 504, torch.bfloat16),
    "cluster of forty warps": Way(LayerNormConfig(160, 160, 4, 1, cluster=8), 4 * 1200 + 4),
    "wide": staged(Way(LayerNormConfig(64, 64, 4, 2, kind="wide", cluster=4, stages=3), 1028), 8),
    "wide and full": staged(
        Way(LayerNormConfig(32, 32, 8, 1, kind="wide", cluster=2, stages=2, full=True), 512, torch.float16), 4
    ),
    "wide in one block": staged(Way(LayerNormConfig(96, 96, 4, 1, kind="wide", stages=2), 372), 8),
    "streaming": Way(LayerNormConfig(64, 64, 4, 2, kind="streaming"), 1204),
    "streaming odd": Way(LayerNormConfig(160, 160, 1, 2, kind="streaming"), 701, torch.float64),
    "of fewer bits": Way(LayerNormConfig(64, 8, 4, 2), 60, result=torch.bfloat16),
    "of more bits": Way(LayerNormConfig(64, 16, 4, 2), 124, torch.bfloat16, result=torch.float32),
    "odd of fewer bits": Way(LayerNormConfig(64, 16, 1, 3), 45, torch.float64, result=torch.float16),
    "cluster of fewer bits": Way(LayerNormConfig(64, 64, 4, 1, cluster=4), 4 * 250, result=torch.float16),
    "wide of fewer bits": staged(
        Way(LayerNormConfig(64, 64, 4, 2, kind="wide", cluster=4, stages=3), 1032, result=torch.bfloat16), 6
    ),
    # Halves of such a row do not begin at multiples of 16 bytes.
    "wide of fewer bits and not whole": staged(
        Way(LayerNormConfig(64, 64, 4, 2, kind="wide", cluster=4, stages=3), 1028, result=torch.bfloat16), 6
    ),
    "streaming of fewer bits": Way(LayerNormConfig(64, 64, 4, 2, kind="streaming"), 1204, result=torch.float16),
}


def ways(of: dict[str, Way]) -> pytest.MarkDecorator:
    ids = [f"{way.config.kind}-{name.replace(' ', '-')}" for name, way in of.items()]
    return pytest.mark.parametrize("way", of.values(), ids=ids)


def rows_of(way: Way) -> int:
    if way.config.kind == "registers":
        return 37 if way.config.cluster == 1 else 3
    return 21 if way.config.kind == "wide" else 3


def placed(x: Tensor | None, offset: int) -> Tensor | None:
    """A copy that lies `offset` elements behind an address that is a multiple of 64."""
    if x is None:
        return None
    memory = torch.empty(x.numel() + 64, dtype=x.dtype)
    start = -memory.data_ptr() // memory.element_size() % (64 // memory.element_size()) + offset
    return memory[start : start + x.numel()].view(x.shape).copy_(x)


def run_forward(
    way: Way,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    off: int = -1,
    eps: float = EPS,
    want_stats: bool = True,
):  # type: ignore[no-untyped-def]
    """y, x + residual (None without one), and the statistics, if wanted; the array of number `off` is off its alignment."""
    m, dtype = len(x), way.dtype
    summed = None if residual is None else torch.empty(m, way.n, dtype=dtype)
    arrays = [x, residual, weight, bias, summed, torch.empty(m, way.n, dtype=way.result or dtype)]
    arrays = [placed(a, int(i == off)) for i, a in enumerate(arrays)]
    x, *_, summed, y = arrays
    arrays[4] = x if residual is None else summed  # s is x then
    stats = torch.empty(2, m, dtype=torch.float64 if dtype == torch.float64 else torch.float32) if want_stats else None
    groups = (2,) if way.config.kind == "wide" else ()
    forward_kernel(way.config, way.name, residual is not None)(*arrays, stats, m, way.n, *groups, eps)
    return y, summed, stats


def assert_near(got: Tensor, exact: Tensor, dtype: torch.dtype, what: str) -> None:
    """As near as a few roundings of the arithmetic and one of the result leave it, relative to the largest value."""
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    error = float((got.double() - exact).abs().max() / exact.abs().max())
    allowed = 6 * torch.finfo(acc).eps + (torch.finfo(dtype).eps / 2 if dtype != acc else 0)
    assert error <= allowed, f"{what}: off by {error:.2e}, allowed {allowed:.2e}"


def naive_forward(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """y, x + residual and the statistics in float64, by the naive kernel."""
    x, residual, weight, bias = (None if a is None else a.double() for a in (x, residual, weight, bias))
    summed = x if residual is None else torch.empty_like(x)
    y, stats = torch.empty_like(x), torch.empty(2, len(x), dtype=torch.float64)
    NAIVE_FORWARD(x, residual, weight, bias, summed, y, stats, *x.shape, EPS)
    return y, summed, stats


def test_the_naive_forward_is_pytorchs() -> None:
    x, residual, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in ((5, 77), (5, 77), 77, 77))
    close = {"rtol": 1e-13, "atol": 1e-13}
    for w, b, more in ((weight, bias, None), (None, bias, residual), (weight, None, residual)):
        y, summed, stats = naive_forward(x, w, b, more)
        s = x if more is None else x + more
        variance, mean = torch.var_mean(s, 1, unbiased=False)
        assert torch.equal(summed, s)
        torch.testing.assert_close(y, F.layer_norm(s, (77,), w, b, EPS), **close)
        torch.testing.assert_close(stats, torch.stack((mean, torch.rsqrt(variance + EPS))), **close)


@ways(FORWARD)
def test_forward(way: Way) -> None:
    m = rows_of(way)
    x = (torch.randn(m, way.n) + 1).to(way.dtype)
    weight, bias = way.columns
    wanted, _, (mean, rstd) = naive_forward(x, weight, bias)
    y, _, stats = run_forward(way, x, None, weight, bias)
    assert y.dtype == (way.result or way.dtype)
    assert_near(y, wanted, way.rounded, "y")
    assert_near(stats[0], mean, stats.dtype, "mean")
    assert_near(stats[1], rstd, stats.dtype, "rstd")
    # A row's bits do not depend on addresses, nor on its neighbours.
    for off in (0, 2, 3, 5):
        assert all(
            alike(a, b)
            for a, b in zip(run_forward(way, x, None, weight, bias, off), (y, None, stats), strict=True)
            if b is not None
        )
    one, _, _ = run_forward(way, x[m - 2 :], None, weight, bias)
    assert alike(one, y[m - 2 :])
    for w, b, what in (
        (weight, None, "y without bias"),
        (None, bias, "y without weight"),
        (None, None, "y without both"),
    ):
        assert_near(run_forward(way, x, None, w, b)[0], naive_forward(x, w, b)[0], way.rounded, what)


@ways(FORWARD)
def test_forward_without_statistics_gives_the_same_bits(way: Way) -> None:
    x, (weight, bias) = (torch.randn(rows_of(way), way.n) + 1).to(way.dtype), way.columns
    y, _, _ = run_forward(way, x, None, weight, bias)
    again, _, stats = run_forward(way, x, None, weight, bias, want_stats=False)
    assert stats is None
    assert alike(again, y)


@ways({name: way for name, way in FORWARD.items() if way.config.kind == "registers"})
def test_forward_of_few_rows_gives_the_same_bits(way: Way) -> None:
    x, residual = ((torch.randn(rows_of(way), way.n) + 1).to(way.dtype) for _ in range(2))
    weight, bias = way.columns
    few = replace(way, config=way.config.few_rows_forward(way.n, weight.itemsize))
    assert few.config.affine_held
    for of in ((x, None, weight, bias), (x, residual, weight, None), (x, None, None, bias)):
        for off in (-1, 2):
            assert all(
                a is b is None or alike(a, b)
                for a, b in zip(run_forward(few, *of, off), run_forward(way, *of, off), strict=True)
            )
    known = replace(way, config=replace(way.config, weighted=False))
    plain = (x, None, None, None)
    assert all(
        a is b is None or alike(a, b) for a, b in zip(run_forward(known, *plain), run_forward(way, *plain), strict=True)
    )


@ways({name: way for name, way in FORWARD.items() if name.endswith("of more bits")})
def test_forward_to_more_bits_takes_as_exact_moments(way: Way) -> None:
    """Of 16-bit rows in one pass, whose first element is two deviations off, rstd would lack two of float32's bits."""
    x = torch.randn(rows_of(way), way.n)
    x[:, ::8] = 2.75
    x = x.to(way.dtype)
    variance, mean = torch.var_mean(x.double(), 1, unbiased=False)
    _, _, stats = run_forward(way, x, None, None, None)
    eps = torch.finfo(torch.float32).eps
    assert (stats[0] - mean).abs().max() <= eps
    assert (stats[1] * torch.sqrt(variance + EPS) - 1).abs().max() <= 1.5 * eps


@ways({name: way for name, way in FORWARD.items() if way.dtype.itemsize == 2 and not name.endswith("of more bits")})
def test_forward_of_rows_far_from_their_first_element_passes_twice(way: Way) -> None:
    x = torch.randn(rows_of(way), way.n)
    x[:, 0] = 1000
    x = x.to(way.dtype)
    variance, mean = torch.var_mean(x.double(), 1, unbiased=False)
    _, _, stats = run_forward(way, x, None, None, None)
    eps = torch.finfo(torch.float32).eps
    assert (stats[0] - mean).abs().max() <= 16 * eps * mean.abs().max().clamp_min(1)
    assert (stats[1] * torch.sqrt(variance + EPS) - 1).abs().max() <= 16 * eps


@ways(FORWARD)
def test_forward_of_hard_rows(way: Way) -> None:
    rows = {kind: x.to(way.dtype) for kind, x in hard_rows(way.n).items()}
    acc = torch.float64 if way.dtype == torch.float64 else torch.float32
    for kind in ("mean 1e3, deviation 1e-2", "one outlier", "the first an outlier"):
        if way.dtype.itemsize > 2 or kind != "mean 1e3, deviation 1e-2":  # 16 bits do not hold the deviation
            y, _, _ = run_forward(way, rows[kind], None, None, None)
            assert_near(y, exact_rows(rows[kind], EPS), way.rounded, kind)
    y, _, _ = run_forward(way, rows["constant"], None, None, None)
    # 0, but for what rounding leaves of the mean: a few units of eps² of the elements, over √eps of the norm.
    assert (y.double().abs() <= rows["constant"].double().abs() * (64 * torch.finfo(acc).eps ** 2) / EPS**0.5).all()
    # The sum of a row is infinite; its mean is not.
    huge = torch.full((2, way.n), 0.75 * torch.finfo(way.dtype).max, dtype=way.dtype)
    y, _, stats = run_forward(way, huge, None, None, None)
    assert_near(stats[0], huge[:, 0].double(), stats.dtype, "mean of huge numbers")
    assert not y.isnan().any()


@ways(FORWARD)
def test_forward_of_hard_rows_beside_others(way: Way) -> None:
    plain, hard = torch.randn(6, way.n).to(way.dtype), hard_rows(way.n)["the first an outlier"][:1].to(way.dtype)
    y, _, stats = run_forward(way, plain, None, None, None)
    mixed = torch.cat([plain[:3], hard, plain[3:]])
    beside, _, stats_beside = run_forward(way, mixed, None, None, None)
    others = [0, 1, 2, 4, 5, 6]
    assert alike(beside[others], y)
    assert alike(stats_beside[:, others], stats)


@ways(FORWARD)
def test_forward_of_special_values_and_of_no_eps(way: Way) -> None:
    x = torch.randn(9, way.n).to(way.dtype)
    x[1, 7], x[3, way.n - 1], x[8, 0] = math.nan, math.inf, math.nan
    y, _, stats = run_forward(way, x, None, None, None, eps=0.0)
    special = torch.tensor([i in (1, 3, 8) for i in range(9)])
    assert y[special].isnan().all()
    assert stats[1, special].isnan().all()
    assert y[~special].isfinite().all()


# x and residual of other dtypes than the sum; both as the sum.
SUMS = {
    "registers": (replace(FORWARD["a part of a warp"], dtype=torch.float32), torch.bfloat16, torch.float32),
    "registers in pairs": (FORWARD["three warps"], torch.float16, torch.float16),
    "wide": (staged(replace(FORWARD["wide"], n=1032), 6, 4), torch.float32, torch.float16),
    # Halves of such a row do not begin at multiples of 16 bytes.
    "wide and not whole": (staged(FORWARD["wide"], 6, 4), torch.float16, torch.float32),
    "wide of halves": (staged(FORWARD["wide and full"], 4, 2), torch.float16, torch.float16),
    "streaming": (FORWARD["streaming"], torch.float32, torch.bfloat16),
    "registers of fewer bits": (FORWARD["of fewer bits"], torch.bfloat16, torch.float32),
    "wide of fewer bits": (staged(replace(FORWARD["wide of fewer bits"], n=1032), 6, 4), torch.bfloat16, torch.float32),
    "streaming of fewer bits": (FORWARD["streaming of fewer bits"], torch.float32, torch.float64),
}


@pytest.mark.parametrize("name", SUMS)
def test_forward_of_a_sum(name: str) -> None:
    way, *dtypes = SUMS[name]
    x, residual = (torch.randn(rows_of(way), way.n).to(d) for d in dtypes)
    weight, bias = way.columns
    y, s, stats = run_forward(way, x, residual, weight, bias)
    assert alike(s, x + residual)
    assert_near(y, naive_forward(s, weight, bias)[0], way.rounded, "y")
    for off in (0, 1, 4, 5):
        again = run_forward(way, x, residual, weight, bias, off)
        assert all(alike(a, b) for a, b in zip(again, (y, s, stats), strict=True))


# Gradients


def exact_gradients(way: Way, g: Tensor, x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Statistics as a forward leaves them; the gradients of x, weight and bias in float64, of those statistics, by the naive
    kernel."""
    acc = torch.float64 if way.dtype == torch.float64 else torch.float32
    variance, mean = torch.var_mean(x.double(), 1, unbiased=False)
    stats = torch.stack((mean, torch.rsqrt(variance + EPS))).to(acc)
    return stats, *naive_backward(g, x, stats, weight)


def naive_backward(
    g: Tensor, x: Tensor, stats: Tensor, weight: Tensor | None, grad_sum: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias in float64, by the naive kernel."""
    (m, n), f64 = x.shape, torch.float64
    given = (None if a is None else a.double() for a in (g, x, stats, weight, grad_sum))
    gradients = torch.empty(m, n, dtype=f64), torch.empty(n, dtype=f64), torch.empty(n, dtype=f64)
    NAIVE_BACKWARD(*given, *gradients, m, n, max(m, n))
    return gradients


@pytest.mark.parametrize("m", [5, 90])
def test_the_naive_backward_is_pytorchs(m: int) -> None:
    x, weight, bias = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((m, 77), 77, 77))
    g, grad_sum = (torch.randn(m, 77, dtype=torch.float64) for _ in range(2))
    stats = naive_forward(x.detach())[2]
    wanted = torch.autograd.grad(F.layer_norm(x, (77,), weight, bias, EPS), (x, weight, bias), g)
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(naive_backward(g, x.detach(), stats, weight.detach()), wanted, **close)
    plain = torch.autograd.grad(F.layer_norm(x, (77,), None, None, EPS), x, g)[0]
    torch.testing.assert_close(naive_backward(g, x.detach(), stats, None, grad_sum)[0], plain + grad_sum, **close)


def run_backward(  # type: ignore[no-untyped-def]
    way: Way,
    g: Tensor,
    x: Tensor,
    stats: Tensor,
    weight: Tensor | None,
    grad_sum: Tensor | None,
    want_x: bool = True,
    want_affine: bool = True,
    parts: int = 2,
    off: int = -1,
):
    """The gradient of x, and the parts of those of weight and bias (2, parts, N)."""
    m, n = x.shape
    arrays = [g, x, weight, grad_sum, torch.empty_like(x) if want_x else None]
    g, x, weight, grad_sum, grad_x = (placed(a, int(i == off)) for i, a in enumerate(arrays))
    partial = torch.empty(2, parts, n, dtype=stats.dtype) if want_affine else None
    kernel = backward_kernel(way.config, way.name, want_x, want_affine, grad_sum is not None)
    given = (g, x, stats, weight, grad_sum, grad_x)
    if way.config.kind == "streaming":
        kernel(*given, m, n)
    elif way.config.kind == "wide":
        kernel(*given, partial, m, n, parts)
    else:
        kernel(*given, partial, m, n, parts, parts * (1 if want_x else -(-n // way.config.slice)))
    return grad_x, partial


@ways(BACKWARD)
def test_backward(way: Way) -> None:
    m = rows_of(way)
    g, x, grad_sum = ((torch.randn(m, way.n) + 1).to(d) for d in (way.result or way.dtype, way.dtype, way.dtype))
    weight, _ = way.columns
    affine = way.config.kind != "streaming"
    stats, wanted, *sums = exact_gradients(way, g, x, weight)
    grad_x, partial = run_backward(way, g, x, stats, weight, None, True, affine)
    assert_near(grad_x, wanted, way.dtype, "gradient of x")
    if affine:
        for got, exact, what in zip(partial.double().sum(1), sums, ("weight", "bias"), strict=True):
            assert_near(got, exact, stats.dtype, what)
    for off in (0, 1, 2, 4):
        again, parts = run_backward(way, g, x, stats, weight, None, True, affine, off=off)
        assert alike(again, grad_x)
        assert not affine or alike(parts, partial)
    assert alike(
        run_backward(way, g[m - 1 :], x[m - 1 :], stats[:, m - 1 :].contiguous(), weight, None, True, affine)[0],
        grad_x[m - 1 :],
    )
    _, plain, *_ = exact_gradients(way, g, x, None)
    assert_near(
        run_backward(way, g, x, stats, None, None, True, affine)[0], plain, way.dtype, "gradient of x without weight"
    )
    more, _ = run_backward(way, g, x, stats, weight, grad_sum, True, False)
    assert_near(more, wanted + grad_sum.double(), way.dtype, "gradient of x and of the sum")


def apart(config: LayerNormConfig, **others: int | bool) -> LayerNormConfig:
    return replace(config, kind="apart", **others)  # type: ignore[arg-type]


# Rows and strips of columns in one launch: strips narrower than a warp and wider, the last not whole.
APART = {
    "a part of a warp": Way(apart(LayerNormConfig(64, 8, 4, 2), width=2), 60),
    "a row for each access": Way(apart(LayerNormConfig(64, 8, 4, 2, full=True), width=1), 64),
    "three warps": Way(apart(LayerNormConfig(192, 96, 4, 1), width=4), 380, torch.float16, torch.float32),
    "vectors of eight": Way(apart(LayerNormConfig(64, 32, 8, 2), width=2), 328, torch.bfloat16),
    "pairs": Way(apart(LayerNormConfig(128, 64, 2, 2), width=16), 250, torch.float64),
    "odd": Way(apart(LayerNormConfig(64, 16, 1, 3), width=32), 45, torch.bfloat16),
    "wide strips": Way(apart(LayerNormConfig(128, 128, 1, 2), width=64), 201),
    "folded": Way(apart(LayerNormConfig(128, 128, 4, 2), folded=4, width=8), 1012, torch.bfloat16),
    "folded and full": Way(apart(LayerNormConfig(128, 128, 4, 1, full=True), folded=2, width=8), 512),
    "cluster": Way(apart(LayerNormConfig(64, 64, 4, 1, cluster=2), width=4), 500, torch.float16),
    "of fewer bits": Way(apart(LayerNormConfig(64, 8, 4, 2), width=4), 60, result=torch.bfloat16),
    "of more bits": Way(apart(LayerNormConfig(64, 16, 4, 2), width=4), 124, torch.bfloat16, result=torch.float32),
}


def run_apart(  # type: ignore[no-untyped-def]
    way: Way,
    g: Tensor,
    x: Tensor,
    stats: Tensor,
    weight: Tensor | None,
    grad_sum: Tensor | None,
    wants: tuple[bool, bool, bool] = (True, True, True),
    off: int = -1,
):
    """The gradients of x, weight and bias; None for those that are not wanted."""
    (m, n), config = x.shape, way.config
    arrays = [g, x, weight, grad_sum, torch.empty_like(x) if wants[0] else None]
    g, x, weight, grad_sum, grad_x = (placed(a, int(i == off)) for i, a in enumerate(arrays))
    sums = [torch.empty(n, dtype=way.weights or way.dtype) if want else None for want in wants[1:]]
    strips = -(-n // (config.width * config.vector_width * config.cluster)) if any(wants[1:]) else 0
    blocks = strips + (-(-m // config.groups) if wants[0] else 0)
    kernel = backward_kernel(config, way.name, True, any(wants[1:]), grad_sum is not None)
    kernel(g, x, stats, weight, grad_sum, grad_x, *sums, m, n, strips, blocks)
    return grad_x, *sums


@ways(APART)
@pytest.mark.parametrize("m", [1, 3, 70])
def test_backward_apart(way: Way, m: int) -> None:
    g, x, grad_sum = ((torch.randn(m, way.n) + 1).to(d) for d in (way.result or way.dtype, way.dtype, way.dtype))
    weight, _ = way.columns
    stats, *wanted = exact_gradients(way, g, x, weight)
    got = run_apart(way, g, x, stats, weight, None)
    for a, exact, what in zip(got, wanted, ("x", "weight", "bias"), strict=True):
        assert_near(a, exact, a.dtype, f"gradient of {what}")
    # Bits depend neither on addresses, nor on what else is wanted; a row's not on its neighbours.
    for off in (0, 1, 2, 4):
        assert all(map(alike, run_apart(way, g, x, stats, weight, None, off=off), got))
    for wants in ((True, False, False), (True, True, False), (False, False, True), (False, True, True)):
        for a, b, want in zip(run_apart(way, g, x, stats, weight, None, wants), got, wants, strict=True):
            assert (alike(a, b)) if want else a is None
    last = run_apart(way, g[m - 1 :], x[m - 1 :], stats[:, m - 1 :].contiguous(), weight, None)
    assert alike(last[0], got[0][m - 1 :])
    more, *sums = run_apart(way, g, x, stats, weight, grad_sum)
    assert_near(more, wanted[0] + grad_sum.double(), way.dtype, "gradient of x and of the sum")
    assert all(map(alike, sums, got[1:]))


@ways(APART)
def test_backward_apart_without_weight(way: Way) -> None:
    g, x = ((torch.randn(5, way.n) + 1).to(d) for d in (way.result or way.dtype, way.dtype))
    stats, wanted, *_ = exact_gradients(way, g, x, None)
    got, _, _ = run_apart(way, g, x, stats, None, None, (True, False, False))
    assert_near(got, wanted, way.dtype, "gradient of x")
    known = replace(way, config=replace(way.config, weighted=False))
    assert alike(run_apart(known, g, x, stats, None, None, (True, False, False))[0], got)


@ways({name: way for name, way in BACKWARD.items() if way.config.kind != "streaming"})
def test_backward_apart_of_few_rows_has_the_bits_of_many(way: Way) -> None:
    g, x, grad_sum = ((torch.randn(5, way.n) + 1).to(d) for d in (way.result or way.dtype, way.dtype, way.dtype))
    weight, _ = way.columns
    stats, _, *sums = exact_gradients(way, g, x, weight)
    few = replace(way, config=way.config.few_rows_backward(way.n, way.name))
    assert few.config.kind == "apart"
    for more in (None, grad_sum):
        got, *found = run_apart(few, g, x, stats, weight, more)
        assert alike(got, run_backward(way, g, x, stats, weight, more)[0])
        for a, exact, what in zip(found, sums, ("weight", "bias"), strict=True):
            assert_near(a, exact, a.dtype, what)


@ways({name: way for name, way in BACKWARD.items() if way.config.kind == "registers" and way.config.cluster == 1})
@pytest.mark.parametrize("parts", [1, 3])
def test_backward_of_weight_and_bias_alone(way: Way, parts: int) -> None:
    """Slices of a row each for itself: three of them, the last not whole."""
    vector_width = way.config.vector_width
    way = replace(
        way, n=2 * way.config.slice + way.n // vector_width // 2 * vector_width, config=replace(way.config, full=False)
    )
    g, x = ((torch.randn(37, way.n) + 1).to(d) for d in (way.result or way.dtype, way.dtype))
    stats, _, *sums = exact_gradients(way, g, x, None)
    _, partial = run_backward(way, g, x, stats, None, None, False, True, parts)
    for off in (0, 1):
        assert alike(run_backward(way, g, x, stats, None, None, False, True, parts, off)[1], partial)
    for got, exact, what in zip(partial.double().sum(1), sums, ("weight", "bias"), strict=True):
        assert_near(got, exact, stats.dtype, what)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_column_sums(dtype: torch.dtype) -> None:
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    for parts, n in ((1, 1), (3, 31), (31, 33), (32, 32), (33, 70), (65, 7)):
        partial = torch.randn(2, parts, n, dtype=acc)
        wanted = torch.empty(2, n, dtype=torch.float64)
        NAIVE_COLUMN_SUMS(partial.double(), *wanted, parts, n)
        torch.testing.assert_close(wanted, partial.double().sum(1), rtol=1e-12, atol=1e-12)
        for given in ((True, True), (True, False), (False, True)):
            sums = [torch.empty(n, dtype=dtype) if g else None for g in given]
            COLUMN_SUMS(partial, *sums, parts, n)
            for got, exact in zip(sums, wanted, strict=True):
                if got is not None:
                    assert_near(got, exact, dtype, f"{parts} parts of {n}")
