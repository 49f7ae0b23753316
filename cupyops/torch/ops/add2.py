"""The PyTorch operator add2: a + alpha·b."""

from collections.abc import Iterable, Sequence
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from cupyops.ops.add2 import check_alpha
from cupyops.ops.add2 import forward as add2_body
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import DTYPE_NAMES, symbolic_call
from cupyops.torch.scale.sharding import Split, elementwise

from .onnx_values import BFLOAT16, FLOAT, FLOAT16, cast

__all__ = ["add2"]


def _add2_reference(a: Tensor, b: Tensor, alpha: complex) -> Tensor:
    check_alpha(alpha, DTYPE_NAMES[a.dtype if a.dtype is b.dtype else torch.result_type(a, b)])
    return torch.add(a, b, alpha=alpha)


def add2_onnx(op: Any, a: Any, b: Any, alpha: float) -> Any:
    """Returns the ONNX form of a + alpha·b in the promoted dtype. Integers wrap around."""
    from onnx_ir.tensor_adapters import from_torch_dtype

    dtype = from_torch_dtype(_promoted(a, b))
    # A 0-d tensor next to a tensor with dimensions is a number. PyTorch does not round it to the result's dtype.
    ranks = len(a.shape), len(b.shape)
    a, b = (x if rank == 0 and max(ranks) else cast(op, x, dtype) for x, rank in zip((a, b), ranks, strict=True))
    arithmetic = FLOAT if dtype in (FLOAT16, BFLOAT16) else dtype
    a, b = cast(op, a, arithmetic), cast(op, b, arithmetic)
    if alpha != 1:
        integer = not dtype.is_floating_point()
        b = op.Mul(b, op.Cast(op.Constant(value_int=alpha), to=dtype) if integer else float(alpha))
    return cast(op, op.Add(a, b), dtype)


def _promoted(*values: Any) -> torch.dtype:
    """Returns the dtype that PyTorch promotes the ONNX values to. A 0-d value has lower priority, as in PyTorch."""
    from onnx_ir.tensor_adapters import to_torch_dtype

    a, b = (torch.empty((1,) * len(x.shape), dtype=to_torch_dtype(x.dtype), device="meta") for x in values)
    return torch.result_type(a, b)


class Add2Function(torch.autograd.Function):
    """out = a + alpha·b. The gradients are grad_a = grad_out and grad_b = alpha·grad_out, each summed over the
    dimensions along which its operand was broadcast."""

    forward = staticmethod(add2_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, ctx.alpha = inputs
        # The gradients do not depend on the values of a and b, only on shapes, dtypes and devices.
        ctx.a, ctx.b = (a.shape, a.dtype, a.device), (b.shape, b.dtype, b.device)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        if grad_out is None:
            return None, None, None
        grad_a = _fit(grad_out, *ctx.a) if ctx.needs_input_grad[0] else None
        # grad_a and grad_b may be the same tensor: autograd copies a gradient before it accumulates into a leaf's
        # ``grad``. PyTorch's own add returns one tensor for both, too.
        grad_b = None
        if ctx.needs_input_grad[1]:
            grad_b = _fit(grad_out if ctx.alpha == 1 else grad_out * ctx.alpha, *ctx.b)
        return grad_a, grad_b, None


def _fit(grad: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns ``grad`` summed to the shape of an operand, and converted to the operand's dtype and device."""
    if grad.shape != shape:
        grad = grad.sum_to_size(shape)
    if grad.dtype != dtype or grad.device != device:
        grad = grad.to(device=device, dtype=dtype)
    return grad


def _add2_sharding(a: Any, b: Any, alpha: complex) -> Iterable[Split]:
    """Splits along every dimension. a + alpha·b is also linear: sums of a and of b give sums of the result."""
    return [*elementwise(2, 1)(a, b), (("sum",), ("sum", "sum"))]


_add2 = Operator(
    "cupyops::add2(Tensor a, Tensor b, Scalar alpha) -> Tensor",
    Add2Function,
    reference=_add2_reference,
    elementwise=True,
    sharding=_add2_sharding,
    onnx=add2_onnx,
    compiled="auto",
    repeats=True,
)


def add2(a: Tensor, b: Tensor | complex, *, alpha: complex = 1) -> Tensor:
    """Returns a + alpha·b, with the bits, the broadcasting and the type promotion of ``torch.add``.

    Args:
        a: floating or integer, or bool beside numbers; any shape and strides.
        b: a tensor whose shape broadcasts with a's, or a number.
        alpha: a number; must be an integer if the result's dtype is an integer.

    Returns:
        A new tensor of the broadcast shape and promoted dtype. A floating element is one fused multiply-add in float32
        (float64 for float64), rounded once. Integer elements wrap around.

    Raises:
        TypeError: ``a`` is not a tensor, ``b`` is neither a tensor nor a number, or the result is bool or complex.
        RuntimeError: the shapes do not broadcast, or alpha is floating and the result is an integer.
        ValueError: the tensors are on different devices. A 0-d tensor on the CPU may be combined with any device.
        MissingDependencyError: the tensors are on a GPU, and CuPy or a library that CuPy needs is missing. The message
            ends with the command that installs it.

    Source: ``torch.add``.

    >>> add2(torch.tensor([1.0, 2.0]), torch.tensor([[10.0], [20.0]]), alpha=0.5)
    tensor([[ 6.,  7.],
            [11., 12.]])
    """
    if isinstance(b, Tensor):
        if b.dtype is torch.bool or getattr(a, "dtype", None) is torch.bool:
            a, b = _without_bools(a, b)
        out: Tensor = _add2.call(a, b, alpha)
        return out
    return _add2_number(a, b, alpha)


def _without_bools(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the operands, a tensor of bools beside numbers as numbers. A 0-d operand keeps its lower priority."""
    if not isinstance(a, Tensor) or a.dtype is b.dtype:
        return a, b
    dtype = torch.result_type(a, b)
    return a.to(dtype) if a.dtype is torch.bool else a, b.to(dtype) if b.dtype is torch.bool else b


def _add2_number(a: Tensor, b: Any, alpha: complex) -> Tensor:
    """Returns a + alpha·b for a number b, which is passed as a 0-d CPU tensor.

    PyTorch promotes numbers and 0-d tensors alike: neither changes the dtype of a tensor with dimensions, unless its
    category (bool, integer, floating, complex) is higher.
    """
    if isinstance(b, Number) and hasattr(b, "item"):  # NumPy's
        b = b.item()
    if not (isinstance(a, Tensor) and isinstance(b, (int, float, complex))):
        if (proxy := symbolic_call(add2, (a, b), alpha=alpha)) is not None:
            return proxy
        if isinstance(a, Tensor):
            raise TypeError(f"add2: `b` must be a Tensor or a number, got {type(b).__name__}")
        raise TypeError(f"add2: `a` must be a Tensor, got {type(a).__name__}")
    if a.dim() == 0:
        return _add2_number(a.reshape(1), b, alpha).reshape(())
    wide = torch.bool if isinstance(b, bool) else torch.int64 if isinstance(b, int) else torch.float64
    if isinstance(b, complex):
        wide = torch.complex128
    elif wide == torch.float64 and not a.is_floating_point():
        wide = torch.get_default_dtype()
    return add2(a, torch.scalar_tensor(b, dtype=wide, device="cpu"), alpha=alpha)
