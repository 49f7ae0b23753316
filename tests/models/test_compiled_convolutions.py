"""Compiled models whose blocks mix convolutions with operators on rows, as ConvNeXt's do."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autograd_bridge as ab
from cupyops.torch import Fusions

inductor = pytest.importorskip("torch._inductor.config")


class Block(nn.Module):
    """A block of ConvNeXt: a convolution, a norm over the channels, and two linear layers."""

    def __init__(self, channels_last: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm, self.up, self.down = ab.LayerNorm(16), ab.LinearGELU(16, 64), nn.Linear(64, 16)
        self.channels_last = channels_last

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).permute(0, 2, 3, 1)
        y = self.down(self.up(self.norm(y.contiguous() if self.channels_last else y)))
        return x + y.permute(0, 3, 1, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("channels_last", [False, True])
def test_rows_are_not_copied_into_the_order_of_convolutions(channels_last: bool) -> None:
    """Inductor transposes tensors of four dimensions that a backward reads, and copied operands, results and gradients."""
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    model = nn.Sequential(Block(channels_last), Block(channels_last))
    x = torch.randn(2, 16, 8, 8)

    def step(function: nn.Module) -> list[Tensor]:
        given = x.clone().requires_grad_()
        y = function(given)
        return [y, *torch.autograd.grad(y.sin().sum(), [given, *model.parameters()])]

    torch.compiler.reset()
    # On a GPU this is the default for models that are mostly convolutions.
    with inductor.patch(force_layout_optimization=True):
        found, codes = run_and_get_code(lambda: step(torch.compile(model, fullgraph=True)))
    for a, b in zip(found, step(model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    generated = {name for code in codes for name in re.findall(r"^\w*fused_\w+", code, re.MULTILINE)}
    assert generated
    assert not [name for name in generated if re.search(r"linear_gelu|(?<!native_)layer_norm", name)]
    called = [line for code in codes for line in code.splitlines() if re.search(r"= cupyops_buf\d+\(", line)]
    assert len(called) == (8 if channels_last else 4)  # the norms of strided tensors are Inductor's


class Spelled(nn.Module):
    """The same block with PyTorch's own modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


@pytest.mark.thorough
def test_fusions_do_not_copy_rows_into_the_order_of_convolutions() -> None:
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    model = nn.Sequential(Spelled(), Spelled())
    x = torch.randn(2, 16, 8, 8)

    def step(function: nn.Module) -> list[Tensor]:
        given = x.clone().requires_grad_()
        y = function(given)
        return [y, *torch.autograd.grad(y.sin().sum(), [given, *model.parameters()])]

    torch.compiler.reset()
    fusions = Fusions(devices=["cpu"])
    with inductor.patch(force_layout_optimization=True):
        found, codes = run_and_get_code(lambda: step(torch.compile(model, fullgraph=True, backend=fusions)))
    assert [site.refusal for site in fusions.sites] == ["", ""]
    for a, b in zip(found, step(model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    generated = {name for code in codes for name in re.findall(r"^\w*fused_\w+", code, re.MULTILINE)}
    assert generated
    assert not [name for name in generated if "linear_gelu" in name]
