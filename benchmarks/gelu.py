"""Cases of GELU, both forms. The backward is the kernel alone: grad_x from grad_y and x."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from autograd_bridge import gelu, gelu_backward, to_cupy, to_torch
from cupyops.torch.core.operator import operator_of

from .cases import DTYPES, HOST_ELEMENTS, SIZES, Case, Operand, forward_backward, gradient_of, recording
from .peers import compiled, triton_kernels
from .peers.extension import extension

__all__ = ["cases", "host_cases"]

WORK = "elements"
Makers = dict[str, Callable[[], Callable[..., Any]]]


def exact(x: Tensor) -> Tensor:
    return 0.5 * x * torch.erfc(-math.sqrt(0.5) * x)


def tanh_form(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


REFERENCES = {"none": exact, "tanh": tanh_form}


def _forward(approximate: str) -> Makers:
    def expression(x: Tensor) -> Tensor:
        return F.gelu(x, approximate=approximate)

    tanh = approximate == "tanh"
    return {
        # The default form is called without the keyword, which would show in the host's time.
        "ours": lambda: partial(gelu, approximate="tanh") if tanh else gelu,
        "eager": lambda: partial(F.gelu, approximate="tanh") if tanh else F.gelu,
        "compile": lambda: compiled(expression),
        "triton": lambda: partial(triton_kernels("gelu").forward, tanh),
        "extension": lambda: partial(extension().gelu_forward, tanh),
    }


def _backward(approximate: str) -> Makers:
    def expression(grad_y: Tensor, x: Tensor) -> Tensor:
        grad_x: Tensor = torch.ops.aten.gelu_backward(grad_y, x, approximate=approximate)
        return grad_x

    tanh = approximate == "tanh"
    return {
        "ours": lambda: partial(gelu_backward, approximate=approximate),
        "eager": lambda: expression,
        "compile": lambda: compiled(expression),
        "triton": lambda: partial(triton_kernels("gelu").backward, tanh),
        "extension": lambda: partial(extension().gelu_backward, tanh),
    }


def _tangent(approximate: str) -> Makers:
    """The tangent of forward mode, from the tangent of x and x."""
    jvp = operator_of(torch.ops.cupyops.gelu.default).jvp  # type: ignore[union-attr]
    backward = _backward(approximate)
    return {
        "ours": lambda: lambda tangent_x, x: jvp(tangent_x, x, approximate),  # type: ignore[misc]
        **{name: backward[name] for name in ("eager", "compile")},
    }


def _differentiable(approximate: str) -> Makers:
    """The forward with gradients: for bare kernels, in the ``autograd.Function`` that their user writes."""
    forward, backward = _forward(approximate), _backward(approximate)
    return {
        **forward,
        "triton": lambda: _with_gradient(forward["triton"](), backward["triton"]()),
        "extension": lambda: _with_gradient(forward["extension"](), backward["extension"]()),
    }


def _with_gradient(forward_kernel: Callable[..., Tensor], backward_kernel: Callable[..., Tensor]) -> Callable[..., Any]:
    class Gelu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return forward_kernel(x)

        @staticmethod
        def backward(ctx: Any, grad_y: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return backward_kernel(grad_y, x)

    return Gelu.apply


def _through_dlpack(x: Tensor) -> Tensor:
    return to_torch(cupyops.gelu(to_cupy(x)))


def cases(sizes: Sequence[int] = SIZES) -> Iterator[Case]:
    """Both forms and directions at every size, float64 at the largest."""
    for approximate in REFERENCES:
        for n in sorted(sizes):
            for dtype in DTYPES if n < max(sizes) else (*DTYPES, torch.float64):
                x = Operand((n,), dtype)
                forward = REFERENCES[approximate]
                yield Case("gelu", approximate, "forward", (x,), (x,), _forward(approximate), forward)
                yield Case("gelu", approximate, "backward", (x, x), (x,), _backward(approximate), _grad_first(forward))
                yield Case("gelu", approximate, "tangent", (x, x), (x,), _tangent(approximate), _grad_first(forward))


def host_cases() -> Iterator[Case]:
    """1024 elements: without gradient, forward that records one, forward and backward."""
    x = Operand((HOST_ELEMENTS,), torch.float32)
    makers = {**_forward("none"), "dlpack": lambda: _through_dlpack}
    yield Case("gelu", "none", "forward", (x,), (x,), makers, exact)
    yield Case("gelu", "none", "forward, recording", (x,), (x,), _differentiable("none"), exact, recording)
    yield Case(
        "gelu",
        "none",
        "forward and backward",
        operands=(x, x),
        results=(x,),
        implementations=_differentiable("none"),
        reference=gradient_of(exact),
        bind=forward_backward,
        capturable=False,
    )


def _grad_first(reference: Callable[..., Tensor]) -> Callable[..., Any]:
    gradient = gradient_of(reference)
    return lambda grad_y, x: gradient(x, grad_y)
