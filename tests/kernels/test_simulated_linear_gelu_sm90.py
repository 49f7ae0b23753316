"""The matrix kernel of sm_90 on the CPU, sanitized: tails along each dimension, several tiles a cluster, both tilings;
and the simulator's headers with a missing wait or barrier."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from autograd_bridge import linear_gelu
from cupyops import Kernel, Rows, Threads
from cupyops.errors import LaunchError
from cupyops.launch import recording as launches
from cupyops.launch.tensor_map import tensor_map
from cupyops.ops.linear import config as linear_config
from cupyops.ops.linear.config import LONG, SHORT, TILE_M, TILE_N, Sm90Config
from cupyops.ops.linear.sm90 import TEXT, sm90_kernel
from tests.naive import naive_kernel
from tests.simulator.test_twins import PRODUCT, integers, product

pytestmark = pytest.mark.simulator

BF16, FP16 = torch.bfloat16, torch.float16
TOLERANCES = {FP16: 2**-10, BF16: 2**-7}  # as on a GPU
# Two slices and one piece are the fewest that can be right: everything is used again at once.
TIGHT = Sm90Config(2, 1, 1)


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


def operands(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m + n + k)
    x, weight, bias = (torch.randn(s, generator=generator) for s in ((m, k), (n, k), (n,)))
    return x.to(dtype), weight.div(math.sqrt(k)).to(dtype), bias.to(dtype)


def launched(
    x: Tensor, weight: Tensor, bias: Tensor | None, config: Sm90Config, approximate: str, clusters: int
) -> tuple[Tensor, Tensor]:
    """y and z from this many clusters; elements that they do not write are NaN."""
    (m, k), n, dtype = x.shape, len(weight), str(x.dtype)[6:]
    z, y = (torch.full((m, n), torch.nan, dtype=x.dtype) for _ in range(2))
    boxes = ((x, TILE_M), (weight, TILE_N // 2), (z, 64), (y, 64))
    maps = [tensor_map(a.data_ptr(), *a.shape, dtype, rows, simulated=True) for a, rows in boxes]
    kernel = sm90_kernel(config, approximate)
    kernel(x, weight, bias, z, y, *maps, m, n, k, 0 if bias is None else n, clusters)
    return y, z


def assert_values(y: Tensor, z: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> None:
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    eps = TOLERANCES[x.dtype]
    torch.testing.assert_close(z.double(), exact, rtol=0.51 * eps, atol=1e-4)
    torch.testing.assert_close(y.double(), F.gelu(exact, approximate=approximate), rtol=0.6 * eps, atol=1e-4)


WAYS = [
    # Slices and pieces come round, in one tile and from one to the next; each block's second group has rows, and the
    # second block, too.
    (330, 264, 136, BF16, SHORT, "none", 1, True),
    (8, 8, 8, FP16, LONG, "none", 1, True),  # less than a box of anything
    (130, 264, 72, FP16, SHORT, "tanh", 2, False),  # a tile and a bit, along each
    (256, 256, 64, BF16, LONG, "tanh", 4, True),  # a pair of tiles, and clusters without any
    (200, 520, 328, FP16, LONG, "none", 1, False),  # more slices than stages, more tiles than clusters
    (1300, 264, 16, BF16, SHORT, "none", 3, True),  # more pairs along M than are made together
    (330, 264, 200, FP16, TIGHT, "none", 2, True),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way[:4])))
def test_y_and_z_against_float64(way: tuple[int, int, int, torch.dtype, Sm90Config, str, int, bool]) -> None:
    """The error is at most half of the last bit, and the error of sums in float32."""
    m, n, k, dtype, config, approximate, clusters, with_bias = way
    x, weight, bias = operands(m, n, k, dtype)
    given = bias if with_bias else None
    y, z = launched(x, weight, given, config, approximate, clusters)
    assert_values(y, z, x, weight, given, approximate)


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", WAYS[:3], ids=lambda way: "-".join(map(str, way[:4])))
def test_y_and_z_of_small_integers_are_the_bits_of_the_naive_kernel(
    way: tuple[int, int, int, torch.dtype, Sm90Config, str, int, bool],
) -> None:
    """Every order of a sum of integers is exact, and each rounds once."""
    m, n, k, dtype, config, approximate, clusters, with_bias = way
    x, weight, bias = (t.mul(s).round() for t, s in zip(operands(m, n, k, dtype), (1, math.sqrt(k), 1), strict=True))
    given = bias if with_bias else None
    z, y = (torch.full((m, n), torch.nan, dtype=dtype) for _ in range(2))
    options = {"constants": {"TANH": int(approximate == "tanh")}, "dtypes": (str(dtype)[6:],)}
    naive = naive_kernel("linear_gelu_sm90", "linear_gelu_sm90_naive", Threads("N", "M", block=(64, 1, 1)), **options)
    naive(x, weight, given, z, y, m, n, k, n if with_bias else 0)
    found = launched(x, weight, given, config, approximate, clusters)
    assert all(torch.equal(a, b) for a, b in zip(found, (y, z), strict=True))


def test_the_cut_and_the_number_of_clusters_change_no_bit() -> None:
    x, weight, bias = operands(300, 520, 200, BF16)
    first = launched(x, weight, bias, SHORT, "none", 1)
    for config, clusters in ((LONG, 2), (TIGHT, 5)):
        again = launched(x, weight, bias, config, "none", clusters)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_what_is_infinite_stays_in_its_row_and_column() -> None:
    x, weight, bias = operands(136, 72, 72, FP16)
    x[3, 71], weight[65, 0] = math.nan, math.inf
    y, z = launched(x, weight, bias, SHORT, "none", 1)
    wanted = torch.zeros_like(z, dtype=torch.bool)
    wanted[3], wanted[:, 65] = True, True
    assert torch.equal(~z.isfinite(), wanted)
    assert (y[:, 65].isposinf() | y[:, 65].isnan() | (y[:, 65] == 0)).all()


def test_the_operator_takes_it_where_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes tensors of any leading dimensions and NumPy arrays; gradients follow from z."""
    x, weight, bias = operands(24, 40, 72, FP16)
    x = x.view(4, 6, 72)
    for taken in (False, True):
        with launches.recorded() as noted:
            y = linear_gelu(x, weight, bias)
        assert {launch.kernel.name for launch in noted} == {"linear_gelu_sm90" if taken else "gelu_forward"}
        torch.testing.assert_close(y, F.gelu(F.linear(x, weight, bias)), rtol=2**-9, atol=1e-4)
        monkeypatch.setattr(linear_config, "sm90_config", lambda *a: SHORT)
        monkeypatch.setattr(linear_config, "LEAST_LARGE", 0)
    arrays = cupyops.linear_gelu(*(t.numpy() for t in (x, weight, bias)))
    assert_values(*(torch.from_numpy(a).view(24, 40) for a in arrays), x.view(24, 72), weight, bias, "none")
    inputs = [t.requires_grad_() for t in (x, weight, bias)]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    grad = torch.randn(4, 6, 40, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(linear_gelu(*inputs, "tanh"), inputs, grad.half())
    y = F.gelu(F.linear(*exact), approximate="tanh")
    for ours, theirs in zip(found, torch.autograd.grad(y, exact, grad.half().double()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2**-7, atol=2**-8 * theirs.abs().max().item())


@pytest.mark.parametrize(("pairs_m", "tiles_n"), [(1, 3), (4, 2), (9, 3), (11, 1)])
def test_pairs_are_made_along_m_first_some_at_a_time(pairs_m: int, tiles_n: int) -> None:
    """The order in which rows of W and of x are found in the L2 cache; no result shows it."""
    text = f"""{TEXT}
extern "C" __global__ void places(const scalar_t* x, int* places, int pairs_m, int tiles_n, int n) {{
    const int i = threadIdx.x;
    if (i >= n) return;
    const Place found = place_of(i, pairs_m, tiles_n);
    places[2 * i] = found.m, places[2 * i + 1] = found.n;
}}"""
    places, count = np.zeros((pairs_m * tiles_n, 2), np.int32), pairs_m * tiles_n
    kernel = Kernel(text, "places", Threads("n"), dtypes=("float16",), constants={"PAIRS_M": 4})
    kernel(np.zeros(1, np.float16), places, pairs_m, tiles_n, count)
    groups = [range(first, min(first + 4, pairs_m)) for first in range(0, pairs_m, 4)]
    assert places.tolist() == [[m, n] for group in groups for n in range(tiles_n) for m in group]


# The simulator's headers find a fault in a minimal kernel.


def broken(old: str, new: str = "") -> str:
    assert PRODUCT.count(old) == 1
    return PRODUCT.replace(old, new)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "    arrival_wait(full, 0);\n",
            "",
            r"that nobody has written: byte \d+ of dynamic .*product\.cu:\d+\)|a race in shared memory",
        ),
        ("    multiply_begin();\n", "", r"assertion `all\.begun\[t\]"),
        ("rows_at(at + 64 * 128)", "rows_at(at + 64 * 128) + (thread & 1)", r"assertion `p\.a == a && p\.b == b"),
        ("    show_to_copies();\n", "", r"which thread \(\d+, 0, 0\) wrote and has not shown to it"),
        ("    meet(1, 128);\n", "", r"a race in shared memory: reads byte \d+ of dynamic shared memory, which thread"),
        ("meet(1, 128)", "if (thread < 96) meet(1, 128)", "threads 0-95 wait at barrier 1 of 128 threads"),
        ("meet(1, 128)", "meet(1, thread ? 128 : 96)", "expect different numbers of them"),
        ("meet(1, 128)", "meet(0, 128)", r"assertion `0 < barrier"),
        ("load_box(at, &x_map", "load_box(at + 64, &x_map", r"assertion `at % 128 == 0"),
    ],
)
def test_a_fault_is_named(old: str, new: str, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        product(broken(old, new), *integers(BF16))


@pytest.mark.parametrize(
    ("left_out", "wrong"),
    [("    multiply_wait<0>();\n", "sums"), ("    multiply_commit();\n", "sums"), ("        stores_commit();\n", "y")],
)
def test_what_nobody_waited_for_is_not_there(left_out: str, wrong: str) -> None:
    x, weight = integers(FP16)
    sums, y = product(broken(left_out), x, weight)
    assert torch.equal(sums, torch.zeros(64, 256)) == (wrong == "sums")
    assert y.isnan().all() == (wrong == "y")


def test_a_barrier_of_some_orders_what_they_wrote_and_read() -> None:
    """It does not order other threads: each half of a block has its own barrier."""
    text = """
#include "wgmma.cuh"
extern "C" __global__ void reverse(
    const int* x,  // (n)
    int* y,        // (n)
    long long n) {
    __shared__ int s[128];
    const int thread = threadIdx.x, first = thread / 64 * 64;
    for (int round = 0; round < 3; ++round) {
        s[thread] = x[thread];
        meet(1 + thread / 64, 64);
        y[thread] = s[OTHERS ? 127 - thread : first + 63 - thread % 64];
        meet(1 + thread / 64, 64);
    }
}"""
    x, y = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    for others in (0, 1):
        kernel = Kernel(
            text, "reverse", Threads("n", block=(128, 1, 1)), dtypes=("float32",), constants={"OTHERS": others}
        )
        if others:
            with pytest.raises(LaunchError, match=r"a race in shared memory|that nobody has written"):
                kernel(x, y, 128)
        else:
            kernel(x, y, 128)
            assert (y.reshape(2, 64) == x.reshape(2, 64)[:, ::-1]).all()


def test_what_the_hardware_brought_need_not_be_shown_to_it() -> None:
    """Rows that come as they are, without a swizzle, and leave as a box, with one."""
    text = """
#include "wgmma.cuh"
extern "C" __global__ void pass(
    const scalar_t* x,  // (64, 64)
    scalar_t* y,        // (64, 64)
    const __grid_constant__ TensorMap y_map, long long n) {
    extern __shared__ unsigned char memory[];
    __shared__ Arrivals full[1];
    const unsigned at = (shared_address(memory) + 1023) & ~1023u;
    if (threadIdx.x > 0) return;
    arrival_init(full, 1);
    arrive_expecting(full, 64 * 128);
    bulk_load(memory + (at - shared_address(memory)), x, 64 * 128, full);
    arrival_wait(full, 0);
    store_box(&y_map, 0, 0, at);
    stores_commit();
    stores_are_done();
}"""
    kernel = Kernel(text, "pass", Rows("n", 32), dtypes=("float16",), shared=1024 + 64 * 128)
    x = torch.arange(64 * 64).view(64, 64).half()
    y = torch.zeros_like(x)
    kernel(x, y, tensor_map(y.data_ptr(), 64, 64, "float16", 64, simulated=True), 1)
    rows, pieces = torch.arange(64)[:, None], torch.arange(8)
    assert torch.equal(y.view(64, 8, 8), x.view(64, 8, 8)[rows, pieces ^ rows % 8])
