"""A kernel as people write it for nvcc, with the values that it has."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Construct:
    """A kernel `text` of n elements of x that are written to y.

    Attributes:
        text: the source, with ``BODY`` for the loop's condition. name: of the kernel. result: the expected values.
        fault: a part of the text, and its faulty replacement.
        dtype: of x and y.
        more: further arguments of the call.
        given: further arguments of the kernel.
        shape: of x and y at the call; n is the first dimension.
    """

    text: str
    name: str
    result: Callable[[torch.Tensor], torch.Tensor]
    fault: tuple[str, str]
    dtype: torch.dtype = torch.float32
    more: tuple[Any, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (-1,)


AT = "const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
LIST = "(const float* x /* (n) */, float* y /* (n) */, int n)"
TYPED = "(const T* x,  // (n)\n T* y,  // (n)\n int n)"
