"""The benchmarks' own parts: statistics, cases, checking of results, results file, plots, tables, command line."""

import gc
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import build_time, results_file
from benchmarks.cases import OPERATORS, Case, WrongResult, check, device_cases, error_in_eps, host_cases
from benchmarks.lenet5 import Plan, measure_lenet5
from benchmarks.measure import Findings, check_call, measure_device, measure_host
from benchmarks.peers import BuildFailed, Unavailable, extension
from benchmarks.table import losing_rows, markdown
from benchmarks.timing import gigabytes_per_second, interleave, rotation, spread

CPU = torch.device("cpu")
SIZES = (16, 64)
PEERS = {"ours", "eager", "compile", "triton", "extension"}


def all_cases() -> list[Any]:
    cases = [case for op in OPERATORS for case in (*device_cases(op, SIZES), *host_cases(op))]
    return [pytest.param(c, id=f"{c.op}-{c.variant}-{c.direction}-{c.dtype}-{c.shape}".replace(" ", "")) for c in cases]


def one_case(op: str, direction: str, dtype: str = "float32", variant: str | None = None) -> Case:
    for case in (*device_cases(op, SIZES), *device_cases(op, (2**24,)), *host_cases(op)):
        if (case.direction, case.dtype) == (direction, dtype) and variant in (None, case.variant):
            return case
    raise LookupError(f"{op} has no case {direction}, {dtype}, {variant}")


# Statistics


def test_percentiles_interpolate_between_samples() -> None:
    found = spread([40.0, 10.0, 30.0, 20.0, 50.0])
    assert (found.median, found.p10, found.p90, found.samples) == pytest.approx((30.0, 14.0, 46.0, 5))


def test_one_sample_is_its_own_spread() -> None:
    found = spread([7.0])
    assert (found.median, found.p10, found.p90) == (7.0, 7.0, 7.0)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        spread([])


def test_bandwidth_is_in_units_of_a_thousand_million_bytes_a_second() -> None:
    assert gigabytes_per_second(8_000_000_000, 2000.0) == pytest.approx(4000.0)


@pytest.mark.parametrize(("nbytes", "sets"), [(12, 512), (2**20, 240), (2**24, 15), (2**33, 2)])
def test_a_rotation_outgrows_the_cache_within_limits(nbytes: int, sets: int) -> None:
    assert rotation(nbytes, 60 * 2**20) == sets


def test_timers_take_turns_and_the_collector_comes_back() -> None:
    order: list[str] = []

    class Recording:
        name = "recording"

        def __init__(self, label: str) -> None:
            self.label = label

        def calibrate(self) -> None:
            raise AssertionError("interleave only samples")

        def sample(self) -> float:
            assert not gc.isenabled()
            order.append(self.label)
            return float(len(order))

    found = interleave({"a": Recording("a"), "b": Recording("b")}, 3)
    assert order == ["a", "b"] * 3
    assert (found["a"].median, found["b"].median) == (3.0, 4.0)
    assert gc.isenabled()


# Cases


@pytest.mark.parametrize(
    ("op", "direction", "dtype", "variant", "nbytes"),
    [
        ("add2", "forward", "float32", "one shape", 3 * 16 * 4),
        ("add2", "forward", "float16", "one shape", 3 * 16 * 2),
        ("add2", "forward", "bfloat16+float32", "one shape", 64 * (2 + 4 + 4)),
        ("add2", "forward", "float32", "(M, N) + (N,)", (64 + 8 + 64) * 4),
        ("add2", "forward", "float32", "(M, N) + (M, 1)", (64 + 8 + 64) * 4),
        ("add2", "backward", "float32", "one shape", 3 * 2**24 * 4),
        ("gelu", "forward", "bfloat16", "none", 2 * 16 * 2),
        ("gelu", "backward", "float32", "tanh", 3 * 16 * 4),
    ],
)
def test_bytes_count_every_read_and_write_once(op: str, direction: str, dtype: str, variant: str, nbytes: int) -> None:
    assert one_case(op, direction, dtype, variant).nbytes == nbytes


@pytest.mark.parametrize("op", OPERATORS)
def test_cases_cover_what_is_claimed(op: str) -> None:
    cases = [*device_cases(op, (16, 64, 2**24))]
    assert {case.direction for case in cases} == {"forward", "backward"}
    assert {case.dtype for case in cases} >= {"float32", "bfloat16", "float16", "float64"}
    assert {case.shape for case in cases if case.dtype == "float64"} == {(2**24,)}
    labels = [json.dumps(case.labels()) for case in cases]
    assert len(set(labels)) == len(labels)
    for case in (*cases, *host_cases(op)):
        assert set(case.implementations) >= PEERS
    assert [case.direction for case in host_cases(op)] == ["forward", "forward, recording", "forward and backward"]


@pytest.mark.parametrize("case", all_cases())
@pytest.mark.parametrize("name", ["ours", "eager"])
def test_every_case_agrees_with_its_reference(case: Case, name: str) -> None:
    inputs = case.inputs(torch.Generator().manual_seed(0))
    call = case.bind(case.implementations[name](), inputs)
    assert check_call(case, call, case.expected(inputs), CPU) <= 4.0


def test_operands_are_random_and_of_the_right_type() -> None:
    case = one_case("add2", "forward", "bfloat16+float32")
    a, b = case.inputs(torch.Generator().manual_seed(0))
    assert (a.dtype, b.dtype) == (torch.bfloat16, torch.float32)
    assert a.unique().numel() > 8
    assert not torch.equal(a.float(), b)


@pytest.mark.parametrize("direction", ["forward and backward", "backward"])
def test_gradients_do_not_pile_up_from_call_to_call(direction: str) -> None:
    case = replace(one_case("add2", "forward and backward"), bind=one_case("add2", direction).bind)
    inputs = case.inputs(torch.Generator().manual_seed(0))
    call = case.bind(torch.add, inputs)
    call()
    assert check(case, call(), case.expected(inputs)) == 0.0


# Wrong results


def wrong(change: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    return lambda a, b: change(a + b)


def one_element_off(out: torch.Tensor) -> torch.Tensor:
    out[-1] += 0.01
    return out


def one_element_nan(out: torch.Tensor) -> torch.Tensor:
    out[3] = math.nan
    return out


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda a, b: a - b, id="another operation"),
        pytest.param(wrong(torch.empty_like), id="nothing written"),
        pytest.param(wrong(one_element_off), id="one element"),
        pytest.param(wrong(one_element_nan), id="NaN"),
        pytest.param(wrong(lambda out: out.to(torch.bfloat16).float()), id="too few bits"),
        pytest.param(wrong(torch.Tensor.double), id="dtype"),
        pytest.param(wrong(lambda out: out[:-1]), id="shape"),
        pytest.param(wrong(lambda out: (out, out)), id="two results"),
        pytest.param(wrong(lambda out: (None,)), id="no tensor"),
    ],
)
def test_a_wrong_implementation_is_an_error_and_not_a_row(function: Callable[..., Any]) -> None:
    case = one_case("add2", "forward")
    planted = replace(case, implementations={"ours": case.implementations["ours"], "eager": lambda: function})
    findings = measure_host([planted], CPU, ("ours", "eager"), rounds=2, calls=2, echo=lambda line: None)
    assert [row["implementation"] for row in findings.rows] == ["ours"]
    assert findings.failed
    (entry,) = findings.skipped
    assert entry.what.startswith("eager, add2")
    assert "WrongResult" in entry.reason


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_value_that_is_not_finite_is_an_infinite_error(bad: float) -> None:
    out = torch.ones(16)
    out[7] = bad
    assert error_in_eps(out, torch.ones(16, dtype=torch.float64)) == math.inf


def test_an_exception_is_recorded_as_a_failure() -> None:
    def broken(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    planted = replace(one_case("add2", "forward"), implementations={"triton": lambda: broken})
    findings = measure_host([planted], CPU, ("triton",), rounds=1, calls=2, echo=lambda line: None)
    assert not findings.rows
    assert findings.skipped[0].reason == "RuntimeError: no such kernel"
    assert findings.failed


@pytest.mark.parametrize(("kind", "failed"), [(Unavailable, False), (BuildFailed, True)])
def test_a_missing_peer_is_skipped_by_name_once(kind: type[Unavailable], failed: bool) -> None:
    def missing() -> Any:
        raise kind("nvcc is missing")

    planted = replace(one_case("add2", "forward"), implementations={"extension": missing})
    findings = measure_host([planted, planted], CPU, ("extension",), rounds=1, calls=2, echo=lambda line: None)
    (entry,) = findings.skipped
    assert (entry.section, entry.what, entry.reason) == ("add2.host", "extension", "nvcc is missing")
    assert findings.failed is failed


def test_host_rows_carry_their_labels_and_times() -> None:
    findings = measure_host(host_cases("gelu"), CPU, ("ours", "eager"), rounds=2, calls=2, echo=lambda line: None)
    assert not findings.skipped
    assert [row["direction"] for row in findings.rows[::2]] == ["forward", "forward, recording", "forward and backward"]
    for row in findings.rows:
        assert row["shape"] == [1024]
        assert row["samples"] == 2
        assert 0 < row["p10"] <= row["microseconds"] <= row["p90"]


# On a GPU


@pytest.mark.gpu
def test_memory_that_is_never_written_holds_nan() -> None:
    case = one_case("gelu", "forward")
    inputs = case.inputs(torch.Generator("cuda").manual_seed(0))
    with pytest.raises(WrongResult, match="off by inf"):
        check_call(case, case.bind(torch.empty_like, inputs), case.expected(inputs), torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPERATORS)
def test_rows_of_the_gpu_are_timed_in_graphs(op: str) -> None:
    device = torch.device("cuda")
    findings = measure_device(
        device_cases(op, (4096,)), device, 1000.0, ("ours", "eager"), rounds=2, echo=lambda line: None
    )
    assert not findings.skipped
    assert {row["implementation"] for row in findings.rows} == {"ours", "eager"}
    for row in findings.rows:
        assert (row["timer"], row["sets"], row["samples"]) == ("graph", 512, 2)
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["microseconds"] / 1e3, rel=0.01, abs=0.01)
        assert row["share_of_copy"] == pytest.approx(row["gb_per_s"] / 1000, rel=0.01, abs=1e-4)


@pytest.mark.gpu
def test_a_backward_through_autograd_is_timed_by_events() -> None:
    (case, *_) = (case for case in device_cases("add2", (2**24,)) if case.direction == "backward")
    findings = measure_device([case], torch.device("cuda"), 1000.0, ("ours",), rounds=2, echo=lambda line: None)
    assert [row["timer"] for row in findings.rows] == ["events"]


@pytest.mark.gpu
def test_a_graph_in_which_nothing_happens_is_found_out() -> None:
    case = one_case("gelu", "forward")
    kept: dict[int, torch.Tensor] = {}

    def remembering(x: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = torch.nn.functional.gelu(x)
        return kept[x.data_ptr()]

    planted = replace(case, implementations={"eager": lambda: remembering})
    findings = measure_device([planted], torch.device("cuda"), 1000.0, ("eager",), rounds=2, echo=lambda line: None)
    assert not findings.rows
    assert "in a graph's replay" in findings.skipped[0].reason


# Peers


def test_the_extension_exports_what_the_cases_call() -> None:
    text, declarations, functions = extension.sources()
    assert functions == ["add2", "gelu_forward", "gelu_backward"]
    assert declarations.count(";") == len(functions)
    for name in functions:
        assert f"at::Tensor {name}(" in declarations
        assert f"extension().{name}" in "".join(
            (results_file.ROOT / "benchmarks" / f"{op}.py").read_text(encoding="utf-8") for op in OPERATORS
        )
    assert text.count("#include") > 0


def test_importing_the_benchmarks_imports_no_peer() -> None:
    lines = "import sys, benchmarks.__main__, benchmarks.add2, benchmarks.gelu; print('triton' in sys.modules)"
    with_torch = "import sys, torch; print('triton' in sys.modules)"
    found, usual = (
        subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=results_file.ROOT
        ).stdout
        for text in (lines, with_torch)
    )
    assert found == usual


# The results file


def row(implementation: str, microseconds: float, **labels: Any) -> dict[str, Any]:
    shape = labels.pop("shape", [2**28])
    nbytes = 4 * math.prod(shape)
    times = {"microseconds": microseconds, "p10": microseconds, "p90": microseconds + 1, "samples": 15}
    rate = gigabytes_per_second(nbytes, microseconds)
    return {
        "op": "gelu",
        "variant": "none",
        "direction": "forward",
        "dtype": "bfloat16",
        "shape": shape,
        **labels,
        "implementation": implementation,
        **times,
        "timer": "graph",
        "sets": 2,
        "bytes": nbytes,
        "gb_per_s": rate,
        "share_of_copy": rate / 4280,
    }


def document(rows: Sequence[dict[str, Any]] = (), commit: str = "0123456789abcdef") -> dict[str, Any]:
    """A results file as a run writes it, with a few rows of everything."""
    environment = {"gpu": "NVIDIA H200", "torch": "2.11.0", "cupy": "14.2.0", "nvrtc": "13.0", "triton": "3.6.0"}
    copy = {"gb_per_s": 4280.0, "p10": 4270.0, "p90": 4290.0, "bytes": 2**33}
    made = results_file.new(environment, commit, False, copy)
    device = Findings(list(rows))
    if not rows:
        for n, ours, eager in ((2**20, 3.0, 2.5), (2**28, 259.0, 343.0)):
            device.rows += [row("ours", ours, shape=[n]), row("eager", eager, shape=[n])]
            device.rows += [row("ours", 2 * ours, shape=[n], dtype="float32", direction="backward")]
    device.skip("gelu.device", "extension", "nvcc is missing", failed=False)
    results_file.add(made, "gelu.device", "rows", device)
    host = [row(name, value, shape=[1024], dtype="float32") for name, value in (("ours", 6.5), ("dlpack", 30.0))]
    results_file.add(made, "gelu.host", "host", Findings(host))
    build = [
        {"implementation": name, "what": "gelu", "cache": cache, "seconds": seconds, "samples": 1}
        for name, cache, seconds in (("ours", "cold", 0.12), ("ours", "warm", -0.00001), ("extension", "cold", 31.0))
    ]
    results_file.add(made, "build", "build", Findings(build))
    runs = [
        {
            "backend": backend,
            "recipe": "fast",
            "seed": seed,
            "epochs": 2,
            "accuracy": 98.0 + seed,
            "accuracies": [97.0, 98.0 + seed],
            "seconds_per_epoch": seconds,
        }
        for backend, seed, seconds in (("kernels", 0, 1.5), ("kernels", 1, 1.7), ("torch", 0, None))
    ]
    results_file.add(made, "lenet5", "lenet5", Findings(runs))
    return made


def test_a_document_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "results" / "nvidia-h200.json"
    made = document()
    results_file.save(path, made)
    assert results_file.load(path) == made
    assert [p.name for p in path.parent.iterdir()] == ["nvidia-h200.json"]
    # One row a line, so that two measurements can be compared by diff.
    assert sum(line.startswith('    {"op": "gelu"') for line in path.read_text().splitlines()) == 8


def test_sections_carry_commit_and_date() -> None:
    sections = document()["sections"]
    assert set(sections) == {"gelu.device", "gelu.host", "build", "lenet5"}
    for section in sections.values():
        assert section["commit"] == "0123456789abcdef"
        assert section["dirty"] is False
        assert section["date"].endswith("Z")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda d: d.pop("rows"), "lacks `rows`"),
        (lambda d: d.update(schema=2), "`schema` must be 1, got 2"),
        (lambda d: d["rows"][0].pop("microseconds"), r"rows\[0\] lacks `microseconds`"),
        (lambda d: d["rows"][1].update(shape="large"), r"rows\[1\]: `shape` must be of type list, got 'large'"),
        (lambda d: d["host"][0].update(samples=True), r"host\[0\]: `samples` must be of type int"),
        (lambda d: d["build"].append([]), r"build\[3\] must be an object"),
    ],
)
def test_a_broken_document_is_named_by_its_fault(break_it: Callable[[Any], Any], message: str) -> None:
    broken = json.loads(json.dumps(document()))
    break_it(broken)
    with pytest.raises(results_file.ResultsError, match=message):
        results_file.validate(broken)


def test_merging_keeps_other_sections_and_replaces_this_one() -> None:
    old, fresh = document(commit="old"), document(commit="new")
    for name in ("gelu.host", "build", "lenet5"):
        del fresh["sections"][name]
    fresh["host"], fresh["build"], fresh["lenet5"], fresh["skipped"] = [], [], [], []
    fresh["rows"] = fresh["rows"][:1]
    both = results_file.merged(old, fresh)
    assert both["rows"] == fresh["rows"]
    assert (both["host"], both["build"], both["lenet5"]) == (old["host"], old["build"], old["lenet5"])
    assert both["skipped"] == []  # what was missing from the section that was measured again
    assert {name: section["commit"] for name, section in both["sections"].items()} == {
        "build": "old",
        "gelu.device": "new",
        "gelu.host": "old",
        "lenet5": "old",
    }


def test_merging_refuses_another_machine() -> None:
    old = document()
    old["environment"] = {**old["environment"], "gpu": "NVIDIA A100"}
    with pytest.raises(results_file.ResultsError, match="measured with gpu NVIDIA A100, and this is NVIDIA H200"):
        results_file.merged(old, document())


@pytest.mark.parametrize(
    ("gpu", "name"),
    [("NVIDIA H200", "nvidia-h200.json"), ("NVIDIA A100-SXM4-80GB (MIG)", "nvidia-a100-sxm4-80gb-mig.json")],
)
def test_the_file_is_named_for_the_gpu(gpu: str, name: str) -> None:
    assert results_file.default_path(gpu) == results_file.ROOT / "benchmarks" / "results" / name


def test_outside_a_checkout_the_commit_is_the_one_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(results_file, "ROOT", tmp_path)
    monkeypatch.setenv("CUPYOPS_COMMIT", "feedface")
    assert results_file.commit() == ("feedface", None)
    monkeypatch.delenv("CUPYOPS_COMMIT")
    assert results_file.commit() == (None, None)


# Plots and tables


def test_plots_are_drawn_and_repeat_to_the_byte(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    first, second = (draw(document(), tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == ["gelu-share.svg", "gelu-sizes.svg", "host.svg", "build.svg", "lenet5.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    text = {path.stem: path.read_text(encoding="utf-8") for path in first}
    assert "PyTorch eager" in text["gelu-share"]
    assert "not measured" in text["gelu-share"]  # eager has no float32 backward
    assert "commit 0123456789" in text["host"]
    assert "31 s" in text["build"]
    assert "<dc:date>" not in text["host"]


def test_plots_need_only_the_rows_that_are_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    only = document([row("ours", 259.0)])
    only["host"], only["build"], only["lenet5"] = [], [], []
    assert [path.name for path in draw(only, tmp_path)] == ["gelu-share.svg", "gelu-sizes.svg"]


def test_the_table_shows_the_largest_size_and_the_fastest_in_bold() -> None:
    text = markdown(document())
    assert "| gelu | none | forward | bfloat16 | 268435456 | **96.9% (259.0)** | 73.1% (343.0) |" in text
    assert "| gelu | none | backward | float32 | 268435456 | **48.4% (518.0)** | – |" in text
    assert "1048576" not in text
    assert "| gelu | forward | **6.50** | 30.00 |" in text
    assert "| C++ extension | gelu | 31 s | – |" in text
    assert "| kernels | fast | 2 | 98.50 (98.00, 99.00) | 1.60 |" in text
    assert "- gelu.device, extension: nvcc is missing" in text
    assert "1048576" in markdown(document(), all_sizes=True)


def test_rows_lost_to_eager_are_listed() -> None:
    assert losing_rows(document()) == ["gelu none forward bfloat16 1048576: 20.0% longer than eager"]


# Other sections


def test_build_times_become_rows_by_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[tuple[str, bool]] = []

    def child(name: str, variables: dict[str, str], *arguments: str) -> list[tuple[str, float]]:
        (folder,) = variables.values()
        folders.append((folder, any(Path(folder).iterdir())))
        warm = folders[-1][1]
        (Path(folder) / "kernel").touch()
        return [("gelu", 0.01 if warm else 0.1 * len(folders))]

    monkeypatch.setattr(build_time, "_child", child)
    findings = build_time.measure_build(("ours", "eager"), repeats=3, echo=lambda line: None)
    assert [(r["cache"], r["seconds"], r["samples"]) for r in findings.rows] == [("cold", 0.3, 3), ("warm", 0.01, 3)]
    assert len({folder for folder, _ in folders}) == 3
    assert [warm for _, warm in folders] == [False, True] * 3


@pytest.mark.parametrize(
    ("returncode", "stdout", "stderr", "failed", "reason"),
    [
        (0, '"nvcc is missing"\n', "", False, "nvcc is missing"),
        (1, "", "Traceback: oh", True, "ended with 1: Traceback: oh"),
    ],
)
def test_a_build_that_cannot_run_is_told(
    monkeypatch: pytest.MonkeyPatch, returncode: int, stdout: str, stderr: str, failed: bool, reason: str
) -> None:
    done = subprocess.CompletedProcess([], returncode, stdout, stderr)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: done)
    findings = build_time.measure_build(("triton",), echo=lambda line: None)
    (entry,) = findings.skipped
    assert entry.what == "triton"
    assert entry.reason.endswith(reason)
    assert entry.failed is failed


class PlanWithStandIn(Plan):
    """Runs a few lines that leave what the example leaves; seed 7 fails."""

    def command(self, backend: str, recipe: str, seed: int, out: Path) -> list[str]:
        epoch = {"loss": 0.5, "accuracy": 90.0 + seed, "train_seconds": 2.0, "test_seconds": 0.5, "epoch": 1}
        text = json.dumps({"epochs": [epoch] * 2, "setup_seconds": 0.0})
        lines = f"import pathlib; p = pathlib.Path({str(out)!r}); p.mkdir(); (p / 'metrics.json').write_text({text!r})"
        return [sys.executable, "-c", lines if seed != 7 else "raise SystemExit('no such seed')"]


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 2.5), (2, None)])
def test_lenet5_runs_become_rows_and_only_lone_ones_are_timed(tmp_path: Path, jobs: int, seconds: float | None) -> None:
    plan = PlanWithStandIn(tmp_path, seeds=(1, 7), recipes=("fast",), jobs=jobs)
    findings = measure_lenet5(plan, echo=lambda line: None)
    assert [(r["backend"], r["seed"], r["accuracy"]) for r in findings.rows] == [
        ("kernels", 1, 91.0),
        ("torch", 1, 91.0),
    ]
    assert [r["seconds_per_epoch"] for r in findings.rows] == [seconds, seconds]
    assert [entry.reason for entry in findings.skipped] == ["ended with 1: no such seed"] * 2
    assert findings.failed


def test_lenet5_is_asked_for_in_its_own_words(tmp_path: Path) -> None:
    from examples.lenet5 import build_parser

    plan = Plan(tmp_path, epochs=3)
    words = plan.command("torch", "fast", 2, tmp_path / "out")
    assert words[1:3] == ["-m", "examples.lenet5"]
    options = build_parser().parse_args(words[3:])
    assert (options.dataset, options.data_dir, options.device) == ("mnist", tmp_path, "cuda")
    assert (options.backend, options.seed, options.epochs, options.fast) == ("torch", 2, 3, True)
    assert not build_parser().parse_args(plan.command("torch", "default", 2, tmp_path)[3:]).fast


# The command line


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        code = command.main(arguments)
    except SystemExit as ended:
        code = int(str(ended.code))
    out, err = capsys.readouterr()
    return code, out, err


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = run(capsys=capsys)
    assert code == 2
    assert err.count("\n") == 1
    assert "measuring needs a CUDA GPU" in err
    assert "--from FILE" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "x.json"), "--from FILE needs --plots DIR or --table"),
        (
            ("--from", "x.json", "--table", "--ops", "gelu"),
            "--from measures nothing, so --ops has no meaning beside it",
        ),
        (("--ops", "lenet5"), "--ops lenet5 needs --mnist DIR"),
        (("--ops", "softmax"), "invalid choice: 'softmax'"),
        (("--sizes", "2^40"), "expected a number of elements from 2 to 2^31, such as 2^20, got '2^40'"),
        (("--sizes", "many"), "got 'many'"),
        (("--sizes", "2^-3"), "got '2^-3'"),
        (("--lenet5-jobs", "0"), "expected a whole number of at least 1, got '0'"),
    ],
)
def test_misuse_is_told(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(*arguments, capsys=capsys)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("text", [None, "{", '{"schema": 3}', "[]"])
def test_a_file_that_is_no_results_file_is_told_in_one_line(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.json"
    if text is not None:
        path.write_text(text)
    code, _, err = run("--from", str(path), "--table", capsys=capsys)
    assert code == 2
    assert err.count("\n") == 1
    assert str(path) in err


def test_a_file_is_shown_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "results.json"
    results_file.save(path, document())
    code, out, err = run("--from", str(path), "--table", "all", "--plots", str(tmp_path / "plots"), capsys=capsys)
    assert (code, err) == (0, "")
    assert "1048576" in out
    assert (tmp_path / "plots" / "host.svg").is_file()
