"""How the tests look for the faults of :mod:`tests.torch.faulty_ops`."""

from typing import Any

import pytest
import torch

from cupyops.torch import Operator, check_op


def samples(device: str = "cpu") -> list[tuple[Any, ...]]:
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(19, 7, generator=generator).to(device) for _ in range(2))
    return [(x, w, 0.5), (w, x, 0.0)]


def failing(op: Operator, backend: str, checks: Any = None, count: int = 2) -> dict[str, str]:
    """Returns the checks that fail with this many samples, and their messages."""
    given = samples("cuda" if backend == "cuda" else "cpu")[:count]
    report = check_op(op, given, raises=False, backends=[backend], checks=checks)
    return {row.check: f"{row.words} What to change: {row.change}" for row in report.failed}


def assert_found(found: dict[str, str], name: str, words: str) -> None:
    assert list(found) == [name], found
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(found[name])
