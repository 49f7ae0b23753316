"""The face to PyTorch: the DLPack crossing, the operators, the modules, the public functions.

Each operator is declared as anybody's would be: a body and the backward's from :mod:`cupyops`, or a Function as PyTorch
documents it (``forward`` without ctx, ``setup_context``, ``backward``) where a gradient is more than a launch.
:class:`cupyops.torch.Operator` makes of it everything else: CPU tensors, ``torch.compile``, export, vmap, gradients of
gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops.compile import toolchain
from cupyops.ops.add2 import forward as add2_body
from cupyops.torch import Operator
from cupyops.torch.ops import onnx_translations, references
from cupyops.torch.ops.gelu import GELU, gelu, gelu_backward
from cupyops.torch.ops.layer_norm import AddLayerNorm, LayerNorm, add_layer_norm, layer_norm, layer_norm_backward
from cupyops.torch.ops.linear import Linear, LinearGELU, linear, linear_backward, linear_gelu, linear_gelu_backward
from cupyops.torch.ops.lltm import LLTM, LLTMCell, LLTMLayers, lltm, lltm_cell

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
