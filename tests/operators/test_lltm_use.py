"""The LLTM cell: error messages, the module, arrays without PyTorch, CUDA graphs."""

import copy
import re
import sys

import pytest
import torch
from torch import Tensor

import cupyops
from autograd_bridge import LLTM, LLTMCell, lltm_cell
from tests.operators.test_lltm import operands
from tests.support import alike

body = sys.modules["cupyops.ops.lltm.cell"]  # the package gives the function by this name

# Errors


def test_operands_that_do_not_belong_together_are_refused(device: str) -> None:
    x, weights, bias, h, c = (t.detach() for t in operands((2, 3, 4), torch.float32, device))
    refused: list[tuple[type[Exception], tuple[object, ...], str]] = [
        (TypeError, ([1.0], weights, bias, h, c), "lltm_cell: `input` must be a Tensor, got list"),
        (
            TypeError,
            (x.long(), weights, bias, h, c),
            "lltm_cell: `input` must have dtype float16 or bfloat16 or float32 or float64, got int64",
        ),
        (
            TypeError,
            (x, weights.double(), bias, h, c),
            "lltm_cell: `weights` must have dtype float32, as `input`, got float64",
        ),
        (
            TypeError,
            (x, weights, bias, h, c.half()),
            "lltm_cell: `old_cell` must have dtype float32, as `input`, got float16",
        ),
        (
            ValueError,
            (x, weights, bias, h[:1], c),
            "lltm_cell: `old_h` must have shape (B, S) = (2, 4), got (1, 4)",
        ),
        (
            ValueError,
            (x, weights, bias, h, c[:, :3]),
            "lltm_cell: `old_cell` must have shape (B, S) = (2, 4), got (2, 3)",
        ),
        (
            ValueError,
            (x, weights.t(), bias, h, c),
            "lltm_cell: `weights` must have shape (3 * S, S + F) = (12, 7), got (7, 12)",
        ),
        (ValueError, (x, weights, bias[:4], h, c), "lltm_cell: `bias` must have shape (3 * S,) = (12,), got (4,)"),
        (
            ValueError,
            (x[0], weights, bias, h, c),
            "lltm_cell: `old_h` must have shape (S,), as `input` has (3,), got (2, 4)",
        ),
        (ValueError, (x[0, 0], weights, bias, h, c), "lltm_cell: `input` must have shape (B, F) or (F), got ()"),
    ]
    for kind, arguments, words in refused:
        with pytest.raises(kind, match=re.escape(words)):
            lltm_cell(*arguments)  # type: ignore[arg-type]
    lltm_cell(x, weights, bias, h, c)  # and life goes on


def test_backward_refuses_gradients_that_do_not_belong(device: str) -> None:
    x, weights, _, h, c = (t.detach() for t in operands((2, 3, 4), torch.float32, device))
    backward = torch.ops.cupyops.lltm_cell_backward
    gates = torch.zeros(2, 12, device=device)
    with pytest.raises(ValueError, match=re.escape("`grad_h` must have shape (B, S) = (2, 4), got (4, 2)")):
        backward(h.t(), None, None, x, weights, h, c, gates, None, *(True,) * 5)
    with pytest.raises(TypeError, match=r"`grad_cell` must have dtype float32, as `input`, got float64"):
        backward(None, c.double(), None, x, weights, h, c, gates, None, *(True,) * 5)
    with pytest.raises(ValueError, match=re.escape("`gates` must have shape (B, 3 * S) = (2, 12), got (2, 8)")):
        backward(h, None, None, x, weights, h, c, gates[:, :8], None, *(True,) * 5)


# The module


def test_parameters_of_the_module() -> None:
    cell = LLTMCell(5, 7)
    assert {n: tuple(p.shape) for n, p in cell.named_parameters()} == {"weights": (21, 12), "bias": (21,)}
    assert list(cell.state_dict()) == ["weights", "bias"]
    bound = 7**-0.5
    for parameter in cell.parameters():
        assert parameter.abs().max() <= bound
        assert parameter.min() < -bound / 2
        assert parameter.max() > bound / 2
    before = cell.weights.detach().clone()
    cell.reset_parameters()
    assert not torch.equal(cell.weights, before)
    assert repr(cell) == "LLTMCell(input_features=5, state_size=7)"
    assert LLTM(2, 3, dtype=torch.float64).weights.dtype == torch.float64
    with pytest.raises(ValueError, match=r"LLTMCell: expected .* state_size of at least 1, got 5 and 0"):
        LLTMCell(5, 0)


def test_the_module_is_the_function(device: str) -> None:
    for kind in (LLTMCell, LLTM):
        cell = kind(5, 6).to(device)
        x, h, c = torch.randn(3, 5, device=device), torch.randn(3, 6, device=device), torch.randn(3, 6, device=device)
        for y, wanted in zip(cell(x, (h, c)), lltm_cell(x, cell.weights, cell.bias, h, c), strict=True):
            assert alike(y, wanted)
        zeros = torch.zeros(3, 6, device=device)
        for y, wanted in zip(cell(x), lltm_cell(x, cell.weights, cell.bias, zeros, zeros), strict=True):
            assert alike(y, wanted)
        assert cell(x[0])[0].shape == (6,)
        twin = copy.deepcopy(cell)
        twin.load_state_dict(cell.state_dict())
        assert alike(twin(x)[1], cell(x)[1])
    with pytest.raises(ValueError, match=re.escape("LLTM: `state: c` must have shape (3, 6), got (6, 3)")):
        cell(x, (h, c.t()))
    with pytest.raises(TypeError, match=r"LLTM: `state` must be a pair \(h, c\) of Tensors or None, got Tensor"):
        cell(x, h)


# Other ways in


@pytest.mark.simulator
def test_arrays_without_pytorch() -> None:
    inputs = [x.detach() for x in operands((5, 3, 4), torch.float32, "cpu")]
    wanted = [x.numpy() for x in torch.ops.cupyops.lltm_cell(*inputs)]
    grads = [torch.randn(5, 4), torch.randn(5, 4)]
    x, weights, _, h, _ = inputs
    with cupyops.simulate(sanitize=True):
        for whole in (2**40, 0):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(body, "WHOLE_WORK", whole)
                found = cupyops.lltm_cell(*(t.numpy() for t in inputs))
                for a, b in zip(found, wanted, strict=True):
                    torch.testing.assert_close(torch.from_numpy(a), torch.from_numpy(b))
                arrays = [t.numpy() for t in (*grads, x, weights, h)]
                back = cupyops.lltm_cell_backward(*arrays, *found[1:])
                saved = (x, weights, h, *map(torch.from_numpy, found[1:]))
                for a, b in zip(
                    back,
                    torch.ops.cupyops.lltm_cell_backward(*grads, None, *saved, None, *(True,) * 5),
                    strict=True,
                ):
                    torch.testing.assert_close(torch.from_numpy(a), b)


@pytest.mark.gpu
def test_replayed_as_a_graph_with_new_data() -> None:
    cell = LLTMCell(32, 128).cuda()
    parameters = list(cell.parameters())
    inputs = [torch.randn(16, n, device="cuda") for n in (32, 128, 128)]

    def step() -> tuple[Tensor, ...]:
        new_h, new_cell = cell(inputs[0], (inputs[1], inputs[2]))
        loss = new_h.square().sum() + new_cell.sum()
        return loss.detach(), *torch.autograd.grad(loss, parameters)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    for _ in range(3):
        for x in inputs:
            x.normal_()
        graph.replay()
        for a, b in zip([x.clone() for x in recorded], step(), strict=True):
            torch.testing.assert_close(a, b)
