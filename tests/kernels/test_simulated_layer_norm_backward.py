"""Each backward kernel of layer normalisation for itself in the simulator, as ``test_simulated_layer_norm_forward.py`` takes the
forward's."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from cupyops import Threads
from cupyops.ops.layer_norm.body import backward_kernel
from cupyops.ops.layer_norm.config import LayerNormConfig
from cupyops.tiling.partial_sums import partial_sums
from tests.kernels.layer_norm_ways import (
    BACKWARD,
    EPS,
    Way,
    assert_near,
    exact_gradients,
    naive_backward,
    naive_forward,
    placed,
    rows_of,
    ways,
)
from tests.naive import naive_kernel
from tests.support import alike

pytestmark = pytest.mark.simulator

NAIVE_COLUMN_SUMS = naive_kernel("column_sums", "column_sums_naive", Threads("N"), dtypes=["float64"])


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


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
    elif way.config.kind in ("wide", "ring"):
        kernel(*given, partial, m, n, parts)
    else:
        kernel(*given, partial, m, n, parts, parts * (1 if want_x else -(-n // way.config.slice)))
    return grad_x, partial


# Each kernel has a case by default: one that is streamed is behind the others in the list.
@pytest.mark.sample(10)
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
    # A row's bits do not depend on addresses, nor on its neighbours.
    last = g[-7:], x[-7:], stats[:, -7:].contiguous()
    aligned, sums_of_last = run_backward(way, *last, weight, None, True, affine)
    assert alike(aligned, grad_x[-7:])
    for off in (0, 1, 2, 4):
        again, parts = run_backward(way, *last, weight, None, True, affine, off=off)
        assert alike(again, aligned)
        assert not affine or alike(parts, sums_of_last)
    _, plain, *_ = exact_gradients(way, *last[:2], None)
    assert_near(run_backward(way, *last, None, None, True, affine)[0], plain, way.dtype, "gradient of x without weight")
    # A kernel more to compile: for every second way. Those of few rows and of a ring have a sum's gradient beside weight's.
    if not affine or list(BACKWARD.values()).index(way) % 2:
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
    # Registers for 32 values a thread, of which the row and the weight take 24.
    "sum's gradient loaded late": Way(apart(LayerNormConfig(64, 64, 4, 2, min_blocks=32), width=4), 380),
    "wide strips": Way(apart(LayerNormConfig(128, 128, 1, 2), width=64), 201),
    "folded": Way(apart(LayerNormConfig(128, 128, 4, 2), folded=4, width=8), 1012, torch.bfloat16),
    "folded and full": Way(apart(LayerNormConfig(128, 128, 4, 1, full=True), folded=2, width=8), 512),
    "cluster": Way(apart(LayerNormConfig(64, 64, 4, 1, cluster=2), width=4), 500, torch.float16),
    "of fewer bits": Way(apart(LayerNormConfig(64, 8, 4, 2), width=4), 60, result=torch.bfloat16),
    "of more bits": Way(apart(LayerNormConfig(64, 16, 4, 2), width=4), 124, torch.bfloat16, result=torch.float32),
}
# The gradient of x alone is a kernel more to compile, and so is that of a sum: each way has one of the two.
ALONE = {name: way for i, (name, way) in enumerate(APART.items()) if i % 3 == 1}


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


@pytest.mark.sample(4)
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
    for wants in ((True, True, False), (False, False, True), (False, True, True)):
        for a, b, want in zip(run_apart(way, g, x, stats, weight, None, wants), got, wants, strict=True):
            assert (alike(a, b)) if want else a is None
    last = run_apart(way, g[m - 1 :], x[m - 1 :], stats[:, m - 1 :].contiguous(), weight, None)
    assert alike(last[0], got[0][m - 1 :])
    if way in ALONE.values():
        return
    more, *sums = run_apart(way, g, x, stats, weight, grad_sum)
    assert_near(more, wanted[0] + grad_sum.double(), way.dtype, "gradient of x and of the sum")
    assert alike(run_apart(way, g, x, stats, weight, grad_sum, off=3)[0], more)
    assert all(map(alike, sums, got[1:]))


@pytest.mark.sample(1)
@ways(ALONE)
def test_backward_apart_of_x_alone(way: Way) -> None:
    g, x = ((torch.randn(5, way.n) + 1).to(d) for d in (way.result or way.dtype, way.dtype))
    weight, _ = way.columns
    stats, wanted, *_ = exact_gradients(way, g, x, weight)
    got, *sums = run_apart(way, g, x, stats, weight, None, (True, False, False))
    assert sums == [None, None]
    assert_near(got, wanted, way.dtype, "gradient of x")
    assert alike(got, run_apart(way, g, x, stats, weight, None)[0])
    stats, wanted, *_ = exact_gradients(way, g, x, None)
    got, _, _ = run_apart(way, g, x, stats, None, None, (True, False, False))
    assert_near(got, wanted, way.dtype, "gradient of x without weight")
    known = replace(way, config=replace(way.config, weighted=False))
    assert alike(run_apart(known, g, x, stats, None, None, (True, False, False))[0], got)


TO_FEW = {
    name: BACKWARD[name]
    for name in (
        *("a part of a warp", "a row for each access", "three warps", "one group", "odd", "cluster of aligned apart"),
        *("cluster of forty warps", "wide", "wide and full", "ring", "ring and full", "odd of fewer bits"),
        "ring of wider weights",
    )
}


@pytest.mark.sample(2)
@ways(TO_FEW)
def test_backward_apart_of_few_rows_has_the_bits_of_many(way: Way) -> None:
    """With the gradient of the sum and without it in turn: either is two kernels more to compile for each way."""
    g, x, grad_sum = ((torch.randn(5, way.n) + 1).to(d) for d in (way.result or way.dtype, way.dtype, way.dtype))
    weight, _ = way.columns
    stats, _, *sums = exact_gradients(way, g, x, weight)
    few = replace(way, config=way.config.few_rows_backward(way.n, way.name))
    assert few.config.kind == "apart"
    more = grad_sum if list(TO_FEW.values()).index(way) % 2 else None
    got, *found = run_apart(few, g, x, stats, weight, more)
    assert alike(got, run_backward(way, g, x, stats, weight, more)[0])
    for a, exact, what in zip(found, sums, ("weight", "bias"), strict=True):
        assert_near(a, exact, a.dtype, what)


@pytest.mark.sample(3)
@ways({name: way for name, way in BACKWARD.items() if way.config.kind == "ring"})
@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_backward_of_few_rows_in_a_ring(way: Way, m: int) -> None:
    """A cluster has fewer rows than its ring has room for, or none."""
    g, x, grad_sum = ((torch.randn(m, way.n) + 1).to(d) for d in (way.result or way.dtype, way.dtype, way.dtype))
    weight, _ = way.columns
    stats, wanted, *sums = exact_gradients(way, g, x, weight)
    grad_x, partial = run_backward(way, g, x, stats, weight, grad_sum, parts=3)
    assert_near(grad_x, wanted + grad_sum.double(), way.dtype, "gradient of x and of the sum")
    for got, exact, what in zip(partial.double().sum(1), sums, ("weight", "bias"), strict=True):
        assert_near(got, exact, stats.dtype, what)


@pytest.mark.sample(2)
@ways({name: way for name, way in BACKWARD.items() if way.config.kind == "ring"})
def test_backward_in_a_ring_adds_the_gradient_of_a_sum(way: Way) -> None:
    """As PyTorch's addition behind the kernel, but for one rounding, and with the same gradients of weight and bias."""
    m = rows_of(way)
    g, x, grad_sum = ((torch.randn(m, way.n) + 1).to(d) for d in (way.result or way.dtype, way.dtype, way.dtype))
    weight, _ = way.columns
    for given, rows in ((weight, m), (None, 7)):
        g, x, grad_sum = g[-rows:], x[-rows:], grad_sum[-rows:]
        stats, wanted, *_ = exact_gradients(way, g, x, given)
        grad_x, partial = run_backward(way, g, x, stats, given, grad_sum)
        assert_near(grad_x, wanted + grad_sum.double(), way.dtype, "gradient of x and of the sum")
        assert alike(partial, run_backward(way, g, x, stats, given, None)[1])
        last = g[-7:], x[-7:], stats[:, -7:].contiguous(), given, grad_sum[-7:]
        aligned, sums_of_last = run_backward(way, *last)
        assert alike(aligned, grad_x[-7:])
        for off in (0, 3):
            again, parts = run_backward(way, *last, off=off)
            assert alike(again, aligned)
            assert alike(parts, sums_of_last)


@pytest.mark.sample(4)
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
    for parts, n in ((1, 1), (3, 31), (31, 129), (32, 128), (33, 70), (65, 7)):
        partial = torch.randn(2, parts, n, dtype=acc)
        wanted = torch.empty(2, n, dtype=torch.float64)
        NAIVE_COLUMN_SUMS(partial.double(), *wanted, parts, n)
        torch.testing.assert_close(wanted, partial.double().sum(1), rtol=1e-12, atol=1e-12)
        for given in ((True, True), (True, False), (False, True)):
            sums = [torch.empty(n, dtype=dtype) if g else None for g in given]
            partial_sums(2, parts)(partial, *sums, parts, n)
            for got, exact in zip(sums, wanted, strict=True):
                if got is not None:
                    assert_near(got, exact, dtype, f"{parts} parts of {n}")
