"""The benchmark of several GPUs: two processes on a CPU and a small model; its file, table and command line."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results_file
from benchmarks.__main__ import main as benchmarks_main
from benchmarks.results_file import ResultsError
from benchmarks.scale import models, report, steps
from benchmarks.scale.__main__ import MODES, NAMES, WAYS, main
from tests import preloaded
from tests.benchmarks import tiny_scale
from tests.benchmarks.tiny_scale import TINY


def test_the_command_line_names_what_there_is() -> None:
    """The command repeats the names, so that `--help` needs no PyTorch."""
    assert tuple(m.name for m in models.MODELS) == NAMES
    assert steps.MODES == MODES == tuple(report.MODES)
    assert steps.WAYS == WAYS == tuple(report.WAYS)


def test_weak_scaling_has_rows_of_one_rank() -> None:
    found = [(c.way, c.mode, c.ranks) for c in steps.cases([TINY], WAYS, MODES, 2)]
    assert [ranks for way, mode, ranks in found if (way, mode) == ("fsdp", "compiled")] == [1, 2]
    assert [ranks for way, _, ranks in found if way == "tp"] == [2, 2, 2, 2]
    assert len(found) == len(set(found)) == 16
    assert {c.ranks for c in steps.cases([TINY], WAYS, MODES, 1)} == {1}


def test_data_parallel_cases_of_every_model_come_before_what_may_be_left_out() -> None:
    other = replace(TINY, name="other")
    found = [(c.model.name, c.mode, c.way) for c in steps.cases([TINY, other], WAYS, MODES, 2)]
    assert found[:4] == [("tiny", "eager", "ddp")] * 2 + [("tiny", "eager", "fsdp")] * 2
    assert found[8:10] == [("tiny", "eager", "tp"), ("other", "eager", "tp")]
    assert {(mode, way) for _, mode, way in found[10:18]} == {("compiled", "ddp"), ("compiled", "fsdp")}
    assert found[18:20] == [("tiny", "compiled", "tp"), ("other", "compiled", "tp")]
    alone = steps.cases([other, TINY], WAYS, ["eager"], 2, weak_scaling=False)
    assert [(c.model.name, c.ranks) for c in alone] == [("other", 2)] * 2 + [("tiny", 2)] * 2 + [
        ("other", 2),
        ("tiny", 2),
    ]
    assert [c.mode for c in steps.cases([TINY], ["tp"], ["graphs"], 2)] == ["graphs"]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every way of two ranks, eager and with selective checkpointing."""
    path = tmp_path_factory.mktemp("scale") / "scale.json"
    environment = {**os.environ, "PYTHONPATH": str(results_file.ROOT), "OMP_NUM_THREADS": "1"}
    done = preloaded.run(["-m", tiny_scale.__name__, path], cwd=results_file.ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return report.load(path)


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["tiny", "tiny vit"])
def test_every_way_computes_the_same_losses_with_both_kinds_of_modules(document: dict[str, Any], model: str) -> None:
    """In float32. Two ranks take two batches: each one of its own, or with tp both together."""
    rows = {(r["way"], r["mode"], r["ranks"], r["variant"]): r for r in document["rows"] if r["model"] == model}
    assert len(rows) == 2 * (5 + 3)
    for key in ("first_loss", "loss"):
        on_one, on_two = (rows["ddp", "eager", ranks, "torch"][key] for ranks in (1, 2))
        assert on_one != on_two, "the second rank had no batch of its own"
        for (_, _, ranks, _), row in rows.items():
            assert row[key] == pytest.approx(on_one if ranks == 1 else on_two, rel=1e-5)
    first = rows["ddp", "eager", 1, "torch"]
    assert first["loss"] < first["first_loss"], "the steps train"


@pytest.mark.thorough
def test_the_host_is_done_before_the_step(document: dict[str, Any]) -> None:
    assert all(0 < row["host"] <= row["milliseconds"] for row in document["rows"])


@pytest.mark.thorough
def test_a_model_that_fails_loses_no_row_of_others(document: dict[str, Any]) -> None:
    assert {r["reason"] for r in document["failed"]} == {"ValueError: this model cannot be built"}
    assert len(document["failed"]) == 8


def test_a_case_that_hangs_or_kills_its_process_loses_no_row_of_others(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    path.write_text("an older file")
    environment = {**os.environ, "PYTHONPATH": str(results_file.ROOT), "OMP_NUM_THREADS": "1"}
    done = preloaded.run(["-m", tiny_scale.__name__, path, "broken ranks"], cwd=results_file.ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    found = report.load(path)
    assert [(r["model"], r["variant"]) for r in found["rows"]] == [("tiny", v) for v in models.VARIANTS]
    hangs, dies = found["failed"]
    assert (hangs["model"], hangs["reason"]) == ("hangs", f"ended after {tiny_scale.TIMEOUT} seconds")
    assert dies["model"] == "dies"
    assert "exit code 3" in dies["reason"]
    assert "tiny, ddp, eager, 2: torch" in done.stdout


def test_selective_checkpointing_keeps_products_and_attention() -> None:
    names = {op.name() for op in steps.saved_operations()}
    assert {"aten::addmm", "cupyops::linear", "aten::_scaled_dot_product_flash_attention"} <= names
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names
    assert not any("norm" in name for name in names)


def test_the_table_has_ratios_and_weak_scaling() -> None:
    document = report.new({"gpu": "GPU", "timm": "1"}, 2)
    row = {"model": "m", "way": "ddp", "mode": "eager", "unit": "tokens", "peak_mib": 2048.0}
    row |= {"milliseconds": 12.3, "host": 9.9, "first_loss": 4.0, "loss": 1.0}
    speeds = {(1, "torch"): 100.0, (1, "cupyops"): 110.0, (2, "torch"): 180.0, (2, "cupyops"): 209.0}
    for ranks in (1, 2):
        rows = [{**row, "ranks": ranks, "variant": v, "per_second": speeds[ranks, v]} for v in ("torch", "cupyops")]
        report.add(document, "rows", rows)
    assert len(document["rows"]) == 4, "rows of a case were added beside those of the same case"
    text = report.markdown(document)
    assert "| m | DDP | eager | 2 | 12 ms (10), 2.0 GiB | 12 ms (10), 2.0 GiB | 1.16 | 95 % (90 %) |" in text
    apart = report.new({"gpu": "other GPU"}, 2)
    report.add(apart, "rows", [r for r in document["rows"] if r["ranks"] == 2])
    both = report.markdown(document, apart)
    assert both.startswith(text)
    assert "weak scaling" not in both[len(text) :], "a column without figures"
    assert "| eager | 1 |" not in text
    report.add(document, "failed", [{**row, "ranks": 2, "reason": "no"}])
    assert [r["ranks"] for r in document["rows"]] == [1, 1]
    assert "- m, ddp, eager, 2 GPUs: no" in report.markdown(document)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(ResultsError, match="cannot read"):
        report.load(path)
    path.write_text(json.dumps({"schema": 2, "rows": []}))
    with pytest.raises(ResultsError, match="is not a file of results on several GPUs"):
        report.load(path)
    path.write_text(json.dumps({"schema": 2, "ranks": 2, "rows": [{"model": "m"}]}))
    with pytest.raises(ResultsError, match="a row lacks way"):
        report.load(path)


def test_the_command_says_what_it_needs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert benchmarks_main(["--ops", "scale"]) == 2
    assert "measuring needs CUDA GPUs" in capsys.readouterr().err
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert main(["--ranks", "2"]) == 2
    assert "--ranks 2: this machine has 1 GPUs" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        benchmarks_main(["--merge", "--ops", "scale"])
    assert "--ops scale comes first and alone" in capsys.readouterr().err
