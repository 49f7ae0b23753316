"""The kernels of a linear layer with few rows on the CPU, sanitized: sizes, alignments, both forms of GELU, and when they are
asked for."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from autograd_bridge import gelu, linear, linear_gelu
from cupyops import Threads
from cupyops.launch import recording as launches
from cupyops.launch.recording import Launch
from cupyops.ops.linear import config as linear_config
from cupyops.ops.linear.body import narrow_kernel
from cupyops.ops.linear.config import NarrowConfig
from tests.kernels.test_simulated_kernels import values
from tests.naive import naive_kernel
from tests.support import with_floats

pytestmark = pytest.mark.simulator
FEW_OF = pytest.mark.parametrize("few_is_x", [True, False], ids=["x", "weight"])
# Which matrix has few rows, and by how many the work is cut. A config has three kernels for each dtype, by the width of an access.
CONFIGS = [(few_is_x, *cut) for cut in ((1, 1, 1), (3, 2, 4), (8, 1, 2)) for few_is_x in (True, False)]
# Without a GPU, a config has one dtype in turn.
EVERY_CONFIG = pytest.mark.parametrize(
    ("few_is_x", "few", "rows_each", "split", "dtype"),
    with_floats((pytest.param(*c, id=str(c)) for c in CONFIGS), each=1),
)


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


def sizes(dtype: torch.dtype) -> list[tuple[int, int, int, int]]:
    """Rows and columns of the long matrix, elements of an access, and by how many the matrix is off its alignment: several
    turns, columns that no access of 16 bytes divides, and a single element."""
    widest = 16 // dtype.itemsize
    return [(37, 33 * widest, widest, 0), (37, 33 * widest, widest, 1), (5, 37, 1, 0), (1, 1, 1, 0), (3, 70, 2, 1)]


def drawn(r: int, k: int, few: int, dtype: torch.dtype, offset: int, few_is_x: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The long matrix, the other, and a bias."""
    many, less = values(r * k, dtype, offset).reshape(r, k), values(few * k, dtype, 0, seed=2).reshape(few, k) / 16
    return many, less, values(r if few_is_x else few, dtype, 0, seed=1)


def multiplied(
    config: NarrowConfig, many: Tensor, less: Tensor, bias: Tensor | None, *form: str
) -> tuple[Tensor, Tensor]:
    """The product, and GELU of it."""
    r, k = many.shape
    z, y = (
        torch.full((config.few, r) if config.few_is_x else (r, config.few), np.nan, dtype=many.dtype) for _ in range(2)
    )
    kernel = narrow_kernel(config, str(many.dtype)[6:], *form)
    kernel(many, less, bias, z, y if form else None, r, k, 0 if bias is None else bias.numel())
    return z, y


@pytest.mark.sample(2)
@EVERY_CONFIG
def test_products_with_a_matrix_of_few_rows(
    dtype: torch.dtype, few_is_x: bool, few: int, rows_each: int, split: int
) -> None:
    for r, k, vector_width, offset in sizes(dtype):
        many, less, bias = drawn(r, k, few, dtype, offset, few_is_x)
        for b in (bias, None):
            y, _ = multiplied(NarrowConfig(few_is_x, few, vector_width, rows_each, split), many, less, b)
            x, weight = (less, many) if few_is_x else (many, less)
            wanted = F.linear(x.double(), weight.double(), None if b is None else b.double())
            arithmetic = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
            allowed = torch.finfo(dtype).eps * wanted.abs() + 4 * arithmetic * (
                x.double().abs() @ weight.double().abs().T + 8
            )
            assert ((y.double() - wanted).abs() <= allowed).all()


@pytest.mark.sample(2)
@EVERY_CONFIG
def test_gelu_behind_a_product_of_few_rows_changes_no_bit(
    dtype: torch.dtype, few_is_x: bool, few: int, rows_each: int, split: int
) -> None:
    """z is what the product alone gives, and y what GELU alone makes of it as it is kept."""
    approximate = "none" if few == 3 else "tanh"
    for r, k, vector_width, offset in sizes(dtype):
        many, less, bias = drawn(r, k, few, dtype, offset, few_is_x)
        less /= k / 16  # in this range, the forms of GELU and the roundings of z differ
        for b in (bias / 4, None):
            config = NarrowConfig(few_is_x, few, vector_width, rows_each, split)
            z, y = multiplied(config, many, less, b, approximate)
            assert torch.equal(z, multiplied(config, many, less, b)[0])
            assert torch.equal(y, gelu(z, approximate))


@pytest.mark.sample(2)
@EVERY_CONFIG
def test_products_of_small_integers_are_the_bits_of_the_naive_kernel(
    dtype: torch.dtype, few_is_x: bool, few: int, rows_each: int, split: int
) -> None:
    """Every order of a sum of integers is exact, and each rounds once. GELU is compared with one cut: with the others,
    ``test_gelu_behind_a_product_of_few_rows_changes_no_bit`` holds z to the product alone, and y to GELU of z."""
    form = ("none",) if few == 3 else ()
    naive = naive_kernel("linear", "linear_naive", Threads("N", "M", block=(32, 1, 1)), dtypes=(str(dtype)[6:],))
    for r, k, vector_width, offset in sizes(dtype):
        many, less, bias = (t.round().clamp(-2, 2) for t in drawn(r, k, few, dtype, offset, few_is_x))
        (m, n), (x, weight) = ((few, r), (less, many)) if few_is_x else ((r, few), (many, less))
        for b in (bias, None):
            config = NarrowConfig(few_is_x, few, vector_width, rows_each, split)
            z, y = torch.full((m, n), np.nan, dtype=dtype), torch.full((m, n), np.nan, dtype=dtype)
            naive(x.contiguous(), weight.contiguous(), b, z, y, m, n, k, 0 if b is None else n)
            found = multiplied(config, many, less, b, *form)
            assert torch.equal(found[0], z)
            assert not form or torch.equal(found[1], y)


def test_a_row_of_few_has_the_same_bits_however_many_there_are() -> None:
    many, less = (
        values(40 * 64, torch.float32, 0).reshape(40, 64),
        values(8 * 64, torch.float32, 0, seed=3).reshape(8, 64),
    )
    found = {few: multiplied(NarrowConfig(True, few, 4, 1, 1), many, less[:few], None)[0] for few in (1, 3, 8)}
    assert torch.equal(found[1], found[8][:1])
    assert torch.equal(found[3], found[8][:3])


def test_what_a_product_of_few_rows_leaves_alone() -> None:
    ones, memory = torch.ones(6, 33), torch.full((3, 64), 7.0)
    config = NarrowConfig(True, 1, 1, 1, 1)
    alone, z, y = (row[:6].view(1, 6) for row in memory)
    narrow_kernel(config, "float32")(ones, ones[:1], None, alone, None, 6, 33, 0)
    narrow_kernel(config, "float32", "none")(ones, ones[:1], None, z, y, 6, 33, 0)
    assert (memory[:, :6] == 33).all()
    assert (memory[:, 6:] == 7).all()


# Who is asked


Layer = Callable[..., Tensor]
LAYERS = {"alone": (linear, F.linear), "gelu": (linear_gelu, lambda *operands: F.gelu(F.linear(*operands)))}
# The launches of each if the library computes the product.
BEHIND_THE_LIBRARY = {"alone": [], "gelu": ["gelu_forward"]}
EACH_LAYER = pytest.mark.parametrize("name", LAYERS)
OURS = ["linear_narrow"]


def launched(layer: Layer, wanted: Tensor, *inputs: Tensor | None) -> list[Launch]:
    """Checks the layer's results, and returns its launches."""
    with launches.recorded() as noted:
        y = layer(*inputs)
    eps = torch.finfo(wanted.dtype).eps
    torch.testing.assert_close(y, wanted, rtol=32 * eps, atol=64 * eps * float(wanted.abs().max()))
    return noted


def names(noted: list[Launch]) -> list[str]:
    return [launch.kernel.name for launch in noted]


@FEW_OF
@EACH_LAYER
def test_few_rows_go_to_our_kernel_where_the_others_are_many_or_the_product_is_small(
    monkeypatch: pytest.MonkeyPatch, few_is_x: bool, name: str
) -> None:
    layer, theirs = LAYERS[name]
    long, few = values(40 * 64, torch.float32, 0).reshape(40, 64), values(3 * 64, torch.float32, 0).reshape(3, 64)
    x, weight = (few, long) if few_is_x else (long, few)
    bias = torch.arange(len(weight), dtype=torch.float32)
    wanted = theirs(x, weight, bias)
    for least, splits in ((long.nbytes + 1, [1] if few_is_x else []), (long.nbytes, [2])):
        monkeypatch.setattr(linear_config, "LEAST_NARROW", least)
        found = launched(layer, wanted, x, weight, bias)
        assert names(found) == (OURS if splits else BEHIND_THE_LIBRARY[name])
        for launch, split in zip(found, splits, strict=False):
            constants = launch.kernel.constants
            assert [constants[c] for c in ("FEW", "SPLIT", "FEW_IS_X")] == [3, split, few_is_x]
    for inputs in (
        (x[:, None], weight, bias),
        (x, weight, None),
        (x, weight, bias[:, None].expand(-1, 2)[:, 1]),
    ):
        assert names(launched(layer, theirs(*inputs), *inputs)) == OURS
    # The library computes what the kernel cannot, and arguments that neither takes raise the usual error.
    assert names(launched(layer, wanted, x.t().contiguous().t(), weight, bias)) == BEHIND_THE_LIBRARY[name]
    for inputs in ((x, weight.double(), bias), (x, weight[:, :32], bias), (x, weight, bias.double())):
        with pytest.raises(RuntimeError, match=r"linear(_gelu)?: (mat1 and mat2|.*`bias` must have dtype float32)"):
            layer(*inputs)


# Either layer with either dtype of 16 bits: the choice of a kernel asks for the bytes of an element.
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in LAYERS for dtype in (torch.float32, torch.float64)]
    + [("alone", torch.float16), ("gelu", torch.bfloat16)],
)
def test_a_small_product_of_odd_rows_is_one_launch(dtype: torch.dtype, name: str) -> None:
    layer, theirs = LAYERS[name]
    most, most_k = linear_config.MOST_ODD, linear_config.MOST_ODD_K
    for m, n, k, ours in (
        *((1, 1, 2, True), (1, 1, 1, True), (3, 5, 6, True), (8, most // 126, 126, True), (2, 3, most_k - 1, True)),
        *((2, 3, most_k + 1, False), (1, most + 1, 1, False), (17, 5, 6, False)),
    ):
        x, weight = values(m * k, dtype, 0).reshape(m, k), values(n * k, dtype, 0).reshape(n, k)
        bias = values(n, dtype, 0)
        found = names(launched(layer, theirs(x, weight, bias), x, weight, bias))
        assert found == (OURS if ours and dtype != torch.float64 else BEHIND_THE_LIBRARY[name]), (m, n, k)


def test_both_results_of_gelu_behind_few_rows_without_pytorch() -> None:
    generator = np.random.default_rng(0)
    x, weight, bias = (generator.standard_normal(s).astype(np.float32) for s in ((2, 3, 64), (24, 64), (24,)))
    for approximate in ("none", "tanh"):
        with launches.recorded() as noted:
            y, z = cupyops.linear_gelu(x, weight, bias, approximate)
        assert names(noted) == OURS
        assert np.array_equal(z, cupyops.linear(x, weight, bias))
        assert np.array_equal(y, cupyops.gelu(z, approximate))


def test_gradients_behind_few_rows() -> None:
    for m, approximate in itertools.product((1, 5), ("none", "tanh")):
        generator = torch.Generator().manual_seed(m)
        inputs = [torch.randn(s, generator=generator).requires_grad_() for s in ((m, 64), (24, 64), (24,))]
        y = linear_gelu(*inputs, approximate)
        wanted = F.gelu(F.linear(*inputs), approximate=approximate)
        for ours, theirs in zip(
            torch.autograd.grad(y, inputs, torch.ones(m, 24)),
            torch.autograd.grad(wanted, inputs, torch.ones(m, 24)),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


def test_another_word_for_gelu_behind_few_rows() -> None:
    with pytest.raises(RuntimeError, match="approximate argument must be either none or tanh, got 'erf'"):
        linear_gelu(torch.ones(2, 64), torch.ones(24, 64), None, "erf")
    for word in (None, "", []):
        with pytest.raises(RuntimeError, match="approximate argument must be either none or tanh, got "):
            cupyops.linear_gelu(np.ones((2, 64), np.float32), np.ones((24, 64), np.float32), None, word)
