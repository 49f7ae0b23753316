"""Rows in shared memory: bulk copies bring a block's slices of a row, and every pass reads them there."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import cupyops
from cupyops.programs.row_config import ProgramConfig, Work, kernel_of
from cupyops.programs.row_source import text_of
from cupyops.torch import row_reduce

pytestmark = pytest.mark.simulator
SOFTMAX = row_reduce(
    "m = max(x); e = exp(x - m); r = 1 / sum(e); y = e * r",
    "d = sum(grad_y * y); grad_x = y * (grad_y - d)",
    name="row_shared::softmax",
)
NORM = row_reduce(
    "s = rounded(x + u); r = rsqrt(sum(s * s) / N + eps); y = s * r * weight",
    columns=["weight"],
    scalars=["eps"],
    results=["y", "s"],
    name="row_shared::norm",
)


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


def config_for(n: int, width: int, work: Work, cluster: int) -> ProgramConfig:
    """Slices of 64 threads with two accesses, as many as the block's part of the row takes."""
    config = ProgramConfig(64, 64, width, 2, cluster=cluster, min_blocks=1, full=False, stream=True)
    return config.with_shared_row(n, work)


def run(op, config: ProgramConfig, inputs: list[Tensor], *scalars: float, off: int = 0, blocks: int = 0):  # type: ignore[no-untyped-def]
    """Runs the forward kernel. All arrays are ``off`` elements off their alignment; ``blocks`` blocks take several rows."""
    program = op.programs[0]
    m, n = inputs[0].shape

    def placed(x: Tensor) -> Tensor:
        memory = torch.empty(x.numel() + off, dtype=x.dtype)
        return memory[off:].view(x.shape).copy_(x)

    outs = [placed(torch.full_like(inputs[0], float("nan"))) for _ in program.results]
    dtype = str(inputs[0].dtype).removeprefix("torch.")
    kernel = kernel_of(program, text_of(program), config, dtype)
    kernel(*map(placed, inputs), *outs, *scalars, m, n, blocks or m)
    return outs


# Each length and each cluster has both dtypes, in turn.
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("n", "cluster", "dtype"),
    [
        (n, cluster, (torch.bfloat16, torch.float32)[(i + k) % 2])
        for i, n in enumerate((8, 1024, 1600, 4096, 9000))
        for k, cluster in enumerate((1, 2, 4))
    ],
)
def test_softmax_and_a_norm_of_two_arrays(n: int, cluster: int, dtype: torch.dtype) -> None:
    """Some of the 4 blocks have no element of a short row."""
    width = 16 // dtype.itemsize
    x, u, weight = torch.randn(3, n).to(dtype), torch.randn(3, n).to(dtype), torch.rand(n)
    close = {"rtol": 2**-7, "atol": 2**-9} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    config = config_for(n, width, Work((dtype.itemsize,)), cluster)
    (y,) = run(SOFTMAX, config, [x])
    torch.testing.assert_close(y.double(), torch.softmax(x.double(), -1), **close)
    config = config_for(n, width, Work((dtype.itemsize,) * 2), cluster)
    z, s = run(NORM, config, [x, u, weight], 1e-5)
    exact = (x.float() + u.float()).to(dtype)
    assert torch.equal(s, exact)
    norm = torch.rsqrt(exact.double().square().mean(-1, keepdim=True) + 1e-5)
    torch.testing.assert_close(z.double(), exact.double() * norm * weight, **close)


def test_the_bits_of_a_row_depend_neither_on_its_address_nor_on_the_rows_of_a_block() -> None:
    """Rows off their alignment are read from memory. A second row of a block waits for the barrier's other phase."""
    x = torch.randn(5, 4096).bfloat16()
    for cluster in (1, 2):
        config = config_for(4096, 8, Work((2,)), cluster)
        (y,) = run(SOFTMAX, config, [x])
        for off, blocks in ((1, 0), (0, 1), (0, 2)):
            (again,) = run(SOFTMAX, config, [x], off=off, blocks=blocks)
            assert torch.equal(again, y)
