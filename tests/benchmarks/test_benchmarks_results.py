"""The results file of a benchmark run, its sections, and the command line. No GPU needed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import build_time, lltm_report, results_file
from benchmarks.lenet5 import Plan, measure_lenet5
from benchmarks.models import report as models_report
from benchmarks.scale import report as scale_report

from .documents import document

# The results file


def test_a_document_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "results" / "nvidia-h200.json"
    made = document()
    results_file.save(path, made)
    assert results_file.load(path) == made
    assert [p.name for p in path.parent.iterdir()] == ["nvidia-h200.json"]
    # One row a line, so that two measurements can be compared by diff.
    assert sum(line.startswith('    {"op": "gelu"') for line in path.read_text().splitlines()) == 8


@pytest.mark.parametrize("report", [results_file, lltm_report, models_report, scale_report])
def test_a_writer_that_is_killed_leaves_the_former_file(report: Any, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("the former")
    write = Path.write_text

    def killed(file: Path, text: str, **options: Any) -> int:
        write(file, text[: len(text) // 2], **options)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patching, pytest.raises(KeyboardInterrupt):
        patching.setattr(Path, "write_text", killed)
        report.save(path, document())
    assert path.read_text() == "the former"


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


@pytest.mark.parametrize(
    ("jobs", "seeds", "seconds"),
    [(1, (1, 7), 2.5), (1, (7, 1), 2.5), (2, (1, 7), 2.5), (2, (7, 1), None)],
)
def test_lenet5_runs_become_rows_and_only_lone_ones_are_timed(
    tmp_path: Path, jobs: int, seeds: tuple[int, int], seconds: float | None
) -> None:
    plan = PlanWithStandIn(tmp_path, seeds=seeds, recipes=("fast",), jobs=jobs)
    findings = measure_lenet5(plan, echo=lambda line: None)
    assert [(r["backend"], r["seed"], r["accuracy"]) for r in findings.rows] == [
        ("kernels", 1, 91.0),
        ("torch", 1, 91.0),
    ]
    assert [r["seconds_per_epoch"] for r in findings.rows] == [seconds, seconds]
    assert [entry.reason for entry in findings.skipped] == ["ended with 1: no such seed"] * 2
    assert findings.failed


def test_lenet5_is_asked_for_in_its_own_words(tmp_path: Path) -> None:
    from examples.lenet5 import parse

    plan = Plan(tmp_path, epochs=3)
    words = plan.command("torch", "fast", 2, tmp_path / "out")
    assert words[1:3] == ["-m", "examples.lenet5"]
    options = parse(words[3:])
    assert (options.dataset, options.data_dir, options.device) == ("mnist", tmp_path, "cuda")
    assert (options.backend, options.seed, options.epochs, options.fast) == ("torch", 2, 3, True)
    assert not parse(plan.command("torch", "default", 2, tmp_path)[3:]).fast


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
        (("--from", "x.json"), "--from FILE needs --plots DIR, --table or --into PAGE"),
        (
            ("--from", "x.json", "--table", "--ops", "gelu"),
            "--from measures nothing, so --ops has no meaning beside it",
        ),
        (
            ("--from", "x.json", "--table", "--row-lengths", "64"),
            "--from measures nothing, so --row-lengths has no meaning beside it",
        ),
        (("--from", "x.json", "--table", "--full"), "--from measures nothing, so --full has no meaning beside it"),
        (("--dtypes", "int8"), "invalid choice: 'int8'"),
        (("--warm-up", "0"), "expected a whole number of at least 1, got '0'"),
        (("--ops", "lenet5"), "--ops lenet5 needs --mnist DIR"),
        (("--ops", "argmax"), "invalid choice: 'argmax'"),
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
