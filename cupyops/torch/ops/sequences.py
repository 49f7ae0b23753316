"""Input handling of the recurrent layers, as in ``torch.nn.LSTM``: batch-first layout, sequence lengths, packed
sequences and stacked layers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from cupyops.errors import expected

__all__ = ["State", "initial_state", "through_layers", "through_time"]

State = tuple[Tensor, Tensor]
# A function of the input (T, B, F), h0 and c0 (B, S) that returns h and c of every step, and the last state.
Steps = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, State]]


def initial_state(where: str, state: State | None, like: Tensor, shape: Sequence[int]) -> State:
    """Returns the state that the caller passed, or zeros if ``state`` is None.

    Args:
        where: the operator's name, for messages.
        state: (h, c), or None.
        like: a tensor of the dtype and device of the zeros.
        shape: the shape of h and of c.

    Raises:
        TypeError: the state is not a pair of tensors.
        ValueError: h or c has another shape.
    """
    if state is None:
        zeros = like.new_zeros(shape)
        return zeros, zeros
    if not isinstance(state, (tuple, list)) or len(state) != 2:
        raise TypeError(expected(where, "state", "be a pair (h, c) of Tensors or None", type(state).__name__))
    h, c = state
    if isinstance(h, Tensor) and isinstance(c, Tensor) and h.shape == c.shape == tuple(shape):
        return h, c
    for name, tensor in (("h", h), ("c", c)):
        if not isinstance(tensor, Tensor):
            raise TypeError(expected(where, f"state: {name}", "be a Tensor", type(tensor).__name__))
        if tuple(tensor.shape) != tuple(shape):
            raise ValueError(expected(where, f"state: {name}", f"have shape {tuple(shape)}", tuple(tensor.shape)))
    return h, c


def through_time(
    steps: Steps, input: Tensor, h0: Tensor, c0: Tensor, batch_first: bool, lengths: Tensor | Sequence[int] | None
) -> tuple[Tensor, State]:
    """Returns the output of all steps in the layout of the input, and each sequence's last state.

    The output is 0 for the steps after the length of a sequence, and the last state is the state after the sequence's
    own last step. All steps are computed for every sequence, since a step does not depend on later steps.

    Args:
        steps: computes all steps.
        input: (T, B, F), or (B, T, F) with ``batch_first``.
        h0, c0: (B, S), the first state.
        batch_first: whether the batch is the first dimension of input and output.
        lengths: the number of steps of each sequence; None for T steps each.
    """
    x = input.transpose(0, 1) if batch_first else input
    h, cells, last = steps(x, h0, c0)
    if lengths is not None:
        h, last = _at_lengths(h, cells, _checked(lengths, x.shape[0], x.shape[1]).to(h.device))
    return (h.transpose(0, 1) if batch_first else h), last


def _checked(lengths: Tensor | Sequence[int], steps: int, rows: int) -> Tensor:
    found = torch.as_tensor(lengths)
    if found.is_floating_point() or found.dtype == torch.bool or tuple(found.shape) != (rows,):
        wanted = f"be {rows} integers, one a row"
        raise ValueError(expected("lltm", "lengths", wanted, f"{found.dtype} of shape {tuple(found.shape)}"))
    if found.is_cuda:
        raise ValueError(expected("lltm", "lengths", "be on the CPU", found.device))
    if rows and not 1 <= int(found.min()) <= int(found.max()) <= steps:
        raise ValueError(expected("lltm", "lengths", f"be from 1 to {steps}", found.tolist()))
    return found.to(torch.int64)


def _at_lengths(h: Tensor, cells: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
    at = (lengths - 1).view(1, -1, 1).expand(1, *h.shape[1:])
    last = h.gather(0, at)[0], cells.gather(0, at)[0]
    behind = torch.arange(h.shape[0], device=h.device).unsqueeze(1) >= lengths
    return h.masked_fill(behind.unsqueeze(2), 0), last


def through_layers(
    layers: Sequence[Callable[..., tuple[Tensor, State]]],
    input: Tensor | PackedSequence,
    state: State | None,
    state_size: int,
    batch_first: bool,
) -> tuple[Any, State]:
    """Returns the output of the last layer, and the last states of all layers, (layers, B, S).

    Args:
        layers: functions of (input, state, lengths) that return (output, state); the first dimension is time.
        input: (T, B, F); (B, T, F) with ``batch_first``; (T, F) without a batch; or a ``PackedSequence``.
        state: h and c, (layers, B, S) each, or (layers, S) without a batch; zeros by default.
        state_size: S.
        batch_first: whether the batch is the first dimension of input and output.
    """
    if isinstance(input, PackedSequence):
        return _through_packed(layers, input, state, state_size)
    if not isinstance(input, Tensor):
        raise TypeError(expected("LLTM", "input", "be a Tensor or a PackedSequence", type(input).__name__))
    if input.dim() not in (2, 3):
        wanted = "have shape (T, B, F), (B, T, F) with batch_first, or (T, F)"
        raise ValueError(expected("LLTM", "input", wanted, tuple(input.shape)))
    batched = input.dim() == 3
    x = input.unsqueeze(1) if not batched else input.transpose(0, 1) if batch_first else input
    shape = (len(layers), x.shape[1], state_size) if batched else (len(layers), state_size)
    h, c = initial_state("LLTM", state, x, shape)
    if not batched:
        h, c = h.unsqueeze(1), c.unsqueeze(1)
    output, (h, c) = _stacked(layers, x, h, c, None)
    if not batched:
        return output.squeeze(1), (h.squeeze(1), c.squeeze(1))
    return (output.transpose(0, 1) if batch_first else output), (h, c)


def _stacked(
    layers: Sequence[Callable[..., tuple[Tensor, State]]], x: Tensor, h: Tensor, c: Tensor, lengths: Tensor | None
) -> tuple[Tensor, State]:
    last = []
    for i, layer in enumerate(layers):
        x, state = layer(x, (h[i], c[i]), lengths)
        last.append(state)
    return x, (torch.stack([s[0] for s in last]), torch.stack([s[1] for s in last]))


def _through_packed(
    layers: Sequence[Callable[..., tuple[Tensor, State]]],
    packed: PackedSequence,
    state: State | None,
    state_size: int,
) -> tuple[PackedSequence, State]:
    padded, lengths = pad_packed_sequence(packed)
    h, c = initial_state("LLTM", state, padded, (len(layers), padded.shape[1], state_size))
    output, last = _stacked(layers, padded, h, c, lengths)
    order = packed.sorted_indices
    if order is not None:
        output, lengths = output.index_select(1, order), lengths[order.cpu()]
    data = pack_padded_sequence(output, lengths).data
    return PackedSequence(data, packed.batch_sizes, order, packed.unsorted_indices), last
