"""Tensors that are plain by their type and have no memory, no shape, or a batch of tangents."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import cupyops
from cupyops.torch import Operator
from cupyops.torch.core.dispatch import call_source, write_call
from cupyops.torch.ops.add2 import add2
from cupyops.torch.ops.gelu import gelu
from cupyops.torch.ops.layer_norm import layer_norm
from cupyops.torch.ops.linear import linear
from cupyops.torch.ops.softmax import softmax

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
LANES = pytest.mark.parametrize("lane", [nullcontext, cupyops.simulate], ids=["reference", "kernels"])
Lane = Callable[[], AbstractContextManager[Any]]


def normalized(x: Tensor) -> Tensor:
    return layer_norm(x, (4,), None, None)


@LANES
@pytest.mark.parametrize("function", [gelu, normalized])
def test_a_vectorized_jacobian_in_forward_mode(function: Callable[[Tensor], Tensor], lane: Lane) -> None:
    x = torch.linspace(-1, 2, 8).view(2, 4)
    options: Any = {"vectorize": True, "strategy": "forward-mode"}
    with lane():
        found = torch.autograd.functional.jacobian(function, x, **options)
        wanted = torch.autograd.functional.jacobian(function, x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_vectorized_jacobian_without_a_reference_is_refused_in_words() -> None:
    op = Operator("cupyops_test::jvp_alone(Tensor x) -> Tensor y", lambda x: x * 2, jvp=lambda tangent_x: tangent_x * 2)
    options: Any = {"vectorize": True, "strategy": "forward-mode"}
    with (
        cupyops.simulate(),
        pytest.raises(RuntimeError, match="jvp_alone.* has no forward mode for a batch of tangents"),
    ):
        torch.autograd.functional.jacobian(op, torch.ones(3), **options)


@LANES
@pytest.mark.parametrize(
    "function",
    [
        gelu,
        normalized,
        lambda x: softmax(x, -1),
        lambda x: add2(x, torch.ones(2, 4)),
        lambda x: linear(x, torch.ones(3, 4), None),
    ],
)
def test_zeros_without_memory(function: Callable[[Tensor], Tensor], lane: Lane) -> None:
    zeros = torch._efficientzerotensor((2, 4))
    with lane():
        torch.testing.assert_close(function(zeros), function(torch.zeros(2, 4)))
        zeros.requires_grad_()
        (found,) = torch.autograd.grad(function(zeros).square().sum(), zeros)
        dense = torch.zeros(2, 4, requires_grad=True)
        (wanted,) = torch.autograd.grad(function(dense).square().sum(), dense)
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "function",
    [gelu, normalized, lambda x: softmax(x, -1), lambda x: add2(x, x), lambda x: linear(x, torch.ones(3, 4), None)],
)
def test_a_strided_nested_tensor_is_refused_where_kernels_run(function: Callable[[Tensor], Tensor]) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
    with (
        cupyops.simulate(),
        pytest.raises(RuntimeError, match=r"layout=torch.jagged, or pad them by x.to_padded_tensor"),
    ):
        function(nested)


def test_a_strided_nested_tensor_takes_a_reference_that_pytorch_computes() -> None:
    parts = [torch.ones(2, 4), torch.ones(3, 4)]
    found = softmax(torch.nested.nested_tensor(parts), -1)
    assert [y.tolist() for y in found.unbind()] == [torch.softmax(x, -1).tolist() for x in parts]
    with pytest.raises(RuntimeError, match="linear: nested tensors of the layout torch.strided are not supported"):
        linear(torch.nested.nested_tensor(parts), torch.ones(3, 4), None)


def test_a_strided_nested_tensor_leaves_the_text_for_a_gpu() -> None:
    def body(x: Tensor) -> Tensor:
        if not x.is_nested:
            raise RuntimeError("mine")
        return x.new_empty(x.shape)

    parts = {"body": body, "apply": body, "dispatch": lambda args: "general"}
    call = write_call(call_source("f", {"x": False}, []).replace("x.is_cuda", "True"), parts, "f", ["x"])
    assert call(torch.nested.nested_tensor([torch.ones(2, 4)])) == "general"
    with pytest.raises(RuntimeError, match="mine"):
        call(torch.ones(2))


@LANES
def test_an_integer_and_a_bool_are_added(lane: Lane) -> None:
    with lane():
        found = add2(torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.bool))
        assert (found.dtype, found.tolist()) == (torch.int32, [2, 2, 2])
