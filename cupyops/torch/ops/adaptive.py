"""The PyTorch operators adaptive_layer_norm, gated_add and add_adaptive_layer_norm: the steps of a diffusion transformer
that a sample's condition scales, shifts and gates, made by :func:`cupyops.torch.row_reduce`."""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cupyops.errors import expected
from cupyops.ops.checks import check_floating
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import DTYPE_NAMES, symbolic_call, wide_dtype
from cupyops.torch.programs.row_reduce import row_reduce

from .onnx_values import cast, in_float32

__all__ = ["adaptive_layer_norm", "add_adaptive_layer_norm", "gated_add"]

# Row lengths whose kernels are compiled ahead: DiT-XL, FLUX.
AHEAD = (1152, 3072)


def _beside(t: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns an operand (B, N) as one that broadcasts to rows (B, ..., N).

    Raises:
        ValueError: the operand has another shape.
    """
    if x.dim() < 2 or t.shape != (x.shape[0], x.shape[-1]):
        wanted = f"have a row for each sample of rows (B, ..., N), {tuple(x.shape)}"
        raise ValueError(expected("adaptive_layer_norm", "scale, shift or gate", wanted, tuple(t.shape)))
    return t.to(dtype).view(t.shape[0], *(1,) * (x.dim() - 2), t.shape[-1])


def _gated_reference(residual: Tensor, x: Tensor, gate: Tensor) -> Tensor:
    for name, t in (("residual", residual), ("x", x), ("gate", gate)):
        check_floating("gated_add", name, DTYPE_NAMES[t.dtype])
    dtype = wide_dtype(residual.dtype)
    return (residual.to(dtype) + _beside(gate, x, dtype) * x.to(dtype)).to(residual.dtype).contiguous()


def _norm_reference(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    for name, t in (("x", x), ("scale", scale), ("shift", shift)):
        check_floating("adaptive_layer_norm", name, DTYPE_NAMES[t.dtype])
    if not isinstance(eps, Real):
        raise TypeError(expected("adaptive_layer_norm", "eps", "be a number", repr(eps)))
    dtype = wide_dtype(x.dtype)
    n = F.layer_norm(x.to(dtype), x.shape[-1:], None, None, eps)
    return (n * (1 + _beside(scale, x, dtype)) + _beside(shift, x, dtype)).to(x.dtype).contiguous()


def _both_reference(
    residual: Tensor, x: Tensor, gate: Tensor, scale: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    s = _gated_reference(residual, x, gate)
    return _norm_reference(s, scale, shift, eps), s


def _gated_onnx(op: Any, residual: Any, x: Any, gate: Any) -> Any:
    wide, x, gate = in_float32(op, residual, x, gate)
    x, gate = cast(op, x, wide.dtype), cast(op, gate, wide.dtype)
    return cast(op, op.Add(wide, op.Mul(op.Unsqueeze(gate, [1]), x)), residual.dtype)


def _norm_onnx(op: Any, x: Any, scale: Any, shift: Any, eps: float) -> Any:
    wide, scale, shift = in_float32(op, x, scale, shift)
    scale, shift = cast(op, scale, wide.dtype), cast(op, shift, wide.dtype)
    d = op.Sub(wide, op.ReduceMean(wide, [-1], keepdims=1))
    n = op.Div(d, op.Sqrt(op.Add(op.ReduceMean(op.Mul(d, d), [-1], keepdims=1), eps)))
    y = op.Add(op.Mul(n, op.Add(op.Unsqueeze(scale, [1]), 1.0)), op.Unsqueeze(shift, [1]))
    return cast(op, y, x.dtype)


def _both_onnx(op: Any, residual: Any, x: Any, gate: Any, scale: Any, shift: Any, eps: float) -> tuple[Any, Any]:
    s = _gated_onnx(op, residual, x, gate)
    return _norm_onnx(op, s, scale, shift, eps), s


# With n the normalised row and g = grad_y·(1 + scale), the gradient of the norm's row is r·(g - mean g - n·mean(g·n)).
_adaptive_layer_norm = row_reduce(
    "m = sum(x) / N; d = x - m; r = rsqrt(sum(d * d) / N + eps); y = fma(d * r, 1 + scale, shift)",
    backward="""
        m = sum(x) / N
        d = x - m
        r = rsqrt(sum(d * d) / N + eps)
        n = d * r
        g = grad_y * (1 + scale)
        a = sum(g) / N
        b = sum(g * n) / N
        grad_x = r * (g - a - n * b)
        grad_scale = column_sum(grad_y * n)
        grad_shift = column_sum(grad_y)
    """,
    name="cupyops::adaptive_layer_norm",
    samples=["scale", "shift"],
    scalars=["eps"],
    reference=_norm_reference,
    onnx=_norm_onnx,
    recompute=_norm_reference,
    ahead=AHEAD,
)
_gated_product = row_reduce(
    "y = gate * x",
    backward="grad_x = grad_y * gate; grad_gate = column_sum(grad_y * x)",
    name="cupyops::gated_product",
    samples=["gate"],
    reference=lambda x, gate: (_beside(gate, x, wide_dtype(x.dtype)) * x).to(x.dtype).contiguous(),
)
_gated_sum = row_reduce(
    "y = residual + gate * x", name="cupyops::gated_sum", samples=["gate"], reference=_gated_reference
)


class GatedAddFunction(torch.autograd.Function):
    """y = residual + gate·x. The gradient of residual is that of y itself, not a copy."""

    forward = staticmethod(_gated_sum.body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, x, gate = inputs
        ctx.save_for_backward(x, gate)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_y is None:
            return None, None, None
        x, gate = ctx.saved_tensors
        wants = ctx.needs_input_grad
        grad_x = grad_gate = None
        if wants[1] or wants[2]:
            grad_x, grad_gate = _gated_product.backward.call(grad_y, x, gate, wants[1], wants[2])  # type: ignore[union-attr]
        return (
            grad_y if wants[0] else None,
            grad_x if wants[1] else None,
            grad_gate.to(gate.dtype) if wants[2] else None,  # type: ignore[union-attr]
        )


def _gated_sharding(*args: Any) -> Any:
    last = args[0].ndim - 1
    for dim in range(last + 1):
        yield [dim], [dim, dim, {0: 0, last: 1}.get(dim)]


_gated_add = Operator(
    "cupyops::gated_add(Tensor residual, Tensor x, Tensor gate) -> Tensor y",
    GatedAddFunction,
    reference=_gated_reference,
    onnx=_gated_onnx,
    sharding=_gated_sharding,
    repeats=True,
)
_add_adaptive_layer_norm = row_reduce(
    """
        s = rounded(residual + gate * x)
        m = sum(s) / N
        d = s - m
        r = rsqrt(sum(d * d) / N + eps)
        y = fma(d * r, 1 + scale, shift)
    """,
    backward="""
        m = sum(s) / N
        d = s - m
        r = rsqrt(sum(d * d) / N + eps)
        n = d * r
        g = grad_y * (1 + scale)
        a = sum(g) / N
        b = sum(g * n) / N
        grad_residual = grad_s + r * (g - a - n * b)
        grad_x = grad_residual * gate
        grad_gate = column_sum(grad_residual * x)
        grad_scale = column_sum(grad_y * n)
        grad_shift = column_sum(grad_y)
    """,
    name="cupyops::add_adaptive_layer_norm",
    samples=["gate", "scale", "shift"],
    scalars=["eps"],
    results=["y", "s"],
    reference=_both_reference,
    onnx=_both_onnx,
    recompute=lambda s, scale, shift, eps: _norm_reference(s, scale, shift, eps),
    ahead=AHEAD,
)


def _of_samples(where: str, x: Tensor, **operands: Tensor) -> list[Tensor]:
    """Returns x as rows (samples, rows, N), and the operands as (samples, N).

    Raises:
        ValueError: an operand does not broadcast to x.
    """
    n = x.shape[-1] if x.dim() else 0
    if x.dim() == 3:  # without views of the rows, of which each would be a node of autograd
        wanted_shape = x.shape[0], n
        flat = [t.squeeze(1) if t.dim() == 3 else t for t in operands.values()]
        if all(t.shape == wanted_shape for t in flat):
            return [x, *flat]
    lead = 0  # leading dimensions of x that count samples
    found = []
    for name, t in operands.items():
        # (B, N) beside (B, ..., N) is (B, 1, ..., 1, N).
        if t.dim() == 2 and x.dim() > 2:
            t = t.view(t.shape[0], *(1,) * (x.dim() - 2), t.shape[1])
        new = x.dim() - t.dim()
        fits = t.dim() and new >= 0 and t.shape[-1] == n
        if not fits or any(a not in (1, b) for a, b in zip(t.shape[:-1], x.shape[new:-1], strict=True)):
            wanted = f"have a row of {n} for each sample of `x` {tuple(x.shape)}"
            raise ValueError(expected(where, name, wanted, tuple(t.shape)))
        own = next((new + d + 1 for d in range(t.dim() - 2, -1, -1) if t.shape[d] != 1), 0)
        lead = max(lead, own)
        found.append(t.view(*(1,) * new, *t.shape))
    samples = x.shape[:lead]
    count = math.prod(samples)
    rows = x.reshape(count, math.prod(x.shape[lead:-1]), n)
    each = [t.view(*t.shape[:lead], n).expand(*samples, n).reshape(count, n) if lead else t.view(1, n) for t in found]
    return [rows, *each]


def _proxy(function: Callable[..., Any], tensors: dict[str, Any], **options: Any) -> Any:
    """Returns None for tensors, or the proxy of a call under ``torch.fx.symbolic_trace``.

    Raises:
        TypeError: an argument is neither.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            if (proxy := symbolic_call(function, tuple(tensors.values()), **options)) is not None:
                return proxy
            raise TypeError(expected(function.__name__, name, "be a Tensor", type(tensor).__name__))
    return None


def adaptive_layer_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-5) -> Tensor:
    """Normalises rows, and scales and shifts them by sample: y = (x - mean)/√(var + eps)·(1 + scale) + shift (adaLN).

    One pass over memory computes y, and one pass all gradients. The bits of a row do not depend on the other rows, and
    the gradients of scale and shift are summed in a fixed order. Autocast does not change the dtypes.

    Args:
        x: rows (B, ..., N), float16, bfloat16, float32 or float64, any strides.
        scale, shift: (B, N), or a shape that broadcasts to x, such as (B, 1, N) or (N); any floating dtype.
        eps: the number added to the variance. DiT has 1e-6.

    Returns:
        A new tensor of x's shape and dtype. The result is rounded once.

    Raises:
        TypeError: an argument is not a floating tensor, or eps is not a number.
        ValueError: a shape does not fit, or the tensors are on different devices.
        MissingDependencyError: the tensors are on a GPU, and CuPy or a library that CuPy needs is missing. The message
            ends with the command that installs it.

    Source: Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023.

    >>> adaptive_layer_norm(torch.tensor([[[1.0, 3.0]]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[0.0, 5.0]]), 0.0)
    tensor([[[-2.,  7.]]])
    """
    if (proxy := _proxy(adaptive_layer_norm, {"x": x, "scale": scale, "shift": shift}, eps=eps)) is not None:
        return proxy
    rows, scale, shift = _of_samples("adaptive_layer_norm", x, scale=scale, shift=shift)
    y: Tensor = _adaptive_layer_norm.call(rows, scale, shift, eps)
    return _shaped(y, x)


def gated_add(residual: Tensor, x: Tensor, gate: Tensor) -> Tensor:
    """Returns residual + gate·x, where a gate scales the rows of a sample: the residual step of a diffusion transformer,
    and with a gate (N) LayerScale.

    The backward computes the gradients of x and gate in one pass over memory; the gradient of residual is that of the
    result. Autocast does not change the dtypes.

    Args:
        residual, x: tensors (B, ..., N) of equal shape, float16, bfloat16, float32 or float64, any strides.
        gate: (B, N), or a shape that broadcasts to x, such as (B, 1, N) or (N); any floating dtype.

    Returns:
        A new tensor of the promoted dtype of residual and x. The result is rounded once.

    Raises:
        TypeError, ValueError, MissingDependencyError: as for :func:`adaptive_layer_norm`.

    Source: Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023.

    >>> gated_add(torch.ones(1, 2, 2), torch.ones(1, 2, 2), torch.tensor([[0.5, 2.0]]))
    tensor([[[1.5000, 3.0000],
             [1.5000, 3.0000]]])
    """
    if (proxy := _proxy(gated_add, {"residual": residual, "x": x, "gate": gate})) is not None:
        return proxy
    residual = _sum_of("gated_add", residual, x)
    rows, gate = _of_samples("gated_add", x, gate=gate)
    y: Tensor = _gated_add.call(_shaped(residual, rows), rows, gate)
    return _shaped(y, x)


def _shaped(y: Tensor, x: Tensor) -> Tensor:
    """Returns y with the shape of x. A view of the same shape would be a node of autograd."""
    return y if y.shape == x.shape else y.reshape(x.shape)


def _sum_of(where: str, residual: Tensor, x: Tensor) -> Tensor:
    """Returns the residual in the dtype of its sum with x.

    Raises:
        ValueError: the shapes differ.
    """
    if residual.shape != x.shape:
        raise ValueError(expected(where, "residual", f"have the shape of `x`, {tuple(x.shape)}", tuple(residual.shape)))
    return residual if residual.dtype is x.dtype else residual.to(torch.promote_types(residual.dtype, x.dtype))


def add_adaptive_layer_norm(
    residual: Tensor, x: Tensor, gate: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Computes s = residual + gate·x and adaptive_layer_norm(s, scale, shift) in one pass over memory: the end of a branch
    of a diffusion transformer, and the beginning of the next.

    s is rounded to its dtype before it is normalised. The result therefore equals that of the two operators.

    Args:
        residual, x, gate: the arguments of :func:`gated_add`.
        scale, shift, eps: the arguments of :func:`adaptive_layer_norm` for s.

    Returns:
        New tensors (y, s) of the promoted dtype of residual and x.

    Raises:
        TypeError, ValueError, MissingDependencyError: as for :func:`adaptive_layer_norm`.

    Source: Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023.

    >>> zero = torch.zeros(2)
    >>> y, s = add_adaptive_layer_norm(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 2.0]]), 1 + zero, zero, zero, 0.0)
    >>> y, s
    (tensor([[-1.,  1.]]), tensor([[1., 4.]]))
    """
    tensors = {"residual": residual, "x": x, "gate": gate, "scale": scale, "shift": shift}
    if (proxy := _proxy(add_adaptive_layer_norm, tensors, eps=eps)) is not None:
        return proxy
    where = "add_adaptive_layer_norm"
    residual = _sum_of(where, residual, x)
    rows, gate, scale, shift = _of_samples(where, x, gate=gate, scale=scale, shift=shift)
    y, s = _add_adaptive_layer_norm.call(_shaped(residual, rows), rows, gate, scale, shift, eps)
    return _shaped(y, x), _shaped(s, x)
