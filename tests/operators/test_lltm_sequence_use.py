"""The LLTM over a sequence in use: PyTorch's machinery, arrays without it, what users of nn.LSTM expect, errors."""

import copy
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import cupyops
from autograd_bridge import LLTM, LLTMLayers, lltm, lltm_cell
from tests.operators.test_lltm_sequence import op, operands, plainly

# PyTorch's machinery


@pytest.mark.sample(1)
def test_opcheck(device: str) -> None:
    for dtype in (torch.float32, torch.float64):
        torch.library.opcheck(op.default, operands((3, 2, 2, 4), dtype, device))


@pytest.mark.sample(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_fullgraph(device: str, dynamic: bool) -> None:
    torch.compiler.reset()
    model = LLTM(3, 4).to(device)

    def loss(x: Tensor) -> Tensor:
        output, (h, c) = model.forward_sequence(2 * x)
        return output.square().sum() + h.sum() + c.sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for steps in (3, 5):
        x = torch.randn(steps, 2, 3, device=device, requires_grad=True)
        twin = x.detach().requires_grad_()
        got, wanted = compiled(x), loss(twin)
        torch.testing.assert_close(got, wanted)
        got.backward()
        wanted.backward()
        torch.testing.assert_close(x.grad, twin.grad)


def test_torch_func_and_vmap(device: str) -> None:
    inputs = [x.detach() for x in operands((3, 2, 2, 3), torch.float64, device)]

    def ours(x: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        output, (h_n, c_n) = lltm(x, (h, c), weights, bias)
        return output, h_n, c_n

    def loss(f: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
        return lambda *x: f(*x)[0].square().sum()

    for got, wanted in zip(
        torch.func.grad(loss(ours), (0, 1, 4))(*inputs),
        torch.func.grad(loss(plainly), (0, 1, 4))(*inputs),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted)
    batch = torch.randn(4, *inputs[0].shape, dtype=torch.float64, device=device)
    found = torch.func.vmap(ours, in_dims=(0, None, None, None, None))(batch, *inputs[1:])[0]
    torch.testing.assert_close(found, torch.stack([plainly(x, *inputs[1:])[0] for x in batch]))


def test_autocast_takes_the_lower_type(device: str) -> None:
    model = LLTM(3, 4).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        output, (h, _) = model.forward_sequence(torch.randn(2, 5, 3, device=device))
    assert output.dtype == h.dtype == torch.bfloat16
    output.float().sum().backward()
    assert model.weights.grad is not None
    assert model.weights.grad.dtype == torch.float32


@pytest.mark.simulator
def test_arrays_without_pytorch() -> None:
    inputs = [x.detach() for x in operands((3, 4, 2, 6), torch.float32, "cpu")]
    wanted = op(*inputs)
    grads = torch.randn_like(wanted[0]), torch.randn_like(wanted[1])
    x, weights, _, h0, _ = inputs
    back = torch.ops.cupyops.lltm_backward(*grads, None, None, x, weights, h0, wanted[0], *wanted[2:], *(True,) * 5)
    with cupyops.simulate(sanitize=True):
        found = cupyops.lltm_sequence(*(t.numpy() for t in inputs))
        arrays = [t.numpy() for t in (*grads, x, weights, h0)]
        gradients = cupyops.lltm_sequence_backward(*arrays, found[0], *found[2:])
    for a, b in zip((*found, *gradients), (*wanted, *back), strict=True):
        torch.testing.assert_close(torch.from_numpy(a), b, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_replayed_as_a_graph_with_new_data() -> None:
    for state in (128, 256, 512):
        inputs = [x.detach() for x in operands((6, 4, 8, state), torch.float32, "cuda")]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            op(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            h = op(*inputs)[0]
        for _ in range(3):
            inputs[0].normal_()
            graph.replay()
            torch.testing.assert_close(h, op(*inputs)[0])


# What users of nn.LSTM expect


def test_a_sequence_is_its_steps(device: str) -> None:
    x, weights, bias, h, c = (t.detach() for t in operands((5, 3, 4, 6), torch.float32, device))
    output, last = lltm(x, (h, c), weights, bias)
    for t in range(5):
        h, c = lltm_cell(x[t], weights, bias, h, c)
        torch.testing.assert_close(output[t], h, rtol=1e-5, atol=1e-6)
    for a, b in zip(last, (h, c), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    across, _ = lltm(x.transpose(0, 1), None, weights, bias, batch_first=True)
    torch.testing.assert_close(across.transpose(0, 1), lltm(x, None, weights, bias)[0])


def test_lengths_cut_rows(device: str) -> None:
    x, weights, bias, h, c = operands((5, 4, 3, 6), torch.float64, device)
    lengths = [5, 1, 3, 4]
    output, last = lltm(x, (h, c), weights, bias, lengths=lengths)
    loss = output.square().sum() + last[0].sum() + last[1].square().sum()
    found = torch.autograd.grad(loss, (x, weights, bias, h, c))
    total = torch.zeros((), dtype=torch.float64, device=device)
    for row, length in enumerate(lengths):
        alone, (h_n, c_n) = lltm(x[:length, row : row + 1], (h[row : row + 1], c[row : row + 1]), weights, bias)
        torch.testing.assert_close(output[:length, row], alone[:, 0])
        assert not output[length:, row].any()
        torch.testing.assert_close(last[0][row], h_n[0])
        torch.testing.assert_close(last[1][row], c_n[0])
        total = total + alone.square().sum() + h_n.sum() + c_n.square().sum()
    for a, b in zip(found, torch.autograd.grad(total, (x, weights, bias, h, c)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequences_as_nn_lstm(device: str, enforce_sorted: bool) -> None:
    """Order, batch sizes and indices are those of the input, as torch.nn.LSTM keeps them."""
    model = LLTMLayers(3, 4, 2, dtype=torch.float64).to(device)
    x = torch.randn(6, 4, 3, dtype=torch.float64, device=device)
    lengths = torch.tensor([6, 5, 2, 1] if enforce_sorted else [2, 6, 1, 5])
    packed = pack_padded_sequence(x, lengths, enforce_sorted=enforce_sorted)
    state = tuple(torch.randn(2, 4, 4, dtype=torch.float64, device=device) for _ in range(2))
    output, (h, c) = model(packed, state)
    theirs, _ = torch.nn.LSTM(3, 4, dtype=torch.float64).to(device)(packed)
    assert torch.equal(output.batch_sizes, theirs.batch_sizes)
    for a, b in ((output.sorted_indices, theirs.sorted_indices), (output.unsorted_indices, theirs.unsorted_indices)):
        assert (a is None and b is None) or torch.equal(a, b)
    padded, found = pad_packed_sequence(output)
    assert torch.equal(found, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, (h_n, c_n) = model(x[:length, row], tuple(s[:, row] for s in state))
        torch.testing.assert_close(padded[:length, row], alone)
        torch.testing.assert_close(h[:, row], h_n)
        torch.testing.assert_close(c[:, row], c_n)


def test_layers_are_called_as_nn_lstm(device: str) -> None:
    ours, theirs = LLTMLayers(3, 4, 2).to(device), torch.nn.LSTM(3, 4, 2).to(device)
    first = LLTMLayers(3, 4, 2, batch_first=True).to(device)
    first.load_state_dict(ours.state_dict())
    x = torch.randn(5, 2, 3, device=device)
    for y, wanted in ((ours(x), theirs(x)), (ours(x[:, 0]), theirs(x[:, 0]))):
        assert y[0].shape == wanted[0].shape
        assert [t.shape for t in y[1]] == [t.shape for t in wanted[1]]
    output, (h, c) = ours(x)
    torch.testing.assert_close(first(x.transpose(0, 1))[0].transpose(0, 1), output)
    middle, (h1, c1) = ours.layers[0].forward_sequence(x)
    last, (h2, c2) = ours.layers[1].forward_sequence(middle)
    torch.testing.assert_close(output, last)
    torch.testing.assert_close(h, torch.stack((h1, h2)))
    torch.testing.assert_close(c, torch.stack((c1, c2)))
    torch.testing.assert_close(ours(x[:, 1])[0], output[:, 1], rtol=1e-5, atol=1e-6)
    twin = copy.deepcopy(ours)
    twin.load_state_dict(ours.state_dict())
    torch.testing.assert_close(twin(x, (h, c))[0], ours(x, (h, c))[0])


# Errors


def test_operands_that_do_not_belong_together_are_refused(device: str) -> None:
    x, weights, bias, h, c = (t.detach() for t in operands((3, 2, 3, 4), torch.float32, device))
    refused: list[tuple[type[Exception], Callable[[], object], str]] = [
        (TypeError, lambda: lltm([1.0], None, weights, bias), "lltm: `input` must be a Tensor, got list"),  # type: ignore[arg-type]
        (
            ValueError,
            lambda: lltm(x[0], None, weights, bias),
            "lltm: `input` must have shape (T, B, F) or (B, T, F), got (2, 3)",
        ),
        (
            TypeError,
            lambda: lltm(x, h, weights, bias),
            "lltm: `state` must be a pair (h, c) of Tensors or None, got Tensor",
        ),  # type: ignore[arg-type]
        (ValueError, lambda: lltm(x, (h, c[:1]), weights, bias), "lltm: `state: c` must have shape (2, 4), got (1, 4)"),
        (
            ValueError,
            lambda: lltm(x, None, weights[:, 1:], bias),
            "lltm: `weights` must have shape (3 * S, S + F) = (12, 7), got (12, 6)",
        ),
        (
            TypeError,
            lambda: lltm(x.half(), None, weights, bias),
            "lltm: `weights` must have dtype float16, as `input`, got float32",
        ),
        (
            TypeError,
            lambda: op(x.int(), weights, bias, h, c),
            "lltm: `input` must have dtype float16 or bfloat16 or float32",
        ),
        (
            ValueError,
            lambda: op(x, weights, bias, h[:1], c),
            "lltm: `h0` must have shape (B, S) = (2, 4), got (1, 4)",
        ),
        (
            ValueError,
            lambda: lltm(x, None, weights, bias, lengths=[1, 4]),
            "lltm: `lengths` must be from 1 to 3, got [1, 4]",
        ),
        (
            ValueError,
            lambda: lltm(x, None, weights, bias, lengths=[0, 3]),
            "lltm: `lengths` must be from 1 to 3, got [0, 3]",
        ),
        (
            ValueError,
            lambda: lltm(x, None, weights, bias, lengths=[3]),
            "lltm: `lengths` must be 2 integers, one a row, got torch.int64 of shape (1,)",
        ),
        (ValueError, lambda: LLTMLayers(3, 4, 0), "LLTMLayers: expected num_layers of at least 1, got 0"),
        (TypeError, lambda: LLTMLayers(3, 4)([1.0]), "LLTM: `input` must be a Tensor or a PackedSequence, got list"),
        (
            ValueError,
            lambda: LLTMLayers(3, 4)(torch.ones(3)),
            "LLTM: `input` must have shape (T, B, F), (B, T, F) with batch_first, or (T, F), got (3,)",
        ),
    ]
    for kind, call, words in refused:
        with pytest.raises(kind, match=re.escape(words)):
            call()
    lltm(x, (h, c), weights, bias)  # and life goes on


def test_backward_refuses_gradients_that_do_not_belong(device: str) -> None:
    x, weights, bias, h0, c0 = (t.detach() for t in operands((3, 2, 3, 4), torch.float32, device))
    h, last, cells, gates = op(x, weights, bias, h0, c0)
    backward = torch.ops.cupyops.lltm_backward
    with pytest.raises(ValueError, match=re.escape("`grad_h` must have shape (T, B, S) = (3, 2, 4), got (2, 4)")):
        backward(h0, None, None, None, x, weights, h0, h, cells, gates, *(True,) * 5)
    with pytest.raises(TypeError, match=r"`grad_last` must have dtype float32, as `input`, got float64"):
        backward(None, last.double(), None, None, x, weights, h0, h, cells, gates, *(True,) * 5)
