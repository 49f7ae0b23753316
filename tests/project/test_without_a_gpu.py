"""Without a GPU, each test that needs one is skipped by its name, and what needs none runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest


class Item:
    """The part of a pytest item that the hook reads."""

    path = Path(__file__)

    def __init__(self, name: str, case: str, marks: tuple[str, ...] = ()) -> None:
        self.originalname, self.name, self.marks = name, f"{name}[{case}]", list(marks)
        self.reasons: list[str] = []

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks

    def add_marker(self, mark: Any) -> None:
        self.reasons.append(mark.kwargs["reason"])


def collected(monkeypatch: pytest.MonkeyPatch, missing: str) -> tuple[list[Item], list[Item], list[Item]]:
    """The cases given, those that the hook leaves in, and those that it reports as left out."""
    monkeypatch.setattr(conftest, "NO_GPU", missing)
    given = [Item("test_a", "cpu"), Item("test_a", "cuda", ("gpu",)), Item("test_b", "1", ("gpu",))]
    given += [Item("test_a", "cuda-2", ("gpu",)), Item("test_c", "1")]
    left, items = list[Item](), list(given)
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: left.extend(items)))
    conftest.pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    return given, items, left


def test_each_test_is_skipped_by_its_name_with_the_number_of_its_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    given, items, left = collected(monkeypatch, "none is here")
    assert left == [given[3]]
    assert items == [*given[:3], given[4]]
    reasons = [
        None,
        "needs a GPU: none is here; cases of test_a: 2",
        "needs a GPU: none is here; cases of test_b: 1",
        None,
    ]
    assert [item.reasons[0] if item.reasons else None for item in items] == reasons


def test_with_a_gpu_every_case_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    given, items, left = collected(monkeypatch, "")
    assert items == given
    assert left == []
    assert not any(item.reasons for item in items)
