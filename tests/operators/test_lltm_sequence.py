"""The LLTM over a sequence: values and gradients of each way through the steps, bits, sizes and layouts."""

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cupyops.ops.lltm.config import SequenceConfig, TensorCoresConfig
from cupyops.tiling.teams import TeamLaunch
from tests.operators.test_lltm import assert_as_accurate
from tests.support import alike, with_floats

body = sys.modules["cupyops.ops.lltm.sequence"]  # the package gives the function by this name
op = torch.ops.cupyops.lltm

# Steps, rows, features, units, and the way of a GPU that is given; each with several tiles or a tile that is not full.
WAYS = {
    "by steps": (4, 5, 3, 8, None),
    "a block": (5, 3, 4, 7, SequenceConfig(7, 8, 2)),
    "a block of several rows": (3, 9, 5, 20, SequenceConfig(20, 20, 16, rows=4)),
    "a block of groups of rows": (3, 9, 5, 20, SequenceConfig(20, 20, 16, rows=2, groups=2)),
    "a cluster": (6, 3, 5, 24, SequenceConfig(24, 6, 8, cluster=4, rows=2)),
    "a cluster with units to spare": (5, 6, 5, 22, SequenceConfig(22, 12, 4, cluster=2, rows=4)),
    "blocks of the grid": (5, 10, 5, 24, SequenceConfig(24, 12, 4, team=2, rows=4)),
    "blocks of the grid with units to spare": (4, 11, 5, 20, SequenceConfig(20, 8, 4, team=3, rows=2, groups=2)),
    "tensor cores": (4, 19, 5, 32, TensorCoresConfig(32, team=32 // 16)),
    "tensor cores and groups of rows": (3, 37, 5, 32, replace(TensorCoresConfig(32, team=32 // 16), groups=2)),
}
EACH_WAY = pytest.mark.parametrize("way", list(WAYS))


def widest(way: str) -> torch.dtype:
    """The widest dtype that these kernels take."""
    return torch.bfloat16 if isinstance(WAYS[way][-1], TensorCoresConfig) else torch.float32


def taking(config: SequenceConfig | TensorCoresConfig | None) -> Callable[..., TeamLaunch | None]:
    """Returns a function that always selects these kernels, for either direction."""

    def way(state: int, batch: int, dtype: str, forward: bool, device: int) -> TeamLaunch | None:
        if config is None or (isinstance(config, TensorCoresConfig) and dtype == "float32"):
            return None  # it goes by steps
        one = replace(config, backward=not forward)
        kernel = body.kernel_of(one, dtype)
        launch: TeamLaunch = one.launch(kernel, batch, kernel.resident_blocks({"scalar_t": dtype}, device))
        return launch

    return way


@pytest.fixture
def sized(way: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int, int]:
    """The sizes of a way, which the kernels are made to take."""
    *sizes, config = WAYS[way]
    monkeypatch.setattr(body, "way", taking(config))
    return tuple(sizes)  # type: ignore[return-value]


def operands(sizes: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> list[Tensor]:
    """input, weights, bias, h0, c0 that require gradients."""
    t, b, f, s = sizes
    generator = torch.Generator().manual_seed(t + b + f + s)
    scale = (f + s) ** -0.5
    shapes = (((t, b, f), 1.0), ((3 * s, f + s), scale), ((3 * s,), scale), ((b, s), 1.0), ((b, s), 1.0))
    drawn = (torch.randn(shape, generator=generator) * k for shape, k in shapes)
    return [x.to(device, dtype).requires_grad_() for x in drawn]


def plainly(
    input: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes the sequence cell by cell with PyTorch's operators."""
    steps = []
    for x in input:
        gates = torch.addmm(bias, torch.cat((h, x), 1), weights.t())
        z_i, z_o, z_g = gates.chunk(3, 1)
        c = c + torch.nn.functional.elu(z_g) * z_i.sigmoid()
        h = c.tanh() * z_o.sigmoid()
        steps.append((h, c, gates))
    hs, cs, zs = (torch.stack(part) for part in zip(*steps, strict=True))
    return hs, torch.stack((h, c)), cs, zs


@pytest.mark.sample(7)
@pytest.mark.parametrize(("way", "dtype"), with_floats(WAYS, each=1))
def test_values_and_gradients_against_float64(
    way: str, sized: tuple[int, int, int, int], device: str, dtype: torch.dtype
) -> None:
    if dtype == torch.float64 and WAYS[way][-1] is not None:
        return  # it goes by steps
    ours = operands(sized, dtype, device)
    theirs = [x.detach().requires_grad_() for x in ours]
    exact = [x.detach().double().requires_grad_() for x in ours]
    found = [f(*x) for f, x in ((op, ours), (plainly, theirs), (plainly, exact))]
    steps, batch, features, state = sized
    terms = steps * max(batch, features + state, 3 * state)
    for name, a, b, c in zip(("h", "last", "cells", "gates"), *found, strict=True):
        assert_as_accurate(a, b, c, name, terms)
    grads = [torch.randn_like(y) for y in found[0]]
    given = [g.clone() for g in grads]
    gradients = [
        torch.autograd.grad(y, x, [g.to(y[0].dtype) for g in grads])
        for y, x in zip(found, (ours, theirs, exact), strict=True)
    ]
    for name, a, b, c in zip(("input", "weights", "bias", "h0", "c0"), *gradients, strict=True):
        assert_as_accurate(a, b, c, f"gradient of {name}", terms)
    assert all(alike(a, b) for a, b in zip(grads, given, strict=True)), "the results' gradients are not to be changed"


@pytest.mark.sample(5)
@EACH_WAY
def test_gradients_of_each_result_alone(way: str, sized: tuple[int, int, int, int], device: str) -> None:
    """The kernel gets a null pointer, not zeros, for a result without a gradient."""
    ours = operands(sized, torch.float32, device)
    theirs = [x.detach().double().requires_grad_() for x in ours]
    for i in range(4):
        grads = [
            torch.autograd.grad(f(*x)[i].square().sum(), x, allow_unused=True)
            for f, x in ((op, ours), (plainly, theirs))
        ]
        for a, b in zip(*grads, strict=True):
            if b is None:
                assert not a.any()
            else:
                torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.sample(2)
@EACH_WAY
def test_the_same_bits_over_100_runs(way: str, sized: tuple[int, int, int, int], device: str, backend: str) -> None:
    inputs = operands(sized, widest(way), device)
    first = None
    for _ in range(100 if backend == "cuda" else 2):
        y = op(*inputs)
        found = (*y, *torch.autograd.grad((y[0].sum(), y[1].sum()), inputs))
        first = first or found
        assert all(alike(a, b) for a, b in zip(found, first, strict=True))


@pytest.mark.sample(4)
@EACH_WAY
def test_bits_of_a_row_do_not_depend_on_the_batch(
    way: str, sized: tuple[int, int, int, int], device: str, kernels: bool
) -> None:
    if not kernels or WAYS[way][-1] is None:
        return  # the products of PyTorch's depend on it

    def results(x: Tensor, weights: Tensor, bias: Tensor, h0: Tensor, c0: Tensor) -> list[Tensor]:
        # A part of z that PyTorch's product makes, whose bits depend on the number of rows, is left out.
        h, last, cells, gates = op(x * 0, weights, bias, h0, c0)
        return [h, last, cells, gates, *torch.autograd.grad((h.sum(), last.sum()), (h0, c0))]

    inputs = operands(sized, widest(way), device)
    whole = results(*inputs)
    for rows in (slice(0, 1), slice(sized[1] - 2, sized[1])):
        x, weights, bias, h0, c0 = inputs
        for a, b in zip(results(x[:, rows], weights, bias, h0[rows], c0[rows]), whole, strict=True):
            assert alike(a, b[:, rows] if b.dim() == 3 else b[rows])


def test_rows_shared_in_another_way_give_the_same_bits(
    device: str, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels:
        return
    inputs = [x.detach() for x in operands((4, 6, 3, 20), torch.float32, device)]
    found = []
    for rows, groups in ((1, 1), (2, 1), (4, 2)):
        config = SequenceConfig(20, 20, 8, rows=rows, groups=groups)
        monkeypatch.setattr(body, "way", taking(config))
        h, _, cells, gates = op(*inputs)
        back = torch.ops.cupyops.lltm_backward(
            h, None, None, None, *inputs[:2], inputs[3], h, cells, gates, *(True,) * 5
        )
        found.append((h, cells, gates, back[3], back[4]))
    for other in found[1:]:
        assert all(alike(a, b) for a, b in zip(other, found[0], strict=True))


def test_the_backward_of_float64_leaves_the_gradient_of_h_as_it_is(device: str, kernels: bool) -> None:
    """In float64 each step is a launch, which adds to the gradient of the step before."""
    if not kernels:
        return
    inputs = [x.detach() for x in operands((3, 2, 1, 3), torch.float64, device)]
    h, _, cells, gates = op(*inputs)
    grad_h = torch.ones_like(h)
    torch.ops.cupyops.lltm_backward(grad_h, None, None, None, *inputs[:2], inputs[3], h, cells, gates, *(True,) * 5)
    assert (grad_h == 1).all()


@pytest.mark.sample(1)
def test_gradients_and_gradients_of_gradients(device: str) -> None:
    inputs = operands((3, 2, 1, 3), torch.float64, device)
    assert torch.autograd.gradcheck(op, inputs)
    assert torch.autograd.gradgradcheck(op, inputs)


@pytest.mark.parametrize("wanted", [1, 2, 4, 8, 16, 6, 25])
def test_subsets_of_inputs_that_require_grad(device: str, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SequenceConfig(6, 6, 8)
    for chosen in (config, None):
        monkeypatch.setattr(body, "way", taking(chosen))
        drawn = operands((3, 4, 2, 6), torch.float32, device)
        ours = [x.detach().requires_grad_(bool(wanted >> i & 1)) for i, x in enumerate(drawn)]
        theirs = [x.detach().requires_grad_(x.requires_grad) for x in ours]
        for f, inputs in ((op, ours), (plainly, theirs)):
            h, last, *_ = f(*inputs)
            (h.square().sum() + last.sum()).backward()
        for a, b in zip(ours, theirs, strict=True):
            if a.grad is None or b.grad is None:
                assert a.grad is b.grad
            else:
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("of_h0", [True, False])
def test_flops_of_the_backward_are_those_of_pytorchs_products(of_h0: bool) -> None:
    """The first step needs a product for the gradient of h0 alone."""

    def products(x: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor]:
        for one in x:
            h = (h @ weights[:, :4].t() + one @ weights[:, 4:].t())[:, :4].sin()
        return (h,)

    counts = []
    for f in (op, products):
        inputs = operands((3, 2, 5, 4), torch.float32, "cpu")
        inputs[3].requires_grad_(of_h0)
        with FlopCounterMode(display=False) as counter:
            f(*inputs)[0][-1].sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("sizes", [(0, 3, 2, 4), (2, 0, 2, 4), (1, 1, 0, 1), (3, 2, 0, 4), (1, 5, 3, 2)], ids=str)
def test_sizes_of_nothing_and_one(device: str, sizes: tuple[int, int, int, int]) -> None:
    inputs = operands(sizes, torch.float32, device)
    t, b, _, s = sizes
    h, last, cells, gates = op(*inputs)
    assert (h.shape, last.shape, cells.shape, gates.shape) == ((t, b, s), (2, b, s), (t, b, s), (t, b, 3 * s))
    grads = torch.autograd.grad(h.sum() + (2 * last).sum(), inputs)
    for g, x in zip(grads, inputs, strict=True):
        assert g.shape == x.shape
    if t == 0:
        assert alike(last[0].detach(), inputs[3].detach())
        assert (grads[3] == 2).all()
        assert not grads[1].any()
    elif b:
        for y, wanted in zip((h, last), plainly(*inputs), strict=False):
            torch.testing.assert_close(y, wanted)


def test_layouts(device: str) -> None:
    x, weights, bias, h0, c0 = (t.detach() for t in operands((4, 6, 6, 8), torch.float32, device))
    wanted = op(x, weights, bias, h0, c0)
    views: list[Callable[[Tensor], Tensor]] = [
        lambda t: t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else t,
        lambda t: t.repeat_interleave(2, -1)[..., ::2],
    ]
    for view in views:
        for y, w in zip(op(*(view(t) for t in (x, weights, bias, h0, c0))), wanted, strict=True):
            torch.testing.assert_close(y, w, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes", [(16, 16, 32, 128), (9, 64, 8, 128), (7, 16, 5, 200), (16, 16, 32, 256), (9, 70, 8, 256)], ids=str
)
def test_plans_of_a_gpu(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    """Has configs of one block and of clusters."""
    compare_on_gpu(sizes, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(9, 16, 32, 512), (5, 17, 8, 768), (5, 9, 8, 1024), (3, 200, 8, 1024)], ids=str)
def test_plans_of_the_whole_gpu(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    compare_on_gpu(sizes, dtype)


def compare_on_gpu(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    ours = operands(sizes, dtype, "cuda")
    theirs = [x.detach().requires_grad_() for x in ours]
    exact = [x.detach().double().requires_grad_() for x in ours]
    found = [f(*x) for f, x in ((op, ours), (plainly, theirs), (plainly, exact))]
    steps, batch, features, state = sizes
    terms = steps * max(batch, features + state, 3 * state)
    for name, a, b, c in zip(("h", "last", "cells", "gates"), *found, strict=True):
        assert_as_accurate(a, b, c, name, terms)
    grads = [torch.randn_like(y) for y in found[0][:2]]
    gradients = [
        torch.autograd.grad(y[:2], x, [g.to(y[0].dtype) for g in grads])
        for y, x in zip(found, (ours, theirs, exact), strict=True)
    ]
    for name, a, b, c in zip(("input", "weights", "bias", "h0", "c0"), *gradients, strict=True):
        assert_as_accurate(a, b, c, f"gradient of {name}", terms)


@pytest.mark.gpu
def test_two_grids_on_two_streams_do_not_wait_for_each_other() -> None:
    """Each needs more than half of the GPU; if half of each ran, neither would end."""
    inputs = [x.detach() for x in operands((64, 8, 16, 1024), torch.float32, "cuda")]
    wanted = op(*inputs)[0]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(op(*inputs)[0])
    torch.cuda.synchronize()
    assert all(alike(y, wanted) for y in found)
