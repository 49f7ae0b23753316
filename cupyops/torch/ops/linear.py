"""The PyTorch operator linear: x·Wᵀ + b."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.ops.linear import config as linear_config
from cupyops.ops.linear.body import backward as linear_backward_body
from cupyops.ops.linear.body import by_library as linear_by_library
from cupyops.ops.linear.body import forward as linear_body
from cupyops.ops.linear.odd import Odd, is_odd
from cupyops.ops.linear.products import check_gradients, check_product
from cupyops.torch.core.conditions import alone, in_plain_backward
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import DTYPE_NAMES, PLAIN_TENSORS, NoStorageError, weight_and_bias
from cupyops.torch.scale.sharding import Split

from .onnx_values import BFLOAT16, cast, in_float32

is_autocast_enabled, get_autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

__all__ = ["Linear", "linear", "linear_backward"]


def _linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    check_product("linear", x, weight, bias)
    return F.linear(x, weight, bias)


def _parts(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns the product as PyTorch's own operators, which policies of selective checkpoints name.

    The operator has a rule for DTensors with pieces of unequal size, and PyTorch's operators refuse them.
    """
    if not PLAIN_TENSORS.issuperset((type(x), type(weight))):
        found: Tensor = _linear.op(x, weight, bias)
        return found
    z = product_in_checkpoint(x, weight, bias)
    return _linear_reference(x, weight, bias) if z is None else z


def product_in_checkpoint(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """Returns x·Wᵀ + b by the one operation that the policy of a selective checkpoint decides about; None elsewhere.

    ``torch.nn.functional.linear`` of (A, B, K) is four operations for the policy: the same product and three views.

    Args:
        x, weight, bias: the arguments of :func:`linear`, plain tensors.
    """
    if (
        not alone()
        or not x.is_contiguous()
        or weight.dim() != 2
        or x.dtype is not weight.dtype
        or not x.numel()
        or x.size(-1) != weight.size(1)
        or (bias is not None and (bias.dim() != 1 or bias.size(0) != weight.size(0) or bias.dtype is not x.dtype))
    ):
        return None
    apart = x.dim() != 2
    with torch._C._DisableTorchDispatch():
        rows, columns = x.view(-1, x.size(-1)) if apart else x, weight.t()
    z = torch.mm(rows, columns) if bias is None else torch.addmm(bias, rows, columns)
    if apart:
        with torch._C._DisableTorchDispatch():
            z = z.view(*x.shape[:-1], z.size(1))
    return z


def linear_backward_reference(
    grad_y: Tensor, x: Tensor | None, weight: Tensor | None, want_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    check_gradients("linear_backward", grad_y, x, weight)
    rows = grad_y.reshape(math.prod(grad_y.shape[:-1]), grad_y.shape[-1])
    grad_x = grad_y.new_empty(0) if weight is None else grad_y @ weight
    grad_weight = grad_y.new_empty(0) if x is None else rows.T @ x.reshape(rows.shape[0], x.shape[-1])
    return grad_x, grad_weight, rows.sum(0) if want_bias else grad_y.new_empty(0)


def linear_onnx(op: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Returns the ONNX form of x·Wᵀ + b. bfloat16 is multiplied in float32, since few runtimes multiply bfloat16 on a
    CPU."""
    dtype = x.dtype
    if dtype == BFLOAT16:
        x, weight, bias = in_float32(op, x, weight, bias)
    if len(x.shape) == 2 and len(weight.shape) == 2:
        operands = (x, weight) if bias is None else (x, weight, bias)
        return cast(op, op.Gemm(*operands, transB=1), dtype)
    y = op.MatMul(x, op.Transpose(weight, perm=[1, 0]) if len(weight.shape) == 2 else weight)
    return cast(op, y if bias is None else op.Add(y, bias), dtype)


class LinearFunction(torch.autograd.Function):
    """y = x·Wᵀ + b. The gradients are grad_x = grad_y·W, grad_weight = grad_yᵀ·x, and grad_bias, the column sums of
    grad_y."""

    forward = staticmethod(linear_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(*operands_of_gradient(ctx, x, weight))

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_y is None:
            return None, None, None
        x, weight = ctx.saved_tensors
        want_bias = ctx.needs_input_grad[2]
        found = None
        if in_plain_backward(grad_y):
            try:
                found = linear_backward_body(grad_y, x, weight, want_bias)
            except NoStorageError:
                found = None
        if found is None:
            found = linear_backward_operator.call(grad_y, x, weight, want_bias)
        return linear_gradients(ctx, found)


def operands_of_gradient(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Returns x if the gradient of weight is needed, and weight if the gradient of x is needed; None otherwise."""
    needs = ctx.needs_input_grad
    return x if needs[1] else None, weight if needs[0] else None


def linear_gradients(ctx: Any, found: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    grad_x, grad_weight, grad_bias = found
    needs = ctx.needs_input_grad
    return grad_x if needs[0] else None, grad_weight if needs[1] else None, grad_bias if needs[2] else None


def _gradient_of_backward(
    ctx: Any, of_x: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    grad_y, x, weight = ctx.saved_tensors
    want_grad_y, want_x, want_weight, *_ = ctx.needs_input_grad
    # A gradient that was not requested is an empty tensor, and so is the gradient of this tensor.
    of_x = None if weight is None else of_x
    of_weight = None if x is None else of_weight
    of_bias = of_bias if ctx.want_bias else None
    grad = grad_x = grad_weight = None
    if want_grad_y:
        terms = []
        if of_weight is not None:
            terms.append(_linear.call(x, of_weight, of_bias))
        elif of_bias is not None:
            terms.append(of_bias.expand_as(grad_y))
        if of_x is not None:
            terms.append(_linear.call(of_x, weight, None))
        grad = terms[0] + terms[1] if len(terms) > 1 else terms[0] if terms else None
    if want_x and of_weight is not None:
        grad_x = linear_backward_operator.call(grad_y, None, of_weight, False)[0]
    if want_weight and of_x is not None:
        grad_weight = linear_backward_operator.call(grad_y, of_x, None, False)[1]
    return grad, grad_x, grad_weight, None


class LinearBackwardFunction(torch.autograd.Function):
    """The gradients g·W, gᵀ·x and Σ g of :class:`LinearFunction`, for g = grad_y. With the gradients a, B and c of these
    results, the gradient of g is a·Wᵀ + x·Bᵀ + c, that of x is g·B, and that of W is gᵀ·a. The operators compute the
    products, so that DTensors with pieces of unequal size need no reshape, which DTensor refuses."""

    forward = staticmethod(linear_backward_body)
    backward = staticmethod(_gradient_of_backward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        grad_y, x, weight, ctx.want_bias = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(grad_y, x, weight)


def _record_linear(apply: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    """Returns x·Wᵀ + b. Records the autograd node of ``apply`` for a large layer with a bias, else PyTorch's own node.

    Only the bias gradient of this operator is faster than PyTorch's. For a small bias gradient, or none, the autograd
    node of PyTorch's linear takes less host time. Under autocast, PyTorch's linear converts the tensors.
    """
    dtype, of_weight, cast = x.dtype, weight.numel(), is_autocast_enabled("cuda")
    try:
        if bias is None:
            fits = weight.dim() == 2
        else:
            n = bias.numel()
            # M·N is computed from numel(), which takes less host time than reading sizes.
            if of_weight and bias.requires_grad and x.numel() * n * n >= linear_config.LEAST_GRADIENT * of_weight:
                return apply(x, weight, bias)
            fits = weight.dim() == 2 and bias.dim() == 1 and weight.size(0) == n
        if fits and of_weight >= _LEAST_ODD:
            n, k = weight.shape
            if (n | k) % _MULTIPLE and is_odd(DTYPE_NAMES[get_autocast_dtype("cuda") if cast else dtype], n, k):
                return apply(x, weight, bias)
        # The further checks of linear_by_library would add to the host time. They find the large products in float32 to
        # which a separate pass adds the bias.
        if fits and (
            cast
            or (
                (of_weight <= SMALL_WEIGHT or dtype is not torch.float32 or bias is None)
                and dtype in _FLOATING
                and weight.dtype is dtype
                and (bias is None or bias.dtype is dtype)
            )
        ):
            return F.linear(x, weight, bias)
    except RuntimeError:
        pass  # the functions below raise an error that names the argument
    return apply(x, weight, bias) if cast else linear_by_library(x, weight, bias)


_FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
SMALL_WEIGHT = 2**16  # elements
_LEAST_ODD, _MULTIPLE = Odd().least, Odd().multiple  # read once, for host time


def linear_sharding(x: Any, weight: Any, bias: Any) -> Iterable[Split]:
    """Splits along the dimensions of x, along the rows of the weight, and along K, over which the product sums."""
    last = x.ndim - 1
    if weight.ndim != 2:
        return []
    rows: list[Split] = [((dim,), (dim, None, None)) for dim in range(last)]
    return [*rows, ((last,), (None, 0, 0)), (("sum",), (last, 1, "sum"))]


def linear_backward_sharding(grad_y: Any, x: Any, weight: Any, want_bias: bool) -> Iterable[Split]:
    last = grad_y.ndim - 1
    rows: list[Split] = [((dim, "sum", "sum"), (dim, dim, None)) for dim in range(last)]
    return [*rows, (("sum", 0, 0), (last, None, 0)), ((last, 1, None), (None, last, 1))]


def linear_flops(x: Sequence[int], weight: Sequence[int], *_: Any) -> int:
    """Returns the floating point operations of the product, 2·M·N·K; the bias counts 0, as in PyTorch."""
    return 2 * math.prod(x) * math.prod(weight[:-1])


def linear_backward_flops(grad_y: Sequence[int], x: Any, weight: Any, want_bias: bool) -> int:
    products = [2 * math.prod(grad_y) * other[-1] for other in (x, weight) if other is not None]
    return sum(products)


_linear = Operator(
    "cupyops::linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    LinearFunction,
    reference=_linear_reference,
    autocast="lower",
    onnx=linear_onnx,
    record=_record_linear,
    repeats=True,
    sharding=linear_sharding,
    flops=linear_flops,
    parts=_parts,
    _by_parts=True,
    compiled="decompose",  # Inductor pads the operands of a product whose rows are unaligned, and fuses what follows
)
linear_backward_operator = Operator(
    "cupyops::linear_backward(Tensor grad_y, Tensor? x, Tensor? weight, bool want_bias) -> (Tensor, Tensor, Tensor)",
    LinearBackwardFunction,
    reference=linear_backward_reference,
    repeats=True,
    sharding=linear_backward_sharding,
    flops=linear_backward_flops,
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns y = x·Wᵀ + b; a drop-in for ``torch.nn.functional.linear``.

    PyTorch computes the product with the bias in its epilogue in most cases. A cupyops kernel computes the product if x
    or weight has so few rows (at most 16) that the kernel is faster. On a GPU, the gradient of the bias is one pass
    over grad_y, and is summed in a fixed order. For small layers, PyTorch's own gradient takes less time and is
    recorded instead. Under autocast the operation runs in the lower-precision dtype, as in PyTorch.

    Args:
        x: (..., K), float16, bfloat16, float32 or float64, any strides.
        weight: (N, K), of x's dtype; or (K), in which case the result has no last dimension.
        bias: (N), of x's dtype, or None; must be None for a weight (K).

    Returns:
        A new tensor (..., N) of x's dtype. The tensor is contiguous, with one exception: on a GPU in 16 bits, if N is
        not a multiple of 8 and the weight is large (:data:`cupyops.ops.linear.odd.ODD`), each row begins at a multiple of
        16 bytes. ``y.view(-1)`` then needs ``y.contiguous()`` first.

    Raises:
        TypeError: x or weight is not a tensor, or the dtype of x is not floating.
        RuntimeError: the shapes or dtypes do not match. The message is PyTorch's.
        ValueError: the tensors are on different devices.
        MissingDependencyError: the tensors are on a GPU, and CuPy or a library that CuPy needs is missing. The message
            ends with the command that installs it.

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
    """Returns the gradients of :func:`linear`: grad_x = grad_y·W, grad_weight = grad_yᵀ·x, and grad_bias, the column
    sums of grad_y in a fixed order. The gradients can themselves be differentiated.

    Args:
        grad_y: (..., N), gradient of the result.
        x: (..., K), the argument of :func:`linear`; None if the gradient of weight is not needed.
        weight: (N, K), the argument of :func:`linear`; None if the gradient of x is not needed.
        want_bias: whether to compute the gradient of the bias.

    Returns:
        (grad_x, grad_weight, grad_bias). A gradient that was not requested is an empty tensor.

    Raises:
        ValueError: a shape or a device does not match the other operands.
        TypeError: a dtype does not match the other operands.
    """
    found: tuple[Tensor, Tensor, Tensor] = linear_backward_operator.call(grad_y, x, weight, want_bias)
    return found


class Linear(nn.Linear):
    """A ``torch.nn.Linear`` that calls :func:`linear`, with the same arguments and ``state_dict``."""

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = weight_and_bias(self)
        y: Tensor = _linear.call(input, weight, bias)
        return y
