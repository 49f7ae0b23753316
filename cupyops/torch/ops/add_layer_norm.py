"""The PyTorch operator add_layer_norm: layer normalisation of x + residual."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cupyops.ops.checks import check_shapes
from cupyops.ops.layer_norm.body import add_forward as add_layer_norm_body
from cupyops.ops.layer_norm.checks import as_shape
from cupyops.torch.core.composite import node_of
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import symbolic_call, weight_and_bias
from cupyops.torch.scale.sharding import Split

from .add2 import add2_onnx
from .layer_norm import (
    as_dtype,
    layer_norm_gradients,
    layer_norm_onnx,
    layer_norm_reference,
    name_of,
    outer_dims,
    recomputed_layer_norm,
)

__all__ = ["AddLayerNorm", "add_layer_norm"]


def _add_layer_norm_reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: Sequence[int],
    eps: float,
    dtype: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    check_shapes("add_layer_norm", residual=(residual, x.shape))
    s = torch.add(x, residual).contiguous()  # as the kernel returns it, which compiled graphs rely on
    y, stats = layer_norm_reference(s, weight, bias, normalized_shape, eps, dtype)
    return y, s, stats


def _add_layer_norm_onnx(
    op: Any, x: Any, residual: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float, dtype: str | None = None
) -> tuple[Any, Any, Any]:
    """Returns the ONNX form of layer_norm(s), s and the statistics, with s = x + residual."""
    s = add2_onnx(op, x, residual, 1)
    y, stats = layer_norm_onnx(op, s, weight, bias, normalized_shape, eps, dtype)
    return y, s, stats


class AddLayerNormFunction(torch.autograd.Function):
    """(layer_norm(s), s) with s = x + residual. The gradients are those of :class:`LayerNormFunction`; the gradient of
    s is the gradient of both x and residual."""

    forward = staticmethod(add_layer_norm_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, residual, weight, bias, normalized_shape, eps, _ = inputs
        _, s, stats = output
        ctx.mark_non_differentiable(stats)
        ctx.save_for_backward(s, weight, stats)
        ctx.kept = False, normalized_shape, eps, None if bias is None else bias.dtype
        ctx.dtypes = x.dtype, residual.dtype

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_s: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        return *AddLayerNormFunction.backward_of_y_and_s(ctx, grad_y, grad_s), None, None

    @staticmethod
    def forward_of_y_and_s(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        others: tuple[Sequence[int], float, str | None],
    ) -> tuple[Tensor, Tensor]:
        """Returns y and s of plain tensors, and saves the statistics without returning them."""
        normalized_shape, eps, dtype = others
        y, s, stats = _add_layer_norm.eager(x, residual, weight, bias, normalized_shape, eps, dtype)
        ctx.materialize_grads = False
        ctx.to_save = s, weight, stats
        ctx.kept = True, normalized_shape, eps, None if bias is None else bias.dtype
        ctx.dtypes = x.dtype, residual.dtype
        return y, s

    @staticmethod
    def backward_of_y_and_s(ctx: Any, grad_y: Tensor | None, grad_s: Tensor | None) -> tuple[Tensor | None, ...]:
        want_x, want_residual, want_weight, want_bias, *_ = ctx.needs_input_grad
        grad, grad_weight, grad_bias = grad_s, None, None
        if grad_y is not None:
            s, weight, stats = ctx.saved_tensors
            grad, grad_weight, grad_bias = layer_norm_gradients(
                ctx.kept, want_x or want_residual, want_weight, want_bias, grad_y, s, stats, weight, grad_s
            )
        x_dtype, residual_dtype = ctx.dtypes
        grad_x = as_dtype(grad, x_dtype) if want_x else None
        grad_residual = as_dtype(grad, residual_dtype) if want_residual else None
        return grad_x, grad_residual, grad_weight, grad_bias, None


def _sharding(
    x: Any, residual: Any, weight: Any, bias: Any, normalized_shape: Sequence[int], *_: Any
) -> Iterable[Split]:
    return [((dim, dim, dim + 1), (dim, dim, None, None)) for dim in outer_dims(x, normalized_shape)]


def _recomputed(s: Tensor, weight: Tensor | None, bias: Tensor | None, stats: Tensor, dtype: str | None) -> Tensor:
    return recomputed_layer_norm(s, weight, bias, stats, dtype)


_add_layer_norm = Operator(
    "cupyops::add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, SymInt[] normalized_shape,"
    " float eps, str? dtype=None) -> (Tensor y, Tensor s, Tensor stats)",
    AddLayerNormFunction,
    reference=_add_layer_norm_reference,
    compiled="auto",
    onnx=_add_layer_norm_onnx,
    recompute=_recomputed,
    common={"stats": ("layer_norm", "s", "normalized_shape", "eps")},  # as of layer_norm, up to the order of the sums
    repeats=True,
    sharding=_sharding,
)


def _without_stats(*args: Any) -> tuple[Tensor, Tensor]:
    y, s, _ = _add_layer_norm.eager(*args)
    return y, s


_y_and_s = _add_layer_norm.shown(
    2, AddLayerNormFunction.forward_of_y_and_s, AddLayerNormFunction.backward_of_y_and_s, _without_stats
)
add_layer_norm_node = node_of(_y_and_s)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes s = x + residual and layer_norm(s) in one pass over memory, the residual step of a transformer block.

    s is rounded to its dtype before it is normalised. The result therefore equals that of the two separate operations.
    Autocast does not change the dtypes. The gradient of s has the dtype of s, independent of the dtype of y.

    Args:
        x, residual: tensors of equal shape; s has their promoted dtype.
        normalized_shape, weight, bias, eps, dtype: the arguments of :func:`.layer_norm.layer_norm` for s; ``dtype``
            does not change the dtype of s.

    Returns:
        New tensors (layer_norm(s), s).

    Raises:
        ValueError: the shapes of x and residual differ.
        TypeError, RuntimeError, MissingDependencyError: as for :func:`.layer_norm.layer_norm`.

    >>> y, s = add_layer_norm(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, -1.0]), 3)
    >>> s
    tensor([2., 2., 2.])
    """
    shape = normalized_shape if type(normalized_shape) is tuple else as_shape(normalized_shape)
    if dtype is not None:
        arguments = x, residual, normalized_shape, weight, bias, eps
        if (proxy := symbolic_call(add_layer_norm, arguments, dtype=dtype)) is not None:
            return proxy
    name = None if dtype is None else name_of("add_layer_norm", dtype)
    found: tuple[Tensor, Tensor] = _y_and_s(x, residual, weight, bias, shape, eps, name)
    return found


class AddLayerNorm(nn.LayerNorm):
    """:class:`.layer_norm.LayerNorm` of s = x + residual: ``forward(x, residual)`` returns (layer_norm(s), s)."""

    def forward(  # type: ignore[override]
        self, input: Tensor, residual: Tensor, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        weight, bias = weight_and_bias(self)
        return add_layer_norm(input, residual, self.normalized_shape, weight, bias, self.eps, dtype=dtype)
