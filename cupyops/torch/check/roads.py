"""Checks of derivatives beyond the first, by every road that PyTorch has to them: autograd, torch.func, torch.ops.

A road ends in the same numbers as every other of its order: with a loss L, the gradients of L, those of Σ v·grad L, and
those of Σ v·grad(Σ v·grad L), for fixed directions v. L is not linear in the results, so that the gradient that reaches
a backward depends on the inputs as well: what is counted twice, or lost, then shows.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .inputs import Arguments, fresh, lead_of
from .registry import Fault, Skip, check
from .subject import Subject, first_words, quiet, refuses_gradient

__all__ = ["ROADS", "Problem", "Road", "derivatives", "transforms"]

# Rows of a sample that are kept: a derivative of a row does not depend on how many there are.
ROWS = 2
# A sample without rows to speak of keeps so many elements.
ELEMENTS = 7
# Roads that make a whole matrix of second derivatives take so many elements of inputs.
MATRIX = 64

Function = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Problem:
    """A function to differentiate, and where.

    Attributes:
        outputs: of the tensors to differentiate by, the results that take gradients.
        inputs: those tensors.
        seeds: by result, what makes a loss of it: Σ sin(seed · result).
        directions: by input, what the next derivative is taken along.
    """

    outputs: Function
    inputs: tuple[Tensor, ...]
    seeds: tuple[Tensor, ...]
    directions: tuple[Tensor, ...]

    def loss(self, *inputs: Tensor) -> Tensor:
        """A number that is not linear in the results."""
        return _total((y * seed).sin().sum() for y, seed in zip(self.outputs(*inputs), self.seeds, strict=True))

    def along(self, gradients: Sequence[Tensor]) -> Tensor:
        """The derivative of the loss along the directions, of its gradients."""
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
class Road:
    """One way to derivatives.

    Attributes:
        order: of the derivatives, 1 to 3.
        run: of a problem, the derivatives by each of its inputs.
        transforms: it goes by torch.func.
        matrix: it makes all second derivatives, a square of them.
        forward: it takes derivatives in forward mode, which an operator has by its reference, or a program by its expressions.
    """

    order: int
    run: Callable[[Problem], Sequence[Tensor]]
    transforms: bool = False
    matrix: bool = False
    forward: bool = False


# Autograd


def _by_autograd(value: Tensor, leaves: Sequence[Tensor], graph: bool) -> tuple[Tensor, ...]:
    """Zeros where nothing leads back to the leaves: a gradient that is lost is compared, too."""
    if not value.requires_grad:
        return tuple(map(torch.zeros_like, leaves))
    return torch.autograd.grad(value, leaves, create_graph=graph, materialize_grads=True)


def _autograd(order: int, graph: bool) -> Callable[[Problem], Sequence[Tensor]]:
    """Autograd of autograd; ``graph``: the last derivative might be differentiated again."""

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
    """The product of second derivatives, by inputs of both sides, with the directions."""
    return [
        _total(torch.tensordot(block, v, dims=v.dim()) for block, v in zip(row, p.directions, strict=True))
        for row in matrix
    ]


# torch.func


def _func(p: Problem, order: int) -> Callable[..., tuple[Tensor, ...]]:
    """torch.func.grad of itself, so often."""
    value = p.loss if order == 1 else lambda *inputs: p.along(_func(p, order - 1)(*inputs))
    found: Callable[..., tuple[Tensor, ...]] = torch.func.grad(value, p.argnums)
    return found


def _by_func(order: int) -> Callable[[Problem], Sequence[Tensor]]:
    return lambda p: _func(p, order)(*p.inputs)


def _batched(order: int) -> Callable[[Problem], Sequence[Tensor]]:
    """Batched over three of each input, of which the middle one is the problem's."""

    def run(p: Problem) -> Sequence[Tensor]:
        others = [x.flatten().roll(1).view(x.shape) for x in p.inputs]
        stacks = (torch.stack((other, x, other)) for x, other in zip(p.inputs, others, strict=True))
        return [g[1] for g in torch.func.vmap(_func(p, order))(*stacks)]

    return run


def _then_autograd(order: int) -> Callable[[Problem], Sequence[Tensor]]:
    """Autograd of what torch.func.grad gives."""

    def run(p: Problem) -> Sequence[Tensor]:
        leaves = p.leaves()
        return _by_autograd(p.along(_func(p, order - 1)(*leaves)), leaves, False)

    return run


def _pulled_later(order: int) -> Callable[[Problem], Sequence[Tensor]]:
    """torch.func.vjp, whose pullback is called when the transform has ended."""

    def run(p: Problem) -> Any:
        if order > 1:
            return torch.func.vjp(_func(p, order - 1), *p.inputs)[1](p.directions)
        outputs, pull = torch.func.vjp(p.outputs, *p.inputs)[:2]
        return pull(_slopes(p, outputs))

    return run


def _slopes(p: Problem, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of the loss by the results."""
    return tuple(seed * (y * seed).cos() for y, seed in zip(outputs, p.seeds, strict=True))


def _jacobian(p: Problem) -> Sequence[Tensor]:
    rows = torch.func.jacrev(p.outputs, p.argnums)(*p.inputs)
    slopes = _slopes(p, [y.detach() for y in p.outputs(*p.inputs)])
    return [
        _total(torch.tensordot(g, row[i], dims=g.dim()) for g, row in zip(slopes, rows, strict=True)) for i in p.argnums
    ]


def _jacobian_of_gradient(p: Problem) -> Sequence[Tensor]:
    return _times_directions(p, torch.func.jacrev(_func(p, 1), p.argnums)(*p.inputs))


def _jacobian_of_jacobian(p: Problem) -> Sequence[Tensor]:
    """What torch.func.hessian does, but for its derivatives in forward mode."""
    inner = torch.func.jacrev(p.loss, p.argnums)
    return _times_directions(p, torch.func.jacrev(inner, p.argnums)(*p.inputs))


def _hessian_by_func(p: Problem) -> Sequence[Tensor]:
    return _times_directions(p, torch.func.hessian(p.loss, p.argnums)(*p.inputs))


ROADS: dict[str, Road] = {
    "autograd of autograd": Road(2, _autograd(2, False)),
    "autograd of autograd, with create_graph at the last": Road(2, _autograd(2, True)),
    "autograd.functional.hessian": Road(2, _hessian(False), matrix=True),
    "autograd.functional.hessian, with create_graph": Road(2, _hessian(True), matrix=True),
    "autograd, three times": Road(3, _autograd(3, False)),
    "autograd, three times, with create_graph at the last": Road(3, _autograd(3, True)),
    "torch.func.grad": Road(1, _by_func(1), transforms=True),
    "torch.func.jacrev": Road(1, _jacobian, transforms=True, matrix=True),
    "torch.func.vjp, pulled when the transform has ended": Road(1, _pulled_later(1), transforms=True),
    "torch.func.vmap of grad": Road(1, _batched(1), transforms=True),
    "torch.func.grad of grad": Road(2, _by_func(2), transforms=True),
    "autograd of torch.func.grad": Road(2, _then_autograd(2), transforms=True),
    "torch.func.jacrev of grad": Road(2, _jacobian_of_gradient, transforms=True, matrix=True),
    "torch.func.jacrev of jacrev": Road(2, _jacobian_of_jacobian, transforms=True, matrix=True),
    "torch.func.hessian": Road(2, _hessian_by_func, transforms=True, matrix=True, forward=True),
    "torch.func.vjp of grad, pulled when the transform has ended": Road(2, _pulled_later(2), transforms=True),
    "torch.func.vmap of grad of grad": Road(2, _batched(2), transforms=True),
    "torch.func.grad of grad of grad": Road(3, _by_func(3), transforms=True),
    "autograd of torch.func.grad of grad": Road(3, _then_autograd(3), transforms=True),
}


# A sample's problem


def _few_rows(subject: Subject, args: Arguments) -> Arguments:
    """The sample with few rows, where it takes another number of them."""
    lead = lead_of(args)
    count = ROWS if lead.dim() > 1 else ELEMENTS
    if not lead.dim() or lead.shape[0] <= count:
        return fresh(args)
    try:
        return subject.rows(args, count)
    except Skip:
        return fresh(args)


def _problem(
    subject: Subject, args: Arguments, wanted: Sequence[int], function: Callable[..., Any] | None = None
) -> Problem:
    """The derivatives of a function, by default the operator, by some of its arguments."""
    ready = subject.need_gradients(args)
    taken = [int(name.partition(" ")[2] or 0) for name in ready]

    def outputs(*inputs: Tensor) -> tuple[Tensor, ...]:
        full = list(args)
        for i, x in zip(wanted, inputs, strict=True):
            full[i] = x
        found = subject.call(full, function)
        return tuple(found[k] for k in taken)

    inputs = tuple(args[i].detach() for i in wanted)
    directions = subject.seeds({str(i): args[i] for i in wanted})
    return Problem(outputs, inputs, tuple(subject.seeds(ready).values()), tuple(directions.values()))


def _problems(subject: Subject, args: Arguments) -> Iterator[tuple[str, list[int], bool]]:
    """By which inputs to differentiate: all of them; each alone; those with few enough elements for a whole matrix."""
    wanted = subject.wanted(args)
    few: list[int] = []
    for i in sorted(wanted, key=lambda i: args[i].numel()):
        if sum(args[k].numel() for k in (*few, i)) <= MATRIX:
            few.append(i)
    few.sort()
    yield "", wanted, few == wanted
    if len(wanted) > 1:
        for i in wanted:
            yield f" by `{subject.schema[i].name}` alone", [i], few == [i]
    if len(few) > 1 and few != wanted:
        yield f" by {', '.join(subject.schema[i].name for i in few)}", few, True


class _Targets:
    """What the roads of a problem should end in: autograd of autograd, without a graph of the last derivative, of the
    reference, or where there is none of the operator, of which `gradgradcheck` has seen that it is right."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.found: dict[int, list[Tensor]] = {}

    def of(self, order: int) -> list[Tensor]:
        if order not in self.found:
            value = [self.problem.loss(*self.problem.inputs).detach()]
            self.found[order] = [x.detach() for x in _autograd(order, False)(self.problem)] if order else value
        return self.found[order]

    def allowed(self, order: int) -> float:
        """Half of the digits of the largest derivative, for sums that cancel, and the roundings of the derivatives before,
        where all of these are zero."""
        eps = torch.finfo(torch.float64).eps
        before = max(_largest(self.of(k)) for k in range(order))
        return math.sqrt(eps) * _largest(self.of(order)) + 1024 * eps * before

    def trusted(self, order: int) -> bool:
        """Whether the derivatives are what differences of those before give: PyTorch's own third one of layer_norm is not."""
        p, h = self.problem, 1e-5
        ahead, behind = (_autograd(order - 1, False)(replace(p, inputs=tuple(_step(p, sign * h)))) for sign in (1, -1))
        slopes = [(a - b) / (2 * h) for a, b in zip(ahead, behind, strict=True)]
        off = _largest([x - right for x, right in zip(slopes, self.of(order), strict=True)])
        return off <= 1e-3 * max(_largest(self.of(k)) for k in range(order + 1))


def _step(p: Problem, h: float) -> Iterator[Tensor]:
    return (x + h * v for x, v in zip(p.inputs, p.directions, strict=True))


def _largest(found: Sequence[Tensor]) -> float:
    return max((float(x.abs().max()) for x in found if x.numel()), default=0.0)


def _hold(targets: _Targets, road: Road, problem: Problem, names: Sequence[str], than: str) -> None:
    """The road ends where it should.

    Raises:
        Fault: it does not.
    """
    wanted, allowed = targets.of(road.order), targets.allowed(road.order)
    for name, x, right in zip(names, road.run(problem), wanted, strict=True):
        if x.shape != right.shape:
            raise Fault(f"by `{name}` has shape {tuple(x.shape)}, and {than} {tuple(right.shape)}")
        off = (x.detach() - right).abs()
        if right.numel() and not float(off.max()) <= allowed:  # NaN is not
            at = tuple(int(i) for i in torch.unravel_index(off.nan_to_num(nan=math.inf).argmax(), off.shape))
            raise Fault(
                f"by `{name}`{list(at)} is {x[at].item()!r}, and {than} {right[at].item()!r}: off by "
                f"{off[at].item():.3g}, {allowed:.3g} are allowed"
            )


def _orders(own: Problem, targets: _Targets) -> tuple[list[int], str]:
    """Orders of the derivatives that there are, and why there are no more: the operator says that it has none, or PyTorch
    has none of the reference."""
    for order in (1, 2, 3):
        try:
            if order > 1:
                _autograd(order, False)(own)
                if not targets.trusted(order):
                    words = f"PyTorch's own of order {order} of the reference is not what differences give"
                    return list(range(1, order)), words
            targets.of(order)
        except Exception as error:
            if refuses_gradient(error):
                return list(range(1, order)), f"no derivative of order {order}: {first_words(error)}"
            if order not in targets.found:
                return list(range(1, order)), f"none of order {order} of the reference: {first_words(error)}"
    return [1, 2, 3], ""


def _goes(road: Road, problem: Problem) -> bool:
    try:
        road.run(problem)
    except Exception:
        return False
    return True


def _walk(subject: Subject, roads: Mapping[str, tuple[Road, Callable[..., Any] | None]]) -> str:
    """Goes each road, on every sample, by all inputs, and by each alone; a road that is wrong is not gone again."""
    samples = subject.of_dtype("float64")
    reference = subject.reference if subject.op.reference is not None else None
    than = f"by autograd of autograd{' of the reference' if reference else ''} it is"
    walked, faults, why = 0, dict[str, str](), ""
    for args in (_few_rows(subject, args) for args in samples):
        subject.need_gradients(args)
        if any(args[i].dtype != torch.float64 for i in subject.wanted(args)):
            raise Skip("the operator does not take all of its inputs in float64")
        for by, wanted, few in _problems(subject, args):
            names = [subject.schema[i].name for i in wanted]
            right, own = (_problem(subject, args, wanted, function) for function in (reference, None))
            targets = _Targets(right)
            with quiet():
                orders, reason = _orders(own, targets)
            why = why or reason
            for name, (road, function) in roads.items():
                left_out = (road.matrix and not few) or (road.forward and subject.op._with_derivatives is None)
                if name in faults or road.order not in orders or left_out:
                    continue
                problem = own if function is None else _problem(subject, args, wanted, function)
                try:
                    with quiet():
                        _hold(targets, road, problem, names, than)
                except Fault as fault:
                    faults[name] = f"{name}{by}: the derivative of order {road.order} {fault}"
                except Exception as error:
                    if reference is None or _goes(road, right):  # else PyTorch has no such road of the reference
                        faults[name] = f"{name}{by}: {first_words(error)}"
                walked += 1
    if faults:
        first, *others = faults
        raise Fault(f"{faults[first]}{'; wrong, too: ' if others else ''}{'; '.join(others)}")
    if not walked:
        raise Skip(why)
    return f"{walked} roads of {len(samples)} samples in float64{f'; {why}' if why else ''}"


@check(
    "A backward that runs autograd on what it has saved must do so on copies of its own, x.view_as(x): saved tensors are "
    "still part of a graph, in which the gradient that comes in may be made of them. A declared backward, and one that calls "
    "operators, get this right.",
    needs=("gradgradcheck", "subsets", "differentiable", "defaults"),
)
def derivatives(subject: Subject) -> str:
    """Second and third derivatives by autograd are those of the reference, whether or not they are differentiated again."""
    plain = {name: (road, None) for name, road in ROADS.items() if not road.transforms}
    through = {f"{name}, of torch.ops": (road, subject.op.op) for name, (road, _) in plain.items() if not road.matrix}
    return _walk(subject, {**plain, **through})


@check(
    "Save tensors in setup_context, by ctx.save_for_backward, never on ctx; in the backward call operators, neither "
    "torch.autograd.grad nor requires_grad_: the tensors of a transform are wrappers, of which nothing is left when it has "
    "ended.",
    needs=("strides", "gradient_strides", "derivatives", "torch_func", "vmap"),
)
def transforms(subject: Subject) -> str:
    """Derivatives by torch.func are those of the reference: nested, batched, and pulled when the transform has ended."""
    return _walk(subject, {name: (road, None) for name, road in ROADS.items() if road.transforms})
