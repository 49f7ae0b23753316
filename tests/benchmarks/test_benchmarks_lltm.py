"""The LLTM's benchmark, as far as it goes without a GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import lltm, lltm_report, results_file

ROW = {"dtype": "float32", "p10": 0.9, "p90": 1.1, "samples": 3}
STEP = {**ROW, "case": "cell", "sizes": [1, 2, 3], "forward": 1.0, "backward": 2.0, "both": 3.0}
ROWS: list[dict[str, Any]] = [
    {**STEP, "implementation": "ours"},
    {**STEP, "implementation": "extension", "forward": 1.5, "both": 3.5},
    {**STEP, "implementation": "ours, graph", "forward": 0.5, "backward": 0.0, "both": 0.5},
    {**STEP, "sizes": [4, 5, 6], "implementation": "extension"},
    {**ROW, "case": "pointwise", "sizes": [7, 8], "implementation": "forward", "both": 2.0, "share_of_copy": 0.9512},
    {**ROW, "case": "pointwise", "sizes": [7, 8], "implementation": "backward", "both": 3.0, "share_of_copy": 0.5},
]
COPY = {"gb_per_s": 4000.0, "p10": 3999.0, "p90": 4001.0, "bytes": 8e9}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A document as a run on a GPU makes it."""
    monkeypatch.setattr(results_file, "environment", lambda: {"gpu": "NVIDIA H200", "torch": "2.11"})
    monkeypatch.setattr(results_file, "commit", lambda: ("0123456789abcdef", False))
    return {**lltm_report.new(COPY), "rows": ROWS}


def test_a_sequence_is_measured_beside_its_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lltm, "SOME", 10)
    rows = list(lltm.sequence_rows(3, 2, 4, torch.float32, torch.device("cpu")))
    assert [row["implementation"] for row in rows] == ["ours", "cuDNN LSTM", "cuDNN GRU"]
    for row in rows:
        assert row["sizes"] == [3, 2, 32, 4]
        assert row["samples"] == 10
        assert row["p10"] <= row["both"] <= row["p90"]
        assert row["both"] > max(row["forward"], row["backward"]) > min(row["forward"], row["backward"]) > 0
    assert lltm_report.table(rows).split("\n")[0] == "| sizes | dtype | ours | cuDNN LSTM | cuDNN GRU |"


@pytest.mark.parametrize("allowed", [False, True])
def test_all_implementations_take_tf32_or_none(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    """PyTorch's defaults allow TF32 to its recurrent layers alone."""
    seen: list[tuple[bool, bool]] = []
    calls = lltm.measure

    def measure(steps: list[Any], runs: int) -> list[Any]:
        seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return calls(steps, runs)

    monkeypatch.setattr(lltm, "measure", measure)
    monkeypatch.setattr(lltm, "SOME", 1)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    rows = list(lltm.sequence_rows(1, 1, 2, torch.float32, torch.device("cpu"), allowed))
    assert seen == [(allowed, allowed)]
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    assert {row["dtype"] for row in rows} == {"float32, TF32" if allowed else "float32"}


def test_the_fastest_is_bold_and_a_version_that_is_missing_a_dash(measured: dict[str, Any]) -> None:
    text = lltm_report.markdown(measured)
    assert "one NVIDIA H200 (driver None) with PyTorch 2.11" in text
    assert "commit 0123456789. 100 % is a copy of 8.0 GB, 4.00 TB/s." in text
    lines = text.split("\n")
    assert "| 1×2×3 | float32 | 1.0 / 2.0 | 1.5 / 2.0 | **0.5** |" in lines
    assert "| 4×5×6 | float32 | – | **1.0 / 2.0** | – |" in lines
    assert "| 7×8 | float32 | 95.1% (2.0) | 50.0% (3.0) |" in lines


def test_what_was_measured_is_kept_and_drawn_into_a_page(
    measured: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page = tmp_path / "results" / "lltm.json", tmp_path / "page.md"
    lltm_report.save(file, measured)
    assert lltm_report.load(file) == measured
    page.write_text("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nbehind\n", encoding="utf-8")
    assert lltm.main(["--from", str(file), "--into", str(page)]) == 0
    found = page.read_text(encoding="utf-8")
    assert found.startswith("before\n<!-- figures: begin -->\nMeasured on one NVIDIA H200")
    assert found.endswith("(3.0) |\n<!-- figures: end -->\nbehind\n")
    assert "old" not in found
    page.write_text("no markers", encoding="utf-8")
    assert lltm.main(["--from", str(file), "--into", str(page)]) == 2
    assert "the page must have the lines" in capsys.readouterr().err


def test_a_middle_length_is_shown_where_ours_is_slower(measured: dict[str, Any]) -> None:
    row = {"case": "sequence", "dtype": "float32", "forward": 1.0, "backward": 1.0}
    times = [(32, "ours", 2.0), (64, "ours", 2.0), (96, "ours", 2.0), (96, "cuDNN LSTM", 1.0), (128, "ours", 2.0)]
    rows = [{**row, "sizes": [n, 1, 2, 3], "implementation": name, "both": both} for n, name, both in times]
    text = lltm_report.markdown({**measured, "rows": rows})
    assert [f"| {n}×1×2×3 |" in text for n in (32, 64, 96, 128)] == [True, False, True, True]


def test_rows_that_are_kept_say_of_which_commit_they_are(
    measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lltm_report.save(tmp_path / "lltm.json", measured)
    monkeypatch.setattr(results_file, "commit", lambda: ("fedcba9876543210", False))
    document = lltm_report.new(COPY)
    lltm_report.keep(document, lltm_report.load(tmp_path / "lltm.json"))
    lltm_report.add(document, [{**STEP, "implementation": "ours", "forward": 0.25}])
    assert [row["implementation"] for row in document["rows"]] == [row["implementation"] for row in ROWS]
    assert [row.get("commit") for row in document["rows"]] == [None, *["0123456789abcdef"] * (len(ROWS) - 1)]
    text = lltm_report.markdown(document)
    assert "commit fedcba9876" in text
    assert "| 1×2×3 | float32 | 0.2 / 2.0 |" in text
    assert "These are of commit 0123456789." in text
    document["environment"] = {"gpu": "NVIDIA A100"}
    with pytest.raises(
        results_file.ResultsError, match="measured on another GPU, NVIDIA H200, and this is NVIDIA A100"
    ):
        lltm_report.keep(document, measured)


def test_a_file_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.json"
    for text in ("[]", '{"schema": 1, "rows": [{"case": "gelu"}]}', "{"):
        file.write_text(text, encoding="utf-8")
        assert lltm.main(["--from", str(file)]) == 2
        assert str(file) in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        lltm.main([])
    assert caught.value.code == 2
    assert "measuring needs a CUDA GPU" in capsys.readouterr().err
