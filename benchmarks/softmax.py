"""Cases of softmax and log_softmax: rows of every length compared with PyTorch's own."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autograd_bridge import log_softmax, softmax

from .cases import DTYPES, SIZES, Case, Operand, backward_alone, forward_backward, gradient_of, recording
from .peers import compiled, liger_kernels, quack_function
from .rms_norm import ROW_LENGTHS

__all__ = ["ROW_LENGTHS", "cases", "each", "host_cases"]

WORK = "rows"
HOST_SHAPE = (8, 128)
OF = {"softmax": (softmax, torch.softmax), "log_softmax": (log_softmax, torch.log_softmax)}


def cases(
    sizes: Sequence[int] = SIZES, row_lengths: Sequence[int] = ROW_LENGTHS, *, full: bool = False
) -> Iterator[Case]:
    """Rows of every length, so many of them that the elements are the largest size or a little less.

    Args:
        full: also log_softmax, and float16, which moves the bytes of bfloat16.
    """
    for n in sorted(set(row_lengths)):
        for dtype in DTYPES if full else [dtype for dtype in DTYPES if dtype != torch.float16]:
            for name in OF if full else ["softmax"]:
                yield from each(max(1, max(sizes) // n), n, dtype, dtype, name)


def each(m: int, n: int, dtype: torch.dtype, of_parameters: torch.dtype, name: str = "softmax") -> Iterator[Case]:
    """Both directions of M rows of N. There are no parameters: nothing, if they are of another dtype than the rows."""
    if of_parameters == dtype:
        case = _case(name, m, n, dtype)
        yield case("forward")
        yield case("backward", bind=backward_alone)


def host_cases() -> Iterator[Case]:
    """8 × 128: without gradient, forward that records one, forward and backward."""
    case = _case("softmax", *HOST_SHAPE, torch.float32)
    yield case("forward")
    yield case("forward, recording", bind=recording)
    yield case("forward and backward", bind=forward_backward)


def _liger() -> Callable[..., Any]:
    apply: Callable[..., Any] = liger_kernels("softmax").LigerSoftmaxFunction.apply
    return apply


def _case(name: str, m: int, n: int, dtype: torch.dtype) -> Callable[..., Case]:
    x = Operand((m, n), dtype)
    # PyTorch's backward reads y, which is rounded, and sums its products with the gradient.
    grad_x = replace(x, rounded_terms=dtype.itemsize == 2)
    ours, theirs = (partial(function, dim=-1) for function in OF[name])

    def reference(x: Tensor) -> Tensor:
        y: Tensor = theirs(x)
        return y

    def make(direction: str, **options: Any) -> Case:
        gradients = "backward" in direction
        return Case(
            "softmax",
            name,
            direction,
            (x, x) if gradients else (x,),
            (grad_x if gradients else x,),
            {
                "ours": lambda: ours,
                "eager": lambda: theirs,
                "compile": lambda: compiled(reference),
                **({"quack": lambda: quack_function("softmax"), "liger": _liger} if name == "softmax" else {}),
            },
            gradient_of(reference) if gradients else reference,
            capturable=not gradients,
            **options,
        )

    return make
