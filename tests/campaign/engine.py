"""Runs areas of trials in slices, and keeps the count in a file from which a later run goes on."""

import json
import os
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import StopTest, UnsatisfiedAssumption

__all__ = ["Area", "Record", "run"]

# A trial draws its data, and raises an error if a check fails.
Trial = Callable[[st.DataObject, str], None]


@dataclass(frozen=True)
class Area:
    """Trials of one kind.

    Attributes:
        name: the name on the command line and in the record.
        trial: draws from hypothesis and raises AssertionError, or any other exception, if something does not hold. Its
            second argument is the backend.
        examples: trials of a slice, some ten seconds' worth.
        backends: where the area can run, of "reference", "simulator" and "cuda".
    """

    name: str
    trial: Trial
    examples: int
    backends: tuple[str, ...]

    def slice(self, backend: str, number: int) -> tuple[int, int, str | None]:
        """Runs one slice. The number of the slice is its seed: the same slice draws the same trials.

        Returns:
            trials begun, trials that held, and the report of the smallest failure, if there was one.
        """
        tried = held = 0

        @seed(number)
        @settings(
            max_examples=self.examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
            print_blob=True,
        )
        @given(st.data())
        def trials(data: st.DataObject) -> None:
            nonlocal tried, held
            try:
                self.trial(data, backend)
            except (UnsatisfiedAssumption, StopTest):
                raise  # hypothesis drew no trial
            except BaseException:
                tried += 1
                raise
            tried, held = tried + 1, held + 1

        try:
            trials()
        except Exception as error:
            return tried, held, "".join(traceback.format_exception(error))
        return tried, held, None


class Record:
    """The counts of trials, by area and backend, in a JSON file that is replaced after every slice.

    Args:
        path: the file; it may not exist yet. None keeps nothing.
        about: machine and versions, noted when the file is made.
    """

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self.path = path
        self.content: dict[str, Any] = {"about": about, "areas": {}, "failures": []}
        if path is not None and path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))
            was = self.content["about"]
            if was != about:
                raise ValueError(f"{path} counts another machine's or another version's trials: {was}, now {about}")

    def of(self, area: Area, backend: str) -> dict[str, Any]:
        """The counts of an area on a backend: "slices", "tried", "held" and "seconds"."""
        fresh = {"slices": 0, "tried": 0, "held": 0, "seconds": 0.0}
        counts: dict[str, Any] = self.content["areas"].setdefault(f"{area.name}, {backend}", fresh)
        return counts

    def add(self, area: Area, backend: str, tried: int, held: int, seconds: float, failure: str | None) -> None:
        counts = self.of(area, backend)
        number = counts["slices"]
        counts["slices"] += 1
        counts["tried"] += tried
        counts["held"] += held
        counts["seconds"] = round(counts["seconds"] + seconds, 1)
        if failure is not None:
            self.content["failures"].append(
                {"area": area.name, "backend": backend, "slice": number, "report": failure[-6000:]}
            )
        if self.path is not None:
            temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            temporary.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, self.path)

    @property
    def failures(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.content["failures"]
        return found

    def table(self) -> str:
        """The counts as a Markdown table."""
        lines = ["| area, backend | trials | held | minutes |", "| --- | --- | --- | --- |"]
        for name, c in self.content["areas"].items():
            lines.append(f"| {name} | {c['tried']:,} | {c['held']:,} | {c['seconds'] / 60:.1f} |")
        return "\n".join(lines)


def run(
    areas: Iterable[tuple[Area, str]],
    seconds: float,
    record: Record,
    echo: Callable[[str], object] = print,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Runs a slice of each pair of area and backend in turn until the time is over. Returns the number of failures.

    The pair that has had the least time so far comes next, so that slow areas get no more time than fast ones.
    """
    pairs = list(areas)
    until, failures = clock() + seconds, 0
    while clock() < until:
        area, backend = min(pairs, key=lambda pair: (record.of(*pair)["seconds"], record.of(*pair)["slices"]))
        number, began = record.of(area, backend)["slices"], clock()
        tried, held, failure = area.slice(backend, number)
        record.add(area, backend, tried, held, clock() - began, failure)
        if failure is not None:
            failures += 1
            echo(f"FAILED: {area.name}, {backend}, slice {number}\n{failure}")
        else:
            echo(f"{area.name}, {backend}, slice {number}: {tried} trials, all held")
    return failures
