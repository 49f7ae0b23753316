"""Draws the plot at the end of each tutorial of docs/tutorials from the results files.

::

    python -m benchmarks.tutorial_plots     # writes docs/plots/tutorials/*.svg; needs no GPU
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cupyops.torch.bench.roofline import METADATA, STYLE

from .linear import product_of
from .peers import LABELS
from .plots import COLOURS, bars, legend, present, subplots

__all__ = ["PLOTS", "draw", "main"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FOLDER = ROOT / "docs" / "plots" / "tutorials"
OPERATORS, OWN, LLTM = "nvidia-h200.json", "own-ops.json", "lltm-nvidia-h200.json"

LIMIT: dict[str, Any] = {"color": "#999999", "linewidth": 0.8, "linestyle": "--", "zorder": 0.5}  # after the numbers

Row = dict[str, Any]
Plot = Callable[[dict[str, Any]], Any]
Plots = Mapping[str, tuple[str, Plot]]  # by name: the results file, and the function that draws it


def chosen(rows: Iterable[Row], **labels: Any) -> list[Row]:
    """The rows that have these labels."""
    return [row for row in rows if all(row[name] == value for name, value in labels.items())]


def vector_add(document: dict[str, Any]) -> Any:
    """Bandwidth over the number of elements, and the host time of a call of 1024 elements."""
    figure, (sizes, host) = subplots(2, 2, 5, 3.4)
    rows = chosen(document["rows"], op="add2", variant="one shape", direction="forward", dtype="float32")
    for name in present(rows):
        line = sorted((row["shape"][0], 100 * row["share_of_copy"]) for row in chosen(rows, implementation=name))
        sizes.plot(*zip(*line, strict=True), marker="o", markersize=3, color=COLOURS[name], label=LABELS[name])
    sizes.axhline(100, **LIMIT)
    sizes.set_xscale("log", base=2)
    sizes.set(title="Many elements: memory", xlabel="elements, float32", ylabel="% of copy bandwidth", ylim=(0, None))
    calls = chosen(document["host"], op="add2", variant="one shape")
    calls = [row for row in calls if row["direction"] != "forward and backward" and row["implementation"] != "dlpack"]
    times = {(row["direction"], row["implementation"]): row["microseconds"] for row in calls}
    bars(host, ["forward", "forward, recording"], times, present(calls), "{:.1f}")
    host.set(title="1024 elements: the host", xlabel="µs per call, not synchronised")
    legend(figure, sizes)
    return figure


def gelu_in_lenet5(document: dict[str, Any]) -> Any:
    """Test accuracy after each epoch, and the time of GELU alone."""
    figure, (curves, times) = subplots(2, 2, 5, 3.4)
    look = {"kernels": (COLOURS["ours"], "GELU of cupyops"), "torch": (COLOURS["eager"], "GELU of PyTorch")}
    for backend, (colour, label) in look.items():
        runs = [run["accuracies"] for run in chosen(document["lenet5"], backend=backend, recipe="default")]
        epochs = range(1, len(runs[0]) + 1)
        for run in runs:
            curves.plot(epochs, run, color=colour, linewidth=0.7, alpha=0.6)
        means = [sum(accuracies) / len(runs) for accuracies in zip(*runs, strict=True)]
        curves.plot(epochs, means, color=colour, linewidth=2, label=f"{label}, mean of {len(runs)} seeds")
    curves.set(title="LeNet-5 on MNIST", xlabel="epoch", ylabel="test accuracy (%)")
    curves.xaxis.get_major_locator().set_params(integer=True)
    curves.legend(fontsize=7, loc="lower right")
    rows = chosen(document["rows"], op="gelu", variant="none", dtype="bfloat16", shape=[2**28])
    shown = {(row["direction"], row["implementation"]): row["microseconds"] for row in rows}
    bars(times, ["forward", "backward"], shown, present(rows), "{:.0f}")
    times.set(title="GELU, 2^28 elements in bfloat16", xlabel="µs on the GPU")
    legend(figure, times)
    return figure


def row_reduction(document: dict[str, Any]) -> Any:
    """The share of copy bandwidth of each step of the tutorial, compared with PyTorch."""
    rows = chosen(document["rows"], op="tutorial")
    figure, (axes,) = subplots(1, 1, 8, 3.4)
    at, ticks = 0.0, {}
    for steps, what in (
        (("naive", "coalesced", "vectorised"), "the norm"),
        (("add, vectorised", "fused"), "add, then the norm"),
    ):
        mine = [row for row in rows if row["variant"] in steps]
        for step in steps:
            (row,) = chosen(mine, variant=step, implementation="ours")
            _step(axes, at, row, COLOURS["ours"])
            ticks[at] = "two operators" if step.startswith("add") else step
            at += 1
        for name in ("eager", "compile"):
            _step(axes, at, chosen(mine, implementation=name)[-1], COLOURS[name])
            ticks[at] = LABELS[name]
            at += 1
        middle = at - (len(steps) + 3) / 2
        axes.annotate(what, (126, middle), ha="center", va="center", rotation=270, fontsize=8)
        at += 0.6
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.axvline(100, **LIMIT)
    shape = "×".join(map(str, rows[0]["shape"]))
    axes.set(title=f"RMSNorm, {shape} in bfloat16", xlabel="% of copy bandwidth", xlim=(0, 130))
    return figure


def _step(axes: Any, at: float, row: Row, colour: str) -> None:
    """A bar of the share, with the time."""
    share = 100 * row["share_of_copy"]
    axes.barh(at, share, 0.85, color=colour)
    text = f"{share:.1f} % ({row['microseconds']:.0f} µs)"
    axes.annotate(text, (share, at), (3, 0), textcoords="offset points", va="center", fontsize=7)


def row_programs(document: dict[str, Any]) -> Any:
    """The share of copy bandwidth of the row programs of examples/own_ops, forward and backward."""
    figure, panels = subplots(2, 2, 5, 3.8)
    names = ("softmax", "rms_norm", "cross_entropy")
    for axes, direction in zip(panels, ("forward", "backward"), strict=True):
        rows = [row for name in names for row in _largest(document["rows"], name, direction)]
        shares = {(row["variant"], row["implementation"]): 100 * row["share_of_copy"] for row in rows}
        bars(axes, names, shares, present(rows), "{:.1f}")
        axes.axvline(100, **LIMIT)
        axes.set(title=f"{direction}, 65536 rows of 4096 in bfloat16", xlabel="% of copy bandwidth")
    legend(figure, panels[0])
    return figure


def _largest(rows: Iterable[Row], variant: str, direction: str) -> list[Row]:
    mine = chosen(rows, op="own_ops", variant=variant, direction=direction)
    return [row for row in mine if row["shape"][0] == max(row["shape"][0] for row in mine)]


def linear_gelu(document: dict[str, Any]) -> Any:
    """The time of linear_gelu as a share of PyTorch eager's, over the sizes of the product."""
    figure, (axes,) = subplots(1, 1, 8, 4.2)
    times: dict[tuple[str, str], float] = {}
    for row in chosen(document["rows"], op="linear", direction="forward", dtype="bfloat16"):
        product = product_of(row)
        if product is not None and row["variant"].startswith("gelu") and product.k > 2:  # 1×1×2 is a launch alone
            times[f"{product.m}×{product.n}×{product.k}", row["implementation"]] = row["microseconds"]
    groups = sorted({group for group, _ in times}, key=lambda group: times[group, "eager"])
    shares = {(group, name): 100 * time / times[group, "eager"] for (group, name), time in times.items()}
    bars(axes, groups, shares, ["ours", "compile"], "{:.1f}")
    axes.set_yticks(range(len(groups)), [f"{group}\n{times[group, 'eager']:.0f} µs" for group in groups])
    axes.axvline(100, **LIMIT)
    axes.set(
        title="linear_gelu, forward, bfloat16: M×N×K, and PyTorch eager's time", xlabel="% of PyTorch eager's time"
    )
    legend(figure, axes)
    return figure


def lltm(document: dict[str, Any]) -> Any:
    """A step in each version, and a sequence over the number of units compared with cuDNN's LSTM."""
    figure, (step, sequence) = subplots(2, 2, 5, 3.6)
    cells = [row for row in chosen(document["rows"], case="cell", sizes=[16, 32, 128]) if row["backward"]]
    times = {(way, row["implementation"]): row[way] for row in cells for way in ("forward", "backward")}
    bars(step, ["forward", "backward"], times, present(cells), "{:.0f}")
    step.set(title="A step: 16 rows, 32 features, 128 units", xlabel="µs, waited for, float32")
    step.legend(fontsize=7)
    for dtype, style in (("float32", "-"), ("bfloat16", "--")):
        rows = chosen(document["rows"], case="sequence", dtype=dtype)
        rows = [row for row in rows if row["sizes"][:3] == [128, 16, 32]]
        for name, label, colour in (
            ("cuDNN LSTM, graph", "cuDNN's LSTM", COLOURS["eager"]),
            ("ours, graph", "lltm", COLOURS["ours"]),
        ):
            line = sorted((row["sizes"][3], row["both"] / 1000) for row in chosen(rows, implementation=name))
            drawn = {"color": colour, "linestyle": style, "label": f"{label}, {dtype}"}
            sequence.plot(*zip(*line, strict=True), marker="o", markersize=3, **drawn)
    sequence.set(title="128 steps: 16 rows, 32 features", xlabel="units", ylabel="ms forward and backward, CUDA graph")
    sequence.set_yscale("log", base=2)
    sequence.yaxis.set_major_formatter("{x:g}")
    sequence.legend(fontsize=7)
    return figure


# The page's name: the file with the results, and what is drawn of them.
PLOTS: Plots = {
    "1_vector_add": (OPERATORS, vector_add),
    "2_gelu_in_lenet5": (OPERATORS, gelu_in_lenet5),
    "3_row_reduction": (OWN, row_reduction),
    "4_row_programs": (OWN, row_programs),
    "5_linear_and_onnx": (OPERATORS, linear_gelu),
    "6_lltm": (LLTM, lltm),
}


def draw(folder: Path = FOLDER, names: Sequence[str] | None = None, plots: Plots = PLOTS) -> list[Path]:
    """Write the plots, by default all, into the folder, and return their paths. The same results give the same bytes.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        OSError: the folder cannot be written.
    """
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(STYLE):
        for name in plots if names is None else names:
            source, plot = plots[name]
            document = json.loads((RESULTS / source).read_text(encoding="utf-8"))
            figure, machine = plot(document), document["environment"]
            footer = (
                f"{machine['gpu']}, PyTorch {machine['torch']}, CuPy {machine['cupy']}; benchmarks/results/{source}"
            )
            figure.supxlabel(footer, x=0.99, ha="right", fontsize=6, color="#555555")
            written.append(folder / f"{name}.svg")
            figure.savefig(written[-1], format="svg", metadata=METADATA)
    return written


def main(argv: Sequence[str] | None = None) -> None:
    """Draw all plots, and print their paths."""
    argparse.ArgumentParser(
        "python -m benchmarks.tutorial_plots", description="Draw all plots, and print their paths."
    ).parse_args(argv)
    for path in draw():
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
