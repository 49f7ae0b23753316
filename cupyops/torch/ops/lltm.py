"""The PyTorch operator lltm: the LLTM, a recurrent cell, over all steps of a sequence."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.ops.lltm.checks import check_sequence, check_sequence_backward
from cupyops.ops.lltm.sequence import backward as lltm_backward_body
from cupyops.ops.lltm.sequence import forward as lltm_body
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import wide_dtype
from cupyops.torch.scale.sharding import Split

from .linear import linear_onnx
from .lltm_cell import LLTMCell, lltm_pointwise_onnx, lltm_step_backward
from .onnx_values import cast, in_float32
from .sequences import State, initial_state, through_layers, through_time

__all__ = ["LLTM", "LLTMLayers", "lltm"]


def _lltm_reference(
    input: Tensor, weights: Tensor, bias: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_sequence(input, weights, bias, h0, c0)
    steps, batch, _ = input.shape
    state = h0.shape[1]
    # One product computes the input's part of z for all steps.
    given = F.linear(input, weights[:, state:], bias)
    h, cells, gates = [], [], []
    new_h, new_cell = h0, c0
    for t in range(steps):
        gates.append(torch.addmm(given[t], new_h, weights[:, :state].t()))
        z_i, z_o, z_g = gates[-1].chunk(3, 1)
        new_cell = new_cell + F.elu(z_g) * z_i.sigmoid()
        new_h = new_cell.tanh() * z_o.sigmoid()
        h.append(new_h)
        cells.append(new_cell)
    last = torch.stack((new_h, new_cell))
    if not steps:
        nothing, none_of_gates = input.new_empty(0, batch, state), input.new_empty(0, batch, 3 * state)
        return nothing, last, nothing.clone(), none_of_gates
    return torch.stack(h), last, torch.stack(cells), torch.stack(gates)


def _lltm_backward_reference(
    grad_h: Tensor | None,
    grad_last: Tensor | None,
    grad_cells: Tensor | None,
    grad_gates: Tensor | None,
    input: Tensor,
    weights: Tensor,
    h0: Tensor,
    h: Tensor,
    cells: Tensor,
    gates: Tensor,
    want_input: bool,
    want_weights: bool,
    want_bias: bool,
    want_h: bool,
    want_cell: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    check_sequence_backward(input, grad_h, grad_last, grad_cells, grad_gates, h0, h, cells, gates)
    dtype, wide, state, steps = input.dtype, wide_dtype(input.dtype), h0.shape[1], input.shape[0]
    recurrent = weights[:, :state].to(wide)
    dh, dc = torch.zeros_like(torch.stack((h0, h0)), dtype=wide) if grad_last is None else grad_last.to(wide)
    found = []
    for t in range(steps - 1, -1, -1):
        dh = dh if grad_h is None else dh + grad_h[t].to(wide)
        dc = dc if grad_cells is None else dc + grad_cells[t].to(wide)
        grad_z, dc = lltm_step_backward(dh, dc, None if grad_gates is None else grad_gates[t], cells[t], gates[t])
        found.append(grad_z)
        dh = grad_z @ recurrent
    z = torch.stack(found[::-1]) if steps else gates.new_zeros(gates.shape, dtype=wide)
    before = torch.cat((h0.unsqueeze(0), h[:-1])) if steps else h
    inputs = torch.cat((before, input), 2).to(wide)
    return (
        (z @ weights[:, state:].to(wide)).to(dtype) if want_input else input.new_empty(0),
        (z.flatten(0, 1).t() @ inputs.flatten(0, 1)).to(dtype) if want_weights else input.new_empty(0),
        z.sum((0, 1)).to(dtype) if want_bias else input.new_empty(0),
        dh.to(dtype).clone() if want_h else input.new_empty(0),
        dc.to(dtype).clone() if want_cell else input.new_empty(0),
    )


def lltm_onnx(op: Any, input: Any, weights: Any, bias: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any, Any]:
    """Returns the ONNX form of h (T, B, S), the last state (2, B, S), cells (T, B, S) and z (T, B, 3S), given input (T,
    B, F).

    z are the gates before their activation functions. The form is one product with the input, and a Scan over the
    steps.
    """
    dtype = input.dtype
    input, weights, bias, h0, c0 = in_float32(op, input, weights, bias, h0, c0)
    S = weights.shape[0] // 3
    recurrent = op.Transpose(op.Slice(weights, [0], [S], [1]), perm=[1, 0])
    given = linear_onnx(op, input, op.Slice(weights, [S], [weights.shape[1]], [1]), bias)

    def step(op: Any, h: Any, cell: Any, given: Any) -> tuple[Any, Any, Any, Any]:
        new_h, new_cell = lltm_pointwise_onnx(op, op.Add(given, op.MatMul(h, recurrent)), cell)
        return new_h, new_cell, op.Identity(new_h), op.Identity(new_cell)

    body = _subgraph(op, step, inputs={"h": h0, "cell": c0, "given": given}, outputs=4)
    last_h, last_cell, h, cells = op.Scan(h0, c0, given, body=body, num_scan_inputs=1, _outputs=4)
    last = op.Concat(op.Unsqueeze(last_h, [0]), op.Unsqueeze(last_cell, [0]), axis=0)
    # Only a gradient reads the gates. Outside of the Scan, ONNX optimizers remove unused gates.
    before = op.Concat(op.Unsqueeze(h0, [0]), op.Slice(h, [0], [-1], [0]), axis=0)
    gates = op.Add(given, op.MatMul(before, recurrent))
    return cast(op, h, dtype), cast(op, last, dtype), cast(op, cells, dtype), cast(op, gates, dtype)


def _subgraph(op: Any, function: Any, *, inputs: dict[str, Any], outputs: int) -> Any:
    """Returns the ONNX graph of a function, for use as the body of a Scan. ``inputs`` gives the names and dtypes of the
    graph's inputs."""
    import onnx_ir as ir

    values = [ir.Value(name=name, type=ir.TensorType(x.dtype)) for name, x in inputs.items()]
    results = [ir.Value(name=f"next_{i}") for i in range(outputs)]
    return op.builder.subgraph(function, values, results, name="step")


class LltmFunction(torch.autograd.Function):
    """h of all steps, the last h and c, c of all steps, and z of all steps. All results are differentiable."""

    forward = staticmethod(lltm_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        x, weights, _, h0, _ = inputs
        h, _, cells, gates = output
        ctx.save_for_backward(x, weights, h0, h, cells, gates)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in grads):
            return None, None, None, None, None
        needs = ctx.needs_input_grad
        found = _lltm_backward.call(*grads, *ctx.saved_tensors, *needs)
        return tuple(g if need else None for g, need in zip(found, needs, strict=True))


def _sharding(*_: Any) -> Iterable[Split]:
    """Splits along the batch, which is the second dimension of the sequences and the first of the states."""
    return [((1, 1, 1, 1), (1, None, None, 0, 0))]


def _backward_sharding(*_: Any) -> Iterable[Split]:
    return [((1, "sum", "sum", 0, 0), (1, 1, 1, 1, 1, None, 0, 1, 1, 1))]


def _flops(input: Sequence[int], weights: Sequence[int], *_: Any) -> int:
    """Returns the floating point operations of [h, x]·Wᵀ in all steps; the gates count 0, as in PyTorch."""
    return 2 * prod(input[:2]) * prod(weights)


def _backward_flops(*args: Any) -> int:
    input, weights = args[4:6]
    want_input, want_weights, _, want_h, _ = args[-5:]
    steps, batch, features = input
    gates, state = weights[0], weights[0] // 3
    # Each step computes the gradient of h of the step before it, by a product. The first step's product gives the
    # gradient of h0.
    wanted = steps * (want_input * features + want_weights * weights[1]) + (steps - 1 + want_h) * state
    return int(2 * batch * gates * wanted) if steps else 0


_lltm = Operator(
    "cupyops::lltm(Tensor input, Tensor weights, Tensor bias, Tensor h0, Tensor c0)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    LltmFunction,
    reference=_lltm_reference,
    autocast="lower",
    onnx=lltm_onnx,
    sharding=_sharding,
    flops=_flops,
)
_lltm_backward = Operator(
    "cupyops::lltm_backward(Tensor? grad_h, Tensor? grad_last, Tensor? grad_cells, Tensor? grad_gates, Tensor input,"
    " Tensor weights, Tensor h0, Tensor h, Tensor cells, Tensor gates, bool want_input, bool want_weights,"
    " bool want_bias, bool want_h, bool want_cell) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    lltm_backward_body,
    reference=_lltm_backward_reference,
    sharding=_backward_sharding,
    flops=_backward_flops,
)


def lltm(
    input: Tensor,
    state: State | None,
    weights: Tensor,
    bias: Tensor,
    *,
    batch_first: bool = False,
    lengths: Tensor | Sequence[int] | None = None,
) -> tuple[Tensor, State]:
    """Applies :func:`.lltm_cell.lltm_cell` to all steps of a sequence, in one kernel launch where possible.

    On a GPU, the weights stay on chip for all steps. The weights are held by one block (S up to 64), by a thread block
    cluster (sm_90 and later), or by blocks on several multiprocessors (S up to 1024), which use tensor cores for 16-bit
    dtypes. float64, larger states, and GPUs that cannot run all blocks at once take two launches per step. PyTorch
    computes the products over all steps, such as that of the input and its part of the weights.

    Args:
        input: (T, B, F), or (B, T, F) with ``batch_first``; float16, bfloat16, float32 or float64.
        state: the first state (h, c), of shape (B, S) each; None for zeros.
        weights, bias: as for :func:`.lltm_cell.lltm_cell`.
        lengths: the number of steps of each sequence, on the CPU. The output is 0 for later steps, and later steps do
            not change the last state.

    Returns:
        h of all steps, in input's layout, and the state (h, c) after the last step, of shape (B, S) each.

    Raises:
        TypeError: an argument is not a floating tensor, or the dtypes differ.
        ValueError: the shapes do not match, a length is not between 1 and T, or the tensors are on different devices.
        MissingDependencyError: the tensors are on a GPU, and CuPy or a library that CuPy needs is missing. The message
            ends with the command that installs it.

    Source: Goldsborough, "Custom C++ and CUDA Extensions", PyTorch's tutorials, 2018.

    >>> output, (h, c) = lltm(torch.ones(3, 1, 1), None, torch.zeros(3, 2), torch.tensor([0.0, 0.0, 1.0]))
    >>> output.flatten(), c
    (tensor([0.2311, 0.3808, 0.4526]), tensor([[1.5000]]))
    """

    def steps(x: Tensor, h0: Tensor, c0: Tensor) -> Any:
        h, last, cells, _ = _lltm.call(x, weights, bias, h0, c0)
        h_n, c_n = last.unbind(0)
        return h, cells, (h_n, c_n)

    if not (isinstance(input, Tensor) and isinstance(weights, Tensor) and isinstance(bias, Tensor)):
        named = (("input", input), ("weights", weights), ("bias", bias))
        name, other = next((name, x) for name, x in named if not isinstance(x, Tensor))
        raise TypeError(f"lltm: `{name}` must be a Tensor, got {type(other).__name__}")
    if input.dim() != 3:
        raise ValueError(f"lltm: `input` must have shape (T, B, F) or (B, T, F), got {tuple(input.shape)}")
    h0, c0 = initial_state("lltm", state, input, (input.shape[0 if batch_first else 1], bias.shape[0] // 3))
    return through_time(steps, input, h0, c0, batch_first, lengths)


class LLTM(LLTMCell):
    """A :class:`.lltm_cell.LLTMCell` with a second method, :meth:`forward_sequence`, for whole sequences."""

    def forward_sequence(
        self,
        input: Tensor,
        state: State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        batch_first: bool = False,
    ) -> tuple[Tensor, State]:
        """Returns :func:`lltm` of the input and the module's parameters."""
        return lltm(input, state, self.weights, self.bias, batch_first=batch_first, lengths=lengths)


class LLTMLayers(nn.Module):
    """Stacked :class:`LLTM` layers with the interface of ``torch.nn.LSTM``: ``forward(input, (h0, c0))`` returns
    (output, (h_n, c_n)).

    Args:
        input_features: F of the first layer.
        state_size: S of each layer.
        num_layers: at least 1.
        batch_first: whether input and output are (B, T, ·) instead of (T, B, ·).

    The input may also be (T, F) without a batch, or a ``PackedSequence``. Each state is (num_layers, B, S); None for
    zeros.

    Raises:
        ValueError: ``num_layers`` or ``state_size`` is less than 1, or ``input_features`` is negative.
    """

    def __init__(
        self,
        input_features: int,
        state_size: int,
        num_layers: int = 1,
        *,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"LLTMLayers: expected num_layers of at least 1, got {num_layers}")
        self.state_size, self.batch_first = state_size, batch_first
        sizes = [input_features, *(state_size,) * (num_layers - 1)]
        self.layers = nn.ModuleList(LLTM(size, state_size, device=device, dtype=dtype) for size in sizes)

    def forward(self, input: Any, state: State | None = None) -> tuple[Any, State]:
        runs: list[Any] = [layer.forward_sequence for layer in self.layers]
        return through_layers(runs, input, state, self.state_size, self.batch_first)
