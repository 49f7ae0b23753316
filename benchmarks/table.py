"""The results file as Markdown, for the README and the documentation."""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .cases import PRODUCTS, ROWWISE
from .choices import FORMS, Form
from .linear import PRODUCTS_OF, product_of
from .peers import LABELS
from .plots import elements, host_label, kind, largest, present
from .rows_report import losses, scoreboard

__all__ = ["FORMS", "Form", "between", "commit_of", "insert", "losing_rows", "machine_of", "markdown"]

Row = dict[str, Any]

# Two runs of one kernel differ by less.
LOSS = 0.02
LEAST_ELEMENTS = 2**20

LISTED = 0.05  # least relative loss that the list shows
LARGE_PRODUCT = 2**30  # M·N·K
SHAPES = 2  # at most named in a line of missing measurements


def markdown(document: dict[str, Any], form: Form = "largest") -> str:
    """The document's tables.

    Args:
        form: ``"largest"``: every section that has rows, with the times on the GPU at the largest sizes and at typical row
            lengths. ``"all"``: the same without operators on rows, with large matrix products of all shapes, and the cases of
            all operators, sizes and dtypes in which ours is slower than another. ``"rows"``: of a run of ``--ops rows``, the table of
            shares by row length.
    """
    if form == "rows":
        parts = [f"{_measured_on(document)} {_a_copy(document)}", scoreboard(document["rows"]), *_missing(document)]
        return "\n\n".join(parts) + "\n"
    parts = [f"{_measured_on(document)} {_a_copy(document)}"]
    rows = _shown(document["rows"]) if form == "all" else largest(document["rows"])
    products = [row for row in rows if row["op"] in PRODUCTS]
    moved = [row for row in rows if row["op"] not in PRODUCTS]
    together = [row for row in moved if row["op"] not in ROWWISE] if form == "all" else moved
    if together:
        parts += ["### Time on the GPU: % of copy bandwidth (µs)", _device_table(together)]
    if products:
        parts += ["### Matrix products: µs", _products_table(products)]
    if form == "all":
        parts += ["### Where another is faster", *losses(document["rows"], lambda row: " ".join(kind(row)[:3]), LISTED)]
    if document["host"]:
        count = elements(document["host"][0])
        parts += [f"### Host time per call: µs, {count} elements", _host_table(document["host"])]
    if document["build"]:
        parts += ["### Build", _build_table(document["build"])]
    if document["lenet5"]:
        parts += ["### LeNet-5 on MNIST", _lenet5_table(document["lenet5"])]
    parts += _missing(document)
    return "\n\n".join(parts) + "\n"


def _shown(rows: Sequence[Row]) -> list[Row]:
    """The rows of typical cases: the largest sizes and typical row lengths, and large matrix products, forward and backward.

    Cases that were measured in bfloat16 have no rows of float16 and float32.
    """
    typical = {_place(row) for row in largest([row for row in rows if row["op"] not in PRODUCTS])}
    measured = {_place(row) for row in rows}

    def is_typical(row: Row) -> bool:
        product = row["op"] in PRODUCTS
        beside = row | {"dtype": "bfloat16", "variant": row["variant"].removesuffix(", TF32")}
        if row["dtype"] in ("float16", "float32") and _place(beside) in measured:
            return False
        if product:
            return row["direction"] != "forward and backward" and not 0 < _work(row) < LARGE_PRODUCT
        return _place(row) in typical

    return [row for row in rows if is_typical(row)]


def _missing(document: dict[str, Any]) -> list[str]:
    """The missing measurements: one line for the cases of a peer that were left out for the same reason."""
    alike: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
    for entry in document["skipped"]:
        what, _, shape = entry["what"].rpartition(", ")
        peer, _, case = what.partition(", ")
        key = entry["section"], peer, re.sub(r"\d\S*", "", entry["reason"])
        alike.setdefault(key, []).append((case, shape, entry["reason"]))
    lines = []
    for (section, peer, _), found in alike.items():
        cases: dict[str, list[str]] = {}
        for case, shape, _ in found:
            cases.setdefault(case, []).append(shape.replace(" × ", "×"))
        named = []
        for case, shapes in cases.items():
            more = f" and {len(shapes) - SHAPES} more" if len(shapes) > SHAPES else ""
            named.append(f"{f'{case}, ' if case else ''}{', '.join(shapes[:SHAPES])}{more}")
        first = "" if len({reason for *_, reason in found}) == 1 else " (the first of them)"
        lines.append(f"- {section}, {f'{peer}, ' if peer else ''}{'; '.join(named)}: {found[0][2]}{first}")
    return ["### Not measured", "\n".join(lines)] if lines else []


def _a_copy(document: dict[str, Any]) -> str:
    gigabytes, rate = document["copy"]["bytes"] / 1e9, document["copy_gb_per_s"] / 1000
    return f"100 % is a copy of {gigabytes:.1f} GB, {rate:.2f} TB/s."


BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def insert(page: str, document: dict[str, Any], form: Form = "largest") -> str:
    """Returns the page with the tables in place of the text between its two markers.

    Raises:
        ValueError: it does not have both markers, in order, once.
    """
    return between(page, markdown(document, form))


def between(page: str, text: str, name: str = "figures") -> str:
    """The page with the text between its two markers of this name; raises as :func:`insert`."""
    begin, end = BEGIN.replace("figures", name), END.replace("figures", name)
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page must have the lines {begin} and {end}, once each and in this order")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}{end}{rest.partition(end)[2]}"


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
        f"CuPy {machine.get('cupy')}, NVRTC {machine.get('nvrtc')}, Triton {machine.get('triton')}, {_peers(machine)}"
        f"Python {machine.get('python')}"
    )


def commit_of(measured: Row) -> str:
    """The commit of a section or a document, short, and whether its tree had been changed."""
    return (measured["commit"] or "unknown")[:10] + (" with changes" if measured["dirty"] else "")


def _peers(machine: Row) -> str:
    return "".join(f"{LABELS[name]} {machine[name]}, " for name in ("liger", "quack") if machine.get(name))


def _measured_on(document: dict[str, Any]) -> str:
    return f"Measured on one {machine_of(document['environment'])}; {_commits(document)}."


def _commits(document: dict[str, Any]) -> str:
    named = {commit_of(section) for section in document["sections"].values()}
    return f"commit {named.pop()}" if len(named) == 1 else f"{len(named)} commits, which the results file names"


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


def _operator(row: Row) -> str:
    """The operator's name; some share the label "op", and differ in the variant."""
    if row["op"] in PRODUCTS:
        return "linear_gelu" if row["variant"].startswith("gelu") else "linear"
    return "add_layer_norm" if row["variant"] == "add_layer_norm" else str(row["op"])


def _work(row: Row) -> int:
    """The size by which rows are compared: M·N·K of a matrix product, and the elements of another result."""
    if row["op"] not in PRODUCTS:
        return elements(row)
    product = product_of(row)
    return 0 if product is None else product.m * product.n * product.k


def _size(row: Row) -> str:
    """M×N×K of a matrix product, and the shape of another result."""
    product = product_of(row) if row["op"] in PRODUCTS else None
    return _shape(row) if product is None else f"{product.m}×{product.n}×{product.k}"


def _products_table(rows: Sequence[Row]) -> str:
    """Microseconds, and ours as 2·M·N·K operations for each product of the direction in a second."""
    names = present(rows)
    body = []
    for place in dict.fromkeys(map(_place, rows)):
        mine = [row for row in rows if _place(row) == place]
        first, product = mine[0], product_of(mine[0])
        dtype = f"{first['dtype']} as TF32" if first["variant"].endswith("TF32") else first["dtype"]
        size = _size(first) if product else f"{_shape(first)}, {first['variant']}"
        ours = "".join(_rate(row) for row in mine if row["implementation"] == "ours")
        body.append([_operator(first), first["direction"], dtype, size, *_cells(mine, names, _time), ours])
    return _table(["operator", "direction", "dtype", "M×N×K", *(LABELS[n] for n in names), "TFLOP/s of cupyops"], body)


def _rate(row: Row) -> str:
    rate = 2 * _work(row) * PRODUCTS_OF[row["direction"]] / row["microseconds"] / 1e6
    return f"{rate:.1f}" if rate else "–"


def _share(row: Row) -> str:
    return f"{row['share_of_copy']:.1%}"


def _time(row: Row) -> str:
    return f"{row['microseconds']:.1f}"


def _share_and_time(row: Row) -> str:
    return f"{_share(row)} ({_time(row)})"


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
