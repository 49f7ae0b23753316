"""The results of :mod:`benchmarks.lltm`, as a JSON file with machine and commit, and as Markdown."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import results_file
from .choices import LLTM_CASES
from .results_file import save
from .table import between, commit_of, machine_of

__all__ = ["add", "default_path", "insert", "keep", "load", "markdown", "new", "save", "table"]

HEADINGS = {
    "cell": "### One step: microseconds, forward / backward",
    "sequence": "### A sequence: microseconds, forward / backward",
    "pointwise": "### The kernels between the products: % of copy bandwidth (µs)",
}
SCHEMA = 1

Row = dict[str, Any]


def default_path(gpu: str) -> Path:
    """``benchmarks/results/lltm-nvidia-h200.json`` for "NVIDIA H200"."""
    path = results_file.default_path(gpu)
    return path.with_name(f"lltm-{path.name}")


def new(copy: Row) -> Row:
    """A document without rows, of this machine, commit and time. copy: "gb_per_s", its spread, and "bytes"."""
    commit, dirty = results_file.commit()
    return {
        "schema": SCHEMA,
        "environment": results_file.environment(),
        "commit": commit,
        "dirty": dirty,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "copy": copy,
        "rows": [],
    }


def keep(document: Row, measured: Row) -> None:
    """Adds the rows of a file to a new document. Each of them says of which commit it is.

    Raises:
        ResultsError: the file is of another GPU.
    """
    here, there = document["environment"]["gpu"], measured["environment"]["gpu"]
    if here != there:
        raise results_file.ResultsError(f"the rows to keep were measured on another GPU, {there}, and this is {here}")
    document["rows"] = [{"commit": measured["commit"], **row} for row in measured["rows"]]


def add(document: Row, rows: Sequence[Row]) -> None:
    """Adds rows. A row takes the place of the row of the same case."""

    def case(row: Row) -> tuple[Any, ...]:
        return row["case"], tuple(row["sizes"]), row["dtype"], row["implementation"]

    fresh = {case(row): row for row in rows}
    document["rows"] = [fresh.pop(case(row), row) for row in document["rows"]] + list(fresh.values())


def load(path: Path) -> Row:
    """Read a file.

    Raises:
        ResultsError: it cannot be read, or is not one of these.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise results_file.ResultsError(f"cannot read {path}: {error}") from None
    rows = document.get("rows") if isinstance(document, dict) else None
    if (
        not isinstance(rows, list)
        or document.get("schema") != SCHEMA
        or any(r.get("case") not in LLTM_CASES for r in rows)
    ):
        raise results_file.ResultsError(f"{path} is not a file of the LLTM's results")
    found: Row = document
    return found


def markdown(document: Row) -> str:
    """Tables of every case that has rows, and what they were measured on."""
    copy = document["copy"]
    parts = [
        f"Measured on one {machine_of(document['environment'])}; commit {commit_of(document)}. "
        f"100 % is a copy of {copy['bytes'] / 1e9:.1f} GB, {copy['gb_per_s'] / 1000:.2f} TB/s."
    ]
    for case in LLTM_CASES:
        mine = _shown([row for row in document["rows"] if row["case"] == case])
        if mine:
            parts += [HEADINGS[case], table(mine)]
            # A row that was kept when others were measured again says of which commit it is.
            kept = dict.fromkeys(commit_of({"dirty": None, **row}) for row in mine if "commit" in row)
            parts += [f"These are of commit {' and '.join(kept)}."] if kept else []
    return "\n\n".join(parts) + "\n"


def _shown(rows: Sequence[Row]) -> list[Row]:
    """The rows without float16, where bfloat16 was measured, without TF32, where float32 was, and without sequences of a length
    between the shortest and the longest of their sizes, unless ours is slower."""
    steps: dict[tuple[Any, ...], set[int]] = {}
    for row in rows:
        steps.setdefault((*row["sizes"][1:], row["dtype"]), set()).add(row["sizes"][0])
    times: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        times.setdefault((*row["sizes"], row["dtype"]), {})[row["implementation"]] = row["both"]

    def is_shown(row: Row) -> bool:
        beside = {"float16": "bfloat16", "float32, TF32": "float32"}.get(row["dtype"])
        mine = times[(*row["sizes"], row["dtype"])]
        loses = row["case"] != "pointwise" and min(mine, key=lambda name: mine[name]) not in ("ours", "ours, graph")
        lengths = steps[(*row["sizes"][1:], row["dtype"])]
        between_others = row["case"] == "sequence" and min(lengths) < row["sizes"][0] < max(lengths)
        return loses or (not between_others and (*row["sizes"], beside) not in times)

    return [row for row in rows if is_shown(row)]


def insert(page: str, document: Row) -> str:
    """Returns the page with the tables in place of the text between its two markers.

    Raises:
        ValueError: it does not have both markers, in order, once.
    """
    return between(page, markdown(document))


def table(rows: Sequence[Row]) -> str:
    """One line a case: forward / backward, or both where they are one; the fastest altogether in bold."""
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    lines = [["sizes", "dtype", *names], ["---"] * (2 + len(names))]
    for sizes, dtype in dict.fromkeys((tuple(row["sizes"]), row["dtype"]) for row in rows):
        mine = {r["implementation"]: r for r in rows if (tuple(r["sizes"]), r["dtype"]) == (sizes, dtype)}
        fastest = min(mine, key=lambda name: mine[name]["both"])
        texts = {name: _cell(row) for name, row in mine.items()}
        if "share_of_copy" not in mine[fastest]:
            texts[fastest] = f"**{texts[fastest]}**"
        lines.append(["×".join(map(str, sizes)), dtype, *(texts.get(name, "–") for name in names)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cell(row: Row) -> str:
    if "share_of_copy" in row:
        return f"{row['share_of_copy']:.1%} ({row['both']:.1f})"
    return f"{row['forward']:.1f} / {row['backward']:.1f}" if row["backward"] else f"{row['both']:.1f}"
