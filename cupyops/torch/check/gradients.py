"""Checks of an operator's gradients against finite differences, and of one input or output against those of all."""

from itertools import chain, combinations
from typing import Any

import torch
from torch import Tensor

from .compare import assert_close
from .failures import first_words, quiet, refuses_gradient
from .inputs import Arguments, fresh
from .registry import Fault, Skip, check
from .subject import Subject

__all__ = ["gradcheck", "gradgradcheck", "subsets"]

# With at most this many elements, gradcheck differentiates by each element; with more, along random directions.
FEW = 64
# All subsets of at most this many inputs are tried; with more inputs, each input alone and all inputs.
MANY_INPUTS = 4


def _scalar_function(subject: Subject, args: Arguments) -> tuple[Any, list[Tensor]]:
    """Returns the operator as a function of the tensors to differentiate by, and these tensors as leaves."""
    names = list(subject.need_gradients(args))
    wanted = subject.wanted(args)

    def function(*leaves: Tensor) -> tuple[Tensor, ...]:
        full = list(args)
        for i, x in zip(wanted, leaves, strict=True):
            full[i] = x
        outputs = subject.call(full)
        return tuple(outputs) if len(outputs) == 1 else tuple(outputs[int(n.partition(" ")[2])] for n in names)

    return function, [args[i].detach().clone().requires_grad_() for i in wanted]


def _gradcheck(subject: Subject, of: Any) -> str:
    samples = subject.of_dtype("float64")
    counted = 0
    for args in samples:
        function, leaves = _scalar_function(subject, args)
        elements = sum(x.numel() for x in leaves)
        try:
            with quiet():
                of(function, leaves, fast_mode=elements > FEW, nondet_tol=0.0)
        except RuntimeError as error:  # GradcheckError and errors of a backward are RuntimeErrors
            if of is torch.autograd.gradgradcheck and refuses_gradient(error):
                raise Skip(f"the operator has no second derivative: {first_words(error)}") from None
            raise Fault(" ".join(str(error).split())) from error
        counted += elements
    return f"{len(samples)} samples, {counted} elements"


@check(
    "Look at the backward's algebra: it is not the derivative of the forward. If an input has no gradient on purpose, "
    "set requires_grad on the other tensors of the sample.",
    needs=("gradients",),
)
def gradcheck(subject: Subject) -> str:
    """The gradients are the finite differences of the forward, in float64, also with undefined incoming gradients."""
    return _gradcheck(subject, torch.autograd.gradcheck)


@check(
    "Let the backward call operators, not kernels, and save inputs rather than what was computed from them. An "
    "operator without a torch.autograd.Function differentiates its reference.",
    needs=("gradcheck",),
)
def gradgradcheck(subject: Subject) -> str:
    """The second derivatives are the finite differences of the gradients, in float64."""
    return _gradcheck(subject, torch.autograd.gradgradcheck)


@check(
    "Have the backward read ctx.needs_input_grad, return None where it is False, and accept None as the gradient of an "
    "unused output.",
    needs=("gradients",),
)
def subsets(subject: Subject) -> str:
    """Gradients by each subset of the inputs, and of each output alone, equal the gradients of a full backward."""
    tried = 0
    for args in subject.samples:
        ready = subject.need_gradients(args)
        positions = subject.wanted(args)
        sizes = range(1, len(positions) + 1) if len(positions) <= MANY_INPUTS else (1, len(positions))
        every = subject.results(fresh(args))
        for some in chain.from_iterable(combinations(positions, size) for size in sizes):
            names = [subject.schema[i].name for i in some]
            try:
                got = subject.results(fresh(args), wanted=some)
            except Exception as error:
                raise Fault(f"with gradients wanted by {', '.join(names)} alone: {first_words(error)}") from error
            wanted = {n: x for n, x in every.items() if n.removeprefix("gradient of ") in names}
            assert_close(f"gradients wanted by {', '.join(names)} alone", got, wanted, than="a full backward gives")
            tried += 1
        for name in ready:
            seeds = {n: torch.zeros_like(g) if n != name else g for n, g in subject.seeds(ready).items()}
            zeros = subject.results(fresh(args), seeds=seeds)
            try:
                got = subject.results(fresh(args), seeds={name: seeds[name]})
            except Exception as error:
                raise Fault(f"with {name} alone in use: {first_words(error)}") from error
            for n, x in zeros.items():  # a missing gradient is zero
                if n.startswith("gradient") and (n in got or bool(x.any())):
                    assert_close(f"{name} alone in use", got, {n: x}, than="zeros as the other gradients give")
            tried += 1
    return f"{tried} subsets"
