"""Plots of a results file, as SVG that is the same byte for byte whenever it is drawn from the same file."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cupyops.torch.bench.roofline import METADATA, STYLE

from .cases import PRODUCTS, ROWWISE
from .peers import IMPLEMENTATIONS, LABELS

__all__ = ["draw"]

COLOURS = {
    "ours": "#0072b2",
    "eager": "#e69f00",
    "compile": "#009e73",
    "triton": "#cc79a7",
    "liger": "#d55e00",
    "quack": "#f0e442",
    "extension": "#7f7f7f",
    "dlpack": "#56b4e9",
    "function": "#8c564b",
}
# The row lengths that are shown where there is no room for all.
TYPICAL_LENGTHS = (1024, 8192)

Row = dict[str, Any]


def draw(document: dict[str, Any], folder: Path, *, of_rows: bool = False) -> list[Path]:
    """Write the plots that the document has rows for, and return their paths.

    Args:
        of_rows: draw the one figure of ``--ops rows``.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        OSError: the folder cannot be written.
    """
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    footer = _footer(document)
    written = []
    with matplotlib.rc_context(STYLE):
        for name, figure in _scoreboard(document) if of_rows else _figures(document):
            figure.supxlabel(footer, x=0.99, ha="right", fontsize=6, color="#555555")
            path = folder / f"{name}.svg"
            figure.savefig(path, format="svg", metadata=METADATA)
            written.append(path)
    return written


def _figures(document: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    for op in dict.fromkeys(row["op"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["op"] == op]
        if op in PRODUCTS:
            continue  # a share of copy says nothing of them; the tables have the times
        if op in ROWWISE:
            yield f"{op}-rows", _by_length(rows)
        else:
            yield f"{op}-share", _share(op, rows)
            yield f"{op}-sizes", _sizes(rows)
    if document["host"]:
        yield "host", _host(document["host"])
    if document["build"]:
        yield "build", _build(document["build"])
    if document["lenet5"]:
        yield "lenet5", _lenet5(document["lenet5"])


def _scoreboard(document: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    from . import rows_report  # which draws with the functions of this module

    if rows_report.shown(document["rows"]):
        yield "rows", rows_report.figure(document["rows"])


def _footer(document: dict[str, Any]) -> str:
    machine = document["environment"]
    commits = sorted({(s.get("commit") or "unknown")[:10] for s in document["sections"].values()})
    return (
        f"{machine.get('gpu')}, PyTorch {machine.get('torch')}, CuPy {machine.get('cupy')}, "
        f"NVRTC {machine.get('nvrtc')}, copy {document['copy_gb_per_s'] / 1000:.2f} TB/s, commit {' '.join(commits)}"
    )


def elements(row: Row) -> int:
    """Number of elements of a row's result."""
    return math.prod(row["shape"])


def largest(rows: Sequence[Row]) -> list[Row]:
    """The results of each operation at the greatest number of elements; of operations on rows, at each of the typical
    lengths; of matrix products those in bfloat16."""

    def place(row: Row) -> tuple[Any, ...]:
        return (*kind(row), row["shape"][-1]) if row["op"] in ROWWISE else kind(row)

    shown = [row for row in rows if row["op"] not in ROWWISE or row["shape"][-1] in TYPICAL_LENGTHS]
    shown = [row for row in shown if row["op"] not in PRODUCTS or row["dtype"] == "bfloat16"]
    greatest: dict[tuple[Any, ...], int] = {}
    for row in shown:
        greatest[place(row)] = max(greatest.get(place(row), 0), elements(row))
    return [row for row in shown if elements(row) == greatest[place(row)]]


def of_many_rows(rows: Sequence[Row]) -> list[Row]:
    """Those near the greatest number of elements, which not every row length divides."""
    greatest = max(map(elements, rows))
    return [row for row in rows if 2 * elements(row) > greatest]


def kind(row: Row) -> tuple[str, ...]:
    """Returns the labels that rows of different sizes and implementations share."""
    return row["op"], row["variant"], row["direction"], row["dtype"]


def present(rows: Iterable[Row]) -> list[str]:
    """The implementations that have rows, ours first."""
    found = {row["implementation"] for row in rows}
    return [name for name in IMPLEMENTATIONS if name in found]


def subplots(panels: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, list[Any]]:
    """A figure and its axes; width and height are a panel's, in inches."""
    from matplotlib.figure import Figure

    lines = math.ceil(panels / columns)
    figure = Figure(figsize=(width * columns, height * lines + 0.4), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False, **options).flat)
    for unused in axes[panels:]:
        unused.set_axis_off()
    return figure, axes[:panels]


def bars(
    axes: Any, groups: Sequence[str], values: Mapping[tuple[str, str], float], names: Sequence[str], form: str
) -> None:
    """Horizontal bars by group, one per implementation; where one has no value, its place stays empty and says so."""
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        offsets = [g + (i - (len(names) - 1) / 2) * height for g in range(len(groups))]
        found = [values.get((group, name)) for group in groups]
        axes.barh(offsets, [v or 0 for v in found], height * 0.92, label=LABELS[name], color=COLOURS[name])
        for at, value in zip(offsets, found, strict=True):
            text = "not measured" if value is None else form.format(value)
            axes.annotate(text, (value or 0, at), (3, 0), textcoords="offset points", va="center", fontsize=6)
    axes.set_yticks(range(len(groups)), groups)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.15)


def legend(figure: Any, axes: Any) -> None:
    """The legend of one panel above all panels."""
    handles, labels = axes.get_legend_handles_labels()
    lines = math.ceil(len(labels) / int(figure.get_figwidth() / 1.6))
    figure.legend(handles, labels, loc="outside upper center", ncols=math.ceil(len(labels) / lines), frameon=False)


_DIRECTIONS = ("forward", "backward", "tangent")  # in the order of the panels


def _share(op: str, rows: Sequence[Row]) -> Any:
    """Share of the copy bandwidth at the largest size, by direction and variant."""
    rows = largest(rows)
    panels = list(dict.fromkeys((row["direction"], row["variant"]) for row in rows))
    names = present(rows)
    figure, grid = subplots(len(panels), min(2, len(panels)), 5.2, 3.4)
    for axes, panel in zip(grid, panels, strict=True):
        mine = [row for row in rows if (row["direction"], row["variant"]) == panel]
        shares = {(row["dtype"], row["implementation"]): 100 * row["share_of_copy"] for row in mine}
        bars(axes, list(dict.fromkeys(row["dtype"] for row in mine)), shares, names, "{:.1f}")
        axes.axvline(100, color="black", linewidth=0.8, linestyle="--")
        size = _count(elements(mine[0]))
        axes.set(title=f"{op} {panel[0]}, {panel[1]}", xlabel=f"% of copy bandwidth, {size} elements")
    legend(figure, grid[0])
    return figure


def _sizes(rows: Sequence[Row]) -> Any:
    """Share of the copy bandwidth over the number of elements, for what was measured at several."""
    panels = [k for k in dict.fromkeys(map(kind, rows)) if len({elements(row) for row in rows if kind(row) == k}) > 1]
    if not panels:
        panels = list(dict.fromkeys(map(kind, rows)))
    return _curves(rows, panels, elements, "elements")


def _by_length(rows: Sequence[Row]) -> Any:
    """Share of the copy bandwidth over the row length, of the first variant, where there are many rows. The tables have
    the tangents."""
    mine = [row for row in rows if row["variant"] == rows[0]["variant"] and row["direction"] != "tangent"]
    mine = of_many_rows(mine)
    return _curves(mine, list(dict.fromkeys(map(kind, mine))), lambda row: int(row["shape"][-1]), "row length")


def _curves(rows: Sequence[Row], panels: list[tuple[str, ...]], over: Callable[[Row], int], label: str) -> Any:
    """Share of the copy bandwidth, a line per implementation."""
    # A line of panels per direction and variant, a column per dtype.
    panels.sort(key=lambda panel: panel[1], reverse=True)
    panels.sort(key=lambda panel: _DIRECTIONS.index(panel[2]))
    figure, grid = subplots(len(panels), min(3, len(panels)), 3.6, 2.7, sharey=True)
    for axes, panel in zip(grid, panels, strict=True):
        mine = [row for row in rows if kind(row) == panel]
        for name in present(rows):
            line = sorted((over(row), 100 * row["share_of_copy"]) for row in mine if row["implementation"] == name)
            x, y = [point[0] for point in line], [point[1] for point in line]
            axes.plot(x, y, marker="o", markersize=3, color=COLOURS[name], label=LABELS[name])
        axes.axhline(100, color="black", linewidth=0.8, linestyle="--")
        axes.set_xscale("log", base=2)
        axes.set(title=f"{panel[2]}, {panel[1]}, {panel[3]}", xlabel=label, ylabel="% of copy", ylim=(0, None))
        axes.label_outer()
        axes.tick_params(labelbottom=True)
    legend(figure, grid[0])
    return figure


def host_label(row: Row, rows: Sequence[Row]) -> str:
    """The operator's name, and the variant where it is measured in more than one."""
    op, variant = row["op"], row["variant"]
    return op if len({r["variant"] for r in rows if r["op"] == op}) == 1 else f"{op}, {variant}"


def _host(rows: Sequence[Row]) -> Any:
    """Host microseconds per call."""
    labels = [f"{host_label(row, rows)}\n{row['direction']}" for row in rows]
    groups = list(dict.fromkeys(labels))
    times = {(label, row["implementation"]): row["microseconds"] for label, row in zip(labels, rows, strict=True)}
    names = present(rows)
    figure, (axes,) = subplots(1, 1, 8, 0.16 * len(groups) * len(names) + 0.8)
    bars(axes, groups, times, names, "{:.1f}")
    axes.set(title="Host time per call", xlabel=f"µs, {_count(elements(rows[0]))} elements, not synchronised")
    legend(figure, axes)
    return figure


def _build(rows: Sequence[Row]) -> Any:
    """Build seconds on a logarithmic axis."""
    ordered = sorted(rows, key=lambda row: (row["cache"], IMPLEMENTATIONS.index(row["implementation"]), row["what"]))
    figure, (axes,) = subplots(1, 1, 8.5, 0.26 * len(ordered) + 0.8)
    for at, row in enumerate(ordered):
        # A bar needs a positive length on this axis, and a difference of two times may be too small to tell from zero.
        seconds = max(row["seconds"], 1e-4)
        axes.barh(at, seconds, color=COLOURS[row["implementation"]])
        label = f"{row['seconds']:.3g} s"
        axes.annotate(label, (seconds, at), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_xscale("log")
    axes.set_yticks(
        range(len(ordered)), [f"{LABELS[r['implementation']]}, {r['cache']} cache: {r['what']}" for r in ordered]
    )
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.15)
    axes.set(title="Time to build, empty and full cache", xlabel="seconds")
    return figure


def _lenet5(rows: Sequence[Row]) -> Any:
    """Accuracy after each epoch, a line a run, and seconds per epoch."""
    colours = {"kernels": COLOURS["ours"], "torch": COLOURS["eager"]}
    styles = {"default": "-", "fast": "--"}
    figure, (curves, times) = subplots(2, 2, 5, 3.4)
    labelled: set[str] = set()
    for row in rows:
        label = f"{row['backend']}, {row['recipe']}"
        epochs = range(1, len(row["accuracies"]) + 1)
        look = {"color": colours[row["backend"]], "linestyle": styles[row["recipe"]]}
        curves.plot(epochs, row["accuracies"], linewidth=0.9, label=None if label in labelled else label, **look)
        labelled.add(label)
    curves.set(title="LeNet-5 on MNIST", xlabel="epoch", ylabel="test accuracy (%)")
    curves.xaxis.get_major_locator().set_params(integer=True)
    curves.legend(fontsize=7)
    timed = [row for row in rows if row["seconds_per_epoch"] is not None]
    groups = list(dict.fromkeys(f"{row['backend']}, {row['recipe']}" for row in timed))
    for at, group in enumerate(groups):
        mine = [row["seconds_per_epoch"] for row in timed if f"{row['backend']}, {row['recipe']}" == group]
        backend = group.partition(",")[0]
        times.barh(at, sum(mine) / len(mine), 0.6, color=colours[backend])
        times.plot(mine, [at] * len(mine), "k|", markersize=8)
    times.set_yticks(range(len(groups)), groups)
    times.invert_yaxis()
    times.set(title="Time per epoch" if timed else "Time per epoch: not measured", xlabel="seconds")
    return figure


def _count(n: int) -> str:
    return f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else f"{n:,}"
