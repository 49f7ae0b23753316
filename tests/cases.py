"""The shipped operators, as the tests that hold for every operator see them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import autograd_bridge as bridge

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Case:
    """One operator.

    Attributes:
        ours, theirs: of tensors; PyTorch's own operator for comparison.
        op: what ``torch.library`` knows it as.
        extra: the arguments of ``op`` behind the tensors.
        tensors: how many it takes, all of one shape.
    """

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    op: Any
    extra: tuple[Any, ...]
    tensors: int

    def inputs(
        self, device: str, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (37, 19)
    ) -> list[Tensor]:
        generator = torch.Generator().manual_seed(7)
        return [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(self.tensors)]


CASES = [
    Case("add2", bridge.add2, torch.add, torch.ops.cupyops.add2.default, (1,), 2),
    Case(
        "add2_alpha",
        lambda a, b: bridge.add2(a, b, alpha=-0.3),
        lambda a, b: torch.add(a, b, alpha=-0.3),
        torch.ops.cupyops.add2.default,
        (-0.3,),
        2,
    ),
    Case("gelu", bridge.gelu, F.gelu, torch.ops.cupyops.gelu.default, ("none",), 1),
    Case(
        "gelu_tanh",
        lambda x: bridge.gelu(x, approximate="tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
        torch.ops.cupyops.gelu.default,
        ("tanh",),
        1,
    ),
    Case(
        "gelu_backward",
        bridge.gelu_backward,
        torch.ops.aten.gelu_backward,
        torch.ops.cupyops.gelu_backward.default,
        ("none",),
        2,
    ),
]
