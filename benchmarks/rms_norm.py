"""Cases of RMSNorm on M rows of N, and of the addition before it. The backward is autograd's: grad_x and grad_weight.

The residual requires no gradient: it would equal that of x.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import add_rms_norm, rms_norm

from .cases import DTYPES, SIZES, Case, Operand, backward_alone, forward_backward, gradient_of, recording
from .peers import LIGER_LONGEST, compiled, liger_kernels, quack_function

__all__ = ["ROW_LENGTHS", "cases", "each", "host_cases"]

WORK = "rows"
EPS = 1e-5
ROW_LENGTHS = (64, 256, 768, 1024, 2048, 4096, 5120, 8192, 16384, 65536, 262144)
HOST_SHAPE = (8, 128)

Makers = dict[str, Callable[[], Callable[..., Any]]]


def _reference(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def _makers(n: int) -> Makers:
    def ours(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, n, weight, EPS)

    def eager(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (n,), weight, EPS)

    def quack() -> Callable[..., Any]:
        function = quack_function("rmsnorm")
        return lambda x, weight: function(x, weight, eps=EPS)

    def liger() -> Callable[..., Any]:
        function = liger_kernels("rms_norm").LigerRMSNormFunction
        # Not in place: its backward would overwrite the incoming gradient.
        return lambda x, weight: function.apply(x, weight, EPS, 0.0, "llama", False)

    return _peers(n, ours, eager, quack, liger)


def _peers(
    n: int,
    ours: Callable[..., Any],
    eager: Callable[..., Any],
    quack: Callable[[], Callable[..., Any]],
    liger: Callable[[], Callable[..., Any]],
) -> Makers:
    makers: Makers = {"ours": lambda: ours, "eager": lambda: eager, "compile": lambda: compiled(eager), "quack": quack}
    return {**makers, "liger": liger} if n <= LIGER_LONGEST else makers


def _added_reference(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    s = x + residual
    return _reference(s, weight), s


def _added_makers(n: int) -> Makers:
    def ours(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, n, weight, EPS)

    def eager(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        s = x + residual
        return F.rms_norm(s, (n,), weight, EPS), s

    def quack() -> Callable[..., Any]:
        function = quack_function("rmsnorm")
        return lambda x, residual, weight: function(x, weight, residual=residual, eps=EPS, prenorm=True)

    def liger() -> Callable[..., Any]:
        function = liger_kernels("fused_add_rms_norm").LigerFusedAddRMSNormFunction
        return lambda x, residual, weight: function.apply(x, residual, weight, EPS, 0.0, "llama", False)

    return _peers(n, ours, eager, quack, liger)


def cases(
    sizes: Sequence[int] = SIZES, row_lengths: Sequence[int] = ROW_LENGTHS, *, full: bool = False
) -> Iterator[Case]:
    """Rows of every length, so many of them that the elements are the largest size or a little less.

    Args:
        full: also in float16, which moves the bytes of bfloat16.
    """
    for n in sorted(set(row_lengths)):
        for dtype in DTYPES if full else [dtype for dtype in DTYPES if dtype != torch.float16]:
            m = max(1, max(sizes) // n)
            # Mixed precision brings a float32 weight with rows of 16 bits.
            for of_weight in (dtype, torch.float32) if dtype == torch.bfloat16 else (dtype,):
                yield from each(m, n, dtype, of_weight)


def each(m: int, n: int, dtype: torch.dtype, of_parameters: torch.dtype) -> Iterator[Case]:
    """Both directions of M rows of N, without and with the addition."""
    case = _case(m, n, dtype, of_parameters)
    yield case("forward")
    yield case("backward", bind=backward_alone)
    yield from _added(m, n, dtype, of_parameters)


def host_cases() -> Iterator[Case]:
    """8 × 128: without gradient, forward that records one, forward and backward."""
    case = _case(*HOST_SHAPE, torch.float32)
    yield case("forward")
    yield case("forward, recording", bind=recording)
    yield case("forward and backward", bind=forward_backward)


def _case(m: int, n: int, dtype: torch.dtype, of_weight: torch.dtype | None = None) -> Callable[..., Case]:
    of_weight = of_weight or dtype
    x, weight, total = Operand((m, n), dtype), Operand((n,), of_weight), Operand((n,), of_weight, terms=m)

    def make(direction: str, **options: Any) -> Case:
        gradients = "backward" in direction
        return Case(
            "rms_norm",
            "affine" if of_weight == dtype else "float32 weight",
            direction,
            (x, weight, x) if gradients else (x, weight),
            (x, total) if gradients else (x,),
            _makers(n),
            gradient_of(_reference) if gradients else _reference,
            capturable=not gradients,
            **options,
        )

    return make


def _exact_sums(operands: Sequence[Operand], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Operands whose first two have a sum that every dtype holds: the reference does not round the sum."""
    drawn = [torch.randn(x.shape, dtype=x.dtype, device=generator.device, generator=generator) for x in operands]
    for x in drawn[:2]:
        x.mul_(16).round_().clamp_(-120, 120).div_(16)
    return tuple(drawn)


def _added(m: int, n: int, dtype: torch.dtype, of_weight: torch.dtype) -> Iterator[Case]:
    x, weight, total = Operand((m, n), dtype), Operand((n,), of_weight), Operand((n,), of_weight, terms=m)
    wanted, given = (0, 2), (x, x, weight)
    label = "rms_norm", "add_rms_norm"
    draw = partial(_exact_sums, given)
    yield Case(*label, "forward", given, (x, x), _added_makers(n), _added_reference, draw=draw)
    yield Case(
        *label,
        "backward",
        (*given, x, x),
        (x, total),
        _added_makers(n),
        gradient_of(_added_reference, wanted, results=2),
        bind=partial(backward_alone, wanted=wanted, results=2),
        capturable=False,
        # The gradients of both results, s and weight: the least that a backward reads.
        reads=(x, x, x, weight),
        draw=partial(_exact_sums, (*given, x, x)),
    )
