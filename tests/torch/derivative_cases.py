"""Operators compared with PyTorch's own, as functions of float64 tensors that are differentiated more than once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import autograd_bridge as bridge
from cupyops import Kernel, Threads
from cupyops.torch import Operator, elementwise, row_reduce
from cupyops.torch.check.methods import Problem
from cupyops.torch.ops.layer_norm import _layer_norm_inference
from cupyops.torch.ops.lltm import _lltm
from examples.own_ops.softmax import softmax as softmax_of_x
from examples.own_ops.swiglu import swiglu

Function = Callable[..., Any]


@dataclass(frozen=True)
class Derived:
    """One operator.

    Attributes:
        ours, theirs: of tensors, one result or several; PyTorch's own operators for comparison.
        shapes: of the tensors.
        through: the same by torch.ops, where the function is little more than the operator.
    """

    name: str
    ours: Function
    theirs: Function
    shapes: tuple[tuple[int, ...], ...]
    through: Function | None = None

    def problem(self, function: Function, device: str, alone: int | None = None) -> Problem:
        """The derivatives of a function by all tensors, or by one, the others being fixed."""
        generator = torch.Generator().manual_seed(11)

        def numbers(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)

        inputs = [numbers(shape) for shape in self.shapes]
        with torch.no_grad():
            results = as_tuple(self.theirs(*inputs))
        seeds = tuple(numbers(tuple(y.shape)) for y in results)
        directions = [numbers(shape) for shape in self.shapes]
        if alone is None:
            return Problem(lambda *xs: as_tuple(function(*xs)), tuple(inputs), seeds, tuple(directions))

        def of_one(x: Tensor) -> tuple[Tensor, ...]:
            return as_tuple(function(*inputs[:alone], x, *inputs[alone + 1 :]))

        return Problem(of_one, (inputs[alone],), seeds, (directions[alone],))


def as_tuple(found: Any) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else tuple(found)


# PyTorch's own


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Computes the formula: PyTorch's operator takes the statistics for constants in the third derivative."""
    centered = x - x.mean(-1, keepdim=True)
    y = centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-5)
    return y if weight is None or bias is None else y * weight + bias


def _add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    s = x + residual
    return layer_norm(s, weight, bias), s


def _lltm_step(x: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    z_i, z_o, z_g = F.linear(torch.cat((h, x), -1), weights, bias).chunk(3, -1)
    c = c + F.elu(z_g) * z_i.sigmoid()
    return c.tanh() * z_o.sigmoid(), c


def _lltm_steps(x: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    found = []
    for step in x:
        h, c = _lltm_step(step, weights, bias, h, c)
        found.append(h)
    return torch.stack(found), torch.stack((h, c))


# Operators as a user declares them

TEXT = r"""
extern "C" __global__ void softclip(
    const scalar_t* __restrict__ x,  // (n)
    scalar_t* __restrict__ y,        // (n)
    acc_t limit, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(limit * acc_t(x[i]) / (limit + fabs(acc_t(x[i]))));
}
// y = x / (1 + rate·x²)
extern "C" __global__ void damped(
    const scalar_t* __restrict__ x,  // (n)
    scalar_t* __restrict__ y,        // (n)
    acc_t rate, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(acc_t(x[i]) / (1 + rate * acc_t(x[i]) * acc_t(x[i])));
}
extern "C" __global__ void damped_backward(
    const scalar_t* __restrict__ grad_y,  // (n)
    const scalar_t* __restrict__ x,       // (n)
    scalar_t* __restrict__ grad_x,        // (n)
    acc_t rate, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) {
        const acc_t s = rate * acc_t(x[i]) * acc_t(x[i]);
        grad_x[i] = scalar_t(acc_t(grad_y[i]) * (1 - s) / ((1 + s) * (1 + s)));
    }
}
"""
_softclip, _damped, _damped_backward = (
    Kernel(TEXT, name, Threads("n"), dtypes=("float32", "float64"))
    for name in ("softclip", "damped", "damped_backward")
)


def _body_of(kernel: Kernel) -> Function:
    def body(x: Tensor, number: float) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel(x, y, number, x.numel())
        return y

    return body


def _softclip_reference(x: Tensor, limit: float) -> Tensor:
    return limit * x / (limit + x.abs())


def damped_reference(x: Tensor, rate: float) -> Tensor:
    return x / (1 + rate * x * x)


def _damped_gradient(grad_y: Tensor, x: Tensor, rate: float) -> Tensor:
    grad_y, x = grad_y.contiguous(), x.contiguous()
    grad_x = torch.empty_like(x)
    _damped_backward(grad_y, x, grad_x, rate, x.numel())
    return grad_x


softclip = Operator(
    "derivatives::softclip(Tensor x, float limit) -> Tensor",
    _body_of(_softclip),
    reference=_softclip_reference,
    elementwise=True,
)
# The README's kind of operator, with a backward kernel and a number that has a default.
damped = Operator(
    "derivatives::damped(Tensor x, float rate=0.25) -> Tensor y",
    _body_of(_damped),
    backward=_damped_gradient,
    reference=damped_reference,
    elementwise=True,
)
undeclared = elementwise(
    "y = a / (1 + exp(-a)) * b", name="derivatives::undeclared", reference=lambda a, b: F.silu(a) * b
)
# Backwards that read the result, and not all of what the reference needs.
tanh_of_y = elementwise(
    "y = tanh(x)", backward="grad_x = grad_y * (1 - y * y)", name="derivatives::tanh_of_y", reference=torch.tanh
)
softmax_of_y = row_reduce(
    "m = max(x); e = exp(x - m); r = 1 / sum(e); y = e * r",
    backward="d = sum(grad_y * y); grad_x = y * (grad_y - d)",
    name="derivatives::softmax_of_y",
    reference=lambda x: torch.softmax(x, -1),
)
# Without a reference, the derivatives of the backward are those of its own expressions.
swiglu_alone = elementwise(
    "y = a / (1 + exp(-a)) * b",
    backward="""
        s = 1 / (1 + exp(-a))
        grad_a = grad_y * b * s * (1 + a * (1 - s))
        grad_b = grad_y * a * s
    """,
    name="derivatives::swiglu_alone",
)
logsumexp_alone = row_reduce(
    "m = max(x); s = sum(exp(x - m)); y = m + log(s)",
    backward="grad_x = grad_y * exp(x - y)",
    name="derivatives::logsumexp_alone",
)
rms_norm_alone = row_reduce(
    "r = rsqrt(sum(x * x) / N + eps); y = x * r * weight",
    backward="""
        r = rsqrt(sum(x * x) / N + eps)
        g = grad_y * weight
        grad_x = r * (g - x * r * r * sum(g * x) / N)
        grad_weight = column_sum(grad_y * x * r)
    """,
    name="derivatives::rms_norm_alone",
    columns=["weight"],
    scalars=["eps"],
)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


X, ROW, SQUARE = (3, 4), (4,), (5, 4)
CELL = ((3, 2), (6, 4), (6,), (3, 2), (3, 2))
library = torch.ops.cupyops
CASES = [
    Derived("add2", lambda a, b: bridge.add2(a, b, alpha=-0.3), lambda a, b: torch.add(a, b, alpha=-0.3), (X, ROW),
            lambda a, b: library.add2(a, b, -0.3)),
    Derived("gelu", bridge.gelu, F.gelu, (X,), lambda x: library.gelu(x, "none")),
    Derived("gelu_tanh", lambda x: bridge.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh"), (X,),
            lambda x: library.gelu(x, "tanh")),
    Derived("gelu_backward", bridge.gelu_backward, torch.ops.aten.gelu_backward, (X, X),
            lambda g, x: library.gelu_backward(g, x, "none")),
    Derived("layer_norm", lambda x: bridge.layer_norm(x, (4,)), layer_norm, (X,),
            lambda x: library.layer_norm(x, None, None, [4], 1e-5)[0]),
    Derived("layer_norm_weight_bias", lambda x, w, b: bridge.layer_norm(x, (4,), w, b),
            layer_norm, (X, ROW, ROW),
            lambda x, w, b: library.layer_norm(x, w, b, [4], 1e-5)[0]),
    Derived("layer_norm_inference", lambda x, w, b: _layer_norm_inference(x, w, b, [4], 1e-5),
            layer_norm, (X, ROW, ROW),
            lambda x, w, b: library.layer_norm_inference(x, w, b, [4], 1e-5)),
    Derived("add_layer_norm", lambda x, r, w, b: bridge.add_layer_norm(x, r, (4,), w, b), _add_layer_norm,
            (X, X, ROW, ROW), lambda x, r, w, b: library.add_layer_norm(x, r, w, b, [4], 1e-5)[:2]),
    Derived("linear", bridge.linear, F.linear, (X, SQUARE, (5,)), library.linear),
    Derived("linear_gelu", bridge.linear_gelu, lambda x, w, b: F.gelu(F.linear(x, w, b)), (X, SQUARE, (5,)),
            lambda x, w, b: library.linear_gelu(x, w, b, "none")[0]),
    Derived("lltm_cell", bridge.lltm_cell, _lltm_step, CELL, lambda *args: library.lltm_cell(*args)[:2]),
    Derived("lltm", lambda *args: _lltm(*args)[:2], _lltm_steps, ((2, 3, 2), *CELL[1:]),
            lambda *args: library.lltm(*args)[:2]),
    Derived("softclip", lambda x: softclip(x, 3.0), lambda x: _softclip_reference(x, 3.0), (X,),
            lambda x: softclip.op(x, 3.0)),
    Derived("damped", lambda x: damped(x, 0.5), lambda x: damped_reference(x, 0.5), (X,), lambda x: damped.op(x, 0.5)),
    Derived("damped_default", lambda x: damped(x), lambda x: damped_reference(x, 0.25), (X,), lambda x: damped.op(x)),
    Derived("elementwise", undeclared, lambda a, b: F.silu(a) * b, (X, X), undeclared.op),
    Derived("elementwise_backward", swiglu, lambda a, b: F.silu(a) * b, (X, ROW), swiglu.op),
    Derived("elementwise_backward_of_y", tanh_of_y, torch.tanh, (X,), tanh_of_y.op),
    Derived("row_reduce", softmax_of_x, lambda x: torch.softmax(x, -1), (X,), softmax_of_x.op),
    Derived("row_reduce_backward_of_y", softmax_of_y, lambda x: torch.softmax(x, -1), (X,), softmax_of_y.op),
    Derived("elementwise_without_reference", swiglu_alone, lambda a, b: F.silu(a) * b, (X, ROW), swiglu_alone.op),
    Derived("rms_norm_without_reference", lambda x, w: rms_norm_alone(x, w, 1e-5), _rms_norm, (X, ROW),
            lambda x, w: rms_norm_alone.op(x, w, 1e-5)),
    Derived("row_reduce_without_reference", logsumexp_alone, lambda x: torch.logsumexp(x, -1), (X,), logsumexp_alone.op),
]  # fmt: skip
