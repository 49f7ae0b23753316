"""Kernels for ATen's operators: Python functions that the dispatcher calls in place of PyTorch's CUDA kernels.

Each function computes an operator of ATen with a body of this project, and returns what ATen's operator returns: the
same results, shapes, strides and dtypes. A call that the body does not take goes to PyTorch's own kernel, which also
raises PyTorch's own errors. Autograd, autocast, ``torch.func`` and tracing have acted before the dispatcher calls these
functions. The tensors are therefore strided tensors with memory.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cupyops import simulator
from cupyops.arrays import check_devices
from cupyops.dtypes import FLOATS
from cupyops.ops.gelu import backward as gelu_backward_body
from cupyops.ops.gelu import forward as gelu_body
from cupyops.ops.layer_norm.body import backward as layer_norm_backward_body
from cupyops.ops.layer_norm.body import check as check_layer_norm
from cupyops.ops.layer_norm.body import check_backward as check_layer_norm_backward
from cupyops.ops.layer_norm.body import forward as layer_norm_body
from cupyops.torch.core.tensors import DTYPE_NAMES, PLAIN_TENSORS, wide_dtype

from . import rms_norm

__all__ = ["OVERRIDES", "Kernel"]

Kernel = Callable[..., Any]
Results = tuple[Tensor | None, ...]

_FLOATS = frozenset(getattr(torch, name) for name in FLOATS)
# None stands for an absent weight or bias.
_PLAIN_OR_ABSENT = PLAIN_TENSORS | {type(None)}
_APPROXIMATIONS = ("none", "tanh")


# GELU


def gelu(own: Kernel) -> Kernel:
    """Returns the kernel of ``aten::gelu``.

    Args:
        own: PyTorch's own kernel.
    """

    def kernel(x: Tensor, *, approximate: str = "none") -> Any:
        if type(x) in PLAIN_TENSORS and x.dtype in _FLOATS and approximate in _APPROXIMATIONS:
            if x.is_contiguous():
                return gelu_body(x, approximate)
            strides = _strides_of_gelu(tuple(x.shape), x.stride())
            return gelu_body(_laid_out(x, strides), approximate)
        return own(x, approximate=approximate)

    return kernel


def gelu_backward(own: Kernel) -> Kernel:
    """Returns the kernel of ``aten::gelu_backward``.

    Args:
        own: PyTorch's own kernel.
    """

    def kernel(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
        if (
            type(x) in PLAIN_TENSORS
            and type(grad) in PLAIN_TENSORS
            and x.dtype in _FLOATS
            and grad.dtype is x.dtype
            and grad.shape == x.shape
            and grad.get_device() == x.get_device()
            and approximate in _APPROXIMATIONS
        ):
            if x.is_contiguous() and grad.is_contiguous():
                return gelu_backward_body(grad, x, approximate)
            strides = _strides_of_gelu_backward(tuple(x.shape), grad.stride(), x.stride())
            return gelu_backward_body(_laid_out(grad, strides), _laid_out(x, strides), approximate)
        return own(grad, x, approximate=approximate)

    return kernel


@lru_cache(4096)
def _strides_of_gelu(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of the result of ATen's gelu. ATen computes them from the operand's strides."""
    found: tuple[int, ...] = torch.ops.aten.gelu(torch.empty_strided(shape, strides, device="meta")).stride()
    return found


@lru_cache(4096)
def _strides_of_gelu_backward(
    shape: tuple[int, ...], of_grad: tuple[int, ...], of_x: tuple[int, ...]
) -> tuple[int, ...]:
    """Returns the strides of the result of ATen's gelu_backward."""
    grad, x = (torch.empty_strided(shape, strides, device="meta") for strides in (of_grad, of_x))
    found: tuple[int, ...] = torch.ops.aten.gelu_backward(grad, x).stride()
    return found


def _laid_out(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Returns the tensor, or a copy with these strides."""
    return x if x.stride() == strides else x.new_empty_strided(x.shape, strides).copy_(x)


# Layer normalisation


def native_layer_norm(own: Kernel) -> Kernel:
    """Returns the kernel of ``aten::native_layer_norm``.

    Args:
        own: PyTorch's own kernel.
    """

    def kernel(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        if type(x) in PLAIN_TENSORS and type(weight) in _PLAIN_OR_ABSENT and type(bias) in _PLAIN_OR_ABSENT:
            try:
                y, stats = layer_norm_body(x, weight, bias, shape, eps)
                # unbind takes half the time of two indexings. The kernel writes both statistics into one tensor.
                return y, *stats.unbind()
            except (TypeError, ValueError, RuntimeError):
                # The body raises before it launches if it does not take the operands. To ask first in every call would
                # take as long as the body's own checks.
                if _passes(_check_layer_norm, x, shape, weight, bias):
                    raise
        return own(x, shape, weight, bias, eps)

    return kernel


def native_layer_norm_backward(own: Kernel) -> Kernel:
    """Returns the kernel of ``aten::native_layer_norm_backward``.

    Args:
        own: PyTorch's own kernel.
    """

    def kernel(
        grad: Tensor,
        x: Tensor,
        shape: Sequence[int],
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mask: Sequence[bool],
    ) -> Results:
        if (
            type(x) in PLAIN_TENSORS
            and type(grad) in PLAIN_TENSORS
            and type(weight) in _PLAIN_OR_ABSENT
            and grad.dtype is x.dtype
        ):
            stats = _stacked(mean, rstd)
            want_x, want_weight, want_bias = mask
            try:
                grad_x, grad_weight, grad_bias = layer_norm_backward_body(
                    grad, x, stats, weight, None, shape, 0.0, want_x, want_weight, want_bias
                )
            except (TypeError, ValueError, RuntimeError):
                if _passes(_check_layer_norm_backward, grad, x, shape, stats, weight):
                    raise
            else:
                if want_bias and bias is not None and bias.dtype is not grad_bias.dtype:
                    grad_bias = grad_bias.to(bias.dtype)
                return (
                    grad_x if want_x else None,
                    grad_weight if want_weight else None,
                    grad_bias if want_bias else None,
                )
        found: Results = own(grad, x, shape, mean, rstd, weight, bias, mask)
        return found

    return kernel


def _stacked(mean: Tensor, rstd: Tensor) -> Tensor:
    """Returns mean and rstd as one tensor (2, ...): a view if the forward was this project's, else a copy."""
    if mean.is_contiguous() and rstd.is_contiguous() and rstd.data_ptr() == mean.data_ptr() + mean.nbytes:
        try:
            return mean.as_strided((2, *mean.shape), (mean.numel(), *mean.stride()))
        except RuntimeError:  # two allocations that lie side by side
            pass
    return torch.stack((mean, rstd))


def _check_layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None) -> None:
    check_layer_norm(x, DTYPE_NAMES[x.dtype], weight, bias, shape)
    check_devices("layer_norm", x=x, weight=weight, bias=bias)


def _check_layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], stats: Tensor, weight: Tensor | None
) -> None:
    check_layer_norm_backward(grad, x, stats, weight, None, shape)
    check_devices("layer_norm_backward", x=x, grad=grad, stats=stats, weight=weight)
    if stats.dtype is not wide_dtype(x.dtype):
        raise TypeError("layer_norm_backward: the statistics have another dtype than the kernels compute in")


# RMS norm


def fused_rms_norm(own: Kernel) -> Kernel:
    """Returns the kernel of ``aten::_fused_rms_norm``, which ``torch.nn.functional.rms_norm`` calls.

    Args:
        own: PyTorch's own kernel.
    """

    def kernel(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Any:
        if type(x) in PLAIN_TENSORS and type(weight) in _PLAIN_OR_ABSENT:
            try:
                return rms_norm.forward(x, shape, weight, eps)
            except (TypeError, ValueError, RuntimeError):
                if _passes(rms_norm.check, x, shape, weight):
                    raise
        return own(x, shape, weight, eps)

    return kernel


def fused_rms_norm_backward(own: Kernel) -> Kernel:
    """Returns the kernel of ``aten::_fused_rms_norm_backward``.

    Args:
        own: PyTorch's own kernel.
    """

    def kernel(
        grad: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor | None, mask: Sequence[bool]
    ) -> Any:
        if type(x) in PLAIN_TENSORS and type(grad) in PLAIN_TENSORS and type(weight) in _PLAIN_OR_ABSENT:
            try:
                return rms_norm.backward(grad, x, shape, rstd, weight, *mask)
            except (TypeError, ValueError, RuntimeError):
                if _passes(rms_norm.check_backward, grad, x, shape, rstd, weight):
                    raise
        return own(grad, x, shape, rstd, weight, mask)

    return kernel


def _passes(check: Callable[..., None], *operands: Any) -> bool:
    """Returns whether a check raises no error for the operands."""
    try:
        check(*operands)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


# CPU tensors, whose kernels run in the simulator


def _simulated(make: Callable[[Kernel], Kernel]) -> Callable[[Kernel], Kernel]:
    """Returns the factory of a kernel for CPU tensors, which is PyTorch's own kernel outside ``cupyops.simulate()``."""

    def made(own: Kernel) -> Kernel:
        ours = make(own)

        def kernel(*args: Any, **options: Any) -> Any:
            return (ours if simulator.enabled() else own)(*args, **options)

        return kernel

    return made


def _statistics_dtype(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> torch.dtype:
    """Returns the dtype of mean and rstd on a CPU. PyTorch's CPU kernel rounds them to the parameters' dtype."""
    return next((p.dtype for p in (weight, bias) if p is not None), x.dtype)


def _layer_norm_on_cpu(own: Kernel) -> Kernel:
    ours = native_layer_norm(own)

    def kernel(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Results:
        y, mean, rstd = ours(x, shape, weight, bias, eps)
        dtype = _statistics_dtype(x, weight, bias)
        return y, mean.to(dtype), rstd.to(dtype)

    return kernel


def _layer_norm_backward_on_cpu(own: Kernel) -> Kernel:
    ours = native_layer_norm_backward(own)

    def kernel(
        grad: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor, weight: Any, bias: Any, mask: Any
    ) -> Any:
        wide = wide_dtype(x.dtype)
        return ours(grad, x, shape, mean.to(wide), rstd.to(wide), weight, bias, mask)

    return kernel


OVERRIDES: Mapping[str, Mapping[str, Callable[[Kernel], Kernel]]] = {
    "cuda": {
        "gelu": gelu,
        "gelu_backward": gelu_backward,
        "native_layer_norm": native_layer_norm,
        "native_layer_norm_backward": native_layer_norm_backward,
        "_fused_rms_norm": fused_rms_norm,
        "_fused_rms_norm_backward": fused_rms_norm_backward,
    },
    "cpu": {
        "gelu": _simulated(gelu),
        "gelu_backward": _simulated(gelu_backward),
        "native_layer_norm": _simulated(_layer_norm_on_cpu),
        "native_layer_norm_backward": _simulated(_layer_norm_backward_on_cpu),
    },
}
"""By the type of device: the factory of each operator's kernel. A factory takes PyTorch's own kernel.

PyTorch has no fused RMS norm on a CPU. It computes RMS norm by elementary operators there.
"""
