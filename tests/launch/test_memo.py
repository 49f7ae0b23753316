"""The key of a memo has everything that a result depends on, and results are not kept too long."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cupyops.arrays import LIBRARIES
from cupyops.launch.memo import memo


@pytest.fixture
def asked() -> list[tuple[Any, ...]]:
    return []


def counting(asked: list[tuple[Any, ...]], most: int = 100) -> Any:
    @memo("x", "weight?", most=most)
    def found(x: Any, weight: Any, eps: float, shape: tuple[int, ...]) -> str:
        """Describes the arguments."""
        asked.append((x.shape, eps))
        if eps < 0:
            raise ValueError("eps")
        return f"{tuple(x.shape)} {x.dtype} {weight is not None} {eps} {shape}"

    return found


def test_what_is_alike_is_found_once(asked: list[tuple[Any, ...]]) -> None:
    found = counting(asked)
    x, weight = torch.ones(2, 3), torch.ones(3)
    for _ in range(3):
        assert found(x, weight, 0.5, (3,)) == found(torch.zeros(2, 3), weight, 0.5, (3,))
    assert len(asked) == 1
    assert found.__doc__ == "Describes the arguments."


def test_each_thing_that_it_may_depend_on_counts(asked: list[tuple[Any, ...]]) -> None:
    found = counting(asked)
    x, weight = torch.ones(2, 3), torch.ones(3)
    calls = [
        (x, weight, 0.5, ()),
        (x[:1], weight, 0.5, ()),
        (x.double(), weight, 0.5, ()),
        (x, weight.double(), 0.5, ()),
        (x, None, 0.5, ()),
        (x, weight, 0.25, ()),
        (x, weight, 0.5, (3,)),
    ]
    results = [found(*call) for call in calls]
    assert len(asked) == len(found.kept) == len(calls)
    assert [found(*call) for call in calls] == results
    assert len(asked) == len(calls)


def test_no_more_than_most_are_kept(asked: list[tuple[Any, ...]]) -> None:
    found = counting(asked, most=3)
    for n in range(1, 12):
        assert found(torch.ones(n, 3), None, 0.5, ()).startswith(f"({n}, 3)")
        assert 0 < len(found.kept) <= 3


def test_what_raises_is_asked_again(asked: list[tuple[Any, ...]]) -> None:
    found = counting(asked)
    for _ in range(2):
        with pytest.raises(ValueError, match="eps"):
            found(torch.ones(2), None, -1.0, ())
    assert len(asked) == 2
    assert not found.kept


def test_of_fakes_nothing_is_kept(asked: list[tuple[Any, ...]]) -> None:
    found = counting(asked)
    with FakeTensorMode():
        x = torch.empty(2, 3, device="cuda")
    for _ in range(2):
        found(x, None, 0.5, ())
        found(torch.empty(2, 3, device="meta"), None, 0.5, ())
    assert len(asked) == 4
    assert not found.kept


def test_arrays_on_two_devices_are_two_results(asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        is_fake = staticmethod(lambda x: False)
        device_index = staticmethod(lambda x: x.device)

    monkeypatch.setitem(LIBRARIES, SimpleNamespace, Library())
    found = counting(asked)
    for device in (0, 1, 0, 1):
        found(SimpleNamespace(shape=(2, 3), dtype="float32", device=device), None, 0.5, (3,))
    assert len(asked) == 2
