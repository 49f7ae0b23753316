"""Each forward kernel of layer normalisation for itself in the simulator, held to the naive kernels of the texts, under configs of
the tests' own: rows as short as a way allows reach every packing, every branch, and the second use of every stage and table
in milliseconds."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from cupyops.ops.layer_norm import body
from cupyops.ops.layer_norm.body import forward_kernel
from tests.kernels.layer_norm_ways import EPS, FORWARD, Way, assert_near, naive_forward, placed, rows_of, staged, ways
from tests.operators.test_layer_norm import exact_rows, hard_rows
from tests.support import alike

pytestmark = pytest.mark.simulator


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


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


# Each kernel has a case by default: one that is streamed is behind the others in the list.
@pytest.mark.sample(11)
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
    last = x[-5:]
    for off in (-1, 0, 2, 3, 5):
        again, _, stats_again = run_forward(way, last, None, weight, bias, off)
        assert alike(again, y[-5:])
        assert alike(stats_again, stats[:, -5:])
    for w, b, what in (
        (weight, None, "y without bias"),
        (None, bias, "y without weight"),
        (None, None, "y without both"),
    ):
        assert_near(run_forward(way, last, None, w, b)[0], naive_forward(last, w, b)[0], way.rounded, what)


@pytest.mark.sample(8)
@ways(FORWARD)
def test_forward_without_statistics_gives_the_same_bits(way: Way) -> None:
    x, (weight, bias) = (torch.randn(5, way.n) + 1).to(way.dtype), way.columns
    y, _, _ = run_forward(way, x, None, weight, bias)
    again, _, stats = run_forward(way, x, None, weight, bias, want_stats=False)
    assert stats is None
    assert alike(again, y)


# The config for few rows differs from the config for many in how a block gets its row and its weights: ways of each dtype,
# of rows within a warp, over warps and over blocks, which fill their accesses and do not.
TO_FEW = {
    name: FORWARD[name]
    for name in (
        *("a part of a warp", "a row for each access", "three warps", "vectors of eight", "pairs", "odd"),
        *("cluster of aligned apart", "cluster of forty warps", "wide", "wide and full", "of more bits"),
        *("odd of fewer bits", "wide of wider weights"),
    )
}


@pytest.mark.sample(2)
@ways(TO_FEW)
def test_forward_of_few_rows_gives_the_same_bits(way: Way) -> None:
    """With a residual and without one in turn: either is a kernel or two more to compile for each way."""
    x, residual = ((torch.randn(5, way.n) + 1).to(way.dtype) for _ in range(2))
    weight, bias = way.columns
    turn = list(TO_FEW.values()).index(way)
    more = residual if turn % 2 else None
    if more is not None and way.config.kind == "wide":  # a stage for x and one for the residual
        way = staged(way, 2 * way.dtype.itemsize, weight.itemsize)
    few = replace(way, config=way.config.few_rows_forward(way.n, weight.itemsize))
    assert few.config.kind == "registers"
    assert few.config.affine_held == (way.config.kind == "registers")
    given = replace(way, config=way.config.few_rows_forward(way.n, weight.itemsize, given=True))
    assert given.config.affine_given == few.config.affine_held
    both = (x, more, weight, bias)
    # Each third kernel takes no null.
    knows = given if turn % 3 == 0 else few
    for known, of in ((knows, both), (few, (x, more, weight, None)), (few, (x, more, None, bias))):
        for off in (-1, 2):
            assert all(
                a is b is None or alike(a, b)
                for a, b in zip(run_forward(known, *of, off), run_forward(way, *of, off), strict=True)
            )


@pytest.mark.parametrize(("weighted", "biased"), [(True, True), (True, False), (False, True), (False, False)])
def test_few_rows_load_a_given_weight_and_bias_without_a_check(weighted: bool, biased: bool) -> None:
    """A kernel that takes no null has both arrays."""
    x, weight, bias = torch.randn(3, 1024), torch.randn(1024), torch.randn(1024)
    given = weight if weighted else None, bias if biased else None
    call = body.forward_call.__wrapped__(x, None, *given, (1024,), None)
    y, _, _ = body.run_forward(call, x, None, *given, EPS)
    kernel = call.launches[0].kernel
    text = kernel.final_text(dict.fromkeys(kernel.signature.bindings, "float32"))
    assert ("#define AFFINE_GIVEN 1" in text) == (weighted and biased)
    torch.testing.assert_close(y, F.layer_norm(x, (1024,), *given, EPS))


# What knows of no weight leaves out one function's loads (layer_norm.cuh). The texts call it at these places.
@pytest.mark.sample(2)
@ways(
    {
        name: FORWARD[name]
        for name in (
            "a part of a warp",
            "odd",
            "cluster of aligned apart",
            "wide",
            "wide and weight in registers",
            "wide and affine in registers",
        )
    }
)
def test_forward_that_knows_of_no_weight_gives_the_same_bits(way: Way) -> None:
    x = (torch.randn(rows_of(way), way.n) + 1).to(way.dtype)
    if way.config.kind == "wide":
        way = staged(way, 2 * way.dtype.itemsize, (way.weights or way.dtype).itemsize)
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


@pytest.mark.sample(5)
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


@pytest.mark.sample(10)
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


@pytest.mark.sample(10)
@ways(FORWARD)
def test_forward_of_hard_rows_beside_others(way: Way) -> None:
    plain, hard = torch.randn(6, way.n).to(way.dtype), hard_rows(way.n)["the first an outlier"][:1].to(way.dtype)
    y, _, stats = run_forward(way, plain, None, None, None)
    mixed = torch.cat([plain[:3], hard, plain[3:]])
    beside, _, stats_beside = run_forward(way, mixed, None, None, None)
    others = [0, 1, 2, 4, 5, 6]
    assert alike(beside[others], y)
    assert alike(stats_beside[:, others], stats)


@pytest.mark.sample(8)
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
    "registers, aligned apart": (FORWARD["aligned apart"], torch.float16, torch.float16),
    "registers, half accesses, aligned apart": (
        FORWARD["half accesses, aligned apart"],
        torch.bfloat16,
        torch.bfloat16,
    ),
    "wide": (staged(replace(FORWARD["wide"], n=1032), 6, 4), torch.float32, torch.float16),
    # Halves of such a row do not begin at multiples of 16 bytes.
    "wide and not whole": (staged(FORWARD["wide"], 6, 4), torch.float16, torch.float32),
    "wide of halves": (staged(FORWARD["wide and full"], 4, 2), torch.float16, torch.float16),
    "wide and summed ahead": (staged(FORWARD["wide and summed ahead"], 8, 4), torch.float32, torch.float32),
    "wide, summed ahead, of halves": (
        staged(
            replace(FORWARD["wide and full"], config=replace(FORWARD["wide and full"].config, sum_ahead=True)), 4, 2
        ),
        torch.float16,
        torch.float16,
    ),
    "wide, summed ahead, of wider weights": (
        staged(
            replace(
                FORWARD["wide of wider weights"],
                config=replace(FORWARD["wide of wider weights"].config, sum_ahead=True, stages=1),
            ),
            4,
            4,
        ),
        torch.bfloat16,
        torch.bfloat16,
    ),
    "wide and weight in registers": (
        staged(
            replace(FORWARD["wide"], config=replace(FORWARD["wide"].config, affine_registers=1, stages=1), n=1032), 6, 4
        ),
        torch.bfloat16,
        torch.float32,
    ),
    "streaming": (FORWARD["streaming"], torch.float32, torch.bfloat16),
    "registers of fewer bits": (FORWARD["of fewer bits"], torch.bfloat16, torch.float32),
    "wide of fewer bits": (staged(replace(FORWARD["wide of fewer bits"], n=1032), 6, 4), torch.bfloat16, torch.float32),
    "streaming of fewer bits": (FORWARD["streaming of fewer bits"], torch.float32, torch.float64),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SUMS)
def test_forward_of_a_sum(name: str) -> None:
    way, *dtypes = SUMS[name]
    x, residual = (torch.randn(rows_of(way), way.n).to(d) for d in dtypes)
    weight, bias = way.columns
    y, s, stats = run_forward(way, x, residual, weight, bias)
    assert alike(s, x + residual)
    assert_near(y, naive_forward(s, weight, bias)[0], way.rounded, "y")
    last = y[-5:], s[-5:], stats[:, -5:]
    for off in (0, 1, 4, 5):
        again = run_forward(way, x[-5:], residual[-5:], weight, bias, off)
        assert all(alike(a, b) for a, b in zip(again, last, strict=True))
