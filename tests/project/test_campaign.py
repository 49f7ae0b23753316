"""The campaign of random trials: it fails if a trial fails, counts trials, continues from its file, and repeats a
slice."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st

from tests.campaign import __main__ as command
from tests.campaign import engine
from tests.campaign.areas import AREAS, present
from tests.campaign.engine import Area, Record, run

pytestmark = pytest.mark.thorough


def small_numbers(data: st.DataObject, backend: str) -> None:
    assert data.draw(st.integers(0, 10)) <= 10


def numbers_below_seven(data: st.DataObject, backend: str) -> None:
    assert data.draw(st.integers(0, 1000)) < 7


def even_numbers(data: st.DataObject, backend: str) -> None:
    assume(data.draw(st.integers(0, 99)) % 2 == 0)


class Clock:
    """Ten seconds pass between two looks at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 10
        return self.now


@pytest.mark.thorough
def test_a_failing_trial_is_told_with_its_smallest_example() -> None:
    tried, held, failure = Area("a", numbers_below_seven, 50, ("reference",)).slice("reference", 3)
    assert failure is not None
    assert "Draw 1: 7\n" in failure
    assert held < tried


@pytest.mark.thorough
def test_a_slice_draws_the_same_trials_again() -> None:
    drawn: list[list[int]] = [[], []]
    for numbers in drawn:

        def note(data: st.DataObject, backend: str, to: list[int] = numbers) -> None:
            to.append(data.draw(st.integers()))

        Area("a", note, 20, ("reference",)).slice("reference", 5)
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 10


def test_what_was_not_tried_is_not_counted() -> None:
    tried, held, failure = Area("a", even_numbers, 20, ("reference",)).slice("reference", 0)
    assert failure is None
    assert tried == held == 20


def test_the_counts_go_on_from_the_file(tmp_path: Path) -> None:
    area, path = Area("a", small_numbers, 5, ("reference",)), tmp_path / "record.json"
    for slices in (1, 2):
        record = Record(path, {"machine": "here"})
        assert run([(area, "reference")], 15, record, echo=lambda _: None, clock=Clock()) == 0
        assert record.of(area, "reference")["slices"] == slices
    kept = json.loads(path.read_text())
    assert kept["areas"]["a, reference"]["tried"] == kept["areas"]["a, reference"]["held"] >= 10
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_counts_of_another_machine_are_not_added(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.json", {"machine": "here"})
    record.add(AREAS[0], "reference", 1, 1, 1.0, None)
    with pytest.raises(ValueError, match="counts another machine's or another version's trials"):
        Record(tmp_path / "record.json", {"machine": "there"})


def test_a_failure_stays_in_the_record_and_the_campaign_goes_on(tmp_path: Path) -> None:
    right, wrong = (
        Area(n, t, 5, ("reference",)) for n, t in (("right", small_numbers), ("wrong", numbers_below_seven))
    )
    record, said = Record(tmp_path / "record.json", {}), []
    assert run([(right, "reference"), (wrong, "reference")], 65, record, echo=said.append, clock=Clock()) >= 1
    assert {f["area"] for f in record.failures} == {"wrong"}
    assert record.of(right, "reference")["held"]
    assert any("FAILED: wrong, reference, slice 0" in line for line in said)


def test_the_pair_with_the_least_time_comes_next() -> None:
    order: list[str] = []

    class Timed(Area):
        def slice(self, backend: str, number: int) -> tuple[int, int, str | None]:
            order.append(self.name)
            clock.now += 100 * (self.name == "slow")
            return 1, 1, None

    clock = Clock()
    pairs = [(Timed(name, small_numbers, 1, ("reference",)), "reference") for name in ("slow", "fast")]
    run(pairs, 300, Record(None, {}), echo=lambda _: None, clock=clock)
    assert order.count("fast") > order.count("slow") >= 1


def test_the_command_names_the_areas() -> None:
    assert tuple(area.name for area in AREAS) == command.NAMES
    assert set(present()) <= set(command.BACKENDS)


@pytest.mark.sample(2)
@pytest.mark.parametrize("area", [a for a in AREAS if "reference" in a.backends], ids=lambda a: a.name)
def test_some_trials_of_every_area_hold(area: Area, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, held, failure = Area(area.name, area.trial, 8, area.backends).slice("reference", 0)
    assert failure is None, failure
    assert tried == held > 0


def test_the_command_ends_with_1_after_a_failure_and_repeats_its_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = Area("declarations", numbers_below_seven, 5, ("reference",))
    monkeypatch.setattr("tests.campaign.areas.AREAS", (planted,))
    given = ["--areas", "declarations", "--backends", "reference", "--record", str(tmp_path / "record.json")]
    assert command.main([*given, "--minutes", "0.001"]) == 1
    assert "FAILED: declarations, reference, slice 0" in capsys.readouterr().out
    assert command.main(["--repeat", "declarations, reference, 0"]) == 1
    assert "Draw 1: 7\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--repeat", "declarations"], "--repeat: expected the name of an area, a backend of it and a number"),
        (["--repeat", "declarations, cuda, 1"], "--repeat: expected the name of an area"),
        (["--areas", "nothing"], "invalid choice: 'nothing'"),
    ],
)
def test_what_cannot_be_asked_is_refused(given: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(given)
    assert words in capsys.readouterr().err


def test_a_damaged_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "record.json").write_text("{")
    with pytest.raises(SystemExit, match="2"):
        command.main(["--record", str(tmp_path / "record.json")])
    assert "--record" in capsys.readouterr().err


def test_two_failures_of_one_slice_are_one_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def either(data: st.DataObject, backend: str) -> Any:
        n = data.draw(st.integers(0, 100))
        if n > 50:
            raise ValueError("large")
        assert n < 20

    _, _, failure = engine.Area("a", either, 100, ("reference",)).slice("reference", 0)
    assert failure is not None
    assert "large" in failure


def test_a_wrong_result_is_told_from_a_sum_that_cancels() -> None:
    """Results in float64, for the inputs and for changed inputs, are rounded as the operator's are."""
    from tests.campaign.areas.operators import assert_near, moved

    x = torch.tensor([1.0, 2.0, 2.0**-40 - 3.0], dtype=torch.float64)
    exact, changed = x.sum()[None], moved(x).sum()[None]
    assert_near("a sum", exact + 2.0**-53, exact, exact, changed)
    with pytest.raises(AssertionError, match="a sum: off by 1e-06"):
        assert_near("a sum", exact + 1e-6, exact, exact, changed)
    y = torch.linspace(-3, 3, 9)
    with pytest.raises(AssertionError, match="gelu: off by"):
        assert_near("gelu", y + 1e-4, y, y.double(), moved(y))


def test_a_gradient_whose_terms_cancel_for_all_inputs_may_have_their_roundings() -> None:
    """The gradient of a norm of two numbers is nearly 0, and so is that for changed inputs."""
    from tests.campaign.areas.operators import assert_near

    exact = torch.tensor([1.9e-13, -1.9e-13], dtype=torch.float64)
    theirs = torch.zeros(2, dtype=torch.bfloat16)
    assert_near("norm", theirs + 4e-9, theirs, exact, exact, terms=1.0)
    for off, terms in ((4e-9, 0.0), (1e-6, 1.0)):
        with pytest.raises(AssertionError, match="norm: off by"):
            assert_near("norm", theirs + off, theirs, exact, exact, terms)
