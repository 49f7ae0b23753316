"""The results of ``benchmarks.models``, as a JSON file with machine and commit, as Markdown, and as a plot."""

import datetime
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results_file
from benchmarks.results_file import save
from benchmarks.table import between, commit_of, machine_of

__all__ = ["add", "default_path", "draw", "insert", "load", "markdown", "new", "save", "short", "speedups"]

SCHEMA = 1
SECTIONS = ("rows", "losses", "chains", "failed")
BATCHES = {"full": "A batch that keeps the GPU busy", "one": "A batch of one"}
MODES = {
    "eager": "eager, bfloat16",
    "autocast": "eager, autocast",
    "compile": "compiled",
    "graphs": "compiled, CUDA graphs",
}
OURS = {"again": "PyTorch, again", "optimize": "`optimize()`", "fusions": "`Fusions()`"}
_ROW = {"model": str, "batch": str, "size": int, "mode": str, "variant": str, "wall": float, "host": float}

Row = dict[str, Any]


def default_path(gpu: str) -> Path:
    """``benchmarks/results/models-nvidia-h200.json`` for "NVIDIA H200"."""
    path = results_file.default_path(gpu)
    return path.with_name(f"models-{path.name}")


def new() -> Row:
    """A document without rows, of this machine, commit and time."""
    commit, dirty = results_file.commit()
    versions = {name: results_file.version(name) for name in ("timm", "transformers")}
    return {
        "schema": SCHEMA,
        "environment": {**results_file.environment(), **versions},
        "commit": commit,
        "dirty": dirty,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **{section: [] for section in SECTIONS},
    }


def add(document: Row, section: str, rows: Iterable[Row]) -> None:
    """Adds rows to a section, one of :data:`SECTIONS`. A row takes the place of the row of the same case.

    A row that stays, beside a new row of PyTorch's modules, gets the time of the modules in its own run, "beside".
    """

    def case(row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in ("model", "chain", "batch", "mode", "variant"))

    fresh = {case(row): row for row in rows}
    measured = {(row.get("model"), row.get("batch"), row.get("mode")) for row in fresh.values()}
    if section == "rows":  # remove failures of cases that are measured now
        document["failed"] = [r for r in document["failed"] if (r["model"], r["batch"], r["mode"]) not in measured]
        walls = {case(row)[:-1]: row["wall"] for row in document["rows"] if row["variant"] == "torch"}
        again = {case(row)[:-1] for row in fresh.values() if row["variant"] == "torch"}
        for row in document["rows"]:
            if case(row)[:-1] in again & walls.keys() and case(row) not in fresh and "wall" in row:
                row.setdefault("beside", walls[case(row)[:-1]])
    document[section] = [fresh.pop(case(row), row) for row in document[section]] + list(fresh.values())


def load(path: Path) -> Row:
    """Reads a file.

    Raises:
        ResultsError: the file cannot be read, or holds something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise results_file.ResultsError(f"cannot read {path}: {error}") from None
    rows = document.get("rows") if isinstance(document, dict) else None
    if document.get("schema") != SCHEMA if isinstance(document, dict) else True:
        raise results_file.ResultsError(f"{path} is not a file of whole models' results")
    if not isinstance(rows, list) or any(not _is_row(row) for row in rows):
        raise results_file.ResultsError(f"{path}: a row lacks one of {', '.join(_ROW)}")
    found: Row = document
    return found


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and all(
        isinstance(row.get(name), (int, float) if kind is float else kind) for name, kind in _ROW.items()
    )


def speedups(document: Row, batch: str, mode: str, variant: str) -> dict[str, float]:
    """Returns, by model, the step time of PyTorch's modules divided by that of the variant, in the variant's run.

    A row without "speedup" has the ratio of two medians.
    """
    rows = {(r["model"], r["variant"]): r for r in document["rows"] if (r["batch"], r["mode"]) == (batch, mode)}
    return {
        model: rows[model, variant].get(
            "speedup", rows[model, variant].get("beside", row["wall"]) / rows[model, variant]["wall"]
        )
        for (model, which), row in rows.items()
        if which == "torch" and (model, variant) in rows
    }


def mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def short(document: Row) -> str:
    """The table of each variant's speedups over all models: the geometric mean, and in brackets the least and greatest."""
    lines = [["batch", "", *MODES.values()], ["---"] * (2 + len(MODES))]
    for batch in BATCHES:
        for v in ("optimize", "fusions"):
            found = [list(speedups(document, batch, mode, v).values()) for mode in MODES]
            cells = [f"{mean(s):.2f} × ({min(s):.2f} to {max(s):.2f})" if s else "–" for s in found]
            if any(found):
                lines.append([batch, OURS[v], *cells])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def markdown(document: Row) -> str:
    """The tables of both batches, of the memory, of the losses, and of the chains of modules."""
    env = document["environment"]
    parts = [
        f"Measured on one {machine_of(env)}, timm {env['timm']}, transformers {env['transformers']}; "
        f"commit {commit_of(document)}."
    ]
    for batch, title in BATCHES.items():
        rows = [row for row in document["rows"] if row["batch"] == batch]
        if rows:
            parts += [f"### {title}", _table(document, batch, rows)]
    if any(row.get("requested_mib") is not None for row in document["rows"]):
        parts += ["### Memory of a full batch", _memory(document["rows"])]
    if document["losses"]:
        parts += ["### Losses", _losses(document["losses"])]
    if document["chains"]:
        parts += ["### Host time of single modules", _chains(document["chains"])]
    if document["failed"]:
        parts += ["Not measured:"]
        parts += ["\n".join(f"- {r['model']}, {r['batch']}, {r['mode']}: {r['reason']}" for r in document["failed"])]
    return "\n\n".join(parts) + "\n"


def _table(document: Row, batch: str, rows: Sequence[Row]) -> str:
    """One line a model: the time of PyTorch's step, and the speedups of the variants with their limits."""
    modes = [mode for mode in MODES if any(row["mode"] == mode for row in rows)]
    ours = [v for v in OURS if any(row["variant"] == v for row in rows)]
    by_case = {(r["model"], r["mode"], r["variant"]): r for r in rows}
    lines = [["model, batch", *(MODES[mode] for mode in modes)], ["---"] * (1 + len(modes))]
    for model, size in dict.fromkeys((row["model"], row["size"]) for row in rows):
        cells = []
        for mode in modes:
            torchs, ratios = by_case.get((model, mode, "torch")), list[str]()
            for v in (v for v in ours if v != "again"):
                ratio = speedups(document, batch, mode, v).get(model)
                ratios += [] if ratio is None else [_speedup(ratio, by_case[model, mode, v])]
            cells.append("–" if torchs is None else f"{torchs['wall']:.1f} ms: {' / '.join(ratios) or '–'}")
        lines.append([f"{model}, {size}", *cells])
    for v in ours:
        found = [speedups(document, batch, mode, v) for mode in modes]
        lines.append([f"mean of {OURS[v]}", *(f"**{mean(s.values()):.2f}**" if s else "–" for s in found)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _speedup(ratio: float, row: Row) -> str:
    """A speedup and, where they are known, the limits between which it lies."""
    limits = f" ({row['speedup_low']:.2f}–{row['speedup_high']:.2f})" if "speedup_low" in row else ""
    return f"{ratio:.2f}{limits}"


def _memory(rows: Sequence[Row]) -> str:
    """MiB that a step with a full batch asks for at its peak: PyTorch's, and the ratio of the others."""
    known = [row for row in rows if row.get("requested_mib") is not None and row["batch"] == "full"]
    measured = {(r["model"], r["mode"], r["variant"]): r["requested_mib"] for r in known}
    modes = [mode for mode in MODES if any(mode == m for _, m, _ in measured)]
    variants = [v for v in OURS if v != "again" and any(v == which for *_, which in measured)]
    lines = [["model, batch", *(MODES[mode] for mode in modes)], ["---"] * (1 + len(modes))]
    for model, size in dict.fromkeys((row["model"], row["size"]) for row in known):
        cells = []
        for mode in modes:
            torchs = measured.get((model, mode, "torch"))
            ratios = [measured[model, mode, v] / torchs for v in variants if torchs and (model, mode, v) in measured]
            cells.append("–" if torchs is None else " / ".join([f"{torchs:.0f}", *(f"{r:.3f}" for r in ratios)]))
        lines.append([f"{model}, {size}", *cells])
    names = " / ".join(["PyTorch in MiB", *(OURS[v] for v in variants)])
    return f"{names}:\n\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _losses(rows: Sequence[Row]) -> str:
    variants = [v for v in ("torch", *OURS) if any(row["variant"] == v for row in rows)]
    names = {"torch": "PyTorch", **OURS}
    lines = [["model", "steps", *(names[v] for v in variants)], ["---"] * (2 + len(variants))]
    for model, steps in dict.fromkeys((row["model"], row["steps"]) for row in rows):
        mine = {row["variant"]: row for row in rows if row["model"] == model}
        lines.append([model, str(steps), *(f"{mine[v]['distance']:.2e}" if v in mine else "–" for v in variants)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _chains(rows: Sequence[Row]) -> str:
    """Medians of forward and backward in microseconds, with the ratio of both to PyTorch's; not under autocast."""
    names = {"torch": "PyTorch", "cupyops": "cupyops", "optimize": "`optimize()`"}
    lines = [["module", "mode", *names.values()], ["---"] * (2 + len(names))]
    for chain, mode in dict.fromkeys((row["chain"], row["mode"]) for row in rows if row["mode"] != "autocast"):
        mine = {row["variant"]: row for row in rows if (row["chain"], row["mode"]) == (chain, mode)}
        cells = []
        for v in names:
            if v not in mine:
                cells.append("–")
                continue
            row = mine[v]
            ratio = ""
            if v != "torch" and "torch" in mine:
                # A row that was measured before ratios were kept has the ratio of two medians.
                ratio = f", {row.get('ratio', row['both'] / mine['torch']['both']):.2f}"
            cells.append(f"{row['forward']:.1f} / {row['backward']:.1f}{ratio}")
        lines.append([chain, MODES[mode], *cells])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def insert(page: str, document: Row, table: str = "all") -> str:
    """Returns the page with the tables in place of the text between its two markers.

    Args:
        table: "all", or "short" for the means alone.

    Raises:
        ValueError: the page does not have both markers, in order, once.
    """
    return between(page, short(document) if table == "short" else markdown(document))


def draw(document: Row, path: Path) -> None:
    """Draws the speedups of both batches as an SVG: one group of bars for each mode, one bar for each model.

    Raises:
        ModuleNotFoundError: matplotlib is missing.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    batches = [b for b in BATCHES if any(row["batch"] == b for row in document["rows"])]
    with mpl.rc_context({"svg.hashsalt": "models", "font.size": 9}):
        figure = Figure(figsize=(10, 3.2 * len(batches)), layout="constrained")
        for axes, batch in zip(figure.subplots(len(batches), squeeze=False)[:, 0], batches, strict=True):
            models = list(dict.fromkeys(r["model"] for r in document["rows"] if r["batch"] == batch))
            bars = [(mode, v) for mode in MODES for v in OURS if v != "again" and speedups(document, batch, mode, v)]
            width = 0.8 / max(len(bars), 1)
            for i, (mode, v) in enumerate(bars):
                found = speedups(document, batch, mode, v)
                places = [n + (i - (len(bars) - 1) / 2) * width for n, m in enumerate(models) if m in found]
                label = f"{MODES[mode]}, {OURS[v].strip('`')}"
                axes.bar(places, [found[m] - 1 for m in models if m in found], width, bottom=1, label=label)
            axes.axhline(1, color="black", linewidth=0.8)
            axes.set(title=BATCHES[batch], ylabel="speedup of a step")
            axes.set_xticks(range(len(models)), models)
            axes.grid(axis="y", alpha=0.3)
        figure.axes[0].legend(fontsize=7, ncols=4)
        figure.savefig(path, format="svg", metadata={"Date": None})
