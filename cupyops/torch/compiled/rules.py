"""The rules that choose what an operator is in a compiled graph.

There are two choices. "kernel": the operator is one node of the graph, and the generated code calls the operator's body.
"decompose": the graph has the operations of the operator's reference, which Inductor fuses with the operations beside
them.

No rule of this module has been measured on a GPU yet. The rules follow from the passes over memory. An elementwise
operation reads and writes memory once; if Inductor fuses the operation with a neighbour, the two share the pass. A
reduction over rows reads a row once in a kernel of this project, and the backward sums the columns in the same pass.
"""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["CHOICES", "Rule", "rule_of"]

CHOICES = ("kernel", "decompose")
Rule = Callable[..., str]

_16_BIT = (torch.float16, torch.bfloat16)


def elementwise(x: Any, *_: Any) -> str:
    """The rule "auto" of elementwise operators: "decompose" for 16-bit tensors, else "kernel".

    Inductor computes 16-bit elements in float32 and rounds once, as a kernel does. In float32 and float64 a kernel may
    be more accurate than the reference, so the operator stays a kernel.
    """
    return "decompose" if x.dtype in _16_BIT else "kernel"


def rule_of(compiled: str | Rule, is_elementwise: bool) -> str | Rule:
    """Returns the choice, or the function of the operator's arguments that returns the choice.

    Args:
        compiled: a choice, "auto", or a function.
        is_elementwise: whether the operator is declared elementwise.
    """
    if compiled == "auto":
        return elementwise if is_elementwise else "kernel"
    return compiled
