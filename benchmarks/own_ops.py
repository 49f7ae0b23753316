"""Cases of the operators in ``examples/own_ops``, bfloat16, on rows of 4096 elements. A backward is the kernels alone."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.own_op import swiglu as declared_swiglu
from examples.own_ops.cross_entropy import cross_entropy
from examples.own_ops.dropout import dropout
from examples.own_ops.rms_norm import rms_norm
from examples.own_ops.rotary import rotary
from examples.own_ops.softmax import softmax
from examples.own_ops.swiglu import swiglu

from .cases import HOST_ELEMENTS, SIZES, Case, Operand, forward_backward, gradient_of, recording
from .peers import compiled, raw_function, triton_kernels

__all__ = ["cases", "host_cases"]

N = 4096
LEAST = 2**26  # elements: what is asked of these operators is said of large operands
EPS = 1e-5
HEADS, WIDTH = 32, 128
# Small enough that nobody drops anything, so that all have one result, while every number is still drawn.
P = 1e-12

Expression = Callable[..., Any]


def implementations(ours: Expression, expression: Expression, name: str, *numbers: Any) -> dict[str, Callable[[], Any]]:
    """Ours, PyTorch's eager and compiled, and Triton's of that name, which takes ``numbers`` after the tensors."""
    return {
        "ours": lambda: ours,
        "eager": lambda: expression,
        "compile": lambda: compiled(expression),
        "triton": lambda: _with_numbers(getattr(triton_kernels("own_ops"), name), numbers),
    }


def _with_numbers(function: Expression, numbers: Sequence[Any]) -> Expression:
    return (lambda *tensors: function(*tensors, *numbers)) if numbers else function


def cases(sizes: Sequence[int] = SIZES) -> Iterator[Case]:
    """Each operator and its backward at every size from 2^26."""
    for n in sorted(size for size in sizes if size >= LEAST):
        yield from _softmax(n)
        yield from _rms_norm(n)
        yield from _swiglu(n)
        yield from _cross_entropy(n)
        yield from _rotary(n)
        yield from _dropout(n)


def host_cases() -> Iterator[Case]:
    """SwiGLU of 1024 elements, declared with one launch in each direction (``examples/own_op.py``), compared with the same launches
    in an ``autograd.Function`` written by hand: without gradient, forward that records one, forward and backward."""
    x = Operand((HOST_ELEMENTS,), torch.float32)

    def expression(a: Tensor, b: Tensor) -> Tensor:
        return F.silu(a) * b

    makers = {"ours": lambda: declared_swiglu, "eager": lambda: expression, "function": lambda: raw_function("swiglu")}
    common: dict[str, Any] = {"implementations": makers, "capturable": False}
    yield _case("swiglu, declared", "forward", [x, x], [x], reference=expression, **common)
    yield _case("swiglu, declared", "forward, recording", [x, x], [x], reference=expression, bind=recording, **common)
    yield _case(
        "swiglu, declared",
        "forward and backward",
        [x, x, x],
        [x, x],
        reference=gradient_of(expression),
        bind=forward_backward,
        **common,
    )


def _case(
    variant: str, direction: str, operands: Sequence[Operand], results: Sequence[Operand], *rest: Any, **more: Any
) -> Case:
    return Case("own_ops", variant, direction, tuple(operands), tuple(results), *rest, **more)


def _softmax(n: int) -> Iterator[Case]:
    x = Operand((n // N, N), torch.bfloat16)
    forward = partial(torch.softmax, dim=-1)
    yield _case("softmax", "forward", [x], [x], implementations(softmax.call, forward, "softmax"), forward)

    def expression(grad_y: Tensor, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten._softmax_backward_data(grad_y, y, -1, y.dtype)
        return found

    def drawn(generator: torch.Generator) -> tuple[Tensor, ...]:
        grad_y, x = (torch.randn(n // N, N, device=generator.device, generator=generator).bfloat16() for _ in range(2))
        return grad_y, x, x.softmax(-1)

    assert softmax.backward is not None
    gradient = softmax.backward.call
    made = implementations(lambda grad_y, x, y: gradient(grad_y, x), expression, "softmax_backward")
    triton = made["triton"]
    made["triton"] = lambda: _without(1, triton())
    # Theirs read y in place of x, which is as many bytes.
    yield _case(
        "softmax",
        "backward",
        [x, x, x],
        [x],
        made,
        lambda grad_y, x, y: gradient_of(forward)(x, grad_y),
        reads=(x, x),
        draw=drawn,
    )


def _without(position: int, function: Expression) -> Expression:
    return lambda *tensors: function(*tensors[:position], *tensors[position + 1 :])


def _rms_norm(n: int) -> Iterator[Case]:
    x, weight = Operand((n // N, N), torch.bfloat16), Operand((N,), torch.bfloat16)

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (N,), weight, EPS)

    ours = partial(rms_norm.call, eps=EPS)
    yield _case("rms_norm", "forward", [x, weight], [x], implementations(ours, forward, "rms_norm", EPS), forward)

    def expression(grad_y: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        g, v = grad_y.float(), x.float()
        r = torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS)
        w = g * weight.float()
        grad_x = r * (w - v * (w * v).mean(-1, keepdim=True) * r * r)
        return grad_x.to(x.dtype), (g * v * r).sum(0).to(weight.dtype)

    assert rms_norm.backward is not None
    gradient = rms_norm.backward.call
    made = implementations(
        lambda grad_y, x, weight: gradient(grad_y, x, weight, EPS, True, True), expression, "rms_norm_backward", EPS
    )
    total = Operand((N,), torch.bfloat16, terms=n // N)
    yield _case(
        "rms_norm",
        "backward",
        [x, x, weight],
        [x, total],
        made,
        lambda grad_y, x, weight: gradient_of(forward)(x, weight, grad_y),
    )


def _swiglu(n: int) -> Iterator[Case]:
    x = Operand((n,), torch.bfloat16)

    def forward(a: Tensor, b: Tensor) -> Tensor:
        return F.silu(a) * b

    def reference(grad_y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = gradient_of(forward)(a, b, grad_y)
        return found

    def expression(grad_y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ops.aten.silu_backward(grad_y * b, a), grad_y * F.silu(a)

    def exact_forward(a: Tensor, b: Tensor) -> Tensor:
        return (F.silu(a.float()) * b.float()).to(a.dtype)

    made = implementations(swiglu.call, exact_forward, "swiglu")
    made["eager"] = lambda: forward
    yield _case("swiglu", "forward", [x, x], [x], made, forward)
    assert swiglu.backward is not None
    gradient = swiglu.backward.call
    made = implementations(lambda grad_y, a, b: gradient(grad_y, a, b, True, True), expression, "swiglu_backward")
    yield _case("swiglu", "backward", [x, x, x], [x, x], made, reference)


def _cross_entropy(n: int) -> Iterator[Case]:
    x, target, loss = (
        Operand((n // N, N), torch.bfloat16),
        Operand((n // N,), torch.int64),
        Operand((n // N,), torch.bfloat16),
    )

    def drawn(generator: torch.Generator) -> tuple[Tensor, ...]:
        x = torch.randn(n // N, N, device=generator.device, generator=generator).bfloat16()
        return x, torch.randint(N, (n // N,), device=generator.device, generator=generator)

    def forward(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x, target, reduction="none")

    def reference(x: Tensor, target: Tensor) -> Tensor:
        return forward(x, target.long())

    made = implementations(cross_entropy.call, forward, "cross_entropy")
    yield _case("cross_entropy", "forward", [x, target], [loss], made, reference, draw=drawn)

    def gradients(grad_loss: Tensor, x: Tensor, target: Tensor) -> Tensor:
        chosen = torch.arange(N, device=x.device) == target[:, None]
        y = torch.softmax(x.to(torch.promote_types(x.dtype, torch.float32)), -1)
        return ((y - chosen.to(y.dtype)) * grad_loss[:, None]).to(x.dtype)

    assert cross_entropy.backward is not None
    made = implementations(cross_entropy.backward.call, gradients, "cross_entropy_backward")
    # Ours takes tensors of rows first.
    ours = cross_entropy.backward.call
    made["ours"] = lambda: lambda grad_loss, x, target: ours(x, grad_loss, target)
    yield _case(
        "cross_entropy",
        "backward",
        [loss, x, target],
        [x],
        made,
        gradients,
        draw=lambda generator: (
            torch.randn(n // N, device=generator.device, generator=generator).bfloat16(),
            *drawn(generator),
        ),
    )


def _rotary(n: int) -> Iterator[Case]:
    length = n // (HEADS * WIDTH * 8)
    x = Operand((8, length, HEADS, WIDTH), torch.bfloat16)
    table = Operand((length, WIDTH // 2), torch.float32)

    def forward(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        u, v = x.chunk(2, -1)
        c, s = c[:, None], s[:, None]
        return torch.cat((u * c - v * s, v * c + u * s), -1).to(x.dtype)

    # The backward is the same with -s.
    made = implementations(rotary.call, forward, "rotary")
    yield _case("rotary", "forward", [x, table, table], [x], made, forward)


def _dropout(n: int) -> Iterator[Case]:
    x, key = Operand((n,), torch.bfloat16), Operand((1,), torch.int64)

    def drawn(generator: torch.Generator) -> tuple[Tensor, ...]:
        values = torch.randn(n, device=generator.device, generator=generator).bfloat16()
        return values, torch.randint(2**31, (1,), device=generator.device, generator=generator)

    def forward(x: Tensor, key: Tensor) -> Tensor:
        return F.dropout(x, P)

    # The backward is the same with the gradient for x.
    made = implementations(lambda x, key: dropout.call(x, key, P), forward, "dropout", P)
    yield _case("dropout", "forward", [x, key], [x], made, lambda x, key: x, draw=drawn)
