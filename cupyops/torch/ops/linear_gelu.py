"""The PyTorch operator linear_gelu: gelu(x·Wᵀ + b)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cupyops.ops.linear import config as linear_config
from cupyops.ops.linear.fused_gelu import backward as linear_gelu_backward_body
from cupyops.ops.linear.fused_gelu import backward_of, through_gelu, through_gelu_in_place
from cupyops.ops.linear.fused_gelu import check_backward as check_linear_gelu_backward
from cupyops.ops.linear.fused_gelu import forward as linear_gelu_body
from cupyops.ops.linear.odd import is_odd
from cupyops.ops.linear.products import check_product
from cupyops.torch.core.composite import node_of
from cupyops.torch.core.conditions import in_plain_backward, is_compiling, rows_of_traced
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import DTYPE_NAMES, PLAIN_TENSORS, NoStorageError, weight_and_bias
from cupyops.torch.scale.sharding import Split

from .gelu import gelu, gelu_backward_operator, gelu_backward_reference, gelu_onnx, gelu_operator, gelu_reference
from .linear import (
    linear,
    linear_backward_flops,
    linear_backward_operator,
    linear_backward_reference,
    linear_backward_sharding,
    linear_flops,
    linear_gradients,
    linear_onnx,
    linear_sharding,
    operands_of_gradient,
    product_in_checkpoint,
)

is_autocast_enabled, get_autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

__all__ = ["LinearGELU", "linear_gelu", "linear_gelu_backward"]


def _linear_gelu_reference(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> tuple[Tensor, Tensor]:
    check_product("linear_gelu", x, weight, bias)
    z = F.linear(x, weight, bias)
    return gelu_reference(z, approximate), z


def _parts(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> tuple[Tensor, Tensor]:
    plain = PLAIN_TENSORS.issuperset((type(x), type(weight)))
    z = product_in_checkpoint(x, weight, bias) if plain else None
    if z is None:
        z = linear(x, weight, bias)
        return gelu(z, approximate), z
    with torch._C._AutoDispatchBelowAutograd():  # as the dispatch of gelu would call it
        return gelu_operator.op(z, approximate), z


def _linear_gelu_backward_reference(
    grad_y: Tensor, z: Tensor, x: Tensor | None, weight: Tensor | None, approximate: str, want_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    check_linear_gelu_backward(grad_y, z, x, weight, approximate)
    if is_traceable_wrapper_subclass(grad_y):
        # The operator has a rule for DTensors. Below, rows are reshaped, which DTensor refuses for uneven pieces.
        grad_z = gelu_backward_operator.call(grad_y, z, approximate)
        found: tuple[Tensor, Tensor, Tensor] = linear_backward_operator.call(grad_z, x, weight, want_bias)
        return found
    if is_compiling():
        # In a graph, the products are separate operations. Within one operation, grad_y and z would stay in memory
        # until the products are computed.
        if not want_bias:
            return linear_backward_reference(gelu_backward_operator.call(grad_y, z, approximate), x, weight, False)
        grad_z, grad_bias = _gelu_bias_backward.call(grad_y, z, approximate)
        return (*linear_backward_reference(grad_z, x, weight, False)[:2], grad_bias)
    return linear_backward_reference(gelu_backward_reference(grad_y, z, approximate), x, weight, want_bias)


def _gelu_bias_backward_reference(grad_y: Tensor, z: Tensor, approximate: str) -> tuple[Tensor, Tensor]:
    check_linear_gelu_backward(grad_y, z, None, None, approximate)
    grad_z = gelu_backward_reference(grad_y, z, approximate)
    return grad_z, linear_backward_reference(grad_z, None, None, True)[2]


def linear_gelu_onnx(op: Any, x: Any, weight: Any, bias: Any, approximate: str) -> tuple[Any, Any]:
    """Returns the ONNX form of gelu(pre) and pre, with pre = x·Wᵀ + b."""
    pre = linear_onnx(op, x, weight, bias)
    return gelu_onnx(op, pre, approximate), pre


class LinearGeluFunction(torch.autograd.Function):
    """y = gelu(z) with z = x·Wᵀ + b. grad_z = grad_y·gelu'(z), and the other gradients follow from grad_z as in
    :class:`.linear.LinearFunction`. z is a second result, so that second derivatives can be computed through z."""

    forward = staticmethod(linear_gelu_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, _, ctx.approximate = inputs
        ctx.save_for_backward(output[1], *operands_of_gradient(ctx, x, weight))

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_z: Tensor | None) -> tuple[Tensor | None, ...]:
        z, x, weight = ctx.saved_tensors
        want_bias = ctx.needs_input_grad[2]
        if grad_y is None and grad_z is None:
            return None, None, None, None
        found: Any = None
        if grad_z is None:
            # A user can call a node of autograd on a gradient of another shape. The operator raises an error.
            if grad_y is not None and in_plain_backward(grad_y) and grad_y.shape == z.shape:
                try:
                    found = backward_of(grad_y, z, x, weight, ctx.approximate, want_bias)
                except NoStorageError:
                    found = None
            if found is None:
                found = _linear_gelu_backward.call(grad_y, z, x, weight, ctx.approximate, want_bias)
        else:
            if grad_y is not None:
                grad_z = grad_z + gelu_backward_operator.call(grad_y, z, ctx.approximate)
            found = linear_backward_operator.call(grad_z, x, weight, want_bias)
        return (*linear_gradients(ctx, found), None)


def _record_linear_gelu(apply: Any, x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> Any:
    """Returns y and z. Records PyTorch's two autograd nodes for a small layer in 16 bits, else the node of ``apply``.

    PyTorch's nodes take less host time, which bounds the time of a small layer. Under autocast, PyTorch's linear
    converts the tensors.
    """
    try:
        of_weight, n, cast = weight.numel(), weight.size(0), is_autocast_enabled("cuda")
        dtype = get_autocast_dtype("cuda") if cast else x.dtype
        # M and M·N, each multiplied by the elements of the weight
        rows = x.numel() * n
        elements = rows * n
        if (
            dtype in _HALF
            and linear_config.LEAST_RECORDED * of_weight < elements < linear_config.LEAST_GRADIENT * of_weight
            and rows > linear_config.MOST_FEW * of_weight
            and n > linear_config.MOST_FEW
            and weight.dim() == 2
            and (bias is None or (bias.dim() == 1 and bias.numel() == n))
            and (cast or (weight.dtype is dtype and (bias is None or bias.dtype is dtype)))
            and approximate in linear_config.FORMS
            and not is_odd(DTYPE_NAMES[dtype], n, weight.size(1))
        ):
            z = F.linear(x, weight, bias)
            return F.gelu(z, approximate=approximate), z
    except (IndexError, RuntimeError):
        pass  # apply raises an error that names the argument
    return apply(x, weight, bias, approximate)


_HALF = frozenset({torch.float16, torch.bfloat16})


def _sharding(x: Any, weight: Any, bias: Any, approximate: str) -> Iterable[Split]:
    """Returns the splits of the product, without the split along K: GELU of a sum is not a sum."""
    for (place,), tensors in linear_sharding(x, weight, bias):
        if place != "sum":
            yield (place, place), tensors


def _backward_sharding(grad_y: Any, z: Any, x: Any, weight: Any, approximate: str, want_bias: bool) -> Iterable[Split]:
    for results, (of_grad, *others) in linear_backward_sharding(grad_y, x, weight, want_bias):
        yield results, (of_grad, of_grad, *others)


def _gelu_bias_backward_sharding(grad_y: Any, z: Any, approximate: str) -> Iterable[Split]:
    for (_, _, of_bias), (of_grad, *_) in linear_backward_sharding(grad_y, None, None, True):
        if of_bias is not None:
            yield (of_grad, of_bias), (of_grad, of_grad)


def _compiled_backward(grad_y: Any, *_: Any) -> str:
    """The reference reshapes tensors, which jagged tensors and uneven shards refuse. They take the operator's own rule."""
    return "kernel" if is_traceable_wrapper_subclass(grad_y) else "decompose"


def _backward_flops(grad_y: Sequence[int], z: Any, x: Any, weight: Any, approximate: str, want_bias: bool) -> int:
    return linear_backward_flops(grad_y, x, weight, want_bias)


def _recomputed(z: Tensor, approximate: str) -> Tensor:
    return gelu_reference(z, approximate)


def _by_rows(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    x, *others = args
    rows = rows_of_traced(x)
    if rows is None:
        return call(args)
    return tuple(result.unflatten(0, x.shape[:-1]) for result in call((rows, *others)))


_linear_gelu = Operator(
    "cupyops::linear_gelu(Tensor x, Tensor weight, Tensor? bias, str approximate) -> (Tensor y, Tensor z)",
    LinearGeluFunction,
    reference=_linear_gelu_reference,
    autocast="lower",
    onnx=linear_gelu_onnx,
    recompute=_recomputed,
    record=_record_linear_gelu,
    repeats=True,
    sharding=_sharding,
    flops=linear_flops,
    parts=_parts,
    _general=_by_rows,
)
_call = _linear_gelu.call
linear_gelu_node = node_of(_call)
_linear_gelu_backward = Operator(
    "cupyops::linear_gelu_backward(Tensor grad_y, Tensor z, Tensor? x, Tensor? weight, str approximate, bool want_bias)"
    " -> (Tensor, Tensor, Tensor)",
    linear_gelu_backward_body,
    reference=_linear_gelu_backward_reference,
    repeats=True,
    sharding=_backward_sharding,
    flops=_backward_flops,
    compiled=_compiled_backward,
)
# grad_z and grad_bias of the backward in a compiled graph. One kernel computes both.
_gelu_bias_backward = Operator(
    "cupyops::gelu_bias_backward(Tensor grad_y, Tensor z, str approximate) -> (Tensor grad_z, Tensor grad_bias)",
    through_gelu,
    reference=_gelu_bias_backward_reference,
    inplace=through_gelu_in_place,
    repeats=True,
    sharding=_gelu_bias_backward_sharding,
)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "none") -> Tensor:
    """Returns gelu(x·Wᵀ + b). The backward takes one pass over memory fewer than :func:`.gelu.gelu` of
    :func:`.linear.linear`.

    PyTorch computes the product z = x·Wᵀ + b in most cases. A cupyops kernel computes z and applies GELU if x or weight
    has few rows (at most 16), and for large 16-bit products on sm_90. For some float32 products, PyTorch computes x·Wᵀ,
    and the GELU kernel adds the bias. z is saved for the backward. In the backward, one kernel computes grad_z and the
    gradient of the bias, which is summed in a fixed order. For small layers in 16 bits that record a gradient, PyTorch's
    own linear and gelu take less time and are recorded instead. Under autocast the operation runs in the lower-precision
    dtype.

    Args:
        x: (..., K), float16, bfloat16, float32 or float64, any strides.
        weight: (N, K), of x's dtype.
        bias: (N), of x's dtype, or None.
        approximate: ``"none"`` or ``"tanh"``, as for :func:`.gelu.gelu`.

    Returns:
        A new tensor (..., N) of x's dtype.

    Raises:
        RuntimeError: ``approximate`` is neither ``"none"`` nor ``"tanh"``, or :func:`.linear.linear` rejects the shapes
            or dtypes.
        TypeError, ValueError, MissingDependencyError: as for :func:`.linear.linear`.

    >>> linear_gelu(torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0, 1.0], [0.0, 0.0]]))
    tensor([[0.8413, 0.0000]])
    """
    y: Tensor = _call(x, weight, bias, approximate)[0]
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
    """Returns the gradients of :func:`linear_gelu`. The gradients are those of :func:`.linear.linear` for grad_z =
    grad_y·gelu'(z), and can themselves be differentiated.

    Args:
        grad_y: (..., N), gradient of the result.
        z: (..., N), x·Wᵀ + b.
        x, weight, want_bias: as for :func:`.linear.linear_backward`.
        approximate: the argument of :func:`linear_gelu`.

    Returns:
        (grad_x, grad_weight, grad_bias). A gradient that was not requested is an empty tensor.

    Raises:
        ValueError: a shape or a device does not match the other operands.
        TypeError: a dtype does not match the other operands.
        RuntimeError: ``approximate`` is neither ``"none"`` nor ``"tanh"``.
    """
    found: tuple[Tensor, Tensor, Tensor] = _linear_gelu_backward.call(grad_y, z, x, weight, approximate, want_bias)
    return found


class LinearGELU(nn.Linear):
    """A ``torch.nn.Linear`` followed by GELU, computed by :func:`linear_gelu`. The arguments are those of ``nn.Linear``
    and ``approximate``. The ``state_dict`` is that of ``nn.Linear``."""

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
        weight, bias = weight_and_bias(self)
        return linear_gelu(input, weight, bias, self.approximate)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, approximate={self.approximate!r}"
