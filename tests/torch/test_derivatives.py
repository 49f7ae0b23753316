"""Second and third derivatives of operators of every kind, by every method that PyTorch has to them, compared with PyTorch's own operators.

A method gives the gradients of a loss that is not linear in the results, or those of their products with fixed directions:
:mod:`cupyops.torch.check.methods`, whose checks hold anybody's operators to the same.
"""

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cupyops.torch.check.methods import METHODS, Method, Problem
from tests.torch.derivative_cases import CASES, Derived

# check_op walks every method of the shipped operators, by each input, and through torch.ops; a function is left to each kind of method.
SHIPPED = [case for case in CASES if case.name.startswith(("add", "gelu", "layer_norm", "linear", "lltm"))]
OWN = [case for case in CASES if case not in SHIPPED]
EACH = pytest.mark.parametrize("case", OWN, ids=lambda case: case.name)
DEEPEST = ["autograd, three times", "torch.func.grad of grad of grad"]
AUTOGRAD = [name for name, method in METHODS.items() if not method.transforms]
# Of the largest derivative of the order; of those of the orders before, where they cancel to nothing.
TOLERANCE, ROUNDINGS = 1e-9, 1e-13

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Users' programs do not turn warnings of PyTorch into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def largest(found: list[Tensor]) -> float:
    return max(float(x.abs().max()) for x in found)


def theirs(problem: Problem, order: int) -> list[Tensor]:
    """Derivatives by plain autograd, without a graph of the last derivative."""
    if not order:
        return [problem.loss(*problem.inputs)]
    by = {1: METHODS["torch.func.grad"], 2: METHODS["autograd of autograd"], 3: METHODS["autograd, three times"]}
    return [x.detach() for x in by[order].run(problem)]


def assert_right(method: Method, ours: Problem, reference: Problem) -> None:
    wanted = theirs(reference, method.order)
    allowed = TOLERANCE * largest(wanted)
    allowed += ROUNDINGS * max(largest(theirs(reference, order)) for order in range(method.order))
    for i, (got, right) in enumerate(zip(method.run(ours), wanted, strict=True)):
        assert got.shape == right.shape
        off = float((got.detach() - right).abs().max())
        assert off <= allowed, f"by input {i}: {got.flatten()[:4].tolist()}, and it is {right.flatten()[:4].tolist()}"


def test_the_formula_that_stands_for_layer_norm_is_pytorchs_up_to_the_second_derivative() -> None:
    case = next(case for case in CASES if case.name == "layer_norm_weight_bias")
    own = case.problem(lambda x, weight, bias: F.layer_norm(x, (4,), weight, bias), "cpu")
    for order in (1, 2):
        for x, right in zip(theirs(case.problem(case.theirs, "cpu"), order), theirs(own, order), strict=True):
            torch.testing.assert_close(x, right)


@pytest.mark.sample(48)
@EACH
@pytest.mark.parametrize("method", METHODS)
def test_a_derivative_by_each_method(case: Derived, method: str, device: str) -> None:
    assert_right(METHODS[method], case.problem(case.ours, device), case.problem(case.theirs, device))


@pytest.mark.sample(14)
@pytest.mark.parametrize("case", SHIPPED, ids=lambda case: case.name)
@pytest.mark.parametrize("method", DEEPEST)
def test_a_derivative_of_a_shipped_function(case: Derived, method: str, device: str) -> None:
    assert_right(METHODS[method], case.problem(case.ours, device), case.problem(case.theirs, device))


@pytest.mark.sample(25)
@EACH
@pytest.mark.parametrize("method", AUTOGRAD)
def test_a_derivative_through_the_registered_operator(case: Derived, method: str, device: str) -> None:
    assert case.through is not None
    assert_right(METHODS[method], case.problem(case.through, device), case.problem(case.theirs, device))


@pytest.mark.sample(12)
@EACH
@pytest.mark.parametrize("method", ["autograd, three times", "torch.func.grad of grad", "torch.func.jacrev of grad"])
def test_a_derivative_by_one_input_alone(case: Derived, method: str, device: str) -> None:
    for i in range(len(case.shapes)):
        assert_right(METHODS[method], case.problem(case.ours, device, i), case.problem(case.theirs, device, i))
