"""Compiled models whose blocks mix convolutions with operators on rows, as ConvNeXt's do."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autograd_bridge as ab
from cupyops.torch import Fusions

inductor = pytest.importorskip("torch._inductor.config")


class Block(nn.Module):
    """A block of ConvNeXt: a convolution, a norm over the channels, and two linear layers."""

    def __init__(self, channels_last: bool, operators: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm: nn.Module = ab.LayerNorm(16) if operators else nn.LayerNorm(16)
        self.up: nn.Module = ab.LinearGELU(16, 64) if operators else nn.Sequential(nn.Linear(16, 64), nn.GELU())
        self.down = nn.Linear(64, 16)
        self.channels_last = channels_last

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).permute(0, 2, 3, 1)
        y = self.down(self.up(self.norm(y.contiguous() if self.channels_last else y)))
        return x + y.permute(0, 3, 1, 2)


def generated_code(model: nn.Module, backend: Any) -> tuple[set[str], list[str]]:
    """Returns the names of Inductor's kernels for a step of a model, and the lines that call operators.

    The results and gradients of the compiled step are compared with those of the model.
    """
    from torch._inductor.utils import run_and_get_code

    x = torch.randn(2, 16, 8, 8)

    def step(function: nn.Module) -> list[Tensor]:
        given = x.clone().requires_grad_()
        y = function(given)
        return [y, *torch.autograd.grad(y.sin().sum(), [given, *model.parameters()])]

    torch.compiler.reset()
    # On a GPU this is the default for models that are mostly convolutions.
    with inductor.patch(force_layout_optimization=True):
        found, codes = run_and_get_code(lambda: step(torch.compile(model, backend=backend, fullgraph=True)))
    for a, b in zip(found, step(model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    names = {name for code in codes for name in re.findall(r"^\w*fused_\w+", code, re.MULTILINE)}
    assert names
    return names, [line for code in codes for line in code.splitlines() if re.search(r"= cupyops_buf\d+\(", line)]


@pytest.mark.parametrize("channels_last", [False, True])
def test_rows_are_not_copied_into_the_order_of_convolutions(channels_last: bool) -> None:
    """Inductor transposes tensors of four dimensions that a backward reads, and copied operands, results and gradients."""
    torch.manual_seed(0)
    names, called = generated_code(nn.Sequential(Block(channels_last), Block(channels_last)), "inductor")
    assert not [name for name in names if re.search(r"linear_gelu|(?<!native_)layer_norm", name)]
    assert len(called) == (8 if channels_last else 4)  # the norms of strided tensors are Inductor's


def test_fusions_copy_no_rows_into_the_order_of_convolutions() -> None:
    torch.manual_seed(0)
    fusions = Fusions(devices=["cpu"])
    names, called = generated_code(nn.Sequential(Block(False, operators=False), Block(False, operators=False)), fusions)
    assert [site.fusion for site in fusions.sites] == ["linear_gelu"] * 2
    assert not [name for name in names if "linear_gelu" in name]
    assert len(called) == 4
