"""The cases of a test that run by default."""

from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

from tests.conftest import _sampled


def cases(**values: list[Any]) -> list[Any]:
    return [
        SimpleNamespace(callspec=SimpleNamespace(params=dict(zip(values, p, strict=True))))
        for p in product(*values.values())
    ]


def test_a_sample_has_each_value_before_it_has_a_value_twice() -> None:
    rows, dtypes = [object() for _ in range(5)], [object() for _ in range(3)]
    found = [item.callspec.params for item in _sampled(cases(rows=rows, dtype=dtypes), 5)]
    assert {id(p["rows"]) for p in found} == {*map(id, rows)}
    assert {id(p["dtype"]) for p in found} == {*map(id, dtypes)}


def test_a_sample_has_each_pair_of_values_before_it_has_a_pair_twice() -> None:
    a, b, c = ([object() for _ in range(2)] for _ in range(3))
    found = [item.callspec.params for item in _sampled(cases(a=a, b=b, c=c), 6)]
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        assert len({(id(p[one]), id(p[other])) for p in found}) == 4


def test_a_sample_of_one_parameter_spreads_and_has_its_number_of_cases() -> None:
    items = cases(n=[object() for _ in range(30)])
    places = sorted(items.index(item) for item in _sampled(items, 10))
    assert len(places) == 10
    assert max(b - a for a, b in pairwise(places)) <= 5
    assert len(_sampled(items, 99)) == 30
    assert _sampled(items, 10) == _sampled(items, 10)
