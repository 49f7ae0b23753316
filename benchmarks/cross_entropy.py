"""Cases of cross_entropy: the loss of each row compared with PyTorch's own."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import cross_entropy

from .cases import DTYPES, SIZES, Case, Operand, plain, recording
from .peers import compiled, liger_kernels, quack_function
from .rms_norm import ROW_LENGTHS

__all__ = ["ROW_LENGTHS", "cases", "each", "host_cases"]

WORK = "rows"
HOST_SHAPE = (8, 128)


def cases(
    sizes: Sequence[int] = SIZES, row_lengths: Sequence[int] = ROW_LENGTHS, *, full: bool = False
) -> Iterator[Case]:
    """Rows of every length, so many of them that the elements are the largest size or a little less.

    Args:
        full: also in float16, which moves the bytes of bfloat16.
    """
    for n in sorted(set(row_lengths)):
        for dtype in DTYPES if full else [dtype for dtype in DTYPES if dtype != torch.float16]:
            yield from each(max(1, max(sizes) // n), n, dtype, dtype)


def each(m: int, n: int, dtype: torch.dtype, of_parameters: torch.dtype) -> Iterator[Case]:
    """Both directions of M rows of N. There are no parameters: nothing, if they are of another dtype than the rows."""
    if of_parameters == dtype:
        case = _case(m, n, dtype)
        yield case("forward")
        yield case("backward", bind=_backward)


def host_cases() -> Iterator[Case]:
    """8 × 128: without gradient, and forward that records one."""
    case = _case(*HOST_SHAPE, torch.float32)
    yield case("forward")
    yield case(
        "forward, recording", bind=lambda function, inputs: recording(partial(_of, inputs[1], function), inputs[:1])
    )


def _of(target: Tensor, function: Callable[..., Tensor], x: Tensor) -> Tensor:
    return function(x, target)


def _backward(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Callable[[], Any]:
    """The backward into x alone, after a forward that has run."""
    x, target, grad = inputs
    leaf = x.detach().requires_grad_()
    loss = function(leaf, target)

    def call() -> Tensor:
        leaf.grad = None
        loss.backward(grad, retain_graph=True)
        assert leaf.grad is not None
        return leaf.grad

    return call


def _quack() -> Callable[..., Any]:
    function = quack_function("cross_entropy")
    # Its loss is float32.
    return lambda x, target: function(x, target, reduction="none").to(x.dtype)


def _liger() -> Callable[..., Any]:
    apply = liger_kernels("cross_entropy").LigerCrossEntropyFunction.apply
    # Weight, ignored class, scale of the square of log Σ e^x, smoothing, reduction.
    return lambda x, target: apply(x, target, None, -100, 0.0, 0.0, "none")[0]


def _case(m: int, n: int, dtype: torch.dtype) -> Callable[..., Case]:
    x, target, loss = Operand((m, n), dtype), Operand((m,), torch.int64), Operand((m,), dtype)
    theirs = partial(F.cross_entropy, reduction="none")

    def drawn(gradients: bool, generator: torch.Generator) -> tuple[Tensor, ...]:
        numbers = partial(torch.randn, device=generator.device, generator=generator)
        of_classes = torch.randint(n, (m,), device=generator.device, generator=generator)
        return (numbers(m, n).to(dtype), of_classes, *([numbers(m).to(dtype)] if gradients else []))

    def forward(x: Tensor, target: Tensor) -> Tensor:
        return theirs(x, target.long())

    def gradient(x: Tensor, target: Tensor, grad: Tensor) -> Tensor:
        chosen = torch.arange(n, device=x.device) == target.long()[:, None]
        return (torch.softmax(x, -1) - chosen.to(x.dtype)) * grad[:, None]

    def make(direction: str, bind: Callable[..., Any] = plain) -> Case:
        gradients = "backward" in direction
        return Case(
            "cross_entropy",
            "a loss a row",
            direction,
            (x, target, loss) if gradients else (x, target),
            (x,) if gradients else (loss,),
            {
                "ours": lambda: partial(cross_entropy, reduction="none"),
                "eager": lambda: theirs,
                "compile": lambda: compiled(theirs),
                "quack": _quack,
                # Its forward of logits that require grad writes the gradient over them, which cannot be called again.
                **({} if gradients else {"liger": _liger}),
            },
            gradient if gradients else forward,
            bind=bind,
            draw=partial(drawn, gradients),
            capturable=not gradients,
        )

    return make
