"""check_op finds faults that samples hide, and raises no alarm for correct operators that are unusual."""

import re

import pytest
import torch

from cupyops.torch import check_op
from cupyops.torch.check import randomness
from cupyops.torch.check.subject import Subject
from tests.torch.faulty_hidden import HIDDEN_BY_SAMPLES, UNUSUAL, normal, plain
from tests.torch.finding import assert_found

CHECKS = ["returned", "sanitizer", "inputs_kept", "written", "determinism", "values", "gradients", "gradcheck"]
CHECKS += ["special_values", "strides", "empties", "sizes", "dimensions", "numbers", "data"]


@pytest.mark.sample(5)
@pytest.mark.simulator
@pytest.mark.parametrize("fault", HIDDEN_BY_SAMPLES)
def test_a_fault_that_the_samples_hide_is_found(fault: str) -> None:
    name, made, words = HIDDEN_BY_SAMPLES[fault]
    op, samples = made()
    report = check_op(op, samples, raises=False, backends=["simulator"], checks=CHECKS)
    found = {row.check: f"{row.words} What to change: {row.change}" for row in report.failed}
    first, *others = name.split()
    assert list(found) == [first, *others], found
    assert_found({first: found[first]}, first, words)


@pytest.mark.sample(4)
@pytest.mark.simulator
@pytest.mark.parametrize("kind", UNUSUAL)
def test_a_right_operator_that_is_unusual_raises_no_alarm(kind: str) -> None:
    made, reasons = UNUSUAL[kind]
    op, samples = made()
    report = check_op(op, samples, checks=[*CHECKS, "storage", "side_effects"])
    skipped = {row.check: row.words for row in report.skipped if row.backend == "simulator"}
    for check, words in reasons.items():
        assert re.search(words, skipped[check]), skipped


def test_whether_a_reference_draws_is_asked_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index beyond the end, which the question may make, ends all work of a process on a GPU."""
    op, samples = UNUSUAL["noise by a number of any name, of rows by their indices"][0]()
    copies: list[int] = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: copies.append(id(y := x.clone())) or y)
    seen: list[list[int]] = []
    monkeypatch.setattr(randomness, "_of", lambda subject, args, f: seen.append([id(a) for a in args[:2]]) or {})
    assert not randomness._draws_by(Subject(op, samples, "reference"), samples[0], samples[0])
    assert [i for each in seen for i in each] == copies
    assert len(copies) == 4


def test_what_pytorch_keeps_of_a_trace_is_no_fault_of_the_operator() -> None:
    """A compiled program leaves results of fake tensors behind, which a call with gradients would take."""

    def padded(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (1, 2))

    op = plain("(Tensor x) -> Tensor", padded, padded)
    check_op(op, [(normal(6, 10),)], backends=["reference"], checks=["compile_static", "opcheck"])
