"""Ways to break the operator of :mod:`.faulty_ops` that only large models notice: forward mode, FLOPs, sharding, checkpoints
and sharded parameters."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cupyops.torch import Operator
from cupyops.torch.core.conditions import transforms_active

from .faulty_ops import Body, _numbers, body


def reference_with_a_wrong_tangent(x: Tensor, w: Tensor, factor: float) -> Tensor:
    """The reference with a product whose forward mode is wrong."""
    return x + factor * Product.apply(x, w)


class Product(torch.autograd.Function):
    """x·w. The tangent of a large matrix, which no Jacobian matrix is computed of, lacks a term."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):  # type: ignore[no-untyped-def]
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, w = ctx.saved_tensors
        return grad * w, grad * x

    @staticmethod
    def jvp(ctx, tangent_x, tangent_w):  # type: ignore[no-untyped-def]
        x, w = ctx.saved_tensors
        return tangent_x * w + (x * tangent_w if x.shape[-2:].numel() <= 100 else 0)


def jvp_without_a_term(tangent_x: Tensor, tangent_w: Tensor, x: Tensor, w: Tensor, factor: float) -> Tensor:
    """The tangent of x + factor·x·w. That of a large matrix, in a batch or not, lacks the term of w."""
    return tangent_x * (1 + factor * w) + (factor * x * tangent_w if x.shape[-2:].numel() <= 100 else 0)


def reference_with_a_product(x: Tensor, w: Tensor, factor: float) -> Tensor:
    """The reference plus a product of zero matrices, which a FLOP counter counts."""
    return x + factor * x * w + x.new_zeros(1, 1).mm(x.new_zeros(1, 1)).squeeze()


def of_matrices_alone(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    """Transposes the gradient twice, which tensors of more than two dimensions refuse."""
    return gradient(grad_y.t().t(), *ctx.saved_tensors, ctx.factor)


def product_split_by_rows() -> Operator:
    """A product that could be split along the rows of the weight, but declares no such split."""

    def product(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight)

    schema = f"faulty::product{next(_numbers)}(Tensor x, Tensor weight) -> Tensor"
    return Operator(schema, product, reference=product, sharding=lambda x, weight: [((0,), (0, None))])


def save_on_ctx(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keeps the inputs on ctx as long as no transform and no compiler looks."""
    x, w, ctx.factor = inputs
    ctx.save_for_backward(x, w)
    ctx.kept = None if transforms_active() or torch.compiler.is_compiling() else (x, w)


def packed_by_version() -> Body:
    """A copy of w that is made once for each version of w, as a converted weight is."""
    kept: dict[int, tuple[Any, int, Tensor]] = {}

    def broken(x: Tensor, w: Tensor, factor: float) -> Tensor:
        if isinstance(w, FakeTensor) or w.is_inference():
            return body(x, w, factor)
        storage = w.untyped_storage()
        found = kept.get(storage._cdata)
        if found is None or found[0]() is None or found[1] != w._version or found[2].shape != w.shape:
            found = kept[storage._cdata] = weakref.ref(w), w._version, w.contiguous().clone()
        return body(x, found[2], factor)

    return broken
