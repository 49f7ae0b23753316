"""The cases of the examples' operators and of the tutorial: every implementation that runs here gives the reference's result."""

from collections.abc import Iterator

import pytest
import torch

from benchmarks import own_ops, tutorial
from benchmarks.cases import EXTRA, OPERATORS, Case, check, device_cases, host_cases

SMALL = 2**15


def small(module: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(own_ops, "LEAST", SMALL)
    return module.cases([SMALL])


def checked(case: Case, name: str) -> float:
    inputs = case.inputs(torch.Generator().manual_seed(0))
    return check(case, case.bind(case.implementations[name](), inputs)(), case.expected(inputs))


@pytest.mark.thorough
def test_the_cases_of_own_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for case in small(own_ops, monkeypatch):
        for name in ("ours", "eager"):
            # PyTorch's own rounds SwiGLU's product twice, and RMSNorm's before the weight.
            if (case.variant, name) == ("dropout", "ours"):
                continue  # without a reference it is a kernel, which the examples' own tests run
            checked(case, name)
        seen.append((case.variant, case.direction))
    assert len(seen) == len(set(seen)) == 10


@pytest.mark.simulator
def test_the_steps_of_the_tutorial(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in small(tutorial, monkeypatch):
        checked(case, "ours")
        checked(case, "eager")


def test_extra_cases_are_measured_when_asked_for_alone() -> None:
    assert not set(EXTRA) & set(OPERATORS)
    assert all(next(device_cases(op, (2**28,))).op == op for op in EXTRA)


def test_a_declared_operator_is_measured_beside_a_function_written_by_hand() -> None:
    directions = []
    for case in host_cases("own_ops"):
        assert list(case.implementations) == ["ours", "eager", "function"]
        checked(case, "eager")
        directions.append(case.direction)
    assert directions == ["forward", "forward, recording", "forward and backward"]
    assert not list(host_cases("tutorial"))
