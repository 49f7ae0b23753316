"""Cases of LayerNorm on M rows of N, and of the addition before it. The backward is the kernels alone: grad_x, and the
gradients of weight and bias, from grad_y, x, the forward's statistics and weight."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import add_layer_norm, layer_norm, layer_norm_backward

from .cases import DTYPES, SIZES, Case, Operand, forward_backward, gradient_of, recording
from .peers import LIGER_LONGEST, compiled, liger_kernels, triton_kernels
from .peers.extension import extension

__all__ = ["ROW_LENGTHS", "cases", "each", "host_cases"]

WORK = "rows"
EPS = 1e-5
ROW_LENGTHS = (64, 128, 256, 512, 768, 1000, 1024, 2048, 4096, 5120, 8192, 16384, 32768, 65536, 262144)
# Widths of models. Few rows, the addition, no weight and float16 are measured at these alone: what few rows cost is the
# launch, the addition and the weight are a share of the traffic that the row's length does not change, and float16
# moves the bytes of bfloat16.
COMMON_LENGTHS = (768, 1024, 4096, 8192)
FEW_ROWS = (1, 8, 64, 512)
HOST_SHAPE = (8, 128)
# The references go through so many elements at a time: float64 copies of 2^28 would fill a GPU's memory.
CHUNK = 2**25

AFFINE, PLAIN, ADDED = "affine", "no weight", "add_layer_norm"

Makers = dict[str, Callable[[], Callable[..., Any]]]


@dataclass(frozen=True)
class Rows:
    """M rows of N."""

    m: int
    n: int
    dtype: torch.dtype
    of_parameters: torch.dtype | None = None  # None: that of the rows

    @property
    def x(self) -> Operand:
        return Operand((self.m, self.n), self.dtype)

    @property
    def vector(self) -> Operand:
        """Weight or bias."""
        return Operand((self.n,), self.of_parameters or self.dtype)

    @property
    def vector_gradient(self) -> Operand:
        return Operand((self.n,), self.of_parameters or self.dtype, terms=self.m)

    @property
    def stats(self) -> Operand:
        """Mean and 1/√(variance + eps) of each row."""
        return Operand((2, self.m, 1), torch.float32)


# Operands. Mean and deviation as layers see them: with a mean far from 0, it shows whether it is taken off.
DISTRIBUTION = {"x": (1.0, 1.0), "residual": (0.5, 1.0), "weight": (1.0, 0.125), "bias": (0.0, 0.125)}


def _draw(operands: Mapping[str, Operand], generator: torch.Generator) -> tuple[Tensor, ...]:
    drawn: dict[str, Tensor] = {}
    for role, operand in operands.items():
        if role == "stats":
            drawn[role] = statistics(drawn["x"])
        else:
            mean, deviation = DISTRIBUTION.get(role, (0.0, 1.0))
            z = torch.randn(operand.shape, dtype=operand.dtype, device=generator.device, generator=generator)
            drawn[role] = z if (mean, deviation) == (0.0, 1.0) else z.mul_(deviation).add_(mean)
    return tuple(drawn.values())


def _chunks(x: Tensor) -> Iterator[slice]:
    m, n = x.shape
    rows = max(1, CHUNK // n)
    return (slice(first, first + rows) for first in range(0, m, rows))


def statistics(x: Tensor) -> Tensor:
    """Mean and 1/√(variance + eps) by row, (2, M, 1) in float32, computed in float64."""
    stats = torch.empty((2, x.shape[0], 1), dtype=torch.float32, device=x.device)
    for rows in _chunks(x):
        variance, mean = torch.var_mean(x[rows].double(), -1, correction=0, keepdim=True)
        stats[0, rows], stats[1, rows] = mean, torch.rsqrt(variance + EPS)
    return stats


# References


def reference(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    y = torch.empty_like(x)
    for rows in _chunks(x):
        variance, mean = torch.var_mean(x[rows], -1, correction=0, keepdim=True)
        x_hat = (x[rows] - mean) * torch.rsqrt(variance + EPS)
        y[rows] = x_hat if weight is None or bias is None else x_hat * weight + bias
    return y


def added_reference(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    s = x + residual
    return reference(s, weight, bias), s


def backward_reference(
    grad_y: Tensor, x: Tensor, stats: Tensor, weight: Tensor | None = None, grad_s: Tensor | None = None
) -> tuple[Tensor, ...]:
    """With x_hat = (x - mean)·rstd and g = grad_y·weight: grad_x = rstd·(g - mean(g) - x_hat·mean(g·x_hat)), by row;
    grad_weight = Σ grad_y·x_hat and grad_bias = Σ grad_y, over the rows."""
    grad_x = torch.empty_like(x)
    grad_weight, grad_bias = torch.zeros_like(x[0]), torch.zeros_like(x[0])
    for rows in _chunks(x):
        rstd = stats[1, rows]
        x_hat = (x[rows] - stats[0, rows]) * rstd
        g = grad_y[rows] if weight is None else grad_y[rows] * weight
        grad_x[rows] = rstd * (g - g.mean(-1, keepdim=True) - x_hat * (g * x_hat).mean(-1, keepdim=True))
        if grad_s is not None:
            grad_x[rows] += grad_s[rows]
        grad_weight += (grad_y[rows] * x_hat).sum(0)
        grad_bias += grad_y[rows].sum(0)
    return (grad_x,) if weight is None else (grad_x, grad_weight, grad_bias)


def added_backward_reference(
    grad_y: Tensor, grad_s: Tensor, x: Tensor, stats: Tensor, weight: Tensor
) -> tuple[Tensor, ...]:
    return backward_reference(grad_y, x, stats, weight, grad_s)


# Implementations


def _forward(n: int, affine: bool) -> Makers:
    shape = (n,)

    def ours(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        y: Tensor = layer_norm(x, shape, weight, bias, EPS)
        return y

    def eager(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return _layer_norm_of_pytorch(x, shape, weight, bias)

    def extended() -> Callable[..., Any]:
        function = extension().layer_norm_forward
        return lambda x, weight=None, bias=None: function(x, None, weight, bias, EPS, False)[0]

    makers: Makers = {
        "ours": lambda: ours,
        "eager": lambda: eager,
        "compile": lambda: compiled(eager),
        "triton": lambda: partial(triton_kernels("layer_norm").forward, EPS),
        "extension": extended,
    }
    if affine and n <= LIGER_LONGEST:  # it takes no layer without weight and bias
        makers["liger"] = _liger_forward
    return makers


def _layer_norm_of_pytorch(x: Tensor, shape: tuple[int], weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """PyTorch's layer norm. It takes no 16-bit rows with float32 parameters on a GPU: they are converted, as by autocast."""
    if weight is None or weight.dtype == x.dtype:
        return F.layer_norm(x, shape, weight, bias, EPS)
    return F.layer_norm(x.to(weight.dtype), shape, weight, bias, EPS).to(x.dtype)


def _liger_forward() -> Callable[..., Any]:
    function = liger_kernels("layer_norm").layer_norm_forward
    return lambda x, weight, bias: function(x, weight, bias, EPS)[0]


def _backward(n: int, affine: bool) -> Makers:
    shape, wants = (n,), (True, affine, affine)

    def ours(grad_y: Tensor, x: Tensor, stats: Tensor, weight: Tensor | None = None) -> Any:
        return layer_norm_backward(grad_y, x, stats, shape, weight, EPS, wants=wants)[: sum(wants)]

    def eager(grad_y: Tensor, x: Tensor, stats: Tensor, weight: Tensor | None = None) -> Any:
        return _eager_backward(grad_y, x, stats, weight)[: sum(wants)]

    def extended() -> Callable[..., Any]:
        function = extension().layer_norm_backward
        return lambda grad_y, x, stats, weight=None: function(grad_y, x, stats, weight, None)

    makers: Makers = {
        "ours": lambda: ours,
        "eager": lambda: eager,
        "compile": lambda: compiled(eager),
        "triton": lambda: triton_kernels("layer_norm").backward,
        "extension": extended,
    }
    if affine and n <= LIGER_LONGEST:
        makers["liger"] = _liger_backward
    return makers


def _eager_backward(grad_y: Tensor, x: Tensor, stats: Tensor, weight: Tensor | None) -> Any:
    """The operator that autograd calls, and that Inductor decomposes in training."""
    wants = [True, weight is not None, weight is not None]
    # Only shape and dtype of the bias are read.
    bias = weight
    if weight is not None and weight.dtype != x.dtype:
        wide = grad_y.to(weight.dtype), x.to(weight.dtype)
        args = [x.shape[-1]], stats[0], stats[1], weight, bias, wants
        grad_x, *others = torch.ops.aten.native_layer_norm_backward(*wide, *args)
        return grad_x.to(x.dtype), *others
    return torch.ops.aten.native_layer_norm_backward(grad_y, x, [x.shape[-1]], stats[0], stats[1], weight, bias, wants)


def _liger_backward() -> Callable[..., Any]:
    function = liger_kernels("layer_norm").layer_norm_backward
    return lambda grad_y, x, stats, weight: function(grad_y, x, weight, weight, stats[0].view(-1), stats[1].view(-1))


def tangent_reference(
    tangent_x: Tensor, x: Tensor, stats: Tensor, weight: Tensor, tangent_weight: Tensor, tangent_bias: Tensor
) -> Tensor:
    """With x_hat = (x - mean)·rstd and t = tangent_x: weight·rstd·(t - mean(t) - x_hat·mean(t·x_hat)) +
    tangent_weight·x_hat + tangent_bias."""
    tangent_y = torch.empty_like(x)
    for rows in _chunks(x):
        tangent_y[rows] = _moved(tangent_x[rows], x[rows], stats[:, rows], weight, tangent_weight, tangent_bias)
    return tangent_y


def _moved(t: Tensor, x: Tensor, stats: Tensor, weight: Tensor, tangent_weight: Tensor, tangent_bias: Tensor) -> Tensor:
    x_hat = (x - stats[0]) * stats[1]
    moved = stats[1] * (t - t.mean(-1, keepdim=True) - x_hat * (t * x_hat).mean(-1, keepdim=True))
    return (weight * moved + tangent_weight * x_hat + tangent_bias).to(x.dtype)


def _tangent(n: int) -> Makers:
    shape = [n]

    def ours(tangent_x: Tensor, x: Tensor, stats: Tensor, *affine: Tensor) -> Any:
        return torch.ops.cupyops.layer_norm_jvp(tangent_x, x, stats, *affine, shape, EPS)

    return {"ours": lambda: ours, "eager": lambda: _moved, "compile": lambda: compiled(_moved)}


def _added_forward(n: int) -> Makers:
    shape = (n,)

    def ours(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return add_layer_norm(x, residual, shape, weight, bias, EPS)

    def eager(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        s = x + residual
        return _layer_norm_of_pytorch(s, shape, weight, bias), s

    def extended() -> Callable[..., Any]:
        function = extension().layer_norm_forward
        return lambda x, residual, weight, bias: function(x, residual, weight, bias, EPS, False)

    return {
        "ours": lambda: ours,
        "eager": lambda: eager,
        "compile": lambda: compiled(eager),
        "triton": lambda: partial(triton_kernels("layer_norm").add_forward, EPS),
        "extension": extended,
    }


def _added_backward(n: int) -> Makers:
    shape = (n,)

    def ours(grad_y: Tensor, grad_s: Tensor, x: Tensor, stats: Tensor, weight: Tensor) -> Any:
        return layer_norm_backward(grad_y, x, stats, shape, weight, EPS, grad_sum=grad_s)

    def eager(grad_y: Tensor, grad_s: Tensor, x: Tensor, stats: Tensor, weight: Tensor) -> Any:
        grad_x, grad_weight, grad_bias = _eager_backward(grad_y, x, stats, weight)
        return grad_x + grad_s, grad_weight, grad_bias

    def tritons() -> Callable[..., Any]:
        function = triton_kernels("layer_norm").backward
        return lambda grad_y, grad_s, x, stats, weight: function(grad_y, x, stats, weight, grad_s)

    def extended() -> Callable[..., Any]:
        function = extension().layer_norm_backward
        return lambda grad_y, grad_s, x, stats, weight: function(grad_y, x, stats, weight, grad_s)

    return {
        "ours": lambda: ours,
        "eager": lambda: eager,
        "compile": lambda: compiled(eager),
        "triton": tritons,
        "extension": extended,
    }


def _differentiable(n: int) -> Makers:
    """The forward with gradients: for bare kernels, in the ``autograd.Function`` that their user writes."""

    def tritons() -> Callable[..., Any]:
        kernels = triton_kernels("layer_norm")
        return _with_gradient(partial(kernels.forward_with_stats, EPS), kernels.backward)

    def extended() -> Callable[..., Any]:
        forward, backward = extension().layer_norm_forward, extension().layer_norm_backward
        return _with_gradient(
            lambda x, weight, bias: forward(x, None, weight, bias, EPS, True),
            lambda grad_y, x, stats, weight: backward(grad_y, x, stats, weight, None),
        )

    def liger() -> Callable[..., Any]:
        function = liger_kernels("layer_norm").LigerLayerNormFunction
        return lambda x, weight, bias: function.apply(x, weight, bias, EPS)

    return {**_forward(n, True), "triton": tritons, "extension": extended, "liger": liger}


def _with_gradient(forward_kernel: Callable[..., Any], backward_kernel: Callable[..., Any]) -> Callable[..., Any]:
    class LayerNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
            y, stats = forward_kernel(x, weight, bias)
            ctx.save_for_backward(x, stats, weight)
            return y

        @staticmethod
        def backward(ctx: Any, grad_y: Tensor) -> Any:
            return tuple(backward_kernel(grad_y, *ctx.saved_tensors))

    return LayerNorm.apply


# Cases


def cases(
    sizes: Sequence[int] = SIZES, row_lengths: Sequence[int] = ROW_LENGTHS, *, full: bool = False
) -> Iterator[Case]:
    """Rows of every length, so many of them that the elements are the largest size or a little less.

    Args:
        full: at every length also float16, no weight and the addition; few rows in float16.
    """
    for n in sorted(set(row_lengths)):
        many = max(1, max(sizes) // n)
        common = n in COMMON_LENGTHS
        wide = [dtype for dtype in DTYPES if full or dtype != torch.float16]
        for dtype in DTYPES if common else wide:
            yield from _both(Rows(many, n, dtype), AFFINE)
        for dtype in wide if common or full else ():
            yield from _both(Rows(many, n, dtype), PLAIN)
            yield from _both(Rows(many, n, dtype), ADDED)
        for m in FEW_ROWS if common else ():
            for dtype in wide if m < many else ():
                yield from _both(Rows(m, n, dtype), AFFINE)


def each(m: int, n: int, dtype: torch.dtype, of_parameters: torch.dtype) -> Iterator[Case]:
    """Both directions of M rows of N, without and with the addition."""
    rows = Rows(m, n, dtype, of_parameters)
    for variant in (AFFINE, ADDED):
        yield from (case for case in _both(rows, variant) if case.direction != "tangent")


def host_cases() -> Iterator[Case]:
    """8 × 128: without gradient, forward that records one, forward and backward."""
    rows = Rows(*HOST_SHAPE, torch.float32)
    x, vector = rows.x, rows.vector
    operands = {"x": x, "weight": vector, "bias": vector}
    yield _case(AFFINE, "forward", operands, (x,), _forward(rows.n, True), reference)
    makers = _differentiable(rows.n)
    yield _case(AFFINE, "forward, recording", operands, (x,), makers, reference, bind=recording)
    yield _case(
        AFFINE,
        "forward and backward",
        {**operands, "grad_y": x},
        (x, rows.vector_gradient, rows.vector_gradient),
        makers,
        gradient_of(reference),
        bind=forward_backward,
        capturable=False,
    )


def _both(rows: Rows, variant: str) -> Iterator[Case]:
    x, vector, added = rows.x, rows.vector, variant == ADDED
    affine = variant != PLAIN
    vectors = {"weight": vector, "bias": vector} if affine else {}
    yield _case(
        variant,
        "forward",
        {"x": x, **({"residual": x} if added else {}), **vectors},
        (x, x) if added else (x,),
        _added_forward(rows.n) if added else _forward(rows.n, affine),
        added_reference if added else reference,
    )
    if variant == AFFINE:
        moved = {"tangent_x": x, "x": x, "stats": rows.stats, "weight": vector}
        moved |= {"tangent_weight": vector, "tangent_bias": vector}
        reads = [operand for role, operand in moved.items() if role != "stats"]
        yield _case(variant, "tangent", moved, (x,), _tangent(rows.n), tangent_reference, reads=tuple(reads))
    weight = {"weight": vector} if affine else {}
    read = {"grad_y": x, **({"grad_s": x} if added else {}), "x": x}
    yield _case(
        variant,
        "backward",
        {**read, "stats": rows.stats, **weight},
        (x, rows.vector_gradient, rows.vector_gradient) if affine else (x,),
        _added_backward(rows.n) if added else _backward(rows.n, affine),
        added_backward_reference if added else backward_reference,
        # The statistics, 8 bytes a row, are not counted.
        reads=(*read.values(), *weight.values()),
    )


def _case(
    variant: str,
    direction: str,
    operands: Mapping[str, Operand],
    results: tuple[Operand, ...],
    implementations: Makers,
    right: Callable[..., Any],
    **options: Any,
) -> Case:
    return Case(
        "layer_norm",
        variant,
        direction,
        tuple(operands.values()),
        results,
        implementations,
        right,
        draw=partial(_draw, operands),
        **options,
    )
