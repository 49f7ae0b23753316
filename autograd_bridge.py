"""The face to PyTorch: the DLPack crossing, the operators, the modules, the public functions.

Each operator is declared as anybody's would be: a body and the backward's from :mod:`cupyops`, or a Function as PyTorch
documents it (``forward`` without ctx, ``setup_context``, ``backward``) where a gradient is more than a launch.
:class:`cupyops.torch.Operator` makes of it everything else: CPU tensors, ``torch.compile``, export, vmap, gradients of
gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cupyops import toolchain
from cupyops.add2 import forward as add2_body
from cupyops.layer_norm import add_forward as add_layer_norm_body
from cupyops.layer_norm import backward as layer_norm_backward_body
from cupyops.layer_norm import forward as layer_norm_body
from cupyops.torch import Operator, onnx_translations, references
from cupyops.torch.gelu import GELU, gelu, gelu_backward
from cupyops.torch.linear import Linear, LinearGELU, linear, linear_backward, linear_gelu, linear_gelu_backward
from cupyops.torch.lltm import LLTM, LLTMCell, LLTMLayers, lltm, lltm_cell

__all__ = [
    "GELU",
    "LLTM",
    "AddLayerNorm",
    "LLTMCell",
    "LLTMLayers",
    "LayerNorm",
    "Linear",
    "LinearGELU",
    "add2",
    "add_layer_norm",
    "gelu",
    "gelu_backward",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_backward",
    "linear_gelu",
    "linear_gelu_backward",
    "lltm",
    "lltm_cell",
    "to_cupy",
    "to_torch",
]


# The crossing


def to_cupy(tensor: Tensor) -> Any:
    """The tensor's memory as a CuPy array, through DLPack, without a copy.

    The array keeps the memory alive. Work on it belongs on CuPy's current stream, which is made to wait for what
    PyTorch's current stream has been given so far; to work on PyTorch's own stream, enter it first:
    ``with cupy.cuda.Stream.from_external(torch.cuda.current_stream()): ...``. Gradients do not pass: the array is of
    the detached values.

    Args:
        tensor: on a GPU, of any dtype that CuPy has (bfloat16 by the package ml_dtypes), any layout.

    Returns:
        A ``cupy.ndarray`` of the same shape, strides, dtype, device and address.

    Raises:
        TypeError: not a tensor.
        ValueError: not on a CUDA device.
        MissingDependencyError: CuPy is missing.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"to_cupy: `tensor` must be a Tensor, got {type(tensor).__name__}")
    if not tensor.is_cuda:
        raise ValueError(f"to_cupy: `tensor` must be on a CUDA device, got {tensor.device}")
    cupy = toolchain.cupy()
    detached = tensor.detach()
    with cupy.cuda.Device(tensor.get_device()):
        stream = cupy.cuda.get_current_stream().ptr
        if stream == torch.cuda.current_stream(tensor.device).cuda_stream:
            # One stream: nothing to wait for, and the bare capsule costs a fraction of the negotiated exchange.
            return cupy.from_dlpack(torch.utils.dlpack.to_dlpack(detached))
        # The allocator must not give this memory to PyTorch's stream again before CuPy's is done with it.
        detached.record_stream(torch.cuda.ExternalStream(stream, device=tensor.device))
        return cupy.from_dlpack(detached)


def to_torch(array: Any) -> Tensor:
    """A CuPy array's memory (or that of any array that exports DLPack) as a tensor, without a copy.

    The tensor keeps the memory alive. PyTorch's current stream is made to wait for what CuPy's current stream has been
    given so far.

    Args:
        array: exports DLPack, on a GPU or in host memory.

    Returns:
        A tensor of the same shape, strides, dtype, device and address, that requires no gradient.

    Raises:
        TypeError: it does not export DLPack.
    """
    if not hasattr(array, "__dlpack__"):
        raise TypeError(f"to_torch: `array` must export DLPack, got {type(array).__name__}")
    return torch.from_dlpack(array)


# add2


class Add2(torch.autograd.Function):
    """out = a + alpha·b, so grad_a = grad_out and grad_b = alpha·grad_out, each summed over the dimensions its operand
    was broadcast along."""

    forward = staticmethod(add2_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, ctx.alpha = inputs
        # A gradient needs neither operand's values, only what it has to fit.
        ctx.a, ctx.b = (a.shape, a.dtype, a.device), (b.shape, b.dtype, b.device)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        if grad_out is None:
            return None, None, None
        grad_a = _fit(grad_out, *ctx.a) if ctx.needs_input_grad[0] else None
        # One tensor may serve both: autograd copies it before it becomes a leaf's own, as with PyTorch's add.
        grad_b = None
        if ctx.needs_input_grad[1]:
            grad_b = _fit(grad_out if ctx.alpha == 1 else grad_out * ctx.alpha, *ctx.b)
        return grad_a, grad_b, None


def _fit(grad: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The gradient of a tensor of this shape that was broadcast and promoted."""
    if grad.shape != shape:
        grad = grad.sum_to_size(shape)
    if grad.dtype != dtype or grad.device != device:
        grad = grad.to(device=device, dtype=dtype)
    return grad


_add2 = Operator(
    "cupyops::add2(Tensor a, Tensor b, Scalar alpha) -> Tensor",
    Add2,
    reference=references.add2,
    elementwise=True,
    onnx=onnx_translations.add2,
)


def add2(a: Tensor, b: Tensor | complex, *, alpha: complex = 1) -> Tensor:
    """a + alpha·b, with the broadcasting and type promotion of ``torch.add`` and the same bits.

    Args:
        a: floating or integer, any shape and layout.
        b: a tensor whose shape broadcasts with a's, or a number.
        alpha: a number; an integer where the result is of integers.

    Returns:
        A new tensor of the broadcast shape and promoted dtype. Floating results are one fused multiply-add in float32
        (float64 for float64), rounded once; integer results wrap.

    Raises:
        TypeError: an operand is no tensor or number, or bool or complex.
        RuntimeError: shapes that do not broadcast; a floating alpha for integers.
        ValueError: tensors on different devices (a 0-d tensor on the CPU goes with any).
        MissingDependencyError: on CUDA tensors, if CuPy or what it needs is missing; the message says what installs it.

    Source: ``torch.add``.

    >>> add2(torch.tensor([1.0, 2.0]), torch.tensor([[10.0], [20.0]]), alpha=0.5)
    tensor([[ 6.,  7.],
            [11., 12.]])
    """
    if isinstance(b, Tensor):
        out: Tensor = _add2.call(a, b, alpha)
        return out
    return _add2_number(a, b, alpha)


def _add2_number(a: Tensor, b: Any, alpha: complex) -> Tensor:
    """A number takes no part in promotion within its kind, as a 0-d tensor on the CPU takes none beside a tensor with
    dimensions."""
    if not isinstance(b, (int, float, complex)):
        raise TypeError(f"add2: `b` must be a Tensor or a number, got {type(b).__name__}")
    if not isinstance(a, Tensor):
        raise TypeError(f"add2: `a` must be a Tensor, got {type(a).__name__}")
    if a.dim() == 0:
        return _add2_number(a.reshape(1), b, alpha).reshape(())
    wide = torch.bool if isinstance(b, bool) else torch.int64 if isinstance(b, int) else torch.float64
    if isinstance(b, complex):
        wide = torch.complex128
    elif wide == torch.float64 and not a.is_floating_point():
        wide = torch.get_default_dtype()
    out: Tensor = _add2(a, torch.scalar_tensor(b, dtype=wide, device="cpu"), alpha)
    return out


# Layer normalisation


class LayerNormFunction(torch.autograd.Function):
    """y = x̂·weight + bias; the gradients stand in ``kernels_cu/layer_norm_backward.cu``. The statistics are results, too,
    that take no gradient."""

    forward = staticmethod(layer_norm_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, bias, ctx.normalized_shape, ctx.eps = inputs
        _, stats = output
        ctx.mark_non_differentiable(stats)
        ctx.save_for_backward(x, weight, stats)
        ctx.bias_dtype = None if bias is None else bias.dtype

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_y is None:
            return None, None, None, None, None
        x, weight, stats = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        return (*_layer_norm_gradients(ctx, needs, grad_y, x, stats, weight, None), None, None)


class AddLayerNormFunction(torch.autograd.Function):
    """(layer_norm(s), s) of s = x + residual: as :class:`LayerNormFunction`, and both summands get the gradient of s."""

    forward = staticmethod(add_layer_norm_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, residual, weight, bias, ctx.normalized_shape, ctx.eps = inputs
        _, s, stats = output
        ctx.mark_non_differentiable(stats)
        ctx.save_for_backward(s, weight, stats)
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.x, ctx.residual = ((t.shape, t.dtype, t.device) for t in (x, residual))

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_s: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        x, residual, *affine = ctx.needs_input_grad[:4]
        grads: tuple[Tensor | None, ...] = (grad_s, None, None)
        if grad_y is not None:
            s, weight, stats = ctx.saved_tensors
            grads = _layer_norm_gradients(ctx, (x or residual, *affine), grad_y, s, stats, weight, grad_s)
        grad, grad_weight, grad_bias = grads
        grad_x = _fit(grad, *ctx.x) if x and grad is not None else None
        grad_residual = _fit(grad, *ctx.residual) if residual and grad is not None else None
        return grad_x, grad_residual, grad_weight, grad_bias, None, None


def _layer_norm_gradients(
    ctx: Any,
    needs: Sequence[bool],
    grad_y: Tensor,
    s: Tensor,
    stats: Tensor,
    weight: Tensor | None,
    grad_sum: Tensor | None,
) -> tuple[Tensor | None, ...]:
    found = _layer_norm_backward.call(
        grad_y, s, stats, weight, grad_sum, ctx.normalized_shape, ctx.eps, *(bool(n) for n in needs)
    )
    grad_s, grad_weight, grad_bias = (g if needed else None for g, needed in zip(found, needs, strict=True))
    if grad_bias is not None and grad_bias.dtype != ctx.bias_dtype:
        grad_bias = grad_bias.to(ctx.bias_dtype)
    return grad_s, grad_weight, grad_bias


_layer_norm = Operator(
    "cupyops::layer_norm(Tensor x, Tensor? weight, Tensor? bias, SymInt[] normalized_shape, float eps)"
    " -> (Tensor, Tensor)",
    LayerNormFunction,
    reference=references.layer_norm,
    autocast={"cuda": "float32"},  # on a CPU, PyTorch's takes the tensors as they come
    onnx=onnx_translations.layer_norm,
)
_add_layer_norm = Operator(
    "cupyops::add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, SymInt[] normalized_shape,"
    " float eps) -> (Tensor, Tensor, Tensor)",
    AddLayerNormFunction,
    reference=references.add_layer_norm,
    onnx=onnx_translations.add_layer_norm,
)
_layer_norm_backward = Operator(
    "cupyops::layer_norm_backward(Tensor grad_y, Tensor x, Tensor stats, Tensor? weight, Tensor? grad_sum,"
    " SymInt[] normalized_shape, float eps, bool want_x, bool want_weight, bool want_bias) -> (Tensor, Tensor, Tensor)",
    layer_norm_backward_body,
    reference=references.layer_norm_backward,
)


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    return_stats: bool = False,
) -> Any:
    """Layer normalisation, a drop-in for ``torch.nn.functional.layer_norm``.

    y = (x - mean)/√(var + eps)·weight + bias, with mean and (biased) variance over the last dimensions of x.

    On a GPU, float32 and float64 keep the rows' accuracy where the mean is large beside the deviation; the gradients of
    weight and bias are sums in a fixed order; a row's result does not depend on the other rows. Under autocast on a
    GPU the operation is in float32, as PyTorch's.

    Args:
        x: float16, bfloat16, float32 or float64, any layout.
        normalized_shape: the last dimensions of x.
        weight, bias: of that shape, and of x's dtype or float32 beside x of 16 bits; each may be absent.
        eps: what is added to the variance.
        return_stats: also give mean and 1/√(var + eps), which take no gradient.

    Returns:
        A new tensor of x's shape and dtype, or (y, mean, rstd) with the statistics in float32 (float64 for float64) and 1
        in place of each dimension of ``normalized_shape``.

    Raises:
        TypeError: x is no tensor, or not floating.
        RuntimeError: shapes or dtypes that do not belong together, in PyTorch's words.
        ValueError: tensors on different devices.
        MissingDependencyError: on CUDA tensors, if CuPy or what it needs is missing; the message says what installs it.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.

    >>> layer_norm(torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]]), 3)
    tensor([[-1.2247,  0.0000,  1.2247],
            [ 0.0000,  0.0000,  0.0000]])
    """
    y, stats = _layer_norm.call(x, weight, bias, _shape(normalized_shape), eps)
    return (y, stats[0], stats[1]) if return_stats else y


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """s = x + residual and layer_norm(s) in one pass: what a transformer does before each of its branches.

    s is rounded to its dtype before it is normalised, so the result is that of the two operations one after the other.
    Under autocast the dtypes are as they come.

    Args:
        x, residual: of one shape; s has their promoted dtype.
        normalized_shape, weight, bias, eps: as for :func:`layer_norm` of s.

    Returns:
        New tensors (layer_norm(s), s).

    Raises:
        ValueError: residual has not x's shape; else as :func:`layer_norm`.

    >>> y, s = add_layer_norm(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, -1.0]), 3)
    >>> s
    tensor([2., 2., 2.])
    """
    y, s, _ = _add_layer_norm.call(x, residual, weight, bias, _shape(normalized_shape), eps)
    return y, s


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
    """The gradient of :func:`layer_norm`, itself differentiable.

    Args:
        grad_y: gradient of the result, of x's shape and dtype.
        x, normalized_shape, weight, eps: what :func:`layer_norm` was given.
        stats: mean and rstd, stacked: (2, ...).
        grad_sum: added to the gradient of x.
        wants: whether the gradients of x, weight and bias are wanted.

    Returns:
        (grad_x, grad_weight, grad_bias); those that are not wanted have no elements.

    Raises:
        ValueError, TypeError: operands that do not belong together; else as :func:`layer_norm`.
    """
    found: tuple[Tensor, Tensor, Tensor] = _layer_norm_backward.call(
        grad_y, x, stats, weight, grad_sum, _shape(normalized_shape), eps, *wants
    )
    return found


class LayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm`` with :func:`layer_norm` as its forward: same arguments, same ``state_dict``."""

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        return y


class AddLayerNorm(nn.LayerNorm):
    """:class:`LayerNorm` of a sum: ``forward(x, residual)`` gives (layer_norm(x + residual), x + residual)."""

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return add_layer_norm(input, residual, self.normalized_shape, self.weight, self.bias, self.eps)
