"""Draws the pictures of README.md and of the site's front page from the results files.

::

    python -m benchmarks.front_plots     # writes docs/plots/front/*.svg; needs no GPU
"""

import argparse
from collections.abc import Sequence
from typing import Any

from .peers import LABELS
from .plots import COLOURS, of_many_rows, present, subplots
from .rows_report import DTYPE, operator_of
from .tutorial_plots import OPERATORS, ROOT, Plots, chosen, draw

__all__ = ["FOLDER", "PLOTS", "main"]

FOLDER = ROOT / "docs" / "plots" / "front"
# The operators that the results measured as row programs. The layer norms in the results are of former kernels.
ON_ROWS = ("rms_norm", "add_rms_norm", "softmax", "cross_entropy")
MEASURED_AT_EVERY_LENGTH = ("ours", "eager", "liger", "quack")


def gelu(document: dict[str, Any]) -> Any:
    """The time of GELU of 2^28 elements in bfloat16, forward and backward, of each implementation."""
    figure, panels = subplots(2, 2, 4.4, 2.2)
    rows = chosen(document["rows"], op="gelu", variant="none", dtype="bfloat16", shape=[2**28])
    for axes, direction in zip(panels, ("forward", "backward"), strict=True):
        mine = chosen(rows, direction=direction)
        names = present(mine)
        times = [chosen(mine, implementation=name)[0]["microseconds"] for name in names]
        drawn = axes.barh([LABELS[name] for name in names], times, color=[COLOURS[name] for name in names])
        axes.bar_label(drawn, fmt="{:.0f}", padding=3)
        axes.invert_yaxis()
        axes.set(title=f"GELU {direction}", xlabel="µs, less is better", xlim=(0, 1.15 * max(times)))
    return figure


def rows_map(document: dict[str, Any]) -> Any:
    """The share of the copy bandwidth by row length, as a heat map with a line for each operator and implementation."""
    figure, panels = subplots(2, 2, 5.4, 4.4)
    rows = [row for row in of_many_rows(document["rows"]) if row["dtype"].replace("+int64", "") == DTYPE]
    rows = [row for row in rows if operator_of(row) in ON_ROWS]
    lengths = sorted({row["shape"][-1] for row in rows})
    lines = [(op, name) for op in ON_ROWS for name in MEASURED_AT_EVERY_LENGTH]
    for axes, direction in zip(panels, ("forward", "backward"), strict=True):
        shares = {
            (operator_of(row), row["implementation"], row["shape"][-1]): 100 * row["share_of_copy"]
            for row in chosen(rows, direction=direction)
        }
        cells = [[shares.get((*line, n), float("nan")) for n in lengths] for line in lines]
        image = axes.imshow(cells, cmap="viridis", vmin=0, vmax=100, aspect="auto", interpolation="nearest")
        axes.set_yticks(range(len(lines)), [f"{op} · {LABELS[name]}" for op, name in lines], fontsize=7)
        axes.set_xticks(range(0, len(lengths), 3), lengths[::3], fontsize=7)
        axes.grid(visible=False)
        for at in range(len(MEASURED_AT_EVERY_LENGTH), len(lines), len(MEASURED_AT_EVERY_LENGTH)):
            axes.axhline(at - 0.5, color="white", linewidth=2)
        axes.set(title=f"{direction}, {DTYPE}", xlabel="row length")
    panels[1].set_yticks([])
    figure.colorbar(image, ax=panels, label="% of copy bandwidth", fraction=0.03)
    return figure


PLOTS: Plots = {"gelu": (OPERATORS, gelu), "rows_map": ("rows-nvidia-h200.json", rows_map)}


def main(argv: Sequence[str] | None = None) -> None:
    """Draw all plots, and print their paths."""
    argparse.ArgumentParser(
        "python -m benchmarks.front_plots", description="Draw the plots of the front page, and print their paths."
    ).parse_args(argv)
    for path in draw(FOLDER, plots=PLOTS):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
