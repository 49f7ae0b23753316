"""Methods for derivatives of higher order: autograd, torch.func and forward mode. :mod:`.derivatives` checks them.

A method is one way to compute derivatives of an order in PyTorch. All methods of an order compute the same numbers. L is a
loss, and v are fixed directions: order 1 is grad L, order 2 is grad Σ v·grad L, order 3 is grad Σ v·grad(Σ v·grad L).
L is not linear in the operator's results, so the gradient that a backward receives depends on the inputs. A term that a
backward loses or counts twice then changes the derivatives of higher order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cupyops.torch.core.operator import Operator

__all__ = ["METHODS", "Method", "Problem", "has_forward_mode", "nested_autograd"]

Function = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Problem:
    """A function to differentiate, and the point at which it is differentiated.

    Attributes:
        outputs: the function; takes `inputs` and returns the results that require gradients.
        inputs: the tensors to differentiate by.
        seeds: one tensor per result; the loss is Σ sin(seed · result).
        directions: one tensor per input; the next derivative is the gradient of the derivative along them.
    """

    outputs: Function
    inputs: tuple[Tensor, ...]
    seeds: tuple[Tensor, ...]
    directions: tuple[Tensor, ...]

    def loss(self, *inputs: Tensor) -> Tensor:
        """Returns the loss Σ sin(seed · result)."""
        return _total((y * seed).sin().sum() for y, seed in zip(self.outputs(*inputs), self.seeds, strict=True))

    def along(self, gradients: Sequence[Tensor]) -> Tensor:
        """Returns Σ gradient · direction, the derivative of the loss along the directions."""
        return _total((g * v).sum() for g, v in zip(gradients, self.directions, strict=True))

    @property
    def argnums(self) -> tuple[int, ...]:
        return tuple(range(len(self.inputs)))

    def leaves(self) -> tuple[Tensor, ...]:
        return tuple(x.detach().clone().requires_grad_() for x in self.inputs)


def _total(terms: Iterator[Tensor]) -> Tensor:
    first = next(terms)
    return sum(terms, first)


@dataclass(frozen=True)
class Method:
    """One way to compute derivatives.

    Attributes:
        order: order of the derivatives, 1 to 3.
        run: takes a problem, and returns the derivatives by each of its inputs.
        transforms: whether the method uses torch.func.
        matrix: whether the method computes a Jacobian or Hessian matrix.
        forward: whether the method uses forward mode (:func:`has_forward_mode`).
    """

    order: int
    run: Callable[[Problem], Sequence[Tensor]]
    transforms: bool = False
    matrix: bool = False
    forward: bool = False


def has_forward_mode(op: Operator) -> bool:
    """Returns whether forward mode differentiates an operator: by its jvp, its reference or a program's expressions."""
    return op.jvp is not None or op._with_derivatives is not None


# Autograd


def _by_autograd(value: Tensor, leaves: Sequence[Tensor], graph: bool) -> tuple[Tensor, ...]:
    """Returns the gradients of a value, with zeros for a missing gradient, which must not pass the comparison."""
    if not value.requires_grad:
        return tuple(map(torch.zeros_like, leaves))
    return torch.autograd.grad(value, leaves, create_graph=graph, materialize_grads=True)


def nested_autograd(order: int, graph: bool) -> Callable[[Problem], Sequence[Tensor]]:
    """Returns a method of nested torch.autograd.grad; ``graph`` is create_graph of the last derivative."""

    def run(p: Problem) -> Sequence[Tensor]:
        leaves = p.leaves()
        found: Sequence[Tensor] = ()
        value = p.loss(*leaves)
        for level in range(1, order + 1):
            found = _by_autograd(value, leaves, graph or level < order)
            value = p.along(found)
        return found

    return run


def _hessian(graph: bool) -> Callable[[Problem], Sequence[Tensor]]:
    def run(p: Problem) -> Sequence[Tensor]:
        found = torch.autograd.functional.hessian(p.loss, p.leaves(), create_graph=graph)
        return _times_directions(p, found)

    return run


def _times_directions(p: Problem, matrix: Any) -> Sequence[Tensor]:
    """Returns the product of a matrix of second derivatives, in blocks by input, with the directions."""
    return [
        _total(torch.tensordot(block, v, dims=v.dim()) for block, v in zip(row, p.directions, strict=True))
        for row in matrix
    ]


# torch.func


def _func(p: Problem, order: int) -> Callable[..., tuple[Tensor, ...]]:
    """Returns torch.func.grad nested `order` times."""
    value = p.loss if order == 1 else lambda *inputs: p.along(_func(p, order - 1)(*inputs))
    found: Callable[..., tuple[Tensor, ...]] = torch.func.grad(value, p.argnums)
    return found


def _by_func(order: int) -> Callable[[Problem], Sequence[Tensor]]:
    return lambda p: _func(p, order)(*p.inputs)


def _batched(order: int) -> Callable[[Problem], Sequence[Tensor]]:
    """Returns a method that runs torch.func.vmap over three stacked points, and keeps the result of the second."""

    def run(p: Problem) -> Sequence[Tensor]:
        others = [x.flatten().roll(1).view(x.shape) for x in p.inputs]
        stacks = (torch.stack((other, x, other)) for x, other in zip(p.inputs, others, strict=True))
        return [g[1] for g in torch.func.vmap(_func(p, order))(*stacks)]

    return run


def _then_autograd(order: int) -> Callable[[Problem], Sequence[Tensor]]:
    """Returns a method of torch.autograd.grad over torch.func.grad."""

    def run(p: Problem) -> Sequence[Tensor]:
        leaves = p.leaves()
        return _by_autograd(p.along(_func(p, order - 1)(*leaves)), leaves, False)

    return run


def _pulled_later(order: int) -> Callable[[Problem], Sequence[Tensor]]:
    """Returns a method of torch.func.vjp that calls the vjp function after the transform has ended."""

    def run(p: Problem) -> Any:
        if order > 1:
            return torch.func.vjp(_func(p, order - 1), *p.inputs)[1](p.directions)
        outputs, pull = torch.func.vjp(p.outputs, *p.inputs)[:2]
        return pull(_slopes(p, outputs))

    return run


def _slopes(p: Problem, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns the gradients of the loss with respect to the results."""
    return tuple(seed * (y * seed).cos() for y, seed in zip(outputs, p.seeds, strict=True))


def _jacobian(p: Problem) -> Sequence[Tensor]:
    return _of_rows(p, torch.func.jacrev(p.outputs, p.argnums)(*p.inputs))


def _of_rows(p: Problem, rows: Any) -> Sequence[Tensor]:
    """Returns the gradient of the loss from the Jacobian of the results."""
    slopes = _slopes(p, [y.detach() for y in p.outputs(*p.inputs)])
    return [
        _total(torch.tensordot(g, row[i], dims=g.dim()) for g, row in zip(slopes, rows, strict=True)) for i in p.argnums
    ]


def _jacobian_of_gradient(p: Problem) -> Sequence[Tensor]:
    return _times_directions(p, torch.func.jacrev(_func(p, 1), p.argnums)(*p.inputs))


def _jacobian_of_jacobian(p: Problem) -> Sequence[Tensor]:
    """Computes the Hessian as torch.func.hessian does, with reverse mode in place of forward mode."""
    inner = torch.func.jacrev(p.loss, p.argnums)
    return _times_directions(p, torch.func.jacrev(inner, p.argnums)(*p.inputs))


def _hessian_by_func(p: Problem) -> Sequence[Tensor]:
    return _times_directions(p, torch.func.hessian(p.loss, p.argnums)(*p.inputs))


# Forward mode


def _along(p: Problem, value: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the tangent of a function along the directions."""
    return lambda *inputs: torch.func.jvp(value, inputs, p.directions)[1]


def _forward_jacobian(p: Problem) -> Sequence[Tensor]:
    return _of_rows(p, torch.func.jacfwd(p.outputs, p.argnums)(*p.inputs))


def _forward_over_reverse(p: Problem) -> Any:
    return _along(p, torch.func.grad(p.loss, p.argnums))(*p.inputs)


def _reverse_over_forward(p: Problem) -> Any:
    return torch.func.grad(_along(p, p.loss), p.argnums)(*p.inputs)


def _batched_forward_over_reverse(p: Problem) -> Sequence[Tensor]:
    """Computes the second derivative along three directions at once, and returns the derivative along the second
    direction."""
    gradient = torch.func.grad(p.loss, p.argnums)

    def moved(*directions: Tensor) -> Any:
        return torch.func.jvp(gradient, p.inputs, directions)[1]

    return [g[1] for g in torch.func.vmap(moved)(*(torch.stack((2 * v, v, -v)) for v in p.directions))]


METHODS: dict[str, Method] = {
    "autograd of autograd": Method(2, nested_autograd(2, False)),
    "autograd of autograd, with create_graph at the last": Method(2, nested_autograd(2, True)),
    "autograd.functional.hessian": Method(2, _hessian(False), matrix=True),
    "autograd.functional.hessian, with create_graph": Method(2, _hessian(True), matrix=True),
    "autograd, three times": Method(3, nested_autograd(3, False)),
    "autograd, three times, with create_graph at the last": Method(3, nested_autograd(3, True)),
    "torch.func.grad": Method(1, _by_func(1), transforms=True),
    "torch.func.jacrev": Method(1, _jacobian, transforms=True, matrix=True),
    "torch.func.vjp, pulled when the transform has ended": Method(1, _pulled_later(1), transforms=True),
    "torch.func.vmap of grad": Method(1, _batched(1), transforms=True),
    "torch.func.grad of grad": Method(2, _by_func(2), transforms=True),
    "autograd of torch.func.grad": Method(2, _then_autograd(2), transforms=True),
    "torch.func.jacrev of grad": Method(2, _jacobian_of_gradient, transforms=True, matrix=True),
    "torch.func.jacrev of jacrev": Method(2, _jacobian_of_jacobian, transforms=True, matrix=True),
    "torch.func.hessian": Method(2, _hessian_by_func, transforms=True, matrix=True, forward=True),
    "torch.func.jacfwd": Method(1, _forward_jacobian, transforms=True, matrix=True, forward=True),
    "torch.func.jvp of grad": Method(2, _forward_over_reverse, transforms=True, forward=True),
    "torch.func.grad of jvp": Method(2, _reverse_over_forward, transforms=True, forward=True),
    "torch.func.vmap of jvp of grad": Method(2, _batched_forward_over_reverse, transforms=True, forward=True),
    "torch.func.vjp of grad, pulled when the transform has ended": Method(2, _pulled_later(2), transforms=True),
    "torch.func.vmap of grad of grad": Method(2, _batched(2), transforms=True),
    "torch.func.grad of grad of grad": Method(3, _by_func(3), transforms=True),
    "autograd of torch.func.grad of grad": Method(3, _then_autograd(3), transforms=True),
}
