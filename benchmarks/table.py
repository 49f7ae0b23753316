"""The results file as Markdown, for the README and the documentation."""

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .cases import ROWWISE
from .peers import LABELS
from .plots import elements, host_label, kind, largest, of_many_rows, present

__all__ = ["between", "commit_of", "insert", "losing_rows", "machine_of", "markdown"]

Row = dict[str, Any]

# Two runs of one kernel differ by less.
LOSS = 0.02
LEAST_ELEMENTS = 2**20


def markdown(document: dict[str, Any], *, all_sizes: bool = False) -> str:
    """Tables of every section that has rows; of the GPU's times at the largest sizes and typical row lengths, or at
    all."""
    parts = [
        f"Measured on one {machine_of(document['environment'])}; {_commits(document)}. "
        f"100 % is a copy of {document['copy']['bytes'] / 1e9:.1f} GB, {document['copy_gb_per_s'] / 1000:.2f} TB/s."
    ]
    rows = document["rows"] if all_sizes else largest(document["rows"])
    apart = [row for row in rows if row["op"] in ROWWISE] if all_sizes else []
    together = [row for row in rows if row["op"] not in ROWWISE] if all_sizes else rows
    if together:
        parts += ["### Time on the GPU: % of copy bandwidth (µs)", _device_table(together)]
    for op, direction in dict.fromkeys((row["op"], row["direction"]) for row in apart):
        mine = [row for row in apart if (row["op"], row["direction"]) == (op, direction)]
        parts += [f"### {op} {direction}, by row length: % of copy bandwidth (µs)", _lengths_table(mine)]
    if document["host"]:
        count = elements(document["host"][0])
        parts += [f"### Host time per call: µs, {count} elements", _host_table(document["host"])]
    if document["build"]:
        parts += ["### Build", _build_table(document["build"])]
    if document["lenet5"]:
        parts += ["### LeNet-5 on MNIST", _lenet5_table(document["lenet5"])]
    if document["skipped"]:
        missing = [f"- {e['section']}, {e['what']}: {e['reason']}" for e in document["skipped"]]
        parts += ["### Not measured", "\n".join(missing)]
    return "\n\n".join(parts) + "\n"


BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def insert(page: str, document: dict[str, Any], *, all_sizes: bool = False) -> str:
    """The page with the tables between its two markers, in place of what stood there.

    Raises:
        ValueError: it does not have both markers, in order, once.
    """
    return between(page, markdown(document, all_sizes=all_sizes))


def between(page: str, text: str) -> str:
    """The page with the text between its two markers; raises as :func:`insert`."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page must have the lines {BEGIN} and {END}, once each and in this order")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}"


def losing_rows(document: dict[str, Any]) -> list[str]:
    """From 2^20 elements, where ours takes more than 2 % longer than PyTorch eager, and by how much."""
    eager = {_place(row): row["microseconds"] for row in document["rows"] if row["implementation"] == "eager"}
    lines = []
    for row in document["rows"]:
        against = eager.get(_place(row))
        if row["implementation"] != "ours" or against is None or elements(row) < LEAST_ELEMENTS:
            continue
        longer = row["microseconds"] / against - 1
        if longer > LOSS:
            lines.append(f"{' '.join(kind(row))} {_shape(row)}: {longer:.1%} longer than eager")
    return lines


def machine_of(machine: Row) -> str:
    """The GPU, and the versions that decide the numbers."""
    return (
        f"{machine.get('gpu')} (driver {machine.get('driver')}) with PyTorch {machine.get('torch')}, "
        f"CuPy {machine.get('cupy')}, NVRTC {machine.get('nvrtc')}, Triton {machine.get('triton')}, {_liger(machine)}"
        f"Python {machine.get('python')}"
    )


def commit_of(measured: Row) -> str:
    """The commit of a section or a document, short, and whether its tree had been changed."""
    return (measured["commit"] or "unknown")[:10] + (" with changes" if measured["dirty"] else "")


def _liger(machine: Row) -> str:
    return f"Liger {machine['liger']}, " if machine.get("liger") else ""


def _commits(document: dict[str, Any]) -> str:
    named = {commit_of(section) for section in document["sections"].values()}
    return ("commits " if len(named) > 1 else "commit ") + ", ".join(sorted(named))


def _place(row: Row) -> tuple[Any, ...]:
    return *kind(row), tuple(row["shape"])


def _shape(row: Row) -> str:
    return "×".join(map(str, row["shape"]))


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *body)]
    return "\n".join(lines)


def _cells(rows: Sequence[Row], names: Sequence[str], form: Callable[[Row], str]) -> list[str]:
    """One cell per implementation, the fastest in bold."""
    by_name = {row["implementation"]: row for row in rows}
    fastest = min(rows, key=lambda row: row["microseconds"])["implementation"]
    texts = {name: form(row) for name, row in by_name.items()}
    return [f"**{texts[n]}**" if n == fastest else texts.get(n, "–") for n in names]


def _device_table(rows: Sequence[Row]) -> str:
    names = present(rows)
    body = []
    for place in dict.fromkeys(map(_place, rows)):
        mine = [row for row in rows if _place(row) == place]
        cells = _cells(mine, names, _share_and_time)
        body.append([place[0], place[1], place[2], place[3], _shape(mine[0]), *cells])
    return _table(["operator", "variant", "direction", "dtype", "shape", *(LABELS[n] for n in names)], body)


def _lengths_table(rows: Sequence[Row]) -> str:
    """One operator and direction: by variant and dtype, many rows of each length before few."""
    names = present(rows)
    variants, dtypes = (dict.fromkeys(row[label] for row in rows) for label in ("variant", "dtype"))
    body = []
    for variant, dtype in itertools.product(variants, dtypes):
        mine = [row for row in rows if (row["variant"], row["dtype"]) == (variant, dtype)]
        if not mine:
            continue
        many = {tuple(row["shape"]) for row in of_many_rows(mine)}
        shapes = {tuple(row["shape"]) for row in mine}
        for shape in sorted(shapes, key=lambda shape: (shape not in many, shape[-1], shape)):
            cells = _cells([row for row in mine if tuple(row["shape"]) == shape], names, _share_and_time)
            body.append([variant, dtype, "×".join(map(str, shape)), *cells])
    return _table(["variant", "dtype", "shape", *(LABELS[n] for n in names)], body)


def _share_and_time(row: Row) -> str:
    return f"{row['share_of_copy']:.1%} ({row['microseconds']:.1f})"


def _host_table(rows: Sequence[Row]) -> str:
    names = present(rows)
    body = []
    for label, direction in dict.fromkeys((host_label(row, rows), row["direction"]) for row in rows):
        mine = [row for row in rows if (host_label(row, rows), row["direction"]) == (label, direction)]
        body.append([label, direction, *_cells(mine, names, lambda row: f"{row['microseconds']:.2f}")])
    return _table(["operator", "call", *(LABELS[n] for n in names)], body)


def _build_table(rows: Sequence[Row]) -> str:
    seconds = {(row["implementation"], row["what"], row["cache"]): f"{row['seconds']:.3g} s" for row in rows}
    body = [
        [LABELS[name], what, *(seconds.get((name, what, cache), "–") for cache in ("cold", "warm"))]
        for name, what in dict.fromkeys((row["implementation"], row["what"]) for row in rows)
    ]
    return _table(["", "what", "empty cache", "full cache"], body)


def _lenet5_table(rows: Sequence[Row]) -> str:
    body = []
    for backend, recipe, epochs in dict.fromkeys((row["backend"], row["recipe"], row["epochs"]) for row in rows):
        mine = [row for row in rows if (row["backend"], row["recipe"], row["epochs"]) == (backend, recipe, epochs)]
        accuracies = [row["accuracy"] for row in mine]
        seconds = [row["seconds_per_epoch"] for row in mine if row["seconds_per_epoch"] is not None]
        body.append(
            [
                backend,
                recipe,
                str(epochs),
                f"{statistics.mean(accuracies):.2f} ({', '.join(f'{a:.2f}' for a in accuracies)})",
                f"{statistics.median(seconds):.2f}" if seconds else "–",
            ]
        )
    return _table(["GELU", "recipe", "epochs", "test accuracy (%), mean and seeds", "seconds per epoch"], body)
