"""The LLTM for PyTorch: a step, a sequence, and the modules. :mod:`autograd_bridge` offers them beside the other operators.

Each Function is written as PyTorch documents it around bodies from :mod:`cupyops`, and made an operator by
:class:`cupyops.torch.Operator`.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from cupyops.ops.lltm.cell import backward as lltm_cell_backward_body
from cupyops.ops.lltm.cell import forward as lltm_cell_body
from cupyops.ops.lltm.cell import forward_and_inputs
from cupyops.ops.lltm.checks import check_leading
from cupyops.ops.lltm.sequence import backward as lltm_backward_body
from cupyops.ops.lltm.sequence import forward as lltm_body
from cupyops.torch.core.operator import Operator

from . import onnx_translations, references
from .sequences import State, initial_state, through_layers, through_time

__all__ = ["LLTM", "LLTMCell", "LLTMLayers", "lltm", "lltm_cell"]


class LltmCellFunction(torch.autograd.Function):
    """h' and c' of one step, and z = [h, x]·Wᵀ + b, which the gradient is made of: a result like the others, so that
    gradients of gradients pass through it. The derivation stands in ``kernels_cu/lltm.cuh``."""

    forward = staticmethod(lltm_cell_body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weights, _, old_h, _ = inputs
        _, new_cell, gates = output
        ctx.save_for_backward(x, weights, old_h, new_cell, gates, None)

    @staticmethod
    def recording(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keeps [h, x], too, where it has been made: a launch less in the backward. As a result of the operator's, it would
        have to be made for small cells, too."""
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


_lltm_cell = Operator(
    "cupyops::lltm_cell(Tensor input, Tensor weights, Tensor bias, Tensor old_h, Tensor old_cell)"
    " -> (Tensor, Tensor, Tensor)",
    LltmCellFunction,
    reference=references.lltm_cell,
    autocast="lower",
    onnx=onnx_translations.lltm_cell,
)
_lltm_cell_backward = Operator(
    "cupyops::lltm_cell_backward(Tensor? grad_h, Tensor? grad_cell, Tensor? grad_gates, Tensor input, Tensor weights,"
    " Tensor old_h, Tensor new_cell, Tensor gates, Tensor? both, bool want_input, bool want_weights, bool want_bias,"
    " bool want_h, bool want_cell) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    lltm_cell_backward_body,
    reference=references.lltm_cell_backward,
)


def lltm_cell(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    """One step of the long-long-term memory, a recurrent cell that has no gate to forget.

    With (z_i, z_o, z_g) = [old_h, input]·weightsᵀ + bias: new_cell = old_cell + elu(z_g)·σ(z_i), and
    new_h = tanh(new_cell)·σ(z_o).

    Small cells are one kernel in each direction, products included; for larger ones the products are PyTorch's. Under
    autocast the operation is in the lower type, as PyTorch's cells.

    Args:
        input: (B, F), or (F) without a batch, or with more dimensions before F; float16, bfloat16, float32 or float64.
        weights: (3·S, S + F): the gates in, out and candidate; the columns of old_h first.
        bias: (3·S).
        old_h, old_cell: (B, S), or what input has before its last dimension, and S.

    Returns:
        New tensors (new_h, new_cell) of old_h's shape.

    Raises:
        TypeError: no tensor, not floating, or dtypes that differ.
        ValueError: shapes that do not belong together, or tensors on different devices.
        MissingDependencyError: on CUDA tensors, if CuPy or what it needs is missing; the message says what installs it.

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


class LltmFunction(torch.autograd.Function):
    """h of all steps, the last h and c, and c and z of all steps. A gradient may come back to each of them."""

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


_lltm = Operator(
    "cupyops::lltm(Tensor input, Tensor weights, Tensor bias, Tensor h0, Tensor c0)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    LltmFunction,
    reference=references.lltm,
    autocast="lower",
    onnx=onnx_translations.lltm,
)
_lltm_backward = Operator(
    "cupyops::lltm_backward(Tensor? grad_h, Tensor? grad_last, Tensor? grad_cells, Tensor? grad_gates, Tensor input,"
    " Tensor weights, Tensor h0, Tensor h, Tensor cells, Tensor gates, bool want_input, bool want_weights,"
    " bool want_bias, bool want_h, bool want_cell) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    lltm_backward_body,
    reference=references.lltm_backward,
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
    """:func:`lltm_cell` over a sequence, all steps in one launch.

    On a GPU the weights stay on chip from step to step: in one block of threads for each row (S up to 64), in a cluster
    of blocks (sm_90 and later), or in blocks all over the GPU (S up to 1024), in 16 bits as operands of tensor cores.
    float64, larger states and GPUs that cannot run the blocks at once get two launches a step. Products over all steps are
    PyTorch's.

    Args:
        input: (T, B, F), or (B, T, F) with ``batch_first``; float16, bfloat16, float32 or float64.
        state: (h, c) of shape (B, S) each before the first step; None for zeros.
        weights, bias: as for :func:`lltm_cell`.
        lengths: steps of each row, on the CPU; the steps behind are 0 in the output, and take no part.

    Returns:
        h of all steps, in input's layout, and the state behind the last step, (B, S) each.

    Raises:
        TypeError: no tensor, not floating, or dtypes that differ.
        ValueError: shapes that do not belong together, lengths that are not from 1 to T, or tensors on different
            devices.
        MissingDependencyError: on CUDA tensors, if CuPy or what it needs is missing; the message says what installs it.

    Source: as :func:`lltm_cell`.

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


class LLTMCell(nn.Module):
    """:func:`lltm_cell` with its parameters: ``weights`` (3·S, S + F) and ``bias`` (3·S), uniform within ±1/√S.

    ``forward(input, (old_h, old_cell))`` gives (new_h, new_cell); a state of None is zeros.

    Args:
        input_features: F.
        state_size: S, at least 1.

    Raises:
        ValueError: sizes that cannot be.
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
        """Draws both anew."""
        bound = 1 / sqrt(self.state_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        return f"input_features={self.input_features}, state_size={self.state_size}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Takes the bias of the tutorial's C++ and CUDA modules, too, which is of shape (1, 3·S)."""
        bias = state_dict.get(f"{prefix}bias")
        if isinstance(bias, Tensor) and bias.shape == (1, 3 * self.state_size):
            state_dict[f"{prefix}bias"] = bias.squeeze(0)  # load_state_dict hands out a copy of the dictionary
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, input: Tensor, state: State | None = None) -> State:
        old_h, old_cell = initial_state(type(self).__name__, state, input, (*input.shape[:-1], self.state_size))
        return lltm_cell(input, self.weights, self.bias, old_h, old_cell)


class LLTM(LLTMCell):
    """:class:`LLTMCell` that also takes whole sequences: :meth:`forward_sequence`."""

    def forward_sequence(
        self,
        input: Tensor,
        state: State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        batch_first: bool = False,
    ) -> tuple[Tensor, State]:
        """:func:`lltm` with the module's parameters."""
        return lltm(input, state, self.weights, self.bias, batch_first=batch_first, lengths=lengths)


class LLTMLayers(nn.Module):
    """Layers of :class:`LLTM`, one on the output of the other, called as ``torch.nn.LSTM``: ``forward(input, (h0, c0))``
    gives (output, (h_n, c_n)).

    Args:
        input_features: F of the first layer.
        state_size: S of each.
        num_layers: at least 1.
        batch_first: input and output are (B, T, ·) instead of (T, B, ·).

    Input may also be (T, F) without a batch, or a ``PackedSequence``. States are (num_layers, B, S); None for zeros.

    Raises:
        ValueError: sizes that cannot be.
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
