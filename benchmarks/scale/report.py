"""The results of ``benchmarks.scale``, as a JSON file with machine and commit, and as Markdown."""

import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import results_file
from benchmarks.results_file import save
from benchmarks.table import between, commit_of, machine_of

__all__ = ["add", "default_path", "insert", "line", "load", "markdown", "new", "save"]

SCHEMA = 2
WAYS = {"ddp": "DDP", "fsdp": "FSDP2", "tp": "tensor parallel"}
MODES = {
    "eager": "eager",
    "compiled": "compiled",
    "checkpointing": "eager, selective checkpointing",
    "graphs": "compiled, CUDA graphs",
}
_CASE = ("model", "way", "mode", "ranks")
_ROW = {"model": str, "way": str, "mode": str, "ranks": int, "variant": str, "per_second": float, "milliseconds": float}
_ROW |= {"unit": str}
_ROW |= {"host": float, "first_loss": float, "loss": float}

Row = dict[str, Any]


def default_path(gpu: str) -> Path:
    """``benchmarks/results/scale-nvidia-h200.json`` for "NVIDIA H200"."""
    path = results_file.default_path(gpu)
    return path.with_name(f"scale-{path.name}")


def new(environment: Row, ranks: int) -> Row:
    """A document without rows, of this commit and time."""
    commit, dirty = results_file.commit()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    of_run = {"commit": commit, "dirty": dirty, "date": date}
    return {"schema": SCHEMA, "environment": environment, "ranks": ranks, **of_run, "rows": [], "failed": []}


def add(document: Row, section: str, rows: Iterable[Row]) -> None:
    """Adds rows to "rows" or to "failed", in place of those of the same case."""
    rows = list(rows)
    cases = {tuple(row[key] for key in _CASE) for row in rows}
    for name in ("rows", "failed"):
        document[name] = [r for r in document[name] if tuple(r[key] for key in _CASE) not in cases]
    document[section] += rows


def load(path: Path) -> Row:
    """Reads a file.

    Raises:
        ResultsError: the file cannot be read, or holds something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise results_file.ResultsError(f"cannot read {path}: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or "ranks" not in document:
        raise results_file.ResultsError(f"{path} is not a file of results on several GPUs")
    for row in document["rows"]:
        for key, kind in _ROW.items():
            if not isinstance(row.get(key), (int, float) if kind is float else kind):
                raise results_file.ResultsError(f"{path}: a row lacks {key}, or has it of another type")
    found: Row = document
    return found


def markdown(*documents: Row) -> str:
    """The tables of all cases, and what failed."""
    return "\n\n".join(part for document in documents for part in _parts(document)) + "\n"


def _parts(document: Row) -> list[str]:
    env = document["environment"]
    zoos = "".join(f", {name} {env[name]}" for name in ("timm", "transformers") if env.get(name))
    parts = [f"Measured on {document['ranks']} × {machine_of(env)}{zoos}; commit {commit_of(document)}."]
    lines = [["model", "way", "mode", "GPUs", "PyTorch", "cupyops", "ratio", "weak scaling"]]
    rows = {(*(row[key] for key in _CASE), row["variant"]): row for row in document["rows"]}
    order = {name: i for i, name in enumerate((*WAYS, *MODES))}
    found = sorted({case[:-1] for case in rows}, key=lambda c: (c[0], order[c[1]], order[c[2]], c[3]))
    for case in found:
        model, way, mode, ranks = case
        if ranks == 1 and len({case[-1] for case in found}) > 1:
            continue  # the baseline of weak scaling
        torchs, ours = rows.get((*case, "torch")), rows.get((*case, "cupyops"))
        ratio = "–" if torchs is None or ours is None else f"{ours['per_second'] / torchs['per_second']:.2f}"
        cells = [_cell(torchs), _cell(ours), ratio, _scaling(rows, case)]
        lines.append([model, WAYS[way], MODES[mode], str(ranks), *cells])
    if all(cells[-1] == "–" for cells in lines[1:]):
        lines = [cells[:-1] for cells in lines]
    lines.insert(1, ["---"] * len(lines[0]))
    parts.append("\n".join("| " + " | ".join(cells) + " |" for cells in lines))
    if document["failed"]:
        failed = (
            f"- {r['model']}, {r['way']}, {r['mode']}, {r['ranks']} GPUs: {r['reason']}" for r in document["failed"]
        )
        parts += ["Not measured:", "\n".join(failed)]
    return parts


def line(named: Row, rows: Iterable[Row], reason: str) -> str:
    """A case in one line: its rows, or why there are none."""
    found = "; ".join(
        f"{row['variant']} {_speed(row)}, loss {row['first_loss']:.4f} → {row['loss']:.4f}" for row in rows
    )
    return f"{', '.join(map(str, named.values()))}: {found or reason}"


def _speed(row: Row | None) -> str:
    if row is None:
        return "–"
    memory = "" if row.get("peak_mib") is None else f", {row['peak_mib'] / 1024:.1f} GiB"
    return f"{row['per_second']:,.0f} {row['unit']}/s, {row['milliseconds']:.0f} ms ({row['host']:.0f}){memory}"


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    memory = "" if row.get("peak_mib") is None else f", {row['peak_mib'] / 1024:.1f} GiB"
    return f"{row['milliseconds']:.0f} ms ({row['host']:.0f}){memory}"


def _scaling(rows: dict[Any, Row], case: tuple[Any, ...]) -> str:
    """Returns the throughput of each GPU relative to one GPU alone, of cupyops and (in brackets) of PyTorch."""
    *same, ranks = case
    cells = []
    for variant in ("cupyops", "torch"):
        alone, together = rows.get((*same, 1, variant)), rows.get((*case, variant))
        if ranks > 1 and alone is not None and together is not None:
            cells.append(f"{100 * together['per_second'] / alone['per_second'] / ranks:.0f} %")
    return f"{cells[0]} ({cells[1]})" if len(cells) == 2 else "–"


def insert(page: str, *documents: Row) -> str:
    """Returns the page with the tables in place of the text between its two markers.

    Raises:
        ValueError: the page does not have both markers, in order, once.
    """
    return between(page, markdown(*documents))
