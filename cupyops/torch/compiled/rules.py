"""The forms of an operator in a compiled graph, as its declaration says.

There are three. "kernel": the operator is one node of the graph, and the generated code calls the operator's body. "decompose":
Dynamo's graph has the operations of the operator's reference, and autograd differentiates them. "auto": the operator is one node,
with its own gradient, until Inductor compiles the graph of the forward or of the backward. Then a measurement chooses between the
kernel and the operations of the reference (:mod:`.choices`).

An elementwise operator that declares "auto" has the choice in 16 bits alone. Inductor computes 16-bit elements in float32 and
rounds once, as a kernel does. In float32 and float64 a kernel may be more accurate than the reference, so that it stays.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import compiler

from cupyops import simulator
from cupyops.errors import expected

__all__ = ["Rule", "decomposes", "form_of", "in_16_bits", "of_gradient", "rule_of"]

FORMS = ("kernel", "decompose", "auto")
Rule = Callable[..., str]

_16_BIT = (torch.float16, torch.bfloat16)


def in_16_bits(x: Any, *_: Any) -> str:
    """The rule of operators whose reference may be less accurate in float32 and float64."""
    return "auto" if x.dtype in _16_BIT else "kernel"


def rule_of(compiled: str | Rule, is_elementwise: bool, has_reference: bool) -> str | Rule:
    """Returns the form, or the function of the operator's arguments that returns the form.

    Args:
        compiled: a form or a function.
        is_elementwise: whether the operator is declared elementwise.
        has_reference: whether the operator has a reference.

    Raises:
        ValueError: ``compiled`` is none of these, or is "decompose" for an operator without a reference.
    """
    if not callable(compiled) and compiled not in FORMS:
        wanted = "be 'kernel', 'decompose', 'auto' or a function of the arguments"
        raise ValueError(expected("Operator", "compiled", wanted, repr(compiled)))
    if compiled == "decompose" and not has_reference:
        raise ValueError(expected("Operator", "reference", "be given, since compiled='decompose'", "None"))
    if compiled == "auto" and is_elementwise:
        return in_16_bits
    return compiled


def of_gradient(compiled: str | Rule) -> str | Rule:
    """Returns the rule of the operator that computes the gradient, from that of the operator."""
    # A function of the operator's arguments says nothing of the gradient's.
    return compiled if compiled == "auto" or compiled is in_16_bits else "kernel"


def form_of(name: str, rule: str | Rule, args: Sequence[Any]) -> str:
    """Returns the form of a call.

    Args:
        name: the operator's name.
        rule: the result of :func:`rule_of`.
        args: the operator's arguments.

    Raises:
        ValueError: the function that was declared with ``compiled=`` returned another value than a form.
    """
    form = rule if isinstance(rule, str) else rule(*args)
    if form not in FORMS:
        raise ValueError(expected(name, "compiled", "return 'kernel', 'decompose' or 'auto'", repr(form)))
    return form


def decomposes(name: str, rule: str | Rule, args: Sequence[Any]) -> bool:
    """Returns whether the graph that Dynamo traces gets the operations of the reference.

    Args, Raises: those of :func:`form_of`.
    """
    # Before PyTorch 2.13, torch.compiler.is_exporting() is True in every function that Dynamo traces.
    if rule in ("kernel", "auto") or compiler._is_exporting_flag:
        return False
    if form_of(name, rule, args) != "decompose":  # first: Dynamo guards whatever it reads
        return False
    return not simulator._setting.now.on  # Dynamo traces this, and no variable of a thread
