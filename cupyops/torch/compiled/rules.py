"""The rules that choose the form of an operator in a compiled graph.

There are two choices. "kernel": the operator is one node of the graph, and the generated code calls the operator's body.
"decompose": the graph has the operations of the operator's reference, which Inductor fuses with the operations beside
them.

The rules follow from the passes over memory. An elementwise operation reads and writes memory once; if Inductor fuses
the operation with a neighbour, the two share the pass. A reduction over rows reads a row once in a kernel of this
project, and the backward sums the columns in the same pass. docs/benchmarks_models.md has the time of whole compiled models.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import compiler

from cupyops import simulator
from cupyops.errors import expected

__all__ = ["Rule", "contiguous", "decomposes", "rule_of"]

CHOICES = ("kernel", "decompose")
Rule = Callable[..., str]

_16_BIT = (torch.float16, torch.bfloat16)


def elementwise(x: Any, *_: Any) -> str:
    """The rule "auto" of elementwise operators: "decompose" for 16-bit tensors, else "kernel".

    Inductor computes 16-bit elements in float32 and rounds once, as a kernel does. In float32 and float64 a kernel may
    be more accurate than the reference, so the operator stays a kernel.
    """
    return "decompose" if x.dtype in _16_BIT else "kernel"


def contiguous(x: Any, *_: Any) -> str:
    """The rule of operators on rows: "kernel" for a contiguous tensor, else "decompose".

    A kernel would need a contiguous copy of x, which is a pass over memory. Inductor's norm reads the strided tensor. In
    ConvNeXt, where each norm follows a convolution and a permutation, the copies take more time than the kernels save.
    """
    return "kernel" if x.is_contiguous() else "decompose"


def rule_of(compiled: str | Rule, is_elementwise: bool, has_reference: bool) -> str | Rule:
    """Returns the choice, or the function of the operator's arguments that returns the choice.

    Args:
        compiled: a choice, "auto", or a function.
        is_elementwise: whether the operator is declared elementwise.
        has_reference: whether the operator has a reference.

    Raises:
        ValueError: ``compiled`` is none of these, or is "decompose" for an operator without a reference.
    """
    if not callable(compiled) and compiled not in (*CHOICES, "auto"):
        wanted = "be 'kernel', 'decompose', 'auto' or a function of the arguments"
        raise ValueError(expected("Operator", "compiled", wanted, repr(compiled)))
    if compiled == "decompose" and not has_reference:
        raise ValueError(expected("Operator", "reference", "be given, since compiled='decompose'", "None"))
    if compiled == "auto":
        return elementwise if is_elementwise else "kernel"
    return compiled


def decomposes(name: str, rule: str | Rule, args: Sequence[Any]) -> bool:
    """Returns whether the graph that is being compiled gets the operations of the reference.

    Args:
        name: the operator's name.
        rule: the result of :func:`rule_of`.
        args: the operator's arguments.

    Raises:
        ValueError: the function that was declared with ``compiled=`` returned another value than a choice.
    """
    # Before PyTorch 2.13, torch.compiler.is_exporting() is True in every function that Dynamo traces.
    if rule == "kernel" or compiler._is_exporting_flag:
        return False
    choice = rule if isinstance(rule, str) else rule(*args)
    if choice == "kernel":  # first: Dynamo guards whatever it reads
        return False
    if choice != "decompose":
        raise ValueError(expected(name, "compiled", "return 'kernel' or 'decompose'", repr(choice)))
    return not simulator._setting.now.on  # Dynamo traces this, and no variable of a thread
