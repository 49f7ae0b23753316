"""The sums of the partial sums of persistent blocks, in the simulator."""

import numpy as np
import pytest
import torch

import cupyops
from cupyops.launch.geometry import Threads
from cupyops.tiling.partial_sums import partial_sums
from tests.naive import naive_kernel
from tests.simulator.test_simulator_use import sparse

pytestmark = pytest.mark.simulator

NAIVE_COLUMN_SUMS = naive_kernel("column_sums", "column_sums_naive", Threads("N"), dtypes=["float64"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_column_sums(dtype: torch.dtype) -> None:
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    for parts, n in ((1, 1), (3, 31), (31, 129), (32, 128), (33, 70), (65, 7)):
        partial = torch.randn(2, parts, n, dtype=acc)
        wanted = torch.empty(2, n, dtype=torch.float64)
        with cupyops.simulate(sanitize=True):
            NAIVE_COLUMN_SUMS(partial.double(), *wanted, parts, n)
        torch.testing.assert_close(wanted, partial.double().sum(1), rtol=1e-12, atol=1e-12)
        for given in ((True, True), (True, False), (False, True)):
            sums = [torch.empty(n, dtype=dtype) if g else None for g in given]
            with cupyops.simulate(sanitize=True):
                partial_sums(2, parts)(partial, *sums, parts, n)
            for got, exact in zip(sums, wanted, strict=True):
                if got is not None:
                    error = float((got.double() - exact).abs().max() / exact.abs().max())
                    allowed = 6 * torch.finfo(acc).eps + (torch.finfo(dtype).eps / 2 if dtype != acc else 0)
                    assert error <= allowed, f"{parts} parts of {n}: off by {error:.2e}"


def test_column_sums_of_more_than_two_to_the_31_elements() -> None:
    parts, n = 5, 2**28 + 40
    partial = sparse(2 * parts * n, "float32").reshape(2, parts, n)
    sums = [sparse(n, "float32") for _ in range(2)]
    partial[:, :, -64:] = np.arange(10).reshape(2, parts, 1)
    with cupyops.simulate(sanitize=True, blocks=slice(-1, None)):
        partial_sums(2, parts)(partial, *sums, parts, n)
    assert [float(s[-1]) for s in sums] == [10, 35]
    assert not any(s[: 2**20].any() for s in sums)
