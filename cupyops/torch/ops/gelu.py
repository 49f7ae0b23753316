"""GELU for PyTorch. :mod:`autograd_bridge` offers it beside the other operators."""

from torch import Tensor, nn

from cupyops.ops.gelu import backward as gelu_backward_body
from cupyops.ops.gelu import forward as gelu_body
from cupyops.torch.core.operator import Operator

from . import onnx_translations, references

__all__ = ["GELU", "gelu", "gelu_backward"]


# y = x·Φ(x), so grad_x = grad_y·(Φ(x) + x·φ(x)); the tanh form likewise. The derivation stands in kernels_cu/gelu.cu.
gelu_backward_operator = Operator(
    "cupyops::gelu_backward(Tensor grad_y, Tensor x, str approximate) -> Tensor",
    gelu_backward_body,
    reference=references.gelu_backward,
    elementwise=True,
)
_gelu = Operator(
    "cupyops::gelu(Tensor x, str approximate) -> Tensor y",
    gelu_body,
    backward=gelu_backward_operator,
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
    grad_x: Tensor = gelu_backward_operator(grad_y, x, approximate)
    return grad_x


class GELU(nn.GELU):
    """``torch.nn.GELU`` with :func:`gelu` as its forward: same arguments, same (empty) ``state_dict``."""

    def forward(self, input: Tensor) -> Tensor:
        return gelu(input, self.approximate)
