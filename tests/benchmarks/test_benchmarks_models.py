"""The benchmark of whole models: on a stand-in model and a CPU; its file, tables, plot and command line."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main as benchmarks_main
from benchmarks.models import chains, report, zoo
from benchmarks.models import workers as workers_of_models
from benchmarks.models.__main__ import BATCHES, MODES, NAMES, VARIANTS, main
from benchmarks.models.steps import MODES as STEP_MODES
from benchmarks.models.steps import VARIANTS as STEP_VARIANTS
from benchmarks.models.steps import Steps, losses, variants_of
from benchmarks.models.workers import Case, Worker, measured
from benchmarks.results_file import ResultsError
from tests.benchmarks.tiny_zoo import TINY

CPU = torch.device("cpu")


def test_the_command_line_names_what_there_is() -> None:
    """The command repeats the names, so that `--help` needs no PyTorch."""
    assert tuple(m.name for m in zoo.MODELS) == NAMES
    assert (MODES, VARIANTS) == (STEP_MODES, STEP_VARIANTS)
    assert (tuple(report.BATCHES), tuple(report.MODES)) == (BATCHES, MODES)
    assert ("torch", *report.OURS) == VARIANTS


def test_a_mode_has_the_variants_that_differ_in_it() -> None:
    """Fusions compiles models."""
    assert variants_of("graphs") == variants_of("compile") == ["torch", "again", "optimize", "fusions"]
    assert variants_of("autocast", ["optimize", "fusions"]) == ["optimize"]


@pytest.mark.thorough
def test_models_in_processes_of_their_own_lose_no_row_to_a_model_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot be built, one whose process dies, and one that is timed in two cases."""
    # The processes are forks of one that has imported the models. A GPU would need `spawn`, which imports them in each.
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload(["benchmarks.models.steps"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forked)
    workers = [Worker(name, "cpu", "tests.benchmarks.tiny_zoo") for name in ("broken", "tiny", "tiny")]
    workers[2].name = "dead"
    workers[2].process.kill()
    workers[2].process.join()
    for mode in ("eager", "autocast"):
        asked = [(w, Case(4, mode, ("torch", "optimize"), 2)) for w in workers]
        answers = list(measured(asked))
        assert {w: case for w, case, _ in answers} == dict(asked)
        found = {worker.name: rows for worker, _, rows in answers}
        assert found["broken"] == "ValueError: this model cannot be built"
        assert found["dead"] == "the process ended with exit code -9"
        tiny = found["tiny"]
        assert isinstance(tiny, dict)
        assert {v: row["samples"] for v, row in tiny.items()} == {"torch": 2, "optimize": 2}
    for worker in workers:
        worker.close()
        assert not worker.process.is_alive()


@pytest.mark.parametrize("parallel", [False, True])
def test_every_case_is_measured_once_and_the_large_models_share_the_gpus(
    parallel: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In parallel, two modes of every model are prepared at a time, on both GPUs."""
    calls: list[list[tuple[str, str, str]]] = []

    class Recorded:
        def __init__(self, name: str, device: str) -> None:
            self.name, self.device = name, device

        def close(self) -> None:
            calls.append([(self.name, self.device, "closed")])

    def recording(asked: Any) -> Any:
        calls.append([(worker.name, worker.device, f"{case.batch} {case.mode}") for worker, case in asked])
        for worker, case in asked:
            times = {"host": 1.0, "gpu": 1.0, "requested_mib": None, "peak_mib": None}
            yield worker, case, {v: {"wall": 1.0, **times} for v in case.variants}

    monkeypatch.setattr(workers_of_models, "Worker", Recorded)
    monkeypatch.setattr(workers_of_models, "measured", recording)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(report, "new", lambda: {**_document(), "rows": []})
    names = ("ViT-B/16", "BERT-base")
    out = tmp_path / "models.json"
    assert main(["--models", *names, "--out", str(out), *(["--parallel"] if parallel else [])]) == 0

    found = report.load(out)["rows"]
    wanted = {(n, b, m, v) for n in names for b in BATCHES for m in MODES for v in variants_of(m)}
    wanted = {case for case in wanted if case[1] == "one" or case[3] != "again"}
    assert len(found) == len(wanted)
    assert {(row["model"], row["batch"], row["mode"], row["variant"]) for row in found} == wanted
    measuring = [call for call in calls if call[0][2] != "closed"]
    assert len(calls) - len(measuring) == (4 if parallel else 2)
    if parallel:
        first, second = measuring[0], measuring[1]
        assert [what for _, _, what in first] == ["128 eager", "128 autocast", "32 eager", "32 autocast"]
        assert [what for _, _, what in second] == ["128 compile", "128 graphs", "32 compile", "32 graphs"]
        assert [where for _, where, _ in first] == ["cuda:0", "cuda:1", "cuda:1", "cuda:0"]
    else:
        assert [len(call) for call in measuring] == [1] * 16
        assert {where for call in measuring for _, where, _ in call} == {"cuda:1"}


@pytest.mark.parametrize(("mode", "dtype"), [("eager", torch.bfloat16), ("autocast", torch.float32)])
def test_a_step_changes_the_parameters_and_leaves_no_gradient(mode: str, dtype: torch.dtype) -> None:
    steps = Steps(TINY.build(), TINY.loss, [TINY.draw(4, torch.Generator())], CPU, mode, "torch", lr=0.1)
    before = [p.detach().clone() for p in steps.model.parameters()]
    assert {p.dtype for p in before} == {dtype}
    steps.step()
    assert all(p.grad is None for p in steps.model.parameters())
    assert all(not torch.equal(p, q) for p, q in zip(steps.model.parameters(), before, strict=True))


def test_the_variants_begin_with_the_same_weights() -> None:
    variants = variants_of("eager")
    found = losses(TINY, 2, variants, CPU, count=5)
    assert list(found) == ["float64", *variants]
    assert found["float64"]["distance"] == 0
    torch_alone = found["torch"]["distance"]
    assert 0 < torch_alone < 0.1
    for variant in variants:
        assert found[variant]["distance"] <= 2 * torch_alone, variant


def _row(model: str, mode: str, variant: str, wall: float, batch: str = "full") -> dict[str, Any]:
    size = 64 if batch == "full" else 1
    times = {"wall": wall, "least": wall, "p90": wall, "host": 1.0, "gpu": 2.0, "samples": 3}
    memory: dict[str, Any] = {"requested_mib": 511.25, "peak_mib": 512.0} if mode != "graphs" else {"peak_mib": None}
    return {"model": model, "batch": batch, "size": size, "mode": mode, "variant": variant, **times, **memory}


def _document() -> dict[str, Any]:
    environment = {
        "gpu": "NVIDIA H200",
        "memory_gib": 139.8,
        "driver": "580.1",
        "torch": "2.11.0",
        "cuda_of_torch": "13.0",
        "cupy": "14.2.0",
        "nvrtc": "13.0",
        "triton": "3.6.0",
        "liger": None,
        "nvcc": None,
        "python": "3.12.3",
        "platform": "Linux x86_64",
        "compute_capability": "9.0",
        "timm": "1.0.31",
        "transformers": "5.17.0",
    }
    found = [
        *(_row("A", "eager", v, wall) for v, wall in (("torch", 10.0), ("again", 8.0), ("optimize", 5.0))),
        *(_row("B", "eager", v, wall) for v, wall in (("torch", 4.0), ("again", 8.0), ("optimize", 4.0))),
        *(_row("A", "graphs", v, 3.0, "one") for v in VARIANTS),
    ]
    top = {"schema": 1, "environment": environment, "commit": "0" * 40, "dirty": False, "date": "2026-01-01T00:00:00Z"}
    return {**top, "rows": found, "losses": [], "chains": [], "failed": []}


def test_speedups_divide_pytorchs_time_by_ours() -> None:
    document = _document()
    assert report.speedups(document, "full", "eager", "again") == {"A": 1.25, "B": 0.5}
    assert report.speedups(document, "full", "graphs", "again") == {}
    assert report.mean([2.0, 0.5]) == pytest.approx(1)


def test_the_tables_keep_the_rows_that_lose() -> None:
    document = _document()
    document["losses"] = [
        {"model": "A", "variant": v, "steps": 200, "distance": d, "last": 1.0}
        for v, d in (("float64", 0.0), ("torch", 1e-3), ("optimize", 2e-3))
    ]
    report.add(document, "failed", [{"model": "B", "batch": "one", "mode": "compile", "reason": "a graph break"}])
    text = report.markdown(document)
    assert "| B, 64 | 4.0 ms: 1.00 |" in text
    assert "| mean of PyTorch, again | **0.79** |" in text
    assert "| mean of `optimize()` | **1.41** |" in text
    assert "### A batch of one" in text
    assert "| A | 200 | 1.00e-03 | 2.00e-03 |" in text
    assert "- B, one, compile: a graph break" in text
    memory = text[text.index("### Memory") : text.index("### Losses")]
    assert "| A, 64 | 511 / 1.000 |" in memory
    assert "graphs" not in memory, "they keep their memory"
    assert "again" not in memory, "a second copy needs what the first needs"


def test_the_short_table_has_the_means_of_the_models_and_their_range() -> None:
    page = report.insert("<!-- figures: begin -->\nold\n<!-- figures: end -->\n", _document(), "short")
    lines = page.splitlines()
    assert [line for line in lines if line.startswith("| full |")] == [
        "| full | `optimize()` | 1.41 × (1.00 to 2.00) | – | – | – |",
    ]
    assert "| one | `optimize()` | – | – | – | 1.00 × (1.00 to 1.00) |" in lines
    assert len(lines) == 7
    assert "old" not in page


def test_a_speedup_of_the_rounds_is_shown_with_its_limits() -> None:
    document = _document()
    paired = {"speedup": 0.98, "speedup_low": 0.97, "speedup_high": 1.0}
    report.add(document, "rows", [{**_row("A", "graphs", v, 3.0, "one"), **paired} for v in ("again", "optimize")])
    assert report.speedups(document, "one", "graphs", "optimize") == {"A": 0.98}
    assert "| A, 1 | 3.0 ms: 0.98 (0.97–1.00) / 1.00 |" in report.markdown(document)


PAGES = {"all": "benchmarks_models.md", "short": "models.md"}


@pytest.mark.parametrize("table", PAGES)
def test_the_pages_show_the_results_file(table: str) -> None:
    root = Path(__file__).parents[2]
    document = report.load(root / "benchmarks" / "results" / "models-nvidia-h200.json")
    page = (root / "docs" / PAGES[table]).read_text(encoding="utf-8")
    assert report.insert(page, document, table) == page


def test_a_row_replaces_its_case_and_its_failure() -> None:
    document = _document()
    count = len(document["rows"])
    report.add(document, "failed", [{"model": "A", "batch": "full", "mode": "eager", "reason": "memory"}])
    own_run = report.speedups(document, "full", "eager", "again")["A"]
    for wall in (20.0, 30.0):
        report.add(document, "rows", [_row("A", "eager", "torch", wall), _row("A", "eager", "optimize", 5.0)])
        assert len(document["rows"]) == count
        assert document["rows"][0]["wall"] == wall, "a table keeps the order of its models"
        assert report.speedups(document, "full", "eager", "optimize")["A"] == wall / 5
        assert report.speedups(document, "full", "eager", "again")["A"] == own_run, "times of two runs are not compared"
    report.add(document, "rows", [_row("A", "eager", v, 6.0) for v in ("torch", "again")])
    assert report.speedups(document, "full", "eager", "again")["A"] == 1
    assert document["failed"] == []


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    document = _document()
    report.save(tmp_path / "models.json", document)
    assert report.load(tmp_path / "models.json") == document


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot read"),
        ("[]", "is not a file of whole models' results"),
        (json.dumps({"schema": 1, "rows": [{"model": "A"}]}), "a row lacks one of model, batch"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "models.json"
    path.write_text(content)
    with pytest.raises(ResultsError, match=words):
        report.load(path)


def test_the_command_shows_a_file_in_a_page_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    report.save(tmp_path / "models.json", _document())
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n")
    given = ["--ops", "models", "--from", str(tmp_path / "models.json")]
    assert benchmarks_main(given) == 0
    assert "### A batch that keeps the GPU busy" in capsys.readouterr().out
    assert benchmarks_main([*given, "--into", str(page), "--plot", str(tmp_path / "models.svg")]) == 0
    assert "mean of `optimize()`" in page.read_text()
    assert "old" not in page.read_text()
    assert (tmp_path / "models.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--models", "LeNet"], "invalid choice: 'LeNet'"),
        (["--rounds", "0"], "expected a whole number of at least 1, got '0'"),
    ],
)
def test_what_cannot_be_asked_is_refused(given: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(given)
    assert words in capsys.readouterr().err


def test_models_come_first_and_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmarks_main(["--ops", "gelu", "models"])
    assert "--ops models comes first and alone" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for what is missing")
def test_measuring_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "measuring needs a CUDA GPU" in capsys.readouterr().err


@pytest.mark.parametrize("model", zoo.MODELS, ids=lambda m: m.name)
def test_a_model_of_the_table_is_built(model: zoo.Model) -> None:
    """On the meta device, so that no weight is made."""
    pytest.importorskip("timm" if model.name in ("ViT-B/16", "ConvNeXt-T") else "transformers")
    with torch.device("meta"):
        assert sum(p.numel() for p in model.build().parameters()) > 2e7
    given = model.draw(1, torch.Generator())
    assert all(len(x) == 1 for x in given.values())


def test_chains_of_modules_have_every_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[int] = []
    optimize = chains.optimize

    def counting(chain: torch.nn.Module) -> None:
        replaced.append(len(optimize(chain).replaced))

    monkeypatch.setattr(chains, "optimize", counting)
    for name, value in (("COUNT", 2), ("SHAPE", (4, 8)), ("_WIDTH", 8)):
        monkeypatch.setattr(chains, name, value)
    found = list(chains.measure(CPU, ["eager"], rounds=1))
    assert [(row["chain"], row["variant"]) for row in found] == [(c, v) for c, of in chains.CHAINS.items() for v in of]
    assert all(row["both"] >= row["both_least"] > 0 for row in found)
    assert all(("ratio" in row) == (row["variant"] != "torch") for row in found)
    assert replaced == [2, 2, 2, 4], "two modules of each chain, and the last chain's two pairs"
    lines = [
        line for line in report.markdown({**_document(), "chains": found}).splitlines() if line.startswith("| GELU |")
    ]
    assert [len(line.split("|")) for line in lines] == [7]
    assert "–" not in lines[0]
