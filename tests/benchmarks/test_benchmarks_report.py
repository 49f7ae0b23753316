"""What a benchmark run leaves behind: the results file, plots, tables, other sections, the command line. No GPU needed."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import build_time, results_file
from benchmarks.lenet5 import Plan, measure_lenet5
from benchmarks.measure import Findings
from benchmarks.table import Form, losing_rows, markdown
from cupyops.torch.bench.timing import gigabytes_per_second

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
    assert "1048576" in markdown(document(), "all")


def layers() -> list[dict[str, Any]]:
    """Rows of linear layers as a run leaves them: each has the shape of its first result and K in its variant."""
    rows = []
    for m, n, k in ((4096, 4096, 4096), (16384, 1, 4096)):
        for variant in (f"K={k}", f"gelu, K={k}", f"K={k}, TF32"):
            for direction, shape in (("forward", [m, n]), ("backward", [m, k]), ("forward and backward", [m, k])):
                dtype = "float32" if "TF32" in variant else "bfloat16"
                labels = {"op": "linear", "variant": variant, "direction": direction, "dtype": dtype, "shape": shape}
                rows += [row("ours", 200.0, **labels), row("eager", 250.0, **labels)]
    return rows


@pytest.mark.parametrize("form", ["short", "largest", "all"])
def test_no_matrix_product_is_counted_in_shares_of_a_copy(form: Form) -> None:
    lines = [line for line in markdown(document(layers()), form).splitlines() if "linear" in line]
    assert lines
    assert not [line for line in lines if "%" in line]


def test_a_product_is_shown_with_its_operations_in_a_second() -> None:
    text = markdown(document(layers()), "all")
    # 2·4096³ operations forward, twice as many backward, three times in both.
    for direction, ours, eager in (
        ("forward", 687.2, 549.8),
        ("backward", 1374.4, 1099.5),
        ("forward and backward", 2061.6, 1649.3),
    ):
        cells = f"| bfloat16 | 4096×4096×4096 | **200.0 ({ours})** | 250.0 ({eager}) |"
        assert f"| linear | {direction} {cells}" in text
        assert f"| linear_gelu | {direction} {cells}" in text
    assert "| linear | backward | float32 as TF32 | 16384×1×4096 | **200.0 (1.3)** | 250.0 (1.1) |" in text


def test_a_layer_that_is_measured_no_more_is_shown_by_its_time() -> None:
    gone = row("ours", 200.0, op="linear", variant="K=5", direction="forward", shape=[3, 7])
    assert "| linear | forward | bfloat16 | 3×7, K=5 | **200.0** |" in markdown(document([gone]), "all")


def test_a_tiny_product_has_no_rate_that_rounds_to_nothing() -> None:
    tiny = row("ours", 1.4, op="linear", variant="K=2", direction="forward", shape=[1, 1])
    assert "| linear | forward | bfloat16 | 1×1×2 | **1.4** |" in markdown(document([tiny]), "all")


def test_every_row_of_a_layer_names_one_layer() -> None:
    """Else a table would count the operations of another layer."""
    from benchmarks.linear import SHAPES, cases, product_of

    found = [(case.labels(), product_of(case.labels())) for case in cases([2**40])]
    assert len({repr(labels) for labels, _ in found}) == len(found) == len(SHAPES) * 24
    for labels, product in found:
        assert product is not None
        assert product.variant == labels["variant"]
        m, second = labels["shape"]
        assert (m, second) == (product.m, product.n if labels["direction"] == "forward" else product.k)


def test_the_short_table_has_one_row_an_operator_by_its_rule() -> None:
    rows = layers() + by_length()
    for variant, n, direction in (
        ("none", 2**28, "forward"),
        ("none", 2**20, "forward"),
        ("none", 2**20, "backward"),
        ("tanh", 2**28, "forward"),
        ("tanh", 2**28, "backward"),
    ):
        rows += [row(name, n / 2**20, variant=variant, shape=[n], direction=direction) for name in ("eager", "ours")]
    lines = [line for line in markdown(document(rows), "short").splitlines() if line.startswith("| `")]
    assert lines == [
        # of N = 1 the gradient of x has more elements, and the product less work
        "| `linear` | 4096×4096×4096 | **200.0** / **200.0** | 250.0 / 250.0 | – |",
        "| `linear_gelu` | 4096×4096×4096 | **200.0** / **200.0** | 250.0 / 250.0 | – |",
        "| `layer_norm` | 32768×8192 | **256.0** / **256.0** | – | 256.0 / 256.0 |",
        "| `add_layer_norm` | 32768×8192 | **256.0** / **256.0** | – | 256.0 / 256.0 |",
        "| `gelu` | 1048576 | 1.0 / 1.0 | **1.0** / **1.0** | – |",
    ]


def test_a_row_that_is_lost_stays_in_the_short_table() -> None:
    rows = [row(n, t, direction=d) for d in ("forward", "backward") for n, t in (("ours", 3.0), ("eager", 2.0))]
    assert "| `gelu` | 268435456 | 3.0 / 3.0 | **2.0** / **2.0** |" in markdown(document(rows), "short")


def test_rows_lost_to_eager_are_listed() -> None:
    assert losing_rows(document()) == ["gelu none forward bfloat16 1048576: 20.0% longer than eager"]


def by_length() -> list[dict[str, Any]]:
    """LayerNorm's rows as a run leaves them: length by length, 1000 dividing no power of two, few rows beside many."""
    rows = []
    for n, variants in ((8192, ("affine", "add_layer_norm")), (64, ("affine",)), (1000, ("affine",))):
        for variant in variants:
            for dtype in ("float32", "bfloat16"):
                for direction in ("forward", "backward"):
                    for m in (2**28 // n, 8) if n == 8192 else (2**28 // n,):
                        labels = {"op": "layer_norm", "variant": variant, "dtype": dtype, "direction": direction}
                        rows += [row(name, m * n / 2**20, shape=[m, n], **labels) for name in ("ours", "liger")]
    return rows


def test_rows_have_a_table_per_direction_many_before_few() -> None:
    text = markdown(document(by_length()), "all")
    assert "### Time on the GPU" not in text
    forward, _, backward = text.partition("### layer_norm forward")[2].partition("### layer_norm backward")
    for table in (forward, backward.partition("###")[0]):
        lines = [line.split(" | ")[:3] for line in table.splitlines() if "float" in line]
        shapes = ["4194304×64", "268435×1000", "32768×8192", "8×8192"]
        affine = [["| affine", dtype, shape] for dtype in ("float32", "bfloat16") for shape in shapes]
        added = [["| add_layer_norm", dtype, shape] for dtype in ("float32", "bfloat16") for shape in shapes[2:]]
        assert lines == affine + added
        assert "| cupyops | Liger |" in table


def test_rows_stand_at_typical_lengths_where_there_is_no_room() -> None:
    text = markdown(document(by_length()))
    lines = [line for line in text.splitlines() if line.startswith("| layer_norm")]
    assert len(lines) == 8
    assert all("32768×8192" in line for line in lines)


def test_rows_are_drawn_over_their_length(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    made = document(by_length())
    paths = {path.name: path for path in draw(made, tmp_path)}
    assert "layer_norm-rows.svg" in paths
    assert "layer_norm-share.svg" not in paths
    text = paths["layer_norm-rows.svg"].read_text(encoding="utf-8")
    for title in ("forward, affine, float32", "backward, affine, bfloat16", "row length", "Liger"):
        assert title in text
    assert "add_layer_norm" not in text


def test_versions_name_liger_where_it_was_there() -> None:
    made = document()
    assert "Liger" not in markdown(made)
    made["environment"]["liger"] = "0.8.5"
    assert "Triton 3.6.0, Liger 0.8.5, Python" in markdown(made)


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
    code, out, err = run("--from", str(path), "--table", "short", capsys=capsys)
    assert (code, err) == (0, "")
    assert "### " not in out
    code, out, err = run("--from", str(path), "--table", "all", "--plots", str(tmp_path / "plots"), capsys=capsys)
    assert (code, err) == (0, "")
    assert "1048576" in out
    assert (tmp_path / "plots" / "host.svg").is_file()


def test_tables_go_between_the_markers_of_a_page(tmp_path: Path) -> None:
    from benchmarks.table import BEGIN, END, insert

    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    new = insert(page, document([row("ours", 10.0), row("eager", 12.0)]))
    assert new.startswith(f"before\n{BEGIN}\n")
    assert new.endswith(f"{END}\nafter\n")
    assert "old" not in new
    assert "| gelu" in new
    for broken in ("no markers", f"{END}{BEGIN}", page + page):
        with pytest.raises(ValueError, match="must have the lines"):
            insert(broken, document([row("ours", 10.0)]))
