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
from cupyops.dtypes import DTYPES
from cupyops.errors import LaunchError
from cupyops.ops.layer_norm import tangent
from cupyops.ops.layer_norm.config import LayerNormConfig
from cupyops.ops.layer_norm.tangent import config_of, tangent_kernel
from cupyops.tiling.rows import SHARED_MEMORY, SHARED_MEMORY_OF
from tests.kernels.layer_norm_ways import EPS, Way, assert_near, placed, rows_of, staged, ways
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
    # In a cluster of four, the third block has one access of 1028 elements, and the fourth has none.
    "wide": staged(Way(LayerNormConfig(64, 64, 4, 2, kind="wide", cluster=4, stages=2), 1028), 8),
    "wide and full": staged(
        Way(LayerNormConfig(32, 32, 8, 1, kind="wide", cluster=2, stages=3, full=True), 512, torch.float16), 4
    ),
    "wide in one block": staged(Way(LayerNormConfig(96, 96, 4, 1, kind="wide", stages=2), 372), 8),
    "wide in sixteen blocks": staged(Way(LayerNormConfig(32, 32, 4, 1, kind="wide", cluster=16, stages=1), 1980), 8),
    "wide and summed ahead": staged(
        Way(LayerNormConfig(64, 64, 8, 2, kind="wide", cluster=2, stages=2, sum_ahead=True), 1656, torch.bfloat16), 4
    ),
    "wide, summed ahead with one stage": staged(
        Way(
            LayerNormConfig(64, 64, 8, 2, kind="wide", cluster=2, stages=1, sum_ahead=True),
            1656,
            torch.bfloat16,
            torch.float32,
        ),
        4,
    ),
    "wide, summed ahead in sixteen blocks": staged(
        Way(LayerNormConfig(32, 32, 8, 1, kind="wide", cluster=16, stages=2, sum_ahead=True), 3960, torch.float16), 4
    ),
    "wide of more bits": staged(
        Way(
            LayerNormConfig(32, 32, 8, 2, kind="wide", cluster=2, stages=2, sum_ahead=True),
            1000,
            torch.float16,
            result=torch.float32,
        ),
        4,
    ),
    "wide of fewer bits": staged(
        Way(LayerNormConfig(64, 64, 4, 2, kind="wide", cluster=4, stages=2), 1028, result=torch.bfloat16), 8
    ),
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
    groups = (2,) if way.config.kind == "wide" else ()
    tangent_kernel(way.config, way.name)(*given, m, n, *groups)
    assert given[-1] is not None
    return given[-1]


# Each kernel has a case by default: one that is streamed is behind the others in the list.
@pytest.mark.sample(6)
@ways(WAYS)
def test_tangent(way: Way) -> None:
    m = rows_of(way)
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
    if way.config.kind == "wide":  # the kernel of few rows
        few = replace(way.config, kind="registers", stages=0, shared=0, sum_ahead=False)
        assert alike(run(replace(way, config=few), full), got)
    if list(WAYS.values()).index(way) % 2:
        return  # a kernel more to compile, for the ways in turn
    unweighted = replace(way, config=replace(way.config, weighted=False))
    assert alike(run(unweighted, [*full[:3], None, None, None]), run(way, [*full[:3], None, None, None]))


@pytest.mark.parametrize("kind", ["registers", "wide", "streaming"])
def test_tangent_of_more_than_two_to_the_32_elements(kind: str) -> None:
    rows, columns = 2**23 + 8, 512
    dx, x, moved = (sparse(rows * columns, "float16").reshape(rows, columns) for _ in range(3))
    stats = sparse(2 * rows, "float32").reshape(2, rows)
    x[-8:] = np.linspace(-3, 3, 8 * columns).reshape(8, columns)
    dx[-8:], stats[1, -8:] = x[-8:] ** 2, 1
    config = LayerNormConfig(64, 64, 8, 1, full=True, kind=kind)
    groups = ()
    if kind == "wide":  # each of half as many blocks has a second row behind the 2^32 elements
        config, groups = replace(config, stages=1, shared=4 * columns), (rows // 2,)
    with cupyops.simulate(sanitize=True, blocks=slice(-2, None)):
        tangent_kernel(config, "float16")(dx, x, stats, None, None, None, moved, rows, columns, *groups)
    wanted = naive_tangent(*(torch.tensor(a[-2:]) for a in (dx, x)), torch.tensor(stats[:, -2:]), None, None, None)
    torch.testing.assert_close(torch.tensor(moved[-2:]).double(), wanted, rtol=1e-3, atol=1e-3)
    assert not moved[:1024].any(), "the last blocks wrote to the front"


def test_every_length_has_a_config_of_a_strategy_that_has_a_text() -> None:
    for n in (1, 7, 64, 768, 1000, 1024, 5120, 8192, 16384, 16392, 65536, 131072, 200000, 262144, 300001, 10**6):
        for dtype in ("float16", "float32", "float64"):
            for capability in (70, 90, 120):
                for parameter_bytes, result_bytes in ((0, 2), (4, 2), (2, 4), (4, 4), (8, 8)):
                    config = config_of(n, dtype, parameter_bytes, capability, result_bytes)
                    assert config.kind in ("registers", "wide", "streaming")
                    assert bool(config.stages) == (config.kind == "wide")
                    assert config.weighted == (parameter_bytes > 0)
                    holds = config.slice * config.cluster
                    assert config.kind == "streaming" or holds >= n, (n, dtype, capability)


@pytest.mark.parametrize("capability", [90, 120])
@pytest.mark.parametrize("parameter_bytes", [0, 2, 4])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_persistent_blocks_of_long_rows_fit_a_multiprocessor(dtype: str, parameter_bytes: int, capability: int) -> None:
    size = DTYPES[dtype].itemsize
    room = SHARED_MEMORY_OF.get(capability, SHARED_MEMORY)
    wide = 0
    for n in range(2**15 // size, 2**20 // size, 4096 // size - 16 // size):
        for portable in (False, True):
            config = config_of(n, dtype, parameter_bytes, capability, size, portable)
            if config.kind != "wide":
                continue
            wide += 1
            assert config.shared == config.stages * config.slice * 2 * size
            assert config.min_blocks * config.shared <= room
            assert config.block <= (512 if config.vectors >= 3 else 672), "registers run short"
            assert config.block >= 352 or config.vectors == 8
            assert config.cluster <= (8 if portable else 16)
            half = config.cluster // 2
            assert half == 1 or half * 512 * max(4, config.vectors) * config.vector_width < n, (
                "half the cluster holds the row"
            )
    assert wide > 40


@pytest.mark.parametrize(
    ("n", "cluster", "vectors", "block"),
    [
        (32768, 2, 4, 512),
        (22528, 2, 4, 352),
        (20480, 2, 2, 640),  # 320 threads with four accesses; three do not fill their threads
        (18432, 2, 3, 384),
        (16392, 2, 3, 352),  # neither three nor two fill their threads
        (40960, 4, 2, 640),
        (262144, 16, 4, 512),
    ],
)
def test_long_rows_have_few_accesses_where_blocks_would_have_few_warps(
    n: int, cluster: int, vectors: int, block: int
) -> None:
    config = config_of(n, "bfloat16", 2, 90, 2)
    assert (config.kind, config.cluster, config.vectors, config.block) == ("wide", cluster, vectors, block)
    wider = config_of(n, "bfloat16", 4, 90, 2)
    assert not wider.full
    assert wider == replace(config, full=False)


def test_only_rows_that_bulk_copies_can_load_have_persistent_blocks() -> None:
    kinds = {
        (n, dtype, parameter, capability, result): config_of(n, dtype, parameter, capability, result).kind
        for n, dtype, parameter, capability, result in (
            *((16384, "bfloat16", 2, 90, 2), (16392, "bfloat16", 2, 90, 2), (16388, "bfloat16", 2, 90, 2)),
            *((16392, "bfloat16", 2, 80, 2), (16392, "bfloat16", 2, 90, 8), (16392, "float64", 8, 90, 8)),
            *((8192, "float32", 4, 90, 4), (8196, "float32", 4, 90, 4), (8194, "float32", 4, 90, 4)),
            *((262144, "float32", 4, 90, 4), (262144, "float32", 4, 120, 4)),
        )
    }
    wide = [key for key, kind in kinds.items() if kind == "wide"]
    assert wide == [
        (16392, "bfloat16", 2, 90, 2),
        (8196, "float32", 4, 90, 4),
        (262144, "float32", 4, 90, 4),
    ]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("n", "dtype", "parameters", "rows", "kernel", "cluster"),
    [
        (16_400, torch.bfloat16, torch.bfloat16, 5, "layer_norm_tangent_wide", 2),
        (16_400, torch.bfloat16, None, 1, "layer_norm_tangent_wide", 2),
        (32_776, torch.float16, torch.float32, 3, "layer_norm_tangent_wide", 4),
        (8_204, torch.float32, torch.float32, 3, "layer_norm_tangent_wide", 2),
        (8_204, torch.float32, torch.float32, -3, "layer_norm_tangent", 2),
        (100_004, torch.float32, torch.float32, 3, "layer_norm_tangent_wide", 16),
        (140_000, torch.float32, torch.float32, 1, "layer_norm_tangent_wide", 16),
    ],
)
def test_the_operator_on_long_rows(
    n: int,
    dtype: torch.dtype,
    parameters: torch.dtype | None,
    rows: int,
    kernel: str,
    cluster: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows below zero: few rows."""
    monkeypatch.setattr(tangent.driver, "capability", lambda device: 90)
    monkeypatch.setattr(tangent, "at_once", lambda *given: 2)
    if rows > 0:
        monkeypatch.setattr(tangent.layer_norm_config, "FEW_FORWARD", (0, 0))
    dx, x = (torch.randn(2, abs(rows), n) + 1).to(dtype)
    given = [None if parameters is None else torch.randn(n).to(parameters) for _ in range(3)]
    stats = statistics(x).float()[..., None]
    call = tangent._call.__wrapped__(dx, x, stats, *given, (n,), None)
    (launch,) = call.launches
    assert (launch.kernel.name, launch.kernel.geometry.cluster) == (kernel, cluster)
    got = torch.empty_like(x)
    launch.kernel.launch_vouched(dx, x, stats, *given, got, *launch.sizes)
    assert launch.sizes[2:] == ((min(2, rows),) if rows > 0 else ())
    assert_near(got, naive_tangent(dx, x, stats[..., 0], *given), dtype, "tangent")


@pytest.mark.parametrize(
    ("n", "kernel"), [(65_544, "layer_norm_tangent_wide"), (140_000, "layer_norm_tangent_streaming")]
)
def test_a_gpu_without_room_for_sixteen_blocks_has_eight(n: int, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 140000 float32 elements, eight blocks have no room for a stage."""

    def no_sixteen(kernel, types, otherwise, device):  # type: ignore[no-untyped-def]
        if kernel.geometry.cluster > 8:
            raise LaunchError("no cluster of sixteen blocks fits this GPU")
        return 1

    monkeypatch.setattr(tangent.driver, "capability", lambda device: 90)
    monkeypatch.setattr(tangent, "at_once", no_sixteen)
    x, stats = torch.empty(300, n), torch.empty(2, 300, 1)
    (launch,) = tangent._call.__wrapped__(x, x, stats, None, None, None, (n,), None).launches
    assert launch.kernel.name == kernel
    assert launch.kernel.geometry.cluster <= 8
    assert config_of(n, "float32", 0, 90, 4).cluster == 16
