"""Cases of add2: out = a + b."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import cupyops
from autograd_bridge import add2, to_cupy, to_torch

from .cases import (
    DTYPES,
    HOST_ELEMENTS,
    SIZES,
    Case,
    Operand,
    backward_alone,
    forward_backward,
    gradient_of,
    recording,
)
from .peers import compiled, triton_kernels
from .peers.extension import extension

__all__ = ["cases", "host_cases"]

WORK = "elements"
# In smaller backwards, of three or four launches, the host's time dominates, which host_cases() measures.
LEAST_BACKWARD = 2**24

Makers = dict[str, Callable[[], Callable[..., Any]]]


def reference(a: Tensor, b: Tensor) -> Tensor:
    return a + b


def _through_dlpack(a: Tensor, b: Tensor) -> Tensor:
    return to_torch(cupyops.add2(to_cupy(a), to_cupy(b)))


def _compiled() -> Callable[..., Any]:
    def expression(a: Tensor, b: Tensor) -> Tensor:
        return a + b

    return compiled(expression)


def _implementations() -> Makers:
    return {
        "ours": lambda: add2,
        "eager": lambda: torch.add,
        "compile": _compiled,
        "triton": lambda: triton_kernels("add2").add2,
        "extension": lambda: extension().add2,
    }


def _differentiable() -> Makers:
    """The same with gradients: for bare kernels, in the ``autograd.Function`` that their user writes."""
    return {
        **_implementations(),
        "triton": lambda: _with_gradient(triton_kernels("add2").add2),
        "extension": lambda: _with_gradient(extension().add2),
    }


def _with_gradient(function: Callable[..., Tensor]) -> Callable[..., Any]:
    class Add2(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            return function(a, b)

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor]:
            return grad_out, grad_out

    return Add2.apply


def cases(sizes: Sequence[int] = SIZES) -> Iterator[Case]:
    """Operands of one shape at every size; broadcast, mixed and float64 at the largest; the backward at large sizes."""
    largest = max(sizes)
    for n in sorted(sizes):
        for dtype in DTYPES:
            yield _forward("one shape", Operand((n,), dtype), Operand((n,), dtype))
    yield _forward("one shape", Operand((largest,), torch.float64), Operand((largest,), torch.float64))
    yield _forward("one shape", Operand((largest,), torch.bfloat16), Operand((largest,), torch.float32))
    m = 2 ** (int(math.log2(largest)) // 2)
    n = largest // m
    for dtype in DTYPES:
        yield _forward("(M, N) + (N,)", Operand((m, n), dtype), Operand((n,), dtype))
        yield _forward("(M, N) + (M, 1)", Operand((m, n), dtype), Operand((m, 1), dtype))
    for n in sorted(sizes):
        if n >= LEAST_BACKWARD:
            for dtype in DTYPES:
                x = Operand((n,), dtype)
                # Only the gradient of the result is read, not the operands' values.
                yield _gradient("backward", x, backward_alone, reads=(x,))


def host_cases() -> Iterator[Case]:
    """1024 elements: without gradient, forward that records one, forward and backward."""
    x = Operand((HOST_ELEMENTS,), torch.float32)
    makers = {**_implementations(), "dlpack": lambda: _through_dlpack}
    yield Case("add2", "one shape", "forward", (x, x), (x,), makers, reference)
    yield Case("add2", "one shape", "forward, recording", (x, x), (x,), _differentiable(), reference, recording)
    yield _gradient("forward and backward", x, forward_backward)


def _forward(variant: str, a: Operand, b: Operand) -> Case:
    out = Operand(a.shape, torch.promote_types(a.dtype, b.dtype))
    return Case("add2", variant, "forward", (a, b), (out,), _implementations(), reference)


def _gradient(direction: str, x: Operand, bind: Any, reads: tuple[Operand, ...] | None = None) -> Case:
    return Case(
        "add2",
        "one shape",
        direction,
        operands=(x, x, x),
        results=(x, x),
        implementations=_differentiable(),
        reference=gradient_of(reference),
        bind=bind,
        capturable=False,
        reads=reads,
    )
