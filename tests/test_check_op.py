"""check_op finds each fault that is planted in an operator, by the check that is for it and by no other."""

from typing import Any

import pytest
import torch
from faulty_ops import Mix
import faulty_ops as f

from cupyops.torch import CHECKS, CheckFailed, Operator, check_op, checks_for

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def samples(device: str = "cpu") -> list[tuple[Any, ...]]:
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(19, 7, generator=generator).to(device) for _ in range(2))
    return [(x, w, 0.5), (w, x, 0.0)]


def failing(op: Operator, lane: str, checks: Any = None) -> dict[str, str]:
    """What fails, and its words."""
    device = "cuda" if lane == "cuda" else "cpu"
    report = check_op(op, samples(device), raises=False, lanes=[lane], checks=checks)
    assert report.passed or checks is not None
    return {row.check: f"{row.words} What to change: {row.change}" for row in report.failed}


FAULTS = {
    "sanitizer": (Mix(body=f.changed(("if (i < n)", "if (i <= n)"))), "mix"),
}


@pytest.mark.simulator
@pytest.mark.parametrize("name", FAULTS)
def test_x(name):
    op, words = FAULTS[name]
    found = failing(op.operator(), "simulator")
    print(found)
    assert list(found) == [name]
