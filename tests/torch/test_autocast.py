"""Autocast converts an operator's tensors by its policy. Nothing inside the operator runs with autocast on."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import cupyops
from cupyops.torch import Operator, check_op
from cupyops.torch.core.conditions import any_autocast, in_plain_backward
from cupyops.torch.core.dispatch import call_source, write_call
from cupyops.torch.core.gradients import without_autocast


def product(x: Tensor) -> Tensor:
    return x @ x.t()


def body(x: Tensor) -> Tensor:
    assert not any_autocast()
    return x @ x.t()


def gradient(grad_y: Tensor, x: Tensor) -> Tensor:
    assert not any_autocast()
    return (grad_y + grad_y.t()) @ x


def tangent(x: Tensor, tangent_x: Tensor) -> Tensor:
    assert not any_autocast()
    return tangent_x @ x.t() + x @ tangent_x.t()


class Recorded(torch.autograd.Function):
    forward = staticmethod(body)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Tensor:
        return gradient(grad_y, *ctx.saved_tensors)


KINDS: dict[str, dict[str, Any]] = {
    "declared": {"implementation": body, "backward": gradient, "jvp": tangent},
    "function": {"implementation": Recorded},
    "reference": {"implementation": body, "reference": product},
    "all": {"implementation": body, "reference": product, "backward": gradient, "jvp": tangent},
}


def on_all_paths(op: Operator) -> dict[str, Callable[[Tensor], Tensor]]:
    return {
        "called": op,
        "torch.ops": op.op,
        "compiled": torch.compile(lambda x: op(x) * 1, backend="aot_eager"),
        "vmap": lambda x: torch.vmap(op)(x[None])[0],
        "checkpoint": lambda x: checkpoint(op, x, use_reentrant=False),
        "nested": Operator(f"{op.qualified_name}_within(Tensor x) -> Tensor y", lambda x: op(x), reference=product),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_bodies_and_backwards_see_no_autocast_on_any_path(kind: str) -> None:
    op = Operator(f"cupyops_test::quiet_{kind}(Tensor x) -> Tensor y", **KINDS[kind])
    x = torch.randn(4, 3)
    right, want = x @ x.t(), 2 * torch.ones(4, 4) @ x
    for path, call in on_all_paths(op).items():
        leaf = x.clone().requires_grad_()
        with cupyops.simulate(), torch.autocast("cpu", dtype=torch.bfloat16):
            y = call(leaf)
            torch.testing.assert_close(y, right, msg=path)
            if path != "vmap" or "reference" not in KINDS[kind]:  # vmap records PyTorch's own product
                y.sum().backward()
                torch.testing.assert_close(leaf.grad, want, msg=path)


def test_a_body_that_dynamo_traces_sees_no_autocast() -> None:
    x = torch.randn(4, 3)
    wanted = x @ x.t()
    compiled = torch.compile(without_autocast(lambda x: x @ x.t()), backend="eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(x), wanted)


@pytest.mark.parametrize("kind", ["declared", "reference", "all"])
def test_transforms_and_tangents_see_no_autocast(kind: str) -> None:
    op = Operator(f"cupyops_test::moved_{kind}(Tensor x) -> Tensor y", **KINDS[kind])
    x, t = torch.randn(2, 4, 3)
    with cupyops.simulate(), torch.autocast("cpu", dtype=torch.bfloat16):
        moved = torch.func.jvp(op, (x,), (t,))[1]
        grad = torch.func.grad(lambda x: op(x).sum())(x)
        pulled = torch.func.vjp(op.op, x)[1](torch.ones(4, 4))[0]
    torch.testing.assert_close(moved, t @ x.t() + x @ t.t())
    torch.testing.assert_close(grad, 2 * torch.ones(4, 4) @ x)
    torch.testing.assert_close(pulled, grad)


def test_a_declared_policy_still_converts_and_the_body_sees_no_autocast() -> None:
    op = Operator("cupyops_test::lowered(Tensor x) -> Tensor y", body, backward=gradient, autocast="lower")
    x = torch.randn(4, 3, requires_grad=True)
    with cupyops.simulate(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = op(x)
        y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("late", [False, True])
def test_the_generated_dispatch_calls_bodies_without_autocast(late: bool) -> None:
    """The text for CUDA tensors, on tensors that say they are in a GPU's memory."""
    seen = []

    def called(*args: Any) -> Any:
        seen.append(any_autocast())

    text = call_source("f", {"x": False}, [], late=late).replace("x.is_cuda", "True")
    call = write_call(text, {"body": called, "apply": called, "dispatch": None}, "f", ["x"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call(torch.ones(1))
        call(torch.ones(1, requires_grad=True))
        assert not in_plain_backward(torch.ones(1))
    assert seen == [False, late]  # `record` sees autocast, since it may call PyTorch's own operators


@pytest.mark.parametrize("function", [product, lambda x: torch.cat((x, x * x))], ids=["product", "concatenation"])
def test_check_op_blames_no_operator_for_functions_that_autocast_changes(function: Callable[[Tensor], Tensor]) -> None:
    name = "cupyops_test::unblamed(Tensor x) -> Tensor y"
    check_op(Operator(name, function, reference=function), (torch.randn(3, 4),), checks="autocast")
