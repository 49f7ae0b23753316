"""Cases of linear and linear_gelu: y (M, N) of x (M, K). The backward is what autograd calls: the gradients of x, weight and
bias, from grad_y (and x·Wᵀ + b, for GELU), x and weight. In "forward and backward" autograd calls it."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import linear, linear_backward, linear_gelu, linear_gelu_backward

from .cases import DTYPES, SIZES, Call, Case, Operand, recording
from .peers import compiled

__all__ = ["PRODUCTS_OF", "SHAPES", "Product", "cases", "host_cases", "product_of"]

WORK = "products"
# M, N, K
SHAPES = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 3072, 768),
    (16384, 768, 3072),
    (256, 1024, 1024),
    (16, 4096, 4096),
    (4, 4096, 4096),
    (1, 4096, 4096),
    (16384, 1, 4096),
    (1, 1, 2),
)
HOST_SHAPE = (8, 128, 128)
# Matrix products by direction: z = x·Wᵀ forward; grad_x = grad_z·W and grad_weight = grad_zᵀ·x backward.
PRODUCTS_OF = {"forward": 1, "backward": 2, "forward and backward": 3}
# TF32 keeps 10 bits of a float32's 23: each of its roundings is 2^13 of float32's.
TF32_ROUNDING = 2**13

Makers = dict[str, Callable[[], Callable[..., Any]]]


@dataclass(frozen=True)
class Product:
    """A layer: M rows, N outputs, K inputs; ``tf32``: float32 is multiplied as TF32."""

    m: int
    n: int
    k: int
    dtype: torch.dtype
    tf32: bool = False
    gelu: bool = False

    @property
    def variant(self) -> str:
        return f"{'gelu, ' if self.gelu else ''}K={self.k}{', TF32' if self.tf32 else ''}"

    def operand(self, *shape: int, terms: int = 0) -> Operand:
        return Operand(shape, self.dtype, terms * (TF32_ROUNDING**2 if self.tf32 else 1))

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self.operand(self.m, self.k), self.operand(self.n, self.k), self.operand(self.n)

    @property
    def result(self) -> Operand:
        return self.operand(self.m, self.n, terms=self.k)

    @property
    def gradients(self) -> tuple[Operand, ...]:
        m, n, k = self.m, self.n, self.k
        found = self.operand(m, k, terms=n), self.operand(n, k, terms=m), self.operand(n, terms=m)
        # After GELU they are sums of dL/dz, which is a tensor of the layer's dtype.
        return tuple(replace(gradient, rounded_terms=self.gelu) for gradient in found)

    def draw(self, operands: Sequence[Operand], generator: torch.Generator) -> tuple[Tensor, ...]:
        """From the normal distribution; weights so that what a layer gives is about as large as what it takes."""
        drawn = [torch.randn(o.shape, dtype=o.dtype, device=generator.device, generator=generator) for o in operands]
        for x in drawn:
            if x.shape == (self.n, self.k):
                x.div_(math.sqrt(self.k))
        return tuple(drawn)


# References


def exact_gelu(z: Tensor) -> Tensor:
    return 0.5 * z * torch.erfc(-math.sqrt(0.5) * z)


def reference(gelu: bool, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    z = x @ weight.T + bias
    return exact_gelu(z) if gelu else z


def backward_reference(gelu: bool, grad_y: Tensor, *operands: Tensor) -> tuple[Tensor, ...]:
    """grad_z = grad_y·(Φ(z) + z·φ(z)), else grad_y itself; then grad_x = grad_z·W, grad_weight = grad_zᵀ·x, grad_bias = Σ
    grad_z."""
    *more, x, weight = operands
    if gelu:
        (z,) = more
        density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        grad_y = grad_y * (0.5 * torch.erfc(-math.sqrt(0.5) * z) + z * density)
    return grad_y @ weight, grad_y.T @ x, grad_y.sum(0)


def both_reference(
    gelu: bool, dtype: torch.dtype, x: Tensor, weight: Tensor, bias: Tensor, grad_y: Tensor
) -> tuple[Tensor, ...]:
    """z is a tensor of the layer's dtype, between two operations as within one, and is rounded so."""
    z = ((x @ weight.T + bias).to(dtype).double(),) if gelu else ()
    return backward_reference(gelu, grad_y, *z, x, weight)


# Implementations


def _eager_forward(gelu: bool) -> Callable[..., Tensor]:
    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        z = F.linear(x, weight, bias)
        return F.gelu(z) if gelu else z

    return layer


def _eager_backward(gelu: bool) -> Callable[..., Any]:
    """What autograd calls."""

    def gradients(grad_y: Tensor, *operands: Tensor) -> tuple[Tensor, ...]:
        *more, x, weight = operands
        if gelu:
            grad_y = torch.ops.aten.gelu_backward(grad_y, *more)
        return grad_y.mm(weight), grad_y.t().mm(x), grad_y.sum(0)

    return gradients


def _implementations(product: Product, ours: Callable[..., Any], eager: Callable[..., Any]) -> Makers:
    makers: Makers = {"ours": lambda: ours, "eager": lambda: eager, "compile": lambda: compiled(eager)}
    if not product.tf32:
        return makers
    return {name: partial(_in_tf32, make) for name, make in makers.items()}


def _in_tf32(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """The function in a mode that PyTorch looks at when it is called (and Inductor when it compiles)."""
    function = make()

    def call(*inputs: Tensor) -> Any:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return function(*inputs)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    return call


def _gradients(tf32: bool, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Call:
    """Forward and backward; the last input is the gradient of the result."""
    leaves, grad = [x.detach().requires_grad_() for x in inputs[:-1]], inputs[-1]

    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(*leaves), leaves, grad)

    # The backward's products are called outside the function.
    return partial(_in_tf32(lambda: call)) if tf32 else call


# Cases


def cases(sizes: Sequence[int] = SIZES) -> Iterator[Case]:
    """Every shape whose result has no more elements than the largest size; float32 also multiplied as TF32."""
    for product in _products():
        if product.m * product.n <= max(sizes):
            yield from _each(product)


def product_of(row: Mapping[str, Any]) -> Product | None:
    """The layer that a row of the results file was measured on; None for a row of a shape that is not in ``SHAPES``.

    A row has the shape of its first result, (M, N) or the (M, K) of grad_x, and only the layer knows all of M, N and K.
    """
    return _by_labels().get((row["variant"], row["direction"], row["dtype"], tuple(row["shape"])))


@functools.cache
def _by_labels() -> dict[tuple[Any, ...], Product]:
    return {(c.variant, c.direction, c.dtype, c.shape): product for product in _products() for c in _each(product)}


def _products() -> Iterator[Product]:
    for m, n, k in SHAPES:
        for dtype, tf32 in [(dtype, False) for dtype in DTYPES] + [(torch.float32, True)]:
            for gelu in (False, True):
                yield Product(m, n, k, dtype, tf32, gelu)


def host_cases() -> Iterator[Case]:
    """8 × 128 × 128: without gradient, forward that records one, forward and backward."""
    for gelu in (False, True):
        product = Product(*HOST_SHAPE, torch.float32, gelu=gelu)
        forward, _, both = _each(product)
        yield forward
        yield replace(forward, direction="forward, recording", bind=recording)
        yield replace(both, capturable=False)


def _each(product: Product) -> Iterator[Case]:
    gelu, tf32 = product.gelu, product.tf32
    forward = _implementations(product, linear_gelu if gelu else linear, _eager_forward(gelu))
    backward = _implementations(product, linear_gelu_backward if gelu else linear_backward, _eager_backward(gelu))
    x, weight, _ = product.inputs
    grad_y = product.operand(product.m, product.n)
    read = (grad_y, *((grad_y,) if gelu else ()), x, weight)
    common = ("linear", product.variant)
    yield Case(
        *common,
        "forward",
        product.inputs,
        (product.result,),
        forward,
        partial(reference, gelu),
        draw=partial(product.draw, product.inputs),
    )
    yield Case(
        *common,
        "backward",
        read,
        product.gradients,
        backward,
        partial(backward_reference, gelu),
        draw=partial(product.draw, read),
    )
    operands = (*product.inputs, grad_y)
    yield Case(
        *common,
        "forward and backward",
        operands,
        product.gradients,
        forward,
        partial(both_reference, gelu, product.dtype),
        bind=partial(_gradients, tf32),
        draw=partial(product.draw, operands),
    )
