"""The kernels of a linear layer on the CPU, sanitized: each way that a matrix can be cut, and each alignment."""

import itertools
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import cupyops
from autograd_bridge import gelu, linear, linear_backward, linear_gelu, linear_gelu_backward
from cupyops import Threads
from cupyops.launch import recording as launches
from cupyops.ops.linear import config as linear_config
from cupyops.ops.linear import products
from cupyops.ops.linear.config import GELU_SUMS, Apart
from cupyops.tiling.columns import columns_launch
from tests.kernels.test_simulated_kernels import values
from tests.naive import naive_kernel
from tests.operators.test_gelu import exact_derivative
from tests.support import EACH_FLOAT

linear_module = sys.modules["cupyops.ops.linear.body"]  # the package has functions of these names
linear_gelu_module = sys.modules["cupyops.ops.linear.fused_gelu"]

pytestmark = pytest.mark.simulator
EVERY_DTYPE = pytest.mark.parametrize("dtype", EACH_FLOAT)

# rows, columns, dtype; of the sums alone and of those after GELU's gradient: blocks that add up their sums in a cluster,
# and groups whose sums are added up by another launch.
WAYS = [
    (7, 5, torch.float16, (1, 1), (1, 1)),
    (1000, 64, torch.bfloat16, (8, 1), (1, 16)),
    (300, 520, torch.float32, (1, 1), (1, 1)),
    (70, 1023, torch.float16, (2, 1), (1, 2)),
    (20_000, 24, torch.bfloat16, (1, 8), (1, 16)),
    (2000, 24, torch.float32, (8, 1), (1, 12)),
    (257, 130, torch.float64, (2, 1), (2, 1)),
    (33, 16, torch.bfloat16, (1, 1), (1, 1)),
]
EACH_WAY = pytest.mark.parametrize(("m", "n", "dtype", "sums", "gelu"), WAYS, ids=lambda v: str(v).replace(" ", ""))


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


@pytest.mark.sample(3)
@EACH_WAY
@pytest.mark.parametrize("offset", [0, 1])
def test_sums_of_columns(
    m: int, n: int, dtype: torch.dtype, sums: tuple[int, int], gelu: tuple[int, int], offset: int
) -> None:
    cut = columns_launch(m, n, dtype.itemsize, 90, 4)
    assert (cut.config.cluster, cut.groups) == sums, cut
    grad = values(m * n, dtype, offset).reshape(m, n)
    _, _, bias = linear_backward(grad)
    assert_sums(bias, grad.double(), dtype)


@pytest.mark.sample(2)
@EACH_WAY
def test_gradient_of_gelu_and_its_sums(
    m: int, n: int, dtype: torch.dtype, sums: tuple[int, int], gelu: tuple[int, int]
) -> None:
    approximate = "tanh" if m == 70 else "none"
    cut = columns_launch(m, n, dtype.itemsize, 90, 4, GELU_SUMS)
    assert (cut.config.cluster, cut.groups) == gelu, cut
    grad, z = values(m * n, dtype, 0, seed=1).reshape(m, n), values(m * n, dtype, 0).reshape(m, n)
    identity = torch.eye(n, dtype=dtype)
    grad_z, _, bias = linear_gelu_backward(grad, z, None, identity, approximate)  # dL/dx of this weight is dL/dz
    wanted = grad.double() * exact_derivative(z, approximate)
    eps = 2 * torch.finfo(dtype).eps
    rtol, atol = max(eps, 4e-6 if eps > 1e-12 else 0), max(8 * eps, 1e-12)
    torch.testing.assert_close(grad_z.double(), wanted, rtol=rtol, atol=atol)
    assert_sums(bias, wanted, dtype)


@pytest.mark.parametrize("at", [(1, 0), (0, 1), (1, 1)])
def test_alignment_does_not_change_a_bit(at: tuple[int, int]) -> None:
    m, n, dtype = 66, 128, torch.bfloat16
    results = []
    for first, second in ((0, 0), at):
        grad, z = values(m * n, dtype, first, seed=1).reshape(m, n), values(m * n, dtype, second).reshape(m, n)
        found = linear_gelu_backward(grad, z, None, torch.eye(n, dtype=dtype))
        results.append((found[0], found[2], linear_backward(grad)[2]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.sample(4)
@EACH_WAY
def test_sums_of_small_integers_are_the_bits_of_the_naive_kernel(
    m: int, n: int, dtype: torch.dtype, sums: tuple[int, int], gelu: tuple[int, int]
) -> None:
    """Every order of a sum of integers is exact, and each rounds once."""
    grad = (torch.arange(m * n).reshape(m, n) * 7 % 5 - 2).to(dtype)
    found, wanted = linear_backward(grad)[2], torch.full((n,), torch.nan, dtype=dtype)
    naive_kernel("linear", "linear_backward_naive", Threads("N"))(grad, wanted, m, n)
    assert torch.equal(found, wanted)


@pytest.mark.sample(2)
@EACH_WAY
def test_the_gradient_of_gelu_is_that_of_the_naive_kernel(
    m: int, n: int, dtype: torch.dtype, sums: tuple[int, int], gelu: tuple[int, int]
) -> None:
    approximate = "tanh" if m == 70 else "none"
    z = values(m * n, dtype, 0).reshape(m, n)
    grad = (torch.arange(m * n).reshape(m, n) % 3 - 1).to(dtype)
    grad_z, _, bias = linear_gelu_backward(grad, z, None, torch.eye(n, dtype=dtype), approximate)
    wanted = torch.full_like(z, torch.nan)
    wanted_bias = torch.full((n,), torch.nan, dtype=torch.promote_types(dtype, torch.float32))
    constants = {"TANH": int(approximate == "tanh")}
    naive = naive_kernel("linear_gelu", "linear_gelu_backward_naive", Threads("N"), constants=constants)
    naive(grad, z, wanted, wanted_bias, m, n)
    assert torch.equal(grad_z, wanted), "the same arithmetic for each element"
    eps = torch.finfo(dtype).eps
    scale = wanted.double().abs().sum(0).max().item()
    torch.testing.assert_close(bias.double(), wanted_bias.double(), rtol=eps, atol=1e-6 * scale)


def assert_sums(sums: Tensor, terms: Tensor, dtype: torch.dtype) -> None:
    """The error is at most one rounding and that of a sum in the arithmetic's type; a missing term exceeds it."""
    arithmetic = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    exact = terms.sum(0)
    allowed = torch.finfo(dtype).eps * exact.abs() + arithmetic * (8 * terms.abs().sum(0) + 8)
    assert ((sums.double() - exact).abs() <= allowed).all()


def with_bias_on_the_way(product: Tensor, bias: Tensor, y: Tensor, approximate: str, rows: int | None = None) -> None:
    """The launch for a product; on fewer rows of threads, they take turns."""
    m, n = product.shape
    kernel, (columns, all_rows) = linear_gelu_module.FORWARD[approximate].launch(str(product.dtype)[6:], m, n)
    kernel(bias, product, y, m, n, columns, rows or all_rows)


@pytest.mark.sample(2)
@EVERY_DTYPE
@pytest.mark.parametrize(
    ("m", "n", "rows", "approximate"),
    [(70, 48, 9, "none"), (37, 37, 1, "tanh"), (1, 1, None, "none"), (3, 1030, None, "none"), (19, 6, 8, "tanh")],
)
def test_bias_on_the_way_to_gelu(m: int, n: int, rows: int | None, approximate: str, dtype: torch.dtype) -> None:
    """z is rounded once, and y made of it as it is kept: whole accesses and odd columns, few rows and several turns."""
    product, bias = values(m * n, dtype, 0).reshape(m, n), values(n, dtype, 0, seed=1)
    z, y = product.clone(), torch.full_like(product, np.nan)
    naive_z, naive_y = product.clone(), torch.full_like(product, np.nan)
    constants = {"TANH": int(approximate == "tanh")}
    naive = naive_kernel("linear_gelu", "linear_gelu_naive", Threads("N", "M", block=(32, 1, 1)), constants=constants)
    naive(bias, naive_z, naive_y, m, n)
    with_bias_on_the_way(z, bias, y, approximate, rows)
    assert torch.equal(z, product + bias)
    assert torch.equal(z, naive_z)
    assert torch.equal(y, naive_y)
    assert torch.equal(y, gelu(z, approximate)), "the kernel that does nothing else gives other bits"
    wanted = torch.nn.functional.gelu(z.double(), approximate=approximate)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), wanted, rtol=max(2 * eps, 4e-6 if eps > 1e-12 else 0), atol=8 * eps)


@pytest.mark.parametrize("at", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)])
def test_alignment_of_a_bias_on_the_way_does_not_change_a_bit(at: tuple[int, int, int]) -> None:
    m, n = 21, 64
    results = []
    for of_product, of_bias, of_y in ((0, 0, 0), at):
        product = values(m * n, torch.float32, of_product).reshape(m, n)
        bias, y = values(n, torch.float32, of_bias, seed=1), values(m * n, torch.float32, of_y).reshape(m, n)
        with_bias_on_the_way(product, bias, y, "none")
        results.append((product, y))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_where_the_bias_is_added_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel adds the bias for float32 products in the table: tensors of any leading dimensions, NumPy arrays,
    gradients."""
    monkeypatch.setattr(products, "LEAST_APART_K", 0)
    monkeypatch.setattr(products, "LEAST_APART_ROWS", 0)
    monkeypatch.setattr(linear_config, "APART", {False: (Apart(64, 20 * 24, 20 * 24),)})
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((20, 64), (24, 64), (24,)))

    def launched(*inputs: Tensor | None, approximate: str = "none") -> list[str]:
        with launches.recorded() as noted:
            y = linear_gelu(*inputs, approximate)  # type: ignore[arg-type]
        wanted = torch.nn.functional.linear(*inputs)  # type: ignore[arg-type]
        wanted = torch.nn.functional.gelu(wanted, approximate=approximate)
        torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-4)
        return [launch.kernel.name for launch in noted]

    pass_of_ours, gelu_alone = ["linear_gelu_forward"], ["gelu_forward"]
    for form, leading in itertools.product(("none", "tanh"), ((20,), (4, 5), (2, 1, 10))):
        assert launched(x.view(*leading, 64), weight, bias, approximate=form) == pass_of_ours
    assert launched(x.t().contiguous().t(), weight.t().contiguous().t(), bias.expand(2, 24)[1]) == pass_of_ours
    for inputs in (
        (x, weight, None),
        (x[:19], weight, bias),
        (torch.cat((x, x[:1])), weight, bias),
        (torch.cat((x, x))[:, :63], weight[:, :63], bias),
        (x.double(), weight.double(), bias.double()),
    ):
        assert launched(*inputs) == gelu_alone
    fake = linear_gelu_module.forward(x.to("meta"), weight.to("meta"), bias.to("meta"))
    assert [t.shape for t in fake] == [(20, 24)] * 2
    y, z = cupyops.linear_gelu(x.numpy(), weight.numpy(), bias.numpy())
    torch.testing.assert_close(torch.from_numpy(z), torch.nn.functional.linear(x, weight, bias), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(y), linear_gelu(x, weight, bias), rtol=1e-5, atol=1e-4)
    inputs = [t.detach().requires_grad_() for t in (x, weight, bias)]
    found = torch.autograd.grad(linear_gelu(*inputs), inputs, torch.ones(20, 24))
    wanted = torch.nn.functional.gelu(torch.nn.functional.linear(*inputs))
    for ours, theirs in zip(found, torch.autograd.grad(wanted, inputs, torch.ones(20, 24)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


def test_a_product_that_is_made_without_the_bias_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's addition in place adds it to a new result, of any leading dimensions."""
    monkeypatch.setattr(products, "LEAST_APART_K", 0)
    monkeypatch.setattr(products, "LEAST_APART_ROWS", 0)
    monkeypatch.setattr(linear_config, "APART", {False: (Apart(64, 20 * 24, 20 * 24),)})
    asked, whole = [], products.product_apart
    monkeypatch.setattr(linear_module, "product_apart", lambda *a: asked.append(whole(*a)) or asked[-1])
    x, weight, bias = (torch.randn(shape) for shape in ((4, 5, 64), (24, 64), (24,)))
    for inputs, taken in (((x, weight, bias), True), ((x, weight, None), False), ((x[:, :4], weight, bias), False)):
        given = [None if t is None else t.clone() for t in inputs]
        y = linear(*inputs)
        torch.testing.assert_close(y, torch.nn.functional.linear(*inputs), rtol=1e-5, atol=1e-4)
        assert (asked.pop() is not None) is taken
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(inputs, given, strict=True))
    y = cupyops.linear(x.numpy(), weight.numpy(), bias.numpy())
    torch.testing.assert_close(torch.from_numpy(y), torch.nn.functional.linear(x, weight, bias), rtol=1e-5, atol=1e-4)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    asked.clear()
    monkeypatch.setattr(sys.modules["cupyops.torch.ops.linear"], "SMALL_WEIGHT", 0)
    found = torch.autograd.grad(linear(*leaves).square().sum(), leaves)
    assert asked.pop() is not None, "with PyTorch's own gradient, too"
    wanted = torch.autograd.grad(torch.nn.functional.linear(*leaves).square().sum(), leaves)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_what_is_wrong_is_said_where_the_bias_would_be_added_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LEAST_APART_K", 0)
    monkeypatch.setattr(products, "LEAST_APART_ROWS", 0)
    monkeypatch.setattr(linear_config, "APART", {False: (Apart(1, 0, 2**63),)})
    x, weight, bias = torch.ones(20, 64), torch.ones(24, 64), torch.ones(24)
    for inputs, words in (
        ((x, weight, bias[:1]), r"linear_gelu: `bias` must have shape \(24,\), .*, got \(1,\)"),
        ((x, weight, bias.double()), r"linear_gelu: .* `bias` must have dtype float32, as `x` has, got float64"),
        ((x, weight.double(), bias), r"linear_gelu: .* `weight` must have dtype float32"),
        ((x, weight[:, :32], bias), r"linear_gelu: mat1 and mat2 shapes cannot be multiplied \(20x64 and 32x24\)"),
        ((x, weight[0], bias), r"linear_gelu: both arguments to linear need to be at least 1D"),
    ):
        with pytest.raises(RuntimeError, match=words):
            linear_gelu(*inputs)
    with pytest.raises(RuntimeError, match="approximate argument must be either none or tanh, got 'erf'"):
        linear_gelu(x, weight, bias, "erf")
    assert linear_gelu(x[:0], weight, bias).shape == (0, 24)


def test_what_a_launch_leaves_alone() -> None:
    ones = np.ones((6, 33), np.float32)
    _, _, sums = cupyops.linear_backward(ones)
    assert (sums == 6).all()


def test_numpy_arrays() -> None:
    generator = np.random.default_rng(0)
    x, weight, bias, grad = (generator.standard_normal(s).astype(np.float16) for s in ((9, 6), (4, 6), (4,), (9, 4)))
    tensors = [torch.from_numpy(a) for a in (x, weight, bias, grad)]
    wanted = torch.nn.functional.linear(*tensors[:3])
    y, z = cupyops.linear_gelu(x, weight, bias)
    assert type(y) is np.ndarray
    for ours, theirs in ((cupyops.linear(x, weight, bias), wanted), (z, wanted), (y, torch.nn.functional.gelu(wanted))):
        torch.testing.assert_close(torch.from_numpy(ours), theirs, rtol=2e-3, atol=2e-3)
    found = cupyops.linear_gelu_backward(grad, z, x, weight)
    for ours, theirs in zip(found, linear_gelu_backward(tensors[3], torch.from_numpy(z), *tensors[:2]), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), theirs, rtol=2e-3, atol=4e-3)
