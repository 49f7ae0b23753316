"""Arguments that have their default, and gradients that a backward does not take."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cupyops.torch import Operator
from tests.torch.derivative_cases import damped, damped_reference

# Arguments that have their default, which PyTorch's dispatcher leaves out, too, where they are given.
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "the operator": lambda x: damped(x),
    "the operator, the default given": lambda x: damped(x, 0.25),
    "torch.ops": lambda x: torch.ops.derivatives.damped(x),
    "torch.ops, the default given": lambda x: torch.ops.derivatives.damped(x, 0.25),
    "the overload": lambda x: damped.op(x, rate=0.25),
}
EACH_WAY = pytest.mark.parametrize("way", WAYS)


def _numbers(device: str) -> Tensor:
    return torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)


def _assert_trains(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    (got,) = torch.autograd.grad(function(x).sin().sum(), x)
    (wanted,) = torch.autograd.grad(damped_reference(x, 0.25).sin().sum(), x)
    torch.testing.assert_close(got, wanted)


@EACH_WAY
def test_a_declared_backward_takes_a_number_at_its_default(way: str, device: str) -> None:
    x = _numbers(device)
    _assert_trains(WAYS[way], x)
    assert torch.autograd.gradcheck(WAYS[way], x)
    assert torch.autograd.gradgradcheck(WAYS[way], x)


@EACH_WAY
def test_a_declared_backward_is_compiled_with_a_number_at_its_default(way: str, device: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda x: WAYS[way](2 * x) / 2, fullgraph=True, backend="aot_eager")
    x = _numbers(device)
    (got,) = torch.autograd.grad(compiled(x).sum(), x)
    (wanted,) = torch.autograd.grad(damped_reference(2 * x, 0.25).sum() / 2, x)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("arguments", [(), (0.25,), (0.5,)], ids=["left out", "at the default", "elsewhere"])
def test_opcheck_of_a_number_with_a_default(arguments: tuple[float, ...], device: str) -> None:
    torch.library.opcheck(damped.op, (_numbers(device), *arguments))


@EACH_WAY
def test_a_number_at_its_default_is_batched(way: str, device: str) -> None:
    x = _numbers(device).detach()
    torch.testing.assert_close(torch.func.vmap(WAYS[way])(x), damped_reference(x, 0.25))
    gradient = torch.func.vmap(torch.func.grad(lambda row: WAYS[way](row).sin().sum()))
    wanted = torch.func.grad(lambda x: damped_reference(x, 0.25).sin().sum())(x)
    torch.testing.assert_close(gradient(x), wanted)


@pytest.mark.parametrize("default", ["", "=2.0"])
def test_a_number_that_the_backward_does_not_ask_for_counts_in_the_derivatives(default: str, device: str) -> None:
    """They are made of the reference, which was given the number's default."""

    def backward(grad_y: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return grad_y * y / x

    op = Operator(
        f"derivatives::times(Tensor x, float factor{default}) -> Tensor y",
        lambda x, factor: x * factor,
        backward=backward,
        reference=lambda x, factor: x * factor,
    )
    x = _numbers(device)
    for call in (op, op.op):
        (grad,) = torch.autograd.grad(call(x, 5.0).square().sum(), x, create_graph=True)
        torch.testing.assert_close(grad, 50 * x)
        (second,) = torch.autograd.grad(grad.sum(), x, create_graph=True)
        torch.testing.assert_close(second, torch.full_like(x, 50))
        found = torch.func.grad(lambda x, call=call: call(x, 5.0).square().sum())(x.detach())
        torch.testing.assert_close(found, 50 * x.detach())


# A result whose gradient the backward does not take


def _both(x: Tensor) -> tuple[Tensor, Tensor]:
    """Twice x, and the square of that: two calls of an operator, so that kernels run where kernels run."""
    return damped(x, 0.0) * 2, damped(x, 0.0) ** 2


def _reference(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x**2


one_of_two: Any = Operator(
    "derivatives::one_of_two(Tensor x) -> (Tensor y, Tensor z)",
    lambda x: tuple(t.detach() for t in _both(x.detach())),
    backward=lambda grad_y: grad_y * 2,
    reference=_reference,
)


@pytest.mark.parametrize("through_library", [False, True])
def test_a_result_whose_gradient_is_not_taken_is_not_differentiable(device: str, through_library: bool) -> None:
    call = one_of_two.op if through_library else one_of_two
    x = _numbers(device)
    y, z = call(x)
    assert y.requires_grad
    assert not z.requires_grad
    torch.testing.assert_close(z, x.detach() ** 2)
    (grad,) = torch.autograd.grad(y.sum() + z.sum(), x)
    assert grad.unique().tolist() == [2.0]
    with pytest.raises(RuntimeError, match="does not require grad"):
        z.sum().backward()


def test_a_transform_sees_no_gradient_of_it_either(device: str) -> None:
    x = _numbers(device).detach()
    found = torch.func.grad(lambda x: sum(y.sum() for y in one_of_two(x)))(x)
    assert found.unique().tolist() == [2.0]


@pytest.mark.parametrize("through_library", [False, True])
def test_a_tensor_that_the_backward_makes_no_gradient_of_gets_none(device: str, through_library: bool) -> None:
    """On CPU tensors the reference used to return a gradient."""
    op = Operator(
        "derivatives::scaled_by(Tensor x, Tensor scale) -> Tensor y",
        lambda x, scale: x.detach() * scale.detach(),
        backward=lambda grad_y, scale: grad_y * scale,
        wrt=["x"],
        reference=lambda x, scale: x * scale,
    )
    call = op.op if through_library else op
    x, scale = _numbers(device), _numbers(device)
    grad_x, grad_scale = torch.autograd.grad(call(x, scale).sum(), (x, scale), allow_unused=True)
    torch.testing.assert_close(grad_x, scale.detach())
    assert grad_scale is None
