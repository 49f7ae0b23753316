"""The tangent kernels of layer normalisation for themselves in the simulator, and along the configs that the operator chooses."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from cupyops import Threads
from cupyops.ops.layer_norm.config import LayerNormConfig
from cupyops.ops.layer_norm.tangent import config_of, tangent_kernel
from tests.kernels.layer_norm_ways import EPS, Way, assert_near, placed, ways
from tests.naive import naive_kernel
from tests.simulator.test_simulator_use import sparse
from tests.support import alike

pytestmark = pytest.mark.simulator

NAIVE = naive_kernel("layer_norm_tangent", "layer_norm_tangent_naive", Threads("M"), dtypes=["float64"])
WAYS = {
    "a part of a warp": Way(LayerNormConfig(64, 8, 4, 2), 60),
    "a row for each access": Way(LayerNormConfig(64, 8, 8, 1, full=True), 64, torch.bfloat16),
    "three warps": Way(LayerNormConfig(192, 96, 4, 1), 380, torch.float16, torch.float32),
    "odd": Way(LayerNormConfig(64, 32, 1, 3), 77, torch.float64),
    "cluster of forty warps": Way(LayerNormConfig(160, 160, 4, 1, cluster=8), 4 * 1200 + 4),
    "of more bits": Way(LayerNormConfig(128, 16, 8, 2), 248, torch.bfloat16, result=torch.float32),
    "streaming": Way(LayerNormConfig(64, 64, 4, 2, kind="streaming"), 1204),
    "streaming of fewer bits": Way(
        LayerNormConfig(64, 64, 2, 2, kind="streaming"), 1202, torch.float64, result=torch.float16
    ),
}


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


def statistics(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x.double(), 1, unbiased=False)
    return torch.stack((mean, torch.rsqrt(variance + EPS)))


def naive_tangent(*given: Tensor | None) -> Tensor:
    """In float64."""
    tangent_y = torch.empty(given[0].shape, dtype=torch.float64)  # type: ignore[union-attr]
    NAIVE(*(None if a is None else a.double() for a in given), tangent_y, *tangent_y.shape)
    return tangent_y


@pytest.mark.parametrize("given", ["", "w", "wWB", "B"])
def test_the_naive_tangent_is_pytorchs(given: str) -> None:
    x, dx = torch.randn(2, 5, 77, dtype=torch.float64)
    parts = {name: torch.randn(77, dtype=torch.float64) for name in given}
    weight, moved = parts.get("w"), (parts.get("W"), parts.get("B"))

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (77,), w, b, EPS)

    zero = torch.zeros(77, dtype=torch.float64)
    primals = x, zero + 1 if weight is None else weight, zero
    wanted = torch.func.jvp(function, primals, (dx, *(zero if t is None else t for t in moved)))[1]
    got = naive_tangent(dx, x, statistics(x), weight, *moved)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def run(way: Way, arrays: Sequence[Tensor | None], off: int = -1) -> Tensor:
    """The kernel's result. The array `off` does not begin at a multiple of 16 bytes."""
    m, n = arrays[1].shape  # type: ignore[union-attr]
    tangent_y = torch.full((m, n), torch.nan, dtype=way.result or way.dtype)
    given = [placed(a, int(i == off)) if i != 2 else a for i, a in enumerate([*arrays, tangent_y])]
    tangent_kernel(way.config, way.name)(*given, m, n)
    assert given[-1] is not None
    return given[-1]


@ways(WAYS)
def test_tangent(way: Way) -> None:
    # 37 rows: groups of a block that have all their rows, some of them, none.
    m = 3 if way.config.cluster > 1 or way.config.kind == "streaming" else 37
    dx, x = ((torch.randn(m, way.n) + 1).to(way.dtype) for _ in range(2))
    stats = statistics(x).to(torch.float64 if way.dtype == torch.float64 else torch.float32)
    weight, moved_weight = way.columns
    moved_bias = weight.flip(0)
    full = [dx, x, stats, weight, moved_weight, moved_bias]
    for given in ((), (3,), (4,), (5,), (3, 4, 5)):
        arrays = [a if i < 3 or i in given else None for i, a in enumerate(full)]
        got = run(way, arrays)
        assert_near(got, naive_tangent(*arrays), way.rounded, f"tangent with {given}")
    for off in (0, 1, 3, 4, 5, 6):
        assert alike(run(way, full, off), got)
    last = [dx[m - 1 :], x[m - 1 :], stats[:, m - 1 :].contiguous(), *full[3:]]
    assert alike(run(way, last), got[m - 1 :])
    if list(WAYS.values()).index(way) % 2:
        return  # a kernel more to compile, for the ways in turn
    unweighted = replace(way, config=replace(way.config, weighted=False))
    assert alike(run(unweighted, [*full[:3], None, None, None]), run(way, [*full[:3], None, None, None]))


@pytest.mark.parametrize("kind", ["registers", "streaming"])
def test_tangent_of_more_than_two_to_the_32_elements(kind: str) -> None:
    rows, columns = 2**23 + 8, 512
    dx, x, moved = (sparse(rows * columns, "float16").reshape(rows, columns) for _ in range(3))
    stats = sparse(2 * rows, "float32").reshape(2, rows)
    x[-8:] = np.linspace(-3, 3, 8 * columns).reshape(8, columns)
    dx[-8:], stats[1, -8:] = x[-8:] ** 2, 1
    config = LayerNormConfig(64, 64, 8, 1, full=True, kind=kind)
    with cupyops.simulate(sanitize=True, blocks=slice(-2, None)):
        tangent_kernel(config, "float16")(dx, x, stats, None, None, None, moved, rows, columns)
    wanted = naive_tangent(*(torch.tensor(a[-2:]) for a in (dx, x)), torch.tensor(stats[:, -2:]), None, None, None)
    torch.testing.assert_close(torch.tensor(moved[-2:]).double(), wanted, rtol=1e-3, atol=1e-3)
    assert not moved[:1024].any(), "the last blocks wrote to the front"


def test_every_length_has_a_config_of_a_strategy_that_has_a_text() -> None:
    for n in (1, 7, 64, 768, 1000, 1024, 5120, 8192, 16384, 65536, 131072, 200000, 262144, 10**6):
        for dtype in ("float16", "float32", "float64"):
            for capability in (70, 90):
                for result_bytes in (2, 4, 8):
                    config = config_of(n, dtype, 4, capability, result_bytes)
                    assert config.kind in ("registers", "streaming")
                    assert not config.stages
                    holds = config.slice * config.cluster
                    assert config.kind == "streaming" or holds >= n, (n, dtype, capability)
