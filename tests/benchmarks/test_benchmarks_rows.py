"""The scoreboard of the operators on rows: its cases, its peers' calls, the order of a run, the table and the figure."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import __main__ as command
from benchmarks import (
    cross_entropy,
    measure,
    results_file,
    rms_norm,
    row_picture,
    rows,
    rows_report,
    softmax,
    untuned,
    warm_up,
)
from benchmarks.cases import Case, Choice, Operand, check
from benchmarks.choices import COMPILED_AT, ROW_SCALE, families
from benchmarks.measure import Findings
from benchmarks.peers import Unavailable
from benchmarks.table import between, insert, markdown

from .documents import document, row

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "rows-nvidia-h200.json", ROOT / "docs" / "benchmarks_rows.md"
OPERATORS = {"layer_norm", "add_layer_norm", "rms_norm", "add_rms_norm", "softmax", "cross_entropy"}


def all_cases(n: int = 96, elements: int = 2**11) -> list[Case]:
    return list(rows.cases(n, elements))


@pytest.mark.parametrize("n", [96, 1024])
@pytest.mark.parametrize("name", ["ours", "eager"])
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")
def test_every_case_agrees_with_its_reference(n: int, name: str) -> None:
    for case in all_cases(n):
        inputs = case.inputs(torch.Generator().manual_seed(0))
        assert case.shape[-1] == n
        if name == "eager" and (case.op, case.direction) == ("layer_norm", "backward") and "16" in case.dtype:
            continue  # PyTorch's kernel on a CPU takes statistics of another dtype than that on a GPU
        check(case, case.bind(case.implementations[name](), inputs)(), case.expected(inputs))


def test_the_cases_cover_what_is_claimed() -> None:
    for n in ROW_SCALE:
        found = [case for case in all_cases(n, 2**20) if rows_report.operator_of(case.labels()) in OPERATORS]
        many = max(1, 2**20 // n)
        kinds = {
            (rows_report.operator_of(case.labels()), case.direction, case.dtype.replace("+int64", "")) for case in found
        }
        dtypes = {"bfloat16", "float32", *(["float16"] if n in (1024, 4096, 16384) else [])}
        wanted = {(op, d, dtype) for op in OPERATORS for d in ("forward", "backward") for dtype in dtypes}
        wanted |= {
            (op, d, "bfloat16+float32") for op in OPERATORS if op.endswith("_norm") for d in ("forward", "backward")
        }
        assert kinds == wanted
        labels = [str(case.labels()) for case in found]
        assert len(set(labels)) == len(labels)
        few = {case.shape[0] for case in found} - {many}
        assert few == ({m for m in (1, 8, 64, 512) if m < many} if n in (1024, 4096) else set())
        for case in found:
            names = set(case.implementations)
            assert ("compile" in names) == (n in COMPILED_AT and case.shape[0] == many)
            quack = rows_report.operator_of(case.labels()) not in ("layer_norm", "add_layer_norm")
            assert names >= {"ours", "eager", *(["quack"] if quack else [])}


def test_cases_are_chosen_by_dtype_direction_and_operator() -> None:
    found = list(rows.cases(96, 2**11, dtypes=["bfloat16"], directions=["backward"], ops=["cross_entropy", "softmax"]))
    assert [(case.op, case.direction, case.dtype) for case in found] == [
        ("cross_entropy", "backward", "bfloat16+int64"),
        ("softmax", "backward", "bfloat16"),
    ]
    shares = [list(warm_up.share(Choice((2**11,), (96,), of_rows=True), ["softmax"], ["device"], i, 2)) for i in (0, 1)]
    assert sorted(str(c.labels()) for share in shares for c in share) == sorted(
        str(c.labels()) for c in rows.cases(96, 2**11, ops=["softmax"])
    )


# The peers are called with arguments of these names, in this order.


def _normed(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.float(), x.shape[-1:], w.float(), eps).to(x.dtype)


def liger_rms_norm(x: Tensor, w: Tensor, eps: float, offset: float, casting_mode: str, in_place: bool) -> Tensor:
    assert (offset, casting_mode, in_place) == (0.0, "llama", False)
    return _normed(x, w, eps)


def liger_add(x: Tensor, r: Tensor, w: Tensor, eps: float, offset: float, casting_mode: str, in_place: bool) -> Any:
    s = x + r
    return liger_rms_norm(s, w, eps, offset, casting_mode, in_place), s


def liger_cross_entropy(
    x: Tensor, target: Tensor, weight: Any, ignore: int, square: float, smoothing: float, reduction: str
) -> Any:
    assert (weight, square) == (None, 0.0)
    assert not x.requires_grad
    loss = F.cross_entropy(x, target, weight, ignore_index=ignore, label_smoothing=smoothing, reduction=reduction)
    return loss, None, None, None


def quack_rmsnorm(
    x: Tensor,
    weight: Tensor,
    bias: None = None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
) -> Any:
    s = x if residual is None else x + residual
    return (_normed(s, weight, eps), s) if prenorm else _normed(s, weight, eps)


LIGER = {
    "rms_norm": SimpleNamespace(LigerRMSNormFunction=SimpleNamespace(apply=liger_rms_norm)),
    "fused_add_rms_norm": SimpleNamespace(LigerFusedAddRMSNormFunction=SimpleNamespace(apply=liger_add)),
    "softmax": SimpleNamespace(LigerSoftmaxFunction=SimpleNamespace(apply=lambda x: torch.softmax(x, -1))),
    "cross_entropy": SimpleNamespace(LigerCrossEntropyFunction=SimpleNamespace(apply=liger_cross_entropy)),
}
QUACK = {
    "rmsnorm": quack_rmsnorm,
    "softmax": lambda x: torch.softmax(x, -1),
    "cross_entropy": lambda x, target, reduction: F.cross_entropy(x.float(), target, reduction=reduction),
}


def test_the_peers_are_called_as_they_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rms_norm, softmax, cross_entropy):
        monkeypatch.setattr(module, "liger_kernels", LIGER.__getitem__)
        monkeypatch.setattr(module, "quack_function", QUACK.__getitem__)
    called = set()
    for case in all_cases():
        for name in {"liger", "quack"} & set(case.implementations):
            if case.op != "layer_norm":
                inputs = case.inputs(torch.Generator().manual_seed(0))
                check(case, case.bind(case.implementations[name](), inputs)(), case.expected(inputs))
                called.add((name, rows_report.operator_of(case.labels()), case.direction))
    operators = OPERATORS - {"layer_norm", "add_layer_norm"}
    both = {(name, op, d) for name in ("liger", "quack") for op in operators for d in ("forward", "backward")}
    assert called == both - {("liger", "cross_entropy", "backward")}


def test_a_peer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for case in all_cases():
        for name in {"liger", "quack"} & set(case.implementations):
            with pytest.raises(Unavailable, match="is not installed"):
                case.implementations[name]()


# The command


def sections(words: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[Any]]:
    seen: list[Any] = []

    def measured(cases: Iterator[Case], *arguments: Any, rounds: int, echo: Callable[..., Any]) -> Findings:
        seen.append(sorted({(rows_report.operator_of(case.labels()), case.shape[-1], rounds) for case in cases}))
        return Findings()

    monkeypatch.setattr(measure, "measure_device", measured)
    monkeypatch.setattr(warm_up, "run", lambda choice, ops, kinds, names, jobs, echo: seen.append((names, jobs > 0)))
    options = command.build_parser().parse_args(words.split())
    options.of_rows = True
    command._take_rows(options)
    return seen, list(command._sections(options, torch.device("cpu"), 1.0))


def test_a_run_measures_length_by_length_beside_the_peers_that_row_programs_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, found = sections("--ops rows --row-lengths 96 128 --sizes 2^10", monkeypatch)
    assert seen[0] == (["ours", "eager", "compile", "liger", "quack"], True)
    one_length = [
        sorted({rows_report.operator_of(case.labels()) for case in rows.cases(96, 2**10, ops=[family])})
        for family in families("rows")
    ]
    assert ["add_rms_norm", "rms_norm"] in one_length
    assert seen[1:] == [[(op, n, rows.ROUNDS) for op in ops] for n in (96, 128) for ops in one_length]
    assert [section for section, _, _ in found] == [f"{family}.device" for family in families("rows")] * 2


def test_a_run_that_is_late_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 11.0, 11.0])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    seen, found = sections("--ops rows --row-lengths 96 128 --sizes 2^10 --within 10", monkeypatch)
    count = len(families("rows"))
    assert len(seen) == 1 + count
    told = [entry for _, _, findings in found for entry in findings.skipped]
    assert [(e.what, e.reason, e.failed) for e in told] == [("rows of 128", "not begun within 10 s", False)] * count


# The table and the figure


def scores() -> dict[str, Any]:
    found = []
    times = {"ours": 100.0, "eager": 300.0, "quack": 95.0}
    for n in (96, 1024):
        for direction in ("forward", "backward"):
            for name, time in times.items():
                if name != "quack" or direction == "forward":
                    labels = {"op": "rms_norm", "variant": "affine", "direction": direction, "shape": [2**20 // n, n]}
                    found.append(row(name, time, **labels))
                    found.append(row(name, time, **{**labels, "variant": "add_rms_norm"}, dtype="float32"))
    found.append(row("ours", 2.0, op="rms_norm", variant="affine", shape=[1, 1024]))
    labels = {"op": "cross_entropy", "variant": "a loss a row", "dtype": "bfloat16+int64", "shape": [1024, 1024]}
    return document([*found, row("ours", 100.0, **labels)])


def test_the_table_has_a_line_each_second_length_and_a_cell_an_operator() -> None:
    text = markdown(scores(), "rows")
    assert "| row length | `rms_norm` | `cross_entropy` |" in text
    share = [f"{100 * 4 * (2**20 // n * n) / t / 1e3 / 4280:.0f}" for n, t in ((96, 100.0), (96, 95.0), (96, 300.0))]
    assert f"| 96 | {share[0]} / **{share[0]}** ({share[1]} / {share[2]}) | – |" in text
    assert "| 1024 | " not in text
    assert "In 4 of 10 measurements in all dtypes, a peer is faster by more than 2 percent." in text
    assert "| rms_norm forward | bfloat16 | quack | 10922×96, 1024×1024 | 1.05 × |" in text
    assert "| add_rms_norm forward | float32 | quack | 10922×96, 1024×1024 | 1.05 × |" in text


def test_a_board_without_losses_says_so_and_one_without_rows_too() -> None:
    kept = [r for r in scores()["rows"] if r["implementation"] != "quack"]
    assert rows_report.lost(kept) == []
    assert markdown(document(kept), "rows").count("In 0 of 10 measurements") == 1
    assert rows_report.scoreboard([]) == "No row of bfloat16 has been measured."


def test_the_tutorial_compares_two_lengths_with_the_committed_results(tmp_path: Path) -> None:
    found = []
    for n, theirs in ((4096, 100.0), (4544, 200.0)):
        labels = {"op": "softmax", "variant": "softmax", "shape": [2**28 // n, n]}
        found += [row("ours", 100.0, **labels), row("liger", theirs, **labels), row("eager", 1.0, **labels)]
        found.append(row("ours", 100.0, **labels, direction="backward"))  # of which Liger has no row
    made = untuned.table(found).splitlines()
    assert len(made) == 3
    cells = [cell.strip() for cell in made[2].split("|")[1:-1]]
    assert cells[0] == "`softmax` forward"
    assert [cell.partition(" ")[2] for cell in cells[1:]] == ["(100)", "(100)", "(100)", "(200)"]
    assert untuned.table([]) == ""
    assert untuned.text(tmp_path / "none.json") == "Not measured yet.\n"
    path = tmp_path / "rows.json"
    results_file.save(path, {**document(found), "environment": {"gpu": "H", "triton": "3", "liger": "1"}})
    assert untuned.text(path).startswith("H, Triton 3, Liger 1, 2^28 elements in bfloat16:\n\n| % of copy")
    page = untuned.PAGE.read_text(encoding="utf-8")
    assert page == between(page, untuned.text()), "make figures"


def test_there_is_one_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path, page = tmp_path / "rows.json", tmp_path / "page.md"
    results_file.save(path, scores())
    page.write_text("Before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nBehind\n", encoding="utf-8")
    words = ["--from", str(path), "--table", "rows", "--plots", str(tmp_path / "plots"), "--into", str(page)]
    assert command.main(words) == 0
    assert [p.name for p in (tmp_path / "plots").iterdir()] == ["rows.svg"]
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert "| row length |" in text
    assert text.startswith("Before")
    assert text.endswith("Behind\n")


def test_the_picture_of_the_rule_is_that_of_the_rule() -> None:
    assert row_picture.PATH.read_text(encoding="utf-8") == row_picture.draw(), "make figures"
    drawn = [row_picture.config(n) for n in row_picture.LENGTHS]
    # The statements of the page about the five lengths.
    assert [found.groups > 1 for found in drawn] == [True, True, False, False, False]
    assert [found.cluster > 1 for found in drawn] == [False, False, False, True, True]
    assert [found.prefetch for found in drawn] == [False, False, False, True, False]
    assert [found.stream for found in drawn] == [False, False, False, False, True]
    assert drawn[0].row_threads < 32 == drawn[1].row_threads < drawn[2].row_threads == drawn[2].block


def test_the_page_has_the_figures_of_the_results_file() -> None:
    page = PAGE.read_text(encoding="utf-8")
    if RESULTS.exists():
        assert page == insert(page, results_file.load(RESULTS), "rows")
        assert "](plots/rows.svg)" in page
        assert (ROOT / "docs" / "plots" / "rows.svg").exists()
    else:
        assert "Not measured yet." in page
        assert "rows.svg" not in page


def test_cases_of_a_peer_that_were_left_out_for_one_reason_have_one_line() -> None:
    def left_out(shape: str, reason: str, direction: str = "backward") -> dict[str, Any]:
        what = f"liger, softmax softmax, {direction}, bfloat16, {shape}"
        return {"section": "softmax.device", "what": what, "reason": reason, "failed": True}

    skipped = [
        left_out("8 × 96", "off by 3.1 eps; 2 are allowed"),
        left_out("4 × 128", "off by 2.5e+03 eps; 2 are allowed"),
        left_out("2 × 256", "CUDA error"),
        left_out("2 × 512", "CUDA error", "forward"),
        {"section": "build", "what": "extension", "reason": "no nvcc", "failed": False},
    ]
    text = markdown({**document(), "skipped": skipped})
    assert text.partition("### Not measured\n\n")[2].splitlines() == [
        "- softmax.device, liger, softmax softmax, backward, bfloat16, 8×96, 4×128: off by 3.1 eps; 2 are allowed (the first "
        "of them)",
        "- softmax.device, liger, softmax softmax, backward, bfloat16, 2×256; softmax softmax, forward, bfloat16, 2×512: CUDA error",
        "- build, extension: no nvcc",
    ]


def test_a_failed_capture_does_not_keep_the_next_implementation_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capture leaves its memory pool open, and PyTorch refuses a second capture into it."""
    opened: set[int] = set()
    handles = iter(range(9))

    class Graph:
        name = "graph"

        def __init__(self, calls: list[Any], pool: int) -> None:
            if pool in opened:
                raise RuntimeError("already recording to mempool_id")
            opened.add(pool)
            self.outputs = [call() for call in calls]
            opened.remove(pool)

        def replay(self) -> None:
            self.outputs[-1].fill_(1)

    def synchronizes() -> Tensor:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(measure, "GraphTimer", Graph)
    monkeypatch.setattr(measure, "EventTimer", lambda calls: SimpleNamespace(name="events"))
    monkeypatch.setattr(measure, "synchronize", lambda device: None)
    one = torch.ones(2)
    case: Any = SimpleNamespace(capturable=True, title="case", results=(Operand((2,), torch.float32),))
    pool: list[Any] = [torch.cuda.graph_pool_handle()]
    calls: tuple[Callable[[], Tensor], ...] = (one.clone, synchronizes, one.clone)
    names = [measure._device_timer(case, pool, [call], [one.double()]).name for call in calls]
    assert names == ["graph", "events", "graph"]
