"""The LLTM cell: values and gradients against float64, the derivative of elu, shapes and layouts."""

import math
import re
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from autograd_bridge import lltm_cell
from cupyops.launch import recording as launches
from tests.support import EACH_FLOAT, alike, with_floats

body = sys.modules["cupyops.ops.lltm.cell"]  # the package gives the function by this name
DTYPES = pytest.mark.parametrize("dtype", EACH_FLOAT)
# Rows, features, units: one of each, odd, several tiles; on a GPU, the products of PyTorch's, too.
SIZES = [(1, 1, 1), (5, 3, 7), (16, 32, 128), (19, 0, 20), (37, 150, 33)]
LARGE = [(64, 512, 1024), (100_000, 32, 128), (3, 700, 1500)]


def operands(sizes: tuple[int, int, int], dtype: torch.dtype, device: str) -> list[Tensor]:
    """input, weights, bias, old_h, old_cell that require gradients."""
    b, f, s = sizes
    generator = torch.Generator().manual_seed(b + f + s)
    scale = (f + s) ** -0.5
    shapes = (((b, f), 1.0), ((3 * s, f + s), scale), ((3 * s,), 1.0), ((b, s), 1.0), ((b, s), 1.0))
    drawn = (torch.randn(shape, generator=generator) * k for shape, k in shapes)
    return [x.to(device, dtype).requires_grad_() for x in drawn]


def plainly(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    """The cell by PyTorch's operators."""
    z_i, z_o, z_g = F.linear(torch.cat((old_h, input), 1), weights, bias).chunk(3, 1)
    new_cell = old_cell + F.elu(z_g) * z_i.sigmoid()
    return new_cell.tanh() * z_o.sigmoid(), new_cell


def assert_as_accurate(ours: Tensor, theirs: Tensor, exact: Tensor, what: str, terms: int) -> None:
    """The largest error is within twice PyTorch's and a rounding, both relative to the largest value. The sums have so
    many terms."""
    if not exact.numel():
        assert ours.shape == exact.shape, what
        return
    scale = exact.detach().abs().max().clamp_min(1e-300)
    error, allowed = (float((t.detach().double() - exact.detach()).abs().max() / scale) for t in (ours, theirs))
    assert ours.dtype == theirs.dtype, what
    # In float64, PyTorch's own is the exact value here, with the roundings that it has: those of a sum in another order
    # grow as the root of its length.
    rounding = torch.finfo(ours.dtype).eps * (4 + math.sqrt(terms) if ours.dtype == torch.float64 else 1)
    assert error <= 2 * (allowed + rounding), f"{what}: off by {error:.2e}, PyTorch by {allowed:.2e}"


def compare(sizes: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    ours = operands(sizes, dtype, device)
    theirs = [x.detach().requires_grad_() for x in ours]
    exact = [x.detach().double().requires_grad_() for x in ours]
    found = [f(*x) for f, x in ((lltm_cell, ours), (plainly, theirs), (plainly, exact))]
    batch, features, state = sizes
    for name, a, b, c in zip(("new_h", "new_cell"), *found, strict=True):
        assert_as_accurate(a, b, c, name, features + state)
    grads = [torch.randn_like(y) for y in found[0]]
    gradients = [
        torch.autograd.grad(y, x, [g.to(y[0].dtype) for g in grads])
        for y, x in zip(found, (ours, theirs, exact), strict=True)
    ]
    for name, a, b, c in zip(("input", "weights", "bias", "old_h", "old_cell"), *gradients, strict=True):
        assert_as_accurate(a, b, c, f"gradient of {name}", max(batch, features + state, 3 * state))


@pytest.mark.sample(7)
@pytest.mark.parametrize(("sizes", "dtype"), with_floats((pytest.param(s, id=str(s)) for s in SIZES), each=1))
@pytest.mark.parametrize("whole", [True, False])
def test_values_and_gradients_against_float64(
    sizes: tuple[int, int, int], device: str, dtype: torch.dtype, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers the single kernel of each direction, and PyTorch's products."""
    monkeypatch.setattr(body, "WHOLE_WORK", 2**40 if whole else 0)
    compare(sizes, dtype, device)


def test_many_rows_of_a_small_cell(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward in one kernel, backward by products: more rows than its blocks go through."""
    monkeypatch.setattr(body, "WHOLE_ROWS", 16)
    compare((35, 3, 4), torch.float32, device)


@pytest.mark.gpu
@DTYPES
@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_large_cells_against_float64(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    compare(sizes, dtype, "cuda")


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("z", [0.0, -0.0, -1e-8, 1e-8, 1000.0, -1000.0, 0.7, -0.7, math.inf, -math.inf, math.nan])
def test_the_derivative_of_elu(device: str, z: float, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is 1 at 0 and just below it, does not overflow far above, and keeps a NaN."""
    monkeypatch.setattr(body, "WHOLE_WORK", 2**40 if whole else 0)
    x, h, c = (torch.zeros(1, 1, device=device) for _ in range(3))
    bias = torch.tensor([0.3, 0.0, z], device=device, requires_grad=True)
    _, new_cell = lltm_cell(x, torch.zeros(3, 2, device=device), bias, h, c)
    gate = 1 / (1 + math.exp(-0.3))
    value = z if z > 0 or math.isnan(z) else math.expm1(z)
    torch.testing.assert_close(new_cell.item(), gate * value, rtol=1e-6, atol=0, equal_nan=True)
    new_cell.sum().backward()
    assert bias.grad is not None
    if math.isnan(z):
        assert bias.grad[0].isnan()
        # PyTorch's own derivative on the CPU takes a NaN for a positive number.
        assert device == "cpu" or bias.grad[2].isnan()
        return
    slope = 1.0 if z > 0 else math.exp(z)
    torch.testing.assert_close(float(bias.grad[2]), gate * slope, rtol=1e-6, atol=1e-38)
    if math.isfinite(z):
        torch.testing.assert_close(float(bias.grad[0]), gate * (1 - gate) * value, rtol=1e-5, atol=1e-38)


def test_a_nan_keeps_to_its_row_and_unit(device: str) -> None:
    inputs = operands((6, 4, 5), torch.float32, device)
    with torch.no_grad():
        inputs[0][2, 1] = math.nan
        inputs[4][4, 3] = math.nan
        h, c = lltm_cell(*inputs)
    for y in (h, c):
        assert y[2].isnan().all()
        assert y[[0, 1, 3, 5]].isfinite().all()
        assert y[4].isnan().tolist() == [False, False, False, True, False]


def test_small_values_of_elu_do_not_cancel(device: str) -> None:
    x, h, c = (torch.zeros(1, 1, device=device) for _ in range(3))
    for z in (-1e-4, -1e-10, -1e-30):
        _, new_cell = lltm_cell(x, torch.zeros(3, 2, device=device), torch.tensor([50.0, 0, z], device=device), h, c)
        torch.testing.assert_close(new_cell.item(), math.expm1(z), rtol=1e-6, atol=0)


@pytest.mark.parametrize("wanted", range(1, 32))
def test_each_subset_of_inputs_requires_grad(device: str, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for whole in (2**40, 0):
        monkeypatch.setattr(body, "WHOLE_WORK", whole)
        ours = [
            x.detach().requires_grad_(bool(wanted >> i & 1))
            for i, x in enumerate(operands((5, 3, 4), torch.float64, device))
        ]
        theirs = [x.detach().requires_grad_(x.requires_grad) for x in ours]
        for f, inputs in ((lltm_cell, ours), (plainly, theirs)):
            h, c = f(*inputs)
            (2 * h.sum() + c.square().sum()).backward()
        for a, b in zip(ours, theirs, strict=True):
            if a.grad is None or b.grad is None:
                assert a.grad is b.grad
            else:
                torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("whole", [True, False])
def test_gradients_of_one_result_alone_and_of_any_strides(
    device: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of a sum has strides of 0, and that of a transposed tensor has column strides."""
    monkeypatch.setattr(body, "WHOLE_WORK", 2**40 if whole else 0)
    ours = operands((6, 3, 8), torch.float32, device)
    theirs = [x.detach().double().requires_grad_() for x in ours]
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "h": lambda h, c: h.sum(),
        "c": lambda h, c: c.sum(),
        "rows": lambda h, c: (h.sum(0) * torch.arange(8, device=device)).sum() + c.sum(1).square().sum(),
        "columns": lambda h, c: (h.t() * torch.arange(6, device=device)).square().sum() + c.t()[::2].square().sum(),
        "slices": lambda h, c: h[:, 1:5].square().sum() + c[::2, 3:].square().sum(),
    }
    for name, loss in losses.items():
        found = [
            torch.autograd.grad(loss(*f(*x)), x, allow_unused=True) for f, x in ((lltm_cell, ours), (plainly, theirs))
        ]
        for a, b in zip(*found, strict=True):
            if b is None or a is None:
                # What a result does not depend on has no gradient by PyTorch's operators, and one of zeros here.
                assert b is None
                assert a is None or not a.any()
                continue
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.sample(1)
def test_gradients_and_gradients_of_gradients(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for whole in (2**40, 0):
        monkeypatch.setattr(body, "WHOLE_WORK", whole)
        inputs = operands((2, 3, 2), torch.float64, device)
        assert torch.autograd.gradcheck(lltm_cell, inputs)
        assert torch.autograd.gradgradcheck(lltm_cell, inputs)


@pytest.mark.simulator
@pytest.mark.parametrize("few", [True, False])
def test_what_the_forward_made_is_not_made_again(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PyTorch's products, a backward has one launch between them, and one more to split gradients."""
    monkeypatch.setattr(body, "WHOLE_WORK", 0)
    monkeypatch.setattr(body, "FEW_ROWS", 5 if few else 4)
    sums = [] if few else ["lltm_sums"]
    inputs = operands((5, 4, 8), torch.float32, "cpu")
    frozen = [x.detach().requires_grad_(i != 1) for i, x in enumerate(inputs)]
    with cupyops.simulate():
        for given in (inputs, frozen):
            with launches.recorded() as record:
                h, c = lltm_cell(*given)
            assert [launch.kernel.name for launch in record] == ["lltm_inputs", "lltm_step"]
            kept = h.grad_fn.saved_tensors[-1]  # type: ignore[union-attr]
            assert (kept is None) == (given is frozen)
            wanted = [x for x in given if x.requires_grad]
            with launches.recorded() as record:
                first = torch.autograd.grad(h.sum() + c.sum(), wanted, retain_graph=True)
            assert [launch.kernel.name for launch in record] == ["lltm_step_backward", *sums, "lltm_inputs_backward"]
            for a, b in zip(first, torch.autograd.grad(h.sum() + c.sum(), wanted), strict=True):
                assert alike(a, b)


@pytest.mark.sample(2)
@DTYPES
def test_the_backward_operator_takes_inputs_made_before(
    device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weights, _, h, c = (t.detach() for t in operands((5, 4, 8), dtype, device))
    gates, both = torch.randn(5, 24, device=device).to(dtype), torch.cat((h, x), 1)
    backward = torch.ops.cupyops.lltm_cell_backward.default
    for whole in (2**40, 0):
        monkeypatch.setattr(body, "WHOLE_WORK", whole)
        arguments = [(h, c, None, x, weights, h, c, gates, made, *(True,) * 5) for made in (None, both)]
        assert all(alike(a, b) for a, b in zip(*(backward(*a) for a in arguments), strict=True))
        if dtype == torch.float32:
            torch.library.opcheck(backward, arguments[1])
    with pytest.raises(ValueError, match=re.escape("`both` must have shape (B, S + F) = (5, 12), got (5, 8)")):
        backward(h, c, None, x, weights, h, c, gates, h, *(True,) * 5)


# Shapes and layouts


@pytest.mark.sample(8)
@DTYPES
@pytest.mark.parametrize("batch", [0, 1, 17])
@pytest.mark.parametrize(("features", "state"), [(0, 3), (5, 8), (1, 1)])
def test_batches_of_any_size(device: str, dtype: torch.dtype, batch: int, features: int, state: int) -> None:
    for whole in (2**40, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(body, "WHOLE_WORK", whole)
            inputs = operands((batch, features, state), dtype, device)
            h, c = lltm_cell(*inputs)
            assert h.shape == c.shape == (batch, state)
            (h.sum() + c.sum()).backward()
            for x in inputs:
                assert x.grad is not None
                assert x.grad.shape == x.shape
            if batch == 0:
                assert not inputs[1].grad.any()  # type: ignore[union-attr]


def test_without_a_batch_and_with_more_dimensions(device: str) -> None:
    x, weights, bias, h, c = (t.detach() for t in operands((6, 3, 4), torch.float32, device))
    whole = lltm_cell(x, weights, bias, h, c)
    for row in range(6):
        for y, wanted in zip(lltm_cell(x[row], weights, bias, h[row], c[row]), whole, strict=True):
            assert y.shape == (4,)
            torch.testing.assert_close(y, wanted[row], rtol=1e-6, atol=1e-6)
    cube = lltm_cell(x.reshape(2, 3, 3), weights, bias, h.reshape(2, 3, 4), c.reshape(2, 3, 4))
    for y, wanted in zip(cube, whole, strict=True):
        assert alike(y, wanted.reshape(2, 3, 4))
    empty = lltm_cell(x.new_empty(2, 0, 3), weights, bias, h.new_empty(2, 0, 4), c.new_empty(2, 0, 4))
    assert empty[0].shape == (2, 0, 4)


@DTYPES
def test_every_layout_gives_the_bits_of_a_contiguous_copy(device: str, kernels: bool, dtype: torch.dtype) -> None:
    x, weights, bias, h, c = (t.detach() for t in operands((6, 6, 8), dtype, device))

    def moved(t: Tensor) -> Tensor:
        """The values an element after an aligned address."""
        memory = t.new_empty(t.numel() + 1)
        return memory[1:].view(t.shape).copy_(t)

    def strided(t: Tensor) -> Tensor:
        return t.repeat_interleave(2, -1)[..., ::2]

    ways: list[Callable[[Tensor], Tensor]] = [moved, strided, lambda t: t.t().contiguous().t() if t.dim() == 2 else t]
    for whole in (2**40, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(body, "WHOLE_WORK", whole)
            wanted = lltm_cell(x, weights, bias, h, c)
            for way in ways:
                inputs = [way(t) for t in (x, weights, bias, h, c)]
                before = [t.clone() for t in inputs]
                got = lltm_cell(*inputs)
                for y, w in zip(got, wanted, strict=True):
                    if kernels and whole:
                        assert alike(y, w)
                    else:  # the bits of PyTorch's products depend on the layout
                        torch.testing.assert_close(
                            y, w, rtol=16 * torch.finfo(dtype).eps, atol=16 * torch.finfo(dtype).eps
                        )
                assert all(alike(a, b) for a, b in zip(inputs, before, strict=True)), "an input was modified"
                addresses = {t.untyped_storage().data_ptr() for t in inputs}
                assert not addresses & {y.untyped_storage().data_ptr() for y in got}, "an output aliases an input"


def test_bits_of_a_row_do_not_depend_on_the_batch(device: str, kernels: bool) -> None:
    if not kernels:
        return  # the products of PyTorch's on a CPU
    x, weights, bias, h, c = (t.detach() for t in operands((35, 9, 12), torch.float32, device))
    whole = lltm_cell(x, weights, bias, h, c)
    for rows in (slice(0, 1), slice(15, 18), slice(34, 35)):
        for y, wanted in zip(lltm_cell(x[rows], weights, bias, h[rows], c[rows]), whole, strict=True):
            assert alike(y, wanted[rows])


@pytest.mark.gpu
def test_more_rows_than_a_grid_has_blocks() -> None:
    """524288 rows and more have no block of their own."""
    x, weights, bias, h, c = (t.detach() for t in operands((530_000, 2, 4), torch.float32, "cuda"))
    got, wanted = lltm_cell(x, weights, bias, h, c), plainly(x, weights, bias, h, c)
    for y, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(y, w, rtol=1e-5, atol=1e-5)
