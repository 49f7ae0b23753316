"""native(): ATen's operators on this project's kernels give what ATen's own give, and the bits of this project's operators."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autograd_bridge as ab
import cupyops
from tests.support import with_floats

from .overriding import PLACES, about, inside, names

# Twice the rounding of a dtype, for values near 1.
ROUNDING = {torch.float16: 4e-3, torch.bfloat16: 4e-2, torch.float32: 4e-6, torch.float64: 1e-13}


class Block(nn.Module):
    """A block of a transformer without attention, of PyTorch's modules or of this project's."""

    def __init__(self, of: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm, self.act, self.tanh = of.LayerNorm(16), of.GELU(), of.GELU(approximate="tanh")
        self.bare, self.rms = of.LayerNorm((3, 16), elementwise_affine=False), of.RMSNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(self.act(self.up(self.norm(x))))
        return self.tanh(self.rms(x)) + self.bare(x)


def trained(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The result, and the gradients of the input and of all parameters."""
    x = x.detach().clone().requires_grad_()
    y = model(x)
    y.sin().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_gets_the_bits_of_this_projects_modules(place: str, dtype: torch.dtype) -> None:
    if place == "cpu" and dtype == torch.bfloat16:
        pytest.skip("PyTorch rounds the statistics of 16-bit rows on a CPU")
    theirs, ours = (Block(of, dtype).to(place) for of in (nn, ab))
    if place == "cpu":  # PyTorch has no fused RMS norm on a CPU
        theirs.rms = ab.RMSNorm(16)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 3, 16, device=place, dtype=dtype)
    with cupyops.simulate(place == "cpu"):
        wanted = trained(ours, x)
    with inside(place) as launches:
        found = trained(theirs, x)
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)
    assert {"gelu_forward", "gelu_backward", "layer_norm_forward"} <= set(names(launches))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("approximate", "dtype"), with_floats(["none", "tanh"]))
def test_gelu_gives_what_pytorchs_gives(place: str, dtype: torch.dtype, approximate: str, without_onednn: None) -> None:
    x = torch.randn(5, 7, device=place, dtype=dtype)
    grad = torch.randn_like(x)
    calls = (
        lambda: torch.ops.aten.gelu(x, approximate=approximate),
        lambda: torch.ops.aten.gelu_backward(grad, x, approximate=approximate),
    )
    wanted = [call() for call in calls]
    with inside(place) as launches:
        found = [call() for call in calls]
    assert names(launches) == ["gelu_forward", "gelu_backward"]
    for a, b in zip(found, wanted, strict=True):
        assert about(a) == about(b)
        torch.testing.assert_close(a, b, atol=ROUNDING[dtype], rtol=ROUNDING[dtype])


def layouts(place: str) -> dict[str, Tensor]:
    """One tensor of each layout."""
    x = torch.randn(2, 4, 6, 8, device=place)
    return {
        "contiguous": x,
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.transpose(1, 3),
        "sliced": x[:, :, 1:5, ::2],
        "sliced and transposed": x.permute(2, 0, 3, 1)[1:5],
        "expanded": x[:1, :, :1].expand(2, 4, 6, 8),
        "unaligned": torch.randn(385, device=place)[1:].view(2, 4, 6, 8),
        "0-d": x[0, 0, 0, 0],
        "empty": x[:, :0],
        "of size 1": x[:, :1, :, :1],
    }


@pytest.mark.parametrize("place", PLACES)
def test_gelu_keeps_layouts_as_pytorchs_does(place: str, without_onednn: None) -> None:
    for name, x in layouts(place).items():
        wanted = F.gelu(x)
        with inside(place):
            found = F.gelu(x)
        assert about(found) == about(wanted), name
        torch.testing.assert_close(found, wanted, atol=4e-6, rtol=4e-6)


@pytest.mark.parametrize("place", PLACES)
def test_gelus_gradient_keeps_layouts_as_pytorchs_does(place: str, without_onednn: None) -> None:
    given = layouts(place)
    for (name, x), (of, grad) in itertools.product(given.items(), given.items()):
        if x.shape != grad.shape:
            continue
        wanted = torch.ops.aten.gelu_backward(grad, x)
        with inside(place):
            found = torch.ops.aten.gelu_backward(grad, x)
        assert about(found) == about(wanted), (name, of)
        torch.testing.assert_close(found, wanted, atol=4e-6, rtol=4e-6)
    x = given["channels last"].detach().requires_grad_()
    with inside(place):
        F.gelu(x).sum().backward()  # a gradient of stride 0
    assert x.grad is not None
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("parameters", "dtype"), with_floats(["both", "weight", "bias", "none"], each=1))
def test_layer_norm_gives_what_pytorchs_gives(place: str, dtype: torch.dtype, parameters: str) -> None:
    x = torch.randn(3, 2, 5, 8, device=place, dtype=dtype)
    weight = torch.randn(5, 8, device=place, dtype=dtype) if parameters in ("both", "weight") else None
    bias = torch.randn(5, 8, device=place, dtype=dtype) if parameters in ("both", "bias") else None
    grad = torch.randn_like(x)
    mask = [True, weight is not None, bias is not None]

    def calls() -> list[Tensor | None]:
        forward = torch.native_layer_norm(x, (5, 8), weight, bias, 1e-5)
        backward = torch.ops.aten.native_layer_norm_backward(grad, x, (5, 8), *forward[1:], weight, bias, mask)
        return [*forward, *backward]

    wanted = calls()
    with inside(place) as launches:
        found = calls()
    assert names(launches)[0].startswith("layer_norm_forward")
    assert names(launches)[1].startswith("layer_norm_backward")
    for a, b in zip(found, wanted, strict=True):
        assert about(a) == about(b)
        if a is not None:
            torch.testing.assert_close(a, b, atol=8 * ROUNDING[dtype], rtol=8 * ROUNDING[dtype])


@pytest.mark.parametrize("place", PLACES)
def test_layer_norms_backward_leaves_out_what_is_not_wanted(place: str) -> None:
    x, weight, bias = (torch.randn(*shape, device=place) for shape in ((6, 8), (8,), (8,)))
    for mask in itertools.product([True, False], repeat=3):
        with inside(place):
            _, mean, rstd = torch.native_layer_norm(x, (8,), weight, bias, 1e-5)
            found = torch.ops.aten.native_layer_norm_backward(x, x, (8,), mean, rstd, weight, bias, mask)
        wanted = torch.ops.aten.native_layer_norm_backward(x, x, (8,), mean, rstd, weight, bias, mask)
        assert [about(g) for g in found] == [about(g) for g in wanted], mask


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (3, 0), (8,)])
def test_layer_norm_of_no_rows_and_of_one_row(place: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, device=place)
    weight = torch.ones(shape[-1:], device=place)

    def calls() -> tuple[Tensor, ...]:
        y, mean, rstd = torch.native_layer_norm(x, shape[-1:], weight, weight, 1e-5)
        mask = [True, True, True]
        return (
            y,
            mean,
            rstd,
            *torch.ops.aten.native_layer_norm_backward(y, x, shape[-1:], mean, rstd, weight, weight, mask),
        )

    wanted = calls()
    with inside(place):
        found = calls()
    for a, b in zip(found, wanted, strict=True):
        assert about(a) == about(b)
        torch.testing.assert_close(a, b, equal_nan=True, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("place", PLACES)
def test_layer_norm_of_other_layouts_is_contiguous(place: str) -> None:
    weight = torch.randn(16, device=place)[::2]
    for name, x in layouts(place).items():
        if x.dim() < 4 or x.shape[-1] != 8:
            continue
        wanted = F.layer_norm(x, (8,), weight, weight)
        with inside(place):
            found = F.layer_norm(x, (8,), weight, weight)
        assert about(found) == about(wanted), name
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("first", ["inside", "outside"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_forward_and_its_backward_may_lie_on_two_sides_of_the_end(place: str, first: str, dtype: torch.dtype) -> None:
    layer = nn.Sequential(nn.LayerNorm(8), nn.GELU()).to(place, dtype)
    x = torch.randn(6, 8, device=place, dtype=dtype)
    wanted = trained(layer, x)
    for p in layer.parameters():
        p.grad = None
    leaf = x.clone().requires_grad_()
    if first == "inside":
        with inside(place) as launches:
            y = layer(leaf)
        y.sin().sum().backward()
    else:
        y = layer(leaf)
        with inside(place) as launches:
            y.sin().sum().backward()
    assert len(launches) >= 2
    found = [y.detach(), leaf.grad, *(p.grad for p in layer.parameters())]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=10 * ROUNDING[dtype], rtol=10 * ROUNDING[dtype])


@pytest.mark.simulator
def test_statistics_of_two_allocations_are_stacked() -> None:
    x, memory = torch.randn(6, 8), bytearray(2 * 6 * 4)
    with inside("cpu"):
        _, mean, rstd = torch.native_layer_norm(x, (8,), None, None, 1e-5)

        def grad(mean: Tensor, rstd: Tensor) -> Tensor:
            mask = [True, False, False]
            return torch.ops.aten.native_layer_norm_backward(x, x, (8,), mean, rstd, None, None, mask)[0]

        wanted = grad(mean, rstd)
        # Two storages that lie side by side, as two allocations may.
        beside = [torch.frombuffer(memory, dtype=torch.float32, count=6, offset=at).view(6, 1) for at in (0, 24)]
        for to, given in zip(beside, (mean, rstd), strict=True):
            to.copy_(given)
        in_turn = torch.stack((mean, rstd), 1)
        backwards = torch.stack((rstd, mean))
        between = torch.stack((mean, rstd + 1, rstd, rstd))
        others = ((between[0], between[3]), (backwards[1], backwards[0]), (mean.clone(), rstd.clone()))
        for found in (beside, in_turn.unbind(1), *others):
            assert torch.equal(grad(*found), wanted)


@pytest.mark.parametrize("place", PLACES)
def test_16_bit_rows_take_float32_parameters(place: str) -> None:
    x = torch.randn(6, 8, device=place, dtype=torch.bfloat16, requires_grad=True)
    weight, bias = (torch.randn(8, device=place, requires_grad=True) for _ in range(2))
    with inside(place) as launches:
        y = F.layer_norm(x, (8,), weight, bias)
        found = [y, *torch.autograd.grad(y.sum(), [x, weight, bias])]
    assert len(launches) >= 2
    with cupyops.simulate(place == "cpu"):
        y = ab.layer_norm(x, 8, weight, bias)
        wanted = [y, *torch.autograd.grad(y.sum(), [x, weight, bias])]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert [t.dtype for t in found] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.parametrize("place", PLACES)
def test_a_bias_alone_keeps_its_dtype_in_its_gradient(place: str) -> None:
    x, bias = torch.randn(6, 8, device=place, dtype=torch.bfloat16), torch.randn(8, device=place)
    with inside(place):
        _, mean, rstd = torch.native_layer_norm(x, (8,), None, bias, 1e-5)
        *_, grad = torch.ops.aten.native_layer_norm_backward(
            torch.ones_like(x), x, (8,), mean, rstd, None, bias, [False, False, True]
        )
    assert grad.dtype == torch.float32
    assert torch.equal(grad, torch.full_like(grad, 6))
