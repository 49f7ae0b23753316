"""Few rows of a program over more threads than many: equal bits, in the simulator under checks."""

import pytest
import torch

import cupyops
from cupyops.programs.row_config import config_of, work_of
from cupyops.torch import row_reduce


# A warp's row over 128 threads; half a warp's; rows of several warps, one of them with accesses beyond its end.
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        (1024, torch.bfloat16),
        (512, torch.float32),
        (4096, torch.bfloat16),
        (4544, torch.bfloat16),
    ],
)
@pytest.mark.simulator
def test_few_rows_over_more_threads_have_the_bits_of_many(
    n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each fold, and in reductions behind one another, which take turns at the tables of shared memory."""
    program = """
        m = max(x); a = sum(x) / N; low = min(x)
        v = sum((x - a) * (x - a)) / N
        q = sum((x - a) * x * v * weight)
        y = x * a + low * q * weight + exp(x - m) / sum(exp(x - m))
    """
    name = f"programs_test::spread_{n}_{str(dtype)[6:]}"
    few, many = (row_reduce(program, columns=["weight"], name=name + end) for end in ("", "_many"))
    work = work_of(few.programs[0], dict.fromkeys(("x", "weight"), dtype.itemsize))
    config = config_of(n, str(dtype)[6:], work, 90)
    assert config.few_rows(n, work, 4, 90).spread > 1
    x, weight = torch.randn(3, n).to(dtype), torch.randn(n).to(dtype)
    x[1] = -torch.inf
    with cupyops.simulate(sanitize=True):
        found = few(x, weight)
        monkeypatch.setattr("cupyops.programs.row_launch.FEW_ROWS", 0)
        assert torch.equal(found.view(torch.uint8), many(x, weight).view(torch.uint8))
    assert not found[[0, 2]].isnan().any()


# A thread's turns over a warp's; accesses beyond the end of the row; over several warps; and two turns of a thread.
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        (960, torch.bfloat16),
        (1600, torch.bfloat16),
        (1280, torch.float32),
        (4544, torch.bfloat16),
        (5000, torch.float32),
        (24584, torch.bfloat16),
    ],
)
@pytest.mark.simulator
def test_few_rows_of_one_pass_have_their_turns_at_once_and_the_bits_of_many(
    n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sums of x³ are rounded at every addition, so that their bits tell their order.
    program = "m = max(x); z = m + log(sum(exp(x - m))); a = sum(x * x * x); low = min(x); at = x[t]"
    name = f"programs_test::turns_{n}_{str(dtype)[6:]}"
    results = ["z", "a", "low", "at", "m"]
    few, many = (
        row_reduce(program, indices=["t"], wide=results, results=results, name=name + end) for end in ("", "_many")
    )
    work = work_of(few.programs[0], {"x": dtype.itemsize, "t": 8})
    config = config_of(n, str(dtype)[6:], work, 90)
    assert (config.stream, config.spread) == (True, 1)
    spread = config.few_rows(n, work, 4, 90)
    assert (spread.stream, spread.spread > 1) == (False, True)
    assert spread.row_threads == spread.spread * config.row_threads
    x, t = torch.randn(8, n).to(dtype), torch.randint(n, (8,))
    x[1], x[2, 5] = -torch.inf, torch.inf
    with cupyops.simulate(sanitize=True):
        found = few(x, t)
        monkeypatch.setattr("cupyops.programs.row_launch.FEW_ROWS", 0)
        for one, other in zip(found, many(x, t), strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    wide = x.float()
    of_rows = slice(0, None, 3)  # without the rows of infinite elements
    torch.testing.assert_close(found[0][of_rows], wide[of_rows].logsumexp(-1))
    cubes = wide[of_rows].double() ** 3
    assert ((found[1][of_rows] - cubes.sum(-1)).abs() <= 1e-6 * cubes.abs().sum(-1)).all()
    torch.testing.assert_close(found[2], wide.amin(-1))
    torch.testing.assert_close(found[3], wide.gather(1, t[:, None])[:, 0])
    torch.testing.assert_close(found[4], wide.amax(-1), rtol=0, atol=0)


# A row in a part of a warp; a block's, over several accesses; with accesses beyond its end; a cluster's.
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        (40, torch.float32),
        (1024, torch.bfloat16),
        (5000, torch.float32),
        (4544, torch.bfloat16),
        (50257, torch.float32),
    ],
)
@pytest.mark.simulator
def test_a_value_that_no_reduction_decides_takes_no_further_pass(
    n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of differences from an element of the row keep their digits, however large the elements are."""
    few, many = (
        row_reduce(
            "o = abs(x[t]) < 1e30 ? x[t] : 0; m = max(x); s = sum(exp(x - m)); k = 2 * a; d = sum(k * (x - o)); e = sum(x - m)"
            "; h = k + 1; f = sum((x - m) * h)",
            rows=["a"],
            indices=["t"],
            results=["s", "o", "d", "e", "f"],
            wide=["s", "o", "d", "e", "f"],
            name=f"programs_test::before_{n}{end}",
        )
        for end in ("", "_many")
    )
    assert few.programs[0].passes == 2
    x = torch.randn(5, n).mul(8).add(torch.tensor([0, 1e4, 1e6, 1e7, -1e7])[:, None]).to(dtype)
    a, t = torch.rand(5).to(dtype), torch.tensor([0, 3, n - 1, n, -1])
    with cupyops.simulate(sanitize=True):
        found = few(x, a, t)
        monkeypatch.setattr("cupyops.programs.row_launch.FEW_ROWS", 0)
        for one, other in zip(found, many(x, a, t), strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    wide, k = x.double(), 2 * a.double()
    o = torch.where((t >= 0) & (t < n), wide.gather(-1, t.clamp(0, n - 1)[:, None])[:, 0], 0)
    falls = wide - wide.amax(-1, keepdim=True)
    torch.testing.assert_close(found[0].double(), falls.exp().sum(-1), rtol=1e-5, atol=0)
    assert torch.equal(found[1].double(), o)
    of_o = k[:, None] * (wide - o[:, None])
    assert ((found[2] - of_o.sum(-1)).abs() <= 2e-6 * of_o.abs().sum(-1)).all()
    torch.testing.assert_close(found[3].double(), falls.sum(-1), rtol=2e-6, atol=0)
    torch.testing.assert_close(found[4].double(), (falls * (k + 1)[:, None]).sum(-1), rtol=2e-6, atol=0)
