"""Checks of higher-order derivatives by every method of :mod:`.methods`, and through torch.ops."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .failures import first_words, quiet, refuses_gradient
from .inputs import Arguments, fresh, lead_of
from .methods import METHODS, Method, Problem, has_forward_mode, nested_autograd
from .registry import Fault, Skip, check
from .subject import Subject

__all__ = ["derivatives", "transforms"]

# Rows of a sample that are kept: the derivative of a row does not depend on the number of rows.
ROWS = 2
# Elements that are kept of a sample whose lead has one dimension.
ELEMENTS = 7
# Methods that compute a Jacobian or Hessian matrix run on inputs with at most this many elements in total.
MATRIX = 64


# A sample's problem


def _few_rows(subject: Subject, args: Arguments) -> Arguments:
    """Returns the sample with few rows, or with all of its rows if the operator refuses another number of rows."""
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
    """Returns the problem of differentiating a function, by default the operator, by the arguments `wanted`."""
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
    """Yields the sets of inputs to differentiate by: all inputs, each input alone, and a set small enough for a matrix.

    Yields:
        A label for messages, the positions of the inputs, and whether they are small enough for a matrix method.
    """
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
    """The right derivatives of a problem, by order.

    Nested torch.autograd.grad computes the derivatives, without create_graph at the last order. It differentiates the
    reference. If there is no reference, it differentiates the operator, whose first and second derivatives `gradcheck`
    and `gradgradcheck` have tested.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.found: dict[int, list[Tensor]] = {}

    def of(self, order: int) -> list[Tensor]:
        """Returns the derivatives of an order; order 0 is the loss."""
        if order not in self.found:
            value = [self.problem.loss(*self.problem.inputs).detach()]
            self.found[order] = [x.detach() for x in nested_autograd(order, False)(self.problem)] if order else value
        return self.found[order]

    def allowed(self, order: int) -> float:
        """Returns the allowed absolute error of the derivatives of an order.

        Half of the digits of the largest derivative may be wrong, because sums cancel. A second term covers rounding
        errors of the lower orders if all derivatives of this order are zero.
        """
        eps = torch.finfo(torch.float64).eps
        before = max(_largest(self.of(k)) for k in range(order))
        return math.sqrt(eps) * _largest(self.of(order)) + 1024 * eps * before

    def trusted(self, order: int) -> bool:
        """Returns whether finite differences agree: they do not for PyTorch's third derivative of layer_norm."""
        p, h = self.problem, 1e-5
        ahead, behind = (
            nested_autograd(order - 1, False)(replace(p, inputs=tuple(_step(p, sign * h)))) for sign in (1, -1)
        )
        slopes = [(a - b) / (2 * h) for a, b in zip(ahead, behind, strict=True)]
        off = _largest([x - right for x, right in zip(slopes, self.of(order), strict=True)])
        return off <= 1e-3 * max(_largest(self.of(k)) for k in range(order + 1))


def _step(p: Problem, h: float) -> Iterator[Tensor]:
    return (x + h * v for x, v in zip(p.inputs, p.directions, strict=True))


def _largest(found: Sequence[Tensor]) -> float:
    return max((float(x.abs().max()) for x in found if x.numel()), default=0.0)


def _hold(targets: _Targets, method: Method, problem: Problem, names: Sequence[str], than: str) -> None:
    """Raises unless the method gives the target derivatives of its order.

    Raises:
        Fault: a derivative has another shape, or its error is larger than allowed.
    """
    wanted, allowed = targets.of(method.order), targets.allowed(method.order)
    for name, x, right in zip(names, method.run(problem), wanted, strict=True):
        if x.shape != right.shape:
            raise Fault(f"by `{name}` has shape {tuple(x.shape)}, and {than} {tuple(right.shape)}")
        off = (x.detach() - right).abs()
        if right.numel() and not float(off.max()) <= allowed:  # true for NaN as well
            at = tuple(int(i) for i in torch.unravel_index(off.nan_to_num(nan=math.inf).argmax(), off.shape))
            raise Fault(
                f"by `{name}`{list(at)} is {x[at].item()!r}, and {than} {right[at].item()!r}: off by "
                f"{off[at].item():.3g}, {allowed:.3g} are allowed"
            )


def _orders(own: Problem, targets: _Targets) -> tuple[list[int], str]:
    """Returns the orders of derivatives to check, and why higher orders are left out.

    The operator may refuse an order, and PyTorch may have no correct derivative of that order of the reference.
    """
    for order in (1, 2, 3):
        try:
            if order > 1:
                nested_autograd(order, False)(own)
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


def _goes(method: Method, problem: Problem) -> bool:
    """Returns whether PyTorch can run the method on the problem."""
    try:
        method.run(problem)
    except Exception:
        return False
    return True


def _right(targets: _Targets, method: Method, reference: Problem, names: Sequence[str]) -> bool:
    """Returns whether the method gives the target derivatives of the reference.

    PyTorch's gradient of the tangent of layer_norm is wrong. If an operator takes its tangents from such a reference,
    the fault is PyTorch's.
    """
    try:
        with quiet():
            _hold(targets, method, reference, names, "")
    except Fault:
        return False
    return True


def _walk(subject: Subject, methods: Mapping[str, tuple[Method, Callable[..., Any] | None]]) -> str:
    """Runs each method on every sample, by all inputs and by each input alone; a method that failed is not run again."""
    samples = subject.of_dtype("float64")
    reference = subject.reference if subject.op.reference is not None else None
    than = f"autograd of autograd{' of the reference' if reference else ''} gives"
    walked, faults, why = 0, dict[str, str](), ""
    wrong = dict[str, None]()  # methods by which PyTorch's derivatives of the reference are wrong, in order
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
            for name, (method, function) in methods.items():
                left_out = (method.matrix and not few) or (method.forward and not has_forward_mode(subject.op))
                if name in faults or method.order not in orders or left_out:
                    continue
                problem = own if function is None else _problem(subject, args, wanted, function)
                try:
                    with quiet():
                        _hold(targets, method, problem, names, than)
                except Fault as fault:
                    if reference is not None and not _right(targets, method, right, names):
                        wrong[name] = None
                        continue
                    faults[name] = f"{name}{by}: the derivative of order {method.order} {fault}"
                except Exception as error:
                    # If PyTorch cannot run the method on the reference either, the operator is not at fault.
                    if reference is None or _goes(method, right):
                        faults[name] = f"{name}{by}: {first_words(error)}"
                walked += 1
    if faults:
        first, *others = faults
        raise Fault(f"{faults[first]}{'; wrong, too: ' if others else ''}{'; '.join(others)}")
    if not walked:
        raise Skip(why)
    if wrong:
        why = f"{why}; " * bool(why) + f"PyTorch's own of the reference is wrong by {', '.join(wrong)}"
    return f"{walked} methods on {len(samples)} samples in float64{f'; {why}' if why else ''}"


@check(
    "A backward that runs autograd on saved tensors must run it on copies of its own, x.view_as(x): saved tensors are "
    "part of a graph, and the incoming gradient may depend on them in that graph. A declared backward, and a backward "
    "that calls operators, do not need the copies.",
    needs=("gradgradcheck", "subsets", "differentiable", "defaults"),
    compares="reference",
)
def derivatives(subject: Subject) -> str:
    """Second and third derivatives by autograd are those of the reference, with and without create_graph."""
    plain = {name: (method, None) for name, method in METHODS.items() if not method.transforms}
    through = {
        f"{name}, of torch.ops": (method, subject.op.op) for name, (method, _) in plain.items() if not method.matrix
    }
    return _walk(subject, {**plain, **through})


@check(
    "Save tensors in setup_context, by ctx.save_for_backward, never on ctx. In the backward call operators, neither "
    "torch.autograd.grad nor requires_grad_: a transform passes wrapper tensors, which are invalid after the transform "
    "has ended.",
    needs=("strides", "gradient_strides", "derivatives", "torch_func", "vmap"),
    compares="reference",
)
def transforms(subject: Subject) -> str:
    """Nested grad, jvp, vmap, jacrev and delayed vjp of torch.func give the derivatives of the reference."""
    return _walk(subject, {name: (method, None) for name, method in METHODS.items() if method.transforms})
