"""The kernels of layer normalisation on more elements than 32 bits count: memory that is only touched where the last blocks
are."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cupyops
from cupyops.ops.layer_norm.body import backward_kernel, forward_kernel
from cupyops.ops.layer_norm.config import LayerNormConfig
from cupyops.tiling.partial_sums import partial_sums
from tests.kernels.layer_norm_ways import BACKWARD, EPS, FORWARD, Way, ringed
from tests.simulator.test_simulator_use import sparse

pytestmark = pytest.mark.simulator

ROWS, COLUMNS = 2**23 + 8, 512
LARGE_RING = ringed(
    Way(
        LayerNormConfig(32, 32, 8, 1, kind="ring", cluster=2, ring=3, sum_ahead=True, full=True), COLUMNS, torch.float16
    )
).config


@pytest.mark.parametrize("way", ["registers", "wide", "streaming"])
def test_forward_of_more_than_two_to_the_32_elements(way: str) -> None:
    x, y = (sparse(ROWS * COLUMNS, "float16").reshape(ROWS, COLUMNS) for _ in range(2))
    stats = sparse(2 * ROWS, "float32").reshape(2, ROWS)
    x[-8:] = np.linspace(-3, 3, 8 * COLUMNS).reshape(8, COLUMNS)
    config = {
        "registers": LayerNormConfig(128, 32, 8, 2, rows_each=2, full=True),
        "wide": FORWARD["wide and full"].config,
        "streaming": LayerNormConfig(64, 64, 8, 1, kind="streaming"),
    }[way]
    kernel = forward_kernel(config, "float16", False)
    # Of persistent clusters, the last takes the last row in its second turn.
    groups = (ROWS // 2,) if way == "wide" else ()
    with cupyops.simulate(sanitize=True, blocks=slice(-2, None)):
        kernel(x, None, None, None, x, y, stats, ROWS, COLUMNS, *groups, EPS)
    taken = {"registers": 8, "wide": 1, "streaming": 2}[way]
    wanted = F.layer_norm(torch.tensor(x[-taken:]), (COLUMNS,), eps=EPS)
    torch.testing.assert_close(torch.tensor(y[-taken:]), wanted)
    assert stats[1, -taken:].all()
    assert not y[:1024].any(), "the last blocks wrote to the front"


@pytest.mark.parametrize("way", ["registers", "wide", "ring", "streaming"])
def test_backward_of_more_than_two_to_the_32_elements(way: str) -> None:
    """Of rows, and of parts of the gradients of weight and bias."""
    x, grad_x = (sparse(ROWS * COLUMNS, "float16").reshape(ROWS, COLUMNS) for _ in range(2))
    stats = sparse(2 * ROWS, "float32").reshape(2, ROWS)
    stats[1, -8:] = 1
    x[-8:] = np.linspace(-3, 3, 8 * COLUMNS).reshape(8, COLUMNS)
    config = {
        "registers": LayerNormConfig(64, 64, 4, 2, full=True),
        "wide": BACKWARD["wide and full"].config,
        "ring": LARGE_RING,
        "streaming": LayerNormConfig(64, 64, 4, 2, kind="streaming"),
    }[way]
    affine = way != "streaming"
    kernel = backward_kernel(config, "float16", True, affine, False)
    # Of persistent blocks, the last take their last rows in their second turn.
    parts = ROWS // 2
    partial = sparse(2 * parts * COLUMNS, "float32").reshape(2, parts, COLUMNS)
    counts = {"registers": (partial, ROWS, COLUMNS, parts, parts), "wide": (partial, ROWS, COLUMNS, parts)}
    counts["ring"] = counts["wide"]
    with cupyops.simulate(sanitize=True, blocks=slice(-2, None)):
        kernel(x, x, stats, None, None, grad_x, *counts.get(way, (ROWS, COLUMNS)))
    taken = 1 if way in ("wide", "ring") else 2
    last = torch.tensor(x[-taken:]).double()
    wanted = last - last.mean(1, keepdim=True) - last * (last * last).mean(1, keepdim=True)
    torch.testing.assert_close(torch.tensor(grad_x[-taken:]).double(), wanted, rtol=1e-3, atol=1e-3)
    assert not grad_x[:1024].any(), "the last blocks wrote to the front"
    if affine:
        # Of the two rows of the last part, the first is nothing but zeros.
        torch.testing.assert_close(torch.tensor(partial[0, -1]).double(), last[-1] ** 2, rtol=1e-6, atol=0)
        torch.testing.assert_close(torch.tensor(partial[1, -1]).double(), last[-1], rtol=1e-6, atol=0)
        assert not partial[:, :1024].any(), "the last blocks wrote to the front"


def test_column_sums_of_more_than_two_to_the_31_elements() -> None:
    parts, n = 5, 2**28 + 40
    partial = sparse(2 * parts * n, "float32").reshape(2, parts, n)
    sums = [sparse(n, "float32") for _ in range(2)]
    partial[:, :, -64:] = np.arange(10).reshape(2, parts, 1)
    with cupyops.simulate(sanitize=True, blocks=slice(-1, None)):
        partial_sums(2, parts)(partial, *sums, parts, n)
    assert [float(s[-1]) for s in sums] == [10, 35]
    assert not any(s[: 2**20].any() for s in sums)
