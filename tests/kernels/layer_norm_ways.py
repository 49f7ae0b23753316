"""The ways of layer normalisation's kernels, under configs of the tests' own, and the naive kernels that they are held to."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from cupyops import Threads
from cupyops.ops.layer_norm.config import LayerNormConfig
from tests.naive import naive_kernel

EPS = 1e-3  # as large as a variance of 1 lets one see

# In float64, so that the naive kernels' own rounding does not count.
NAIVE_FORWARD = naive_kernel("layer_norm_forward", "layer_norm_forward_naive", Threads("M"), dtypes=["float64"])
NAIVE_BACKWARD = naive_kernel(
    "layer_norm_backward", "layer_norm_backward_naive", Threads("threads"), dtypes=["float64"]
)


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


def ringed(way: Way) -> Way:
    """The way with the shared memory that its ring takes, and behind the ring the weight."""
    config = way.config
    piece = (way.result or way.dtype).itemsize + way.dtype.itemsize
    kept = (config.vectors - config.weight_registers) * (way.weights or way.dtype).itemsize
    access = config.row_threads * config.vector_width
    return replace(way, config=replace(config, weight_shared=True, shared=access * (config.ring * piece + kept)))


def staged(way: Way, input_bytes: int, weight_bytes: int = 0) -> Way:
    """The way with the shared memory that its stages take, and that weight and bias take in a forward; without
    ``weight_bytes`` a backward, whose registers keep the weight."""
    config = way.config
    kept = (2 - config.affine_registers) * weight_bytes
    return replace(way, config=replace(config, shared=config.slice * (config.stages * input_bytes + kept)))


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
    "half accesses, aligned apart": Way(
        LayerNormConfig(64, 32, 4, 2, aligned_apart=True), 252, torch.bfloat16, torch.float32
    ),
    "cluster of aligned apart": Way(LayerNormConfig(64, 64, 4, 1, cluster=2, aligned_apart=True, full=True), 512),
    "cluster of forty warps": Way(LayerNormConfig(160, 160, 4, 1, cluster=8), 4 * 1200 + 4),
    "wide": staged(Way(LayerNormConfig(64, 64, 4, 2, kind="wide", cluster=4, stages=2), 1028), 4, 4),
    "wide and full": staged(
        Way(LayerNormConfig(32, 32, 8, 1, kind="wide", cluster=2, stages=3, full=True), 512, torch.float16), 2, 2
    ),
    "wide in one block": staged(Way(LayerNormConfig(96, 96, 4, 1, kind="wide", stages=2), 372), 4, 4),
    "wide in sixteen blocks": staged(Way(LayerNormConfig(32, 32, 4, 1, kind="wide", cluster=16, stages=1), 1980), 4, 4),
    "wide of wider weights": staged(
        Way(
            LayerNormConfig(64, 64, 8, 2, kind="wide", cluster=2, stages=2, pieces_apart=True),
            1656,
            torch.bfloat16,
            torch.float32,
        ),
        2,
        4,
    ),
    "wide and weight in registers": staged(
        Way(
            LayerNormConfig(64, 64, 8, 2, kind="wide", stages=3, affine_registers=1, pieces_apart=True),
            984,
            torch.float16,
            torch.float32,
        ),
        2,
        4,
    ),
    "wide and affine in registers": staged(
        Way(
            LayerNormConfig(32, 32, 8, 2, kind="wide", cluster=2, stages=2, affine_registers=2, full=True),
            1024,
            torch.bfloat16,
            torch.float32,
        ),
        2,
        4,
    ),
    "wide and summed ahead": staged(
        Way(LayerNormConfig(64, 64, 4, 2, kind="wide", cluster=2, stages=2, sum_ahead=True), 508), 4, 4
    ),
    "wide, summed ahead in sixteen blocks": staged(
        Way(LayerNormConfig(32, 32, 4, 2, kind="wide", cluster=16, stages=1, sum_ahead=True, full=True), 4096),
        4,
        4,
    ),
    "wide, summed ahead with one stage": staged(
        Way(
            LayerNormConfig(
                64, 64, 8, 2, kind="wide", cluster=2, stages=1, sum_ahead=True, affine_registers=1, pieces_apart=True
            ),
            1656,
            torch.bfloat16,
            torch.float32,
        ),
        2,
        4,
    ),
    "streaming": Way(LayerNormConfig(64, 64, 4, 2, kind="streaming"), 1204),
    "streaming odd": Way(LayerNormConfig(160, 160, 1, 2, kind="streaming"), 701, torch.float64),
    "of fewer bits": Way(LayerNormConfig(64, 8, 4, 2, rows_each=2), 60, result=torch.bfloat16),
    "of more bits": Way(LayerNormConfig(128, 16, 8, 2), 248, torch.bfloat16, result=torch.float32),
    "odd of fewer bits": Way(LayerNormConfig(64, 32, 1, 3), 77, torch.float64, result=torch.float16),
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
        Way(
            LayerNormConfig(32, 32, 8, 1, kind="wide", cluster=2, stages=2, full=True),
            512,
            torch.float16,
        ),
        4,
    ),
    "wide in one block": staged(Way(LayerNormConfig(96, 96, 4, 1, kind="wide", stages=2), 372), 8),
    "weight in shared memory": Way(
        LayerNormConfig(64, 16, 4, 2, weight_shared=True), 124, torch.bfloat16, torch.float32
    ),
    "cluster of weight in shared memory": Way(
        LayerNormConfig(64, 64, 4, 1, cluster=2, weight_shared=True, full=True), 512, torch.float16, torch.float32
    ),
    # Rings of a whole number of rows and of others; without and with room for the row that is summed ahead. In a cluster of four,
    # the third block has one access of 1028 elements, and the fourth has none.
    "ring": ringed(
        Way(LayerNormConfig(64, 64, 4, 2, kind="ring", cluster=4, ring=5, sum_ahead=True, weight_registers=1), 1028)
    ),
    "ring and full": ringed(
        Way(LayerNormConfig(32, 32, 8, 2, kind="ring", cluster=2, ring=3, full=True), 1024, torch.float16)
    ),
    "ring in one block": ringed(Way(LayerNormConfig(96, 96, 4, 1, kind="ring", ring=1), 372)),
    "ring of four rows": ringed(
        Way(
            LayerNormConfig(
                32, 32, 4, 3, kind="ring", cluster=2, ring=12, sum_ahead=True, weight_registers=1, full=True
            ),
            768,
        )
    ),
    "ring of wider weights": ringed(
        Way(
            LayerNormConfig(64, 64, 8, 2, kind="ring", cluster=2, ring=4, sum_ahead=True, pieces_apart=True),
            1656,
            torch.bfloat16,
            torch.float32,
        )
    ),
    "ring in order": ringed(
        Way(
            LayerNormConfig(64, 64, 8, 3, kind="ring", cluster=2, ring=5, pieces_apart=True, weight_registers=1),
            2888,
            torch.bfloat16,
            torch.float32,
        )
    ),
    "streaming": Way(LayerNormConfig(64, 64, 4, 2, kind="streaming"), 1204),
    "streaming odd": Way(LayerNormConfig(160, 160, 1, 2, kind="streaming"), 701, torch.float64),
    "of fewer bits": Way(LayerNormConfig(64, 8, 4, 2), 60, result=torch.bfloat16),
    "of more bits": Way(LayerNormConfig(64, 16, 4, 2), 124, torch.bfloat16, result=torch.float32),
    "odd of fewer bits": Way(LayerNormConfig(64, 16, 1, 3), 45, torch.float64, result=torch.float16),
    "wide of fewer bits": staged(
        Way(LayerNormConfig(64, 64, 4, 2, kind="wide", cluster=4, stages=3), 1032, result=torch.bfloat16),
        6,
    ),
    # Halves of such a row do not begin at multiples of 16 bytes.
    "wide of fewer bits and not whole": staged(
        Way(LayerNormConfig(64, 64, 4, 2, kind="wide", cluster=4, stages=3), 1028, result=torch.bfloat16),
        6,
    ),
    "ring of fewer bits": ringed(
        Way(LayerNormConfig(64, 64, 4, 2, kind="ring", cluster=4, ring=3), 1032, result=torch.bfloat16)
    ),
    "ring of fewer bits and not whole": ringed(
        Way(LayerNormConfig(64, 64, 4, 2, kind="ring", cluster=4, ring=4, sum_ahead=True), 1028, result=torch.bfloat16)
    ),
    "streaming of fewer bits": Way(LayerNormConfig(64, 64, 4, 2, kind="streaming"), 1204, result=torch.float16),
}


def ways(of: dict[str, Way]) -> pytest.MarkDecorator:
    ids = [f"{way.config.kind}-{name.replace(' ', '-')}" for name, way in of.items()]
    return pytest.mark.parametrize("way", of.values(), ids=ids)


def rows_of(way: Way) -> int:
    if way.config.kind == "registers":
        return 37 if way.config.cluster == 1 else 3
    if way.config.kind == "ring":
        return 71  # a cluster takes more than the 32 rows whose statistics a warp has at once
    return 21 if way.config.kind == "wide" else 3


def placed(x: Tensor | None, offset: int) -> Tensor | None:
    """A copy that lies `offset` elements behind an address that is a multiple of 64."""
    if x is None:
        return None
    memory = torch.empty(x.numel() + 64, dtype=x.dtype)
    start = -memory.data_ptr() // memory.element_size() % (64 // memory.element_size()) + offset
    return memory[start : start + x.numel()].view(x.shape).copy_(x)


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
