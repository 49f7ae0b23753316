"""A measurement in parts: results merged row by row, and what is compiled ahead of it."""

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import measure, results_file, warm_up
from benchmarks.cases import Case, Choice, device_cases
from benchmarks.choices import ROW_SCALE, families
from benchmarks.measure import Findings
from benchmarks.merging import merged
from benchmarks.table import markdown

ENVIRONMENT = {"gpu": "NVIDIA H200", "torch": "2.11.0", "cupy": "14.2.0", "nvrtc": "13.0", "triton": "3.6.0"}


def row(implementation: str, microseconds: float, n: int = 1024, op: str = "layer_norm") -> dict[str, Any]:
    labels = {"op": op, "variant": "affine", "direction": "forward", "dtype": "float32", "shape": [2**28 // n, n]}
    times = {"microseconds": microseconds, "p10": microseconds, "p90": microseconds, "samples": 15}
    rate = {"bytes": 8 * 2**28, "gb_per_s": 4000.0, "share_of_copy": 500 / microseconds}
    return {**labels, "implementation": implementation, **times, "timer": "graph", "sets": 2, **rate}


def document(
    *rows: dict[str, Any], commit: str = "old", skipped: Sequence[tuple[str, bool]] = (), **environment: Any
) -> dict[str, Any]:
    copy = {"gb_per_s": 4280.0, "p10": 4270.0, "p90": 4290.0, "bytes": 2**33}
    made = results_file.new({**ENVIRONMENT, **environment}, commit, False, copy)
    for op in dict.fromkeys(r["op"] for r in rows):
        findings = Findings([r for r in rows if r["op"] == op])
        for what, failed in skipped:
            findings.skip(f"{op}.device", what, f"said by {commit}", failed=failed)
        results_file.add(made, f"{op}.device", "rows", findings)
    for record in made["sections"].values():
        record["date"] = f"date of {commit}"
    return made


def times(found: dict[str, Any]) -> list[tuple[str, int, float]]:
    return [(r["implementation"], r["shape"][1], r["microseconds"]) for r in found["rows"]]


# Merging


def test_merging_replaces_the_rows_measured_again_in_their_place() -> None:
    old = document(row("ours", 9.0), row("eager", 8.0), row("ours", 7.0, 64))
    both = merged(old, document(row("ours", 5.0), row("ours", 4.0, 4096), commit="new"))
    assert times(both) == [("ours", 1024, 5.0), ("eager", 1024, 8.0), ("ours", 64, 7.0), ("ours", 4096, 4.0)]
    results_file.validate(both)


def test_rows_name_the_run_that_they_are_of_while_there_are_any() -> None:
    old = document(row("ours", 9.0), row("eager", 8.0), row("add", 1.0, op="add2"))
    both = merged(old, document(row("ours", 5.0), commit="new"))
    dated = "layer_norm.device@date of old"
    assert {name: record["commit"] for name, record in both["sections"].items()} == {
        "add2.device": "old",
        "layer_norm.device": "new",
        dated: "old",
    }
    assert [r.get("section") for r in both["rows"]] == [None, dated, None]
    assert "2 commits, which the results file names." in markdown(both)
    third = merged(both, document(row("ours", 4.0), commit="third"))
    assert [r.get("section") for r in third["rows"]] == [None, dated, None]
    assert set(third["sections"]) == {"add2.device", "layer_norm.device", dated}
    last = merged(third, document(row("ours", 3.0), row("eager", 3.0), commit="last"))
    assert set(last["sections"]) == {"add2.device", "layer_norm.device"}
    assert "section" not in json.dumps(last["rows"])


def test_other_sections_stay_as_they_are() -> None:
    old = document(row("ours", 9.0, op="add2"), skipped=[("extension", False)])
    build = {"implementation": "ours", "what": "gelu", "cache": "cold", "seconds": 0.1, "samples": 5}
    results_file.add(old, "build", "build", Findings([build, {**build, "cache": "warm"}]))
    again = document(row("ours", 5.0), commit="new")
    results_file.add(again, "build", "build", Findings([{**build, "seconds": 0.2}]))
    both = merged(old, again)
    assert both["rows"] == old["rows"] + again["rows"]
    assert [(b["cache"], b["seconds"]) for b in both["build"]] == [("cold", 0.2), ("warm", 0.1)]
    assert both["skipped"] == old["skipped"]


TITLE = "layer_norm affine, forward, float32, 262144 × 1024"


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        ([("extension", False)], [], [("extension", "old")]),
        ([("ours", False)], [], []),
        ([("extension", False)], [("extension", True)], [("extension", "new")]),
        ([(TITLE, False)], [], []),
        ([(f"ours, {TITLE}", True)], [], []),
        ([(f"triton, {TITLE}", True)], [], [(f"triton, {TITLE}", "old")]),
        ([], [("eager", False)], []),  # its rows are there, of the old run
        ([], [("eager", True)], [("eager", "new")]),
        ([("liger", False)], [("liger", False)], [("liger", "new")]),
    ],
)
def test_what_is_missing_is_what_has_no_row_or_has_failed_now(
    before: list[tuple[str, bool]], now: list[tuple[str, bool]], kept: list[tuple[str, str]]
) -> None:
    old = document(row("eager", 8.0), skipped=before)
    both = merged(old, document(row("ours", 5.0), commit="new", skipped=now))
    assert [(entry["what"], entry["reason"].removeprefix("said by ")) for entry in both["skipped"]] == kept


def test_a_time_of_what_is_wrong_by_now_goes() -> None:
    old = document(row("ours", 5.0), row("eager", 8.0), row("eager", 8.0, 64))
    both = merged(old, document(row("ours", 5.0), commit="new", skipped=[(f"eager, {TITLE}", True)]))
    assert times(both) == [("ours", 1024, 5.0), ("eager", 64, 8.0)]
    assert both["skipped"][0]["failed"]


def test_merging_refuses_another_machine() -> None:
    old = document(row("ours", 9.0), gpu="NVIDIA A100")
    with pytest.raises(results_file.ResultsError, match="measured with gpu NVIDIA A100, and this is NVIDIA H200"):
        merged(old, document(row("ours", 5.0)))


def test_a_version_that_this_run_lacks_is_the_old_rows() -> None:
    old = document(row("liger", 9.0), liger="0.8.5", nvcc="13.0")
    both = merged(old, document(row("ours", 5.0), liger=None, nvcc="13.1"))
    assert (both["environment"]["liger"], both["environment"]["nvcc"]) == ("0.8.5", "13.1")


def test_a_section_told_in_parts_tells_what_is_missing_once() -> None:
    made = document(row("ours", 5.0), skipped=[("extension", False)])
    part = Findings([row("ours", 4.0, 64)])
    part.skip("layer_norm.device", "extension", "said by old", failed=False)
    results_file.add(made, "layer_norm.device", "rows", part)
    assert len(made["skipped"]) == 1
    assert len(made["rows"]) == 2


def test_rows_are_measured_and_saved_length_by_length(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[tuple[str, int]]] = []

    def measured(cases: Iterable[Case], *arguments: Any, **options: Any) -> Findings:
        seen.append({(case.dtype, case.shape[-1]) for case in cases})
        return Findings()

    monkeypatch.setattr(measure, "measure_device", measured)
    words = "--ops layer_norm --kinds device --row-lengths 128 64 --dtypes float32 --sizes 2^10 --directions forward"
    options = command.build_parser().parse_args(words.split())
    sections = [(section, name) for section, name, _ in command._sections(options, torch.device("cpu"), 1.0)]
    assert seen == [{("float32", 64)}, {("float32", 128)}]
    assert sections == [("layer_norm.device", "rows")] * 2


# Compiling ahead


def test_shares_are_all_the_cases_and_each_once() -> None:
    choice = Choice((2**10,), (64, 768), directions=("forward",))
    whole = [case.title for case in choice.cases("layer_norm")]
    parts = [[c.title for c in warm_up.share(choice, ("layer_norm",), ("device",), i, 3)] for i in range(3)]
    assert sorted(itertools.chain(*parts)) == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    both = [c.direction for c in warm_up.share(Choice((2**10,), (64, 768)), ("layer_norm",), ("device",), 0, 2)]
    assert len(set(both)) == 3
    with_host = [*warm_up.share(choice, ("layer_norm",), ("device", "host"), 0, 1)]
    assert len(with_host) == len(whole) + 3


def test_what_is_compiled_is_called_once_and_a_failure_ends_nothing() -> None:
    called: list[str] = []

    def planted(case: Case, name: str) -> Any:
        def function(*operands: torch.Tensor) -> None:
            called.append(name)
            assert [(x.shape, x.dtype) for x in operands] == [(x.shape, x.dtype) for x in case.operands]
            if name == "compile":
                raise RuntimeError("does not compile")

        return lambda: function

    cases = [*device_cases("layer_norm", (64,), (8,))]
    for case in cases:
        object.__setattr__(
            case, "implementations", {n: planted(case, n) for n in ("eager", "ours", "compile", "triton")}
        )
    warm_up.compile_each(cases, ("eager", "ours", "compile", "triton", "liger"), torch.device("cpu"))
    assert called == ["ours", "compile", "triton"] * len(cases)


def test_processes_that_compile_leave_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Any, ...]] = []

    class Process:
        exitcode = 3

        def __init__(self, target: Any, args: tuple[Any, ...], daemon: bool) -> None:
            self.args = args

        def start(self) -> None:
            assert warm_up.os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
            started.append(self.args[-2:])

        def join(self) -> None:
            pass

    class Context:
        pass

    context = Context()
    context.Process = Process  # type: ignore[attr-defined]
    monkeypatch.setattr(warm_up.multiprocessing, "get_context", lambda method: context)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")
    lines: list[str] = []
    warm_up.run(Choice(), ("layer_norm",), ("device",), ("triton",), 2, echo=lines.append)
    assert started == [(0, 2), (1, 2)]
    assert warm_up.os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "7"
    assert "ended with [3, 3]" in lines[0]


def test_the_halves_of_the_row_lengths_share_none_and_leave_none_out() -> None:
    halves = []
    for half in ("first", "second"):
        options = command.build_parser().parse_args(["--ops", "rows", "--half", half])
        command._take_rows(options)
        assert options.ops == list(families("rows"))
        halves.append(options.row_lengths)
    assert sorted(halves[0] + halves[1]) == sorted(ROW_SCALE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--ops", "rows", "gelu"], "--ops rows stands alone"), (["--ops", "gelu", "--half", "first"], "--half is for")],
)
def test_rows_are_asked_for_alone(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert words in capsys.readouterr().err
