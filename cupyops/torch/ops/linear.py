"""Linear layers for PyTorch, alone and with GELU behind. :mod:`autograd_bridge` offers them beside the other operators.

Each Function is written as PyTorch documents it around bodies from :mod:`cupyops`, and made an operator by
:class:`cupyops.torch.Operator`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.ops.linear import config as linear_plan
from cupyops.ops.linear.body import backward as linear_backward_body
from cupyops.ops.linear.body import by_library as linear_by_library
from cupyops.ops.linear.body import forward as linear_body
from cupyops.ops.linear.fused_gelu import backward as linear_gelu_backward_body
from cupyops.ops.linear.fused_gelu import forward as linear_gelu_body
from cupyops.torch.core.operator import Operator

from . import onnx_translations, references
from .gelu import gelu_backward_operator

__all__ = ["Linear", "LinearGELU", "linear", "linear_backward", "linear_gelu", "linear_gelu_backward"]


class LinearFunction(torch.autograd.Function):
    """y = x·Wᵀ + b, so grad_x = grad_y·W, grad_weight = grad_yᵀ·x, and grad_bias the sums of grad_y's columns."""

    forward = staticmethod(linear_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(*_operands_of_gradient(ctx, x, weight))

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_y is None:
            return None, None, None
        return _linear_gradients(ctx, _linear_backward.call(grad_y, *ctx.saved_tensors, ctx.needs_input_grad[2]))


class LinearGeluFunction(torch.autograd.Function):
    """y = gelu(z) of z = x·Wᵀ + b; from grad_z = grad_y·gelu'(z) on as :class:`LinearFunction`. z is a result of its own, so
    that the gradient of this gradient finds its way through it."""

    forward = staticmethod(linear_gelu_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, _, ctx.approximate = inputs
        ctx.save_for_backward(output[1], *_operands_of_gradient(ctx, x, weight))

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_z: Tensor | None) -> tuple[Tensor | None, ...]:
        z, x, weight = ctx.saved_tensors
        want_bias = ctx.needs_input_grad[2]
        if grad_y is None and grad_z is None:
            return None, None, None, None
        if grad_z is None:
            found = _linear_gelu_backward.call(grad_y, z, x, weight, ctx.approximate, want_bias)
        else:
            if grad_y is not None:
                grad_z = grad_z + gelu_backward_operator.call(grad_y, z, ctx.approximate)
            found = _linear_backward.call(grad_z, x, weight, want_bias)
        return (*_linear_gradients(ctx, found), None)


def _operands_of_gradient(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Each of the two only where the other one's gradient is wanted."""
    return x if ctx.needs_input_grad[1] else None, weight if ctx.needs_input_grad[0] else None


def _linear_gradients(ctx: Any, found: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    return tuple(g if needed else None for g, needed in zip(found, ctx.needs_input_grad[:3], strict=True))


def _record_linear(apply: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    """The gradient of the bias is what we have to offer; where it is not wanted, or soon summed up, PyTorch's own node
    costs a call less."""
    if bias is None:
        return linear_by_library(x, weight, bias)
    n, of_weight = bias.numel(), weight.numel()
    # M·N by the elements, which are had sooner than parts of shapes.
    if of_weight and bias.requires_grad and x.numel() * n * n >= linear_plan.LEAST_GRADIENT * of_weight:
        return apply(x, weight, bias)
    # What a small layer is, with nothing left to ask: on the host, each microsecond of it shows.
    dtype = x.dtype
    if of_weight <= SMALL_WEIGHT and dtype in _FLOATING and weight.dtype is dtype and bias.dtype is dtype:
        try:
            if weight.dim() == 2 and bias.dim() == 1 and weight.size(0) == n:
                return F.linear(x, weight, bias)
        except RuntimeError:
            pass
    return linear_by_library(x, weight, bias)


_FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
SMALL_WEIGHT = 2**16  # elements

_linear = Operator(
    "cupyops::linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    LinearFunction,
    reference=references.linear,
    autocast="lower",
    onnx=onnx_translations.linear,
    record=_record_linear,
)
_linear_backward = Operator(
    "cupyops::linear_backward(Tensor grad_y, Tensor? x, Tensor? weight, bool want_bias) -> (Tensor, Tensor, Tensor)",
    linear_backward_body,
    reference=references.linear_backward,
)
_linear_gelu = Operator(
    "cupyops::linear_gelu(Tensor x, Tensor weight, Tensor? bias, str approximate) -> (Tensor, Tensor)",
    LinearGeluFunction,
    reference=references.linear_gelu,
    autocast="lower",
    onnx=onnx_translations.linear_gelu,
)
_linear_gelu_backward = Operator(
    "cupyops::linear_gelu_backward(Tensor grad_y, Tensor z, Tensor? x, Tensor? weight, str approximate, bool want_bias)"
    " -> (Tensor, Tensor, Tensor)",
    linear_gelu_backward_body,
    reference=references.linear_gelu_backward,
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x·Wᵀ + b, a drop-in for ``torch.nn.functional.linear``.

    The product is PyTorch's, with the bias in its epilogue, except where one of the matrices has so few rows that a kernel
    of ours is faster. On a GPU, the gradient of the bias is one pass over grad_y, its sums in a fixed order; where the
    layer is too small for that to show, PyTorch's own gradient is recorded. Under autocast the operation is in the lower
    type, as PyTorch's.

    Args:
        x: (..., K), float16, bfloat16, float32 or float64, any layout.
        weight: (N, K), of x's dtype; or (K), for a result without the last dimension.
        bias: (N), of x's dtype; None beside a weight (K).

    Returns:
        A new tensor (..., N) of x's dtype.

    Raises:
        TypeError: x or weight is no tensor, or x not floating.
        RuntimeError: shapes or dtypes that do not belong together, in PyTorch's words.
        ValueError: tensors on different devices.
        MissingDependencyError: on CUDA tensors, if CuPy or what it needs is missing; the message says what installs it.

    Source: ``torch.nn.functional.linear``.

    >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]), torch.tensor([0.5, 0.0]))
    tensor([[11.5000, 17.0000]])
    """
    if bias is None and getattr(weight, "ndim", 2) == 1:
        return linear(x, weight.unsqueeze(0)).squeeze(-1)
    y: Tensor = _linear.call(x, weight, bias)
    return y


def linear_backward(
    grad_y: Tensor, x: Tensor | None = None, weight: Tensor | None = None, *, want_bias: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of :func:`linear`, themselves differentiable: grad_x = grad_y·W, grad_weight = grad_yᵀ·x, and
    grad_bias, the sums of grad_y's columns in a fixed order.

    Args:
        grad_y: (..., N), gradient of the result.
        x: (..., K), what :func:`linear` was given, for the gradient of weight; else None.
        weight: (N, K), what :func:`linear` was given, for the gradient of x; else None.
        want_bias: whether the gradient of the bias is wanted.

    Returns:
        (grad_x, grad_weight, grad_bias); those that are not wanted have no elements.

    Raises:
        ValueError, TypeError: operands that do not belong together.
    """
    found: tuple[Tensor, Tensor, Tensor] = _linear_backward.call(grad_y, x, weight, want_bias)
    return found


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "none") -> Tensor:
    """gelu(x·Wᵀ + b): :func:`.gelu.gelu` of :func:`linear`, with one pass less in the backward.

    The product is PyTorch's, or a kernel's of ours that applies GELU, too: of few rows and, on sm_90, where it is large and of
    16 bits. Some in float32 are made without the bias, which the pass of GELU adds. What the product gives is kept for the
    backward, where one kernel makes of it the gradient of the product and the gradient of the bias, its sums in a fixed order.
    Under autocast the operation is in the lower type.

    Args:
        x: (..., K), float16, bfloat16, float32 or float64, any layout.
        weight: (N, K), of x's dtype.
        bias: (N), of x's dtype, or None.
        approximate: ``"none"`` or ``"tanh"``, as for :func:`.gelu.gelu`.

    Returns:
        A new tensor (..., N) of x's dtype.

    Raises:
        RuntimeError: another word for ``approximate``; else as :func:`linear`.

    >>> linear_gelu(torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0, 1.0], [0.0, 0.0]]))
    tensor([[0.8413, 0.0000]])
    """
    y: Tensor = _linear_gelu.call(x, weight, bias, approximate)[0]
    return y


def linear_gelu_backward(
    grad_y: Tensor,
    z: Tensor,
    x: Tensor | None = None,
    weight: Tensor | None = None,
    approximate: str = "none",
    *,
    want_bias: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of :func:`linear_gelu`, themselves differentiable: those of :func:`linear`, by way of
    grad_z = grad_y·gelu'(z).

    Args:
        grad_y: (..., N), gradient of the result.
        z: (..., N), x·Wᵀ + b.
        x, weight, want_bias: as for :func:`linear_backward`.
        approximate: what :func:`linear_gelu` was given.

    Returns:
        (grad_x, grad_weight, grad_bias); those that are not wanted have no elements.

    Raises:
        ValueError, TypeError: operands that do not belong together; else as :func:`linear_gelu`.
    """
    found: tuple[Tensor, Tensor, Tensor] = _linear_gelu_backward.call(grad_y, z, x, weight, approximate, want_bias)
    return found


class Linear(nn.Linear):
    """``torch.nn.Linear`` with :func:`linear` as its forward: same arguments, same ``state_dict``."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class LinearGELU(nn.Linear):
    """``torch.nn.Linear`` with GELU behind it, by :func:`linear_gelu`: the arguments of ``nn.Linear`` and ``approximate``;
    the ``state_dict`` of ``nn.Linear``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        approximate: str = "none",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return linear_gelu(input, self.weight, self.bias, self.approximate)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, approximate={self.approximate!r}"
