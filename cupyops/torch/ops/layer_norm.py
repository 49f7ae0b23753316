"""The PyTorch operator layer_norm: layer normalisation."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cupyops.errors import expected
from cupyops.launch.hooks import declare_later
from cupyops.ops.layer_norm.body import backward as layer_norm_backward_body
from cupyops.ops.layer_norm.body import declare_ahead
from cupyops.ops.layer_norm.body import forward as layer_norm_body
from cupyops.ops.layer_norm.body import inference as layer_norm_inference_body
from cupyops.ops.layer_norm.body import tangent as layer_norm_jvp_body
from cupyops.ops.layer_norm.checks import as_shape
from cupyops.ops.layer_norm.checks import check as check_layer_norm
from cupyops.ops.layer_norm.checks import check_backward as check_layer_norm_backward
from cupyops.torch.core.composite import node_of
from cupyops.torch.core.conditions import (
    dispatch_modes,
    forward_mode,
    grad_enabled,
    in_plain_backward,
    is_compiling,
    is_scripted,
    rows_of_traced,
    transforms_active,
)
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import DTYPE_NAMES, NoStorageError, symbolic_call, weight_and_bias, wide_dtype
from cupyops.torch.scale.sharding import Split

from .layer_norm_tangent import layer_norm_jvp_reference, layer_norm_jvp_sharding
from .native_layer_norm import native_layer_norm, recorded
from .onnx_values import DOUBLE, FLOATS, cast, in_float32

__all__ = ["LayerNorm", "layer_norm", "layer_norm_backward"]


def layer_norm_reference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: Sequence[int],
    eps: float,
    dtype: str | None = None,
    wide_stats: bool = True,
) -> tuple[Tensor, Tensor]:
    check_layer_norm(x, DTYPE_NAMES[x.dtype], weight, bias, normalized_shape, dtype)
    wide, result = wide_dtype(x.dtype), x.dtype if dtype is None else getattr(torch, dtype)
    if result != x.dtype:  # without this conversion, y would be rounded to x's dtype first
        x = x.to(wide)
        weight, bias = (None if t is None else t.to(wide) for t in (weight, bias))
    y, mean, rstd = native_layer_norm(x, weight, bias, normalized_shape, eps)
    if wide_stats and mean.dtype != wide and not recorded(x, weight, bias):
        # On a CPU, PyTorch rounds the statistics of 16-bit rows. A compiled graph may recompute y from them.
        row = list(range(x.dim() - len(normalized_shape), x.dim()))
        var, mean = torch.var_mean(x.to(wide), row, correction=0, keepdim=True)
        rstd = torch.rsqrt(var + eps)
    return y.to(result), torch.stack((mean.to(wide), rstd.to(wide))).detach()


def recomputed_layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, stats: Tensor, dtype: str | None
) -> Tensor:
    """Returns y from the statistics: (x - mean)·rstd·weight + bias."""
    y = (x.to(stats.dtype) - stats[0]) * stats[1]
    y = y if weight is None else y * weight.to(stats.dtype)
    y = y if bias is None else y + bias.to(stats.dtype)
    return y.to(x.dtype if dtype is None else getattr(torch, dtype))


def _layer_norm_inference_reference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: Sequence[int],
    eps: float,
    dtype: str | None = None,
) -> Tensor:
    return layer_norm_reference(x, weight, bias, normalized_shape, eps, dtype, wide_stats=False)[0]


def _layer_norm_backward_reference(
    grad_y: Tensor,
    x: Tensor,
    stats: Tensor,
    weight: Tensor | None,
    grad_sum: Tensor | None,
    normalized_shape: Sequence[int],
    eps: float,
    want_x: bool,
    want_weight: bool,
    want_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    check_layer_norm_backward(grad_y, x, stats, weight, grad_sum, normalized_shape)
    dtype, wide = x.dtype, stats.dtype
    weight_dtype = dtype if weight is None else weight.dtype
    row = list(range(x.dim() - len(normalized_shape), x.dim()))
    g, s = grad_y.to(wide), x.to(wide)
    if recorded(x):
        # The second derivative includes the derivatives of mean and rstd. Autograd records their computation here.
        centered = s - s.mean(row, keepdim=True)
        rstd = torch.rsqrt(centered.square().mean(row, keepdim=True) + eps)
    else:
        centered, rstd = s - stats[0], stats[1]
    normalized = centered * rstd
    rest = list(range(x.dim() - len(normalized_shape)))
    grad_weight, grad_bias = ((p.sum(rest) if rest else p.clone()) for p in (g * normalized, g))
    w = g if weight is None else g * weight.to(wide)
    grad_x = rstd * (w - w.mean(row, keepdim=True) - normalized * (w * normalized).mean(row, keepdim=True))
    grad_x = grad_x if grad_sum is None else grad_x + grad_sum
    return (
        grad_x.to(dtype) if want_x else x.new_empty(0),
        grad_weight.to(weight_dtype) if want_weight else x.new_empty(0, dtype=weight_dtype),
        grad_bias.to(weight_dtype) if want_bias else x.new_empty(0, dtype=weight_dtype),
    )


def layer_norm_onnx(
    op: Any, x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float, dtype: str | None = None
) -> tuple[Any, Any]:
    """Returns the ONNX form of (x - mean)/√(var + eps)·weight + bias by rows, and of the statistics."""
    axis, result = -len(normalized_shape), x.dtype if dtype is None else FLOATS[dtype]
    if x.dtype == DOUBLE:
        y, mean, rstd = _layer_norm_float64(op, x, weight, bias, axis, eps)
    else:
        x, weight, bias = in_float32(op, x, weight, bias)
        if weight is None:
            weight = op.Expand(op.CastLike(1.0, x), op.Shape(x, start=axis))
        operands = (x, weight) if bias is None else (x, weight, bias)
        y, mean, rstd = op.LayerNormalization(*operands, axis=axis, epsilon=eps, _outputs=3)
    return cast(op, y, result), op.Concat(op.Unsqueeze(mean, [0]), op.Unsqueeze(rstd, [0]), axis=0)


def _layer_norm_float64(op: Any, x: Any, weight: Any, bias: Any, axis: int, eps: float) -> tuple[Any, Any, Any]:
    axes = list(range(axis, 0))
    mean = op.ReduceMean(x, axes, keepdims=1)
    centered = op.Sub(x, mean)
    variance = op.ReduceMean(op.Mul(centered, centered), axes, keepdims=1)
    rstd = op.Reciprocal(op.Sqrt(op.Add(variance, eps)))
    y = op.Mul(centered, rstd)
    y = y if weight is None else op.Mul(y, weight)
    return y if bias is None else op.Add(y, bias), mean, rstd


def _layer_norm_inference_onnx(
    op: Any, x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float, dtype: str | None = None
) -> Any:
    """Returns the ONNX form of (x - mean)/√(var + eps)·weight + bias by rows."""
    return layer_norm_onnx(op, x, weight, bias, normalized_shape, eps, dtype)[0]


class LayerNormFunction(torch.autograd.Function):
    """y = x̂·weight + bias with x̂ = (x - mean)/√(var + eps). :mod:`cupyops.ops.layer_norm.programs` states the
    formulas of the gradients. The second result holds the statistics, and is not differentiable."""

    forward = staticmethod(layer_norm_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, bias, normalized_shape, eps, _ = inputs
        _, stats = output
        ctx.mark_non_differentiable(stats)
        ctx.save_for_backward(x, weight, stats)
        ctx.kept = False, normalized_shape, eps, None if bias is None else bias.dtype

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        return *LayerNormFunction.backward_of_y(ctx, grad_y), None, None

    @staticmethod
    def forward_of_y(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, others: tuple[Sequence[int], float, str | None]
    ) -> Tensor:
        """Returns y of plain tensors, and saves the statistics without returning them."""
        normalized_shape, eps, dtype = others
        y: Tensor
        y, stats = _layer_norm.eager(x, weight, bias, normalized_shape, eps, dtype)
        ctx.materialize_grads = False
        ctx.to_save = x, weight, stats
        ctx.kept = True, normalized_shape, eps, None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward_of_y(ctx: Any, grad_y: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_y is None:
            return None, None, None, None
        x, weight, stats = ctx.saved_tensors
        want_x, want_weight, want_bias, *_ = ctx.needs_input_grad
        found = layer_norm_gradients(ctx.kept, want_x, want_weight, want_bias, grad_y, x, stats, weight, None)
        return *found, None


# The arguments of the backward of layer normalisation that are not tensors: whether the Function ran on plain tensors,
# normalized_shape, eps, and the dtype of the bias.
Kept = tuple[bool, Sequence[int], float, torch.dtype | None]


def layer_norm_gradients(
    kept: Kept,
    want_s: bool,
    want_weight: bool,
    want_bias: bool,
    grad_y: Tensor,
    s: Tensor,
    stats: Tensor,
    weight: Tensor | None,
    grad_sum: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    plain, normalized_shape, eps, bias_dtype = kept
    args = grad_y, s, stats, weight, grad_sum, normalized_shape, eps, want_s, want_weight, want_bias
    found = None
    if plain and in_plain_backward(grad_y) and (grad_sum is None or in_plain_backward(grad_sum)):
        try:
            found = _layer_norm_backward.eager(*args)
        except NoStorageError:
            found = None
    grad_s, grad_weight, grad_bias = _layer_norm_backward.call(*args) if found is None else found
    return (
        grad_s if want_s else None,
        grad_weight if want_weight else None,
        as_dtype(grad_bias, bias_dtype) if want_bias else None,
    )


def as_dtype(grad: Tensor | None, dtype: torch.dtype | None) -> Tensor | None:
    return grad if grad is None or grad.dtype == dtype else grad.to(dtype)


def outer_dims(x: Any, normalized_shape: Sequence[int]) -> range:
    """Returns the dimensions of x along which layer normalisation can be split: those that are not normalised."""
    return range(x.ndim - len(normalized_shape))


def _sharding(x: Any, weight: Any, bias: Any, normalized_shape: Sequence[int], *_: Any) -> Iterable[Split]:
    # The statistics have mean and 1/√(var + eps) before the dimensions of x.
    return [((dim, dim + 1), (dim, None, None)) for dim in outer_dims(x, normalized_shape)]


def _inference_sharding(x: Any, weight: Any, bias: Any, normalized_shape: Sequence[int], *_: Any) -> Iterable[Split]:
    return [((dim,), (dim, None, None)) for dim in outer_dims(x, normalized_shape)]


def _backward_sharding(
    grad_y: Any, x: Any, stats: Any, weight: Any, grad_sum: Any, normalized_shape: Sequence[int], *_: Any
) -> Iterable[Split]:
    dims = outer_dims(x, normalized_shape)
    return [((dim, "sum", "sum"), (dim, dim, dim + 1, None, dim)) for dim in dims]


_layer_norm_jvp = Operator(
    "cupyops::layer_norm_jvp(Tensor tangent_x, Tensor x, Tensor stats, Tensor? weight, Tensor? tangent_weight,"
    " Tensor? tangent_bias, SymInt[] normalized_shape, float eps, str? dtype=None) -> Tensor",
    layer_norm_jvp_body,
    reference=layer_norm_jvp_reference,
    repeats=True,
    sharding=layer_norm_jvp_sharding,
)
_layer_norm = Operator(
    "cupyops::layer_norm(Tensor x, Tensor? weight, Tensor? bias, SymInt[] normalized_shape, float eps, str? dtype=None)"
    " -> (Tensor y, Tensor stats)",
    LayerNormFunction,
    jvp=_layer_norm_jvp,
    reference=layer_norm_reference,
    autocast={"cuda": "float32"},  # autocast on a CPU does not convert PyTorch's layer_norm
    onnx=layer_norm_onnx,
    repeats=True,
    compiled="auto",
    recompute=recomputed_layer_norm,
    common={"stats": ("layer_norm", "x", "normalized_shape", "eps")},
    sharding=_sharding,
)
# The operator for calls that record no gradient. Its kernel does not write the statistics to memory.
_layer_norm_inference = Operator(
    "cupyops::layer_norm_inference(Tensor x, Tensor? weight, Tensor? bias, SymInt[] normalized_shape, float eps,"
    " str? dtype=None) -> Tensor",
    layer_norm_inference_body,
    reference=_layer_norm_inference_reference,
    autocast={"cuda": "float32"},
    onnx=_layer_norm_inference_onnx,
    repeats=True,
    compiled="auto",
    sharding=_inference_sharding,
)
_layer_norm_backward = Operator(
    "cupyops::layer_norm_backward(Tensor grad_y, Tensor x, Tensor stats, Tensor? weight, Tensor? grad_sum,"
    " SymInt[] normalized_shape, float eps, bool want_x, bool want_weight, bool want_bias) -> (Tensor, Tensor, Tensor)",
    layer_norm_backward_body,
    reference=_layer_norm_backward_reference,
    repeats=True,
    compiled="auto",
    sharding=_backward_sharding,
)


declare_later(_layer_norm, declare_ahead)


def _y_in_general(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    x, weight, bias, shape, *_ = args
    rows = rows_of_traced(x)
    if rows is not None and len(shape) == 1 and x.is_contiguous():
        args = (rows, *args[1:])
    else:
        rows = None
    y = call(args) if _records(x, weight, bias) else _layer_norm_inference.call(*args)
    return y if rows is None else y.unflatten(0, x.shape[:-1])


_y = _layer_norm.shown(
    *(1, LayerNormFunction.forward_of_y, LayerNormFunction.backward_of_y),
    *(_layer_norm_inference.eager, _y_in_general),
)
layer_norm_node = node_of(_y)


def _records(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Returns whether the gradient of a call may be needed. A traced or transformed call may be differentiated
    later."""
    try:
        wanted = (
            x.requires_grad
            or (weight is not None and weight.requires_grad)
            or (bias is not None and bias.requires_grad)
        )
    except (AttributeError, torch.fx.proxy.TraceError):
        # An argument is not a tensor: the operator layer_norm raises TypeError, or records the call of a symbolic trace.
        return True
    if wanted and grad_enabled():
        return True
    # The tangent, too, is computed from the statistics.
    return bool(is_compiling() or is_scripted() or transforms_active() or dispatch_modes() or forward_mode())


def name_of(where: str, dtype: torch.dtype | None) -> str | None:
    """Returns the name of a dtype, such as ``"float32"``; None for None. Operators take names, since bodies do not
    import torch.

    Raises:
        TypeError: ``dtype`` is neither a ``torch.dtype`` nor None.
    """
    if dtype is None:
        return None
    if not isinstance(dtype, torch.dtype):
        raise TypeError(expected(where, "dtype", "be a torch.dtype or None", type(dtype).__name__))
    return DTYPE_NAMES[dtype]


def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    return_stats: bool = False,
    dtype: torch.dtype | None = None,
) -> Any:
    """Applies layer normalisation; a drop-in for ``torch.nn.functional.layer_norm``.

    y = (x - mean)/√(var + eps)·weight + bias, with mean and (biased) variance over the last dimensions of x.

    On a GPU, float32 and float64 results stay accurate if the mean is much larger than the standard deviation. The
    gradients of weight and bias are summed in a fixed order. The bits of a row do not depend on the other rows. Under
    autocast on a GPU the operation runs in float32, as in PyTorch.

    Args:
        x: float16, bfloat16, float32 or float64, any strides.
        normalized_shape: the last dimensions of x.
        weight, bias: of shape ``normalized_shape``, or None. Their dtype is x's, or float32 if x is 16-bit.
        eps: the number added to the variance.
        return_stats: whether to return mean and 1/√(var + eps) as well; they are not differentiable.
        dtype: the dtype of y, to which y is rounded once; by default x's. With ``dtype=torch.bfloat16``, a matrix
            product under autocast needs no conversion of y. This saves one pass over memory in the forward and one in
            the backward. The product reads the same bits.

    Returns:
        A new tensor y of x's shape; with ``return_stats``, (y, mean, rstd). mean and rstd = 1/√(var + eps) are float32
        (float64 for float64), with size 1 in each dimension of ``normalized_shape``.

    Raises:
        TypeError: x is not a tensor, or the dtype of x or y is not floating.
        RuntimeError: the shapes or dtypes do not match. The message is PyTorch's.
        ValueError: the tensors are on different devices.
        MissingDependencyError: the tensors are on a GPU, and CuPy or a library that CuPy needs is missing. The message
            ends with the command that installs it.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.

    >>> layer_norm(torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]]), 3)
    tensor([[-1.2247,  0.0000,  1.2247],
            [ 0.0000,  0.0000,  0.0000]])
    """
    shape = normalized_shape
    if type(shape) is not tuple or len(shape) != 1 or type(shape[0]) is not int:
        shape = as_shape(shape)
    if dtype is not None:
        arguments = x, normalized_shape, weight, bias, eps
        if (proxy := symbolic_call(layer_norm, arguments, return_stats=return_stats, dtype=dtype)) is not None:
            return proxy
    name = None if dtype is None else name_of("layer_norm", dtype)
    if not return_stats:
        return _y(x, weight, bias, shape, eps, name)
    y, stats = _layer_norm.call(x, weight, bias, shape, eps, name)
    return y, stats[0], stats[1]


def layer_norm_backward(
    grad_y: Tensor,
    x: Tensor,
    stats: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float = 1e-5,
    *,
    grad_sum: Tensor | None = None,
    wants: Sequence[bool] = (True, True, True),
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of :func:`layer_norm`. The gradients can themselves be differentiated.

    Args:
        grad_y: gradient of the result, of x's shape and the result's dtype.
        x, normalized_shape, weight, eps: the arguments of :func:`layer_norm`.
        stats: mean and rstd, stacked: (2, ...).
        grad_sum: a tensor of x's shape that is added to the gradient of x, or None.
        wants: whether to compute the gradients of x, weight and bias.

    Returns:
        (grad_x, grad_weight, grad_bias). A gradient that was not requested is an empty tensor.

    Raises:
        ValueError: a shape or a device does not match the other operands.
        TypeError: a dtype does not match the other operands.
        RuntimeError, MissingDependencyError: as for :func:`layer_norm`.
    """
    found: tuple[Tensor, Tensor, Tensor] = _layer_norm_backward.call(
        grad_y, x, stats, weight, grad_sum, as_shape(normalized_shape), eps, *wants
    )
    return found


class LayerNorm(nn.LayerNorm):
    """A ``torch.nn.LayerNorm`` that calls :func:`layer_norm`, with the same arguments and ``state_dict``. ``forward(x,
    dtype=...)`` returns a result of that dtype."""

    def forward(self, input: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        weight, bias = weight_and_bias(self)
        y: Tensor
        if dtype is None:
            y = _y(input, weight, bias, self.normalized_shape, self.eps, None)
        else:
            y = layer_norm(input, self.normalized_shape, weight, bias, self.eps, dtype=dtype)
        return y
