"""The PyTorch operator gelu: the Gaussian error linear unit."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.ops.gelu import backward as gelu_backward_body
from cupyops.ops.gelu import backward_in_place, forward_in_place
from cupyops.ops.gelu import check as check_gelu
from cupyops.ops.gelu import forward as gelu_body
from cupyops.torch.core.composite import node_of
from cupyops.torch.core.operator import Operator

from .onnx_values import DOUBLE, cast, in_float32

__all__ = ["GELU", "gelu", "gelu_backward"]


def gelu_reference(x: Tensor, approximate: str) -> Tensor:
    check_gelu(x, approximate)
    return F.gelu(x, approximate=approximate)


def gelu_backward_reference(grad_y: Tensor, x: Tensor, approximate: str) -> Tensor:
    check_gelu(x, approximate, grad_y)
    grad_x: Tensor = torch.ops.aten.gelu_backward(grad_y, x, approximate=approximate)
    return grad_x


def gelu_onnx(op: Any, x: Any, approximate: str) -> Any:
    """Returns the ONNX form of x·Φ(x), or of its tanh approximation."""
    if x.dtype == DOUBLE:
        return _gelu_float64(op, x, approximate)
    return cast(op, op.Gelu(in_float32(op, x), approximate=approximate), x.dtype)


# Coefficients of a polynomial in (4 - z)/(4 + z) that approximates exp(z²)·erfc(z)·(4 + z)/4 for z ≥ 0, the constant
# term last. The polynomial interpolates at Chebyshev nodes, computed with 60 digits. The error of the polynomial is
# below 4e-17.
_ERFC = (
    *(1.9860046213777094e-11, 3.0140315157436664e-10, -1.8056061492473584e-10, -3.8163851917190945e-09),
    *(7.955304769237317e-11, 3.062640513773187e-08, 1.858538071376256e-08, -2.1090510064839227e-07),
    *(-3.5587254786027525e-07, 1.1730894595205767e-06, 4.715155967402764e-06, -9.085474539335742e-07),
    *(-4.420318895616758e-05, -0.00011376324412131493, 7.023971404404158e-05, 0.001528013927356252),
    *(0.00659251333528659, 0.0190953787258951, 0.04350273430997378, 0.08271289696958106),
    *(0.13521345782830899, 0.19330217556630763, 0.2441371822702205, 0.27399891525012277),
)


def _gelu_float64(op: Any, x: Any, approximate: str) -> Any:
    if approximate == "tanh":
        cubic = op.Mul(x, op.Add(op.Mul(op.Mul(x, x), 0.044715), 1.0))
        # 1 + tanh(u) = 2·sigmoid(2u). The sum on the left cancels for large negative u.
        return op.Mul(x, op.Sigmoid(op.Mul(cubic, math.sqrt(8 / math.pi))))
    # Few runtimes implement Erf for float64. The polynomial gives Φ(-|x|) = erfc(z)/2, accurate also for large |x|.
    z = op.Mul(op.Abs(x), math.sqrt(0.5))
    beyond = op.Add(z, 4.0)
    s = op.Div(op.Sub(4.0, z), beyond)
    p = op.Add(op.Mul(s, _ERFC[0]), _ERFC[1])
    for coefficient in _ERFC[2:]:
        p = op.Add(op.Mul(p, s), coefficient)
    tail = op.Mul(op.Div(op.Mul(p, 2.0), beyond), op.Exp(op.Mul(op.Mul(x, x), -0.5)))
    return op.Mul(x, op.Where(op.Greater(x, 0.0), op.Sub(1.0, tail), tail))


def gelu_jvp(tangent_x: Tensor, x: Tensor, approximate: str) -> Tensor:
    """Returns the tangent of y, dy/dx·tangent_x: the product that the backward computes of grad_y."""
    tangent_y: Tensor = gelu_backward_body(tangent_x, x, approximate)
    return tangent_y


# y = x·Φ(x), so grad_x = grad_y·(Φ(x) + x·φ(x)). kernels_cu/gelu.cu states the gradient of the tanh form.
gelu_backward_operator = Operator(
    "cupyops::gelu_backward(Tensor grad_y, Tensor x, str approximate) -> Tensor",
    gelu_backward_body,
    reference=gelu_backward_reference,
    inplace=backward_in_place,
    elementwise=True,
    compiled="auto",
    repeats=True,
)
gelu_operator = Operator(
    "cupyops::gelu(Tensor x, str approximate) -> Tensor y",
    gelu_body,
    backward=gelu_backward_operator,
    jvp=gelu_jvp,
    reference=gelu_reference,
    inplace=forward_in_place,
    elementwise=True,
    onnx=gelu_onnx,
    compiled="auto",
    repeats=True,
)
gelu_node = node_of(gelu_operator.call)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Applies the Gaussian error linear unit; a drop-in for ``torch.nn.functional.gelu``.

    y = x·Φ(x) = ½·x·(1 + erf(x/√2)), or with ``approximate="tanh"`` y = ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).

    On a GPU, float32 and float64 results keep their relative accuracy for negative x, where ½·(1 + erf) cancels to 0
    (below -5.5 in float32). For float16 and bfloat16, a polynomial in float32 computes the result. The polynomial's
    error is below the rounding error of the dtype.

    Args:
        x: float16, bfloat16, float32 or float64, any shape and strides.
        approximate: ``"none"`` or ``"tanh"``.

    Returns:
        A new tensor of x's shape and dtype.

    Raises:
        TypeError: x is not a tensor, or its dtype is not floating.
        RuntimeError: ``approximate`` is neither ``"none"`` nor ``"tanh"``.
        MissingDependencyError: the tensors are on a GPU, and CuPy or a library that CuPy needs is missing. The message
            ends with the command that installs it.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

    >>> gelu(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """
    y: Tensor = gelu_operator.call(x, approximate)
    return y


def gelu_backward(grad_y: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    """Returns the gradient of :func:`gelu`: grad_y·(Φ(x) + x·φ(x)), or grad_y times the derivative of the tanh form.
    The gradient can itself be differentiated.

    Args:
        grad_y: gradient of the result, of x's shape and dtype.
        x, approximate: the arguments of :func:`gelu`.

    Raises:
        ValueError: the shapes of grad_y and x differ.
        TypeError, RuntimeError, MissingDependencyError: as for :func:`gelu`.
    """
    grad_x: Tensor = gelu_backward_operator(grad_y, x, approximate)
    return grad_x


class GELU(nn.GELU):
    """A ``torch.nn.GELU`` that calls :func:`gelu`, with the same arguments and (empty) ``state_dict``."""

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = gelu_operator.call(input, self.approximate)
        return y
