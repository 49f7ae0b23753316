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
from cupyops.gelu import backward as gelu_backward_body
from cupyops.gelu import forward as gelu_body
from cupyops.linear import backward as linear_backward_body
from cupyops.linear import by_library as linear_by_library
from cupyops.linear import forward as linear_body
from cupyops.linear_gelu import backward as linear_gelu_backward_body
from cupyops.linear_gelu import forward as linear_gelu_body
from cupyops.linear_plan import bias_gradient_pays
from cupyops.torch import Operator, onnx_translations, references
from cupyops.torch.layer_norm import AddLayerNorm, LayerNorm, add_layer_norm, layer_norm, layer_norm_backward
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


# GELU


# y = x·Φ(x), so grad_x = grad_y·(Φ(x) + x·φ(x)); the tanh form likewise. The derivation stands in kernels_cu/gelu.cu.
_gelu_backward = Operator(
    "cupyops::gelu_backward(Tensor grad_y, Tensor x, str approximate) -> Tensor",
    gelu_backward_body,
    reference=references.gelu_backward,
    elementwise=True,
)
_gelu = Operator(
    "cupyops::gelu(Tensor x, str approximate) -> Tensor y",
    gelu_body,
    backward=_gelu_backward,
    reference=references.gelu,
    elementwise=True,
    onnx=onnx_translations.gelu,
)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit, a drop-in for ``torch.nn.functional.gelu``.

    y = x·Φ(x) = ½·x·(1 + erf(x/√2)), or with ``approximate="tanh"`` y = ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).

    On a GPU, float32 and float64 keep their relative accuracy in the negative tail, where ½·(1 + erf) cancels to 0 (x <
    -5.5 in float32). float16 and bfloat16 are computed in float32 by a polynomial that is exact to their rounding.

    Args:
        x: float16, bfloat16, float32 or float64, any shape and layout.
        approximate: ``"none"`` or ``"tanh"``.

    Returns:
        A new tensor of x's shape and dtype.

    Raises:
        TypeError: x is no tensor, or not floating.
        RuntimeError: another word for ``approximate``.
        MissingDependencyError: on CUDA tensors, if CuPy or what it needs is missing; the message says what installs it.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

    >>> gelu(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """
    y: Tensor = _gelu.call(x, approximate)
    return y


def gelu_backward(grad_y: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    """grad_y·(Φ(x) + x·φ(x)), or grad_y times the derivative of the tanh form: the gradient of :func:`gelu`, itself
    differentiable.

    Args:
        grad_y: gradient of the result, of x's shape and dtype.
        x, approximate: what :func:`gelu` was given.

    Raises:
        ValueError: grad_y is not of x's shape; else as :func:`gelu`.
    """
    grad_x: Tensor = _gelu_backward(grad_y, x, approximate)
    return grad_x


class GELU(nn.GELU):
    """``torch.nn.GELU`` with :func:`gelu` as its forward: same arguments, same (empty) ``state_dict``."""

    def forward(self, input: Tensor) -> Tensor:
        return gelu(input, self.approximate)


# Linear


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
                grad_z = grad_z + _gelu_backward.call(grad_y, z, ctx.approximate)
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
    if bias is not None and bias.requires_grad and bias_gradient_pays(x.shape[:-1].numel(), bias.numel()):
        return apply(x, weight, bias)
    return linear_by_library(x, weight, bias)


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
    if getattr(weight, "ndim", 2) == 1 and bias is None:
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
    """gelu(x·Wᵀ + b): :func:`gelu` of :func:`linear`, with one pass less in the backward.

    The product is PyTorch's, with the bias in its epilogue; what it gives is kept for the backward, where one kernel makes
    of it the gradient of the product and the gradient of the bias, its sums in a fixed order. Under autocast the
    operation is in the lower type.

    Args:
        x: (..., K), float16, bfloat16, float32 or float64, any layout.
        weight: (N, K), of x's dtype.
        bias: (N), of x's dtype, or None.
        approximate: ``"none"`` or ``"tanh"``, as for :func:`gelu`.

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
