"""The PyTorch operator lltm_cell: one step of the LLTM, a recurrent cell."""

from collections.abc import Iterable, Sequence
from math import prod, sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.ops.lltm.cell import backward as lltm_cell_backward_body
from cupyops.ops.lltm.cell import forward as lltm_cell_body
from cupyops.ops.lltm.cell import forward_and_inputs
from cupyops.ops.lltm.checks import check_cell, check_cell_backward, check_leading
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import wide_dtype
from cupyops.torch.scale.sharding import Split

from .linear import linear_onnx
from .onnx_values import cast, in_float32
from .sequences import State, initial_state

__all__ = ["LLTMCell", "lltm_cell"]


def _lltm_cell_reference(
    input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    check_cell(input, weights, bias, old_h, old_cell)
    gates = F.linear(torch.cat((old_h, input), 1), weights, bias)
    z_i, z_o, z_g = gates.chunk(3, 1)
    new_cell = old_cell + F.elu(z_g) * z_i.sigmoid()
    return new_cell.tanh() * z_o.sigmoid(), new_cell, gates


def _lltm_cell_backward_reference(
    grad_h: Tensor | None,
    grad_cell: Tensor | None,
    grad_gates: Tensor | None,
    input: Tensor,
    weights: Tensor,
    old_h: Tensor,
    new_cell: Tensor,
    gates: Tensor,
    both: Tensor | None,
    want_input: bool,
    want_weights: bool,
    want_bias: bool,
    want_h: bool,
    want_cell: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of input, weights, bias, old_h and old_cell in plain PyTorch.

    ``both`` is [old_h, input]. The reference does not read ``both``, so that second derivatives go to old_h and input.
    """
    dtype, state = input.dtype, old_h.shape[1]
    check_cell_backward(input, grad_h, grad_cell, grad_gates, old_h, new_cell, gates, both)
    grad_z, grad_old = lltm_step_backward(grad_h, grad_cell, grad_gates, new_cell, gates)
    narrow = grad_z.to(dtype)
    return (
        narrow @ weights[:, state:] if want_input else input.new_empty(0),
        narrow.t() @ torch.cat((old_h, input), 1) if want_weights else input.new_empty(0),
        grad_z.sum(0).to(dtype) if want_bias else input.new_empty(0),
        narrow @ weights[:, :state] if want_h else input.new_empty(0),
        grad_old.to(dtype) if want_cell else input.new_empty(0),
    )


def lltm_step_backward(
    grad_h: Tensor | None, grad_cell: Tensor | None, grad_gates: Tensor | None, new_cell: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of z = [h, x]·Wᵀ + b and of the old cell, given the gradients of a step's results.

    The gradients are float32, or float64 for float64.
    """
    wide = wide_dtype(gates.dtype)
    zero = torch.zeros_like(new_cell, dtype=wide)
    dh, dc = (zero if g is None else g.to(wide) for g in (grad_h, grad_cell))
    z_i, z_o, z_g = gates.to(wide).chunk(3, 1)
    i, o, g = z_i.sigmoid(), z_o.sigmoid(), F.elu(z_g)
    t = new_cell.to(wide).tanh()
    dc = dc + dh * o * (1 - t * t)
    # The derivative of elu, computed from elu's value. The derivative is 1 at 0, and NaN where z is NaN.
    slope = torch.where(g > 0, torch.ones_like(g), g + 1)
    grad_z = torch.cat((dc * g * (i * (1 - i)), dh * t * (o * (1 - o)), dc * i * slope), 1)
    return grad_z if grad_gates is None else grad_z + grad_gates.to(wide), dc


def lltm_cell_onnx(op: Any, input: Any, weights: Any, bias: Any, old_h: Any, old_cell: Any) -> tuple[Any, Any, Any]:
    """Returns the ONNX form of new_h and new_cell (B, S), and of z = [old_h, input]·Wᵀ + b (B, 3S)."""
    dtype = input.dtype
    input, weights, bias, old_h, old_cell = in_float32(op, input, weights, bias, old_h, old_cell)
    gates = linear_onnx(op, op.Concat(old_h, input, axis=1), weights, bias)
    new_h, new_cell = lltm_pointwise_onnx(op, gates, old_cell)
    return cast(op, new_h, dtype), cast(op, new_cell, dtype), cast(op, gates, dtype)


def lltm_pointwise_onnx(op: Any, gates: Any, old_cell: Any) -> tuple[Any, Any]:
    """Returns the ONNX form of new_h and new_cell, given z (..., 3S), the gates before their activations."""
    i, o, z = op.Split(gates, axis=-1, num_outputs=3, _outputs=3)
    # elu(z) for z ≤ 0 is exp(z) - 1 = 2t/(1 - t) with t = tanh(z/2). This form does not cancel near 0.
    t = op.Tanh(op.Mul(z, 0.5))
    candidate = op.Where(op.Greater(z, 0.0), z, op.Div(op.Mul(t, 2.0), op.Sub(1.0, t)))
    new_cell = op.Add(old_cell, op.Mul(candidate, op.Sigmoid(i)))
    return op.Mul(op.Tanh(new_cell), op.Sigmoid(o)), new_cell


class LltmCellFunction(torch.autograd.Function):
    """h' and c' of one step, and z = [h, x]·Wᵀ + b, which the backward reads. z is a differentiable result, so that
    second derivatives can be computed through z. ``kernels_cu/lltm.cuh`` states the formulas of the gradients."""

    forward = staticmethod(lltm_cell_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weights, _, old_h, _ = inputs
        _, new_cell, gates = output
        ctx.save_for_backward(x, weights, old_h, new_cell, gates, None)

    @staticmethod
    def recording(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Runs the forward and saves [h, x] for the backward, if the forward has written [h, x] to memory.

        Saving [h, x] avoids one launch in the backward. [h, x] is not a result of the operator, since the kernel of
        small cells never writes [h, x] to memory.
        """
        output, both = forward_and_inputs(*inputs)
        x, weights, _, old_h, _ = inputs
        _, new_cell, gates = output
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x, weights, old_h, new_cell, gates, both if needs[1] else None)
        return output

    @staticmethod
    def backward(
        ctx: Any, grad_h: Tensor | None, grad_cell: Tensor | None, grad_gates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if grad_h is None and grad_cell is None and grad_gates is None:
            return None, None, None, None, None
        needs = ctx.needs_input_grad
        found = _lltm_cell_backward.call(grad_h, grad_cell, grad_gates, *ctx.saved_tensors, *needs)
        return found if all(needs) else tuple(g if need else None for g, need in zip(found, needs, strict=True))


def _sharding(*_: Any) -> Iterable[Split]:
    """Splits along the batch."""
    return [((0, 0, 0), (0, None, None, 0, 0))]


def _backward_sharding(*_: Any) -> Iterable[Split]:
    return [((0, "sum", "sum", 0, 0), (0, 0, 0, 0, None, 0, 0, 0, 0))]


def _flops(input: Sequence[int], weights: Sequence[int], *_: Any) -> int:
    """Returns the floating point operations of [old_h, input]·weightsᵀ; the gates count 0, as in PyTorch."""
    return 2 * input[0] * prod(weights)


def _backward_flops(
    grad_h: Any, grad_cell: Any, grad_gates: Any, input: Sequence[int], weights: Sequence[int], *others: Any
) -> int:
    *_, want_input, want_weights, _, want_h, _ = others
    state = weights[0] // 3
    wanted = want_input * (weights[1] - state) + want_weights * weights[1] + want_h * state
    return int(2 * input[0] * weights[0] * wanted)


_lltm_cell = Operator(
    "cupyops::lltm_cell(Tensor input, Tensor weights, Tensor bias, Tensor old_h, Tensor old_cell)"
    " -> (Tensor, Tensor, Tensor)",
    LltmCellFunction,
    reference=_lltm_cell_reference,
    autocast="lower",
    onnx=lltm_cell_onnx,
    sharding=_sharding,
    flops=_flops,
)
_lltm_cell_backward = Operator(
    "cupyops::lltm_cell_backward(Tensor? grad_h, Tensor? grad_cell, Tensor? grad_gates, Tensor input, Tensor weights,"
    " Tensor old_h, Tensor new_cell, Tensor gates, Tensor? both, bool want_input, bool want_weights, bool want_bias,"
    " bool want_h, bool want_cell) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    lltm_cell_backward_body,
    reference=_lltm_cell_backward_reference,
    sharding=_backward_sharding,
    flops=_backward_flops,
)


def lltm_cell(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    """Computes one step of the LLTM (long-long-term memory), an LSTM cell without a forget gate.

    With (z_i, z_o, z_g) = [old_h, input]·weightsᵀ + bias: new_cell = old_cell + elu(z_g)·σ(z_i), and
    new_h = tanh(new_cell)·σ(z_o).

    For small cells, one kernel computes the forward and one kernel the backward, including the matrix products. For
    larger cells, PyTorch computes the products. Under autocast the operation runs in the lower-precision dtype, like
    PyTorch's cells.

    Args:
        input: (..., F), usually (B, F); float16, bfloat16, float32 or float64.
        weights: (3·S, S + F). The rows are those of z_i, z_o and z_g. The first S columns multiply old_h.
        bias: (3·S).
        old_h, old_cell: (..., S), with the leading dimensions of input.

    Returns:
        New tensors (new_h, new_cell) of old_h's shape.

    Raises:
        TypeError: an argument is not a floating tensor, or the dtypes differ.
        ValueError: the shapes do not match, or the tensors are on different devices.
        MissingDependencyError: the tensors are on a GPU, and CuPy or a library that CuPy needs is missing. The message
            ends with the command that installs it.

    Source: Goldsborough, "Custom C++ and CUDA Extensions", PyTorch's tutorials, 2018.

    >>> h, c = lltm_cell(torch.ones(1, 1), torch.zeros(3, 2), torch.tensor([0.0, 0.0, 1.0]), *torch.zeros(2, 1, 1))
    >>> h, c
    (tensor([[0.2311]]), tensor([[0.5000]]))
    """
    if isinstance(input, Tensor) and input.dim() != 2:
        check_leading(input, old_h, old_cell)
        x, h, c = (t.unsqueeze(0) if t.dim() == 1 else t.flatten(0, -2) for t in (input, old_h, old_cell))
        new_h, new_cell, _ = _lltm_cell.call(x, weights, bias, h, c)
        return new_h.view(old_h.shape), new_cell.view(old_h.shape)
    new_h, new_cell, _ = _lltm_cell.call(input, weights, bias, old_h, old_cell)
    return new_h, new_cell


class LLTMCell(nn.Module):
    """A module of :func:`lltm_cell` with the parameters ``weights`` (3·S, S + F) and ``bias`` (3·S).

    The parameters are drawn uniformly from [-1/√S, 1/√S].
    ``forward(input, (old_h, old_cell))`` returns (new_h, new_cell). A state of None stands for zeros.

    Args:
        input_features: F.
        state_size: S, at least 1.

    Raises:
        ValueError: ``input_features`` is negative, or ``state_size`` is less than 1.
    """

    def __init__(
        self,
        input_features: int,
        state_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if input_features < 0 or state_size < 1:
            raise ValueError(
                f"{type(self).__name__}: expected input_features of at least 0 and state_size of at least 1, got "
                f"{input_features} and {state_size}"
            )
        self.input_features, self.state_size = input_features, state_size
        shape = (3 * state_size, input_features + state_size)
        self.weights = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(3 * state_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new values for weights and bias, uniformly from [-1/√S, 1/√S]."""
        bound = 1 / sqrt(self.state_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        return f"input_features={self.input_features}, state_size={self.state_size}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Loads a state dict. Accepts also a bias of shape (1, 3·S), the shape in PyTorch's tutorial on C++ and CUDA
        extensions."""
        bias = state_dict.get(f"{prefix}bias")
        if isinstance(bias, Tensor) and bias.shape == (1, 3 * self.state_size):
            state_dict[f"{prefix}bias"] = bias.squeeze(0)  # load_state_dict passes a copy of the dictionary
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, input: Tensor, state: State | None = None) -> State:
        old_h, old_cell = initial_state(type(self).__name__, state, input, (*input.shape[:-1], self.state_size))
        return lltm_cell(input, self.weights, self.bias, old_h, old_cell)
